"""The score and the length of each text or query, from which the report draws two pictures."""

from typing import Any

import numpy as np

from datarax.evaluation.tables import Outputs
from datarax.metric.base import Metric
from datarax.metrics import NDCG, Histogram, Mean, TokenF1
from datarax.metrics.language.text_metric import checked_references, checked_texts
from datarax.wrappers.interval import Interval
from datarax.wrappers.sliced import Sliced

LENGTHS = (0, 1, 2, 3, *(2**k * n for k in range(1, 16) for n in (2, 3)), 2**17)
"""The edges of the bins of lengths: 0, 1, 2, 3, 4, 6, 8, 12, 16, ..."""
SCORE, _LENGTH, WEIGHT, ROW = "row_score", "row_length", "row_weight", "row_place"
_K = 10
NAMES = {"text": "token_f1", "ranking": f"ndcg_at_{_K}"}
"""The score of each task that has one, as it is listed."""


class ByLength(Sliced):
    """The mean score of the texts or queries of each length, in bins with the edges `LENGTHS`."""


def scored(task: str) -> dict[str, Metric]:
    """The metrics of the scores that `with_scores` adds, by the names of their pictures."""
    if task not in NAMES:
        return {}
    routes = {"values": SCORE, "weights": WEIGHT}
    mean = Interval(Mean(on_invalid="exclude").from_outputs(**routes))
    return {
        NAMES[task]: Histogram(num_bins=20, range=(0, 1)).from_outputs(**routes),
        f"{NAMES[task]}_by_length": ByLength(mean, len(LENGTHS) - 1, by=_LENGTH),
    }


def with_scores(task: str, out: Outputs) -> Outputs:
    """The outputs of a batch with the score of each row, its weight and the bin of its length.

    `ROW` is the place in the batch of the row that a score is of. Of texts, the score is the token
    F1, and the length is the number of words of the first reference. Of queries, it is the NDCG at
    rank 10, and the length is the number of documents; all but one of the rows of a query have
    weight zero.

    Raises:
        MetricInputError: the outputs are not what the task takes.
    """
    if task not in NAMES:
        return out
    score, length, weight, row = (_of_texts if task == "text" else _of_queries)(out)
    bins = np.searchsorted(LENGTHS, length, side="right") - 1
    bins = np.minimum(bins, len(LENGTHS) - 2).astype(np.int32)
    return out | {SCORE: score, _LENGTH: bins, WEIGHT: weight, ROW: row}


def _of_texts(out: Outputs) -> tuple[Any, Any, Any, Any]:
    texts = checked_texts(out["preds"], "preds")
    references = checked_references(out["target"], len(texts), True, TokenF1.__name__)
    length = np.array([len(each[0].split()) for each in references], np.int64)
    weight = out.get("weights", np.ones(len(texts), np.float32))
    score = TokenF1().numbers(texts, references).astype(np.float32)
    return score, length, weight, np.arange(len(texts))


def _of_queries(out: Outputs) -> tuple[Any, Any, Any, Any]:
    query, weights = out["query"], out.get("weights")
    given = out["preds"], out["target"], None, out.get("retrieved"), query, weights
    queries, score = NDCG(k=_K).scored(*given)
    # Scores are in the order of the ranking, in which each query has a run of rows.
    order = np.asarray(queries.ranking.order[0])
    place = query[order]
    there = None if weights is None else np.asarray(weights) > 0
    count = np.bincount(query, there)
    return np.asarray(score), count[place], np.asarray(queries.weight), order
