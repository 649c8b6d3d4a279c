"""`Metric`: one's own in a few lines, the lifecycle, and what becomes of invalid values."""

import functools
import json
import pydoc
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import datarax
from datarax import (
    Collection,
    ConfigurationMismatchError,
    InvalidValuesError,
    InvalidValuesWarning,
    Metric,
    MetricAccumulator,
    MetricInputError,
    UnknownMetricError,
)
from datarax.metric.declared import shareable, shares_statistic
from datarax.metrics import Accuracy, ConfusionMatrix, Max, Mean, Min, Std, Sum, Variance
from datarax.statistics import Moments, WeightedTotal
from tests.helpers import assert_same, collectives_in, draw, make_mesh, over_shards, place

# A user's own metrics.


class MaxMetric(Metric):
    peak = MetricAccumulator(-jnp.inf, "max")

    def update(self, values):
        return self.replace(peak=self.peak.update(values))

    def compute(self):
        return self.peak.value


class Ratio(Metric):
    hits = MetricAccumulator(0)
    tries = MetricAccumulator(0)

    def update(self, values, weights=None):
        hit = values > 0 if weights is None else (values > 0) & (weights > 0)
        tried = values.size if weights is None else jnp.sum(weights > 0)
        return self.replace(hits=self.hits.update(hit), tries=self.tries.update(tried))

    def compute(self):
        return self.hits.value / self.tries.value


class Snr(Metric):
    scale: float = datarax.field(default=1.0, kw_only=False)
    statistic = Moments()

    def compute(self):
        return self.scale * self.statistic.mean / jnp.sqrt(self.statistic.variance())


OWN = {
    "max": (MaxMetric, np.max),
    "ratio": (Ratio, lambda x: (x > 0).mean()),
    "moments": (lambda: Snr(2.0), lambda x: 2 * x.mean() / x.std()),
}


@pytest.fixture(params=OWN)
def own(request):
    """A metric of one's own, and what it should give."""
    return OWN[request.param][0](), OWN[request.param][1]


def test_everything_else_comes_with_it(rng, own):
    metric, oracle = own
    x = draw(rng, (48,)) + np.float32(0.125)
    want = oracle(x.astype(np.float64))

    def right(value):
        np.testing.assert_allclose(value, want, 1e-6, 1e-6)  # a mean near zero cancels
        return True

    parts = [metric.update(p) for p in np.split(x, [5, 30])]
    whole = parts[0].merge(parts[1]).merge(parts[2])
    assert right(whole.compute())
    assert right(metric.update(x).results())
    assert right(metric.load_state_dict(whole.state_dict()).compute())
    assert right(whole.reset().merge(whole).compute())
    assert right(jax.jit(lambda m: m.compute())(whole))
    step = lambda m, row: (m.update(row), None)  # noqa: E731
    assert right(lax.scan(step, metric, x.reshape(6, 8))[0].compute())

    mesh = make_mesh("auto", {"data": 8})
    run = over_shards(lambda x: metric.update(x).sync("data").compute(), mesh, P("data"), P())
    program = jax.jit(run).lower(*place((x,), mesh, P("data"))).compile()
    assert right(jax.block_until_ready(program(*place((x,), mesh, P("data")))))
    assert collectives_in(program.as_text()) == {"all-reduce": 1}
    spread = datarax.per_device(metric, mesh, "data").update(x)
    assert right(jax.block_until_ready(spread.compute()))

    both = Collection({"mine": metric, "loss": Mean().from_outputs(values="loss")})
    both = both.update(values=x, loss=x).results()
    assert right(both["mine"])
    assert both["loss"] == np.float32(x.mean(dtype=np.float64))


def test_dir_lists_what_a_user_needs():
    names = {name for name in dir(Snr()) if name[0] != "_"}
    assert {"update", "compute", "results", "merge", "sync", "reset", "replace", "scale"} <= names
    assert names.isdisjoint({"calls", "apply", "reading", "with_parts", "combine"})
    assert len([name for name in dir(Mean()) if name[0] != "_"]) <= 16


