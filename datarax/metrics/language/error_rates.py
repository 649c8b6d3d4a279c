"""Error rates of recognized speech and text: of words, of characters, of information."""

import math
from typing import ClassVar

import numpy as np

from datarax._optional import optional
from datarax._typing import PyTree
from datarax._xp import xp
from datarax.metrics.language.text_metric import TextMetric, TextRatio
from datarax.metrics.language.text_tokens import spoken_words
from datarax.numerics.double_float import DoubleFloat


class WER(TextRatio):
    """The word error rate: the edits of words over the words of the references.

    Edits are substitutions, deletions and insertions. Of all texts together, so long texts count
    more. Words are what spaces separate. As `jiwer.wer`.
    Above 1 there are more errors than words. It needs the extra `text`. No data, and references
    without words, give NaN.

    Raises:
        ImportError: rapidfuzz, which aligns the words, is not installed.

    Example:
        >>> from datarax.metrics import WER
        >>> metric = WER().update(["the cat sit", "hello"], ["the cat sat", "hello world"])
        >>> print(metric.compute())
        0.4
    """

    value_range = (0.0, math.inf)
    several: ClassVar[bool] = False

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        distance = optional("rapidfuzz.distance", "text", "WER").Levenshtein.distance
        pairs = numbered_words(preds, references)
        return np.array([(distance(text, other), len(other)) for text, other in pairs], np.int32)


class CER(TextRatio):
    """The character error rate: wrong characters over the characters of the references.

    As `WER` of characters, those of white space within a text included. As `jiwer.cer`. It needs
    the extra `text`. No data, and references without characters, give NaN.

    Raises:
        ImportError: rapidfuzz, which aligns the characters, is not installed.

    Example:
        >>> from datarax.metrics import CER
        >>> print(CER().update(["the cat sit"], ["the cat sat!"]).compute())
        0.16666667
    """

    value_range = (0.0, math.inf)
    several: ClassVar[bool] = False

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        distance = optional("rapidfuzz.distance", "text", "CER").Levenshtein.distance
        pairs = [
            (text.strip(), other.strip()) for text, (other,) in zip(preds, references, strict=True)
        ]
        return np.array([(distance(text, other), len(other)) for text, other in pairs], np.int32)


class MER(TextRatio):
    """The match error rate: the fraction of matches of words that are wrong, from 0 to 1.

    Errors over errors and hits. As `jiwer.mer`. It needs the extra `text`. No data, and texts
    without words, give NaN. A. C. Morris and others (2004),
    https://doi.org/10.21437/Interspeech.2004-668.

    Raises:
        ImportError: rapidfuzz, which aligns the words, is not installed.

    Example:
        >>> from datarax.metrics import MER
        >>> metric = MER().update(["the cat sit", "hello"], ["the cat sat", "hello world"])
        >>> print(metric.compute())
        0.4
    """

    value_range = (0.0, 1.0)
    several: ClassVar[bool] = False

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        counts = aligned(preds, references, "MER")
        # The alignment has a place for each edit and for each hit.
        return np.array([(edits, edits + hits) for _, _, edits, hits in counts], np.int32)


class WIP(TextMetric):
    """Word information preserved, from 0 to 1: the product of precision and recall of words.

    As `jiwer.wip`. It needs the extra `text`. Texts without words give 0. No data, and references
    without words, give NaN. A. C. Morris and others (2004), https://doi.org/10.21437/Interspeech.2004-668.

    Raises:
        ImportError: rapidfuzz, which aligns the words, is not installed.

    Example:
        >>> from datarax.metrics import WIP
        >>> metric = WIP().update(["the cat sit", "hello"], ["the cat sat", "hello world"])
        >>> print(metric.compute())
        0.45
    """

    higher_is_better = True
    several: ClassVar[bool] = False
    width: ClassVar[int] = 3  # type: ignore[assignment]

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        counts = aligned(preds, references, type(self).__name__)
        return np.array([(own, others, hits) for own, others, _, hits in counts], np.int32)

    @property
    def preserved(self) -> DoubleFloat:
        """The product of recall and precision, from the sums of the numbers."""
        words, reference_words, hits = (self.sum(column) for column in range(3))
        # Texts without words preserve nothing: their precision is 0, and not 0 / 0.
        least = xp.where(words.high > 0, 0, 1).astype(words.high.dtype)
        return (hits / reference_words) * (hits / (words + least))

    def compute(self) -> PyTree:
        return self.preserved.to_float()


class WIL(WIP):
    """Word information lost, from 0 to 1: one minus `WIP`.

    As `jiwer.wil`. It needs the extra `text`. Texts without words give 1. No data, and references
    without words, give NaN. A. C. Morris and others (2004), https://doi.org/10.21437/Interspeech.2004-668.

    Raises:
        ImportError: rapidfuzz, which aligns the words, is not installed.

    Example:
        >>> from datarax.metrics import WIL
        >>> metric = WIL().update(["the cat sit", "hello"], ["the cat sat", "hello world"])
        >>> print(metric.compute())
        0.55
    """

    higher_is_better = False

    def compute(self) -> PyTree:
        return (1 - self.preserved).to_float()


def aligned(
    texts: list[str], references: list[list[str]], metric: str
) -> list[tuple[int, int, int, int]]:
    """For each text, the numbers of its words, of words of its reference, of edits and of hits."""
    editops = optional("rapidfuzz.distance", "text", metric).Levenshtein.editops
    counts = []
    for text, other in numbered_words(texts, references):
        edits = editops(other, text)
        # An insertion is no word of the reference. Every other edit is one that is wrong.
        hits = len(other) - sum(edit.tag != "insert" for edit in edits)
        counts.append((len(text), len(other), len(edits), hits))
    return counts


def numbered_words(
    texts: list[str], references: list[list[str]]
) -> list[tuple[list[int], list[int]]]:
    """The words of each text and of its reference as integers, equal for equal words."""
    # Not as characters: there are only about a million of them.
    numbers: dict[str, int] = {}

    def integers(text: str) -> list[int]:
        return [numbers.setdefault(word, len(numbers)) for word in spoken_words(text)]

    return [
        (integers(text), integers(other)) for text, (other,) in zip(texts, references, strict=True)
    ]
