"""A pair of rows counts where both models can be used, for every metric, wherever it is updated."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import Collection, Compare, Sliced, metrics
from datarax.wrappers.pairs import Pairs
from tests.helpers import LONG, make_mesh, optimized, place
from tests.registry import BATCH, BUNDLES, ENGINE_GROUPS, GROUPS, arrays_of

pytestmark = pytest.mark.filterwarnings(
    "ignore::datarax.InvalidValuesWarning", "ignore:.*:UserWarning"
)

SPOILT = [name for name, group in GROUPS.items() if group[0].inputs.spoil and not group[0].host]
IN_JIT = [name for name in ENGINE_GROUPS if name in SPOILT]


def two_models(name, rng):
    """What two models give, the argument that differs, and the rows that were spoilt."""
    inputs = GROUPS[name][0].inputs
    a = inputs.draw(rng, BATCH)
    twice = next(each for each in a if each in inputs.spoil)
    twice = "preds" if "preds" in inputs.spoil else twice
    b = a | {twice: inputs.draw(rng, BATCH)[twice]}
    rows = rng.permutation(BATCH)
    a = a | {twice: inputs.spoilt(rng, a, rows[:3])[twice]}
    b = b | {twice: inputs.spoilt(rng, b, rows[2:5])[twice]}
    return a, b, twice, rows[:5]


def usable_rows(name, batch, spoilt):
    """By the name of each case: the rows that it can use, by an update for each row."""
    group, found = GROUPS[name], []
    valid = np.asarray(group[0].inputs.valid(**batch)).reshape(BATCH, -1).all(1)
    for row in range(BATCH):
        if row not in spoilt and valid[row]:
            found.append([True] * len(group))
            continue
        one = {each: x[row : row + 1] for each, x in batch.items()}
        seen = BUNDLES[name].update(**arrays_of(group, one))
        found.append([int(seen[case.id].invalid_count()) == 0 for case in group])
    return np.array(found).T


def given(name, a, b, twice):
    group = GROUPS[name]
    arrays = [arrays_of(group, each) for each in (a, b)]
    assert arrays[0].keys() == a.keys()
    shared = {each: x for each, x in arrays[0].items() if each != twice}
    return shared | {f"{twice}_a": arrays[0][twice], f"{twice}_b": arrays[1][twice]}


def check(name, got, a, b, spoilt):
    group = GROUPS[name]
    both = usable_rows(name, a, spoilt) & usable_rows(name, b, spoilt)
    for case, usable in zip(group, both, strict=True):
        if (query := a.get("query")) is not None:
            usable = usable & ~np.isin(query, query[~usable])
        for model, batch in (("a", a), ("b", b)):
            kept = {each: x[usable] for each, x in batch.items()}
            alone = datarax.Collection({case.id: case.traceable(on_invalid="exclude")})
            want = alone.update(**arrays_of(group, kept)).results()
            for each, x in want.items():
                np.testing.assert_allclose(got[model][each], x, 1e-5, 1e-5, err_msg=each)
        assert got.get(f"pairs/{case.id}/invalid", 0) == (~usable).sum()


@pytest.mark.parametrize("name", SPOILT)
def test_a_row_that_one_model_lacks_is_left_out_of_both(name, rng):
    a, b, twice, spoilt = two_models(name, rng)
    seen = Pairs(BUNDLES[name]).update(**given(name, a, b, twice))
    check(name, seen.results(), a, b, spoilt)


JIT = IN_JIT if LONG else ("auroc", "accuracy_labels_micro", "mse_columns", "ndcg", "perplexity")


@pytest.mark.parametrize("name", [name for name in JIT if name in SPOILT])
def test_in_a_program(name, rng):
    a, b, twice, spoilt = two_models(name, rng)
    update = optimized(lambda pairs, batch: pairs.update(**batch))
    empty = jax.tree.map(jax.numpy.asarray, Pairs(BUNDLES[name]))
    seen = update(empty, given(name, a, b, twice))
    check(name, seen.results(), a, b, spoilt)


def unpaired(rng, rows=64):
    """Losses of two models, each NaN in some rows, in which the other one has large ones."""
    a = rng.normal(size=rows).astype(np.float32)
    b = a + rng.normal(1, 0.1, rows).astype(np.float32)
    a[:5], b[:5], a[5:9], b[5:9] = 100, np.nan, np.nan, -100
    a[9] = b[9] = np.nan
    return {"values_a": a, "values_b": b}, np.arange(rows) > 9


@pytest.mark.parametrize("how", ["formula", "bootstrap", "clusters"])
def test_the_comparison_is_of_the_rows_that_both_have(rng, how):
    batch, both = unpaired(rng)
    options = {"clusters": 16} if how == "clusters" else {}
    method = "bootstrap" if how == "bootstrap" else "formula"
    own = {"cluster": "cluster", "bootstrap": "index"}.get("cluster" if options else how)
    given = {own: rng.integers(0, 16, 64).astype(np.int32)} if own else {}
    metric = Compare(metrics.Mean(on_invalid="exclude"), method=method, **options)

    def of_both(**arrays):
        return {name: x[both] for name, x in arrays.items()}

    want = metric.update(**of_both(**batch, **given)).results()
    assert want["difference"] == pytest.approx(
        np.mean((batch["values_b"] - batch["values_a"])[both])
    )
    whole = batch | given
    mesh = make_mesh("auto", {"d": 8})
    apart = datarax.per_device(metric, mesh, "d").update(**place(whole, mesh, P("d")))
    parts = metric
    for rows in np.split(np.arange(64), 4):
        parts = parts.update(**{name: x[rows] for name, x in whole.items()})
    compiled = optimized(lambda batch: metric.update(**batch))(whole)
    found = [metric.update(**whole), parts, compiled, apart.sync()]
    for seen in found:
        with pytest.warns(datarax.InvalidValuesWarning, match="pairs: 10 .*one of the two models"):
            results = seen.results()
        assert [results[f"{x}/invalid"] for x in ("a", "b", "pairs")] == [5, 6, 10]
        # Without an index, the variates of a row depend on its number.
        names = want.keys() if given or how == "formula" else {"a", "b", "difference"}
        for name in names:
            np.testing.assert_allclose(results[name], want[name], 1e-4, 1e-6, err_msg=name)
        kept = seen.replace(on_invalid="propagate")
        with pytest.warns(datarax.InvalidValuesWarning):
            assert np.isnan(kept.results()["difference"])
    # In slices: of the rows of each.
    ids = rng.integers(0, 3, 64).astype(np.int32)
    tags = ids[:, None] == np.arange(3)
    compiled = () if how == "bootstrap" else ((ids, optimized), (tags, optimized))
    for by, run in ((ids, lambda f: f), (tags, lambda f: f), *compiled):
        sliced = run(lambda batch: Sliced(metric, 3).update(**batch))(whole | {"slices": by})
        with pytest.warns(datarax.InvalidValuesWarning):
            got = sliced.results()["1"]
        rows = {name: x[both & (ids == 1)] for name, x in whole.items()}
        alone = metric.update(**rows).results()
        for name in ("a", "b", "difference"):
            np.testing.assert_allclose(got[name], alone[name], 1e-4, 1e-6, err_msg=name)


def test_members_of_a_collection_leave_out_what_they_cannot_use(rng):
    target = rng.integers(0, 2, 40).astype(np.int32)
    a, b = rng.random((2, 40)).astype(np.float32)
    a[:4], b[4:6] = np.nan, np.inf
    several = Collection(
        {"auroc": metrics.AUROC(), "bias": metrics.Mean().from_outputs(values="x")}
    )
    several = several.replace(**{n: m.replace(on_invalid="exclude") for n, m in several.items()})
    x = rng.normal(size=40).astype(np.float32)
    seen = Compare(several, replicas=2).update(preds_a=a, preds_b=b, target=target, x_a=x, x_b=-x)
    with pytest.warns(datarax.InvalidValuesWarning):
        results = seen.results()
    assert results["pairs/auroc/invalid"] == 4
    assert "pairs/bias/invalid" not in results
    want = metrics.AUROC().update(b[4:], target[4:]).results()
    assert results["b"]["auroc"] == pytest.approx(want)
    assert results["b"]["bias"] == pytest.approx(-x.mean(), abs=1e-6)


def test_rows_of_weight_zero_are_not_lost():
    nan = np.float32([1, np.nan, 3])
    given = {"values_a": nan, "values_b": np.float32([2, 2, 5]), "weights": np.float32([1, 0, 1])}
    results = Compare(metrics.Mean(), method="formula").update(**given).results()
    assert (results["a"], results["b"]) == (2, 3.5)
    assert "pairs/invalid" not in results


def test_an_update_without_weights_is_refused():
    class Share(datarax.Metric):
        hits = datarax.MetricAccumulator(0.0)
        rows = datarax.MetricAccumulator(0.0)
        invalid = datarax.MetricAccumulator(0)

        def update(self, values):
            usable = np.isfinite(values)
            return self.replace(
                hits=self.hits.update(np.where(usable, values, 0)),
                rows=self.rows.update(usable.astype(np.float32)),
                invalid=self.invalid.update((~usable).astype(np.int32)),
            )

        def compute(self):
            return self.hits.value / self.rows.value

    pairs = Pairs(Share(on_invalid="exclude"))
    ones = np.ones(3, np.float32)
    assert pairs.update(values_a=ones, values_b=ones).results() == {"a": 1.0, "b": 1.0}
    with pytest.raises(datarax.MetricInputError, match="takes no weights"):
        pairs.update(values_a=ones, values_b=np.float32([1, np.nan, 1]))