def test_dir_of_a_wrapper_lists_what_a_user_needs():
    for metric in (
        datarax.Bootstrap(Mean(), 10),
        Collection({"mean": Mean()}),
        datarax.Compare(Mean()),
        datarax.Interval(Mean()),
        datarax.Sliced(Mean(), 2),
        datarax.Window(Mean(), 2),
        datarax.per_device(Mean(), make_mesh("auto", {"data": 8}), "data"),
    ):
        names = {name for name in dir(metric) if name[0] != "_"}
        assert {"update", "compute", "results", "replace"} <= names
        assert names.isdisjoint({"own_routes", "with_metric", "stack", "copies", "parts"})
        assert len(names) <= 25, type(metric)


def test_help_shows_what_a_user_needs():
    class Own(Mean):
        """A mean."""

        def rounded(self) -> float:
            """The value, rounded."""
            return round(float(self.compute()))

    text = pydoc.plain(pydoc.render_doc(Own))
    for name in ("update", "compute", "results", "rounded", "on_invalid"):
        assert f" {name}(" in text or f"{name}: " in text
    # What all metrics have is where the text says, and a class that has its own shows it.
    everything = pydoc.plain(pydoc.render_doc(datarax.Metric))
    for name in ("merge", "reset", "sync", "replace", "state_dict", "from_outputs"):
        assert f"|  {name}(" in everything
        assert f"|  {name}(" not in text
    assert "help(datarax.Metric)" in text
    assert "|  replace(" in pydoc.plain(pydoc.render_doc(datarax.Collection))
    assert "jaxlib._jax.Array | " not in text  # a union that is not spelt out: `ArrayLike`
    assert "ArrayLike" in text
    # Of what is no method, the signature and the arguments say enough.
    for name in ("apply", "as_ratio", "declared", "__getstate__", "flat =", "fields ="):
        assert f"|  {name}" not in text
    # Whoever writes a metric sees all of it.
    assert "|  as_ratio(" in everything
    classes = [x for x in vars(datarax.metrics).values() if isinstance(x, type)]
    # From Python 3.13 on, pydoc gives each argument of a long signature a line of its own.
    signature = re.compile(r"\(\n( \|      .*\n)+ \|  \)")
    helps = {x.__name__: pydoc.plain(pydoc.render_doc(x)) for x in classes}
    lines = {name: signature.sub("()", each).count("\n") for name, each in helps.items()}
    assert {name: number for name, number in lines.items() if number > 150} == {}


def test_configuration_of_ones_own_is_checked():
    with pytest.raises(ConfigurationMismatchError, match=r"Snr\.scale is 1\.0 in one and 2\.0"):
        Snr(1.0).merge(Snr(2.0))
    with pytest.raises(ConfigurationMismatchError, match=r"Snr\.scale is 1\.0 in the saved"):
        Snr(2.0).load_state_dict(Snr(1.0).state_dict())
    with pytest.raises(ConfigurationMismatchError, match="is a MaxMetric in one and a Ratio"):
        MaxMetric().merge(Ratio())


def test_metrics_may_build_on_each_other():
    class Both(MaxMetric):
        lowest = MetricAccumulator(jnp.inf, "min")

        def __init__(self, scale):
            self.scale = scale

        def update(self, values):
            return super().update(values).replace(lowest=self.lowest.update(values))

        def compute(self):
            return {"range": self.scale * (self.peak.value - self.lowest.value)}

    metric = Both(2).update(jnp.asarray([1.0, 3.0])).merge(Both(2).update(-1.0))
    assert metric.results() == {"range": 8.0}
    assert metric.replace(scale=3).results() == {"range": 12.0}


