"""Metrics of strings, against the programs that the field takes for their definition."""

import sys

import jiwer
import numpy as np
import pytest
import sacrebleu
from rouge_score import rouge_scorer

import datarax
from datarax import metrics
from datarax.testing import assert_within_ulps, subject
from tests.metrics.language.texts import batches, pairs, with_references
from tests.registry import BATCH, BUNDLES, GROUPS, arrays_of
from tests.registry.texts import WORDS


def folded(metric, rng, preds, target):
    """The value over ragged batches, some of them empty."""
    # Tuples, as lists of as many references as there are texts may be read in two ways.
    target = [tuple(each) if isinstance(each, list) else each for each in target]
    for part in batches(rng, len(preds), 3):
        metric = metric.update(preds[part], target[part])
    return metric.results()


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"lowercase": True, "tokenize": "intl", "smooth_method": "floor"},
        {"smooth_method": "add-k", "smooth_value": 0.5, "max_order": 5},
        {"smooth_method": "none", "tokenize": "char"},
        {"effective_order": True, "tokenize": "none", "max_order": 6},
        {"smooth_method": "floor", "smooth_value": 0.3, "max_order": 2},
    ],
    ids=str,
)
def test_bleu(config, rng):
    names = {"max_order": "max_ngram_order"}
    scorer = sacrebleu.BLEU(**{names.get(name, name): x for name, x in config.items()})
    for size in (1, 2, 30):
        preds, target = with_references(rng, size)
        want = scorer.corpus_score(preds, list(zip(*target, strict=True))).score
        got = folded(metrics.BLEU(**config), rng, preds, target)
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


def test_bleu_of_one_reference_each_is_that_of_the_function(rng):
    preds, target = pairs(rng, 40)
    want = sacrebleu.corpus_bleu(preds, [target]).score
    np.testing.assert_allclose(folded(metrics.BLEU(), rng, preds, target), want, rtol=2e-6)


def test_bleu_of_different_numbers_of_references(rng):
    preds, target = with_references(rng, 12, 4)
    target = [each[: rng.integers(1, 5)] for each in target]
    # sacrebleu takes None for a reference that is missing.
    columns = [[each[i] if i < len(each) else None for each in target] for i in range(4)]
    want = sacrebleu.corpus_bleu(preds, columns).score
    np.testing.assert_allclose(folded(metrics.BLEU(), rng, preds, target), want, rtol=2e-6)


def test_long_texts_of_many_words(rng):
    # The n-grams do not fit into 64 bits as they are: they are numbered anew.
    words = [f"w{i}" for i in range(3000)]
    preds = [" ".join(rng.choice(words, 400)) for _ in range(20)]
    target = [each[:1500] + " " + " ".join(rng.choice(words, 100)) for each in preds]
    scorer = sacrebleu.BLEU(max_ngram_order=8)
    want = scorer.corpus_score(preds, [target]).score
    np.testing.assert_allclose(
        metrics.BLEU(max_order=8).update(preds, target).results(), want, rtol=2e-6
    )


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"word_order": 2},
        {"word_order": 1, "beta": 1, "lowercase": True, "whitespace": True},
        {"eps_smoothing": True, "char_order": 3},
    ],
    ids=str,
)
def test_chrf(config, rng):
    scorer = sacrebleu.CHRF(**config)
    for size in (1, 2, 30):
        preds, target = with_references(rng, size)
        want = scorer.corpus_score(preds, list(zip(*target, strict=True))).score
        got = folded(metrics.CHRF(**config), rng, preds, target)
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("config", [{}, {"normalized": True, "case_sensitive": True}], ids=str)
def test_ter(config, rng):
    preds, target = with_references(rng, 20, 2)
    want = sacrebleu.TER(**config).corpus_score(preds, list(zip(*target, strict=True))).score
    got = folded(metrics.TER(**config), rng, preds, target)
    np.testing.assert_allclose(got, want, rtol=2e-6)


def test_rouge(rng):
    keys = ("rouge1", "rouge2", "rouge4", "rougeL", "rougeLsum")
    scorer = rouge_scorer.RougeScorer(keys)

    def lines(source):
        words = source.split()
        return "".join(word + rng.choice([" ", "\n"], p=[0.7, 0.3]) for word in words)

    preds, target = with_references(rng, 60)
    preds, target = list(map(lines, preds)), [list(map(lines, each)) for each in target]
    each = [scorer.score_multi(a, b) for a, b in zip(target, preds, strict=True)]
    got = folded(metrics.ROUGE(rouge_keys=keys), rng, preds, target)
    assert got.keys() == set(keys)
    for key in keys:
        want = np.mean([one[key].fmeasure for one in each])
        np.testing.assert_allclose(got[key], want, rtol=1e-6, err_msg=key)


