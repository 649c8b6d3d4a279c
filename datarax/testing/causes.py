"""The likely causes of a change: what each predicts of the number, and whether that is so."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from datarax.testing.logged_numbers import Numbers
from datarax.testing.procedure import Procedure
from datarax.testing.rounding import Rounding, as_double
from datarax.testing.rows import Rows, join
from datarax.testing.variations import ALL_DOUBLED, RAGGED, WITHOUT, Variation, repeat

# A number may be a function of a mean or a sum: a perplexity, the root of an error.
FORMS: tuple[tuple[Callable, Callable], ...] = (
    (lambda x: x, lambda x: x),
    (np.log, np.exp),
    (np.square, np.sqrt),
    (np.sqrt, np.square),
)
"""Functions and their inverses."""


class Experiments:
    """Calls of the procedure that tell causes apart, each made once, and only where it is asked.

    All numbers of a variation share them.
    """

    def __init__(self, procedure: Procedure, variation: Variation, rows: Rows):
        self._procedure, self.variation, self._rows = procedure, variation, rows

    def _call(self, batches: list[Rows]) -> Numbers:
        """The numbers of a call; none if the procedure cannot take these batches."""
        logged = self._procedure.try_call(batches)
        return {} if isinstance(logged, Exception) else logged

    @cached_property
    def batches(self) -> list[Numbers]:
        """The numbers of each batch alone."""
        return [self._call([batch]) for batch in self.variation.batches]

    @cached_property
    def parts(self) -> list[list[Numbers]]:
        """The numbers of each micro-batch, or of each device: blocks, or every k-th row."""
        count, batches = self.variation.parts, self.variation.batches
        if count == 1:
            return []
        blocks = [np.array_split(np.arange(len(each)), count) for each in batches]
        strides = [[np.arange(i, len(each), count) for i in range(count)] for each in batches]
        return [
            [self._call([x.take(at)]) for x, cut in zip(batches, cuts, strict=True) for at in cut]
            for cuts in (blocks, strides)
        ]

    @cached_property
    def fewer(self) -> list[Numbers]:
        """The numbers without some rows: a batch, the short batches, what short ones lack."""
        batches = self.variation.batches
        least, most = min(map(len, batches)), max(map(len, batches))
        kept = [batches[:-1], batches[1:]]
        if least < most:
            kept.append([each for each in batches if len(each) == most])
            kept.append([each.take(slice(least)) for each in batches])
        return [self._call([join(each)]) for each in kept if each]

    @cached_property
    def more(self) -> list[Numbers]:
        """The numbers with rows that count twice: a batch, or rows that fill short batches up."""
        batches = self.variation.batches
        first, last, every = batches[0], batches[-1], join(batches)
        extra = [[last], [first]]
        most = max(map(len, batches))
        for short in [last], [each for each in batches if len(each) < most]:
            fills = [(most - len(each), each) for each in short if len(each) < most]
            if fills:
                extra.append([x.take(np.arange(count) % len(x)) for count, x in fills])
                extra.append([x.take(np.full(count, len(x) - 1)) for count, x in fills])
                extra.append([every.take(slice(count)) for count, _ in fills])
        before = len(every) - most
        extra.append([every.take(slice(before, len(every) - len(last)))])
        return [self._call([join([*batches, *each])]) for each in extra]

    @cached_property
    def four_times(self) -> Numbers:
        """The numbers if each row whose weight was doubled is there four times."""
        chosen = self.variation.chosen
        return {} if chosen is None else self._call([repeat(self._rows, chosen, 4)])


@dataclass(frozen=True)
class Facts:
    """What is known of one number from all variations.

    Attributes:
        name: its name.
        rounding: the differences that rounding explains.
        values: the number in each variation; `None` where it is missing.
        base: the number with all rows in one batch.
        doubled: the same with each row twice.
        changed: the variations in which it changed, by name.
    """

    name: str
    rounding: Rounding
    values: Mapping[str, np.ndarray | None]
    base: np.ndarray | None
    doubled: np.ndarray | None
    changed: Mapping[str, Variation]

    def is_multiple_in(self, variation: str, factor: float) -> bool:
        """True if the number is the factor times its base in a variation."""
        value = self.values.get(variation)
        if value is None or self.base is None or value.shape != self.base.shape:
            return False
        return np.allclose(as_double(value), factor * as_double(self.base), rtol=1e-4, atol=0)

    def depends_on_rows(self) -> bool:
        """True if the rows of one batch in another order give another number."""
        return any(x.kind == "order" and len(x.batches) == 1 for x in self.changed.values())

    def depends_on_order(self) -> bool:
        """True if the same batches in another order give another number, or the rows of one do."""
        ragged, swapped = map(self.values.get, (RAGGED, f"{RAGGED} reversed"))
        return self.depends_on_rows() or self.rounding.differs(ragged, swapped)


@dataclass(frozen=True)
class Case:
    """One change of a number: the number that was expected in a variation, and the one that came.

    Either is `None` where there is none.
    """

    facts: Facts
    experiments: Experiments
    expected: np.ndarray | None
    got: np.ndarray | None

    @property
    def variation(self) -> Variation:
        """The arguments that were varied."""
        return self.experiments.variation

    @cached_property
    def numbers(self) -> tuple[np.ndarray, np.ndarray] | None:
        """What was expected and what came, in double precision; `None` if their shapes differ."""
        if self.expected is None or self.got is None or self.expected.shape != self.got.shape:
            return None
        return as_double(self.expected), as_double(self.got)

    def is_got(self, prediction: np.ndarray | None) -> bool:
        """True if a prediction is the number that came, to 1e-5 of it and of the change."""
        if self.numbers is None or prediction is None or prediction.shape != self.numbers[1].shape:
            return False
        expected, got = self.numbers
        predicted = as_double(prediction)
        change = np.minimum(abs(got - expected), abs(got))
        near = np.maximum(1e-5 * change, 2 * self.facts.rounding.bound(predicted, got))
        never = np.isnan(expected) & np.isnan(got) & np.isnan(predicted)
        return bool((never | (abs(predicted - got) <= near)).all())

    def any_is_got(self, calls: list[Numbers]) -> bool:
        """True if one of the experiments gives the number that came."""
        return any(self.is_got(call.get(self.facts.name)) for call in calls)

    def means(self, pieces: list[Numbers], factor: float = 1.0) -> Iterator[np.ndarray]:
        """A multiple of the mean over pieces of the number, or of a form of it."""
        values = [piece[self.facts.name] for piece in pieces if self.facts.name in piece]
        if len(values) == len(pieces) > 0 and len({x.shape for x in values}) == 1:
            for form, inverse in FORMS:
                yield inverse(factor * np.mean([form(as_double(x)) for x in values], axis=0))

    def is_multiple(self, factor: float) -> bool:
        """True if the number is multiplied by a factor, in some form: of itself or of its parts."""
        # A power of a small number is near 0, but no multiple is 0.
        if self.numbers is None or not self.numbers[1].any():
            return False
        whole = [{self.facts.name: self.numbers[0]}]
        return any(
            self.is_got(prediction)
            for pieces in (whole, *self.experiments.parts)
            for prediction in self.means(pieces, factor)
        )


def _mean_of_means(case: Case) -> bool:
    # Batches that are padded to one size have the mean of their means, if the padding counts.
    if case.variation.kind == "padding" and RAGGED not in case.facts.changed:
        return False
    # A sum, and a mean with another divisor than its weight, changes if each row is there twice.
    if case.facts.rounding.differs(case.facts.base, case.facts.doubled):
        return False
    pieces = [case.experiments.batches] if len(case.variation.batches) > 1 else []
    pieces += case.experiments.parts
    return any(case.is_got(mean) for each in pieces for mean in case.means(each))


def _nan_from_padding(case: Case) -> bool:
    if case.variation.kind != "padding" or case.numbers is None:
        return False
    expected, got = map(np.isfinite, case.numbers)
    return bool((expected & ~got).any())


def _padding_counted(case: Case) -> bool:
    # Such a variation differs from the other one in nothing but padded rows.
    if case.variation.kind != "padding" or case.numbers is None:
        return False
    return bool(np.isfinite(case.numbers[1]).all())


def _weights_ignored(case: Case) -> bool:
    # A mean whose weights are ignored below the line is doubled by weights of 2.
    in_part = case.facts.is_multiple_in(ALL_DOUBLED, 2) and WITHOUT in case.facts.changed
    return case.variation.kind == "weights" and (case.is_got(case.facts.base) or in_part)


def _weights_applied_twice(case: Case) -> bool:
    if case.variation.kind != "weights":
        return False
    # A mean with squared weights above the line alone is doubled too, but not by weights of 0.
    in_part = case.facts.is_multiple_in(ALL_DOUBLED, 2) and WITHOUT not in case.facts.changed
    return in_part or case.any_is_got([case.experiments.four_times])


def _scaled(kind: str, power: int) -> Callable[[Case], bool]:
    """True if the number is multiplied by a power of the number of micro-batches or devices."""
    return lambda case: (
        case.variation.kind == kind and case.is_multiple(float(case.variation.parts) ** power)
    )


def _cuts_matter(case: Case) -> bool:
    """True if the rows are cut into batches, without padding, and their order does not matter."""
    several = len(case.variation.batches) > 1 and case.variation.kind != "padding"
    return several and not case.facts.depends_on_rows()


def _rows_lost(case: Case) -> bool:
    return _cuts_matter(case) and case.any_is_got(case.experiments.fewer)


def _rows_counted_twice(case: Case) -> bool:
    return _cuts_matter(case) and case.any_is_got(case.experiments.more)


def _depends_on_order(case: Case) -> bool:
    if case.variation.kind == "order" or case.facts.depends_on_order():
        return case.variation.kind in ("order", "batches", "micro")
    ends = case.experiments.batches if len(case.variation.batches) > 1 else []
    return case.any_is_got([*ends[:1], *ends[-1:]])


CAUSES: Mapping[str, Callable[[Case], bool]] = {
    "NaN from padding": _nan_from_padding,
    "weights ignored": _weights_ignored,
    "weights applied twice": _weights_applied_twice,
    "multiplied by devices": _scaled("devices", 1),
    "summed over micro-batches": _scaled("micro", 1),
    "divided by micro-batches": _scaled("micro", -1),
    "mean of means": _mean_of_means,
    "rows lost": _rows_lost,
    "rows counted twice": _rows_counted_twice,
    "padding counted": _padding_counted,
    "depends on order": _depends_on_order,
    "depends on batch size": lambda case: case.variation.kind == "batches",
}
"""The tests of whether a cause fits a case, by its name; the most specific comes first."""


def causes_of(case: Case) -> tuple[str, ...]:
    """All causes that fit, best first."""
    with np.errstate(all="ignore"):
        return tuple(cause for cause, fits in CAUSES.items() if fits(case))


ADVICE: Mapping[str, str] = {
    "mean of means": "the mean of the values of batches, devices or micro-batches; add up totals "
    "and weights, and divide once",
    "padding counted": "padded rows count; leave them out of the sum and of what divides it",
    "NaN from padding": "0 * NaN is NaN; leave padded rows out with jnp.where(mask, x, 0)",
    "depends on batch size": "another formula for each batch, which cannot be merged; keep totals "
    "and compute the number once, at the end",
    "depends on order": "the last batch, or a moving average, in place of all rows",
    "multiplied by devices": "a sum over devices of what is a sum already; one psum too many",
    "summed over micro-batches": "the means of micro-batches are added up; divide by their number",
    "divided by micro-batches": "divided by the number of micro-batches once too often",
    "weights ignored": "the number, or what it is divided by, does not use the weights",
    "weights applied twice": "the number uses the square of the weights",
    "rows lost": "a batch, or the end of one, is dropped; do not drop the remainder",
    "rows counted twice": "a short batch is filled up with real rows; pad it, and mask the padding",
    "unknown": "none of the known causes fits",
}
"""The text of each cause and its remedy, for the report."""
