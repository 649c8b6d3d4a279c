"""Counts of n-grams, made on the host for many texts at once."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

Integers = np.ndarray


class Sequences(NamedTuple):
    """Sequences of items that are numbered from zero, one after the other."""

    items: Integers
    lengths: Integers

    @classmethod
    def of(cls, sequences: Iterable[Sequence[Hashable]]) -> Self:
        """Sequences of hashable items, such as words."""
        numbers: dict[Hashable, int] = {}
        items, lengths = [], []
        for sequence in sequences:
            items += [numbers.setdefault(item, len(numbers)) for item in sequence]
            lengths.append(len(sequence))
        return cls(np.array(items, np.int64), np.array(lengths, np.int64))

    @classmethod
    def of_characters(cls, texts: Sequence[str]) -> Self:
        """The characters of texts."""
        codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
        items = np.unique(codes, return_inverse=True)[1]
        return cls(items.astype(np.int64), np.array([len(text) for text in texts], np.int64))


class Grams(NamedTuple):
    """The distinct n-grams of each sequence, in order of `row * size + gram`."""

    row: Integers
    """The number of the sequence."""
    gram: Integers
    """The number of the n-gram: equal n-grams have equal numbers, below `size`."""
    times: Integers
    """The number of times that the sequence has it."""
    size: int

    @property
    def keys(self) -> Integers:
        return self.row * self.size + self.gram

    def split(self, row: int) -> tuple["Grams", "Grams"]:
        """The grams of the rows before this one, and of the others, whose rows start at zero."""
        at = np.searchsorted(self.row, row)
        first = Grams(self.row[:at], self.gram[:at], self.times[:at], self.size)
        rest = Grams(self.row[at:] - row, self.gram[at:], self.times[at:], self.size)
        return first, rest

    def greatest(self, group: Integers) -> "Grams":
        """The grams of groups of rows: each as often as the row of the group that has it most.

        Args:
            group: the number of the group of each row.
        """
        keys = group[self.row] * self.size + self.gram
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        if not len(starts):
            return self
        count = np.maximum.reduceat(self.times[order], starts)
        return Grams(*np.divmod(keys[starts], self.size), count, self.size)

    def matches(self, other: "Grams", row: Integers) -> Integers:
        """For each row of `other`, how many of its n-grams `row` of these has, with repetitions."""
        ours, keys = self.keys, row[other.row] * other.size + other.gram
        at = np.searchsorted(ours, keys)
        # A search that ends past the last key finds -1, which is no key.
        times = np.where(np.append(ours, -1)[at] == keys, np.append(self.times, 0)[at], 0)
        common = np.minimum(times, other.times)
        return np.bincount(other.row, common, len(row)).astype(np.int64)


def grams(sequences: Sequences, order: int) -> Iterator[Grams]:
    """The n-grams of sequences, for n from 1 to `order`."""
    items, lengths = sequences
    rows = len(lengths)
    row = np.repeat(np.arange(rows), lengths)
    # How many items there are from each one to the end of its sequence.
    rest = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(items))
    alphabet = int(items.max(initial=0)) + 1
    # The number of the n-gram that starts at each item: below `size`, in base `alphabet`.
    number, size = np.zeros_like(items), 1
    for n in range(1, order + 1):
        start = np.flatnonzero(rest >= n)
        # Before keys overflow, the n-grams are numbered anew, those that occur only.
        if size * alphabet * max(rows, 1) >= 2**62:
            distinct, number[start] = np.unique(number[start], return_inverse=True)
            size = len(distinct) + 1
        number[start] = number[start] * alphabet + items[start + n - 1]
        size *= alphabet
        keys, count = np.unique(row[start] * size + number[start], return_counts=True)
        yield Grams(*np.divmod(keys, size), count, size)


def gram_totals(lengths: Integers, n: int) -> Integers:
    """Counts the n-grams in sequences of these lengths."""
    return np.maximum(lengths - n + 1, 0)
