"""Cuts texts into words, by each of the scores."""

import re
import string
from collections.abc import Callable
from functools import lru_cache

from datarax._checks import choice
from datarax._optional import optional

_IN_ALL_VERSIONS = ("13a", "intl", "char", "zh", "none")
_PUNCTUATION = frozenset(string.punctuation)
# As in jiwer, a single tab or line break does not separate words.
_SPACES = re.compile(r"\s\s+")
_NOT_ROUGE = re.compile(r"[^a-z0-9]+")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_MARKS = frozenset("!?,.;:'\"`()[]{}\u2018\u2019\u201c\u201d\u00ab\u00bb\u2026\u00a1\u00bf")
# A point or a comma before a digit belongs to a number: ".5" is not "5".
_NUMBER = re.compile(r"[.,]\d")


def check_tokenizer(name: str, metric: str) -> None:
    """Raises unless sacrebleu has a tokenizer of this name.

    Raises:
        MetricInputError: it has none; lists those that it has.
        ImportError: sacrebleu is not installed, and the name is not one that all versions have.
    """
    if name not in _IN_ALL_VERSIONS:
        known = optional("sacrebleu.metrics", "text", metric).BLEU.TOKENIZERS
        choice(name, tuple(known), f"{metric}: tokenize")


@lru_cache
def sacrebleu_tokenizer(name: str, lowercase: bool, metric: str) -> Callable[[str], list[str]]:
    """The words of a text by one of sacrebleu's tokenizers."""
    tokenizer = optional("sacrebleu.metrics", "text", metric).BLEU(tokenize=name).tokenizer

    # As in sacrebleu, white space is removed at the end only.
    def words(text: str) -> list[str]:
        return tokenizer((text.lower() if lowercase else text).rstrip()).split()

    return words


def apart_from_punctuation(text: str) -> list[str]:
    """The words of a text; a mark of punctuation at the end, or else the start, is its own word."""
    words = []
    for word in text.split():
        if len(word) > 1 and word[-1] in _PUNCTUATION:
            words += [word[:-1], word[-1]]
        elif len(word) > 1 and word[0] in _PUNCTUATION:
            words += [word[0], word[1:]]
        else:
            words.append(word)
    return words


def spoken_words(text: str) -> list[str]:
    """The words between single spaces, where further white space counts as one."""
    return [word for word in _SPACES.sub(" ", text).strip().split(" ") if word]


def rouge_words(text: str) -> list[str]:
    """Runs of the letters a to z and digits, in lower case."""
    return _NOT_ROUGE.sub(" ", text.lower()).split()


def squad_words(text: str) -> list[str]:
    """Words in lower case, without articles and punctuation."""
    # Punctuation goes first, so that "a." is an article too.
    text = "".join(letter for letter in text.lower() if letter not in _PUNCTUATION)
    return _ARTICLES.sub(" ", text).split()


def written_words(text: str) -> list[str]:
    """Words without case, articles before another word, and punctuation at the ends of the text.

    A text of nothing else keeps its marks.
    """
    *words, last = without_outer_marks(text.casefold()).split() or [text]
    words = [word for word in words if word not in ("a", "an", "the")]
    return without_outer_marks(" ".join([*words, last])).split() or [text.strip()]


def without_outer_marks(text: str) -> str:
    """A text without punctuation and white space at its ends."""
    # Not by one pattern: at the end of a text, it would take the square of its length.
    start, end = 0, len(text)
    while start < end and _is_mark(text[start]) and not _NUMBER.match(text, start):
        start += 1
    while start < end and _is_mark(text[end - 1]):
        end -= 1
    return text[start:end]


def _is_mark(letter: str) -> bool:
    return letter.isspace() or letter in _MARKS
