"""Outputs that would be ignored by mistake, errors that name a member, and names of members."""

import json
import warnings
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from datarax import (
    AxisNotBoundError,
    Best,
    Bootstrap,
    Collection,
    Compare,
    Decayed,
    Interval,
    Metric,
    MetricAccumulator,
    MetricInputError,
    MetricTypeError,
    MultiTask,
    Sliced,
    Transformed,
    UnknownMetricError,
    Window,
    per_device,
)
from datarax.metrics import (
    BLEU,
    NDCG,
    Accuracy,
    ConfusionMatrix,
    LastValue,
    Max,
    Mean,
    Rate,
    Sum,
    TreeHealth,
)
from datarax.training import StatefulMetric
from tests.helpers import draw, make_mesh

TAKEN_FOR_WEIGHTS = (
    *("mask", "weight", "sample_weight", "sample_weights", "where", "sampleWeight", "valid"),
    *("real", "padding", "attention_mask", "loss_mask", "padding_mask", "loss_weight"),
    *("token_weights", "attention_masks", "attentionMask", "is_valid", "is_padding"),
)
update = jax.jit(lambda metrics, outputs: metrics.update(**outputs))


def two():
    return Collection({"loss": Mean().from_outputs(values="loss"), "accuracy": Accuracy()})


def outputs_of(rng, rows=16):
    return {
        "loss": draw(rng, (rows,)),
        "preds": rng.random(rows, np.float32),
        "target": rng.integers(0, 2, rows),
    }


class Peak(Metric):
    """Takes no weights; has an optional argument that is easily misspelled."""

    peak = MetricAccumulator(-np.inf, "max")

    def update(self, values, *, scaling=1.0):
        return self.replace(peak=self.peak.update(values * scaling))

    def compute(self):
        return self.peak.value


class Refuses(Metric):
    total = MetricAccumulator(0.0)

    def update(self, values, *, weights=None):
        raise ZeroDivisionError("not for this batch")

    def compute(self):
        return self.total.value


# Outputs that would be ignored.


@pytest.mark.parametrize("name", TAKEN_FOR_WEIGHTS)
def test_an_output_taken_for_weights_is_refused_wherever_it_is_given(rng, name):
    mesh = make_mesh("auto", {"data": 8})
    outputs = outputs_of(rng) | {name: rng.integers(0, 2, 16)}
    inner = Collection({"inner": two(), "more": Mean().from_outputs(values="loss")})
    multi: nnx.Metric = nnx.MultiMetric(a=StatefulMetric(Accuracy()), b=StatefulMetric(two()))
    for each in (
        two(),
        inner,
        per_device(two(), mesh, "data"),
        Collection({"spread": per_device(two(), mesh, "data")}),
        StatefulMetric(Accuracy()),
        StatefulMetric(inner),
        StatefulMetric(per_device(two(), mesh, "data")),
        multi,
    ):
        with pytest.raises(MetricInputError, match=f"output '{name}'.*pass it as weights="):
            each.update(**outputs)


def test_weights_given_or_routed_are_used(rng):
    outputs, kept = outputs_of(rng), rng.integers(0, 2, 16).astype(bool)
    right = (outputs["preds"] >= 0.5) == outputs["target"]
    outputs["loss"] = np.float32(right) + 1  # small integers: sums of them are exact
    expected = {
        "accuracy": np.float32(right[kept].sum() / kept.sum()) if kept.any() else np.nan,
        "loss": np.float32(outputs["loss"][kept].sum() / kept.sum()) if kept.any() else np.nan,
    }
    np.testing.assert_equal(two().update(**outputs, weights=kept).results(), expected)
    routed = Collection({name: each.from_outputs(weights="mask") for name, each in two().items()})
    np.testing.assert_equal(routed.update(**outputs, mask=kept).results(), expected)
    # One metric that names the output is enough: then it is an output as any other.
    some = two() | {"masked": Sum().from_outputs(values="mask")}
    assert some.update(**outputs, mask=kept).results()["masked"] == kept.sum()
    nested = Collection({"in": two(), "masked": Max().from_outputs(values="mask")})
    assert nested.update(**outputs, mask=kept).results()["masked"] == kept.max()
    # And if all say where their weights come from, none are missing.
    unweighted = {name: each.from_outputs(weights=None) for name, each in two().items()}
    all_rows = two().update(**outputs).results()
    assert Collection(unweighted).update(**outputs, mask=kept, weights=kept).results() == all_rows
    alone = StatefulMetric(Accuracy().from_outputs(weights=None))
    alone.update(**outputs, mask=kept)
    assert alone.results() == all_rows["accuracy"]


