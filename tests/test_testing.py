"""The laws bite: a metric that breaks one is refused, by the name of that law."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

import datarax
from datarax import MetricAccumulator as Accumulator
from datarax import metrics
from datarax.testing import assert_within_ulps, check_metric
from datarax.testing.laws import LAWS
from tests.helpers import make_mesh, x64


class Ratio(datarax.Metric):
    """A sound metric of one's own: the weighted mean."""

    total = Accumulator(0.0)
    weight = Accumulator(0.0)

    def update(self, values: Any, *, weights: Any = None) -> Any:
        w = jnp.ones(values.shape) if weights is None else weights.astype(values.dtype)
        summands = jnp.where(w == 0, jnp.float32(0), w * values)
        return self.replace(total=self.total.update(summands), weight=self.weight.update(w))

    def compute(self) -> Any:
        return self.total.value / self.weight.value


class MeanOfMeans(Ratio):
    def update(self, values, *, weights=None):
        return self.replace(total=self.total.update(values.mean()), weight=self.weight.update(1))


class ForgetsWeights(Ratio):
    def update(self, values, *, weights=None):
        return super().update(values)


class LeaksNaN(Ratio):
    def update(self, values, *, weights=None):
        w = jnp.ones(values.shape) if weights is None else weights
        return self.replace(total=self.total.update(w * values), weight=self.weight.update(w))


class ZeroOfNothing(Ratio):
    def compute(self):
        return self.total.value / jnp.maximum(self.weight.value, 1.0)


class CountsUpdatesInItsConfiguration(Ratio):
    def __init__(self):
        self.updates = 0

    def update(self, values, *, weights=None):
        return super().update(values, weights=weights).replace(updates=self.updates + 1)


class ChangesItsDtype(Ratio):
    weight = Accumulator(0)

    def update(self, values, *, weights=None):
        return self.replace(
            total=self.total.update(values), weight=Accumulator(0.0).update(jnp.ones(values.shape))
        )


class ConfigurationAsData(Ratio):
    def __init__(self, scale=1.0):
        self.scale = Accumulator(0.0).update(scale)

    def compute(self):
        return self.scale.value * super().compute()


class SniffsValues(Ratio):
    def update(self, values, *, weights=None):
        if values.min() < 0:
            values = jax.nn.sigmoid(values)
        return super().update(values, weights=weights)


def as_written(cls):
    """A metric whose update, called `written`, is not compiled outside `jit`."""
    cls.update = cls.written
    return cls


@as_written
class RoundsOutsideJit(Ratio):
    def written(self, values, *, weights=None):
        values = values if isinstance(values, Tracer) else jnp.round(values)
        return super().update(values, weights=weights)


class AveragesOnMerge(Ratio):
    def combine(self, other):
        return jax.tree.map(lambda a, b: ((a + b) / 2).astype(a.dtype), self, other)


class KeepsTheLatest(Ratio):
    def combine(self, other):
        some = other.weight.value > 0
        return jax.tree.map(lambda a, b: jnp.where(some, b, a), self, other)


class NotAssociative(Ratio):
    def combine(self, other):
        both = (self.weight.value > 0) & (other.weight.value > 0)
        return jax.tree.map(lambda a, b: jnp.where(both, (a + b) / 2, a + b), self, other)


class KeepsTheGreater(Ratio):
    def combine(self, other):
        more = self.total.value > other.total.value
        return jax.tree.map(lambda a, b: jnp.where(more, a, b), self, other)


class EverySecond(Ratio):
    def update(self, values, *, weights=None):
        return super().update(values[::2], weights=weights)


class ResetsByArithmetic(Ratio):
    def reset(self):
        return jax.tree.map(lambda x: x * 0, self)


class ResetsToWeakTypes(Ratio):
    def reset(self):
        return jax.tree.map(lambda x: jnp.asarray(0.0), self)


class CallsTheHost(Ratio):
    def update(self, values, *, weights=None):
        values = jax.pure_callback(np.asarray, jax.typeof(values), values)
        return super().update(values, weights=weights)


class FirstDeviceOnly(Ratio):
    def sync(self, axis_name):
        first = jax.lax.axis_index(axis_name) == 0
        return jax.tree.map(lambda x: jax.lax.psum(jnp.where(first, x, 0), axis_name), self)


class DoesNotSync(Ratio):
    def sync(self, axis_name):
        return self


class LoadsAnything(Ratio):
    def load_state_dict(self, state_dict, **how):
        return super().load_state_dict(state_dict | {"config": self.state_dict()["config"]}, **how)

    def __init__(self):
        self.threshold = 0.5


class SavesTheMetric(Ratio):
    def state_dict(self):
        return super().state_dict() | {"metric": self}


class CopiesEmpty(Ratio):
    def __copy__(self):
        return self.reset()


