"""Scores of translations by corpus: BLEU, chrF and TER."""

import math
from typing import Literal

import jax
import numpy as np

from datarax._checks import positive_int, real, refuse_ignored
from datarax._errors import MetricInputError
from datarax._optional import optional
from datarax._typing import Array, PyTree
from datarax._xp import xp
from datarax.metrics.language.ngrams import Integers, Sequences, gram_totals, grams
from datarax.metrics.language.text_metric import TextMetric, TextRatio, flat
from datarax.metrics.language.text_tokens import (
    apart_from_punctuation,
    check_tokenizer,
    sacrebleu_tokenizer,
)
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.scaled_total import quotient

Smoothing = Literal["exp", "floor", "add-k", "none"]
_SMOOTHING_VALUES = {"floor": 0.1, "add-k": 1.0}


class BLEU(TextMetric):
    """The corpus score of K. Papineni and others (2002), from 0 to 100.

    The geometric mean of the precisions of n-grams of words, for n from 1 to `max_order`, times a
    penalty where the texts are shorter than their closest references. As `sacrebleu.corpus_bleu`
    (M. Post, 2018). It needs the extra `text`. No data gives NaN.

    https://doi.org/10.3115/1073083.1073135, https://doi.org/10.18653/v1/W18-6319

    Raises:
        ImportError: sacrebleu, whose tokenizers are used, is not installed.
        MetricInputError: an argument is out of its range.

    Example:
        >>> from datarax.metrics import BLEU
        >>> metric = BLEU().update(["the cat sat on the mat"], ["a cat sat on the mat today"])
        >>> print(round(float(metric.compute()), 2))
        64.32
        >>> metric = metric.update(["it rains"], [["it rains", "rain falls"]])
        >>> print(round(float(metric.compute()), 2))
        68.57
    """

    higher_is_better = True
    max_order: int = 4
    """The length of the longest n-grams."""
    tokenize: str = "13a"
    """The name of a tokenizer of sacrebleu, such as "13a", "intl", "char", "zh" or "none"."""
    lowercase: bool = False
    """True if texts are compared in lower case."""
    smooth_method: Smoothing = "exp"
    """The precision of n-grams without a match: half of one match, then a quarter and
    so on ("exp"); `smooth_value` matches ("floor"); `smooth_value` is added to all counts for n > 1
    ("add-k"); or zero ("none")."""
    smooth_value: float | None = None
    """By default 0.1 for "floor" and 1 for "add-k"."""
    effective_order: bool = False
    """True if n-grams that are longer than all texts are left out, as for scores of sentences."""

    def __post_init__(self) -> None:
        positive_int(self.max_order, "max_order")
        check_tokenizer(self.tokenize, "BLEU")
        if self.smooth_method not in _SMOOTHING_VALUES:
            refuse_ignored(self, "smooth_value", f"with smooth_method={self.smooth_method!r}")
        if self.smooth_value is not None:
            self.smooth_value = real(self.smooth_value, "smooth_value")
            if self.smooth_value < 0:
                raise MetricInputError(f"smooth_value={self.smooth_value}; expected no less than 0")
        super().__post_init__()

    @property
    def width(self) -> int:
        return 2 + 2 * self.max_order

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        words = sacrebleu_tokenizer(self.tokenize, self.lowercase, "BLEU")
        texts, owner = flat(references)
        sequences = Sequences.of(map(words, [*preds, *texts]))
        return bleu_counts(sequences, owner, self.max_order)

    def compute(self) -> PyTree:
        method, value = self.smooth_method, self.smooth_value
        score = bleu(self.number_sums, method, value, self.effective_order)
        return xp.where(self.is_empty, xp.nan, score)


def bleu_counts(sequences: Sequences, owner: Integers, order: int) -> np.ndarray:
    """The counts of BLEU of each text: its length and its closest reference's, matches, n-grams.

    Args:
        sequences: the words of N texts, then those of all references.
        owner: the number of the text of each reference, in order.
        order: the length of the longest n-grams.
    """
    size = len(sequences.lengths) - len(owner)
    own, reference = sequences.lengths[:size], sequences.lengths[size:]
    # The reference whose length is closest, the shorter of two.
    best = np.lexsort((reference, np.abs(reference - own[owner]), owner))
    closest = reference[best[np.searchsorted(owner[best], np.arange(size))]]
    every, matches = np.arange(size), []
    for table in grams(sequences, order):
        texts, others = table.split(size)
        matches.append(others.greatest(owner).matches(texts, every))
    totals = [gram_totals(own, n) for n in range(1, order + 1)]
    return np.stack([own, closest, *matches, *totals], 1).astype(np.int32)


