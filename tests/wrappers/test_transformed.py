"""Functions before and after a metric."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from datarax import (
    Collection,
    ConfigurationMismatchError,
    InvalidValuesError,
    InvalidValuesWarning,
    MetricInputError,
    MetricTypeError,
    Transformed,
    per_device,
)
from datarax.metrics import AUROC, Accuracy, Mean, Recall, Sum
from datarax.testing import check_metric
from datarax.training import StatefulMetric
from tests.helpers import collectives, draw, make_mesh, place


def squared_error(given):
    return {"values": (given["a"] - given["b"]) ** 2, "weights": given.get("weights")}


def from_logits(given):
    return {**given, "preds": jax.nn.sigmoid(given["logits"])}


def flattened(given):
    return {"values": given["tokens"].reshape(-1)}


def root(value):
    return jnp.sqrt(value)  # which cannot be pickled itself


def complement(value):
    return 1 - value


def batch_of(rng, rows=16):
    return {"a": draw(rng, (rows,)), "b": draw(rng, (rows,))}


def binary(rng, rows=16):
    return {
        "logits": rng.normal(size=rows).astype(np.float32),
        "target": rng.integers(0, 2, rows).astype(np.int32),
    }


rmse = Transformed(Mean(), squared_error, root)


def test_laws(rng):
    batches = [batch_of(rng) for _ in range(3)]
    # The mean is within one unit. For programs: test_nesting.py.
    check_metric(rmse, batches, ulps=2, on_host=True)
    batches_of_logits = [binary(rng) for _ in range(3)]
    check_metric(Transformed(Accuracy(), from_logits), batches_of_logits, on_host=True)
    # Without `inputs`, the laws of weights hold as for the metric.
    batches = [tuple(binary(rng).values()) for _ in range(3)]
    check_metric(Transformed(Accuracy(from_logits=True), result=complement), batches, on_host=True)


def test_the_value_is_that_of_the_metric_by_hand(rng):
    batch, weights = batch_of(rng), rng.integers(0, 3, 16).astype(np.float32)
    square = (batch["a"].astype(np.float64) - batch["b"]) ** 2
    assert rmse.update(**batch).results() == np.float32(np.sqrt(np.float32(square.mean())))
    weighted = (square * weights).sum() / weights.sum()
    got = rmse.update(**batch, weights=weights).results()
    np.testing.assert_array_max_ulp(got, np.float32(np.sqrt(np.float32(weighted))), 1)
    by_position = Transformed(Mean(), result=complement).update(square.astype(np.float32))
    assert by_position.results() == np.float32(1 - np.float32(square.mean()))


@pytest.mark.parametrize("axes", ["auto", "explicit"])
@pytest.mark.parametrize("rows", [16, 13])
def test_rows_stay_on_their_devices(rng, axes, rows):
    mesh, batch = make_mesh(axes, {"data": 8}), binary(rng, rows)
    plain = Transformed(Accuracy(), from_logits)
    spread = per_device(plain, mesh, "data")
    want = plain.update(**batch).results()
    assert spread.update(**batch).results() == want
    if rows == 16:
        batch = place(batch, mesh, P("data"))
        update = jax.jit(lambda metric, batch: metric.update(**batch))
        assert not collectives(update, spread, batch)
        assert jax.block_until_ready(update(spread, batch)).results() == want


def test_lists_are_arrays_for_the_function():
    doubled = Transformed(Sum(), lambda given: {"values": given["x"] * 2})
    for metric in (doubled, per_device(doubled, make_mesh("auto", {"data": 8}), "data")):
        assert metric.update(x=[1, 2, 3]).results() == 12
        assert metric.update(x=np.int32([1, 2, 3])).results() == 12


def test_another_number_of_rows_is_not_padded(rng):
    # A batch of a new size is padded for other metrics; the function makes rows of its own.
    metric, seen = Transformed(Mean(), flattened), []
    for rows in (4, 3, 7, 5):
        tokens = draw(rng, (rows, 3))
        seen.append(tokens.ravel())
        metric = metric.update(tokens=tokens)
    np.testing.assert_array_max_ulp(
        np.float32(metric.results()), np.float32(np.concatenate(seen).mean(dtype=np.float64)), 1
    )


def test_in_a_collection_the_function_gets_all_outputs(rng):
    batch = batch_of(rng) | binary(rng)
    metrics = Collection({"rmse": rmse, "loss": Mean().from_outputs(values="loss")})
    outputs = {**batch, "loss": batch["a"], "note": "a string", "mask": batch["target"]}
    got = metrics.update(**outputs).results()
    assert got["rmse"] == rmse.update(a=batch["a"], b=batch["b"]).results()
    nested = Collection({"in": metrics})
    shell = StatefulMetric(nested)
    shell.update(**outputs)
    assert shell.results() == {f"in/{name}": value for name, value in got.items()}
    alone = StatefulMetric(rmse)
    alone.update(**outputs)
    assert alone.results() == got["rmse"]


def test_an_output_that_is_missing():
    for metric, start in ((rmse, ""), (Collection({"x": rmse}), "metric 'x': ")):
        with pytest.raises(
            MetricInputError, match=rf"^{start}Transformed: inputs needs the output"
        ):
            metric.update(a=np.ones(3))
    with pytest.raises(MetricInputError, match=r"needs the output 'a', and.* given: b"):
        rmse.update(b=1.0)
    with pytest.raises(MetricInputError, match=r"Accuracy needs the output 'target'"):
        Transformed(Accuracy(), from_logits).update(logits=np.ones(3))

    def broken(given):
        return {"values": {}["a"]}

    with pytest.raises(KeyError, match=r"a"):  # not an output that is missing: a fault in `broken`
        Transformed(Mean(), broken).update(a=1.0)


def test_what_the_function_returns_is_checked(rng):
    with pytest.raises(MetricTypeError, match=r"inputs returned .*; expected a dict of the arg"):
        Transformed(Mean(), lambda given: given["a"]).update(a=1.0)
    with pytest.raises(MetricInputError, match=r"in what inputs= returned: no metric.*'mask'"):
        Transformed(Accuracy(), from_logits).update(**binary(rng), mask=np.ones(16))
    with pytest.raises(MetricInputError, match=r"'wieghts', and Mean takes 'weights'"):
        Transformed(Mean(), lambda given: given).update(values=1.0, wieghts=1.0)
    with pytest.raises(MetricInputError, match=r"by name if inputs= is given, and got 2 by"):
        rmse.update(np.ones(3), np.ones(3))


def test_routes_of_the_metric_within(rng):
    batch = binary(rng)
    metric = Transformed(Accuracy().from_outputs(target="label"), from_logits)
    plain = Transformed(Accuracy(), from_logits).update(**batch).results()
    assert metric.update(logits=batch["logits"], label=batch["target"]).results() == plain
    with pytest.raises(MetricInputError, match=r"inputs= gets all outputs by their names"):
        metric.from_outputs(target="other")
    after = Transformed(Mean(), result=jnp.sqrt).from_outputs(values="loss")
    assert Collection({"x": after}).update(loss=4.0).results() == {"x": 2.0}


@pytest.mark.parametrize("wrong", [3, "sqrt", [1]])
def test_what_is_no_function(wrong):
    for name in ("inputs", "result"):
        with pytest.raises(MetricTypeError, match=rf"Transformed: {name}=.*; expected a function"):
            Transformed(Mean(), **{name: wrong})
    with pytest.raises(MetricTypeError, match=r"is the class Mean|got the class Mean"):
        Transformed(Mean)
    with pytest.raises(MetricTypeError, match=r"Write per_device\(Transformed\(...\)"):
        Transformed(per_device(Mean(), make_mesh("auto", {"data": 8}), "data"))


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, given):
        return given


def test_functions_are_configuration():
    assert "result=<" in repr(Transformed(Mean(), result=jnp.sqrt))
    with pytest.raises(ConfigurationMismatchError, match=r"Transformed.result is <function"):
        Transformed(Mean(), result=lambda x: x).merge(Transformed(Mean(), result=lambda x: x))
    with pytest.raises(MetricTypeError, match=r"Transformed.inputs is a Unhashable.*hashable"):
        Transformed(Mean(), Unhashable())
    both = rmse.update(a=1.0, b=3.0).merge(Transformed(Mean(), squared_error, root))
    assert both.results() == pickle.loads(pickle.dumps(both)).results() == 2.0
    other = Transformed(Mean(), result=complement).update(1.0)
    with pytest.raises(ConfigurationMismatchError, match=r"Transformed.result"):
        Transformed(Mean(), result=jnp.sqrt).load_state_dict(other.state_dict())
    assert Transformed(Mean(), result=complement).load_state_dict(other.state_dict()).results() == 0
    assert other.replace(result=jnp.sqrt).results() == 1.0


def is_high(value):
    return jnp.where(value > 0.5, 1.0, 0.0)


def test_policies():
    spoilt = np.float32([1, np.nan, 3])
    for result, value in ((jnp.exp, np.exp(np.float32(2))), (is_high, 1.0)):
        metric = Transformed(Mean(), result=result).update(spoilt)
        with pytest.warns(InvalidValuesWarning, match=r"Transformed: 1 values"):
            assert np.isnan(metric.results())
        with pytest.warns(InvalidValuesWarning):
            got = metric.replace(on_invalid="exclude").results()
        np.testing.assert_allclose(got, value, rtol=1e-6)
        with pytest.raises(InvalidValuesError):
            metric.replace(on_invalid="raise").results()
        assert int(metric.invalid_count()) == 1
    assert metric.on_invalid == "propagate"


def test_bounds_are_of_the_value_as_it_is(rng):
    scores, target = rng.normal(size=200).astype(np.float32), rng.integers(0, 2, 200)
    kept = Collection({"x": Transformed(AUROC(bits=10))}).update(preds=scores, target=target)
    assert kept.bounds().keys() == {"x"}
    changed = Collection({"x": Transformed(AUROC(bits=10), result=complement)})
    assert changed.update(preds=scores, target=target).bounds() == {}


def test_exact_values():
    big = 2**24 + 1
    assert Transformed(Sum()).update(big).results() == big
    assert Transformed(Sum(), result=complement).update(3).results() == -2.0


def test_it_shares_a_statistic_if_its_updates_are_the_same(rng):
    plain = {
        "recall": Recall(num_classes=3),
        "lost": Transformed(Recall(num_classes=3), None, complement),
    }
    metrics = Collection(plain)
    assert len(metrics.states_within()) == 1
    preds, target = rng.integers(0, 3, (2, 50))
    got = metrics.update(preds=preds, target=target)
    for name, metric in plain.items():
        assert got.results()[name] == metric.update(preds, target).results()
    loaded = metrics.load_state_dict(got.state_dict())
    assert len(loaded.states_within()) == 1
    assert loaded.results() == got.results()
    apart = Collection({"a": Accuracy(), "b": Transformed(Accuracy(), from_logits)})
    assert len(apart.states_within()) == 2


def test_fields_of_the_metric_are_replaced():
    metric = Transformed(Mean(), result=jnp.sqrt).update(4.0)
    assert metric.replace(on_invalid="raise").metric.on_invalid == "raise"
    assert metric.replace(metric=Mean().update(9.0)).results() == 3.0
    with pytest.raises(AttributeError, match=r"Mean has no attribute 'threshold'"):
        metric.replace(threshold=0.5)
    with pytest.raises(MetricTypeError, match=r"expects a datarax.Metric; got int"):
        metric.replace(metric=3)
