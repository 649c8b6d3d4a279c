"""`TextMetric`: the base of metrics of strings, which are counted on the host."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import jax
import numpy as np
from jax.core import Tracer

from datarax._checks import kind, warn
from datarax._errors import DataraxError, MetricInputError, MetricTypeError, ReferencesWarning
from datarax._typing import PyTree, Weights
from datarax._update_context import update_context
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metric.arguments import Call, is_numbers, refuse_unknown_arguments
from datarax.metric.base import Metric
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import InvalidCounts, not_finite
from datarax.statistics.scaled_total import ScaledTotal, quotient

Texts = Sequence[str]
References = Sequence[str | Sequence[str]]


class CountedText(Metric):
    """A metric whose `calls` turns strings into arrays, one row for each text.

    All that follows, also within wrappers, sees the arrays only: `apply` folds them into the state.
    So strings can be used outside `jit`, and an update is one compiled program after the counting.
    """

    tasks = ("text",)

    def update(self, *args: PyTree, **kwargs: PyTree) -> Self:
        return self.apply(self.calls(args, kwargs))

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> Call:
        refuse_unknown_arguments(self, args, kwargs)
        given = self.counts_of(*args, **kwargs)
        arrays = {name: x for name, x in given.items() if x is not None}
        return Call((), arrays, type(self).__name__, tuple(given), ())

    def counts_of(self, *args: PyTree, **kwargs: PyTree) -> dict[str, PyTree]:
        """Returns what `apply` takes, by name: arrays of one row for each text, and `weights`."""
        raise TypeError(f"{type(self).__name__} does not define counts_of()")


class TextMetric(CountedText):
    """A formula of the sums of some numbers of each text; a subclass defines the numbers.

    A weight multiplies the numbers of a text, so a weight of 2 is the same as a repetition. Sums of
    integers are exact to 2**48.
    """

    several: ClassVar[bool] = True
    """True if a text may have several references."""

    sums: ScaledTotal = state()
    """The sums of the numbers, and the weight of all texts."""
    terms_by_row = True
    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        self.sums = ScaledTotal((self.width + 1,))

    @property
    def width(self) -> int:
        """The numbers that are counted of each text."""
        raise TypeError(f"{type(self).__name__} does not define width")

    def numbers(self, preds: list[str], references: list[list[str]]) -> np.ndarray:
        """The numbers of each text, (N, width): int32, or float64."""
        raise TypeError(f"{type(self).__name__} does not define numbers()")

    def update(self, preds: Texts, target: References, *, weights: Weights = None) -> Self:
        """A new metric with the texts folded in. The strings are counted on the host.

        Args:
            preds: N texts.
            target: the reference of each, or a list of references of each, where several are
                allowed. N lists of N references each may be meant the other way round, as
                sacrebleu takes them, and warn; tuples do not.
            weights: of the texts, (N,), or one for all.

        Raises:
            MetricInputError: there is not one reference, or a list of them, for each text.
            MetricTypeError: anything but strings.
        """
        return self.apply(self.calls((preds, target), {"weights": weights}))

    def counts_of(
        self, preds: Texts, target: References, *, weights: Weights = None
    ) -> dict[str, PyTree]:
        given = target  # the warning is about the lists as they were given
        preds, target = unread_where_zero(weights, preds, target)
        name = type(self).__name__
        texts = checked_texts(preds, f"{name}: preds")
        if self.several:
            _warn_of_two_readings(given, len(texts), name)
        references = checked_references(target, len(texts), self.several, name)
        numbers = self.numbers(texts, references) if texts else np.zeros((0, self.width), np.int32)
        return {"numbers": numbers.reshape(len(texts), self.width), "weights": weights}

    def apply(self, calls: PyTree) -> Self:
        x = xp.asarray(calls.kwargs["numbers"])  # on the host of float64, which `numeric` rounds
        w, invalid = rows_weight(not_finite(x, -1), calls.kwargs.get("weights"))
        # The ones give the weight of all texts as the last of the sums.
        x = xp.concatenate([x, xp.ones_like(x[:, :1])], 1)
        return self.replace(
            sums=self.sums.combine(self.sums.emptied().of(x, w[:, None])),
            invalid=self.invalid.update(invalid),
        )

    def sum(self, column: int) -> DoubleFloat:
        """The sum of one of the numbers; -1 is the weight of all texts."""
        return self.sums[column].double

    @property
    def number_sums(self) -> jax.Array:
        """The sum of each of the numbers, (width,), as floats."""
        return self.sums.double.map(lambda x: x[:-1]).to_float()

    @property
    def is_empty(self) -> jax.Array:
        """True if there are no texts."""
        return self.sum(-1).high == 0


class TextRatio(TextMetric):
    """The quotient of the sums of the first two numbers of each text."""

    higher_is_better = False
    width: ClassVar[int] = 2  # type: ignore[assignment]

    def compute(self) -> PyTree:
        return quotient(self.sums[0], self.sums[1])

    def as_ratio(self) -> tuple[DoubleFloat, DoubleFloat]:
        return self.sum(0), self.sum(1)


class TextMean(TextRatio):
    """The mean of one number of each text, which a subclass defines in `numbers`."""

    higher_is_better = None
    # The sum that follows the only number is the weight of all texts.
    width: ClassVar[int] = 1


def checked_texts(texts: PyTree, name: str, row: int | None = None) -> list[str]:
    """A list of strings: of the texts of some rows, or all of one `row`.

    Raises:
        MetricTypeError: it is none.
    """
    if isinstance(texts, str):
        raise MetricTypeError(f"{name} is a string; expected a list of strings: [{texts[:20]!r}]")
    texts = _as_list(texts)
    if not isinstance(texts, list | tuple):
        raise MetricTypeError(f"{name} is {_kind(texts)}; expected a list of strings{_hint(texts)}")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            error = MetricTypeError(
                f"{name}[{index}] is {_kind(text)}; expected a string{_hint(text)}"
            )
            raise _about(error, index if row is None else row)
    return list(texts)


def _about(error: DataraxError, row: int) -> DataraxError:
    """The error, which is about this row."""
    error.row = row
    return error


def _kind(x: PyTree) -> str:
    return f"an array of {x.dtype}" if hasattr(x, "dtype") else kind(x)


def _hint(x: PyTree) -> str:
    """Says what to do if a number, a list of numbers or an array is given for texts."""
    if isinstance(x, int | float) or hasattr(x, "dtype") or (x and is_numbers(x)):
        return ". Decode token ids to strings first, as batch_decode of a tokenizer does"
    return ""


def checked_references(target: PyTree, size: int, several: bool, metric: str) -> list[list[str]]:
    """The references of each text.

    Raises:
        MetricInputError: there is not one, or a list of them, for each of `size` texts.
        MetricTypeError: anything but strings.
    """
    target = _as_list(target)
    if not isinstance(target, list | tuple):
        raise MetricTypeError(
            f"{metric}: target is {_kind(target)}; expected a list, one entry for each text"
            f"{_hint(target)}"
        )
    if len(target) != size:
        hint = ""
        if several and all(isinstance(x, list | tuple) and len(x) == size for x in target):
            hint = f". If {_TRANSPOSED}"
        raise MetricInputError(
            f"{metric}: {size} preds and {len(target)} targets; expected one target for each of "
            f"the preds{hint}"
        )
    references = []
    for index, each in enumerate(target):
        if not isinstance(each, str) and not several:
            error = MetricTypeError(
                f"{metric}: target[{index}] is {kind(each)}; expected a string: it takes one "
                f"reference for each text{_hint(each)}"
            )
            raise _about(error, index)
        if not isinstance(each, str):
            each = checked_texts(each, f"{metric}: target[{index}]", index)
        if not each and not isinstance(each, str):
            error = MetricInputError(
                f"{metric}: target[{index}] is an empty list; expected at least one reference"
            )
            raise _about(error, index)
        each = [each] if isinstance(each, str) else each
        references.append(each)
    return references


_TRANSPOSED = (
    "target has a list for each set of references, as sacrebleu takes them, give list(zip(*target))"
)


def _warn_of_two_readings(target: PyTree, size: int, metric: str) -> None:
    """Warns if the references of N texts are N lists of N, which may be meant in two ways."""
    if size < 2 or not isinstance(target, list | tuple) or len(target) != size:
        return
    if update_context.get().checks == "none":
        return
    if all(isinstance(x, list) and len(x) == size for x in target):
        warn(
            f"{metric}: {size} preds and {size} lists of {size} references can be read in two "
            f"ways. target[0] is taken for the references of preds[0], and so on. If "
            f"{_TRANSPOSED}. If it is right, give tuples, which do not warn: "
            f"[tuple(each) for each in target]",
            ReferencesWarning,
        )


def unread_where_zero(weights: Weights, *lists: PyTree) -> tuple[PyTree, ...]:
    """The lists with an empty text in the place of those whose weight is zero."""
    if weights is None or isinstance(weights, Tracer) or np.ndim(weights) != 1:
        return lists
    known = np.asarray(weights)
    zero = np.flatnonzero(known == 0)

    def without(texts: PyTree) -> PyTree:
        texts = _as_list(texts)
        if not isinstance(texts, list | tuple) or len(texts) != len(known):
            return texts
        texts = list(texts)
        for index in zero:
            texts[index] = ""
        return texts

    return tuple(map(without, lists))


def _as_list(x: PyTree) -> PyTree:
    # An update outside `jit` makes an array of an empty list.
    if getattr(x, "shape", None) == (0,):
        return []
    is_known = isinstance(x, np.ndarray | jax.Array) and not isinstance(x, Tracer)
    return np.asarray(x).tolist() if is_known else x


def flat(references: list[list[str]]) -> tuple[list[str], np.ndarray]:
    """All references, and the number of the text of each."""
    owner = np.repeat(np.arange(len(references)), [len(each) for each in references])
    return [text for each in references for text in each], owner