def bleu(
    counts: jax.Array, method: Smoothing, value: float | None, effective_order: bool
) -> jax.Array:
    """The score from the sums of the counts of `bleu_counts`, (2 + 2 * order,) floats."""
    order = len(counts) // 2 - 1
    own, reference = counts[0], counts[1]
    correct, total = counts[2 : 2 + order], counts[2 + order :]
    value = _SMOOTHING_VALUES.get(method, 0.0) if value is None else value
    some = xp.any(correct > 0)
    if method == "add-k":
        longer = (xp.arange(order) > 0).astype(correct.dtype) * value
        correct, total = correct + longer, total + longer
    # From the first order without n-grams on, there are none.
    exist = xp.cumprod((total > 0).astype(xp.int32)) > 0
    none = exist & (correct == 0)
    # Of the orders without a match, the i-th counts as 2**-i matches.
    if method == "exp":
        correct = xp.where(none, xp.exp2(-xp.cumsum(none).astype(correct.dtype)), correct)
    elif method == "floor":
        correct = xp.where(none, value, correct)
    logs = xp.where(exist, xp.log(correct) - xp.log(total), 0 if effective_order else -xp.inf)
    orders = xp.sum(exist, dtype=xp.int32).astype(logs.dtype) if effective_order else order
    # The logarithm of the penalty for short texts.
    penalty = xp.minimum(1 - reference / own, 0)
    return xp.where(some, 100 * xp.exp(penalty + xp.sum(logs) / orders), 0)


class CHRF(TextMetric):
    """The corpus F-score of character n-grams, from 0 to 100; with `word_order=2` chrF++.

    Precision and recall are averaged over the lengths of n-grams. Of several references of a text,
    the one with the best score of the text counts. As `sacrebleu.corpus_chrf`. No data gives NaN.

    M. Popović (2015), https://doi.org/10.18653/v1/W15-3049; chrF++ (2017),
    https://doi.org/10.18653/v1/W17-4770.

    Raises:
        MetricInputError: an argument is out of its range.

    Example:
        >>> from datarax.metrics import CHRF
        >>> texts, references = ["the cat sat on the mat"], ["a cat sat on the mat today"]
        >>> print(round(float(CHRF().update(texts, references).compute()), 2))
        68.58
        >>> print(round(float(CHRF(word_order=2).update(texts, references).compute()), 2))
        69.25
    """

    higher_is_better = True
    char_order: int = 6
    """The length of the longest n-grams of characters."""
    word_order: int = 0
    """The length of the longest n-grams of words, 0 for none."""
    beta: float = 2.0
    """The factor by which recall is more important than precision."""
    lowercase: bool = False
    """True if texts are compared in lower case."""
    whitespace: bool = False
    """True if white space belongs to the n-grams of characters."""
    eps_smoothing: bool = False
    """True if the F-scores of all lengths are averaged, as in chrF++.py and NLTK."""

    def __post_init__(self) -> None:
        positive_int(self.char_order, "char_order")
        positive_int(self.word_order, "word_order", least=0)
        self.beta = real(self.beta, "beta")
        if self.beta <= 0:
            raise MetricInputError(f"beta={self.beta}; expected a number above 0")
        super().__post_init__()

    @property
    def width(self) -> int:
        return 3 * (self.char_order + self.word_order)

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        others, owner = flat(references)
        texts = [text.lower() if self.lowercase else text for text in [*preds, *others]]
        bare = texts if self.whitespace else ["".join(text.split()) for text in texts]
        tables = [*_pairs(Sequences.of_characters(bare), owner, self.char_order)]
        if self.word_order:
            words = Sequences.of(map(apart_from_punctuation, texts))
            tables += _pairs(words, owner, self.word_order)
        counts = np.stack(tables, 1)  # (references, orders, 3)
        # In float64: rounded to float32, another reference may seem the best.
        score = f_score(counts.astype(np.float64), self.beta, self.eps_smoothing)
        # The first of the best references of each text.
        best = np.lexsort((-score, owner))
        chosen = best[np.searchsorted(owner[best], np.arange(len(preds)))]
        return counts[chosen].reshape(len(preds), -1).astype(np.int32)

    def compute(self) -> PyTree:
        score = f_score(self.number_sums.reshape(-1, 3), self.beta, self.eps_smoothing)
        return xp.where(self.is_empty, xp.nan, score)


