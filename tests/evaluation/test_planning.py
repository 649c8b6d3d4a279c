"""What follows from the columns of files, and what is refused."""

from collections import Counter

import numpy as np
import pytest

from datarax import MetricInputError
from datarax.evaluation.encoding import Configuration, Slicing
from datarax.evaluation.planning import MOST_SLICES, planned


def plan(request: Configuration, columns: dict, first: dict, values: dict | None = None):
    """The configuration, where the whole files hold `values`, by default those in `first`."""
    asked = []

    def scan(outputs):
        asked.extend(outputs)
        rows = {output: (values or first)[output] for output in outputs}
        flat = {
            output: [y for x in each for y in (x if isinstance(x, list) else [x])]
            for output, each in rows.items()
        }
        return {
            output: Counter(x.item() if isinstance(x, np.generic) else x for x in each)
            for output, each in flat.items()
        }

    config = planned(request, None, columns, first, scan)
    return config, asked


def logits(*names: str) -> dict:
    return {"preds": list(names), "target": ["label"]}


def test_sizes_and_classes():
    scores, ids = np.zeros((3, 3)), np.array([0, 1, 2])
    columns = logits("logit_0", "logit_1", "logit_2")
    config, asked = plan(Configuration("multiclass"), columns, {"preds": scores, "target": ids})
    assert (config.size, config.names, config.named, config.scores) == (3, None, False, "logits")
    assert asked == []

    names = ["dog", "cat", "dog"]
    config, asked = plan(
        Configuration("multiclass"),
        columns,
        {"preds": scores, "target": names},
        {"target": ["dog", "cat", "bee"]},
    )
    assert (config.names, config.named) == (("bee", "cat", "dog"), True)
    assert asked == ["target"]

    columns = logits("prob_dog", "prob_cat", "prob_bee")
    config, _ = plan(Configuration("multiclass"), columns, {"preds": scores, "target": names})
    assert config.names == ("dog", "cat", "bee")
    assert config.scores == "probabilities"

    # Predicted labels.
    columns = logits("answer")
    given = {"preds": np.array([0, 4]), "target": np.array([1, 2])}
    config, asked = plan(Configuration("multiclass"), columns, given)
    assert (config.size, config.scores) == (5, "labels")
    assert asked == ["target", "preds"]
    config, asked = plan(Configuration("multiclass", size=9), columns, given)
    assert (config.size, asked) == (9, [])
    given = {"preds": ["a", "c"], "target": ["b", "b"]}
    config, _ = plan(Configuration("multiclass"), columns, given)
    assert (config.size, config.names) == (3, ("a", "b", "c"))

    # Two classes that are called something.
    given = {"preds": np.array([0.5]), "target": ["yes"]}
    config, _ = plan(Configuration("binary"), logits("score"), given, {"target": ["yes", "no"]})
    assert (config.size, config.names, config.named) == (None, ("no", "yes"), True)

    given = {"labels": [[0, 3]], "target_labels": [[5], []]}
    config, _ = plan(Configuration("detection"), {}, given)
    assert config.size == 6


@pytest.mark.parametrize(
    ("request_", "columns", "first", "said"),
    [
        (
            Configuration("binary"),
            logits("p_0", "p_1"),
            {"preds": np.zeros((2, 2)), "target": np.array([0, 1])},
            "the task binary takes one column of scores, of the second class; --preds names 2",
        ),
        (
            Configuration("binary"),
            logits("p"),
            {"preds": np.zeros(3), "target": ["a", "b", "c"]},
            "'label' has 3 distinct values, a,b,c; the task binary takes two",
        ),
        (
            Configuration("multiclass", size=4),
            logits("p_0", "p_1"),
            {"preds": np.zeros((2, 2)), "target": np.array([0, 1])},
            "--preds names 2 columns of scores, and there are 4 classes",
        ),
        (
            Configuration("multiclass"),
            logits("p_0", "p_1"),
            {"preds": np.zeros((3, 2)), "target": ["a", "b", "c"]},
            "--classes a,b,c",
        ),
        (
            Configuration("multiclass", scores="logits"),
            logits("p"),
            {"preds": np.array([0, 1]), "target": np.array([0, 1])},
            "--scores logits, and --preds names one column of labels",
        ),
        (
            Configuration("multiclass"),
            logits("p"),
            {"preds": np.array([0, 1]), "target": np.array([0, 20_000])},
            "the labels have 20,001 classes; expected at most 10,000",
        ),
        (
            Configuration("multilabel"),
            {"preds": ["a", "b"], "target": ["c"]},
            {"preds": np.zeros((2, 2)), "target": np.zeros(2)},
            "--preds names 2 columns and --target 1",
        ),
        (
            Configuration("regression"),
            logits("p"),
            {"preds": np.zeros((2, 2)), "target": np.zeros(2)},
            "--preds names 2 columns and --target 1; expected as many of both",
        ),
        (
            Configuration("regression"),
            logits("p"),
            {"preds": ["a", "b"], "target": np.zeros(2)},
            "the column 'p' has the value 'a'; expected a number",
        ),
        (Configuration("ranking"), logits("p"), {"preds": np.zeros(2)}, "needs --query"),
    ],
)
def test_what_does_not_fit_is_refused(request_, columns, first, said):
    with pytest.raises(MetricInputError) as caught:
        plan(request_, columns, first)
    assert said in str(caught.value)


def test_the_most_frequent_slices():
    columns = logits("p") | {"slice_0": ["by"]}
    first = {"preds": np.zeros(1), "target": np.zeros(1, int), "slice_0": ["v1"]}
    values = ["common"] * 5 + [None] * 3 + [f"v{i}" for i in range(MOST_SLICES + 5)]
    request = Configuration("binary", slicings=(Slicing("by", ()),))
    config, asked = plan(request, columns, first, {"slice_0": values})
    (slicing,) = config.slicings
    assert asked == ["slice_0"]
    assert slicing.values[:4] == ("common", None, "v0", "v1")
    assert len(slicing.values) == MOST_SLICES
    assert slicing.other

    numbers = first | {"slice_0": np.array([1, 2])}
    config, asked = plan(
        Configuration("binary", slicings=(Slicing("by", ("3", "1")),)), columns, numbers
    )
    assert (config.slicings[0].values, asked) == ((3, 1), [])
    with pytest.raises(MetricInputError, match="'x'; the column holds values of type int"):
        plan(Configuration("binary", slicings=(Slicing("by", ("3", "x")),)), columns, numbers)
