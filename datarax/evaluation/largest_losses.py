"""The rows with the largest losses: a sample of bounded size, which merges in any order."""

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from datarax._update_context import in_update
from datarax.evaluation.columns import INDEX
from datarax.evaluation.encoding import Configuration, Json, known, listed, shown_value
from datarax.evaluation.row_scores import ROW, SCORE, WEIGHT
from datarax.evaluation.table_batches import TableBatch
from datarax.evaluation.tables import Outputs, Part
from datarax.metrics import LogLoss

MOST = 20
"""The number of rows that are kept."""
ID = "id"
"""The output with the id of each row."""
_MOST_LETTERS = 200
_MOST_NAMES = 8


class LossRow(NamedTuple):
    """A row and its loss; all numbers and texts are those of Python."""

    loss: float
    path: str
    group: int
    """The first group of rows of its part, within which `place` counts."""
    place: int
    row: int | None
    """Its number in the file, from 0; None if the format does not say it."""
    id: Any
    target: Any
    prediction: Any
    slices: tuple[str, ...]
    """The slice of each slicing that it is in."""


def largest(rows: Iterable[LossRow]) -> tuple[LossRow, ...]:
    """The rows with the largest losses; of equal losses, the first by file and place."""
    return tuple(heapq.nsmallest(MOST, rows, key=lambda row: (-row.loss, *row[1:4])))


def loss_name(config: Configuration) -> str | None:
    """Names the loss of a row; None if rows of the task have none, or are not to be shown."""
    if not config.rows or (config.task in _OF_CLASSES and config.scores == "labels"):
        return None
    return _NAMES.get(config.task)


_OF_CLASSES = ("binary", "multiclass", "multilabel")
_NAMES = dict.fromkeys(_OF_CLASSES, "log loss") | {
    "regression": "absolute error",
    "text": "1 - token F1",
    "ranking": "1 - NDCG at 10",
}


def with_batch(
    found: tuple[LossRow, ...],
    part: Part,
    batch: TableBatch,
    out: Outputs,
    *,
    config: Configuration,
) -> tuple[LossRow, ...]:
    """The rows with the largest losses of those that were `found`, and of a batch.

    Args:
        found: at most `MOST` rows.
        part: the part of a file from which the batch is.
        batch: as it is in the file, with the ids of rows in `INDEX`.
        out: the outputs that `config.encoding` made of it.
        config: the settings, for which `loss_name` is not None.
    """
    losses = _losses(config, out)
    least = found[-1].loss if len(found) == MOST else 0.0
    # Of losses that equal the least, the place decides. Rows without a loss are never worst.
    places = np.flatnonzero((losses >= least) & (losses > 0))
    if len(places) > MOST:
        cut = np.partition(losses[places], -MOST)[-MOST]
        above, equal = places[losses[places] > cut], places[losses[places] == cut]
        places = np.concatenate([above, equal[: MOST - len(above)]])
    place = (np.asarray(batch.outputs[INDEX]).astype(np.int64) - part.key) % 2**32
    # A query has several rows, and is known by its id.
    of_query = config.task == "ranking"
    describe = _Described(config, batch.outputs, out)
    rows = (
        LossRow(
            float(losses[i]),
            part.path,
            part.first,
            int(place[i]),
            None if part.start is None or of_query else part.start + int(place[i]),
            *describe.row(int(i)),
        )
        for i in places
    )
    return largest((*found, *rows))


def _losses(config: Configuration, out: Outputs) -> np.ndarray:
    """The loss of each row in the order of the file; NaN of rows that cannot be used."""
    if SCORE in out:
        losses = np.full(len(out[ROW]), np.nan)
        losses[out[ROW]] = np.where(np.asarray(out[WEIGHT]) > 0, 1 - np.asarray(out[SCORE]), np.nan)
        return losses
    if config.task == "regression":
        losses = np.abs(np.asarray(out["error"], np.float64))
        weight = np.asarray(out.get("weights", np.float32(1)))
        counts = np.isfinite(losses) & (weight.reshape(-1, *[1] * (losses.ndim - 1)) > 0)
    else:
        several = config.task == "multilabel"
        metric = LogLoss(
            num_classes=config.size if config.task == "multiclass" else None,
            num_labels=config.size if several else None,
            from_logits=config.scores == "logits",
        )
        with in_update(checks="none"), np.errstate(all="ignore"):
            seen = metric.checked(out["preds"], out["target"], weights=out.get("weights"))
            losses, counts = np.asarray(metric.score(seen)), np.asarray(seen.weight) > 0
    losses = np.where(counts, losses, np.nan)
    if losses.ndim == 1:
        return losses
    # A row with several labels or outputs has the mean over those that can be used.
    number = np.maximum(np.count_nonzero(counts, -1), 1)
    return np.where(counts.any(-1), np.nansum(losses, -1) / number, np.nan)


class _Described:
    """What a batch holds of a row, as JSON."""

    def __init__(self, config: Configuration, given: Outputs, out: Outputs):
        self._config, self._given, self._out = config, given, out

    def row(self, i: int) -> tuple[Any, Any, Any, tuple[str, ...]]:
        """The id, the target, the prediction and the slices of a row."""
        config, given = self._config, self._given
        slices = (
            shown_value(known(listed(given[f"slice_{place}"][i : i + 1])[0]))
            for place in range(len(config.slicings))
        )
        key = next((name for name in (ID, "query") if name in given), None)
        return (
            None if key is None else _plain(given[key][i]),
            None if config.task == "ranking" else self._target(i),
            None if config.task == "ranking" else self._prediction(i),
            tuple(map(_cut, slices)),
        )

    def _target(self, i: int) -> Any:
        x = self._out["target"][i]
        if self._config.task == "multilabel":
            return self._names(np.flatnonzero(np.asarray(x) == 1))
        return self._name(x) if self._config.task in _OF_CLASSES else _plain(x)

    def _prediction(self, i: int) -> Any:
        x = self._out["preds"][i]
        if self._config.task == "multiclass":
            return self._name(np.argmax(x))
        if self._config.task == "multilabel":
            above = 0 if self._config.scores == "logits" else 0.5
            return self._names(np.flatnonzero(np.asarray(x) > above))
        return _plain(x)

    def _name(self, label: Any) -> str | int:
        names = self._config.names
        return int(label) if names is None else _cut(names[int(label)])

    def _names(self, labels: np.ndarray) -> str:
        shown = [str(self._name(label)) for label in labels[:_MOST_NAMES]]
        return ", ".join([*shown, *(["…"] if len(labels) > _MOST_NAMES else [])]) or "none"


def _plain(x: Any) -> Any:
    """A value of a row as a number or a text."""
    if isinstance(x, list | tuple | np.ndarray):
        return _cut(", ".join(str(_plain(each)) for each in x[:_MOST_NAMES]))
    if isinstance(x, np.generic):
        # The shortest number that is this float32.
        x = float(str(x)) if isinstance(x, np.floating) else x.item()
    return _cut(x) if isinstance(x, str) else x


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"


def as_json(config: Configuration, rows: Iterable[LossRow]) -> Json | None:
    """The rows as the summary has them; None if the task has no loss of a row."""
    name = loss_name(config)
    if name is None:
        return None
    by = [slicing.by for slicing in config.slicings]
    return {"loss": name, "rows": [_item(row, by) for row in rows]}


def _item(row: LossRow, by: Iterable[str]) -> Mapping[str, Any]:
    return {
        "loss": row.loss,
        "id": row.id,
        "file": row.path,
        "row": row.row,
        "target": row.target,
        "prediction": row.prediction,
        "slices": dict(zip(by, row.slices, strict=True)),
    }
