"""The bytes of a partial state. The page "On many machines" describes their layout."""

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from datarax._checks import kind
from datarax._errors import CheckpointError, ConfigurationMismatchError, MetricTypeError
from datarax.algebra.saving import FORMAT as STATE_FORMAT
from datarax.io.flat_state import as_text, check_size, filled, flattened
from datarax.metric.base import Metric

VERSION = 1
"""The version of the layout."""
_MAGIC = b"DATARAX\0"
_HEAD = struct.Struct("<8sHH16sIQ")
_SUM_BYTES = 16


class OutputForm(NamedTuple):
    """What fed an output of the metric. It is the same in all rows of a state."""

    columns: tuple[str, ...]
    """The columns, in their order."""
    kind: str
    """ "float", "integer", "number" (which is either), "boolean" or "text"."""
    shape: tuple[int, ...] = ()
    """The shape of one row, if the metric takes no mask of its lists."""


class BatchState(NamedTuple):
    """The rows that were folded into a metric."""

    metric: Metric
    rows: int = 0
    excluded: Mapping[str, int] = {}
    """By column, how many rows were left out because it has no value there."""
    outputs: Mapping[str, OutputForm] = {}
    """By output, what fed it; empty without rows, and for a state of an earlier version."""


def as_bytes(state: BatchState) -> bytes:
    """The bytes of a state, in the layout of this module."""
    tree, arrays = flattened(state.metric)
    saved = {"rows": state.rows, "excluded": dict(state.excluded), "metric": tree}
    saved["outputs"] = state.outputs
    text = json.dumps(saved, separators=(",", ":")).encode()
    sizes = len(text), arrays.nbytes
    head = _HEAD.pack(_MAGIC, VERSION, STATE_FORMAT, _identity(tree), *sizes)
    # A state of bins or counts is mostly zeros.
    data = head + zlib.compress(text + arrays.tobytes(), 1)
    return data + _checksum(data)


def state_of(data: bytes, empty: Metric) -> BatchState:
    """The state whose bytes they are, of the configuration of an empty metric.

    Raises:
        CheckpointError: they are no state, damaged, or of another version.
        ConfigurationMismatchError: the state is of another configuration; names the field.
        MetricTypeError: they are no bytes.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise MetricTypeError(f"expected the bytes of a state, got {kind(data)}")
    data = bytes(data)
    if not data.startswith(_MAGIC):
        raise CheckpointError(
            f"these {len(data):,} bytes are no state of datarax: they begin with {data[:8]!r}, "
            f"expected {_MAGIC!r}"
        )
    if len(data) < _HEAD.size + _SUM_BYTES:
        raise CheckpointError(f"the state is damaged: only {len(data)} bytes are left of it")
    _, version, state_format, _, text_size, size = _HEAD.unpack_from(data)
    if (version, state_format) != (VERSION, STATE_FORMAT):
        raise CheckpointError(
            f"the state has version {version} and format {state_format}, and this version of "
            f"datarax reads version {VERSION} and format {STATE_FORMAT}; use one version of "
            f"datarax everywhere"
        )
    whole, checksum = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if _checksum(whole) != checksum:
        raise CheckpointError(
            "the state is damaged: its checksum is wrong; some of its bytes were changed or lost"
        )
    try:
        body = zlib.decompress(whole[_HEAD.size :])
        saved = json.loads(body[:text_size])
        tree, rows, excluded = saved["metric"], int(saved["rows"]), dict(saved["excluded"])
        outputs = {
            name: OutputForm(tuple(columns), str(kind), tuple(shape))
            for name, (columns, kind, shape) in saved.get("outputs", {}).items()
        }
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"the state is damaged: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    check_size(text_size + size, len(body))
    found, described = filled(tree, body[text_size:])
    check_size(described, size)
    try:
        return BatchState(empty.load_state_dict(found), rows, excluded, outputs)
    except ConfigurationMismatchError as error:
        error.args = (f"the state is of other metrics: {error}",)
        raise


def _identity(tree: object) -> bytes:
    return hashlib.blake2b(as_text(tree).encode(), digest_size=16).digest()


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SUM_BYTES).digest()
