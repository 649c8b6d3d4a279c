"""The exceptions of datarax. Each is a `DataraxError` and also a built-in exception.

The built-in is the one that a caller expects: `ValueError` for a bad value, `NameError` for an
unbound axis, as in `jax.lax`. So code that catches built-in exceptions keeps working.
"""

from collections.abc import Sequence


class DataraxError(Exception):
    """The base class of every error that datarax raises on purpose."""

    row: int | None = None
    """The row of the batch that the error is about, if it is about one: from 0."""


class MetricInputError(DataraxError, ValueError):
    """An argument has a wrong shape or value, or two arguments do not go together."""


class MetricTypeError(DataraxError, TypeError):
    """An argument has a wrong type or dtype."""


class TracedValueError(MetricTypeError):
    """A value is needed on the host that is traced, and so not known."""


class UnknownMetricError(DataraxError, ValueError):
    """A name is not among the names of the given metrics."""


class UnknownReductionError(DataraxError, ValueError):
    """The name of a reduction is not "mean", "sum", "max" or "min"."""


class AxisNotBoundError(DataraxError, NameError):
    """A collective was called where its axis name is not bound."""


class NotAddressableError(DataraxError, RuntimeError):
    """On several processes, an array has the wrong layout for the call.

    Either this process holds only a part of an array that it needs in full, or it is the only
    process that holds an array that should be global.
    """


class ConfigurationMismatchError(DataraxError, ValueError):
    """Two metrics differ in class or configuration: they cannot be merged, synced or restored."""


class DonatedStateError(DataraxError, RuntimeError):
    """A metric is used again after a compiled step donated its arrays, which deletes them."""


class InvalidValuesError(DataraxError, ValueError):
    """The data held NaN, infinities or labels out of range, and `on_invalid` is "raise"."""


class InvalidValuesWarning(UserWarning):
    """Some of the data could not be used: NaN, infinities, labels out of range."""


class PrecisionWarning(UserWarning):
    """A result is an estimate, and the bounds on the exact value are far apart."""


class PlatformWarning(UserWarning):
    """A program that holds float64 is lowered for a TPU: see `datarax.lowering_for`."""


class UndefinedMetricWarning(UserWarning):
    """A ratio is 0/0, and counts as 0 because `zero_division` is not given."""


class ScoresWarning(UserWarning):
    """Scores are probably of another kind than the metric takes them for.

    Scores that are not from 0 to 1 are compared with a threshold of probabilities; logits of
    different rows are compared; probabilities are taken for logits; a loss is negative. Every
    update counts such scores in the state. `compute` and `results` outside `jit`, and a collector,
    warn of them.
    """


class CutGroupsWarning(UserWarning):
    """Rows that belong together, such as the documents of a query, were in several updates.

    Each part counted as a group of its own, so the result is wrong.
    """


class ReferencesWarning(UserWarning):
    """The references of N texts are N lists of N, which may be meant the other way round."""


class NoWordsWarning(UserWarning):
    """Texts that have letters have no words, because a tokenizer is made for other languages."""


class MetricTimeoutError(DataraxError, TimeoutError):
    """A window did not finish, or another process did not arrive, within the timeout."""


class WindowError(DataraxError, RuntimeError):
    """The computation of a window failed; the original error is chained as its cause."""


class CollectorStateError(DataraxError, RuntimeError):
    """A method of a collector was called in the wrong order."""


class CheckpointError(DataraxError, ValueError):
    """A checkpoint cannot be written, is incomplete or damaged, or has another format version."""


class EvaluationError(DataraxError, RuntimeError):
    """A part of a file was not evaluated, because its worker died; the error names the file."""


class MissingExtraError(DataraxError, ImportError):
    """An optional dependency is not installed; the message names the extra that installs it."""


class WriterError(DataraxError, RuntimeError):
    """A writer could not write results; the cause is chained."""


class WriterWarning(UserWarning):
    """A writer could not write results, and `on_error` is "warn"."""


class AuditError(DataraxError, AssertionError):
    """A procedure logs other numbers for the same rows; the message is the table of an audit."""


def all_of(errors: Sequence[Exception]) -> Exception:
    """The first of some errors, with a note for each of the others, so that it keeps its type."""
    first, *others = errors
    for each in others:
        first.add_note(f"also {type(each).__name__}: {each}")
    return first
