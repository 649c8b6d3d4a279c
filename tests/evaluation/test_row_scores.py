"""The scores and the lengths of texts and queries, and the pictures of each task."""

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from datarax.evaluation.assembly import assembled
from datarax.evaluation.encoding import Configuration
from datarax.evaluation.pictures import pictures
from datarax.evaluation.row_scores import LENGTHS
from datarax.evaluation.tasks import TASKS, figures, parsed
from datarax.metrics import TokenF1

TEXT = Configuration("text", tuple(parsed("token_f1", "text")), pictures=True)
RANKING = Configuration("ranking", tuple(parsed("mrr", "ranking")), pictures=True)


def bins_of(lengths):
    return [max(i for i, edge in enumerate(LENGTHS) if edge <= length) for length in lengths]


def parts(metric, name):
    """The counts of the scores, and the mean score of the lengths with data."""
    whole = metric["whole"].metrics if hasattr(metric["whole"], "metrics") else metric["whole"]
    by_length = whole[f"figure/{name}_by_length"].results()
    means = {int(i): x["value"] for i, x in by_length.items() if i.isdigit()}
    return whole[f"figure/{name}"].results()["counts"], {
        i: x for i, x in means.items() if not np.isnan(x)
    }


def texts(rng, rows):
    words = ["a", "cat", "dog", "the", "sat", "on", "mat"]
    of = [" ".join(rng.choice(words, n)) for n in rng.integers(0, 30, 2 * rows)]
    target = [x if i % 3 else [x, "cat"] for i, x in enumerate(of[rows:])]
    return {"preds": of[:rows], "target": target, "weights": rng.integers(0, 3, rows)}


def test_scores_and_lengths_of_texts(rng):
    columns = texts(rng, 120)
    score = np.array(
        [TokenF1().update([a], [b]).results() for a, b in
         zip(columns["preds"], columns["target"], strict=True)]
    )  # fmt: skip
    first = [x if isinstance(x, str) else x[0] for x in columns["target"]]
    bins = np.array(bins_of([len(x.split()) for x in first]))
    weights = columns["weights"].astype(float)
    expected = np.histogram(score.astype(np.float32), 20, (0, 1), weights=weights)[0]
    halves = [{k: x[part] for k, x in columns.items()} for part in (slice(50), slice(50, None))]
    one, two = (assembled(TEXT).update(**TEXT.encoding(half)) for half in halves)
    counts, means = parts(one.merge(two), "token_f1")
    np.testing.assert_array_equal(counts, expected)
    seen = {i for i in bins if weights[bins == i].any()}
    assert means.keys() == seen
    for i in seen:
        assert means[i] == pytest.approx(
            np.average(score[bins == i], weights=weights[bins == i]), rel=1e-6
        )


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_and_lengths_of_queries(rng, weighted):
    sizes = rng.integers(2, 25, 40)
    query = np.repeat([f"query {i}" for i in range(40)], sizes)
    preds = rng.permutation(len(query)).astype(np.float32)  # without ties
    target = rng.integers(0, 3, len(query)).astype(float)
    first = np.append(0, np.cumsum(sizes))
    target[first[3] : first[4]] = 0  # a query without relevant documents has no score
    weights = np.repeat(rng.integers(0, 4, 40), sizes).astype(float)
    columns = {"preds": preds, "target": target, "query": query}
    if weighted:
        columns["weights"] = weights
    cut = first[17]
    halves = [{k: x[part] for k, x in columns.items()} for part in (slice(cut), slice(cut, None))]
    one, two = (assembled(RANKING).update(**RANKING.encoding(half)) for half in halves)
    counts, means = parts(one.merge(two), "ndcg_at_10")
    scores, w = np.full(40, np.nan), weights[first[:-1]] if weighted else np.ones(40)
    for i in range(40):
        rows = slice(first[i], first[i + 1])
        if target[rows].any():
            scores[i] = ndcg_score(target[rows][None], preds[rows][None], k=10)
    seen = np.isfinite(scores) & (w > 0)
    bins = np.array(bins_of(sizes))
    # A score within an ulp of an edge is in either bin.
    expected = np.histogram(scores[seen], 20, (0, 1), weights=w[seen])[0]
    assert counts.sum() == expected.sum()
    assert np.abs(counts - expected).sum() <= 4
    assert means.keys() == set(bins[seen].tolist())
    for i in means:
        of = seen & (bins == i)
        assert means[i] == pytest.approx(np.average(scores[of], weights=w[of]), rel=1e-5)


def test_every_task_draws_its_pictures(rng):
    drawn = {}
    for config, columns in (
        (TEXT, texts(rng, 30)),
        (RANKING, {"preds": rng.random(9), "target": rng.integers(0, 2, 9), "query": [1] * 9}),
        (
            Configuration("regression", tuple(parsed("mae", "regression")), pictures=True),
            {"preds": rng.random(9), "target": np.append(rng.random(8), np.nan)},
        ),
    ):
        metric = assembled(config).update(**config.encoding(columns))
        drawn[config.task] = pictures(metric["whole"])
    names = {task: [picture.name for picture in found] for task, found in drawn.items()}
    assert names == {
        "text": ["scores", "score_by_length"],
        "ranking": ["scores", "score_by_length"],
        "regression": ["pairs", "errors", "error_quantiles"],
    }
    assert drawn["text"][0].caption.startswith("How token_f1 is distributed")
    assert drawn["ranking"][0].caption.startswith("How ndcg_at_10 is distributed")
    assert all("left out" in picture.caption for picture in drawn["regression"])


def test_without_pictures_and_for_several_outputs_nothing_is_added(rng):
    for task in TASKS:
        assert all(spec.name.startswith("figure/") for spec in figures(task))
    two = Configuration("regression", tuple(parsed("mae", "regression", 2)), size=2, pictures=True)
    assert list(assembled(two)["whole"]) == ["mae"]
    config = Configuration("text", TEXT.specs)
    assert list(assembled(config)["whole"]) == ["token_f1"]
    assert config.encoding(texts(rng, 3)).keys() == {"preds", "target", "weights"}
