"""ROUGE: how much of a reference a summary has."""

from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import chain

import numpy as np

from datarax._checks import check_function, choice, kind, warn
from datarax._errors import MetricInputError, MetricTypeError, NoWordsWarning
from datarax._optional import optional
from datarax._typing import PyTree
from datarax._update_context import update_context
from datarax.metrics.language.ngrams import Integers, Sequences, gram_totals, grams
from datarax.metrics.language.text_metric import TextMetric, flat
from datarax.metrics.language.text_tokens import rouge_words
from datarax.statistics.scaled_total import quotient

_OF_SEQUENCES = ("rougeL", "rougeLsum")


class ROUGE(TextMetric):
    """Means of the F-scores of n-grams of words and of common subsequences, from 0 to 1.

    A dict: `rouge1` and `rouge2`, of n-grams of 1 and 2 words; `rougeL`, of the longest common
    subsequence; `rougeLsum`, of the union of those of all sentences, which are separated by line
    breaks. With `scores=("f", "precision", "recall")` also `rouge1_precision`, `rouge1_recall`, and
    so on. Of several references, the first with the greatest F-score counts, for each key by
    itself. As `rouge_score.rouge_scorer.RougeScorer`. `rougeL` and `stemmer` need the extra `text`.
    No data gives NaN; a text or a reference without words gives 0.

    Words are runs of the letters a to z and of digits. A text of other letters, such as Nepali, has
    no words then, and its scores are 0: the update warns (`NoWordsWarning`), and a `tokenizer` is
    the remedy.

    C.-Y. Lin (2004), https://aclanthology.org/W04-1013.

    Raises:
        ImportError: rapidfuzz is not installed, and `rougeL` is asked for.
        MetricInputError: a key or a score that is not known; both a stemmer and a tokenizer.
        MetricTypeError: `tokenizer` is no function, or gives something else than a list of strings.

    Example:
        >>> from datarax.metrics import ROUGE
        >>> metric = ROUGE().update(["the cat sat on the mat"], ["a cat sat on the mat today"])
        >>> print({name: round(float(x), 3) for name, x in metric.compute().items()})
        {'rouge1': 0.769, 'rouge2': 0.727, 'rougeL': 0.769, 'rougeLsum': 0.769}
        >>> words = ROUGE(rouge_keys="rouge1", tokenizer=str.split).update(["नमस्ते संसार"], ["नमस्ते"])
        >>> print({name: round(float(x), 3) for name, x in words.compute().items()})
        {'rouge1': 0.667}
    """

    higher_is_better = True
    rouge_keys: tuple[str, ...] = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    """The scores: "rougeL", "rougeLsum", or "rouge1" to "rouge9" for n-grams of that length."""

    stemmer: bool = False
    """Whether words of more than three letters are compared by their stems: Porter's, of English,
    by NLTK."""
    tokenizer: Callable[[str], list[str]] | None = None
    """A function of a text that gives its words, such as `str.split`, for other languages. A
    function is configuration: pass the same one every time, not a new lambda."""
    scores: tuple[str, ...] = ("f",)
    """What is given of each key: "f", "precision", "recall"."""

    def __post_init__(self) -> None:
        self.rouge_keys, self.scores = _names(self.rouge_keys), _names(self.scores)
        for name in ("rouge_keys", "scores"):
            if not getattr(self, name):
                raise MetricInputError(f"{name} is empty; expected at least one")
        for key in self.rouge_keys:
            known = key in _OF_SEQUENCES or (key[:5] == "rouge" and key[5:] in set("123456789"))
            if not known:
                raise MetricInputError(
                    f"rouge_keys has {key!r}; expected 'rouge1' to 'rouge9', 'rougeL', 'rougeLsum'"
                )
        for score in self.scores:
            choice(score, tuple(_SUFFIXES), "scores")
        if self.tokenizer is not None:
            check_function(self.tokenizer, "tokenizer", "a string")
            if self.stemmer:
                raise MetricInputError(
                    "stemmer=True and tokenizer= are given; expected one of them: a tokenizer can "
                    "give stems itself"
                )
        super().__post_init__()

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each result."""
        return tuple(key + _SUFFIXES[score] for key in self.rouge_keys for score in self.scores)

    @property
    def width(self) -> int:
        return len(self.names)

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        others, owner = flat(references)
        texts, size = [*preds, *others], len(preds)
        words = list(map(self._words, texts))
        if self.tokenizer is None:
            _warn_of_no_words(texts, words)
        sequences = Sequences.of(words)
        orders = [int(key[5:]) for key in self.rouge_keys if key not in _OF_SEQUENCES]
        common, totals = {}, {}
        for n, table in enumerate(grams(sequences, max(orders, default=0)), 1):
            of_texts, of_others = table.split(size)
            common[f"rouge{n}"] = of_texts.matches(of_others, owner)
            totals[f"rouge{n}"] = gram_totals(sequences.lengths, n)
        if "rougeL" in self.rouge_keys:
            length = optional("rapidfuzz.distance", "text", "ROUGE").LCSseq.similarity
            common["rougeL"] = np.array([
                length(words[i], other) for i, other in zip(owner, words[size:], strict=True)
            ])  # fmt: skip
        if "rougeLsum" in self.rouge_keys:
            lines = [list(map(self._words, text.split("\n"))) for text in texts]
            common["rougeLsum"] = np.array([
                union_of_subsequences(lines[i], other)
                for i, other in zip(owner, lines[size:], strict=True)
            ])  # fmt: skip
        found = [
            best_scores(common[key], totals.get(key, sequences.lengths), owner, size)[score]
            for key in self.rouge_keys
            for score in self.scores
        ]
        return np.stack(found, 1)

    def _words(self, text: str) -> list[str]:
        if self.tokenizer is None:
            words = rouge_words(text)
            return list(map(_stem(), words)) if self.stemmer else words
        words = self.tokenizer(text)
        if not isinstance(words, list | tuple) or not all(isinstance(x, str) for x in words):
            raise MetricTypeError(
                f"ROUGE: tokenizer gives {kind(words)} of {text[:20]!r}; expected a list of strings"
            )
        return list(words)

    def compute(self) -> PyTree:
        return {name: quotient(self.sums[i], self.sums[-1]) for i, name in enumerate(self.names)}


_SUFFIXES = {"f": "", "precision": "_precision", "recall": "_recall"}


def _names(given: object) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)  # type: ignore[arg-type]


@cache
def _stem() -> Callable[[str], str]:
    """Porter's stemmer, of words of more than three letters."""
    stem = optional("nltk.stem.porter", "text", "ROUGE(stemmer=True)").PorterStemmer().stem

    @lru_cache(2**16)
    def stem_of(word: str) -> str:
        return stem(word) if len(word) > 3 else word

    return stem_of