@pytest.mark.parametrize("config", [{}, {"stemmer": True}, {"tokenizer": str.split}], ids=str)
def test_rouge_with_precision_and_recall(config, rng):
    class Tokenizer:
        def tokenize(self, text):
            return text.split()

    options = {"use_stemmer": "stemmer" in config}
    if "tokenizer" in config:
        options["tokenizer"] = Tokenizer()
    scorer = rouge_scorer.RougeScorer(("rouge1", "rougeL", "rougeLsum"), **options)
    endings = np.array(["", "s", "ing", "ational", "ness"])
    preds, target = (
        [" ".join(word + rng.choice(endings) for word in text.split()) for text in texts]
        for texts in pairs(rng, 40)
    )
    each = [scorer.score(b, a) for a, b in zip(preds, target, strict=True)]
    metric = metrics.ROUGE(
        rouge_keys=("rouge1", "rougeL", "rougeLsum"), scores=("precision", "recall", "f"), **config
    )
    got = folded(metric, rng, preds, target)
    assert len(got) == 9
    for key in scorer.rouge_types:
        for name, at in (("_precision", "precision"), ("_recall", "recall"), ("", "fmeasure")):
            want = np.mean([getattr(one[key], at) for one in each])
            np.testing.assert_allclose(got[key + name], want, rtol=1e-6, err_msg=key + name)


def test_texts_without_words():
    nepali = ["नमस्ते संसार"], ["नमस्ते"]
    with pytest.warns(datarax.NoWordsWarning, match="2 of 2 texts have letters and no words"):
        assert metrics.ROUGE().update(*nepali).results()["rouge1"] == 0
    # What has no letters has no words in any language.
    assert metrics.ROUGE().update(["?!", "", "a"], ["...", "1", "a"]).results()["rouge1"] == 1 / 3
    got = metrics.ROUGE(rouge_keys="rouge1", tokenizer=str.split).update(*nepali).results()
    np.testing.assert_allclose(got["rouge1"], 2 / 3)


def test_rouge_needs_a_key_and_a_score():
    for name in ("rouge_keys", "scores"):
        with pytest.raises(
            datarax.MetricInputError, match=f"{name} is empty; expected at least one"
        ):
            metrics.ROUGE(**{name: ()})


def test_extended_edit_distance():
    """The numbers that torchmetrics 1.9 has."""
    preds = [
        "this is the prediction",
        "here is an other sample",
        "It costs 3 . 5, Mr. X!",
        "",
        "\uff21\uff22",
    ]
    target = ["this is the reference", "here is another one", "It cost 3.5, Mr. Y!", "a", "AB"]
    each = [
        [0.383458646617, 0.232067510549, 0.145098039216, 0.444444444444, 0.636363636364],
        [0.414634146341, 0.253456221198, 0.163461538462, 1, 0.130434782609],
    ]
    for language, want in zip(("en", "ja"), each, strict=True):
        metric = metrics.ExtendedEditDistance(language=language)
        got = [metric.update([p], [t]).results() for p, t in zip(preds, target, strict=True)]
        np.testing.assert_allclose(got, want, rtol=1e-6)
        np.testing.assert_allclose(metric.update(preds, target).results(), np.mean(want), rtol=1e-6)
    two = metrics.ExtendedEditDistance().update(preds[:1], [[target[1], target[0]]]).results()
    np.testing.assert_allclose(two, each[0][0], rtol=1e-6)
    costs = {"alpha": 1.5, "rho": 0.1, "deletion": 0.35, "insertion": 0.8}
    got = metrics.ExtendedEditDistance(**costs).update(preds[1:2], target[1:2]).results()
    np.testing.assert_allclose(got, 0.203619909502, rtol=1e-6)
    free = metrics.ExtendedEditDistance(language="ja", rho=0)
    assert free.update([""], [""]).results() == 0


def test_normalized_transcripts(rng):
    preds, target = pairs(rng, 30, least=1)
    target = [x.upper() for x in target]
    texts = [x.lower() for x in preds], [x.lower() for x in target]
    for name in ("WER", "CER", "MER", "WIL", "WIP", "WordErrors"):
        cls = getattr(metrics, name)
        want = cls().update(*texts).results()
        assert cls(normalize=str.lower).update(preds, target).results() == want
        assert cls().update(preds, target).results() != want
        with pytest.raises(datarax.MetricTypeError, match=f"{name}: normalize gives list of 'a b'"):
            cls(normalize=str.split).update(["a b"], ["a"])
        with pytest.raises(datarax.MetricTypeError, match="normalize=str; expected a function"):
            cls(normalize="lower")


def test_answers_as_they_are():
    exact = metrics.TextExactMatch(normalize=False).update(["A", "b"], ["a", "b"])
    assert exact.results() == 0.5


@pytest.mark.parametrize(
    ("text", "other"),
    [
        *[("-5", "5"), ("3.5", "35"), (".5", "5"), ("$5", "5"), ("5%", "5"), ("C++", "C")],
        *[("a", "the"), ("Vitamin A", "vitamin"), ("?!", "..."), ("x-y", "xy"), ("", "a")],
    ],
)
def test_what_was_written_differs(text, other):
    assert metrics.TextExactMatch().update([text, other], [other, text]).results() == 0.0


