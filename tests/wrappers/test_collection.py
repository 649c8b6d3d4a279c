"""Routing, names, sharing, and the lifecycle of several metrics as one."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from datarax import (
    AxisNotBoundError,
    Collection,
    ConfigurationMismatchError,
    InvalidValuesError,
    InvalidValuesWarning,
    Metric,
    MetricAccumulator,
    MetricInputError,
    MetricTypeError,
    Sliced,
    UnknownMetricError,
    per_device,
)
from datarax.metrics import Accuracy, Max, Mean, Min, Recall, Std, Sum, Variance
from tests.helpers import bits, collectives, draw, make_mesh, over_shards, place
from tests.wrappers.mixed import batch_of, binary, check, multiclass, of, twenty

FEW = ("loss", "tokens", "least", "labels")

update = jax.jit(lambda metrics, batch: metrics.update(**batch))
merge = jax.jit(lambda a, b: a.merge(b))


class Pair(Metric):
    """Results that are a pytree."""

    total = MetricAccumulator(np.zeros(2, np.float32))

    def update(self, values):
        return self.replace(total=self.total.update(values))

    def compute(self):
        total = self.total.value
        return {"sums": {"left": total[0], "right": total[1]}, "both": (total, total[::-1])}


class Total(Mean):
    """A metric over the same statistic as `Mean`."""

    def compute(self):
        return self.statistic.total.value


def arrays(state):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def assert_equal_states(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(arrays(a), arrays(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


# Routing.


def test_each_metric_gets_the_outputs_that_it_names(rng):
    b = batch_of(rng, 15)
    check(update(twenty(), b).compute(), b)
    check(twenty(*FEW).update(**b, unused="a string", other=None).compute(), b, *FEW)


def test_one_output_serves_several_arguments_and_metrics(rng):
    x = draw(rng, (16,))
    weight = rng.integers(0, 3, 16).astype(np.float32)
    metrics = Collection(
        {
            "plain": Mean().from_outputs(values="x"),
            "weighted": Mean().from_outputs(values="x", weights="w"),
            "of itself": Mean().from_outputs(values="w", weights="w"),
            "of weights": Max().from_outputs(values="w"),
        }
    ).update(x=x, w=weight)
    assert len(metrics.states_within()) == 4
    expected = {
        "plain": x.mean(),
        "weighted": (x * weight).sum() / weight.sum(),
        "of itself": (weight**2).sum() / weight.sum(),
        "of weights": weight.max(),
    }
    got = metrics.compute()
    assert got.keys() == expected.keys()
    for name, want in expected.items():
        np.testing.assert_allclose(got[name], want, rtol=2e-7)


def test_weights_reach_every_metric_that_takes_them(rng):
    b, weights = batch_of(rng, 40), rng.integers(0, 2, 40).astype(np.float32)
    got = twenty(*FEW).update(**b, weights=weights).compute()
    check(got, {name: x[weights == 1] for name, x in b.items()}, *FEW)


@pytest.mark.parametrize(
    ("metrics", "outputs", "parts"),
    [
        ({"loss": Mean()}, {"x": 1.0}, ["metric 'loss': Mean", "output 'values'", "given: x."]),
        ({"loss": Mean()}, {}, ["metric 'loss': Mean", "output 'values'", "given: none."]),
        (
            {"loss": Mean().from_outputs(values="train_loss")},
            {"values": 1.0, "loss": 2.0},
            [
                "metric 'loss': Mean",
                "output 'train_loss'",
                "argument 'values'",
                "given: loss, values.",
            ],
        ),
        (
            {"loss": Mean().from_outputs(weights="mask")},
            {"values": 1.0},
            ["metric 'loss': Mean", "output 'mask'", "argument 'weights'"],
        ),
        (
            {"a": Mean(), "hits": Accuracy()},
            {"values": 1.0, "preds": 1.0},
            ["metric 'hits': Accuracy", "output 'target'", "given: preds, values."],
        ),
        (
            {"outer": Collection({"inner": Collection({"deep": Max()})})},
            {"x": 1.0},
            ["metric 'outer/inner/deep': Max", "output 'values'", "given: x."],
        ),
    ],
)
def test_a_missing_output_names_the_metric_and_the_output(metrics, outputs, parts):
    metrics = Collection(metrics)
    with pytest.raises(MetricInputError) as caught:
        metrics.update(**outputs)
    for part in parts:
        assert part in str(caught.value)


def test_routes_are_checked_where_they_are_made():
    with pytest.raises(UnknownMetricError, match=r"no argument 'value'; it has: values, weights"):
        Mean().from_outputs(value="loss")
    with pytest.raises(MetricInputError, match="values=3"):
        Mean().from_outputs(values=3)
    twice = Mean().from_outputs(values="loss").from_outputs(weights="w", values="x")
    assert twice.outputs == (("values", "x"), ("weights", "w"))


def test_outputs_are_named_for_all_metrics_at_once(rng):
    labels = rng.integers(0, 3, (3, 40)).astype(np.int32)
    outputs = {"preds": labels[0], "target": labels[1], "weights": labels[2], "x": draw(rng, (40,))}
    renamed = {"preds": "logits", "target": "labels", "weights": "real"}
    alone = Mean().from_outputs(values="x", weights=None)
    metrics = Collection(
        {
            "accuracy": Accuracy(num_classes=3),
            "recall": Recall(num_classes=3),
            "inner": Collection({"alone": alone, "sliced": Sliced(Accuracy(num_classes=3), 2)}),
        }
    )
    outputs["slices"] = labels[1] % 2
    want = metrics.update(**outputs).results()
    metrics = metrics.from_outputs(**renamed)
    assert len(metrics.states_within()) == 2  # accuracy and recall still share their statistic
    assert metrics["inner"]["alone"].outputs == alone.outputs  # what a metric names itself stays
    given = {renamed.get(name, name): output for name, output in outputs.items()}
    updated = metrics.update(**given)
    assert updated.results() == want
    assert updated.from_outputs().results() == want  # the state is kept
    for argument in ("values", "pred"):
        with pytest.raises(UnknownMetricError, match=f"{argument}=.*no metric takes that argument"):
            metrics.from_outputs(**{argument: "y"})


# What may be in it.


@pytest.mark.parametrize(
    ("metrics", "error", "words"),
    [
        ({"loss": Mean}, MetricTypeError, "'loss' is the class Mean, not an instance"),
        ({"loss": "mean"}, MetricTypeError, "'loss' is str"),
        ({"loss": None}, MetricTypeError, "'loss' is NoneType"),
        ({"loss": lambda x: x}, MetricTypeError, "'loss' is function"),
        ({"loss": MetricAccumulator(0)}, MetricTypeError, "'loss' is MetricAccumulator"),
        ([Mean()], MetricTypeError, "expects a dict of metrics; got list"),
        ({}, MetricInputError, "at least one metric"),
        ({3: Mean()}, MetricInputError, "the name 3 must be a nonempty string"),
        ({"": Mean()}, MetricInputError, "the name '' must be"),
        (
            {"a/b": Mean(), "a": Collection({"b": Max()})},
            MetricInputError,
            "two results have the name 'a/b'",
        ),
        ({"a": Mean(), "a/invalid": Max()}, MetricInputError, "have the name 'a/invalid'"),
    ],
)
def test_what_is_no_collection(metrics, error, words):
    with pytest.raises(error) as caught:
        Collection(metrics)
    assert words in str(caught.value)


def test_one_class_with_differing_arguments():
    # One metric class three times, whose updates take differing arguments by configuration.
    metrics = Collection(
        {
            "micro": Accuracy(num_classes=3),
            "macro": Accuracy(num_classes=3, average="macro"),
            "binary": Accuracy().from_outputs(preds="score", target="hit"),
        }
    )
    target = np.array([0, 0, 0, 2], np.int32)
    preds = np.array([0, 0, 1, 2], np.int32)
    got = metrics.update(
        preds=preds, target=target, score=np.float32([0.1, 0.9]), hit=np.int32([1, 1])
    ).results()
    assert got == {"micro": 0.75, "macro": pytest.approx((2 / 3 + 1) / 2), "binary": 0.5}


def test_names_in_a_collection_of_collections(rng):
    x = draw(rng, (8,))
    inner = Collection({"mean": Mean(), "max": Max()})
    metrics = Collection(
        {"train": inner, "eval": Collection({"deep": inner}), "pair": Pair(), "min": Min()}
    ).update(values=np.stack([x, x], -1))
    got = metrics.results()
    assert sorted(got) == [
        "eval/deep/max",
        "eval/deep/mean",
        "min",
        "pair/both",
        "pair/sums/left",
        "pair/sums/right",
        "train/max",
        "train/mean",
    ]
    assert got["train/max"] == got["eval/deep/max"] == x.max()
    assert got["pair/sums/left"] == got["pair/sums/right"] == x.sum()
    assert isinstance(got["pair/both"], tuple)
    np.testing.assert_array_equal(got["pair/both"][0], [x.sum()] * 2)
    deep = metrics["eval"]["deep"]
    assert deep["max"].results() == x.max()
    assert set(got) == set(metrics.compute())


def test_it_is_a_mapping_of_its_metrics(rng):
    metrics = twenty(*FEW)
    assert list(metrics) == sorted(FEW)
    assert len(metrics) == len(FEW)
    assert "loss" in metrics
    assert "lost" not in metrics
    assert [name for name, _ in metrics.items()] == sorted(FEW)
    assert all(metrics[name] is not None for name in metrics)
    assert repr(metrics["loss"]) in repr(metrics)
    with pytest.raises(UnknownMetricError, match=r"no metric 'lost'; it has: 'labels', 'least'"):
        metrics["lost"]


@pytest.mark.parametrize("name", ["groups", "members", "outputs", "on_invalid", "self", "names"])
def test_any_name_is_free_to_use(rng, name):
    x = draw(rng, (8,))
    metrics = (
        Collection({name: Mean(), "other": Max()})
        .update(values=x)
        .merge(Collection({name: Mean(), "other": Max()}))
    )
    assert metrics.results()[name] == x.mean()
    changed = metrics.replace(**{name: Min()}).update(values=x)
    assert changed.results() == {name: x.min(), "other": x.max()}


def test_the_order_of_a_dict_is_of_no_matter(rng):
    b = batch_of(rng, 16)
    one = twenty(*FEW).update(**b)
    other = twenty(*reversed(FEW)).update(**b)
    assert_equal_states(one, other)
    assert one.merge(other)["tokens"].results() == 2 * b["tokens"].sum(dtype=np.float64)


# Sharing.


def fused(a, b):
    """Whether two metrics come to share one statistic."""
    return len(Collection({"a": a, "b": b}).states_within()) == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Mean(), Total()),
        (Mean(), Mean(on_invalid="exclude")),
        (Max(), Min()),
        (Std(), Variance(ddof=1)),
        (of("x", Mean()), of("x", Total())),
        (multiclass(), multiclass(average=None)),
        (binary(0.3), binary(0.3)),
    ],
)
def test_equal_statistics_of_equal_outputs_are_one(a, b):
    assert fused(a, b)


class Own(Metric):
    statistic = MetricAccumulator(0)

    def update(self, values):
        return self.replace(statistic=self.statistic.update(values + 1))

    def compute(self):
        return self.statistic.value


class Doubled(Own):
    def update(self, values):
        return self.replace(statistic=self.statistic.update(2 * values))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (binary(0.3), binary(0.7)),
        (multiclass(), multiclass(top_k=2)),
        (multiclass(), multiclass(ignore_index=0)),
        (Accuracy(num_classes=5), Accuracy(num_labels=5)),
        (of("x", Mean()), of("y", Mean())),
        (of("x", Mean()), Mean()),
        (Mean().from_outputs(weights="w"), Mean()),
        (Mean(), Max()),
        (Mean(), Std()),
        (Own(), Doubled()),
        (Own(), Own()),
        (Mean().update(1.0), Mean()),
        (Mean().update(1.0), Mean().update(1.0)),
    ],
    ids=lambda m: repr(m)[:30],
)
def test_all_else_is_apart(a, b):
    assert not fused(a, b)


def test_thresholds_of_their_own():
    # Eight positives at 0.5, above one threshold and below the other; two negatives at 0.1.
    target = np.array([1] * 8 + [0] * 2, np.int32)
    preds = np.where(target, 0.5, 0.1).astype(np.float32)
    metrics = Collection({"low": Accuracy(threshold=0.3), "high": Accuracy(threshold=0.7)})
    assert metrics.update(preds=preds, target=target).results() == {
        "low": 1.0,
        "high": np.float32(0.2),
    }


def test_close_states_are_never_fused(rng):
    # Equal after the first batch, in every number; and different from the second on.
    first, second = draw(rng, (2, 8)), draw(rng, (2, 8))
    first[1] = first[0]
    metrics = Collection(
        {"x": of("x", Mean()), "y": of("y", Mean()), "x sum": of("x", Total()), "low": binary(0.3)}
        | {"high": binary(0.7)}
    )
    sure, hit = np.float32([0.9, 0.1]), np.int32([1, 0])
    metrics = metrics.update(x=first[0], y=first[1], score=sure, hit=hit)
    metrics = jax.tree.map(jnp.asarray, metrics)
    metrics = Collection(dict(metrics.items()))
    for a, b in (("low", "high"), ("x", "y")):
        assert bits(metrics[a]) == bits(metrics[b])
    assert len(metrics.states_within()) == 4
    got = metrics.update(x=second[0], y=second[1], score=np.float32([0.5]), hit=np.int32([1]))
    got = got.results()
    x, y = (np.concatenate([first[i], second[i]]) for i in (0, 1))
    assert [got[name] for name in ("x", "y", "x sum")] == [x.mean(), y.mean(), x.sum()]
    assert got["low"] == 1.0
    assert got["high"] == np.float32(2 / 3)


def test_what_is_shared_is_updated_and_held_once(rng):
    alone, shared = (
        Collection({"a": Mean()}),
        Collection(
            {"a": Mean(), "b": Total(), "c": Mean(on_invalid="exclude"), "d": WeightedHalf()}
        ),
    )
    leaves = [len(jax.tree.leaves(metrics)) for metrics in (alone, shared)]
    assert leaves == [6, 6]
    x = draw(rng, (8,))
    seen = shared.update(values=x)
    assert seen.results() == {"a": x.mean(), "b": x.sum(), "c": x.mean(), "d": x.mean() / 2}
    # Still shared after what makes new arrays.
    for again in (seen.merge(shared), jax.jit(lambda m: m)(seen), seen.reset(), copy.copy(seen)):
        assert len(again.states_within()) == 1
        assert len(jax.tree.leaves(again)) == 6


class WeightedHalf(Mean):
    """Another reading of the statistic that `Mean` reads."""

    def compute(self):
        return self.statistic.mean / 2


# Exchanging.


def test_replacing_one_leaves_the_others_alone(rng):
    x, y = draw(rng, (2, 8))
    metrics = Collection({"a": Mean(), "b": Total(), "c": Max()}).update(values=x)
    changed = metrics.replace(a=metrics["a"].reset())
    assert np.isnan(changed["a"].results())
    assert changed["b"].results() == x.sum()
    assert metrics["a"].results() == x.mean(), "the one it was made from is as it was"
    got = changed.update(values=y).results()
    assert got == {"a": y.mean(), "b": x.sum() + y.sum(), "c": max(x.max(), y.max())}
    swapped = changed.replace(a=Min(), c=Std()).update(values=y)
    assert swapped["a"].results() == y.min()
    with pytest.raises(UnknownMetricError, match="no metric 'd'"):
        metrics.replace(d=Mean())
    with pytest.raises(MetricTypeError, match="the class Mean"):
        metrics.replace(a=Mean)


def test_merging_what_shares_with_what_does_not(rng):
    x, y, z = draw(rng, (3, 8))
    fresh = Collection({"a": Mean(), "b": Mean(), "c": Total()})
    left = fresh.update(values=x)
    left = left.replace(c=Total()).update(values=y)  # {a, b}, {c}
    right = fresh.update(values=y)
    right = right.replace(a=Mean()).update(values=z)  # {a}, {b, c}
    assert [len(m.states_within()) for m in (left, right)] == [2, 2]
    xy, yz = np.concatenate([x, y]), np.concatenate([y, z])
    expected = {
        "a": np.concatenate([xy, z]).mean(),
        "b": np.concatenate([xy, yz]).mean(),
        "c": y.sum() + yz.sum(),
    }
    for merged in (left.merge(right), right.merge(left), merge(left, right)):
        got = merged.results()
        assert got["c"] == expected["c"]
        for name in "ab":
            np.testing.assert_array_max_ulp(np.float32(got[name]), np.float32(expected[name]), 1)


# The lifecycle.


def test_batches_and_merges_are_of_no_matter(rng):
    b = batch_of(rng, 30)
    parts = [{name: x[cut] for name, x in b.items()} for cut in (slice(0, 15), slice(15, 30))]
    empty = twenty()
    one, two = (update(empty, part) for part in parts)
    merged = merge(one, two)
    check(merged.compute(), b)
    check(update(one, parts[1]).compute(), b)
    for same in (merge(merged, empty), merge(empty, merged), merge(merged.reset(), merged)):
        # As their values: two parts of a double-float may tie, so that a sum has two forms.
        assert_equal_states(jax.tree.map(jnp.asarray, same).canonical(), merged.canonical())
    assert_equal_states(merged.reset(), empty)
    assert all(np.isnan(value) for value in (empty["loss"].compute(), empty["accuracy"].compute()))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Collection({"low": binary(0.3), "x": Mean()}), "low.threshold is 0.5 in one"),
        (Collection({"low": binary(), "x": Max()}), "x is a Mean in one and a Max in the other"),
        (Collection({"low": binary(), "y": Mean()}), "holds ['low', 'x'] in one and ['low', 'y']"),
        (Collection({"low": binary(), "x": of("y", Mean())}), "x.outputs is"),
        (Mean(), "is a Collection in one and a Mean in the other"),
    ],
)
def test_another_configuration_is_refused_by_its_field(rng, other, words):
    metrics = Collection({"low": binary(), "x": Mean()})
    for refused in (lambda: metrics.merge(other), lambda: merge(metrics, other)):
        with pytest.raises(ConfigurationMismatchError) as caught:
            refused()
        assert words in str(caught.value)
        assert len(str(caught.value)) < 300
    if "outputs" in words:  # a saved state has none
        assert metrics.load_state_dict(other.state_dict()).outputs == metrics.outputs
        return
    with pytest.raises(ConfigurationMismatchError) as caught:
        metrics.load_state_dict(other.state_dict())
    assert len(str(caught.value)) < 300


def test_state_dict_round_trip(rng):
    b = batch_of(rng, 20)
    nested = {"many": twenty("spread", "accuracy", "top 2", "confusion"), "few": twenty(*FEW)}
    metrics = update(Collection(nested), b)
    saved = pickle.loads(pickle.dumps(metrics.state_dict()))
    assert all(type(leaf) in (np.ndarray, str, int, float, bool) for leaf in jax.tree.leaves(saved))
    loaded = Collection(nested).load_state_dict(saved)
    assert_equal_states(loaded, jax.tree.map(np.asarray, metrics))
    more = [update(m, b).results() for m in (metrics, loaded)]
    assert more[0].keys() == more[1].keys()
    assert all(np.array_equal(more[0][name], more[1][name]) for name in more[0])


def test_what_was_apart_when_saved_is_apart_when_loaded(rng):
    x, y = draw(rng, (2, 4))
    shared = Collection({"a": Mean(), "b": Total(), "c": Mean()})
    apart = shared.update(values=x).replace(a=Mean())
    assert [len(metrics.states_within()) for metrics in (shared, apart)] == [1, 2]
    for like in (shared, apart, shared.update(values=y)):
        loaded = like.load_state_dict(apart.state_dict())
        got = loaded.update(values=y).results()
        want = {"a": y.mean(), "b": x.sum() + y.sum(), "c": np.concatenate([x, y]).mean()}
        assert got == want
        assert len(loaded.states_within()) == 2


def test_a_carry_from_the_empty_state_on(rng):
    b = batch_of(rng, 24)
    batches = {name: x.reshape(4, 6, *x.shape[1:]) for name, x in b.items()}
    names = (*FEW, "spread", "accuracy", "hits")
    traces = []

    @jax.jit
    def scanned(metrics, batches):
        def step(metrics, batch):
            traces.append(1)
            return metrics.update(**batch), None

        return lax.scan(step, metrics, batches)[0]

    check(scanned(twenty(*names), batches).compute(), b, *names)
    scanned(scanned(twenty(*names), batches), batches)
    assert len(traces) <= 3, "one for NumPy's arrays, one for JAX's"

    def step(state):
        i, metrics = state
        return i + 1, metrics.update(**jax.tree.map(lambda x: x[i], batches))

    looped = jax.jit(
        lambda metrics: lax.while_loop(lambda state: state[0] < 4, step, (0, metrics))[1]
    )
    batches = jax.tree.map(jnp.asarray, batches)
    check(looped(twenty(*names)).compute(), b, *names)


def test_no_retrace_and_donation(rng):
    traces = []

    def step(metrics, batch):
        traces.append(1)
        return metrics.update(**batch)

    jitted = jax.jit(step, donate_argnums=0)
    batches = [batch_of(rng, 8) for _ in range(4)]
    metrics = jax.tree.map(jnp.asarray, twenty(*FEW))
    for batch in batches:
        metrics = jitted(metrics, batch)
    assert len(traces) == 1
    check(metrics.compute(), {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}, *FEW)


def test_copies_and_pickles(rng):
    b = batch_of(rng, 8)
    metrics = twenty(*FEW).update(**b)
    for same in (copy.copy(metrics), copy.deepcopy(metrics), pickle.loads(pickle.dumps(metrics))):
        check(same.compute(), b, *FEW)
        check(same.reset().update(**b).compute(), b, *FEW)


def test_it_cannot_be_changed(rng):
    metrics = twenty(*FEW)
    with pytest.raises(AttributeError, match="immutable"):
        metrics.prefix = "train/"
    with pytest.raises(TypeError):
        metrics["loss"] = Mean()


def test_what_could_not_be_used_is_counted_under_its_name():
    x = np.float32([1.0, np.nan, np.inf, 3.0])
    metrics = Collection(
        {
            "a": Mean(on_invalid="exclude"),
            "b": Collection({"c": Max(on_invalid="exclude"), "d": Mean()}),
        }
    ).update(values=x)
    with pytest.warns(InvalidValuesWarning, match=r"(?s)a: 2 .*b/c: 2 .*b/d: 2 values"):
        got = metrics.results()
    assert np.isnan(got.pop("b/d"))
    assert got == {"a": 2.0, "a/invalid": 2, "b/c": 3.0, "b/c/invalid": 2, "b/d/invalid": 2}
    with pytest.warns(InvalidValuesWarning):
        assert "a/invalid" not in metrics.compute()
    strict = Collection({"a": Mean(), "strict": Mean(on_invalid="raise")}).update(values=x)
    with pytest.raises(InvalidValuesError, match="strict: 2 values"):
        strict.results()


def test_exact_integers_come_out(rng):
    big = np.int32([2**24 + 1, 2**24])
    metrics = Collection({"tokens": Sum(), "labels": Wide()}).update(values=big)
    assert metrics.results() == {"tokens": 2**25 + 1, "labels": 2**25 + 1}


class Wide(Metric):
    count = MetricAccumulator(0)

    def update(self, values):
        return self.replace(count=self.count.update(values))

    def compute(self):
        return self.count.value


# Sync.


def test_sync_is_one_collective(rng):
    # With the replication check on, and the result accepted as replicated; `test_per_device` has
    # all twenty.
    mesh, names = (
        make_mesh("auto", {"data": 4}),
        (*FEW, "spread", "confusion", "norm min", "a word"),
    )
    b = batch_of(rng, 24)

    def local(batch):
        return twenty(*names).update(**batch).sync("data")

    run = over_shards(local, mesh, P("data"), P())
    placed = place(b, mesh, P("data"))
    assert collectives(run, placed) == {"all-reduce": 1}
    check(jax.block_until_ready(run(placed)).compute(), b, *names)


def test_sync_is_for_inside():
    with pytest.raises(AxisNotBoundError, match=r"Collection.sync got axis_name='data'"):
        twenty(*FEW).sync("data")


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_per_device_members(rng, kind):
    # Not the way (a collective each), but right.
    mesh = make_mesh(kind, {"data": 8})
    x, mask = draw(rng, (19,)), rng.integers(0, 2, 19).astype(np.float32)
    metrics = Collection(
        {
            "mean": per_device(of("loss", Mean()), mesh, "data"),
            "all": per_device(Collection({"max": of("loss", Max())}), mesh, "data"),
            "sum": of("loss", Sum()),
        }
    )
    mask[0] = 1
    metrics = metrics.update(loss=x, weights=mask, other=np.zeros(3))
    some = x[mask == 1]
    got = metrics.results()
    assert got == {"mean": pytest.approx(some.mean()), "all/max": some.max(), "sum": some.sum()}
    assert metrics.merge(metrics).results()["sum"] == 2 * some.sum()
    assert np.isnan(metrics.reset().results()["mean"])
