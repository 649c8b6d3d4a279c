"""The diversity of generated texts."""

from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from typing import Self

import numpy as np

from datarax._checks import as_float, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import PyTree, Weights
from datarax._xp import vmap, xp
from datarax.algebra.fields import field, state
from datarax.metrics.language.ngrams import Sequences, gram_totals, grams
from datarax.metrics.language.text_metric import (
    CountedText,
    TextMean,
    Texts,
    checked_texts,
    unread_where_zero,
)
from datarax.metrics.language.text_tokens import check_tokenizer, sacrebleu_tokenizer
from datarax.metrics.language.translation import bleu
from datarax.statistics.batches import rows_weight
from datarax.statistics.distinct import Distinct
from datarax.statistics.invalid_counts import InvalidCounts, not_finite
from datarax.statistics.weighted_total import WeightedTotal


class SelfBLEU(TextMean):
    """The similarity of generated texts to each other, from 0 to 100; lower is more diverse.

    The mean over texts of the BLEU of each, with the other texts of the same update as its
    references: of one sentence, so n-grams longer than the text are left out. As the mean of
    `sacrebleu.sentence_bleu`. It needs the extra `text`. The value depends on which texts are in an
    update, by definition. No data gives NaN.

    Y. Zhu and others (2018), Texygen, https://arxiv.org/abs/1802.01886.

    Raises:
        ImportError: sacrebleu, whose tokenizers are used, is not installed.
        MetricInputError: an argument is out of its range.

    Example:
        >>> from datarax.metrics import SelfBLEU
        >>> metric = SelfBLEU().update(["a b c d", "a b c d", "w x y z"])
        >>> print(round(float(metric.compute()), 1))
        66.7
    """

    value_range = (0.0, 1.0)
    terms_by_row = True
    higher_is_better = False
    max_order: int = 4
    """The length of the longest n-grams."""
    tokenize: str = "13a"
    """The name of a tokenizer of sacrebleu, such as "13a", "intl", "char", "zh" or "none"."""
    lowercase: bool = False
    """True if texts are compared in lower case."""

    def __post_init__(self) -> None:
        positive_int(self.max_order, "max_order")
        check_tokenizer(self.tokenize, "SelfBLEU")
        super().__post_init__()

    def update(self, preds: Texts, *, weights: Weights = None) -> Self:  # type: ignore[override]
        """A new metric with the texts folded in. The strings are counted on the host.

        Args:
            preds: at least two texts.
            weights: of the texts, (N,), or one for all. A text of weight zero is a reference still.

        Raises:
            MetricInputError: there is one text only.
            MetricTypeError: anything but strings.
        """
        return self.apply(self.calls((preds,), {"weights": weights}))

    def counts_of(self, preds: Texts, *, weights: Weights = None) -> dict[str, PyTree]:  # type: ignore[override]
        texts = checked_texts(preds, f"{type(self).__name__}: preds")
        if len(texts) == 1:
            raise MetricInputError("SelfBLEU.update got one text; expected at least two")
        words = sacrebleu_tokenizer(self.tokenize, self.lowercase, "SelfBLEU")
        counts = counts_among(Sequences.of(map(words, texts)), self.max_order)
        return {"numbers": counts, "weights": weights}

    def apply(self, calls: PyTree) -> Self:
        counts = as_float(numeric(calls.kwargs["numbers"], "numbers"))
        scores = {"numbers": vmap(lambda x: bleu(x, "exp", None, True))(counts)[:, None]}
        return super().apply(replace(calls, kwargs=calls.kwargs | scores))


def counts_among(sequences: Sequences, order: int) -> np.ndarray:
    """The counts of BLEU of each sequence, with all others as references."""
    lengths = sequences.lengths
    rows = np.argsort(lengths, kind="stable")
    # In order of length, the closest other one is the previous or the next.
    near = np.pad(lengths[rows].astype(np.float64), 1, constant_values=(-np.inf, np.inf))
    before, own, after = near[:-2], near[1:-1], near[2:]
    closest = np.empty_like(lengths)
    closest[rows] = np.where(own - before <= after - own, before, after)
    matches = []
    for table in grams(sequences, order):
        by_gram = np.lexsort((table.times, table.gram))
        gram, common = table.gram[by_gram], table.times[by_gram]
        # All occurrences of an n-gram in a text match, because another text has at least as many.
        # Only for the text with the most, the last of the n-gram, the second most is the limit.
        last = np.flatnonzero(np.diff(gram, append=-1))
        common[last] = np.where(np.diff(last, prepend=-1) > 1, common[last - 1], 0)
        matches.append(np.bincount(table.row[by_gram], common, len(lengths)).astype(np.int64))
    totals = [gram_totals(lengths, n) for n in range(1, order + 1)]
    return np.stack([lengths, closest, *matches, *totals], 1).astype(np.int32)


