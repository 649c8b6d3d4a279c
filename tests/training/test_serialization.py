"""`flax.serialization` of a train state that holds metrics; Flax is loaded before or after."""

import subprocess
import sys
from typing import Any

import flax.serialization
import flax.struct
import numpy as np
import pytest
from flax.core import FrozenDict

from datarax import Collection, ConfigurationMismatchError, Metric, MetricAccumulator, per_device
from datarax.metrics import Accuracy, ConfusionMatrix, Max, Mean, Median, Sum
from tests.helpers import bits, draw, make_mesh, update, x64


@flax.struct.dataclass
class TrainState:
    step: int
    params: Any
    metrics: Any


class Largest(Metric):
    """A metric of one's own, defined while Flax is loaded."""

    scale: float | None = None
    largest = MetricAccumulator(-np.inf, "max")

    def update(self, values):
        return self.replace(largest=self.largest.update(values))

    def compute(self):
        return self.largest.value


def make(threshold=0.5):
    return Collection(
        {
            "train/loss": Mean().from_outputs(values="loss", weights=None),
            "tokens": Sum().from_outputs(values="count"),
            "middle": Median().from_outputs(values="loss"),
            "inner": Collection({"hits": Accuracy(threshold=threshold)}),
            "table": ConfusionMatrix(),
            "own": Largest().from_outputs(values="loss"),
        }
    )


def outputs_of(rng):
    return {
        "loss": draw(rng, (8,)),
        "count": rng.integers(0, 2**31 - 1, 8, np.int32),
        "preds": rng.random(8, np.float32),
        "target": rng.integers(0, 2, 8, np.int32),
    }


def state_of(metrics, step=0):
    return TrainState(step, FrozenDict({"w": np.zeros(3, np.float32)}), metrics)


@pytest.mark.parametrize("wide", [False, True])
def test_a_train_state_round_trip(rng, wide):
    with x64(wide):
        metrics = update(make(), **outputs_of(rng))
        saved = flax.serialization.to_bytes(state_of([metrics, {"alone": metrics["own"]}], 3))
        like = state_of([make(), {"alone": Largest().from_outputs(values="loss")}])
        loaded: Any = flax.serialization.from_bytes(like, saved)
        assert loaded.step == 3
        assert bits(loaded.metrics) == bits([metrics, {"alone": metrics["own"]}])
        assert repr(loaded.metrics[0]) == repr(metrics)
        np.testing.assert_equal(loaded.metrics[0].results(), metrics.results())
        # It goes on where it was.
        more = outputs_of(rng)
        assert bits(update(loaded.metrics[0], **more)) == bits(update(metrics, **more))


def test_a_state_dict_round_trip_and_single_states(rng):
    metrics = update(make(), **outputs_of(rng))
    for state, empty in ((metrics, make()), (metrics["own"].largest, Largest().largest)):
        saved = flax.serialization.to_state_dict(state)
        assert bits(flax.serialization.from_state_dict(empty, saved)) == bits(state)
        np.testing.assert_equal(saved, state.state_dict())


def test_a_copy_a_device(rng):
    metrics = per_device(Sum(), make_mesh("auto", {"data": 8}), "data")
    saved = flax.serialization.to_bytes({"metrics": metrics.update(np.arange(16))})
    other = per_device(Sum(), make_mesh("auto", {"data": 2, "rest": 4}), "data")
    for like in (other, Sum()):
        loaded = flax.serialization.from_bytes({"metrics": like}, saved)["metrics"]
        assert type(loaded) is type(like)
        assert loaded.results() == 120


def test_another_configuration_is_refused_by_name():
    saved = flax.serialization.to_bytes(state_of(make()))
    for like, words in (
        (make(threshold=0.25), "hits.threshold is 0.5 in the saved state and 0.25 here"),
        (Mean(), "the saved state is of a datarax.Collection"),
        (make() | {"own": Max().from_outputs(values="loss")}, r"own is a datarax\.Max"),
    ):
        with pytest.raises(ConfigurationMismatchError, match=words):
            flax.serialization.from_bytes(state_of(like), saved)
    with x64(), pytest.raises(ConfigurationMismatchError, match="in the saved state and"):
        flax.serialization.from_bytes(state_of(make()), saved)


ORDERS = [
    "import flax; from datarax.metrics import Mean; metric = Mean()",
    "from datarax.metrics import Mean; import flax; metric = Mean()",
    "from datarax.metrics import Mean; metric = Mean(); import flax; metric.update(1)",
    "from datarax.metrics import Mean; metric = Mean(); import datarax.training",
]
LOADS = """
import flax
saved = flax.serialization.to_bytes([metric])
loaded, = flax.serialization.from_bytes([metric.reset()], saved)
assert type(loaded) is type(metric), type(loaded)
"""
OWN = """
from datarax.metrics import Mean
import flax
class Own(Mean):
    pass
flax.serialization.register_serialization_state(
    Own, lambda x: {"x": 1}, lambda x, d: x, override=True
)
assert flax.serialization.to_state_dict(Own()) == {"x": 1}
"""
IN_FORKS = """
import os, sys, traceback, warnings
import jax.numpy
warnings.simplefilter("ignore")  # JAX warns of forks
assert not {"flax", "datarax"} & set(sys.modules)
for code in sys.argv[1:]:
    pid = os.fork()
    if not pid:
        try:
            exec(code, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, code
print("done")
"""


def test_flax_may_be_loaded_before_or_after_and_a_registration_of_the_user_is_kept():
    """Each order in a fork of one process that has loaded JAX, and neither of the two."""
    codes = [*(order + LOADS for order in ORDERS), OWN]
    done = subprocess.run(
        [sys.executable, "-c", IN_FORKS, *codes], capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
