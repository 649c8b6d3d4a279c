"""The exception tree. Every error datarax raises on purpose is a `DataraxError` and a built-in.

The second base is the built-in a caller would expect (`ValueError` for a bad value, `NameError`
for an unbound axis, as `jax.lax` raises), so code that catches built-ins keeps working.
"""


class DataraxError(Exception):
    """Base of every error that datarax raises on purpose."""


class MetricInputError(DataraxError, ValueError):
    """An argument whose shape, value or combination cannot be used."""


class MetricTypeError(DataraxError, TypeError):
    """An argument whose type or dtype cannot be used."""


class UnknownMetricError(DataraxError, ValueError):
    """A name that the metrics at hand do not have."""


class UnknownReductionError(DataraxError, ValueError):
    """An operation that is not in the closed table."""


class AxisNotBoundError(DataraxError, NameError):
    """A collective called where its axis name is not bound."""


class NotAddressableError(DataraxError, RuntimeError):
    """An array that this process holds only a part of, or that the others know nothing of."""


class ConfigurationMismatchError(DataraxError, ValueError):
    """Two states that may not be merged, synced or restored into each other."""


class InvalidValuesError(DataraxError, ValueError):
    """NaN, infinities or labels out of range were seen, and the policy is to raise."""


class InvalidValuesWarning(UserWarning):
    """Some of the data could not be used, and was excluded."""


class MetricTimeoutError(DataraxError, TimeoutError):
    """A window, or another process, that was waited for in vain."""


class WindowError(DataraxError, RuntimeError):
    """A window whose computation failed; the cause is chained."""


class CollectorStateError(DataraxError, RuntimeError):
    """A call to a collector out of order."""


class CheckpointError(DataraxError, ValueError):
    """A checkpoint that cannot be written, is incomplete or damaged, or is of a newer format."""
