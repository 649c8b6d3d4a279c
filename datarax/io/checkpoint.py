"""Saving and restoring metrics with Orbax: the arrays of the state, and the configuration."""

import hashlib
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from datarax._errors import CheckpointError, DataraxError, MetricTypeError, NotAddressableError
from datarax._typing import PyTree
from datarax.metrics.base import Metric

FORMAT = 3
"""The version of the layout that `pack` writes. `unpack` reads no other version."""

M = TypeVar("M", bound=Metric)


def save(path: str | Path, metric: Metric, *, overwrite: bool = False) -> None:
    """Writes the state and the configuration of a metric to a folder.

    A `per_device` metric is synced first and saved as a plain metric, so it can be restored on any
    number of devices.

    Writing is atomic: if the process ends in the middle, there is no incomplete folder at `path`.
    With `overwrite`, the old folder is deleted only after the new one is complete. On several
    processes, all must call `save`, with a folder that they share.

    Args:
        path: the folder to make.
        metric: any datarax metric.
        overwrite: whether to replace an existing folder.

    Raises:
        CheckpointError: the folder exists already, or it cannot be written.
        MetricTypeError: `metric` is not a metric.
        NotAddressableError: there are several processes, and only this process holds the state.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> import datarax.io
        >>> from datarax.metrics import Mean
        >>> path = f"{tempfile.mkdtemp()}/mean"
        >>> datarax.io.save(path, Mean().update(jnp.array([1.0, 2.0])))
        >>> print(datarax.io.restore(path, like=Mean()).compute())
        1.5
    """
    ocp = _orbax()
    folder = Path(path).absolute()
    arrays, info = pack(metric)
    if folder.exists() and not overwrite:
        raise CheckpointError(f"save: {folder} exists already; pass overwrite=True to replace it")
    items = ocp.args.Composite(arrays=ocp.args.PyTreeSave(arrays), info=ocp.args.JsonSave(info))
    new, old = _beside(folder)
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            checkpointer.save(new if overwrite else folder, args=items, force=overwrite)
        if overwrite and jax.process_index() == 0:
            # The old checkpoint is moved aside before the new one takes its place, and deleted
            # last. So at each moment one complete checkpoint is where `restore` looks.
            if folder.exists():
                shutil.rmtree(old, ignore_errors=True)
                folder.rename(old)
            new.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"save: {folder} cannot be written: {_brief(error)}") from error
    if overwrite:
        ocp.multihost.sync_global_processes("datarax.io.save")


def restore(path: str | Path, like: M) -> M:
    """Reads the metric saved at `path`, with the layout of `like`.

    Args:
        path: a folder that `save` has made.
        like: a metric of the same class and configuration; its own state is not used. If it is a
            `per_device` metric, its mesh and number of devices may differ from those of the saved
            one.

    Raises:
        ConfigurationMismatchError: the saved metric has another class or configuration than
            `like`; the error names the field.
        CheckpointError: there is no checkpoint, it is incomplete or damaged, or it has another
            format version.
        MetricTypeError: `like` is not a metric.

    Example:
        >>> import tempfile
        >>> import datarax.io
        >>> from datarax.metrics import Accuracy
        >>> path = f"{tempfile.mkdtemp()}/accuracy"
        >>> datarax.io.save(path, Accuracy(num_classes=3))
        >>> print(datarax.io.restore(path, like=Accuracy(num_classes=3)).compute())
        nan
    """
    ocp = _orbax()
    _require_metric(like)
    folder = Path(path).absolute()
    _, old = _beside(folder)
    found = next((each for each in (folder, old) if each.is_dir()), None)
    if found is None:
        raise CheckpointError(f"restore: there is no checkpoint at {folder}")
    items = ocp.args.Composite(arrays=ocp.args.PyTreeRestore(), info=ocp.args.JsonRestore())
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            saved = checkpointer.restore(found, args=items)
        arrays, info = saved["arrays"], saved["info"]
    except Exception as error:  # Orbax and its storage raise many types for damaged files
        raise CheckpointError(
            f"restore: the checkpoint at {folder} is incomplete or damaged: {_brief(error)}"
        ) from error
    try:
        return unpack(arrays, info, like)
    except DataraxError as error:
        error.args = (f"restore: {folder}: {error}",)
        raise


