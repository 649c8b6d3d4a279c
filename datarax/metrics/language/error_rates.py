"""Error rates of recognized speech and text: of words, of characters, of information."""

import math
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from datarax._checks import check_function, kind
from datarax._errors import MetricTypeError
from datarax._optional import optional
from datarax._typing import PyTree
from datarax._xp import xp
from datarax.metrics.language.text_metric import TextMetric, TextRatio
from datarax.metrics.language.text_tokens import spoken_words
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import whole_or_float

Pairs = list[tuple[str, str]]


class Transcripts(TextMetric):
    """A formula of the numbers of pairs of a text and its only reference."""

    several: ClassVar[bool] = False
    normalize: Callable[[str], str] | None = None
    """A function of a string, such as `str.lower`, that texts and references go through first. A
    function is configuration: pass the same one every time, not a new lambda."""

    def __post_init__(self) -> None:
        if self.normalize is not None:
            check_function(self.normalize, "normalize", "a string")
        super().__post_init__()

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        pairs = [
            (self._normal(text), self._normal(other))
            for text, (other,) in zip(preds, references, strict=True)
        ]
        return np.array(self.counts(pairs), np.int32)

    def counts(self, pairs: Pairs) -> list[tuple[int, ...]]:
        """The numbers of each pair of a text and its reference."""
        raise TypeError(f"{type(self).__name__} does not define counts()")

    def _normal(self, text: str) -> str:
        if self.normalize is None:
            return text
        found = self.normalize(text)
        if not isinstance(found, str):
            raise MetricTypeError(
                f"{type(self).__name__}: normalize gives {kind(found)} of {text[:20]!r}; expected "
                f"a string"
            )
        return found


class WER(Transcripts, TextRatio):
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

    def counts(self, pairs: Pairs) -> list[tuple[int, ...]]:
        distance = optional("rapidfuzz.distance", "text", "WER").Levenshtein.distance
        return [(distance(text, other), len(other)) for text, other in numbered_words(pairs)]


class CER(Transcripts, TextRatio):
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

    def counts(self, pairs: Pairs) -> list[tuple[int, ...]]:
        distance = optional("rapidfuzz.distance", "text", "CER").Levenshtein.distance
        stripped = [(text.strip(), other.strip()) for text, other in pairs]
        return [(distance(text, other), len(other)) for text, other in stripped]


class MER(Transcripts, TextRatio):
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

    def counts(self, pairs: Pairs) -> list[tuple[int, ...]]:
        # The alignment has a place for each edit and for each hit.
        return [(sum(edits), sum(edits) + hits) for *edits, hits in aligned(pairs, "MER")]


class WordErrors(Transcripts):
    """The number of each kind of error: a dict of `substitutions`, `deletions`, `insertions`,
    `hits`.

    Of an alignment of each text with its reference that has the fewest edits; deletions are words
    of the reference that the text does not have. Words are what spaces separate. `compute` gives
    the nearest floats; `results` and a collector give exact counts: integers, or floats if weights
    make any of them a fraction. As `jiwer.process_words`. It needs the extra `text`. No data gives
    zeros.

    Raises:
        ImportError: rapidfuzz, which aligns the words, is not installed.

    Example:
        >>> from datarax.metrics import WordErrors
        >>> metric = WordErrors().update(["the cat sit", "hello"], ["the cat sat", "hello world"])
        >>> print(metric.results())
        {'deletions': 1, 'hits': 3, 'insertions': 0, 'substitutions': 1}
    """

    width: ClassVar[int] = 4  # type: ignore[assignment]

    def counts(self, pairs: Pairs) -> list[tuple[int, ...]]:
        return aligned(pairs, "WordErrors")

    def compute(self) -> PyTree:
        return {name: whole_or_float(self.sum(i)) for i, name in enumerate(_KINDS)}


class WIP(Transcripts):
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
    width: ClassVar[int] = 3  # type: ignore[assignment]

    def counts(self, pairs: Pairs) -> list[tuple[int, ...]]:
        counts = aligned(pairs, type(self).__name__)
        # A word of the text is right, another one, or inserted; one of the reference right, another
        # one, or left out.
        return [(hits + sub + ins, hits + sub + left, hits) for sub, left, ins, hits in counts]

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


_KINDS = ("substitutions", "deletions", "insertions", "hits")


def aligned(pairs: Pairs, metric: str) -> list[tuple[int, ...]]:
    """The number of each of `_KINDS` in each pair of a text and its reference."""
    editops = optional("rapidfuzz.distance", "text", metric).Levenshtein.editops
    counts = []
    for text, other in numbered_words(pairs):
        kinds = Counter(edit.tag for edit in editops(other, text))
        substitutions, deletions, insertions = (kinds[x] for x in ("replace", "delete", "insert"))
        hits = len(other) - substitutions - deletions
        counts.append((substitutions, deletions, insertions, hits))
    return counts


def numbered_words(pairs: Pairs) -> list[tuple[list[int], list[int]]]:
    """The words of each text and of its reference as integers, equal for equal words."""
    # Not as characters: there are only about a million of them.
    numbers: dict[str, int] = {}

    def integers(text: str) -> list[int]:
        return [numbers.setdefault(word, len(numbers)) for word in spoken_words(text)]

    return [(integers(text), integers(other)) for text, other in pairs]
