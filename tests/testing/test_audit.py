"""What a procedure is called with in an audit, what the report says, and how misuse is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax.testing import AuditError, AuditReport, audit
from datarax.testing.causes import ADVICE, CAUSES
from tests.test_layers import ROOT

ROWS = 24


@pytest.fixture
def batch(rng):
    return {
        "loss": rng.exponential(size=(ROWS, 3)),
        "half": jnp.asarray(rng.normal(size=ROWS), jnp.bfloat16),
        "id": rng.choice([3, 7, 40], ROWS).astype(np.uint8),
        "name": rng.choice(["a", "bc"], ROWS),
        "row": np.arange(ROWS),
        "weight": rng.uniform(1, 2, ROWS).astype(np.float32),
        "tag": rng.permutation(np.arange(ROWS) % 5),
        "nested": {"mask": np.ones((ROWS, 2), np.float32)},
    }


class Recorder:
    """A procedure that keeps what it is called with."""

    def __init__(self):
        self.calls = []

    def __call__(self, batches, *args, **kwargs):
        self.calls.append((batches, args, kwargs))
        return {"constant": 1.0}

    @property
    def sizes(self):
        return [tuple(len(b["row"]) for b in batches) for batches, _, _ in self.calls]


def loss_of(batches):
    """The mean over all rows."""
    return {"loss": np.concatenate([b["loss"] for b in batches]).mean()}


def test_the_batches_of_the_calls(batch):
    record = Recorder()
    report = audit(record, batch)
    assert report.ok
    assert report.calls == len(record.calls)
    sizes = record.sizes
    assert sizes[:2] == [(ROWS,), (ROWS,)]
    assert {(6, 6, 6, 6), (9, 9, 6), (1,) * ROWS} <= set(sizes)  # equal; a short last one; single
    assert any(len(set(each)) > 1 and sorted(each) != list(each) for each in sizes)  # ragged
    assert {sum(each) for each in sizes} == {ROWS}
    assert min(map(min, sizes)) > 0
    orders = set()
    for batches, args, kwargs in record.calls:
        assert (args, kwargs) == ((), {})
        for b in batches:
            assert jax.tree.structure(b) == jax.tree.structure(batch)
            for x, y in zip(jax.tree.leaves(b), jax.tree.leaves(batch), strict=True):
                assert (isinstance(x, jax.Array), x.dtype) == (isinstance(y, jax.Array), y.dtype)
                assert x.shape[1:] == y.shape[1:]
        rows = np.concatenate([b["row"] for b in batches])
        assert sorted(rows) == list(range(ROWS))
        orders.add(tuple(rows))
        for name in "loss", "half", "name":  # all leaves are put in one order
            joined = np.concatenate([np.asarray(b[name]) for b in batches])
            np.testing.assert_array_equal(joined, np.asarray(batch[name])[rows])
    assert len(orders) == 6  # as given, reversed, three at random, ragged batches reversed


def test_a_seed_repeats_an_audit(batch):
    calls = [Recorder(), Recorder(), Recorder()]
    for record, seed in zip(calls, (1, 1, 2), strict=True):
        audit(record, batch, mask="nested/mask", weights="weight", seed=seed)
    first, second, third = ([b["row"] for call in each.calls for b in call[0]] for each in calls)
    assert all(map(np.array_equal, first, second))
    assert not all(map(np.array_equal, first, third))


def test_many_rows_are_not_passed_one_at_a_time(rng):
    record = Recorder()
    audit(record, {"row": np.arange(1000)})
    assert max(map(len, record.sizes)) < 10


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float32])
def test_padding(batch, dtype):
    batch["nested"]["mask"] = batch["nested"]["mask"].astype(dtype)
    record = Recorder()
    audit(record, batch, mask="nested/mask", weights="weight", groups="tag")
    padded = []
    for batches, _, _ in record.calls:
        for b in batches:
            mask = b["nested"]["mask"]
            assert mask.dtype == dtype
            assert mask.shape[1:] == (2,)
            padding = ~mask.astype(bool).any(1)
            if padding.any():
                padded.append((b, padding))
    assert any(padding.all() for _, padding in padded)
    assert any(np.isnan(b["loss"][padding]).all() for b, padding in padded)
    assert any(np.isnan(np.float32(b["half"][padding])).all() for b, padding in padded)
    assert any((abs(b["loss"][padding]) > 10).any() for b, padding in padded)
    assert any((b["loss"][padding] == 0).all() for b, padding in padded)
    for b, padding in padded:
        assert np.isfinite(b["loss"][~padding]).all()
        assert set(b["id"][padding]) <= {0, 3, 7, 40}
        assert set(b["name"][padding]) <= {"a", "bc"}
        weights = b["weight"][padding]
        assert np.isin(weights, [0, *batch["weight"]]).all()
        assert set(b["tag"][padding]) <= set(range(5))


def test_groups_stay_together(batch):
    record = Recorder()
    audit(record, batch, groups="tag")
    assert max(map(len, record.sizes)) == 5  # one group at a time
    for batches, _, _ in record.calls:
        tags = [set(b["tag"].tolist()) for b in batches]
        assert sum(map(len, tags)) == 5
        assert set.union(*tags) == set(range(5))


def test_weights(batch):
    record = Recorder()
    audit(record, batch, weights="weight", groups="tag")
    weight, pairs = batch["weight"], {}
    for (b, *others), _, _ in record.calls:
        if not others:
            factors = (b["weight"] / weight[b["row"]]).tolist()
            pairs[tuple(sorted(zip(b["row"].tolist(), factors, strict=True)))] = b
    rows = {tuple(row for row, _ in each) for each in pairs}
    doubled = [each for each in pairs if {2} <= {f for _, f in each} <= {1, 2}]
    assert len(doubled) == 2
    for each in doubled:  # the call to compare with has these rows twice
        assert tuple(row for row, f in each for _ in range(int(f))) in rows
    absent = [each for each in pairs if {f for _, f in each} == {0, 1}]
    assert len(absent) == 2
    for each in absent:
        assert tuple(row for row, f in each if f) in rows
    tags = [{batch["tag"][row] for row, f in each if not f} for each in absent]
    kept = [{batch["tag"][row] for row, f in each if f} for each in absent]
    assert any(
        len(left_out) == 1 and left_out.isdisjoint(rest)
        for left_out, rest in zip(tags, kept, strict=True)
    )


def test_weights_of_a_mask_are_not_doubled(batch):
    batch["weight"] = np.ones(ROWS, bool)
    report = audit(
        lambda batches: {"rows": sum(int(b["weight"].sum()) for b in batches)},
        batch,
        weights="weight",
        mask="weight",
    )
    report.raise_if_changed()


def test_micro_batches_and_devices(batch):
    record = Recorder()
    audit(record, batch, micro=[1, 4], devices=(np.int32(2),))
    micro = [
        (kwargs["micro"], size)
        for (_, _, kwargs), size in zip(record.calls, record.sizes, strict=True)
        if kwargs
    ]
    assert {count for count, _ in micro} == {1, 4}
    assert all(rows % 4 == 0 for count, size in micro if count == 4 for rows in size)
    assert any(len(set(size)) > 1 for _, size in micro)
    meshes = [
        (args[0], size)
        for (_, args, _), size in zip(record.calls, record.sizes, strict=True)
        if args
    ]
    assert len(meshes) == 2
    for mesh, size in meshes:
        assert (mesh.axis_names, mesh.size) == (("data",), 2)
        assert all(rows % 2 == 0 for rows in size)


def test_the_report(batch):
    def procedure(batches):
        mean = np.mean([b["loss"].mean() for b in batches])
        return {
            "a": {"b": mean, "fine": loss_of(batches)["loss"]},
            "vector": [np.stack([mean, 1.0, np.nan]), np.bool_(True)],
        }

    report = audit(procedure, batch)
    assert isinstance(report, AuditReport)
    assert set(report.bounds) == {"a/b", "a/fine", "vector/0", "vector/1"}
    assert {change.name for change in report.changes} == {"a/b", "vector/0"}
    assert report.unstable == report.expected == []
    change = next(each for each in report.changes if each.variation == "ragged batches")
    assert change.name == "a/b"
    assert change.expected == batch["loss"].mean()
    assert change.ratio == change.got / change.expected != 1
    assert change.causes == ("mean of means", "depends on batch size")
    assert change.cause == "mean of means"
    assert change.ratios["ragged batches"] == change.ratio
    assert change.ratios["equal batches"] == pytest.approx(1)
    vector = next(each for each in report.changes if each.name == "vector/0")
    assert vector.got.shape == (3,)
    assert vector.ratio == report.changes[0].ratio
    with pytest.raises(AuditError) as caught:
        report.raise_if_changed()
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, datarax.DataraxError)
    lines = str(report).splitlines()
    assert str(caught.value) == str(report)
    assert lines[0] == f"audit of 24 rows, {report.calls} calls: 2 of 4 numbers change"
    assert lines[1].split() == ["number", "variation", "expected", "got", "ratio", "cause"]
    assert lines[2].startswith("a/b       a short last batch (and 2 more)  ")
    assert lines[2].endswith("  mean of means")
    assert "array of shape (3,)" in lines[3]
    assert lines[4].startswith("mean of means: ")


def test_each_cause_is_explained():
    assert {*CAUSES, "unknown"} == set(ADVICE)
    page = (ROOT / "docs/is-my-number-right.md").read_text()
    assert [cause for cause in ADVICE if cause not in page] == []


def test_patterns_name_what_is_meant_to_change(batch):
    def procedure(batches):
        return {"ema": {"loss": len(batches)}, "last": len(batches[-1]["row"]), "rows": 1}

    report = audit(procedure, batch, expected=["ema/*", "la?t", "none"])
    assert report.ok
    assert report.expected == ["ema/loss", "last"]
    assert "ema/loss, last" in str(report)
    assert {each.name for each in audit(procedure, batch, expected="last").changes} == {"ema/loss"}


def test_what_leaks_into_the_next_call_is_unstable(batch):
    seen = []

    def procedure(batches):
        seen.extend(batches)
        rows = sum(len(b["row"]) for b in seen)
        return {"rows": rows, "later": rows if len(batches) > 2 else 0, "constant": 3}

    report = audit(procedure, batch)
    assert report.ok
    assert report.unstable == ["later", "rows"]  # one of them in some calls only
    assert "differs between equal calls: later, rows" in str(report)


def test_a_number_that_is_missing_or_new_is_a_change(batch):
    def procedure(batches):
        names = ["first", "second"][: len(batches)] if len(batches) < 4 else ["second"]
        return {"rows": 1, **dict.fromkeys(names, 2.0)}

    report = audit(procedure, batch)
    missing = [each for each in report.changes if each.name == "first"]
    new = [each for each in report.changes if each.name == "second"]
    assert missing
    assert new
    assert all(each.got is None and each.expected == 2 for each in missing)
    assert all(each.expected is None and each.got == 2 for each in new)
    assert all(np.isnan(each.ratio) for each in report.changes)
    assert "none" in str(report)


def test_a_shape_that_depends_on_batches_is_a_change(batch):
    report = audit(lambda batches: {"means": [np.ones(len(b["row"])) for b in batches]}, batch)
    assert any(each.got is not None and each.got.shape != (ROWS,) for each in report.changes)
    report = audit(lambda batches: {"sizes": np.array([len(b["row"]) for b in batches])}, batch)
    assert {each.cause for each in report.changes} <= {
        "depends on batch size",
        "depends on order",
        "unknown",
    }
    assert not report.ok


def test_exceptions(batch):
    def always(batches):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        audit(always, batch)

    def for_one_row(batches):
        if len(batches[0]["row"]) == 1:
            raise ValueError("too few rows\nand more")
        return {"rows": sum(len(b["row"]) for b in batches)}

    report = audit(for_one_row, batch)
    (change,) = report.changes
    assert (change.name, change.variation, change.cause) == ("(raised)", "one at a time", "unknown")
    assert isinstance(change.got, ValueError)
    assert "ValueError: too few rows" in str(report)
    assert "0 of 1 numbers change" in str(report)

    calls = []

    def once(batches):
        calls.append(1)
        if len(calls) == 2:
            raise StopIteration("used up")
        return {"rows": 1}

    assert audit(once, batch).changes[0].variation == "the same call again"

    def without_a_row(batches):  # the call to compare with raises too
        if len(batches[0]["row"]) < ROWS and len(batches) == 1:
            raise ValueError("a row is missing")
        return {"rows": 1}

    report = audit(without_a_row, batch, weights="weight")
    assert [each.variation for each in report.changes] == ["weight 0 for some rows"]


def test_warnings_of_garbage_are_ignored(batch):
    def procedure(batches):
        found = [np.where(b["nested"]["mask"][:, :1] > 0, np.log(b["loss"]), 0) for b in batches]
        return {"log": sum(x.sum() for x in found)}

    with np.errstate(all="raise"):
        audit(procedure, batch, mask="nested/mask").raise_if_changed()
    with pytest.warns(UserWarning, match="of the first call"):
        audit(lambda batches: warned(batches), batch)


def warned(batches):
    import warnings

    warnings.warn("of the first call", UserWarning, stacklevel=1)
    return {"x": 1}


def test_a_procedure_may_donate_what_it_gets(rng):
    # Of one sign: the rounding of a sum that cancels is not small beside the sum.
    batch = {"x": jnp.asarray(rng.uniform(1, 2, size=8), jnp.float32)}
    double = jax.jit(lambda x: 2 * x, donate_argnums=0)

    def procedure(batches):
        return {"sum": sum(float(double(b["x"]).sum()) for b in batches)}

    audit(procedure, batch).raise_if_changed()
    assert not batch["x"].is_deleted()


@pytest.mark.parametrize("offset", [0.0, 1e3, -5e4])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rounding_is_no_change(rng, offset, scale):
    x = scale * (rng.normal(size=200) + offset)
    batch = {"x": x.astype(np.float32)}

    def procedure(batches):
        one, total, count = np.float32(1), np.float32(0), 0
        for b in batches:
            for value in b["x"]:  # a running total, which rounds at each addition
                total += value * one
            count += len(b["x"])
        return {"mean": total / np.float32(count), "text": float(total) / count}

    report = audit(procedure, batch)
    report.raise_if_changed()
    # At most the epsilon times the number of rows, of the number or of the data.
    most = 2.0**-23 * 200 * max(abs(x.mean()), np.median(abs(x)))
    assert 0 < report.bounds["mean"] <= most * 1.01


def test_an_error_above_rounding_is_a_change(rng):
    batch = {"x": rng.normal(size=64)}

    def procedure(batches):
        x = np.concatenate([b["x"] for b in batches])
        return {
            "float32": np.float32(1 + 1e-5 * (len(batches) - 1)),
            "integer": 2**60 + len(batches),
            "order": x[0],
        }

    report = audit(procedure, batch)
    assert {each.name for each in report.changes} == {"float32", "integer", "order"}
    order = [each for each in report.changes if each.name == "order"]
    assert {each.cause for each in order} == {"depends on order"}


def test_rounding_to_bfloat16_is_no_change(rng):
    batch = {"x": jnp.asarray(rng.normal(size=64) + 1, jnp.bfloat16)}

    def procedure(batches):
        means = np.mean([np.float32(b["x"]).mean() for b in batches])
        total = sum(np.float32(b["x"]).sum() for b in batches)
        near = total * (1 + 0.002 * (len(batches) > 1))  # it may round to the next number
        return {"total": jnp.asarray(near, jnp.bfloat16), "means": jnp.asarray(means, jnp.bfloat16)}

    report = audit(procedure, batch)
    assert "total" not in {each.name for each in report.changes}


def test_numbers_that_are_not_finite(batch):
    values = {"nan": np.nan, "inf": -np.inf, "complex": 1j, "fraction": np.float16(0.5)}
    audit(lambda batches: values, batch).raise_if_changed()
    report = audit(lambda batches: {"x": np.nan if len(batches) > 1 else np.inf}, batch)
    assert {each.name for each in report.changes} == {"x"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"mask": "msk"}, "mask='msk' names no array of the batch; it has: 'half', 'id', 'loss'"),
        ({"weights": "nested"}, "weights='nested' names no array"),
        ({"groups": "name"}, "expected one value for each row, and at least 3 groups"),
        ({"groups": "nested/mask"}, "expected one value for each row"),
        ({"micro": [5]}, "micro=5 does not divide the 24 rows"),
        ({"micro": [0]}, "micro=0; expected an integer of at least 1"),
        ({"micro": 4}, "micro=4; expected a list of numbers"),
        ({"devices": [True]}, "devices=True; expected an integer"),
        ({"devices": [12]}, "devices=.12., and JAX has 8; to simulate 8"),
        ({"capture": "wandbb"}, "capture='wandbb'; expected one of 'wandb', 'tensorboard'"),
    ],
)
def test_arguments_that_do_not_fit(batch, arguments, error):
    with pytest.raises(datarax.DataraxError, match=error):
        audit(loss_of, batch, **arguments)


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        ({"x": np.ones(3)}, "at least 4 rows; got .'x': 3"),
        ({"x": np.ones(5), "y": np.ones(4)}, "share one leading axis .* got .'x': 5, 'y': 4"),
        ({"x": np.float32(1)}, "'x' of the batch is a float32; expected an array"),
        ({"x": np.array(1.0)}, "at least 4 rows; got .'x': 0"),
        ({"x": ["a", "b"]}, "'x/0' of the batch is a str; expected an array"),
        ({}, "at least 4 rows; got .."),
    ],
)
def test_batches_that_do_not_fit(batch, error):
    with pytest.raises(datarax.DataraxError, match=error):
        audit(loss_of, batch)


@pytest.mark.parametrize(
    ("logged", "error"),
    [
        (0.5, "returned a float; expected a dict"),
        ([1.0], "returned a list; expected a dict"),
        (None, "logged no numbers"),
        ({"note": "text", "x": None}, "logged no numbers"),
        (
            {"a": {"b": datarax.metrics.Mean()}},
            "logs the metric 'a/b' itself; expected its results",
        ),
    ],
)
def test_what_cannot_be_logged(batch, logged, error):
    with pytest.raises(datarax.DataraxError, match=error):
        audit(lambda batches: logged, batch)