def test_other_outputs_are_ignored(rng):
    outputs = outputs_of(rng) | {"text": "text", "heights": 3, "mask": None, "logits": 1}
    outputs |= {"unmasked": 1, "validation": 2, "realm": 3, "weighting": 4}
    assert two().update(**outputs).results().keys() == {"loss", "accuracy"}


def test_a_name_that_a_metric_takes_is_no_slip(rng):
    preds, target = rng.random((4, 3), np.float32), rng.integers(0, 2, (4, 3))
    valid = rng.random((4, 3)) < 0.7
    ranked = Collection({"ndcg": NDCG(), "loss": Mean().from_outputs(values="preds")})
    alone = NDCG().update(preds, target, valid=valid).results()
    # `valid` is an argument of one of them, so it is not taken for weights of the others.
    seen = ranked.update(preds=preds, target=target, valid=valid).results()
    np.testing.assert_equal(seen["ndcg"], alone)


def test_a_task_refuses_what_is_taken_for_weights(rng):
    outputs = outputs_of(rng)
    tasks = MultiTask({"one": Accuracy(), "other": two()})
    for name in ("loss_mask", "valid"):
        with pytest.raises(MetricInputError, match=rf"\(other=.*'{name}'.*weights="):
            tasks.update(other=outputs | {name: outputs["target"]})


# Arguments of one metric, and of one within a wrapper.


class OwnRatio(Accuracy):
    """Has no `update` of its own."""


@pytest.mark.parametrize("name", TAKEN_FOR_WEIGHTS)
def test_one_metric_says_weights_too(rng, name):
    preds, target = (outputs_of(rng)[each] for each in ("preds", "target"))
    extra: dict[str, Any] = {name: target}
    for metric in (
        OwnRatio(),
        Sliced(OwnRatio(), 2),
        Bootstrap(OwnRatio(), 2),
        Interval(OwnRatio()),
        Window(OwnRatio(), 2),
        Decayed(OwnRatio(), 2),
        Transformed(OwnRatio()),
        Best(OwnRatio()),
        per_device(OwnRatio(), make_mesh("auto", {"data": 8}), "data"),
        StatefulMetric(OwnRatio()),
    ):
        slices = {"slices": target} if isinstance(metric, Sliced) else {}
        with pytest.raises(MetricTypeError, match=f"^OwnRatio.update: .*Pass {name} as weights="):
            metric.update(preds, target, **slices, **extra)
    with pytest.raises(MetricTypeError, match=f"^OwnRatio.update: .*Pass {name} as weights="):
        Compare(OwnRatio(), replicas=2).update(preds, preds, target, **extra)
    with pytest.raises(MetricTypeError, match=f"^BLEU.update: .*Pass {name} as weights="):
        Sliced(BLEU(), 2).update(["a"], ["a"], slices=[0], **extra)
    with pytest.raises(MetricTypeError, match=r"^Peak.update: .*, and no weights"):
        Peak().update(preds, **extra)


def test_arguments_that_do_not_fit_name_the_class_of_the_user(rng):
    preds, target = (outputs_of(rng)[each] for each in ("preds", "target"))
    with pytest.raises(MetricTypeError, match=r"^OwnRatio\.update: missing .*'target'; it takes: "):
        OwnRatio().update(preds)
    with pytest.raises(MetricTypeError, match=r"^OwnRatio.*too many.*: preds, target, weights="):
        OwnRatio().update(preds, target, target)
    with pytest.raises(MetricTypeError, match=r"^Mean\.update.*'wieghts'.*Did you mean weights="):
        Mean().update(preds, wieghts=preds)
    with pytest.raises(MetricTypeError, match=r"^Peak\.update.*Did you mean scaling="):
        jax.jit(lambda x: Peak().update(x, scalling=x))(preds)
    with pytest.raises(MetricTypeError, match=r"^TreeHealth\.update.*'tree'.*it takes: params"):
        TreeHealth(like={"w": preds}).update(tree={"w": preds})
    # A TypeError of the update itself stays as it is.
    with pytest.raises(TypeError, match="not for this batch"):
        Odd().update(preds)


class Odd(Peak):
    def update(self, values, *, scaling=1.0):
        raise TypeError("not for this batch")


@pytest.mark.parametrize("name", ["weigths", "wieghts", "Weights", "wights", "weights_"])
def test_a_misspelt_argument_is_refused(rng, name):
    outputs = outputs_of(rng) | {name: np.ones(16)}
    with pytest.raises(MetricInputError, match=f"{name!r}.*'accuracy' \\(Accuracy\\).*'weights'"):
        two().update(**outputs)
    # Not if the argument was given.
    two().update(**outputs, weights=np.ones(16))