def test_a_metric_that_is_not_finished():
    class NoCompute(Metric):
        total = MetricAccumulator(0.0)

    with pytest.raises(TypeError, match=r"NoCompute does not define compute\(\)"):
        NoCompute().compute()

    class InPlace(NoCompute):
        def update(self, values):  # type: ignore[override]
            self.total = self.total.update(values)

    with pytest.raises(AttributeError, match=r"InPlace is immutable: \.replace\(total=\.\.\.\)"):
        InPlace().update(1.0)


# The lifecycle under JAX's transformations.

LABELS = jnp.asarray([0, 1, 2, 1])
SCORES = jnp.asarray(np.random.default_rng(0).random((4, 3)), jnp.float32)
BUILT_IN = {
    "mean": (Mean, (SCORES,)),
    "max": (Max, (SCORES,)),
    "std": (Std, (SCORES,)),
    "multiclass": (lambda: Accuracy(num_classes=3, average="macro"), (SCORES, LABELS)),
    "multilabel": (lambda: Accuracy(num_labels=3, average=None), (SCORES, SCORES > 0.5)),
    "binary": (Accuracy, (SCORES[:, 0], LABELS > 0)),
}


@pytest.fixture(params=BUILT_IN)
def built_in(request):
    """How to make a metric, and a batch for it."""
    return BUILT_IN[request.param]


def test_update_keeps_every_type_and_so_can_be_a_carry(built_in):
    make, args = built_in
    empty, one = make(), make().update(*args)
    types = [(np.shape(x), x.dtype) for x in jax.tree.leaves(empty)]
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(one)] == types
    assert not any(jax.typeof(x).weak_type for x in jax.tree.leaves(one))
    assert jax.tree.structure(one) == jax.tree.structure(empty)

    def loops():
        # Made inside, as a carry from the empty state on; the last one with a copy made outside.
        step = lambda m, _: (m.update(*args), None)  # noqa: E731
        scanned = lax.scan(step, make(), None, length=3)[0]
        body = lambda c: (c[0] + 1, c[1].update(*args))  # noqa: E731
        looped = lax.while_loop(lambda c: c[0] < 3, body, (0, empty))[1]
        return scanned, looped, lax.scan(step, one, None, length=2)[0]

    want = one.merge(one).merge(one).compute()
    for metric in jax.jit(loops)():
        np.testing.assert_allclose(metric.compute(), want, 1e-6)


def test_it_traces_once(built_in):
    make, args = built_in
    traces = []

    @jax.jit
    def step(metric, args):
        traces.append(1)
        return metric.update(*args)

    metric = make()
    for _ in range(3):
        metric = step(metric, args)
    metric = step(metric.merge(metric).reset(), args)
    metric = step(make().load_state_dict(metric.state_dict()), args)
    metric = step(jax.device_put(make()), args)
    assert len(traces) == 1


def test_scalars_of_python_trace_once_too():
    traces = []

    @jax.jit
    def step(metric, value):
        traces.append(1)
        return metric.update(value)

    metric = Mean()
    for value in (1.0, 2.0, 3.0):
        metric = step(metric, value).update(value)
    assert (len(traces), float(metric.compute())) == (1, 2.0)


def test_a_donated_state(built_in):
    make, args = built_in
    step = jax.jit(lambda metric, args: metric.update(*args), donate_argnums=0)
    first = step(make(), args)
    second = step(first, args)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first))
    np.testing.assert_allclose(second.compute(), make().update(*args).update(*args).compute(), 1e-6)
    # What was donated was a state, not what fresh states are made from.
    np.testing.assert_allclose(step(make(), args).compute(), make().update(*args).compute(), 1e-6)


def test_many_metrics_at_once_under_vmap(built_in):
    make, args = built_in
    batches = tuple(jnp.stack([x, jnp.roll(x, 1, 0), x[::-1]]) for x in args)
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (3, *np.shape(x))), make())
    twice = lambda m, *args: m.update(*args).merge(m.update(*args)).compute()  # noqa: E731
    values = jax.jit(jax.vmap(twice))(many, *batches)
    for i, value in enumerate(values):
        one = make().update(*(x[i] for x in batches))
        np.testing.assert_allclose(value, one.merge(one).compute(), 1e-6)


