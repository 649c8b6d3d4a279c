"""What `print` and a notebook show of a collection, and collections that take no other outputs."""

import xml.etree.ElementTree as ET

import jax
import numpy as np
import pytest

import datarax
from datarax import Collection, MetricInputError
from datarax.metrics import F1, Accuracy, Mean, Sum


def several(**options):
    return Collection(
        {
            "loss": Mean().from_outputs(values="loss"),
            "accuracy": Accuracy(num_classes=3),
            "by class": F1(num_classes=3, average=None),
            "rate": Sum(per="elapsed").from_outputs(values="loss"),
            "inner": Collection({"a<b": Mean().from_outputs(values="loss", weights=None)}),
        },
        **options,
    )


def batch():
    labels = {"preds": np.array([0, 1, 2]), "target": np.array([0, 1, 1])}
    return {"loss": np.array([0.5, np.nan, 2.5]), **labels}


@pytest.mark.filterwarnings("error")
def test_print_shows_values_where_there_is_data():
    empty = several(prefix="eval/")
    assert str(empty) == repr(empty)
    assert empty._repr_html_() is None
    seen = empty.update(**batch())
    assert str(seen).splitlines() == [
        "name                       value  weight  invalid",
        "eval/accuracy             0.6667       3",
        "eval/by class    [1. 0.6667 0. ]",
        "eval/inner/a<b               NaN       2        1",
        "eval/loss                    NaN       2        1",
        "eval/rate       MetricInputError",
    ]
    assert repr(seen) == repr(empty)
    assert str(seen.reset()) == repr(empty)


def test_a_notebook_shows_the_same_cells():
    seen = several().update(**batch())
    table = ET.fromstring(seen._repr_html_())
    cells = [[cell.text or "" for cell in row] for row in table.iter("tr")]
    assert [row[0] for row in cells] == [line[:10].strip() for line in str(seen).splitlines()]
    assert cells[0] == ["name", "value", "weight", "invalid"]
    assert ["inner/a<b", "NaN", "2", "1"] in cells


def test_what_cannot_be_read_is_shown_as_it_was_made():
    seen = Collection({"a": Mean()}).update(values=np.ones(3))
    shown = []

    @jax.jit
    def inside(metrics):
        shown.append(str(metrics))
        return metrics

    inside(seen)
    gone = jax.device_put(seen)
    for leaf in jax.tree.leaves(gone):
        leaf.delete()
    assert [*shown, str(gone)] == ["Collection({'a': Mean()})"] * 2


def test_an_error_by_the_policy_is_shown_by_its_name():
    strict = Collection({"a": Mean(on_invalid="raise"), "b": Mean(on_invalid="exclude")})
    seen = jax.jit(lambda x: strict.update(values=x))(np.array([1.0, np.nan], np.float32))
    assert [line.split() for line in str(seen).splitlines()[1:]] == [
        ["a", "InvalidValuesError"],
        ["b", "1", "1", "1"],
    ]


@pytest.mark.parametrize("inside_jit", [False, True])
def test_a_strict_collection_refuses_outputs_that_no_metric_takes(inside_jit):
    metrics = several(strict=True)
    update = lambda metrics, batch: metrics.update(**batch)  # noqa: E731
    update = jax.jit(update) if inside_jit else update
    known = batch()
    update(metrics, known)
    with pytest.raises(MetricInputError, match=r"'los', 'z', and strict=True; .*'loss', 'preds'"):
        update(metrics, known | {"los": np.ones(3), "z": np.ones(3)})
    update(several(), known | {"z": np.ones(3)})


def test_it_stays_strict_and_its_states_are_those_of_others():
    strict = Collection({"a": Mean()}, strict=True)
    for made in (
        strict.reset(),
        strict | {"b": Mean()},
        strict.replace(a=Mean()),
        strict.from_outputs(values="loss"),
        jax.device_put(strict),
    ):
        assert made.strict
    other = Collection({"a": Mean()}).update(values=3.0)
    assert strict.update(values=1.0).merge(other).results() == {"a": 2.0}
    assert strict.load_state_dict(other.state_dict()).strict
    with pytest.raises(datarax.MetricTypeError, match="strict is int; expected True or False"):
        Collection({"a": Mean()}, strict=1)


def test_a_rule_that_matches_nothing_is_refused_where_it_is_strict():
    rules = {"*loss": Mean(), "train/loss": Sum(), "zz": Sum()}
    step = {"train/loss": 1.0}
    assert Collection.from_rules(rules, step).update(**step, other=1.0).results() == step
    with pytest.raises(MetricInputError, match="no name takes the rule 'train/loss', 'zz'"):
        Collection.from_rules(rules, step, strict=True)
    metrics = Collection.from_rules({"*loss": Mean()}, step, strict=True)
    with pytest.raises(MetricInputError, match="'other'"):
        metrics.update(**step, other=1.0)


def test_errors_name_the_way_out():
    with pytest.raises(MetricInputError, match=r"'a' is a dict of 'b', 'c'; .* Flatten it"):
        Collection.from_rules({"*": Mean()}, {"a": {"b": 1.0, "c": 2.0}, "d": 1.0})
    with pytest.raises(MetricInputError, match="in a MultiTask"):
        several().update(loss=np.ones(2))
