"""Metrics of strings in wrappers, on devices, in collectors; and what they refuse."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax import Bootstrap, Collection, Compare, Sliced, Window, metrics
from datarax.metrics.language.text_metric import TextMetric
from datarax.training import StatefulMetric
from tests.helpers import bits, make_mesh
from tests.metrics.language.texts import edited, text, with_references


def systems(rng, size):
    target = [text(rng, least=3) for _ in range(size)]
    return [edited(rng, x) for x in target], [edited(rng, x) for x in target], target


def test_slices_intervals_and_comparisons(rng):
    a, b, target = systems(rng, 60)
    ids, index = rng.integers(0, 3, 60).astype(np.int32), rng.permutation(60).astype(np.int32)
    both = Collection({"bleu": metrics.BLEU(), "wer": metrics.WER()})

    sliced = Sliced(both, 3, by="language").update(preds=a, target=target, language=ids).results()
    for language in range(3):
        rows = np.flatnonzero(ids == language)
        want = both.update(preds=[a[i] for i in rows], target=[target[i] for i in rows]).results()
        for name, value in want.items():
            np.testing.assert_allclose(sliced[str(language)][name], value, rtol=1e-5)

    whole = Bootstrap(metrics.BLEU(), 50).update(a, target, index=index)
    parts = Bootstrap(metrics.BLEU(), 50)
    for rows in np.split(rng.permutation(60), [7, 30]):
        given = [a[i] for i in rows], [target[i] for i in rows]
        parts = parts.update(*given, index=index[rows])
    assert bits(parts.compute()) == bits(whole.compute())
    results = whole.results()
    assert results["lower"] < results["value"] < results["upper"]
    # One replica by hand: the rows, each as often as it is drawn.
    counts = np.asarray(jax.vmap(lambda one: one.sum(-1).high)(whole.stack.states))
    assert counts.mean() == pytest.approx(60, abs=8)

    compared = Compare(metrics.BLEU(), replicas=50).update(a, b, target, index=index).results()
    assert compared["a"] == whole.results()["value"]
    np.testing.assert_allclose(compared["b"], metrics.BLEU().update(b, target).results(), rtol=1e-6)


def test_together_with_arrays_and_over_updates(rng):
    preds, _, target = systems(rng, 10)
    losses = rng.normal(size=10).astype(np.float32)
    members = {"loss": metrics.Mean().from_outputs(values="loss"), "wer": metrics.WER()}
    results = Collection(members).update(loss=losses, preds=preds, target=target).results()
    np.testing.assert_allclose(results["loss"], losses.mean(), rtol=1e-5)
    assert results["wer"] == metrics.WER().update(preds, target).results()
    window = Window(metrics.WER(), 2)
    for part in (slice(0, 4), slice(4, 7), slice(7, 10)):
        window = window.update(preds[part], target[part])
    want = metrics.WER().update(preds[4:], target[4:]).results()
    np.testing.assert_allclose(window.results(), want, rtol=1e-6)


@pytest.mark.parametrize("axes", ["auto", "explicit"])
def test_on_devices(axes, rng):
    preds, _, target = systems(rng, 11)  # 11 is not divisible by 8
    both = Collection({"bleu": metrics.BLEU(), "f1": metrics.TokenF1()})
    weights = rng.integers(0, 3, 11).astype(np.float32)
    batch = {"preds": preds, "target": target, "weights": weights}
    apart = datarax.per_device(both, make_mesh(axes, {"d": 8}), "d").update(**batch)
    want = both.update(**batch).results()
    for name, value in jax.block_until_ready(apart).results().items():
        np.testing.assert_allclose(value, want[name], rtol=1e-6)
    repeated = [i for i, w in enumerate(weights) for _ in range(int(w))]
    again = both.update(preds=[preds[i] for i in repeated], target=[target[i] for i in repeated])
    for name, value in again.results().items():
        np.testing.assert_allclose(value, want[name], rtol=1e-6)


def test_what_loops_hold(rng):
    preds, _, target = systems(rng, 12)
    want = metrics.BLEU().update(preds, target)
    first = metrics.BLEU().update(preds[:5], target[:5])
    merged = first.merge(metrics.BLEU().update(preds[5:], target[5:]))
    np.testing.assert_allclose(merged.results(), want.results(), rtol=1e-6)
    restored = metrics.BLEU().load_state_dict(want.state_dict())
    assert bits(restored.compute()) == bits(want.compute())
    stateful = StatefulMetric(metrics.BLEU())
    stateful.update(preds, target)
    assert stateful.results() == want.results()
    with datarax.AsyncMetricCollector(metrics.BLEU()) as collector:
        metric = collector.schedule_collection(want, step=3)
        assert collector.collect_results() == want.results()
    assert np.isnan(metric.results())


def test_texts_of_weight_zero_and_weights_that_cannot_be_used():
    preds, target = ["a b", "c d"], ["a b", "x y"]
    mask = np.array([True, False])
    assert metrics.WER().update(preds, target, weights=mask).results() == 0
    assert metrics.WER().update(["a b", None], ["a b", 7], weights=mask).results() == 0
    assert metrics.DistinctN(1).update(["a b", None], weights=mask).results() == 1
    assert metrics.WER().update(preds, target, weights=2.0).results() == 0.5
    metric = metrics.WER().update(preds, target, weights=np.array([1, np.nan], np.float32))
    with pytest.warns(datarax.InvalidValuesWarning, match="1 "):
        assert np.isnan(metric.results())
    # Within a traced function, strings that are known there are counted while it is traced.
    value = jax.jit(lambda w: metrics.WER().update(preds, target, weights=w).compute())
    assert value(jnp.array([1.0, 3.0])) == 0.75


WRONG = [
    (("a cat", ["a cat"]), "preds is a string; expected a list of strings: ['a cat']"),
    ((["a"], "a"), "target is str; expected a list, one entry for each text"),
    ((["a", "b"], ["a"]), "2 preds and 1 targets"),
    ((["a", None], ["a", "b"]), "preds[1] is NoneType; expected a string"),
    (([b"a"], ["a"]), "preds[0] is bytes; expected a string"),
    ((["a"], [["a", 3]]), "target[0][1] is int; expected a string"),
    ((["a"], [[]]), "target[0] is an empty list; expected at least one reference"),
    (([1, 2], ["a", "b"]), "preds[0] is int; expected a string"),
    ((np.ones(2), ["a", "b"]), "preds[0] is float; expected a string"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[message for _, message in WRONG])
def test_misuse(given, message):
    for metric in (metrics.BLEU(), Sliced(metrics.BLEU(), 2)):
        extra = {"slices": np.zeros(2, np.int32)} if isinstance(metric, Sliced) else {}
        with pytest.raises(datarax.DataraxError, match=re.escape(message)):
            metric.update(*given, **extra)


# SelfBLEU has no references.
SEVERAL = [
    name
    for name, cls in vars(metrics).items()
    if isinstance(cls, type) and issubclass(cls, TextMetric) and cls.several and name != "SelfBLEU"
]


@pytest.mark.parametrize("name", SEVERAL)
def test_references_that_can_be_read_in_two_ways(name, rng):
    metric = getattr(metrics, name)()
    preds, target = with_references(rng, 3)
    lists = [list(each) for each in target]
    said = pytest.warns(
        datarax.ReferencesWarning, match=rf"^{name}: 3 preds .*target\[0\] is taken"
    )
    # They are read in the documented way, whatever their number.
    with said:
        seen = metric.update(preds, lists)
    assert seen.results() == metric.update(preds, target).results()
    # What the warning says turns the other way into this one, and does not warn again.
    transposed = [list(each) for each in zip(*target, strict=True)]
    with said as caught:
        metric.update(preds, transposed)
    (warning,) = caught
    assert "list(zip(*target))" in str(warning.message)
    turned = metric.update(preds, list(zip(*transposed, strict=True)))
    assert turned.results() == seen.results()
    # Rows of weight zero, wrappers and collections do not hide it.
    with said:
        metric.update(preds, lists, weights=np.array([1, 0, 1]))
    with said:
        Sliced(metric, 2).update(preds, lists, slices=np.array([0, 1, 0]))
    with pytest.warns(datarax.ReferencesWarning, match=f"^metric 'a': {name}: 3 preds"):
        datarax.Collection({"a": metric}).update(preds=preds, target=lists)
    # Elsewhere the other form is an error, which says the same.
    preds, target = with_references(rng, 4)
    with pytest.raises(datarax.MetricInputError, match=r"4 preds and 3 .*list\(zip\(\*target\)\)"):
        metric.update(preds, [list(each) for each in zip(*target, strict=True)])
    # One reading, no warning: one text, and texts of different numbers of references.
    metric.update(preds[:1], [[target[0][0]]])
    metric.update(preds[:2], [list(target[0][:2]), [target[1][0]]])


def test_token_ids_in_place_of_texts(rng):
    ids = rng.integers(0, 9, (3, 5))
    for given in (ids, jnp.asarray(ids), ids.tolist(), ids[0], [1, 2, 3], list(ids)):
        for target in (["a"] * 3, ids):
            with pytest.raises(datarax.MetricTypeError, match="Decode token ids to strings first"):
                metrics.BLEU().update(given, target)
    with pytest.raises(datarax.MetricTypeError, match=r"target\[0\].*Decode token ids"):
        metrics.WER().update(["a"], [5])


@pytest.mark.parametrize("name", ["BLEU", "SelfBLEU"])
def test_an_unknown_tokenizer_is_refused_when_the_metric_is_made(name):
    with pytest.raises(datarax.MetricInputError, match=rf"^{name}: tokenize='bpe'.*'13a'.*'char'"):
        getattr(metrics, name)(tokenize="bpe")


def test_more_misuse():
    with pytest.raises(datarax.MetricTypeError, match=r"WER: .* one reference for each text"):
        metrics.WER().update(["a"], [["a", "b"]])
    with pytest.raises(datarax.MetricInputError, match=r"weights of shape \(3,\)"):
        metrics.BLEU().update(["a", "b"], ["a", "b"], weights=np.ones(3))
    with pytest.raises(datarax.MetricInputError, match="got one text"):
        metrics.SelfBLEU().update(["a"])
    with pytest.raises(datarax.MetricInputError, match="rouge_keys has 'rouge0'"):
        metrics.ROUGE(rouge_keys=("rouge0",))
    with pytest.raises(datarax.MetricInputError, match="scores='fmeasure'"):
        metrics.ROUGE(scores="fmeasure")
    with pytest.raises(datarax.MetricInputError, match="stemmer=True and tokenizer= are given"):
        metrics.ROUGE(stemmer=True, tokenizer=str.split)
    with pytest.raises(datarax.MetricTypeError, match="tokenizer=str; expected a function"):
        metrics.ROUGE(tokenizer="13a")
    with pytest.raises(datarax.MetricTypeError, match="ROUGE: tokenizer gives str of 'a b'"):
        metrics.ROUGE(tokenizer=str.lower).update(["a b"], ["a"])
    with pytest.raises(datarax.MetricInputError, match="rho=-1"):
        metrics.ExtendedEditDistance(rho=-1)
    with pytest.raises(datarax.MetricInputError, match="language='de'"):
        metrics.ExtendedEditDistance(language="de")
    with pytest.raises(TypeError):
        metrics.BLEU().update(["a"])
    with pytest.raises(datarax.MetricInputError, match="max_order"):
        metrics.BLEU(max_order=0)
    with pytest.raises(datarax.MetricInputError, match="beta"):
        metrics.CHRF(beta=0)