# Which law, by a part of its name.
BROKEN = {
    CountsUpdatesInItsConfiguration: "keeps the configuration",
    ChangesItsDtype: "keeps the configuration",
    SniffsValues: "jit equals eager",
    RoundsOutsideJit: "jit equals eager",
    ZeroOfNothing: "gives an empty metric",
    ConfigurationAsData: "gives an empty metric",
    AveragesOnMerge: "identity of merge",
    KeepsTheLatest: "merge is commutative",
    NotAssociative: "merge is associative",
    KeepsTheGreater: "one metric that was updated with all",
    MeanOfMeans: "split of examples into batches",
    EverySecond: "order of examples",
    ResetsByArithmetic: "donated",
    ResetsToWeakTypes: "traced once",
    CallsTheHost: "vmap",
    LoadsAnything: "not into another configuration",
    SavesTheMetric: "state_dict() is plain",
    CopiesEmpty: "a copy",
    ForgetsWeights: "repetition",
    LeaksNaN: "weight zero",
    DoesNotSync: "sync() a replicated type",
    FirstDeviceOnly: "per_device",
}


def losses(rng: np.random.Generator, size: int = 8) -> list[np.ndarray]:
    return [rng.uniform(1, 2, size).astype(np.float32) for _ in range(3)]


@pytest.mark.parametrize("cls", BROKEN, ids=lambda cls: cls.__name__)
def test_a_broken_law_is_named(cls, rng):
    (law,) = (law for law in LAWS if BROKEN[cls] in law)
    with pytest.raises(AssertionError) as caught:
        check_metric(cls(), losses(rng))
    assert str(caught.value).splitlines()[0] == f"{cls.__name__} breaks a law: {law}"


class PickedScore(Ratio):
    """The mean score of the label; a padded score counts where its label is one."""

    def update(self, scores, labels, *, weights=None):  # type: ignore[override]
        w = jnp.ones(labels.shape) if weights is None else weights
        picked = jnp.where(jax.nn.one_hot(labels, 3) > 0, self.kept(scores), 0.0).sum(1)
        return self.replace(total=self.total.update(w * picked), weight=self.weight.update(w))

    def kept(self, scores):
        return scores


class PickedFinite(PickedScore):
    def kept(self, scores):
        return jnp.where(jnp.isnan(scores), 0.0, scores)


class PickedSmall(PickedScore):
    def kept(self, scores):
        return jnp.nan_to_num(scores, posinf=0.0, neginf=0.0) * 1e4


class LeaksLabels(Ratio):
    """Padding counts if it has a label."""

    def update(self, scores, labels, *, weights=None):  # type: ignore[override]
        w = jnp.ones(labels.shape) if weights is None else weights
        scores = jnp.where((w > 0)[:, None], scores, 0.0)
        weight = jnp.where(labels == 2, jnp.maximum(w, 1.0), w)
        return self.replace(
            total=self.total.update(w * scores.sum(1)), weight=self.weight.update(weight)
        )


@pytest.mark.parametrize(
    ("cls", "what"),
    {
        PickedScore: "NaN",
        PickedFinite: "infinity",
        PickedSmall: "a large number",
        LeaksLabels: "values of other rows",
    }.items(),
)
def test_padding_is_spoilt_in_one_argument_alone(cls, what, rng):
    """All at once, a label out of range would hide what the scores hold."""
    labels = [np.array([0, 1, 0, 1, 0, 1, 2, 0]) for _ in range(3)]
    batches = [
        {"scores": rng.uniform(1, 2, (8, 3)).astype(np.float32), "labels": each} for each in labels
    ]
    with pytest.raises(AssertionError, match=rf"weight zero.*\n.*with {what} in rows") as caught:
        check_metric(cls(), batches, ulps=64)
    assert "whatever it holds" in str(caught.value).splitlines()[0]


def test_every_law_is_broken_by_some_metric():
    unbroken = [law for law in LAWS if not any(part in law for part in BROKEN.values())]
    # Whatever breaks this one changes its type, and so breaks the first.
    assert unbroken == ["the empty state can be the carry of lax.scan and lax.while_loop"]


@pytest.mark.parametrize("size", [8, 7, 2])
def test_a_sound_metric_passes(size, rng):
    check_metric(Ratio(), losses(rng, size))


def test_the_message_says_where_and_how_far(rng):
    class Halves(datarax.Metric):
        even = Accumulator(np.zeros(2))

        def update(self, values):
            return self.replace(even=self.even.update(values[::2]))

        def compute(self):
            return {"halves": self.even.value}

    batches = [np.float32([[1, 4], [1, 5]])] * 3
    with pytest.raises(AssertionError) as caught:
        check_metric(Halves(), batches, ulps=2, atol=0.5, empty=0.0)
    assert str(caught.value) == (
        "Halves breaks a law: the order of examples does not matter\n"
        "the value['halves'][1] is 15.0, expected 12.0: 3.15e+06 ulps apart, 2 are allowed, "
        "or a distance of 0.5 (1 of 2 differ)"
    )


