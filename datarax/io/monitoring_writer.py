"""`MonitoringWriter`: scalars of `jax.monitoring`, for whatever listens to them."""

import jax.monitoring

from datarax.io.writer import Items, OnError, Step, Writer


class MonitoringWriter(Writer):
    """Records numbers as scalars of `jax.monitoring`, from where other tools take them.

    Every number is one event, `prefix` and its name, with `step` as an argument: a number, or else
    text. Arrays, curves, text and `None` are left out, as such an event holds one number. The
    listeners run on the thread of the writer.

    Args:
        prefix: what is put before the names; those of JAX begin with "/jax/".
        on_error: see `Writer`. An error of a listener counts as one of writing.

    Raises:
        MetricInputError: an `on_error` that is unknown.

    Example:
        >>> import jax
        >>> from datarax.io import MonitoringWriter
        >>> def listener(event, value, **kwargs):
        ...     print(event, value, kwargs)
        >>> jax.monitoring.register_scalar_listener(listener)
        >>> with MonitoringWriter("/my_run/") as writer:
        ...     writer.write(100, {"loss": 0.5, "tokens": 4096})
        /my_run/loss 0.5 {'step': 100}
        /my_run/tokens 4096 {'step': 100}
        >>> jax.monitoring.unregister_scalar_listener(listener)
    """

    def __init__(self, prefix: str = "/datarax/", *, on_error: OnError = "warn"):
        super().__init__(on_error=on_error)
        self._prefix = prefix

    def put(self, step: Step, items: Items) -> None:
        at = step if isinstance(step, str) else int(step)
        for name, value in items.items():
            if isinstance(value, int | float):
                jax.monitoring.record_scalar(f"{self._prefix}{name}", value, step=at)
