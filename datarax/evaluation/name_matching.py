"""Matches columns of scores with the names of classes, labels or outputs."""

import re
import unicodedata
from collections.abc import Iterator, Sequence

_BREAK = re.compile(r"[\W_]+")
_SCORES = {"p", "prob", "probs", "proba", "probability", "score", "scores", "logit", "logits"} | {
    *("pred", "preds", "prediction", "predicted", "confidence", "y", "hat", "of", "class")
}
"""Words in the names of columns of scores that say nothing of the class."""


def in_order_of(columns: Sequence[str], names: Sequence[str]) -> tuple[str, ...] | None:
    """The names in the order of the columns that have them; None if that is not unique.

    A column has a name if it is the name between a beginning and an end that all columns share:
    "p_cat" and "p_dog" have "cat" and "dog". Case and signs count only where a match needs them,
    and so do a beginning and an end that all names share, if there is a name for each column.

    Args:
        columns: the columns.
        names: the names, of some columns or of all. A column whose name is not among them gets what
            is left of it.
    """
    if not names:
        return None
    stripped = [name[i : len(name) - j] for i, j in [next(_cuts(names))] for name in names]
    for given in (names, stripped) if len(names) == len(columns) else (names,):
        for at_words in (True, False):
            for change in (str, str.casefold, _folded):
                of = dict(zip(map(change, given), names, strict=True))
                changed = [*map(change, columns)]
                if len(of) < len(names) or "" in of:
                    continue
                found = [
                    (i, j)
                    for i, j in _cuts(changed, at_words=at_words)
                    if of.keys() <= {x[i : len(x) - j] for x in changed}
                ]
                if len(found) > 1:
                    return None
                for i, j in found:
                    rest = [x[i : len(x) - j] for x in changed]
                    # As they are written, if that has as many letters.
                    kept = columns if [*map(len, changed)] == [*map(len, columns)] else changed
                    written = [x[i : len(x) - j] for x in kept]
                    return tuple(of.get(x, own) for x, own in zip(rest, written, strict=True))
    return None


def named_by(column: str, names: Sequence[str]) -> str | None:
    """The only name that a column of scores has beside words such as "prob"; None if none is.

    So "prob_no" has "no", and "no_show_prob" has not.
    """
    words = _words(column)
    found = [
        name
        for name in names
        if any(map(str.isalpha, name))
        for size in [len(_words(name))]
        if _words(name) in (words[:size], words[-size:])
        and (_SCORES.issuperset(words[size:]) or _SCORES.issuperset(words[:-size]))
    ]
    return found[0] if len(found) == 1 else None


def look_alikes(names: Sequence[str]) -> list[list[str]]:
    """The names that differ in case, white space or Unicode form alone, together."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(" ".join(unified(name).split()).casefold(), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def unified(name: str) -> str:
    """The name in one Unicode form: an accent may be a part of a letter, or follow it."""
    return unicodedata.normalize("NFKC", name)


def _cuts(names: Sequence[str], *, at_words: bool = True) -> Iterator[tuple[int, int]]:
    """The lengths of a beginning and an end that all names share, the longest first.

    With `at_words` they are whole words.
    """
    ends = [name[::-1] for name in names]
    sizes = []
    for each in (names, ends):
        first, last = min(each), max(each)
        pairs = zip(first, last, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(last)))
        sizes.append(
            [i for i in range(same, 0, -1) if not at_words or _BREAK.match(first[i - 1])] + [0]
        )
    shortest = min(map(len, names))
    return ((i, j) for i in sizes[0] for j in sizes[1] if i + j < shortest or not i + j)


def _words(name: str) -> list[str]:
    return _folded(name).split("_") if _folded(name) else []


def _folded(name: str) -> str:
    return _BREAK.sub("_", name.casefold()).strip("_")