@pytest.mark.parametrize("built_in", ["std", "multiclass"], indirect=True)
def test_constructed_inside_shard_map(built_in):
    make, args = built_in
    mesh = make_mesh("auto", {"data": 4, "model": 2})
    batch = tuple(jnp.concatenate([x, x]) for x in args)
    names = ("data", "model")
    run = over_shards(lambda *args: make().update(*args).sync(names).compute(), mesh, P(names), P())
    got = jax.block_until_ready(run(*batch))
    np.testing.assert_allclose(got, make().update(*batch).compute(), 1e-5)


def test_no_data_is_nan(built_in):
    # Other libraries give numbers for no data at all: R2 1.0, perplexity 1.0, MAE 0.0.
    make, args = built_in
    empty = make()
    for metric in (empty, empty.update(*(x[:0] for x in args)), empty.merge(empty.reset())):
        assert np.isnan(metric.compute()).all()
    np.testing.assert_array_equal(
        empty.merge(empty.update(*args)).compute(), empty.update(*args).compute()
    )


def test_the_sum_of_nothing_is_zero():
    assert Sum().results() == Sum().update(jnp.zeros((0,))).results() == 0


# Values that only the data can reveal.

BAD = jnp.asarray([1.0, jnp.nan, 3.0, jnp.inf, -jnp.inf])


def test_excluded_and_counted():
    for make, want in (
        (Mean, 2.0),
        (Sum, 4.0),
        (Max, 3.0),
        (Min, 1.0),
        (Variance, 1.0),
        (Std, 1.0),
    ):
        metric = make(on_invalid="exclude").update(BAD)
        assert int(metric.invalid_count()) == 3
        with pytest.warns(InvalidValuesWarning, match="and were left out"):
            assert float(metric.compute()) == want
        assert int(metric.merge(metric).invalid_count()) == 6
        with pytest.warns(InvalidValuesWarning, match=f"{make.__name__}: 3 values"):
            assert metric.results() == want
        assert make().update(BAD, weights=jnp.isfinite(BAD)).results() == want  # and no warning


def test_propagated_as_nan_by_default():
    # Other libraries give numbers for scores that are all NaN: NDCG 1.0, precision 1.0.
    for make in (Mean, Sum, Max, Min, Variance, Std):
        metric = make()
        assert metric.on_invalid == "propagate"
        assert np.isnan(jax.jit(lambda m: m.compute())(metric.update(BAD)))  # no warning in `jit`
        assert not np.isnan(metric.update(1.0).compute())
        with pytest.warns(InvalidValuesWarning, match=rf"{make.__name__}: .* the result is NaN"):
            assert np.isnan(metric.update(BAD).compute())
        with pytest.warns(InvalidValuesWarning):
            assert np.isnan(metric.update(1.0).merge(metric.update(jnp.nan)).compute())
        with pytest.warns(InvalidValuesWarning, match=r"3 values .*\(1 NaN, 2 infinite\)"):
            assert np.isnan(metric.update(BAD).results())
    each = Accuracy(num_classes=3, average=None)
    with pytest.warns(InvalidValuesWarning, match=r"1 out of range, for example 3\)"):
        assert np.isnan(each.update(LABELS, LABELS + 1).compute()).all()


def test_a_warning_points_at_the_line_that_reads():
    for read in (Mean.compute, Mean.results, lambda m: Collection({"a": m}).results()):
        with pytest.warns(InvalidValuesWarning) as caught:
            read(Mean().update(jnp.nan))
        assert [Path(each.filename).name for each in caught] == [Path(__file__).name]


