"""Outside `jit` on the host: the whole life of every metric compiles nothing."""

import pickle
from contextlib import nullcontext

import jax
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics as sk

import datarax
from datarax import metrics
from datarax._xp import at, blocks_of_rows, by_blocks, computed_where, replaced, xp
from datarax.evaluation.state_bytes import BatchState, as_bytes, state_of
from tests.registry import BATCH, CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_life_of_a_metric_compiles_nothing(case, rng, programs):
    empty = case.traceable()
    draws = [case.inputs.draw(rng, BATCH) for _ in range(2)]
    batches = [empty.arguments_from(case.arrays(each)) for each in draws]
    for arrays in batches:
        for x in jax.tree.leaves(arrays):
            if isinstance(x, np.ndarray):
                x.flags.writeable = False  # arguments are never changed
    del programs[:]  # of drawing the data
    a, b = (empty.update(**arrays) for arrays in batches)
    merged = a.merge(b).merge(empty.reset())
    value, results = merged.compute(), merged.results(as_json=True)
    if hasattr(merged, "bounds"):
        merged.bounds()
    restored = state_of(as_bytes(BatchState(merged)), empty).metric
    assert bits(restored) == bits(merged)
    assert not programs
    for x in jax.tree.leaves((a, merged)):
        assert isinstance(x, np.ndarray | np.generic)
    for x, start in zip(jax.tree.leaves(merged), jax.tree.leaves(empty), strict=True):
        assert (x.dtype, np.shape(x)) == (start.dtype, np.shape(start))
    assert results is not None
    for x, y in zip(jax.tree.leaves(value), jax.tree.leaves(restored.compute()), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_batch_in_which_nothing_counts_changes_nothing(case, rng):
    empty = case.traceable()
    arrays = empty.arguments_from(case.arrays(case.inputs.draw(rng, BATCH)))
    used = empty.update(**arrays)
    expected = jax.tree.leaves(used.compute())
    batches = []
    if any(route.argument == "weights" for route in empty.routes()):
        weights = arrays.get("weights", np.ones(BATCH if case.inputs.rows else ()))
        batches += [arrays | {"weights": np.zeros(np.shape(weights), dtype)} for dtype in "f?"]
    if case.inputs.rows:
        batches.append(jax.tree.map(lambda x: x[:0], arrays))
    for batch in batches:
        nothing = empty.update(**batch)
        for x, start in zip(jax.tree.leaves(nothing), jax.tree.leaves(empty), strict=True):
            assert (x.dtype, np.shape(x)) == (start.dtype, np.shape(start))
        for both in (nothing.merge(used), used.merge(nothing), used.update(**batch)):
            if bits(both) == bits(used):
                continue  # equal states have equal values
            for x, y in zip(jax.tree.leaves(both.compute()), expected, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def bits(metric):
    return [(x.dtype, np.shape(x), x.tobytes()) for x in jax.tree.leaves(metric)]


def test_an_interval_compiles_nothing(rng, programs):
    scores, target = rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 3, 40)
    weights = rng.random(40, np.float32)
    for metric, arguments in (
        (metrics.Mean(), (scores,)),
        (metrics.MeanSquaredError(), (scores[:, 0], scores[:, 1])),
        (metrics.Accuracy(num_classes=3), (scores, target)),
        (metrics.F1(num_classes=3, average=None), (scores, target)),
        (metrics.ExactMatch(num_labels=3), (scores > 0, scores > 0.5)),
        (metrics.WER(), (["a b", "c"], ["a", "c"])),
        (OwnRatio(), (scores[:, 0],)),
    ):
        del programs[:]
        seen = datarax.Interval(metric).update(*arguments)
        if metric.routes()[-1].argument == "weights" and len(arguments[0]) == 40:
            seen = seen.update(*arguments, weights=weights)
        seen.results()
        assert not programs, type(metric).__name__


class OwnRatio(datarax.Metric):
    """A ratio whose class says nothing of its rows, so that an interval loops over them."""

    total = datarax.MetricAccumulator(0.0)
    count = datarax.MetricAccumulator(0.0)

    def update(self, values):
        count = self.count.update(np.ones(np.shape(values), np.float32))
        return self.replace(total=self.total.update(values), count=count)

    def compute(self):
        return self.total.double / self.count.double

    def as_ratio(self):
        return self.total.double, self.count.double


def test_results_keep_float64(rng):
    preds, target = rng.random((200, 5), np.float32), rng.integers(0, 5, 200)
    x, y = (rng.normal(size=200).astype(np.float32) for _ in range(2))
    wide_x, wide_y, chosen = x.astype(float), y.astype(float), preds.argmax(1)
    for metric, arguments, want in (
        (metrics.F1(num_classes=5), (preds, target), sk.f1_score(target, chosen, average="macro")),
        (metrics.CohenKappa(num_classes=5), (preds, target), sk.cohen_kappa_score(target, chosen)),
        (metrics.MeanSquaredError(), (x, y), ((wide_x - wide_y) ** 2).mean()),
        (metrics.MeanAbsoluteError(), (x, y), np.abs(wide_x - wide_y).mean()),
        (metrics.R2Score(), (x, y), sk.r2_score(wide_y, wide_x)),
        (metrics.PearsonCorrCoef(), (x, y), scipy.stats.pearsonr(wide_x, wide_y)[0]),
        (metrics.Mean(), (x,), wide_x.mean()),
        (metrics.AUROC(exact=True, capacity=200), (x, y > 0), sk.roc_auc_score(y > 0, wide_x)),
    ):
        got = metric.update(*arguments).results()
        # Relative to 1, as some values are near zero.
        assert abs(got - want) < 1e-12 * max(1, abs(want)), type(metric).__name__
    assert metrics.Accuracy().update(np.arange(100) < 29, np.ones(100, int)).results() == 0.29


def test_host_and_device_states_merge(rng):
    x, y = (rng.normal(size=200).astype(np.float32) for _ in range(2))
    on_host = metrics.R2Score().update(x[:80], y[:80])
    on_device = jax.jit(metrics.R2Score.update)(metrics.R2Score(), x[80:], y[80:])
    assert isinstance(jax.tree.leaves(on_device)[0], jax.Array)
    for merged in (on_host.merge(on_device), on_device.merge(on_host)):
        assert merged.results() == pytest.approx(sk.r2_score(y, x), rel=1e-6)
    step = jax.jit(metrics.R2Score.update)
    both = step(on_host, x[80:], y[80:])
    assert both.results() == pytest.approx(sk.r2_score(y, x), rel=1e-6)


def test_a_state_knows_where_its_arrays_are():
    on_host = metrics.Mean().update(np.array([1.0, 2.0], np.float32))
    assert on_host.is_on_host
    assert metrics.Mean().is_on_host
    on_device = jax.device_put(on_host)
    assert not on_device.is_on_host
    # A copy with other arrays, or a copy of a copy, looks anew.
    assert not on_host.replace(statistic=on_device.statistic).is_on_host
    assert on_device.replace(statistic=on_host.statistic).is_on_host
    for state in (on_host, on_device):
        assert pickle.loads(pickle.dumps(state)).update(3.0).results() == 2.0
    pair = datarax.Collection({"a": on_host, "b": metrics.Sum()})
    assert pair.is_on_host
    assert not jax.device_put(pair).is_on_host


def test_a_collection_derives_the_arguments_of_a_metric_once(monkeypatch):
    derived = []
    given = metrics.Mean.arguments_from
    monkeypatch.setattr(
        metrics.Mean,
        "arguments_from",
        lambda self, outputs: derived.append(outputs) or given(self, outputs),
    )
    pair = datarax.Collection({"a": metrics.Mean(), "b": metrics.Mean(on_invalid="raise")})
    pair.update(values=np.ones(3, np.float32))
    assert len(derived) == len(pair.states_within())


def test_sums_beyond_float32_and_zeros():
    for values, want in (([3e38, 3e38], 3e38), ([0.0, 0.0], 0.0), ([0.0, 1e-45], 0.5e-45)):
        x = np.array(values, np.float32)
        on_host = metrics.Mean().update(x).update(x)
        on_device = jax.jit(metrics.Mean.update)(metrics.Mean(), x).update(x)
        assert on_host.results() == pytest.approx(want, rel=1e-6, abs=1e-45)
        assert on_host.merge(on_device).results() == pytest.approx(want, rel=1e-6, abs=1e-45)


class Rows(list):
    """A list that JAX does not know."""


class Holding(datarax.Metric):
    """Its state has a name that the library once used itself."""

    held = datarax.MetricAccumulator(0)

    def update(self, values):
        return self.replace(held=self.held.update(values))

    def compute(self):
        return self.held.value


def test_other_lists_and_other_names():
    assert metrics.Mean().update(Rows([1, 2.5])).results() == 1.75
    x = np.array([1, 2])
    assert Holding().update(x).results() == jax.jit(Holding.update)(Holding(), x).results() == 3
    with pytest.raises(datarax.MetricTypeError, match="expected an array of numbers"):
        metrics.Mean().update(np.array([1, None], object))


@pytest.mark.parametrize("what", ["add", "max", "multiply"])
def test_scatters_on_the_host_follow_their_definition(what, rng):
    ufunc = {"add": np.add, "max": np.maximum, "multiply": np.multiply}[what]
    for _ in range(100):
        shape = tuple(rng.integers(1, 5, rng.integers(1, 4)))
        count = rng.integers(1, len(shape) + 1)
        leading = bool(count < len(shape) and rng.random() < 0.7)
        places = [rng.integers(-6, 7, (3, 2)) for _ in range(count)]
        if count > 1:
            places[0] = places[0][:, : rng.integers(1, 3)]  # it broadcasts
        start = len(shape) - count if leading else 0  # the first axis that is indexed
        rest = (*shape[:start], 3, 2) if leading else (3, 2, *shape[count:])
        x, y = rng.integers(-9, 9, shape), rng.integers(-9, 9, rest)
        want = x.copy()
        for i, j in np.ndindex(3, 2):
            place = tuple(int(np.broadcast_to(each, (3, 2))[i, j]) for each in places)
            axes = shape[start : start + count]
            if all(-n <= p < n for p, n in zip(place, axes, strict=True)):  # others are dropped
                at_place = (slice(None),) * start + place
                part = y[..., i, j] if leading else y[i, j]
                want[at_place] = ufunc(want[at_place], part)
        index = (..., *places) if leading else tuple(places)
        np.testing.assert_array_equal(getattr(at(x)[index], what)(y), want)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "float32", "float64"])
