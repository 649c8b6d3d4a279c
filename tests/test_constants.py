"""Constants of a program: an update with some of its arguments fixed is the one with all traced.

Where a call runs is decided once, by all its arrays and the state. So the program of an update in
which an argument is a NumPy array or a Python number has the operations of the one in which it is
an argument: no part of it runs on the host.
"""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import datarax
from datarax import metrics
from datarax.algebra.fields import state
from datarax.numerics.double_float import has_float64
from tests.operations import holds_float64, names
from tests.registry import BATCH, CASES, REPRESENTATIVES
from tests.registry.entries import WRAPPERS


def check_constants(
    metric: datarax.Metric, given: dict[str, Any], *, each_alone: bool = True
) -> None:
    def operations(constant: set[str], *, state: bool = False) -> Counter[str]:
        fixed = {name: x for name, x in given.items() if name in constant}

        def update(one: datarax.Metric, rest: dict[str, Any]) -> datarax.Metric:
            return (metric if state else one).update(**rest, **fixed)

        rest = {name: x for name, x in given.items() if name not in constant}
        program = jax.make_jaxpr(update)(metric, rest).jaxpr
        assert has_float64() or not holds_float64(program), f"float64 with {constant} constant"
        found = Counter(names(program))
        # Whether a number is converted depends on where it was made.
        del found["convert_element_type"]
        return found

    want = operations(set())
    for name in given:
        assert operations({name}) == want, f"{name} is constant"
        if each_alone:
            assert operations({*given} - {name}) == want, f"all but {name} are constant"
    assert operations({*given}) == want, "all are constant"
    assert operations(set(), state=True) == want, "the state is constant"


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("case", [x for x in CASES if x.id in REPRESENTATIVES], ids=lambda x: x.id)
def test_an_update_with_constants_is_one_program(case, platform, rng):
    metric = case.traceable()
    given = metric.arguments_from(case.arrays(case.inputs.draw(rng, BATCH)))
    if case.inputs.rows and any(route.argument == "weights" for route in metric.routes()):
        given["weights"] = rng.random(BATCH).astype(np.float32)
    with datarax.lowering_for(platform):
        check_constants(metric, given, each_alone=platform == "cpu")


@pytest.mark.parametrize("name", [name for name in WRAPPERS if name != "Best"])
def test_an_update_of_a_wrapper_with_constants_is_one_program(name, rng):
    entry = WRAPPERS[name]
    check_constants(entry.metric(), entry.batches(rng, 1)[0], each_alone=False)


NUMBERS = {
    "mean": metrics.Mean(),
    "max": metrics.Max(),
    "min": metrics.Min(),
    "both": metrics.MinMax(),
    "std": metrics.Std(),
    "last": datarax.Window(metrics.Mean(), 2),
}


@pytest.mark.parametrize("number", [0.1, 3, True, np.float64(0.1), np.float32(0.1)])
def test_a_number_within_a_program(number):
    members = {name: x.from_outputs(values="lr") for name, x in NUMBERS.items()}
    collection = datarax.Collection({**members, "loss": metrics.Mean().from_outputs(values="loss")})
    got = jax.jit(lambda m, x: m.update(loss=x, lr=number))(collection, jnp.arange(4.0)).compute()
    want = jax.jit(lambda m, x, y: m.update(loss=x, lr=y))(collection, jnp.arange(4.0), number)
    for name, value in want.compute().items():
        np.testing.assert_array_equal(got[name], value, name)
        assert got[name].dtype == value.dtype


def test_a_constant_batch_in_a_scan_and_weights_alone_in_a_vmap(rng):
    target = rng.random(BATCH).astype(np.float32) + 0.5
    preds = target * rng.random(BATCH).astype(np.float32) + 0.1
    weights = rng.integers(0, 3, (3, BATCH)).astype(np.float32)
    collection = datarax.Collection(
        {
            "d2": metrics.D2Tweedie(1.5),
            "r2": metrics.R2Score(),
            "max": metrics.MaxError(),
            "nrmse": metrics.NormalizedRootMeanSquaredError(normalization="range"),
        }
    )
    want = collection
    for w in weights:
        want = want.update(preds=preds, target=target, weights=w)

    def step(metric, w):
        return metric.update(preds=preds, target=target, weights=w), None

    def repeated(metric, _):
        return metric.update(preds=preds, target=target), None

    scanned, _ = jax.jit(lambda m, w: lax.scan(step, m, w))(collection, weights)
    twice, _ = jax.jit(lambda m: lax.scan(repeated, m, length=2))(collection)
    each = jax.vmap(lambda w: collection.update(preds=preds, target=target, weights=w).compute())(
        weights
    )
    for name, value in want.compute().items():
        np.testing.assert_allclose(scanned.compute()[name], value, rtol=1e-5, err_msg=name)
        both = collection.update(preds=preds, target=target).compute()[name]
        np.testing.assert_allclose(twice.compute()[name], both, rtol=1e-5, err_msg=name)
        for i, w in enumerate(weights):
            one = collection.update(preds=preds, target=target, weights=w).compute()[name]
            np.testing.assert_allclose(each[name][i], one, rtol=1e-5, err_msg=name)


class FirstColumns(datarax.Metric):
    """Needs the values of an argument: a constant number is known in a program."""

    total: datarax.statistics.WeightedTotal = state()

    def __post_init__(self) -> None:
        self.total = datarax.statistics.WeightedTotal()

    def update(self, values: Any, columns: Any) -> "FirstColumns":
        return self.replace(total=self.total.update(values[:, :columns]))

    def compute(self) -> Any:
        return self.total.mean


def test_an_update_that_needs_the_value_of_a_constant_gets_it():
    values = jnp.arange(6.0).reshape(2, 3)
    seen = jax.jit(lambda m, x: m.update(x, 2))(FirstColumns(), values)
    assert float(seen.compute()) == 2.0


def test_a_constant_that_a_program_would_cut_is_refused():
    ids = np.int64([2**40, 1])
    with pytest.raises(datarax.MetricInputError, match="values"):
        jax.jit(lambda m: m.update(ids))(metrics.Sum())