def test_integers_have_no_nan():
    class Steps(Mean):
        def compute(self):
            return self.invalid_count()

    with pytest.warns(InvalidValuesWarning, match="Steps: 3 values"):
        assert Steps().update(BAD).results() == 3
    matrix = ConfusionMatrix(num_classes=3).update([0, 1, 2], [0, 1, 7])
    with pytest.warns(InvalidValuesWarning, match="out of range, for example 7"):
        assert matrix.results().sum() == 2
    with pytest.warns(InvalidValuesWarning):
        assert np.isnan(matrix.replace(on_invalid="propagate").results()).all()


def test_raised_when_results_are_read():
    for make in (Mean, Sum, Max, Min, Variance, Std):
        metric = make(on_invalid="raise").update(BAD)
        for read in (metric.compute, metric.results):
            with pytest.raises(InvalidValuesError, match=rf'{make.__name__}: 3 values.*"raise"'):
                read()
        jax.jit(lambda m: m.compute())(metric)  # on a device there is no one to raise to
        metric.reset().update(1.0).compute()
    with pytest.raises(InvalidValuesError, match="Accuracy: 2"):
        Accuracy(num_classes=3, on_invalid="raise").update([0, 1, 2, 0], [0, -100, 7, 0]).results()


def test_a_collection_holds_the_counts_beside_the_results():
    members = {"a": Mean(), "b": Max().from_outputs(values="other"), "c": Sum()}
    metrics = Collection({n: m.replace(on_invalid="exclude") for n, m in members.items()})
    metrics = metrics.update(values=BAD, other=jnp.ones(3))
    with pytest.warns(InvalidValuesWarning, match=r"(?s)a: 3 values.*c: 3 values") as caught:
        got = metrics.results()
    assert got == {"a": 2.0, "a/invalid": 3, "b": 1.0, "c": 4.0, "c/invalid": 3}
    assert "b:" not in str(caught[0].message)
    strict = Collection({"a": Mean(on_invalid="raise"), "b": Mean()}).update(values=BAD)
    with pytest.raises(InvalidValuesError, match="a: 3 values"):
        strict.results()
    assert metrics.reset().update(values=jnp.ones(2), other=1.0).results() == {
        "a": 1,
        "b": 1,
        "c": 2,
    }


@pytest.mark.parametrize("make", [Mean, Sum, Max, Min, Variance, Std, Accuracy])
def test_an_unknown_policy(make):
    for policy in ("ignore", None, "Exclude", True):
        with pytest.raises(MetricInputError, match="'exclude', 'propagate', 'raise'"):
            make(on_invalid=policy)


# Reading, naming.


class Point(NamedTuple):
    x: Any
    y: Any


def test_results_that_json_takes():
    class Both(Mean):
        def compute(self):
            mean = super().compute()
            return {"point": Point(mean, jnp.stack([mean, mean + 1])), "n": 3, "none": jnp.nan}

    found = Collection({"a": Both(), "b/c": Sum()}).update(values=jnp.array([1, 2]))
    got = json.loads(json.dumps(found.results(as_json=True)))
    assert np.isnan(got.pop("a/none"))
    assert got == {"a/point": {"x": 1.5, "y": [1.5, 2.5]}, "a/n": 3, "b/c": 3}


def test_results_are_plain_and_exact():
    assert Sum().update(np.asarray([2**24, 1])).results() == 2**24 + 1
    assert type(Mean().update(1.0).results()) is float
    each = Accuracy(num_classes=3, average=None).update(LABELS, LABELS).results()
    assert isinstance(each, np.ndarray)
    assert each.tolist() == [1, 1, 1]

    class Count(Metric):
        seen = MetricAccumulator(0)

        def update(self, values):
            return self.replace(seen=self.seen.update(values))

        def compute(self):
            return {"seen": self.seen.value, "nested": [self.seen.value / 2]}

    results = Count().update(2**40 + 1).update(2**40).results()
    assert results == {"seen": 2**41 + 1, "nested": [2.0**40 + 0.5]}
    assert type(results["seen"]) is int