class DistinctN(CountedText):
    """The number of distinct n-grams of words, over the number of all: 1 if none is repeated.

    The distinct ones are counted by a sketch of 64 KB (HyperLogLog), with a standard error of 0.4
    percent, so the value is within 2 percent. Words are what white space separates. A text of
    weight 2 counts as two texts, so replicas of `Bootstrap`, which repeat texts, have lower values.
    No data, and texts without n-grams, give NaN.

    J. Li and others (2016), https://doi.org/10.18653/v1/N16-1014.

    Raises:
        MetricInputError: an `n` that is not an integer of at least 1.

    Example:
        >>> from datarax.metrics import DistinctN
        >>> metric = DistinctN(n=1).update(["to be or not to be", "to do is to be"])
        >>> print(round(float(metric.compute()), 2))
        0.55
    """

    higher_is_better = True
    n: int = field(default=2, kw_only=False)
    """The length of the n-grams."""
    lowercase: bool = False
    """True if texts are compared in lower case."""

    distinct: Distinct = state()
    totals = WeightedTotal()
    """The numbers of n-grams of the texts."""

    def __post_init__(self) -> None:
        positive_int(self.n, "n")
        self.distinct = Distinct(16)

    @property
    def invalid(self) -> InvalidCounts:
        """The weights that could not be used."""
        return self.totals.invalid

    def update(self, preds: Texts, *, weights: Weights = None) -> Self:
        """A new metric with the texts folded in. The strings are hashed on the host.

        Args:
            preds: N texts.
            weights: of the texts, (N,), or one for all.

        Raises:
            MetricTypeError: anything but strings.
        """
        return self.apply(self.calls((preds,), {"weights": weights}))

    def counts_of(self, preds: Texts, *, weights: Weights = None) -> dict[str, PyTree]:
        (preds,) = unread_where_zero(weights, preds)
        texts = checked_texts(preds, f"{type(self).__name__}: preds")
        words = [(text.lower() if self.lowercase else text).split() for text in texts]
        hashes, number = hashed_grams(words, self.n)
        return {"hashes": hashes, "number": number, "weights": weights}

    def apply(self, calls: PyTree) -> Self:
        hashes, number = (numeric(calls.kwargs[name], name) for name in ("hashes", "number"))
        w, invalid = rows_weight(not_finite(number), calls.kwargs.get("weights"))
        place = xp.arange(hashes.shape[1], dtype=xp.int32)
        used = (place[None] < number[:, None]) & w.astype(xp.bool_)[:, None]
        return self.replace(
            distinct=self.distinct.add(hashes[..., 0], hashes[..., 1], used),
            totals=self.totals.add(number, w, invalid),
        )

    def compute(self) -> PyTree:
        total = self.totals.total.double.to_float()
        # The sketch may count more distinct n-grams than there are n-grams.
        share = xp.minimum(self.distinct.count() / xp.where(total > 0, total, 1), 1)
        return xp.where(total > 0, share, xp.nan)


def hashed_grams(words: list[list[str]], n: int) -> tuple[np.ndarray, np.ndarray]:
    """A hash of 64 bits of each n-gram, and how many each text has.

    Returns:
        uint32 (N, L, 2), the same on every machine, with L a power of two; and int32 (N,).
    """
    lengths = np.array([len(each) for each in words], np.int64)
    number = gram_totals(lengths, n).astype(np.int32)
    most = int(number.max(initial=1))
    # The width is a power of two, so that few shapes are compiled.
    hashes = np.zeros((len(words), 1 << (most - 1).bit_length()), np.uint64)
    known = {word: word_hash(word) for word in set(chain.from_iterable(words))}
    of_word = np.array([known[word] for word in chain.from_iterable(words)], np.uint64)
    start = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(len(words)), number)
    # The number of each n-gram in its text.
    place = np.arange(len(row)) - np.repeat(np.cumsum(number) - number, number)
    value = np.zeros(len(row), np.uint64)
    # The words are mixed in one after the other, so their order counts.
    for offset in range(n):
        value = mixed64(value + of_word[start[row] + place + offset])
    hashes[row, place] = value
    return np.stack([hashes >> np.uint64(32), hashes], -1).astype(np.uint32), number


def word_hash(word: str) -> int:
    """64 bits of a word, the same in every process."""
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def mixed64(x: np.ndarray) -> np.ndarray:
    """Mixes the bits of `x`: every bit of the result depends on every bit of `x`."""
    # The finalizer of SplitMix64: G. L. Steele, D. Lea and C. H. Flood (2014).
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))
