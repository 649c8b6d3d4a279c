"""Answers to questions: equal ones, and words in common."""

from collections import Counter
from typing import Literal

import numpy as np

from datarax.metrics.language.text_metric import TextMean
from datarax.metrics.language.text_tokens import squad_words, written_words


class TextExactMatch(TextMean):
    """The fraction of texts that equal one of their references, after they are normalized.

    By default case, white space, the articles a, an and the before another word, and punctuation at
    the ends of the text do not count. Everything else does: signs, decimal points and symbols, so
    "-5" and "5", "3.5" and "35", "$5" and "5" differ. From 0 to 1. No data gives NaN.

    `normalize="squad"` compares as the evaluation script of SQuAD 2.0, which gives percent: without
    all articles and all punctuation of ASCII, so that "-5" equals "5", and "3.5" equals "35".
    P. Rajpurkar and others (2018), https://arxiv.org/abs/1806.03822.

    Example:
        >>> from datarax.metrics import TextExactMatch
        >>> metric = TextExactMatch().update(["The cat!", "a dog"], ["cat", ["dogs", "two dogs"]])
        >>> print(metric.compute())
        0.5
        >>> written = TextExactMatch().update(["-5"], ["5"])
        >>> squad = TextExactMatch(normalize="squad").update(["-5"], ["5"])
        >>> print(written.compute(), squad.compute())
        0.0 1.0
    """

    value_range = (0.0, 1.0)
    higher_is_better = True
    normalize: bool | Literal["squad"] = True
    """What does not count. True: case, white space, articles, and punctuation at the ends. "squad":
    what the script of SQuAD leaves out. False: nothing, texts must be equal as they are."""

    def left_out(self) -> str:
        """What does not count, in words; "" if everything does."""
        return _LEFT_OUT[self.normalize]

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        normal = _NORMAL[self.normalize]
        equal = [
            any(normal(text) == normal(other) for other in others)
            for text, others in zip(preds, references, strict=True)
        ]
        return np.array(equal, np.int32)


_NORMAL = {True: written_words, "squad": squad_words, False: str}
_LEFT_OUT = {
    True: "case, white space, articles, and punctuation at the ends",
    "squad": "case, white space, articles, and all punctuation",
    False: "",
}


class TokenF1(TextMean):
    """The mean F-score of the words that a text and its reference have in common.

    Words are compared as by `TextExactMatch(normalize="squad")`, and repeated words count as often
    as both have them. Of several references, the best counts. As in the evaluation script of SQuAD
    2.0: where one of the two has no words, the score is 1 if both have none. From 0 to 1. No data
    gives NaN.

    P. Rajpurkar and others (2018), https://arxiv.org/abs/1806.03822.

    Example:
        >>> from datarax.metrics import TokenF1
        >>> metric = TokenF1().update(["the black cat"], [["a cat", "a black dog sleeps"]])
        >>> print(round(float(metric.compute()), 3))
        0.667
    """

    value_range = (0.0, 1.0)
    higher_is_better = True

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        scores = [
            max(token_f1(squad_words(text), squad_words(other)) for other in others)
            for text, others in zip(preds, references, strict=True)
        ]
        return np.array(scores, np.float64)


def token_f1(words: list[str], other: list[str]) -> float:
    """The F-score of two lists of words."""
    if not words or not other:
        return float(words == other)
    common = (Counter(words) & Counter(other)).total()
    # 2 P R / (P + R), where P is common / len(words) and R is common / len(other).
    return 2 * common / (len(words) + len(other))
