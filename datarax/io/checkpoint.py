"""Saving and restoring metrics with Orbax: the arrays of the state, and the configuration."""

import json
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import jax
import numpy as np

from datarax._checks import timeout_seconds
from datarax._errors import (
    CheckpointError,
    DataraxError,
    MetricTimeoutError,
    MetricTypeError,
    NotAddressableError,
)
from datarax._optional import optional
from datarax._typing import PyTree
from datarax.algebra.saving import Saveable
from datarax.distributed.barrier import barrier_of
from datarax.distributed.placement import is_same_everywhere
from datarax.io.flat_state import check_size, digest_of, filled, flattened
from datarax.metric.base import Metric

FORMAT = 5
"""The version of the layout that `pack` writes, and of what the arrays of a state mean. `unpack`
reads no other version."""
_KEYS = {"format", "metric", "sha256"}
_WRITTEN = "datarax.json"
"""The file of a checkpoint with the paths and sizes of all that `save` wrote: only that is ever
deleted. In the folder in which `save` works, it says whose folder that is."""
_WORK = "datarax-save"
_NEW = re.compile(r"new(\.orbax-checkpoint-tmp(-\d+)?)?")
"""The names of new checkpoints in that folder: whole, or as Orbax has left them unfinished."""

M = TypeVar("M", bound=Metric)


def save(
    path: str | Path, metric: Metric, *, overwrite: bool = False, timeout: float | None = 60.0
) -> None:
    """Writes the state and the configuration of a metric to a folder.

    A `per_device` metric is synced first and saved as a plain metric, so it can be restored on any
    number of devices.

    Writing is atomic: if the process ends in the middle, there is no incomplete folder at `path`.
    It is written in a folder beside `path`, `.NAME.datarax-save`, and then moved. With `overwrite`,
    the old one is deleted only after the new one has taken its place: file by file, and only what
    `save` wrote. On several processes, all must call `save`, with a folder that they share.

    Args:
        path: the folder to make. A symbolic link is followed.
        metric: any datarax metric.
        overwrite: whether to replace an existing checkpoint of datarax, or an empty folder. Nothing
            else is ever replaced: not a file, not a folder that holds a file that `save` did not
            write, at any depth, and not the current directory.
        timeout: the longest time in seconds to wait for the other processes to call `save`; `None`
            for no limit.

    Raises:
        CheckpointError: the folder exists already, it is nothing that `overwrite` replaces, or it
            cannot be written.
        MetricTypeError: `metric` is not a metric.
        NotAddressableError: there are several processes, and they hold different states.
        MetricTimeoutError: other processes did not call `save` in time, failed in it, or were ended
            while they saved; the error names them.

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
    folder = _folder_of(path, "save")
    with _with_others("save", f"save: {folder}", timeout_seconds(timeout)) as meet:
        _require_metric(metric)
        with _failing(f"save: {folder} cannot be read", OSError):
            _check_free(folder, overwrite)
            _check_work(_work_of(folder))
        meet()
        _write(ocp, folder, *_packed(metric))


def _write(ocp: ModuleType, folder: Path, arrays: PyTree, info: PyTree) -> None:
    """Writes what `pack` returned; on several processes, all call it."""
    work, is_first = _work_of(folder), jax.process_index() == 0
    # All have looked before the first process changes anything.
    ocp.multihost.sync_global_processes("datarax.io.save: checked")
    items = ocp.args.Composite(arrays=ocp.args.PyTreeSave(arrays), info=ocp.args.JsonSave(info))
    new, old = work / "new", work / "old"
    try:
        if is_first:
            _remove_work(work)
            work.mkdir(parents=True)
            (work / _WRITTEN).write_text(_mark(work))
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            checkpointer.save(new, args=items)
        if is_first:
            (new / _WRITTEN).write_text(json.dumps({"files": _entries(new)}))
            # The old checkpoint is moved aside before the new one takes its place, and deleted
            # last. So at each moment one complete checkpoint is where `restore` looks.
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
            _remove_work(work)
    except (OSError, ValueError) as error:
        if is_first:
            with suppress(OSError):
                if old.exists() and not folder.exists():
                    old.rename(folder)
                _remove_work(work)
        raise CheckpointError(f"save: {folder} cannot be written: {_brief(error)}") from error
    ocp.multihost.sync_global_processes("datarax.io.save")


def restore(path: str | Path, like: M, *, partial: bool = False, timeout: float | None = 60.0) -> M:
    """Reads the metric saved at `path`, with the layout of `like`.

    On several processes, all must call `restore`, with a folder that they share.

    Args:
        path: a folder that `save` has made.
        like: a metric of the same class and configuration; its own state is not used. If it is a
            `per_device` metric, its mesh and number of devices may differ from those of the saved
            one. The outputs that feed a metric (`from_outputs`) are those of `like`. It may be
            abstract, as out of `jax.eval_shape`: then the arrays are on the host.
        partial: whether the members of a `Collection` may differ from those of `like`. Members that
            are in both are restored, those that are only in `like` start empty, and those that are
            only in the checkpoint are left out.
        timeout: as for `save`: the longest time to wait for the other processes to call `restore`.

    Raises:
        ConfigurationMismatchError: the saved metric has another class or configuration than
            `like`; the error names the field. Or, with `partial`, a collection has no member of
            `like`.
        CheckpointError: there is no checkpoint, it is incomplete or damaged, or it has another
            format version.
        MetricTypeError: `like` is not a metric.
        MetricTimeoutError: other processes did not call `restore` in time, failed in it, or were
            ended while they restored; the error names them.

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
    folder = _folder_of(path, "restore")
    with _with_others("restore", f"restore: {folder}", timeout_seconds(timeout)) as meet:
        _require_metric(like)
        with _failing(f"restore: {folder} cannot be read", OSError):
            found = _found(folder)
        with _naming(folder):
            arrays, info = _read(ocp, found, like, partial=partial)
        meet()
        with _naming(folder):
            return unpack(arrays, info, like, partial=partial)