def pack(metric: Metric) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """A metric as a dict of arrays and a description that can be written as JSON.

    Use it to store metrics in your own checkpoint: save the arrays as a pytree and the description
    as JSON, beside the state of model and optimizer, and pass both to `unpack`. On several
    processes, all must call `pack`.

    Raises:
        MetricTypeError: `metric` is not a metric.
        NotAddressableError: there are several processes, and only this process holds the state.

    Example:
        >>> import datarax.io
        >>> from datarax.metrics import Max
        >>> arrays, info = datarax.io.pack(Max())
        >>> print(info["format"], datarax.io.unpack(arrays, info, like=Max()))
        3 Max()
    """
    _require_metric(metric)
    if jax.process_count() > 1:
        _require_global(metric)
    parts: list[bytes] = []

    def described(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: described(item) for key, item in node.items()}
        if not isinstance(node, np.ndarray):
            return node
        start = sum(map(len, parts))
        parts.append(node.tobytes())
        # No attribute and no metric has the name "", so this key marks an array.
        return {"": [node.dtype.name, list(node.shape), start]}

    tree = described(metric.state_dict())
    # The state is one array, so no part of it can be missing. It has at least one byte, so that no
    # storage has to keep an empty array.
    state = np.frombuffer(b"".join(parts) or b"\0", np.uint8)
    return {"state": state}, {"format": FORMAT, "metric": tree, "sha256": _digest(tree, state)}


def unpack(arrays: PyTree, info: Any, like: M) -> M:
    """The metric from the two results of `pack`, with the layout of `like`.

    Args:
        arrays: the dict of arrays that `pack` returned, after saving and restoring.
        info: the description that `pack` returned, after saving and restoring.
        like: as for `restore`.

    Raises:
        ConfigurationMismatchError, CheckpointError, MetricTypeError: as in `restore`.

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax.io
        >>> from datarax.metrics import Sum
        >>> arrays, info = datarax.io.pack(Sum().update(jnp.array([1, 41])))
        >>> print(datarax.io.unpack(arrays, info, like=Sum()).results())
        42
    """
    _require_metric(like)
    if not isinstance(info, dict) or not {"format", "metric", "sha256"} <= info.keys():
        raise CheckpointError(
            "the description is incomplete: expected 'format', 'metric' and 'sha256'"
        )
    if info["format"] != FORMAT:
        raise CheckpointError(
            f"the checkpoint has format {info['format']!r}, and this version of datarax reads "
            f"format {FORMAT}; read it with the version of datarax that wrote it"
        )
    if not isinstance(arrays, Mapping) or "state" not in arrays:
        raise CheckpointError("the checkpoint is incomplete: the array 'state' is missing")
    tree, state = info["metric"], np.asarray(arrays["state"])
    if _digest(tree, state) != info["sha256"]:
        raise CheckpointError(
            "the checkpoint is damaged: the checksum of its state and description is wrong"
        )

    data = state.tobytes()

    def filled(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if not isinstance(node.get(""), list):
            return {key: filled(item) for key, item in node.items()}
        dtype, shape, start = node[""]
        return np.frombuffer(data, np.dtype(dtype), math.prod(shape), start).reshape(shape)

    return like.load_state_dict(filled(tree))


def _require_metric(metric: Any) -> None:
    if not isinstance(metric, Metric):
        holds = isinstance(getattr(metric, "metric", None), Metric)
        raise MetricTypeError(
            f"expected a datarax.Metric; got {type(metric).__name__}"
            f"{', whose .metric is one' if holds else ''}"
        )


def _require_global(metric: Metric) -> None:
    for leaf in jax.tree.leaves(metric):
        if isinstance(leaf, jax.Array) and leaf.is_fully_addressable:
            raise NotAddressableError(
                f"only this process holds the state of {type(metric).__name__}, and a checkpoint "
                f"would keep the state of one process only; use per_device, or update the metric "
                f"under jit with global arrays (datarax.distributed.global_batch)"
            )


def _beside(folder: Path) -> tuple[Path, Path]:
    """The temporary folders of the new and the old checkpoint while one replaces the other."""
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


def _digest(tree: Any, state: np.ndarray[Any, Any]) -> str:
    text = json.dumps(tree, sort_keys=True)
    return hashlib.sha256(text.encode() + state.tobytes()).hexdigest()


def _brief(error: Exception) -> str:
    # Messages of Orbax are long. The whole message is in the chained error.
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first[:200]}"


def _orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise DataraxError(
            "saving and restoring metrics needs Orbax: pip install orbax-checkpoint"
        ) from error
    return ocp
