"""ROUGE: how much of a reference a summary has."""

from collections import Counter
from itertools import chain

import numpy as np

from datarax._errors import MetricInputError
from datarax._optional import optional
from datarax._typing import PyTree
from datarax.metrics.language.ngrams import Integers, Sequences, gram_totals, grams
from datarax.metrics.language.text_metric import TextMetric, flat
from datarax.metrics.language.text_tokens import rouge_words
from datarax.statistics.scaled_total import quotient

_OF_SEQUENCES = ("rougeL", "rougeLsum")


class ROUGE(TextMetric):
    """Means of the F-scores of n-grams of words and of common subsequences, from 0 to 1.

    A dict: `rouge1` and `rouge2`, of n-grams of 1 and 2 words; `rougeL`, of the longest common
    subsequence; `rougeLsum`, of the union of those of all sentences, which are separated by line
    breaks. Of several references, the one with the best score counts, for each by itself. As
    `rouge_score.rouge_scorer.RougeScorer` without a stemmer. `rougeL` needs the extra `text`. No
    data gives NaN; a text or a reference without words gives 0.

    C.-Y. Lin (2004), https://aclanthology.org/W04-1013.

    Raises:
        ImportError: rapidfuzz is not installed, and `rougeL` is asked for.
        MetricInputError: a key that is not known.

    Example:
        >>> from datarax.metrics import ROUGE
        >>> metric = ROUGE().update(["the cat sat on the mat"], ["a cat sat on the mat today"])
        >>> print({name: round(float(x), 3) for name, x in metric.compute().items()})
        {'rouge1': 0.769, 'rouge2': 0.727, 'rougeL': 0.769, 'rougeLsum': 0.769}
    """

    higher_is_better = True
    rouge_keys: tuple[str, ...] = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    """The scores: "rougeL", "rougeLsum", or "rouge1" to "rouge9" for n-grams of that length."""

    def __post_init__(self) -> None:
        keys = (self.rouge_keys,) if isinstance(self.rouge_keys, str) else tuple(self.rouge_keys)
        for key in keys:
            known = key in _OF_SEQUENCES or (key[:5] == "rouge" and key[5:] in set("123456789"))
            if not known:
                raise MetricInputError(
                    f"rouge_keys has {key!r}; expected 'rouge1' to 'rouge9', 'rougeL', 'rougeLsum'"
                )
        self.rouge_keys = keys
        super().__post_init__()

    @property
    def width(self) -> int:
        return len(self.rouge_keys)

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        others, owner = flat(references)
        words = [rouge_words(text) for text in (*preds, *others)]
        sequences = Sequences.of(words)
        size = len(preds)
        orders = [int(key[5:]) for key in self.rouge_keys if key not in _OF_SEQUENCES]
        scores = {}
        for n, table in enumerate(grams(sequences, max(orders, default=0)), 1):
            of_texts, of_others = table.split(size)
            common = of_texts.matches(of_others, owner)
            scores[f"rouge{n}"] = _f(common, gram_totals(sequences.lengths, n), owner)
        if "rougeL" in self.rouge_keys:
            length = optional("rapidfuzz.distance", "text", "ROUGE").LCSseq.similarity
            common = [length(words[i], other) for i, other in zip(owner, words[size:], strict=True)]
            scores["rougeL"] = _f(np.array(common), sequences.lengths, owner)
        if "rougeLsum" in self.rouge_keys:
            lines = [list(map(rouge_words, text.split("\n"))) for text in (*preds, *others)]
            common = [
                union_of_subsequences(lines[i], other)
                for i, other in zip(owner, lines[size:], strict=True)
            ]
            scores["rougeLsum"] = _f(np.array(common), sequences.lengths, owner)
        # The references of a text are next to each other, and there is at least one.
        starts = np.searchsorted(owner, np.arange(size))
        best = [np.maximum.reduceat(scores[key], starts) for key in self.rouge_keys]
        return np.stack(best, 1)

    def compute(self) -> PyTree:
        return {key: quotient(self.sums[i], self.sums[-1]) for i, key in enumerate(self.rouge_keys)}


def _f(common: Integers, totals: Integers, owner: Integers) -> np.ndarray:
    """The F-score of each reference: 2 common / (own + reference), 0 where one is empty."""
    size = len(totals) - len(owner)
    both = totals[:size][owner] + totals[size:]
    return 2 * common / np.maximum(both, 1)


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