def _read(ocp: ModuleType, found: Path, like: Metric, *, partial: bool) -> tuple[PyTree, object]:
    """What `pack` returned, from the files of a checkpoint; each process reads them by itself."""
    handler = ocp.CompositeCheckpointHandler(
        arrays=ocp.PyTreeCheckpointHandler(), info=ocp.JsonCheckpointHandler()
    )
    own = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
    with ocp.Checkpointer(handler, multiprocessing_options=alone) as checkpointer:
        with _reading():
            items = ocp.args.Composite(info=ocp.args.JsonRestore())
            info = checkpointer.restore(found, args=items)["info"]
            stored = checkpointer.metadata(found).item_metadata["arrays"].tree
            sizes = {name: math.prod(array.shape) for name, array in stored.items()}
        # Files from elsewhere may describe an array that no memory holds. So what is described is
        # compared with what is stored, and with `like`, before it is read.
        empty, size = filled(_checked(info)[0], None)
        check_size(size, sizes.get("state"))
        if size > _bytes_of(like):
            like.load_state_dict(empty, partial=partial)
        with _reading():
            items = ocp.args.Composite(arrays=ocp.args.PyTreeRestore())
            return checkpointer.restore(found, args=items)["arrays"], info


def pack(
    metric: Metric, *, timeout: float | None = 60.0
) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """A metric as a dict of arrays and a description that can be written as JSON.

    Use it to store metrics in your own checkpoint: save the arrays as a pytree and the description
    as JSON, beside the state of model and optimizer, and pass both to `unpack`. On several
    processes, all must call `pack`.

    Args:
        metric: any metric, also one of `per_device`.
        timeout: as for `save`: the longest time to wait for the other processes to call `pack`.

    Raises:
        MetricTypeError: `metric` is not a metric.
        NotAddressableError: there are several processes, and they hold different states.
        MetricTimeoutError: other processes did not call `pack` in time, failed in it, or were ended
            while they packed.

    Example:
        >>> import datarax.io
        >>> from datarax.metrics import Max
        >>> arrays, info = datarax.io.pack(Max())
        >>> print(info["format"], datarax.io.unpack(arrays, info, like=Max()))
        5 Max()
    """
    with _with_others("pack", "pack", timeout_seconds(timeout)) as meet:
        _require_metric(metric)
        meet()
        return _packed(metric)


def _packed(metric: Metric) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """What `pack` returns; on several processes, all call it."""
    tree, state = flattened(metric)
    digest = digest_of(tree, state)
    if not is_same_everywhere([digest.encode()], jax.devices()):
        raise NotAddressableError(
            f"the processes hold different states of {type(metric).__name__}, and a checkpoint "
            f"would keep the state of one process only; use per_device, or update the metric "
            f"under jit with global arrays (datarax.distributed.global_batch)"
        )
    return {"state": state}, {"format": FORMAT, "metric": tree, "sha256": digest}