def test_outputs_are_named():
    assert Mean().from_outputs(values="loss").outputs == (("values", "loss"),)
    twice = Mean().from_outputs(values="loss").from_outputs(weights="mask", values="nll")
    assert dict(twice.outputs) == {"values": "nll", "weights": "mask"}
    for metric, argument, known in (
        (Mean(), "loss", "values, weights"),
        (Ratio(), "x", "values, weights"),
    ):
        with pytest.raises(UnknownMetricError, match=f"no argument '{argument}'; it has: {known}"):
            metric.from_outputs(**{argument: "y"})
    for output in (None, 3, ("a",)):
        with pytest.raises(MetricInputError, match="the name of an output"):
            Mean().from_outputs(values=output)


def test_updates_with_the_wrong_arguments():
    for arguments in ((), (1.0, 2.0)):
        with pytest.raises(TypeError, match="argument"):
            Mean().update(*arguments)
    with pytest.raises(TypeError, match="nonsense"):
        Mean().update(1.0, nonsense=2)


def test_gradients_pass_through():
    x = jnp.asarray([1.0, 2.0, 6.0])
    assert_same(
        jax.jit(jax.grad(lambda x: Mean().update(x).compute()))(x),
        np.full(3, 1 / 3),
        np.float32,
        ulps=1,
    )
    want = 2 * (np.asarray(x) - 3) / 3
    got = jax.jit(jax.grad(lambda x: Variance().update(x).compute()))(x)
    np.testing.assert_allclose(got, want, 1e-5)


class SharedUpdate:
    """Not a metric: a class that metrics inherit a marked `update` from."""

    @shareable
    def update(self: Any, values, *, weights=None):
        return self.replace(statistic=self.statistic.update(values, weights=weights))


def test_a_marked_update_of_a_class_that_is_no_metric():
    class Inherits(SharedUpdate, datarax.Metric):
        statistic = WeightedTotal()

        def compute(self):
            return self.statistic.mean

    class Calls(Inherits):
        def update(self, values, *, weights=None):
            return super().update(2 * values, weights=weights)

    values = np.arange(4.0, dtype=np.float32)
    assert shares_statistic(Inherits())
    assert not shares_statistic(Calls())
    assert Inherits().update(values).compute() == 1.5
    assert jax.jit(Calls().update)(values).compute() == 3.0


def test_an_update_that_is_set_after_the_class_is_made():
    def in_percent(cls):
        own = cls.update
        cls.update = lambda self, values, *, weights=None: own(self, 100 * values, weights=weights)
        return cls

    def logged(update):
        @functools.wraps(update)
        def run(self, *args, **kwargs):
            return update(self, *args, **kwargs)

        return run

    @in_percent
    class Percent(Mean):
        pass

    class Logged(Metric):
        statistic = WeightedTotal()

        @logged
        @shareable
        def update(self, values, *, weights=None):
            return self.replace(statistic=self.statistic.update(values, weights=weights))

        def compute(self):
            return self.statistic.mean

    metrics = Collection({"mean": Mean(), "percent": Percent(), "logged": Logged()})
    results = metrics.update(values=np.arange(8, dtype=np.float32)).results()
    assert results == {"mean": 3.5, "percent": 350.0, "logged": 3.5}


def test_a_named_tuple_of_numbers_is_no_list():
    class Batch(NamedTuple):
        loss: float
        rows: int

    class Loss(Metric):
        total = WeightedTotal()

        def update(self, batch):
            return self.replace(total=self.total.update(batch.loss))

        def compute(self):
            return self.total.mean

    batch = Batch(2.0, 3)
    assert Loss().update(batch).compute() == 2.0
    assert jax.jit(lambda metric: metric.update(batch))(Loss()).compute() == 2.0