def test_misspellings_of_other_arguments(rng):
    peak = Collection({"in": Collection({"peak": Peak()})})
    with pytest.raises(MetricInputError, match="'scalling', and 'in/peak' \\(Peak\\) takes"):
        peak.update(values=np.ones(3, np.float32), scalling=2.0)
    with pytest.raises(MetricInputError, match="no metric here takes weights: leave it out"):
        peak.update(values=np.ones(3, np.float32), mask=np.ones(3))
    with pytest.raises(MetricInputError, match=r"from_outputs\(preds='pred'\)"):
        two().update(loss=1.0, pred=np.ones(3), target=np.ones(3))


def test_leaving_an_argument_out():
    metric = Mean().from_outputs(values="loss", weights=None)
    assert metric.outputs == (("values", "loss"), ("weights", None))
    json.dumps(metric.state_dict()["config"])
    loaded = Collection({"loss": metric.reset()}).load_state_dict(
        Collection({"loss": metric}).state_dict()
    )
    assert loaded["loss"].outputs == metric.outputs
    with pytest.raises(MetricInputError, match="values=None"):
        Mean().from_outputs(values=None)
    with pytest.raises(MetricInputError, match=r"weights=3.*name of an output, or None"):
        Mean().from_outputs(weights=3)
    # With and without weights, two metrics do not share a statistic.
    assert (
        len(Collection({"a": Mean(), "b": Mean().from_outputs(weights=None)}).states_within()) == 2
    )


# Errors that name the member.


@pytest.mark.parametrize("spread", [False, True])
def test_the_mean_of_a_batch_beside_weights(rng, spread):
    outputs = outputs_of(rng) | {"loss": jnp.float32(3.0), "weights": np.arange(16) < 8}
    metrics = Collection({"in": two()})

    def placed(metrics):
        mesh = make_mesh("auto", {"data": 8})
        return per_device(metrics, mesh, "data") if spread else metrics

    with pytest.raises(MetricInputError) as caught:
        placed(metrics).update(**outputs)
    assert str(caught.value).startswith("metric 'in/loss': ")
    assert ".from_outputs(weights=None)" in str(caught.value)
    without = Mean().from_outputs(values="loss", weights=None)
    metrics = Collection({"in": two().replace(loss=without)})
    got = placed(metrics).update(**outputs).results()
    right = (outputs["preds"] >= 0.5) == outputs["target"]
    assert got == {"in/loss": 3.0, "in/accuracy": right[:8].mean()}


def test_an_error_in_an_update_names_the_member(rng):
    outputs = outputs_of(rng)
    metrics = Collection({"outer": Collection({"inner": two()})})
    wrong = outputs | {"target": np.zeros((16, 2), np.int32)}
    for call in (metrics.update, lambda **outputs: update(metrics, outputs)):
        with pytest.raises(MetricInputError, match=r"^metric 'outer/inner/accuracy': preds of"):
            call(**wrong)
    with pytest.raises(MetricTypeError, match=r"^metric 'outer/inner/loss': values"):
        metrics.update(**outputs | {"loss": "text"})
    with pytest.raises(ZeroDivisionError) as caught:
        Collection({"refuses": Refuses()}).update(values=1.0)
    assert "'refuses'" in caught.value.__notes__[0]


def test_outputs_by_position():
    with pytest.raises(MetricInputError, match=r"update\(preds=..., target=..., loss=...\)"):
        two().update(np.ones(3), np.ones(3))
    with pytest.raises(MetricInputError, match="got 1 by position"):
        StatefulMetric({"in": two()}).update(np.ones(3))


# Names, and unions.


def test_a_collection_is_a_mapping():
    metrics = two()
    assert metrics.keys() == ["accuracy", "loss"]
    assert dict(zip(metrics.keys(), metrics.values(), strict=True)).keys() == dict(metrics).keys()
    assert isinstance(metrics.values()[0], Accuracy)


def test_the_union_of_collections(rng):
    x = rng.integers(0, 9, 8)
    a = Collection({"sum": Sum(), "top": Max()}).update(values=x)
    b = Collection({"top": Sum(), "mean": Mean()}).update(values=x + 1)
    assert (a | b).results() == {"mean": (x + 1).mean(), "sum": x.sum(), "top": (x + 1).sum()}
    assert (b | a)["top"].results() == x.max()
    assert ({"top": Sum(), "new": Sum()} | a).results() == {
        "new": 0,
        "sum": x.sum(),
        "top": x.max(),
    }
    assert (a | {"new": Sum()}).keys() == ["new", "sum", "top"]
    wrong: Any
    for wrong in (Mean(), [Mean()], None):
        with pytest.raises(TypeError, match="unsupported operand"):
            _ = a | wrong
    with pytest.raises(MetricTypeError, match="'x' is str"):
        _ = a | cast(Any, {"x": "mean"})