def unpack(arrays: PyTree, info: object, like: M, *, partial: bool = False) -> M:
    """The metric from the two results of `pack`, with the layout of `like`.

    Args:
        arrays: the dict of arrays that `pack` returned, after saving and restoring.
        info: the description that `pack` returned, after saving and restoring.
        like: as for `restore`.
        partial: as for `restore`.

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
    tree, digest = _checked(info)
    if not isinstance(arrays, Mapping) or "state" not in arrays:
        raise CheckpointError("the checkpoint is incomplete: the array 'state' is missing")
    state = np.asarray(arrays["state"])
    saved, size = filled(tree, state.tobytes())
    check_size(size, state.size)
    if digest_of(tree, state) != digest:
        raise CheckpointError(
            "the checkpoint is damaged: the checksum of its state and description is wrong"
        )
    return like.load_state_dict(saved, partial=partial)


def _checked(info: object) -> tuple[object, object]:
    """The metric and the checksum of a description that `pack` has made.

    In the metric, a `{"": [dtype, shape, offset]}` is an array.
    """
    if not isinstance(info, dict) or not info.keys() >= _KEYS:
        raise CheckpointError(
            "the description is incomplete: expected 'format', 'metric' and 'sha256'"
        )
    if info["format"] != FORMAT:
        raise CheckpointError(
            f"the checkpoint has format {info['format']!r}, and this version of datarax reads "
            f"format {FORMAT}; read it with the version of datarax that wrote it"
        )
    return info["metric"], info["sha256"]


def _bytes_of(part: PyTree) -> int:
    """An upper bound of the bytes that `pack` writes for a metric: it counts copies, too."""
    if isinstance(part, Saveable):
        _, part = part.described()
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, tuple | list):
        return sum(map(_bytes_of, part))
    return math.prod(part.shape) * part.dtype.itemsize  # of shapes, too


def _require_metric(metric: object) -> None:
    if not isinstance(metric, Metric):
        holds = isinstance(getattr(metric, "metric", None), Metric)
        raise MetricTypeError(
            f"expected a datarax.Metric; got {type(metric).__name__}"
            f"{', whose .metric is one' if holds else ''}"
        )


def _check_free(folder: Path, overwrite: bool) -> None:
    """Raises unless there is nothing at `folder`, or what `save` may replace."""
    if not folder.exists():
        return
    held = _held(folder) if folder.is_dir() else "is a file"
    if held:
        raise CheckpointError(
            f"save: {folder} {held}, which is kept; give a folder that does not exist, or one that "
            f"save has made"
        )
    if not overwrite:
        raise CheckpointError(f"save: {folder} exists already; pass overwrite=True to replace it")


def _held(folder: Path) -> str:
    """Why a folder must not be deleted; "" for a checkpoint that is as `save` wrote it."""
    with suppress(FileNotFoundError):  # if the current directory was deleted
        if Path.cwd().is_relative_to(folder):
            return "is the current directory, or holds it"
    written = _written(folder)
    if written:
        found = _entries(folder)
        names = sorted(name for name in found if written.get(name, -1) != found[name])
    else:
        names = sorted(path.name for path in folder.iterdir())
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"holds {', '.join(map(repr, names[:3]))}{more}"


def _entries(folder: Path) -> dict[str, int | None]:
    """All that is in a folder: by path, the size of each file, and None for a folder.

    A link, or what else is no file, has a size that no file has.
    """
    found: dict[str, int | None] = {}
    for each in folder.rglob("*"):
        name, about = each.relative_to(folder).as_posix(), each.lstat()
        if name != _WRITTEN:
            is_file = stat.S_ISREG(about.st_mode)
            found[name] = None if stat.S_ISDIR(about.st_mode) else about.st_size if is_file else -2
    return found


def _written(folder: Path) -> dict[str, int | None]:
    """Lists what `save` wrote into a folder, as `_entries` does; nothing if it left no mark."""
    try:
        files = json.loads((folder / _WRITTEN).read_bytes())["files"]
        return {str(name): size for name, size in files.items()}
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError):
        return {}


def _remove(folder: Path) -> None:
    """Deletes what `save` wrote; what else there is stays, and is an error.

    Raises:
        OSError: the folder is not empty then.
    """
    written, found = _written(folder), _entries(folder)
    # From the inside out.
    for name in sorted(written.keys() & found.keys(), reverse=True):
        if found[name] is None:
            (folder / name).rmdir()
        elif found[name] == written[name]:
            (folder / name).unlink()
    if written:
        (folder / _WRITTEN).unlink()
    folder.rmdir()


def _work_of(folder: Path) -> Path:
    """The folder in which `save` writes, and where it moves the old checkpoint."""
    return folder.parent / f".{folder.name}.{_WORK}"


def _mark(work: Path) -> str:
    """The mark in the folder in which `save` works, so that no other one is taken for it."""
    return f"datarax.io.save works in {work.name}\n"


def _check_work(work: Path) -> None:
    """Raises if there is a folder of that name, and it holds what no `save` has left."""
    if not (work.exists() or work.is_symlink()):
        return
    where, held = work, "is no folder"
    if work.is_dir() and not work.is_symlink():
        names = [each.name for each in work.iterdir()]
        others = [
            each for each in names if each not in ("old", _WRITTEN) and not _NEW.fullmatch(each)
        ]
        is_ours = _WRITTEN in names and (work / _WRITTEN).read_text("utf-8", "replace") == _mark(
            work
        )
        held = ""
        if (names and not is_ours) or others:
            held = f"holds {(others or names)[0]!r}"
        elif (work / "old").is_dir():
            where, held = work / "old", _held(work / "old")
    if held:
        raise CheckpointError(
            f"save: {where} {held}, which is kept; a checkpoint is written there first: move what "
            f"is there away"
        )


def _remove_work(work: Path) -> None:
    """Deletes what a `save` has left, which `_check_work` has looked at."""
    if not work.exists():
        return
    if (work / "old").exists():
        _remove(work / "old")
    for each in work.iterdir():
        if _NEW.fullmatch(each.name):
            shutil.rmtree(each)
    (work / _WRITTEN).unlink(missing_ok=True)
    work.rmdir()


def _found(folder: Path) -> Path:
    """Where the checkpoint of a folder is."""
    if folder.is_dir():
        return folder
    work = _work_of(folder)
    new, old = work / "new", work / "old"
    # A `save` that was killed between its two moves has left both, and the new one is complete.
    if _written(new) and old.is_dir():
        return new
    before = folder.parent / f".{folder.name}.old"  # of earlier versions
    left = [each for each in (old, before) if each.is_dir()]
    hint = f"; a save that was stopped has left an earlier one at {left[0]}" if left else ""
    raise CheckpointError(
        f"restore: there is no checkpoint at {folder}{hint}{': restore that one' if left else ''}"
    )


def _folder_of(path: str | Path, call: str) -> Path:
    """The folder that a path leads to."""
    with _failing(f"{call}: {str(path)[:200]!r} is no path", OSError, ValueError):
        return Path(os.path.realpath(path))


@contextmanager
def _with_others(name: str, about: str, timeout: float | None) -> Iterator[Callable[[], object]]:
    """A block that all processes run, in which each calls what is given once its checks are made.

    It waits there until all others have called it. An error that is raised before ends the waiting
    of the others. An error of JAX after it becomes one that names what was done.
    """
    if jax.process_count() == 1:
        yield lambda: None
        return
    barrier = barrier_of(f"datarax.io.{name}")
    number = barrier.round

    try:
        yield lambda: barrier.wait(timeout, f"{about}, waiting for the other processes")
    except DataraxError as error:
        if barrier.round == number:
            barrier.abort(f"failed: {error}")
        raise
    except (RuntimeError, ValueError) as error:
        if barrier.round == number:
            barrier.abort(f"failed: {error}")
            raise
        raise MetricTimeoutError(
            f"{about}: another process has failed or was ended since it began ({_brief(error)})"
        ) from error


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Puts the folder into each error of datarax."""
    try:
        yield
    except DataraxError as error:
        error.args = (f"restore: {folder}: {error}",)
        raise


@contextmanager
def _failing(message: str, *errors: type[Exception]) -> Iterator[None]:
    """Raises a `CheckpointError` with this message instead of these errors."""
    try:
        yield
    except errors as error:
        raise CheckpointError(f"{message}: {_brief(error)}") from error


def _reading() -> AbstractContextManager[None]:
    # Orbax and its storage raise many types for damaged files.
    return _failing("the checkpoint is incomplete or damaged", Exception)


def _brief(error: Exception) -> str:
    # Messages of Orbax are long. The whole message is in the chained error.
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first[:200]}"


def _orbax() -> ModuleType:
    return optional("orbax.checkpoint", "checkpoint", "saving and restoring metrics")