def _pairs(sequences: Sequences, owner: Integers, order: int) -> list[Integers]:
    """For each order, of each reference: the n-grams of the text, of the reference, and common."""
    size = len(sequences.lengths) - len(owner)
    tables = []
    for n, table in enumerate(grams(sequences, order), 1):
        texts, others = table.split(size)
        total = gram_totals(sequences.lengths, n)
        # Where the reference has no n-grams, those of the text do not count.
        own = np.where(total[size:] > 0, total[:size][owner], 0)
        tables.append(np.stack([own, total[size:], texts.matches(others, owner)], 1))
    return tables


def f_score(counts: Array, beta: float, smoothed: bool) -> jax.Array:
    """The score of counts (..., orders, 3)."""
    own, reference, match = counts[..., 0], counts[..., 1], counts[..., 2]
    some, others = own > 0, reference > 0
    # Weighted counts may be below 1: they are divided by as they are, unless they are zero.
    shares = match / xp.where(some, own, 1), match / xp.where(others, reference, 1)
    weight = beta**2
    # Smoothed, the F-scores of all orders are averaged; otherwise precision and recall are.
    if smoothed:
        least = 1e-16
        precision, recall = xp.where(some, shares[0], least), xp.where(others, shares[1], least)
        below = weight * precision + recall
        positive = xp.where(below > 0, below, 1)
        each = xp.where(below > 0, (1 + weight) * precision * recall / positive, least)
        return 100 * each.mean(-1)
    both = some & others
    orders = xp.maximum(both.sum(-1).astype(counts.dtype), 1)
    precision, recall = (xp.where(both, share, 0).sum(-1) / orders for share in shares)
    below = weight * precision + recall
    return 100 * (1 + weight) * precision * recall / xp.where(below > 0, below, 1)


class TER(TextRatio):
    """The translation edit rate in percent: edits, shifts of phrases included, over the length.

    The edits that make each text its closest reference, over the mean length of the references. As
    `sacrebleu.corpus_ter`, which counts the edits. It needs the extra `text`. Lower is better;
    above 100 there are more edits than words. No data, and references without words, give NaN.

    M. Snover and others (2006), https://aclanthology.org/2006.amta-papers.25.

    Raises:
        ImportError: sacrebleu is not installed.

    Example:
        >>> from datarax.metrics import TER
        >>> metric = TER().update(["the cat sat on the mat"], ["a cat sat on the mat today"])
        >>> print(round(float(metric.compute()), 2))
        28.57
    """

    value_range = (0.0, math.inf)
    normalized: bool = False
    """True if texts are tokenized in the way of the score's first program."""
    no_punct: bool = False
    """True if punctuation is removed."""
    asian_support: bool = False
    """True if Asian characters are words of their own."""
    case_sensitive: bool = False
    """True if upper and lower case differ."""

    def __post_init__(self) -> None:
        if not (self.normalized or self.no_punct):
            refuse_ignored(self, "asian_support", "without normalized=True or no_punct=True")
        super().__post_init__()

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        options = ("normalized", "no_punct", "asian_support", "case_sensitive")
        config = {name: getattr(self, name) for name in options}
        score = optional("sacrebleu.metrics", "text", "TER").TER(**config).sentence_score
        each = [score(text, several) for text, several in zip(preds, references, strict=True)]
        return np.array([(x.num_edits, x.ref_length) for x in each], np.float32)

    def compute(self) -> PyTree:
        return 100 * quotient(self.sums[0], self.sums[1])

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat]:
        return 100 * self.sum(0), self.sum(1)