def test_names_with_a_slash(rng):
    x = rng.integers(0, 9, 8)
    metrics = Collection({"train/top": Max(), "train/sum": Sum(), "in": Collection({"a/b": Max()})})
    metrics = metrics.replace(**{"train/top": Mean()}).update(values=x)
    assert metrics["train/sum"].results() == x.sum()
    expected = {"in/a/b": x.max(), "train/sum": x.sum(), "train/top": np.float32(x.mean())}
    assert metrics.results() == expected
    assert metrics.reset().load_state_dict(metrics.state_dict()).results() == expected


def test_results_of_the_same_name_are_refused():
    class Two(Metric):
        total = MetricAccumulator(0.0)

        def update(self, values):
            return self.replace(total=self.total.update(values))

        def compute(self):
            return {"left": self.total.value, "right": self.total.value}

    with pytest.raises(MetricInputError, match="two results have the name 'a/left'"):
        Collection({"a": Two(), "a/left": Mean()}).compute()
    for names in ({"a": two(), "a/loss": Mean()}, {"a/in": two(), "a": Collection({"in": two()})}):
        with pytest.raises(MetricInputError, match="two results have the name 'a/"):
            Collection(names)


# In the shell, and with a copy a device.


def test_a_sync_outside_shard_map_speaks_of_metrics():
    for metric in (Accuracy(), two(), Accuracy(num_classes=3)):
        with pytest.raises(AxisNotBoundError, match=r"sync got .*a metric that is updated with"):
            metric.sync("data")


def test_a_dict_in_the_shell(rng):
    outputs = outputs_of(rng)
    metric = StatefulMetric(dict(two().items()))
    metric.update(**outputs)
    assert isinstance(metric.metric, Collection)
    assert metric.results() == two().update(**outputs).results()
    multi: Any = nnx.MultiMetric(a=StatefulMetric({"loss": Mean().from_outputs(values="loss")}))
    multi.update(**outputs)
    assert multi.a.results() == {"loss": metric.results()["loss"]}
    with pytest.raises(MetricTypeError, match="'a' is int"):
        StatefulMetric({"a": 3})


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_members_with_a_copy_a_device(rng, kind):
    mesh = make_mesh(kind, {"data": 8})
    metrics = Collection(
        {"hits": Accuracy(num_classes=3), "table": ConfusionMatrix(num_classes=3), "x": Mean()}
    )
    outputs = {"preds": rng.integers(0, 3, 16), "target": rng.integers(0, 3, 16)}
    outputs["values"] = rng.integers(0, 9, 16)
    spread = per_device(metrics, mesh, "data").update(**outputs)
    plain = metrics.update(**outputs)
    assert spread.keys() == plain.keys() == list(spread)
    assert ("x" in spread, "y" in spread) == (True, False)
    results = spread.results()
    for name, member in spread.items():
        assert isinstance(member, type(spread))
        np.testing.assert_array_equal(member.results(), results[name])
        np.testing.assert_array_equal(member.results(), plain[name].results())
    again = spread["x"].update(outputs["values"])
    assert again.results() == plain["x"].results()
    assert len(spread.values()) == 3
    with pytest.raises(UnknownMetricError, match="no metric 'y'; it has: 'hits', 'table', 'x'"):
        spread["y"]
    with pytest.raises(MetricTypeError, match=r"per_device\(Mean\) is not a collection"):
        spread["x"].keys()
    assert spread["x"], "it is true, as any metric"


def test_fields_of_copies_are_replaced():
    mesh = make_mesh("auto", {"data": 8})
    spread = per_device(Mean(), mesh, "data").update(np.float32([1, 3, np.nan, 2]))
    with warnings.catch_warnings(action="ignore"):
        assert spread.replace(on_invalid="exclude").compute() == 2.0
        assert np.isnan(spread.replace(on_invalid="propagate").compute())
    with pytest.raises(MetricInputError, match="replace the members of a collection first"):
        per_device(two(), mesh, "data").replace(loss=Max())


def test_one_time_and_one_step_for_all_rows(rng):
    mesh = make_mesh("auto", {"data": 8})
    tokens = rng.integers(0, 100, 19)
    spread = per_device(Rate(), mesh, "data")
    assert spread.update(300, elapsed=0.5).update(300, elapsed=1.5).results() == 400.0
    got = spread.update(tokens, elapsed=0.5).update(tokens, 2.0).results()
    assert got == tokens.sum()  # 2 * sum / 2 s
    values = rng.integers(0, 100, 16)
    last = per_device(Collection({"x": LastValue()}), mesh, "data")
    last = last.update(values=values, step=7).update(values=values + 100, step=3)
    assert last.results() == {"x": values.max()}
    with pytest.raises(MetricInputError, match="share one leading axis"):
        spread.update(300, elapsed=np.ones(8))
