"""Answers to questions, compared as in SQuAD."""

from collections import Counter

import numpy as np

from datarax.metrics.language.text_metric import TextMean
from datarax.metrics.language.text_tokens import squad_words


class TextExactMatch(TextMean):
    """The fraction of texts that are equal to one of their references.

    Compared are the words, in lower case, without punctuation and the articles a, an and the, as in
    the evaluation script of SQuAD 2.0. From 0 to 1; that script gives percent. No data gives NaN.

    P. Rajpurkar and others (2018), https://arxiv.org/abs/1806.03822.

    Example:
        >>> from datarax.metrics import TextExactMatch
        >>> metric = TextExactMatch().update(["The cat!", "a dog"], ["cat", ["dogs", "two dogs"]])
        >>> print(metric.compute())
        0.5
    """

    higher_is_better = True
    normalize: bool = True
    """Whether texts are normalized so; if not, they must be equal as they are."""

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        normal = squad_words if self.normalize else str
        equal = [
            any(normal(text) == normal(other) for other in others)
            for text, others in zip(preds, references, strict=True)
        ]
        return np.array(equal, np.int32)


class TokenF1(TextMean):
    """The mean F-score of the words that a text and its reference have in common.

    Words are compared as by `TextExactMatch`, and repeated words count as often as both have them.
    Of several references, the best counts. As in the evaluation script of SQuAD 2.0: where one of
    the two has no words, the score is 1 if both have none. From 0 to 1. No data gives NaN.

    P. Rajpurkar and others (2018), https://arxiv.org/abs/1806.03822.

    Example:
        >>> from datarax.metrics import TokenF1
        >>> metric = TokenF1().update(["the black cat"], [["a cat", "a black dog sleeps"]])
        >>> print(round(float(metric.compute()), 3))
        0.667
    """

    higher_is_better = True

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        scores = [
            max(token_f1(squad_words(text), squad_words(other)) for other in others)
            for text, others in zip(preds, references, strict=True)
        ]
        return np.array(scores, np.float32)


def token_f1(words: list[str], other: list[str]) -> float:
    """The F-score of two lists of words."""
    if not words or not other:
        return float(words == other)
    common = (Counter(words) & Counter(other)).total()
    return 2 * common / (len(words) + len(other))
