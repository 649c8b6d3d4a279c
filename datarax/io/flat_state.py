"""A state as one array of bytes and a description of JSON, for checkpoints and partial states.

In the description, a `{"": [dtype, shape, offset]}` is an array.
"""

import hashlib
import json
import math
import re

import numpy as np

from datarax._errors import CheckpointError
from datarax._typing import PyTree
from datarax.algebra.saving import Saveable


def flattened(metric: Saveable) -> tuple[PyTree, np.ndarray]:
    """The description of a metric, and the bytes of its arrays, which lie one after the other."""
    parts: list[bytes] = []
    size = 0

    def described(node: object) -> object:
        nonlocal size
        if isinstance(node, dict):
            return {key: described(item) for key, item in node.items()}
        if not isinstance(node, np.ndarray):
            return node
        start = size
        parts.append(node.tobytes())
        size += node.nbytes
        # No attribute and no metric has the name "", so this key marks an array.
        return {"": [node.dtype.name, list(node.shape), start]}

    tree = described(metric.state_dict())
    # The state is one array, so no part of it can be missing. It has at least one byte, so that no
    # storage has to keep an empty array.
    return tree, np.frombuffer(b"".join(parts) or b"\0", np.uint8)


def filled(tree: object, data: bytes | None) -> tuple[PyTree, int]:
    """The description of a metric with its arrays, and how many bytes `flattened` gave for them.

    The arrays must lie one after the other. Without `data` each array is one zero that is
    broadcast, which takes no memory.

    Raises:
        CheckpointError: the description is damaged.
    """
    spans: list[tuple[int, int]] = []

    def array(dtype: str, shape: list[int], start: int) -> np.ndarray:
        # A plain name: `np.dtype` would also take structures.
        if not re.fullmatch("[a-z][a-z0-9_]*", dtype):
            raise ValueError(dtype)
        # Not `isinstance`: true is an `int`, too.
        if any(type(each) is not int or each < 0 for each in (*shape, start)):
            raise ValueError(shape)
        kind, count = np.dtype(dtype), math.prod(shape)
        spans.append((start, start + kind.itemsize * count))
        if data is None:
            return np.broadcast_to(np.zeros((), kind), shape)
        return np.frombuffer(data, kind, count, start).reshape(shape)

    def with_arrays(node: object) -> object:
        if not isinstance(node, dict):
            return node
        if not isinstance(node.get(""), list):
            return {key: with_arrays(item) for key, item in node.items()}
        try:
            return array(*node[""])
        except (TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(
                f"the checkpoint is damaged: expected the dtype, shape and offset of an array, "
                f"got {str(node[''])[:100]}"
            ) from error

    try:
        whole = with_arrays(tree)
    except RecursionError:
        raise CheckpointError("the checkpoint is damaged: its description has no end") from None
    stop = 0
    for start, end in sorted(spans):
        if start != stop:
            raise CheckpointError(
                f"the checkpoint is damaged: an array starts at byte {start}, and the one before "
                f"it ends at byte {stop}"
            )
        stop = end
    return whole, max(stop, 1)


def check_size(described: int, stored: int | None) -> None:
    """Raises if the arrays have another size by their description than what is stored."""
    if described != stored:
        raise CheckpointError(
            f"the checkpoint is damaged: its arrays have {described} bytes by its description, "
            f"and {stored} bytes are stored"
        )


def digest_of(tree: object, state: np.ndarray) -> str:
    """The checksum of a description and the bytes of its arrays."""
    return hashlib.sha256(as_text(tree).encode() + state.tobytes()).hexdigest()


def as_text(tree: object) -> str:
    """A description as JSON, with sorted keys: a storage may give them in another order.

    Raises:
        CheckpointError: JSON cannot hold it.
    """
    try:
        return json.dumps(tree, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the description is not of JSON: {type(error).__name__}: {str(error)[:200]}"
        ) from error