def test_case_articles_and_what_is_outside_do_not_count():
    preds = ["The cat!", " (New  York) ", "“An \u2018Egg\u2019.”", "STRASSE", "5.", "$.5;"]
    target = ["cat", "new york", "egg", "straße", "5", "$.5"]
    assert metrics.TextExactMatch().update(preds, target).results() == 1.0
    for text, other in (("-5", "5"), ("3.5", "35")):
        for squad in (metrics.TextExactMatch(normalize="squad"), metrics.TokenF1()):
            assert squad.update([text], [other]).results() == 1.0


@pytest.mark.parametrize(
    "metric", [metrics.BLEU, metrics.WER, metrics.TextExactMatch, metrics.CHRF]
)
def test_an_error_of_ids_names_the_metric(metric):
    for preds, target in (([1, 2], ["a", "b"]), (["a", "b"], [1, 2]), (["a", "b"], 1)):
        with pytest.raises(datarax.MetricTypeError, match=f"^{metric.__name__}: "):
            metric().update(preds, target)
    with pytest.raises(datarax.MetricInputError, match=f"^{metric.__name__}: "):
        metric().update(["a"], ["a", "b"])


def test_white_space_separates_words():
    words = jiwer.process_words(["a cat sat x"], ["  a  cat \t sat\n\nx y"])
    assert metrics.WER().update(["  a  cat \t sat\n\nx y"], ["a cat sat x"]).results() == words.wer


@pytest.mark.parametrize("name", ["wer", "bleu"])
def test_weights_far_below_one(name, rng):
    """Sums of counts times weights may be far below 1, as after many half-lives of `Decayed`."""
    group = GROUPS[name]
    batch = group[0].inputs.draw(rng, BATCH)
    # BLEU is a matter of counts where no n-gram matches: the longest text matches itself.
    batch["preds"][0] = np.ravel(batch["target"][0])[0]
    arrays = arrays_of(group, batch)
    values = [
        subject.read(subject.fold(BUNDLES[name], [((), {**arrays, "weights": w})]))[0]
        for w in np.float32([[1.0], [2.0**-40]]) * np.ones(BATCH, np.float32)
    ]
    for name in values[0]:
        if name.startswith("worderrors"):  # counts, which are multiples of the weights
            values[1][name] *= 2.0**40
    assert_within_ulps(values[1], values[0], 64, name="the value")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_distinct_n(n, rng):
    texts = [" ".join(rng.choice(WORDS, rng.integers(0, 40))) for _ in range(300)]
    grams = [tuple(x.split()[i : i + n]) for x in texts for i in range(len(x.split()) - n + 1)]
    metric = metrics.DistinctN(n)
    for part in batches(rng, len(texts), 4):
        metric = metric.update(texts[part])
    want = len(set(grams)) / len(grams)
    np.testing.assert_allclose(metric.results(), want, rtol=0.02)
    assert metric.distinct.standard_error < 0.005


def test_nothing_and_empty_texts():
    for name in ("BLEU", "CHRF", "TER", "WER", "CER", "MER", "WIL", "WIP", "TokenF1"):
        metric = getattr(metrics, name)()
        assert np.isnan(metric.results()), name
        assert np.isnan(metric.update([], []).results()), name
    assert all(np.isnan(x) for x in metrics.ROUGE().results().values())
    assert np.isnan(metrics.DistinctN().update([]).results())
    assert np.isnan(metrics.DistinctN().update(["one", ""]).results())
    assert metrics.BLEU().update([""], ["a"]).results() == 0
    assert metrics.CHRF().update([""], [""]).results() == 0
    assert metrics.TokenF1().update(["the"], [""]).results() == 1
    assert metrics.WER().update([""], ["a b"]).results() == 1
    assert np.isnan(metrics.WER().update([""], [""]).results())
    for name, value in {"WIP": 0, "WIL": 1}.items():  # of a model that answers nothing, as jiwer
        metric = getattr(metrics, name)()
        assert metric.update(["", ""], ["a b", "c"]).results() == value
        assert np.isnan(metric.update([""], [""]).results())


def test_more_distinct_words_than_there_are_characters():
    # Each text is equal to its reference but for the last words, so that the alignment is fast.
    many = sys.maxunicode + 1
    words = [f"w{i}" for i in range(many)]
    half = many // 2
    target = [" ".join(words[:half]), " ".join(words[half:])]
    preds = [target[0] + " more", target[1].rsplit(" ", 1)[0] + " other"]
    assert metrics.WER().update(preds, target).compute() == np.float32(2 / many)
    hits = many - 1
    kept = hits / many * hits / (many + 1)
    np.testing.assert_allclose(metrics.WIP().update(preds, target).compute(), kept, rtol=1e-6)


def test_marks_within_a_long_answer_take_linear_time():
    # As many marks as a model writes that repeats itself; a pattern took the square of that.
    preds = ["x" + "!" * 200_000 + "y", " " * 200_000 + "x."]
    assert metrics.TextExactMatch().update(preds, ["xy", "x"]).compute() == 0.5
