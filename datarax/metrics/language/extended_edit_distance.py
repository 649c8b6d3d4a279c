"""The extended edit distance (EED): edits of characters, and jumps between words."""

import math
import re
import unicodedata
from typing import Literal

import numpy as np

from datarax._checks import choice, real
from datarax._errors import MetricInputError
from datarax.metrics.language.text_metric import TextMean, flat

_AT_ONCE = 64
"""How many texts are aligned together, which are of about the same length."""


class ExtendedEditDistance(TextMean):
    """The mean over texts of the edits of characters, jumps included, over the length; 0 to 1.

    At a blank of the reference, the alignment may jump to any place of the text, so that words in
    another order cost less. Characters of the text that are aligned several times, or never, are
    added to edits and length, so that equal texts may have a little more than 0. Of several
    references, the one with the least distance counts. As `ExtendedEditDistance` of torchmetrics
    and `EED.py` of the authors. No data gives NaN.

    P. Stanchev, W. Wang, H. Ney (2019), https://aclanthology.org/W19-5359.

    Raises:
        MetricInputError: a cost that is negative or not finite; a language that is not known.

    Example:
        >>> from datarax.metrics import ExtendedEditDistance
        >>> metric = ExtendedEditDistance().update(["a cat sat"], ["the cat sat"])
        >>> print(round(float(metric.compute()), 4))
        0.3377
    """

    value_range = (0.0, 1.0)
    higher_is_better = False
    language: Literal["en", "ja"] = "en"
    """The rules for punctuation: "en" separates it from words, "ja" takes characters of full width
    as those of half width."""
    alpha: float = 2.0
    """The cost of a jump."""
    rho: float = 0.3
    """The cost of a character that is aligned once more, or never."""
    deletion: float = 0.2
    """The cost of a character of the text that the reference does not have."""
    insertion: float = 1.0
    """The cost of a character of the reference that the text does not have."""

    def __post_init__(self) -> None:
        choice(self.language, ("en", "ja"), "language")
        for name in ("alpha", "rho", "deletion", "insertion"):
            cost = real(getattr(self, name), name)
            if not 0 <= cost < math.inf:
                raise MetricInputError(f"{name}={cost}; expected a number from 0 on")
            setattr(self, name, cost)
        super().__post_init__()

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        others, owner = flat(references)
        prepared = _PREPARED[self.language]
        texts, others = (list(map(prepared, some)) for some in (preds, others))
        # Alignments of about the same size are made together.
        order = sorted(range(len(others)), key=lambda i: (len(others[i]), len(texts[owner[i]])))
        found = np.empty(len(others))
        for start in range(0, len(order), _AT_ONCE):
            some = order[start : start + _AT_ONCE]
            found[some] = self._distances(
                [texts[owner[i]] for i in some], [others[i] for i in some]
            )
        return np.minimum.reduceat(found, np.searchsorted(owner, np.arange(len(preds))))

    def _distances(self, texts: list[str], others: list[str]) -> np.ndarray:
        """The distance of each text from its reference."""
        (x, lengths), (y, sizes) = characters(texts), characters(others)
        rows, place = np.arange(len(texts)), np.arange(x.shape[1] + 1)
        beyond = place > lengths[:, None]
        inside = ~beyond[:, 1:]
        # cost[n, i] is that of the cheapest alignment of the first i characters of a text.
        cost = np.where(place > 0, 1.0, 0.0) + np.zeros((len(texts), 1))
        visits = np.full(cost.shape, -1)
        for step in range(y.shape[1]):
            of_reference = y[:, step, None]
            new = cost + self.insertion
            new[:, 0] = cost[:, 0] + 1.0
            new[:, 1:] = np.minimum(new[:, 1:], cost[:, :-1] + (x != of_reference))
            new[beyond] = math.inf
            cheaper = np.where(inside, new[:, :-1] + self.deletion, math.inf)
            # Each round adds one deletion to a chain of them, in the order of the definition, so
            # that equal costs are rounded alike.
            while (cheaper < new[:, 1:]).any():
                new[:, 1:] = np.minimum(new[:, 1:], cheaper)
                cheaper = np.where(inside, new[:, :-1] + self.deletion, math.inf)
            least = np.argmin(new, 1)
            jump = np.where(of_reference == ord(" "), self.alpha + new[rows, least, None], math.inf)
            is_there = step < sizes
            visits[rows[is_there], least[is_there]] += 1
            cost = np.where(is_there[:, None], np.minimum(new, jump), cost)
        times = np.where(beyond, 0, np.where(visits < 0, 1, visits))
        coverage = self.rho * times.sum(1)
        whole = sizes + coverage
        return np.minimum(1, (cost[rows, lengths] + coverage) / np.where(whole > 0, whole, 1))


def characters(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The code points of texts, (N, L), padded with -1; and their lengths."""
    lengths = np.array([len(text) for text in texts])
    padded = np.full((len(texts), lengths.max()), -1, np.int64)
    for row, text in zip(padded, texts, strict=True):
        row[: len(text)] = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return padded, lengths


_TITLES = re.compile("(Dr|Jr|Prof|Rev|Gen|Mr|Mt|Mrs|Ms) .")
_NUMBERS = re.compile(r"(\d) ([.,]) (\d)")
_ABBREVIATIONS = {"e . g .": "e.g.", "i . e .": "i.e.", "U . S .": "U.S."}


def english(text: str) -> str:
    """A text between blanks, with blanks before punctuation but in numbers and abbreviations."""
    text = re.sub("([.!?,])", r" \1", text.rstrip())
    text = _NUMBERS.sub(r"\1\2\3", re.sub(r"\s+", " ", text))
    # Any character may follow a title and a blank, as in the program of the authors.
    text = _TITLES.sub(r"\1.", text)
    for apart, whole in _ABBREVIATIONS.items():
        text = text.replace(apart, whole)
    return f" {text} "


def japanese(text: str) -> str:
    """A text whose characters of full width are of half width."""
    return unicodedata.normalize("NFKC", text.rstrip())


_PREPARED = {"en": english, "ja": japanese}