def test_integers_without_weights(rng):
    class Largest(datarax.Metric):
        seen = Accumulator(0)
        largest = Accumulator(np.int32(-5), "max")

        def update(self, counts, of):
            return self.replace(
                seen=self.seen.update(of), largest=self.largest.update(counts, where=of > 2)
            )

        def compute(self):
            return {"seen": self.seen.value, "largest": self.largest.value}

    batches = [(rng.integers(0, 9, 6), rng.integers(0, 9, 6)) for _ in range(4)]
    check_metric(Largest(), batches, ulps=0, empty={"seen": 0, "largest": -5})


def test_a_state_in_another_order(rng):
    class Median(datarax.Metric):
        def __init__(self):
            self.statistic = datarax.statistics.Buffer(capacity=64)

        def compute(self):
            rows = jnp.arange(64) < self.statistic.filled
            return jnp.nanmedian(jnp.where(rows, self.statistic.data, jnp.nan))

    check_metric(Median(), losses(rng), compare_states=False)
    with pytest.raises(AssertionError, match="merge is commutative\nthe state"):
        check_metric(Median(), losses(rng))


def test_with_x64(rng):
    with x64():
        check_metric(metrics.Mean(), [x.astype(np.float64) for x in losses(rng)])


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        ([np.ones(4)] * 2, "got 2"),
        ([np.ones(4), np.ones(4), np.ones(5)], r"float32\[4\]; float32\[5\]"),
        ([np.ones(())] * 3, "leading axis"),
        ([np.ones(1)] * 3, "at least 2 examples"),
        ([{"values": np.ones(4), "weights": np.ones(3)}] * 3, "one leading axis"),
        ([], "got 0"),
    ],
)
def test_batches_from_which_nothing_follows_are_refused(batches, told):
    with pytest.raises(datarax.MetricInputError, match=told):
        check_metric(Ratio(), batches)


def test_what_is_no_plain_metric_is_refused(rng):
    spread = datarax.per_device(Ratio(), make_mesh("auto", {"data": 2}), "data")
    for thing, told in ((spread, "PerDevice"), (Ratio, "class Ratio"), (1, "int")):
        with pytest.raises(datarax.MetricTypeError, match=told):
            check_metric(thing, losses(rng))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_ulps_are_counted(dtype, rng):
    x = jnp.asarray(rng.normal(size=50) * 10.0 ** rng.integers(-4, 4, 50), dtype)
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"int{8 * x.dtype.itemsize}"))
    apart = jax.lax.bitcast_convert_type(bits + bits.dtype.type(3), x.dtype)  # away from zero
    assert_within_ulps(apart, x, 3)
    with pytest.raises(AssertionError, match="ulps apart, 1 are allowed"):
        # Where the two are on either side of a power of two the greater's unit counts: 1.5 to 3.
        assert_within_ulps(apart, x, 1)


@pytest.mark.parametrize(
    ("got", "want", "told"),
    [
        (jnp.float32(jnp.nan), 1.0, "value is nan, expected 1.0"),
        (1.0, jnp.float32(jnp.nan), "value is 1.0, expected nan"),
        (jnp.inf, 1e38, "value is inf"),
        (jnp.inf, -jnp.inf, "value is inf, expected -inf"),
        (jnp.int32(2**24), jnp.int32(2**24 + 1), "value is 16777216, expected 16777217"),
        (
            jnp.array([1.0, 2.0, 3.0]),
            np.array([1.0, 0.0, 0.0]),
            r"value\[1\] is 2.0.*2 of 3 differ",
        ),
        (jnp.ones(2), jnp.ones((2, 1)), r"shape \(2,\), expected \(2, 1\)"),
        (jnp.ones(2), jnp.ones(2, jnp.bfloat16), "dtype float32, expected bfloat16"),
        ({"a": 1.0}, {"b": 1.0}, "structure"),
        ({"a": (1.0, 2.0)}, {"a": (1.0, 2.5)}, r"value\['a'\]\[1\] is 2.0"),
        (Accumulator(0).update(2**40).value, 2**40 + 1, "1099511627777"),
    ],
)
def test_what_is_unequal(got, want, told):
    with pytest.raises(AssertionError, match=told):
        assert_within_ulps(got, want, ulps=100)


def test_what_is_equal():
    assert_within_ulps({"a": jnp.float32(jnp.nan), "b": -jnp.inf}, {"a": np.nan, "b": -np.inf})
    assert_within_ulps(jnp.float32(1e-6), 0.0, atol=1e-5)
    assert_within_ulps(jnp.float32(-0.0), 0.0)
    assert_within_ulps(Accumulator(0).update(2**40).value, 2**40)
    assert_within_ulps(jnp.zeros((0, 3)), np.zeros((0, 3)))