def test_a_selection_of_many_elements_is_that_of_numpy(rng, share, dtype):
    condition = rng.random((3, 5000)) < share
    x, y = (rng.normal(size=(3, 5000)).astype(dtype) for _ in range(2))
    for a, b in ((x, y), (x, y.dtype.type(1)), (x, 0), (0, x), (x[0], y), (x, np.stack([y, y]))):
        found, expected = xp.where(condition, a, b), np.where(condition, a, b)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
        assert not any(np.shares_memory(found, each) for each in (x, y))


def test_blocks_of_rows_are_computed_as_all_rows_at_once(rng):
    x, y = rng.normal(size=(2, 4999, 13)), rng.normal(size=(2, 4999))
    sizes = []

    def of_rows(x, y):
        sizes.append(x.size)
        return x.max(-1) + y, x * y[..., None]

    for found, expected in zip(by_blocks(of_rows, 2, x, y), of_rows(x, y), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert len(sizes) > 3
    assert max(sizes[:-1]) <= 2**15
    alone = by_blocks(lambda x: x.sum((1, 2)), 1, x)  # two rows, each larger than a block
    np.testing.assert_array_equal(alone, x.sum((1, 2)))


def test_blocks_of_several_arrays_are_of_the_same_rows(rng):
    x, y = rng.normal(size=(4999, 13)), rng.normal(size=4999)
    parts = list(blocks_of_rows(x, None, y))
    assert len(parts) > 1
    assert all(none is None and len(a) == len(b) for a, none, b in parts)
    np.testing.assert_array_equal(np.concatenate([a for a, _, _ in parts]), x)
    np.testing.assert_array_equal(np.concatenate([b for _, _, b in parts]), y)
    # Arrays of other sizes, of devices, and few numbers are one block.
    for given in ((x, y[:1]), (x, jax.numpy.asarray(y)), (x[:9], y[:9]), (x, 1.0)):
        assert list(blocks_of_rows(*given)) == [given]
    assert len(list(blocks_of_rows(rng.normal(size=(2, 40_000))))) == 2


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("shape", [(), (7,), (60, 70)])
def test_a_function_of_the_chosen_elements_is_chosen_everywhere(rng, shape, share):
    mask, x = np.asarray(rng.random(shape) < share), np.asarray(rng.random(shape))
    other, expected = np.full(shape, -1.0), np.where(mask, np.sqrt(x) + x, -1.0)
    for placed in (np.asarray, jax.numpy.asarray):
        chosen, values = placed(mask), placed(x)
        found = computed_where(chosen, lambda a, b: xp.sqrt(a) + b, other, values, values)
        np.testing.assert_allclose(found, expected, 1e-6)
        np.testing.assert_allclose(replaced(chosen, values, -1.0), np.where(mask, x, -1), 1e-6)
    assert (other == -1).all()


@pytest.mark.parametrize("shape", [(5000, 3), (5000, 100), (3, 5000)])
@pytest.mark.parametrize("axis", [-1, 1, (1,), 0, None])
def test_sums_of_many_elements(rng, shape, axis):
    x = rng.normal(size=shape)
    np.testing.assert_allclose(xp.sum(x, axis), x.sum(axis), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("metric", "shape"),
    [
        (metrics.MeanSquaredError(), ()),
        (metrics.TweedieDeviance(1), ()),
        (metrics.CosineSimilarity(), (7,)),
        (metrics.KLDivergence(), (7,)),
        (metrics.R2Score(), ()),
        (metrics.Perplexity(), (7,)),
        (metrics.LogCoshError(), ()),
        (metrics.MinkowskiDistance(5), ()),
        (metrics.PearsonCorrCoef(), ()),
        (metrics.CalibrationError(), ()),
        (metrics.CoverageError(), (7,)),
        (metrics.NDCG(), (7,)),
    ],
    ids=lambda x: getattr(type(x), "__name__", ""),
)
def test_one_large_update_is_as_many_small_ones(rng, metric, shape):
    preds, target = (rng.uniform(0.1, 1, (40_000, *shape)).astype(np.float32) for _ in range(2))
    if isinstance(metric, metrics.KLDivergence):
        preds, target = (x / x.sum(-1, keepdims=True) for x in (preds, target))
    if isinstance(metric, metrics.Perplexity):
        target = rng.integers(0, 7, 40_000)
    if isinstance(metric, metrics.CalibrationError):
        target = (target > 0.5).astype(np.int32)
    if isinstance(metric, metrics.CoverageError | metrics.NDCG):
        # Ties in the first half, and queries without a relevant document.
        preds[:20_000], target = preds[:20_000].round(1), (target * 1.5).astype(np.int32)
    preds[12_345] = np.nan  # in one block
    weights = rng.integers(0, 3, 40_000)
    whole = metric.update(preds, target, weights=weights)
    parts = metric
    for i in range(0, 40_000, 500):
        part = slice(i, i + 500)
        parts = parts.update(preds[part], target[part], weights=weights[part])
    whole, parts = (each.replace(on_invalid="exclude") for each in (whole, parts))
    assert int(whole.invalid_count()) == int(parts.invalid_count()) == bool(weights[12_345])
    with pytest.warns(datarax.InvalidValuesWarning) if weights[12_345] else nullcontext():
        found, expected = whole.results(), parts.results()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1.0, 1e10, 1e30])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_two_variables_at_any_scale(rng, scale, offset, weighted):
    sizes, weight = (1, 300, 0, 40), scale if weighted else 1.0
    target = [(scale * (offset + rng.normal(size=n))).astype(np.float32) for n in sizes]
    preds = [(x + scale * 0.3 * rng.normal(size=x.size)).astype(np.float32) for x in target]
    weights = [(weight * rng.integers(0, 4, n)).astype(np.float32) for n in sizes]
    p, t, w = (np.concatenate(x).astype(np.float64) for x in (preds, target, weights))

    def moment(x, y):
        return np.sum(w / weight * (x - np.average(x, weights=w)) * (y - np.average(y, weights=w)))

    expected = {
        "R2Score": 1 - np.sum(w / weight * (p - t) ** 2) / moment(t, t),
        "PearsonCorrCoef": moment(p, t) / np.sqrt(moment(p, p) * moment(t, t)),
        "ExplainedVariance": 1 - moment(p - t, p - t) / moment(t, t),
    }
    for name, value in expected.items():
        whole, parts = getattr(metrics, name)(), []
        for a, b, c in zip(preds, target, weights, strict=True):
            whole = whole.update(a, b, weights=c)
            parts.append(getattr(metrics, name)().update(a, b, weights=c))
        merged = parts[3].merge(parts[2]).merge(parts[1].merge(parts[0]))
        np.testing.assert_allclose([whole.results(), merged.results()], value, 1e-6, err_msg=name)
        constant = np.full(9, scale, np.float32)
        alone = getattr(metrics, name)().update(constant, constant)
        assert float(alone.update(constant, constant).statistic.moments.powers[0][0].max()) == 0


def test_replicas_of_a_reading_are_told_apart(rng):
    # Each score in a bin of its own.
    scores, target = rng.permutation(50).astype(np.float32) / 50, rng.integers(0, 2, 50)
    aurocs = [metrics.AUROC().update(scores[i:], target[i:]) for i in range(3)]
    both = datarax.Collection({str(i): x for i, x in enumerate(aurocs)})
    found = both.results()
    for i in range(3):
        np.testing.assert_allclose(found[str(i)], sk.roc_auc_score(target[i:], scores[i:]), 1e-6)
