"""Metrics saved and restored through Orbax, with their configuration beside the arrays."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from datarax._errors import CheckpointError, DataraxError, MetricTypeError
from datarax.metrics._metric import Metric

FORMAT = 1
"""The version of the layout that `pack` writes; `unpack` refuses a newer one."""


def save(path: str | Path, metric: Metric, *, overwrite: bool = False) -> None:
    """Writes a metric, configuration and all, to a folder.

    A `per_device` metric is synced and saved as the plain one, so that it restores on any number
    of devices. The folder appears whole or not at all. On several processes, all call it.

    Args:
        path: the folder to make.
        metric: any datarax metric.
        overwrite: replace a folder that is already there.

    Raises:
        CheckpointError: the folder is there, or cannot be written.
        MetricTypeError: something that is not a metric.

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
        raise CheckpointError(f"save: {folder} is there already; pass overwrite=True to replace it")
    items = ocp.args.Composite(arrays=ocp.args.PyTreeSave(arrays), info=ocp.args.JsonSave(info))
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            checkpointer.save(folder, args=items, force=overwrite)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"save: {folder} cannot be written: {error}") from error


def restore(path: str | Path, like: Any) -> Any:
    """The metric saved at `path`, laid out as `like`.

    Args:
        path: a folder that `save` has made.
        like: a metric of the same class and configuration; its own state is not used. For a
            `per_device` metric, the mesh and the number of devices may differ.

    Raises:
        ConfigurationMismatchError: another metric or configuration; names the field.
        CheckpointError: no checkpoint, one that is incomplete or damaged, or a newer format.
    """
    ocp = _orbax()
    folder = Path(path).absolute()
    if not folder.is_dir():
        raise CheckpointError(f"restore: there is no checkpoint at {folder}")
    items = ocp.args.Composite(arrays=ocp.args.PyTreeRestore(), info=ocp.args.JsonRestore())
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            found = checkpointer.restore(folder, args=items)
        arrays, info = found["arrays"], found["info"]
    except Exception as error:  # whatever Orbax and its storage make of damaged files
        raise CheckpointError(
            f"restore: the checkpoint at {folder} is incomplete or damaged: {error}"
        ) from error
    return unpack(arrays, info, like)


def pack(metric: Metric) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """A metric as a flat dict of arrays and a description that JSON can hold.

    For a checkpoint of one's own: save the first as a pytree and the second as JSON, beside model
    and optimizer state, and hand both to `unpack`.

    Example:
        >>> import datarax.io
        >>> from datarax.metrics import Max
        >>> arrays, info = datarax.io.pack(Max())
        >>> print(info["format"], datarax.io.unpack(arrays, info, like=Max()))
        1 Max(on_invalid='exclude')
    """
    if not isinstance(metric, Metric):
        raise MetricTypeError(
            f"expected a datarax.Metric; got {type(metric).__name__}"
            f"{' (save its .metric)' if hasattr(metric, 'metric') else ''}"
        )
    arrays: dict[str, np.ndarray[Any, Any]] = {}

    def named(node: Any, path: str) -> Any:
        if isinstance(node, np.ndarray):
            arrays[path] = node
            return {"array": path, "sha256": _digest(node)}
        if isinstance(node, dict):
            return {key: named(item, f"{path}.{key}".lstrip(".")) for key, item in node.items()}
        return node

    tree = named(metric.state_dict(), "")
    return arrays, {"format": FORMAT, "metric": tree}


def unpack(arrays: Any, info: Any, like: Any) -> Any:
    """The metric that `pack` took apart, laid out as `like`; errors as from `restore`."""
    if not isinstance(info, dict) or not {"format", "metric"} <= info.keys():
        raise CheckpointError("the description is incomplete: expected 'format' and 'metric'")
    if info["format"] > FORMAT:
        raise CheckpointError(
            f"the checkpoint has format {info['format']}, and this version of datarax reads up to "
            f"{FORMAT}; update datarax"
        )

    def filled(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if node.keys() != {"array", "sha256"}:
            return {key: filled(item) for key, item in node.items()}
        name = node["array"]
        if name not in arrays:
            raise CheckpointError(f"the checkpoint is incomplete: {name} is missing")
        array = np.asarray(arrays[name])
        if _digest(array) != node["sha256"]:
            raise CheckpointError(f"the checkpoint is damaged: {name} is not what was saved")
        return array

    return like.load_state_dict(filled(json.loads(json.dumps(info["metric"]))))


def _digest(array: np.ndarray[Any, Any]) -> str:
    shape = f"{array.dtype.name}{array.shape}".encode()
    return hashlib.sha256(shape + np.ascontiguousarray(array).tobytes()).hexdigest()


def _orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise DataraxError(
            "saving and restoring needs Orbax: pip install 'datarax[io]' from a clone"
        ) from error
    return ocp
