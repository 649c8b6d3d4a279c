"""Metrics of strings in wrappers, on devices, in collectors; and what they refuse."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax import Bootstrap, Collection, Compare, Sliced, Window, metrics
from datarax.metrics.call import Call
from datarax.testing import check_metric
from datarax.training import StatefulMetric
from datarax.wrappers.wrapper import Wrapper
from tests.helpers import bits, make_mesh
from tests.metrics.language.texts import edited, pairs, text

SCORES = {
    "bleu": metrics.BLEU(),
    "chrf": metrics.CHRF(char_order=2, word_order=1),
    "f1": metrics.TokenF1(),
    "rouge": metrics.ROUGE(rouge_keys=("rouge1", "rougeL")),
    "wer": metrics.WER(),
    "wil": metrics.WIL(),
}
SELF = {"distinct": metrics.DistinctN(1), "self_bleu": metrics.SelfBLEU()}


class OfCounts(Wrapper):
    """A metric of strings that is given what it counts of them."""

    def calls(self, args, kwargs):
        takes = (*(name for name in kwargs if name != "weights"), "weights")
        return Call((), dict(kwargs), "OfCounts", takes, ())

    def routes(self):
        names = {"self_bleu": ("numbers",), "distinct": ("hashes", "number")}
        own = names["distinct" if isinstance(self.metric, metrics.DistinctN) else "self_bleu"]
        route = self.metric.routes()[0]
        return [
            *(route._replace(argument=name, output=name) for name in own),
            *(each for each in self.metric.routes() if each.argument == "weights"),
        ]


@pytest.mark.parametrize("name", [*SCORES, *SELF])
def test_laws_of_the_counts(name, rng):
    metric = (SCORES | SELF)[name]
    batches = []
    for _ in range(3):
        preds, target = pairs(rng, 8, least=4)
        args = (preds,) if name in SELF else (preds, target)
        batches.append(metric.calls(args, {}).kwargs)
    longest = {key: max(x[key].shape[1:] for x in batches) for key in batches[0]}
    for batch in batches:  # of n-grams, as many places in each batch
        for key, shape in longest.items():
            extra = [(0, n - m) for n, m in zip(shape, batch[key].shape[1:], strict=True)]
            batch[key] = np.pad(batch[key], [(0, 0), *extra])
    check_metric(OfCounts(metric), batches, ulps=8, state_atol=1e-5)


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


def test_more_misuse():
    with pytest.raises(datarax.MetricTypeError, match="WER takes one reference for each text"):
        metrics.WER().update(["a"], [["a", "b"]])
    with pytest.raises(datarax.MetricInputError, match=r"weights of shape \(3,\)"):
        metrics.BLEU().update(["a", "b"], ["a", "b"], weights=np.ones(3))
    with pytest.raises(datarax.MetricInputError, match="got one text"):
        metrics.SelfBLEU().update(["a"])
    with pytest.raises(datarax.MetricInputError, match="rouge_keys has 'rouge0'"):
        metrics.ROUGE(rouge_keys=("rouge0",))
    with pytest.raises(TypeError):
        metrics.BLEU().update(["a"])
    with pytest.raises(datarax.MetricInputError, match="max_order"):
        metrics.BLEU(max_order=0)
    with pytest.raises(datarax.MetricInputError, match="beta"):
        metrics.CHRF(beta=0)
