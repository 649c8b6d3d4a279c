"""The numbers that a procedure logs: what it returns, and what it hands to a logging library."""

import contextlib
import numbers
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import kind
from datarax._errors import MetricTypeError
from datarax._optional import optional
from datarax.io.tensorboard_writer import EventFile
from datarax.metric.base import Metric

Numbers = dict[str, np.ndarray]
"""Logged numbers by name, of which those of nested dicts are "a/b"."""
Put = Callable[[str, Any], None]
"""Takes the name and the value of what is logged."""


def returned_numbers(logged: object) -> Numbers:
    """The numbers in what a procedure returned; texts, `None` and other objects are left out.

    Raises:
        MetricTypeError: it is neither a dict nor `None`, or holds a metric in place of its results.
    """
    if logged is not None and not isinstance(logged, Mapping):
        raise MetricTypeError(
            f"audit: the procedure returned a {kind(logged)}; expected a dict of logged numbers"
        )
    return dict(_flat(logged, "")) if logged else {}


def _flat(node: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(node, Metric):
        raise MetricTypeError(
            f"audit: the procedure logs the metric {name!r} itself; expected its results()"
        )
    if isinstance(node, Mapping | list | tuple):
        for key, value in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from _flat(value, f"{name}/{key}" if name else str(key))
    elif (number := _number(node)) is not None:
        yield name, number


def _number(x: Any) -> np.ndarray | None:
    """A number or an array of numbers, copied; `None` for anything else."""
    # A tensor of PyTorch that has a gradient becomes no array of NumPy.
    x = x.detach() if hasattr(x, "detach") else x
    if not isinstance(x, numbers.Number) and not hasattr(x, "__array__"):
        return None
    array = np.array(x)
    if array.dtype == object and isinstance(x, numbers.Real):  # a fraction, an integer of 70 bits
        array = np.array(float(x))
    is_number = array.dtype == np.bool_ or jnp.issubdtype(array.dtype, jnp.number)
    return array if is_number else None


@contextlib.contextmanager
def capture(sources: tuple[str, ...]) -> Iterator[dict[str, Numbers]]:
    """Collects what is logged to some libraries within the block, by source and name.

    What is logged goes nowhere else, so the many calls of an audit leave no trace in a run. The
    libraries are left as they were, also if the block raises.

    Raises:
        MissingExtraError: a library is not installed.
    """
    found: dict[str, Numbers] = {source: {} for source in sources}
    with contextlib.ExitStack() as stack:
        for source in sources:

            def put(name: str, value: Any, into: Numbers = found[source]) -> None:
                into.update(_flat(value, name))

            stack.enter_context(SOURCES[source](put))
        yield found


@contextlib.contextmanager
def _wandb(put: Put) -> Iterator[None]:
    # `wandb.log`, which is bound to a run, and `Run.log` both end in `_log`. A disabled run has its
    # own `log`, which updates a summary.
    needs = partial(optional, extra="wandb", use='audit(capture=("wandb",))')
    owners = [
        (needs("wandb.sdk.wandb_run").Run, "_log"),
        (needs("wandb.sdk.lib.disabled").SummaryDisabled, "update"),
    ]

    def replacement(log: Callable[..., Any]) -> Callable[..., Any]:
        def captured(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(data, Mapping):
                return log(self, data, *args, **kwargs)  # which raises
            for name, value in data.items():
                put(str(name), value)

        return captured

    with contextlib.ExitStack() as stack:
        for owner, name in owners:
            stack.enter_context(patch.object(owner, name, replacement(getattr(owner, name))))
        yield


@contextlib.contextmanager
def _tensorboard(put: Put) -> Iterator[None]:
    # The writers of PyTorch and of tensorboardX end in `add_event` of one of two classes. Those of
    # clu and of Flax call `tf.summary.scalar`, which ends in an operation of TensorFlow.
    names = "tensorboardX.event_file_writer", "tensorboard.summary.writer.event_file_writer"
    writers = [module.EventFileWriter for name in names if (module := _imported(name))]
    operations = _imported("tensorflow.python.ops.gen_summary_ops")
    if not writers and not operations:
        optional("tensorboardX", "tensorboard", 'audit(capture=("tensorboard",))')
    writers.append(EventFile)
    folders: dict[str, list[str]] = {}

    def put_from(folder: str, tag: str, value: Any) -> None:
        # Writers in several folders, such as those of training and evaluation, log equal tags.
        seen = folders.setdefault(tag, [])
        if folder not in seen:
            seen.append(folder)
        place = seen.index(folder)
        put(f"{tag}#{place + 1}" if place else tag, value)

    def replacement(add_event: Callable[..., Any]) -> Callable[..., Any]:
        def captured(self: Any, event: Any) -> None:
            if not event.summary.value:
                add_event(self, event)
            for each in event.summary.value:
                if each.HasField("simple_value"):
                    put_from(str(self.get_logdir()), each.tag, each.simple_value)
                elif each.metadata.plugin_data.plugin_name == "scalars":
                    put_from(str(self.get_logdir()), each.tag, _of_tensor(each.tensor))

        return captured

    def write_summary(
        writer: Any, step: Any, tensor: Any, tag: str, summary_metadata: bytes, **_: Any
    ) -> None:
        if b"scalars" in summary_metadata:
            put_from(str(id(writer)), str(tag), tensor.numpy())

    with contextlib.ExitStack() as stack:
        for writer in writers:
            stack.enter_context(patch.object(writer, "add_event", replacement(writer.add_event)))
        if operations:
            stack.enter_context(patch.object(operations, "write_summary", write_summary))
        yield


def _imported(name: str) -> Any:
    """A module, or `None` if its package is not installed."""
    try:
        return import_module(name)
    except ImportError:
        return None


def _of_tensor(tensor: Any) -> float:
    """The number in the protocol buffer of a scalar tensor."""
    return tensor.float_val[0] if tensor.float_val else tensor.double_val[0]


@contextlib.contextmanager
def _jax_monitoring(put: Put) -> Iterator[None]:
    def listen(*given: Any, **_: Any) -> None:
        event, value = given
        # JAX records the times of its own work below this name.
        if not event.startswith("/jax/"):
            put(event, value)

    jax.monitoring.register_scalar_listener(listen)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield
    finally:
        jax.monitoring.unregister_scalar_listener(listen)
        jax.monitoring.unregister_event_duration_listener(listen)


SOURCES: Mapping[str, Callable[[Put], contextlib.AbstractContextManager[None]]] = {
    "wandb": _wandb,
    "tensorboard": _tensorboard,
    "jax.monitoring": _jax_monitoring,
}
"""What `capture=` may name."""