def _warn_of_no_words(texts: list[str], words: list[list[str]]) -> None:
    """Warns of texts that have letters, of which none is one of a word."""
    if update_context.get().checks == "none":
        return
    strange = [
        text
        for text, some in zip(texts, words, strict=True)
        if not some and any(map(str.isalpha, text))
    ]
    if strange:
        warn(
            f"ROUGE: {len(strange)} of {len(texts)} texts have letters and no words, such as "
            f"{strange[0][:20]!r}, and their scores are 0: words are runs of a to z and digits. "
            f"Give tokenizer=, a function that gives the words of a text, such as str.split",
            NoWordsWarning,
        )


def best_scores(
    common: Integers, totals: Integers, owner: Integers, size: int
) -> dict[str, np.ndarray]:
    """The F-score, precision and recall of each text with its best reference, (size,).

    What a text and a reference have in common over what both have. 0 where one is empty.

    Args:
        common: what each reference has in common with its text.
        totals: what each text and, after them, each reference has.
        owner: the number of the text of each reference, in increasing order.
        size: the number of texts. Each has a reference.
    """
    own, other = totals[:size][owner], totals[size:]
    f = 2 * common / np.maximum(own + other, 1)
    starts = np.searchsorted(owner, np.arange(size))
    is_best = f == np.maximum.reduceat(f, starts)[owner]
    best = np.flatnonzero(is_best)
    first = best[np.searchsorted(owner[best], np.arange(size))]
    scores = {"f": f, "precision": common / np.maximum(own, 1)}
    scores["recall"] = common / np.maximum(other, 1)
    return {name: x[first] for name, x in scores.items()}


def union_of_subsequences(text: list[list[str]], reference: list[list[str]]) -> int:
    """Counts the words in the union of the longest common subsequences of all sentences.

    For each sentence of the reference, the words in the union of its longest common subsequences
    with the sentences of the text. No word counts more often than both have it.
    """
    found: Counter[str] = Counter()
    for sentence in reference:
        places = set().union(*(common_places(sentence, other) for other in text))
        found.update(sentence[place] for place in places)
    return (found & Counter(chain.from_iterable(text))).total()


def common_places(a: list[str], b: list[str]) -> set[int]:
    """The places in `a` of one of its longest common subsequences with `b`.

    Of several, the one that is found from the ends, where ties go toward the start of `a`.
    """
    if not a or not b:
        return set()
    numbers: dict[str, int] = {}
    x, y = (np.array([numbers.setdefault(word, len(numbers)) for word in each]) for each in (a, b))
    # lengths[i, j] is the longest common subsequence of the first i and the first j words.
    lengths = np.zeros((len(a) + 1, len(b) + 1), np.int32)
    # lengths[i + 1, j] is the greatest of lengths[i, j], lengths[i + 1, j - 1], and
    # lengths[i, j - 1] + 1 if the words are equal; the running maximum is for the second.
    for i in range(len(a)):
        above = lengths[i]
        lengths[i + 1, 1:] = np.maximum.accumulate(np.maximum(above[1:], above[:-1] + (y == x[i])))
    places, i, j = set(), len(a), len(b)
    while i and j:
        if x[i - 1] == y[j - 1]:
            i, j = i - 1, j - 1
            places.add(i)
        elif lengths[i, j - 1] > lengths[i - 1, j]:
            j -= 1
        else:
            i -= 1
    return places
