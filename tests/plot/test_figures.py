"""What the figures draw is what the metrics give, and it can be read."""

# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false
# Matplotlib's types say of an artist only that it is one.

import copy
import json
import pickle

import jax.numpy as jnp
import matplotlib.axes
import numpy as np
import pytest
from matplotlib import colors
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sklearn.isotonic import IsotonicRegression

from datarax import Compare, Interval, MetricInputError, MetricTypeError, Sliced, plot
from datarax.metrics import (
    AUROC,
    ROC,
    Accuracy,
    AveragePrecision,
    CalibrationError,
    ConfusionMatrix,
    Mean,
    PrecisionRecallCurve,
    ReliabilityDiagram,
    ScoreDecomposition,
)
from datarax.plot import canvas
from datarax.plot.canvas import COLORS, line_style
from datarax.uncertainty import detectable_difference
from tests.conftest import seed

NAN = float("nan")


def scores(rng, n=200):
    target = rng.integers(0, 2, n)
    return jnp.asarray(rng.normal(size=n) + target, jnp.float32), jnp.asarray(target)


@pytest.fixture(scope="module")
def seen(module_rng):
    return scores(module_rng)


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes overlap, and texts that leave the figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    # Matplotlib keeps the labels of ticks beyond the ends of an axis, and does not draw them.
    hidden = set()
    for axes in figure.findobj(matplotlib.axes.Axes):
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if not low <= tick.get_loc() <= high:
                    hidden |= {id(tick.label1), id(tick.label2)}
    boxes = []
    for text in figure.findobj(lambda x: hasattr(x, "get_text") and hasattr(x, "get_fontsize")):
        if text.get_text() and text.get_visible():
            ends = text.get_window_extent(renderer)
            if id(text) not in hidden and ends.width > 0:
                boxes.append((text.get_text(), ends))
    found = []
    for i, (text, a) in enumerate(boxes):
        if a.x0 < -1 or a.y0 < -1 or a.x1 > figure.bbox.x1 + 1 or a.y1 > figure.bbox.y1 + 1:
            found.append((text, "the edge"))
        # A point of tolerance: boxes include room for accents.
        found += [
            (text, other)
            for other, b in boxes[:i]
            if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
        ]
    return found


def confusion(classes):
    rng = np.random.default_rng(seed())
    table = rng.poisson(0.3, (classes, classes)) + np.diag(rng.integers(1, 10**6, classes))
    return plot.confusion_matrix(table, names=[f"name of class {i}" for i in range(classes)])


def sliced(count):
    rng = np.random.default_rng(seed())
    rows = {f"slice number {i}": value for i, value in enumerate(rng.random(count).tolist())}
    parts = {
        name: {"value": x, "lower": x - 0.1, "upper": x + 0.1, "std_error": 0.05}
        for name, x in rows.items()
    }
    return parts | {"overall": {"value": 0.5, "lower": 0.4, "upper": 0.6, "std_error": 0.05}}


def curve(classes, points=20):
    rng = np.random.default_rng(seed())
    rates = np.sort(rng.random((2, classes, points)), -1)
    rates[..., 0], rates[..., -1] = 0, 1
    return {"fpr": rates[0], "tpr": rates[1], "thresholds": np.linspace(1, 0, points)}


def run(groups, steps=30):
    rng = np.random.default_rng(seed())
    names = ["grad_norm", *(f"layers/block{i}/grad_norm" for i in range(groups))]
    return [
        {"step": 1000 * i, **dict(zip(names, np.exp(rng.normal(size=len(names))), strict=True))}
        for i in range(steps)
    ]


def losses(names, steps=12):
    return [
        {"step": i, **{f"{name}/loss": i * 0.1 + j for j, name in enumerate(names)}}
        for i in range(steps)
    ]


SIZES = {
    "confusion": (confusion, 2, 12, 200),
    "slices": (lambda n: plot.slices(sliced(n)), 2, 100),
    "roc": (lambda n: plot.roc(curve(n), names=[f"a class {i}" for i in range(n)]), 2, 10, 200),
    "history": (lambda n: plot.history(losses([f"run {i}" for i in range(n)])), 1, 10, 200),
    "experts": (lambda n: plot.expert_load({"share": np.full(n, 1 / n), "balance": 1.0}), 2, 200),
    "layers": (lambda n: plot.expert_load({"share": np.full((n, 2 * n), 0.5 / n)}), 2, 100),
    "health": (lambda n: plot.health(run(n)), 2, 100),
}


@pytest.mark.parametrize(
    ("make", "size"),
    [
        pytest.param(make, size, id=f"{name}-{size}")
        for name, (make, *sizes) in SIZES.items()
        for size in sizes
    ],
)
def test_no_texts_overlap(make, size):
    assert overlapping(make(size)) == []


@pytest.mark.parametrize("highest", [0.5, 1.5, 7.6, 30.0])
def test_numbers_of_a_log_scale_do_not_overlap(highest):
    records = [{"step": i, "grad_norm": x} for i, x in enumerate((0.13, highest))]
    figure = plot.health(records)
    assert overlapping(figure) == []
    scale = figure.axes[-1].yaxis
    low, high = scale.get_view_interval()
    ticks = [*scale.get_major_ticks(), *scale.get_minor_ticks()]
    assert sum(low <= t.get_loc() <= high and bool(t.label1.get_text()) for t in ticks) >= 2


def test_overlapping_texts_are_found():
    figure = plot.history(losses(["a"]))
    figure.axes[0].text(0.5, 0.5, "one thing", transform=figure.axes[0].transAxes)
    figure.axes[0].text(0.5, 0.5, "another", transform=figure.axes[0].transAxes)
    assert overlapping(figure)


def test_confusion_matrix_draws_each_cell(rng):
    preds, target = (jnp.asarray(rng.integers(0, 3, 50)) for _ in range(2))
    metric = ConfusionMatrix(num_classes=3).update(preds, target)
    axes = plot.confusion_matrix(metric).axes[0]
    table = metric.results()
    assert [text.get_text() for text in axes.texts] == [f"{x:.0f}" for x in np.ravel(table)]
    share = table / np.maximum(table.sum(-1, keepdims=True), 1)
    np.testing.assert_allclose(axes.images[0].get_array(), share)
    shares = plot.confusion_matrix(table, normalize="all").axes[0].images[0].get_array()
    np.testing.assert_allclose(shares, table / table.sum())


def test_confusion_matrix_of_many_classes_has_no_text():
    axes = confusion(200).axes[0]
    assert list(axes.texts) == []
    assert axes.images[0].get_array().shape == (200, 200)


def test_confusion_matrix_of_labels(rng):
    tables = rng.integers(1, 9, (5, 2, 2))
    figure = plot.confusion_matrix(tables, names=list("abcde"))
    assert [axes.get_title() for axes in figure.axes] == list("abcde")
    with pytest.raises(MetricInputError, match="5 labels"):
        plot.confusion_matrix(tables, figure.axes[0])


def distinct(x, y):
    repeats = np.append(False, (np.diff(x) == 0) & (np.diff(y) == 0))
    return np.asarray(x)[~repeats], np.asarray(y)[~repeats]


def test_roc_draws_the_points(seen):
    metric = ROC(num_points=16, bits=10).update(*seen)
    points = metric.results()
    for given in (metric, points, points._asdict()):
        axes = plot.roc(given).axes[0]
        x, y = distinct(points.fpr, points.tpr)
        np.testing.assert_array_equal(axes.lines[0].get_xdata(), x)
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), y)


def test_the_area_is_that_of_the_metric(seen):
    metric = AUROC().update(*seen)
    assert plot.roc(metric).axes[0].get_title() == f"AUROC {metric.results():.3g}"
    average = AveragePrecision().update(*seen)
    title = plot.precision_recall(average).axes[0].get_title()
    assert title == f"average precision {average.results():.3g}"


def band(axes):
    """The corners of the band, and its least and greatest height at any place."""
    (area,) = axes.collections
    corners = np.concatenate([path.vertices for path in area.get_paths()])

    def at(x):
        near = np.abs(corners[:, 0] - x) < 1e-6
        return corners[near, 1].min(), corners[near, 1].max()

    return corners, at


def test_the_exact_roc_is_within_the_band(seen):
    preds, target = (np.asarray(x, float) for x in seen)
    axes = plot.roc(ROC(num_points=6, bits=10).update(*seen)).axes[0]
    x, y = (np.asarray(z) for z in axes.lines[0].get_data())
    tops = np.sort(preds)[::-1]
    for threshold in tops[:: len(tops) // 20]:
        fpr = ((preds >= threshold) & (target == 0)).sum() / (target == 0).sum()
        tpr = ((preds >= threshold) & (target == 1)).sum() / (target == 1).sum()
        # Some rectangle of two neighbouring points holds it.
        inside = (x[:-1] <= fpr + 1e-6) & (fpr <= x[1:] + 1e-6)
        inside &= (y[:-1] <= tpr + 1e-6) & (tpr <= y[1:] + 1e-6)
        assert inside.any()
    corners, _ = band(axes)
    for low, high in zip(zip(x, y, strict=True), zip(x[1:], y[1:], strict=False), strict=False):
        for corner in ((high[0], low[1]), (low[0], high[1])):
            assert (np.abs(np.asarray(corners) - np.asarray(corner)).max(-1) < 1e-6).any()


def test_the_exact_precision_is_within_the_band(seen):
    preds, target = (np.asarray(x, float) for x in seen)
    axes = plot.precision_recall(PrecisionRecallCurve(num_points=6, bits=10).update(*seen)).axes[0]
    (area,) = axes.collections
    path = area.get_paths()[0]
    for threshold in np.sort(preds)[::13]:
        positive = preds >= threshold
        recall = (positive & (target == 1)).sum() / (target == 1).sum()
        precision = (positive & (target == 1)).sum() / positive.sum()
        # A margin for the straight lines between the corners of the band.
        near = [
            path.contains_point((recall + dx, precision + dy), radius=0.0)
            for dx in (-0.012, 0, 0.012)
            for dy in (-0.03, 0, 0.03)
        ]
        assert any(near)


def test_ties_have_no_band():
    # Every score has a bin of its own: nothing is uncertain, also between tied examples.
    metric = ROC(bits=10).update(jnp.array([1.0, 1.0, 2.0, 3.0]), jnp.array([0, 1, 0, 1]))
    assert list(plot.roc(metric).axes[0].collections) == []


def test_many_classes_are_light_lines_with_a_mean():
    axes = plot.roc(curve(30)).axes[0]
    assert len(axes.get_legend().get_texts()) == 1
    assert len(axes.lines) == 30 + 2
    assert list(axes.collections) == []


def test_score_histogram_has_all_weight(seen):
    preds, target = (np.asarray(x, float) for x in seen)
    positives, negatives = plot.score_histogram(AUROC(bits=14).update(*seen)).axes[0].patches
    for patch, label in ((positives, 1), (negatives, 0)):
        values, edges, _ = patch.get_data()
        x = np.clip(preds[target == label], edges[0] + 1e-9, edges[-1] - 1e-9)
        # A bin of scores may be cut by the edge of a bar.
        error = np.abs(np.cumsum(values) - np.cumsum(np.histogram(x, edges)[0]) / len(x))
        assert error.max() < 0.05
        assert np.isclose(values.sum(), 1)


def test_reliability_draws_the_bins(seen):
    preds, target = 1 / (1 + np.exp(-np.asarray(seen[0]))), np.asarray(seen[1])
    metric = CalibrationError(num_bins=8).update(jnp.asarray(preds), seen[1])
    diagram = ReliabilityDiagram(num_bins=8).update(jnp.asarray(preds), seen[1]).results()
    place = np.ceil(preds * 8).astype(int) - 1
    bins = np.unique(place)
    accuracy = [target[place == i].mean() for i in bins]
    for given in (metric, diagram):
        axes, below = plot.reliability(given).axes
        bars, gaps = axes.containers[:2]
        np.testing.assert_allclose([bar.get_height() for bar in bars], accuracy, rtol=1e-5)
        np.testing.assert_allclose([bar.get_x() for bar in bars], bins / 8)
        means = [preds[place == i].mean() for i in bins]
        ends = [gap.get_y() + gap.get_height() for gap in gaps]
        np.testing.assert_allclose(ends, means, rtol=1e-5)
        counts = np.array([(place == i).sum() for i in bins])
        counts = counts if given is metric else counts / len(preds)
        heights = [bar.get_height() for bar in below.patches]
        np.testing.assert_allclose(heights, counts, rtol=1e-5)


def test_reliability_of_a_decomposition_draws_the_isotonic_regression(rng):
    forecasts, n = np.float32([0.1, 0.3, 0.5, 0.8, 0.9]), 300
    preds = rng.choice(forecasts, n)
    target = rng.random(n) < preds**2
    axes, below = plot.reliability(ScoreDecomposition().update(preds, target)).axes
    fit = IsotonicRegression(out_of_bounds="clip")
    line = next(each for each in axes.lines if each.get_label().startswith("isotonic"))
    want = fit.fit(preds, target).predict(forecasts)
    np.testing.assert_allclose(np.interp(forecasts, *line.get_data()), want, atol=1e-6)
    assert sum(bar.get_height() for bar in below.patches) == n
    assert "Brier score" in axes.get_title()
    # The band is that of other calibrated targets, but for chance.
    lines = [fit.fit(preds, rng.random(n) < preds).predict(forecasts) for _ in range(2000)]
    points = np.asarray(axes.collections[0].get_paths()[0].vertices, float)
    for x, drawn in zip(forecasts, np.transpose(lines), strict=True):
        ends = points[np.isclose(points[:, 0], x), 1]
        for end, q in ((ends.min(), 0.025), (ends.max(), 0.975)):
            # An extreme quantile of 400 draws is between these of many.
            least, most = (np.quantile(drawn, q + d) for d in (-0.022, 0.022))
            assert least - 0.02 <= end <= most + 0.02


def test_a_band_of_many_forecasts_is_around_the_diagonal(rng):
    logits = rng.normal(0, 2, 20_000).astype(np.float32)
    p = 1 / (1 + np.exp(-logits.astype(float)))
    metric = ScoreDecomposition(score="log", from_logits=True).update(
        logits, rng.random(20_000) < p
    )
    axes, _ = plot.reliability(metric).axes
    points = np.asarray(axes.collections[0].get_paths()[0].vertices, float)
    assert len(points) < 1100
    assert np.abs(points[:, 0] - points[:, 1]).max() < 0.3
    within = (points[:, 0] > 0.1) & (points[:, 0] < 0.9)
    # The standard deviation of the fit is about 0.02.
    assert 0.005 < np.abs(points[within, 0] - points[within, 1]).mean() < 0.08
    one = plot.reliability(ScoreDecomposition().update(np.full(9, 0.25), np.ones(9, int))).axes[0]
    ends = np.asarray(one.collections[0].get_paths()[0].vertices, float)[:, 1]
    assert 0 <= ends.min() < 0.25 < ends.max() < 0.8


def test_power_is_how_often_a_difference_is_found(rng):
    error = float(rng.uniform(0.01, 1))
    axes = plot.power(error, examples=400, sizes=(100, 900), power=0.9, confidence=0.9).axes[0]
    curves = [line for line in axes.lines if len(line.get_xdata()) > 2]
    for size, line, text in zip((100, 900), curves, axes.get_legend().get_texts(), strict=True):
        of_size = error * (400 / size) ** 0.5
        found = np.abs(rng.normal(np.linspace(0, 4, 9), 1, (40_000, 9))) > 1.6448536269514722
        drawn = np.interp(of_size * np.linspace(0, 4, 9), *line.get_data())
        # The standard deviation of a share of 40,000 is at most 0.0025.
        np.testing.assert_allclose(drawn, found.mean(0), atol=0.015)
        least = detectable_difference(of_size, power=0.9, confidence=0.9)
        assert np.interp(least, *line.get_data()) == pytest.approx(0.9, abs=1e-3)
        assert text.get_text() == f"{size}: {canvas.number(least)}"
    alone = plot.power(error).axes[0]
    assert len([line for line in alone.lines if len(line.get_xdata()) > 2]) == 1


def test_what_power_refuses():
    for wrong in (0, -1, NAN, np.inf, "1", None):
        with pytest.raises(MetricInputError, match=r"std_error=.*; expected a number above 0"):
            plot.power(wrong)
    for given in ({"examples": 10}, {"sizes": (10,)}):
        with pytest.raises(MetricInputError, match="expected both, or neither"):
            plot.power(1.0, **given)
    with pytest.raises(MetricInputError, match=r"sizes=0\.5; expected an integer"):
        plot.power(1.0, examples=10, sizes=(0.5,))
    with pytest.raises(MetricInputError, match="at most 10"):
        plot.power(1.0, examples=10, sizes=range(1, 12))
    with pytest.raises(MetricInputError, match=r"power=0\.3"):
        plot.power(1.0, power=0.3)
    with pytest.raises(MetricInputError, match="confidence=95"):
        plot.power(1.0, confidence=95)


def test_slices_are_sorted(rng):
    metric = Sliced(Interval(Accuracy(num_classes=4, average="micro")), 4, names=tuple("abcd"))
    preds, target, ids = (jnp.asarray(rng.integers(0, k, 60)) for k in (4, 4, 3))
    metric = metric.update(preds, target, slices=ids)
    results = metric.results()
    axes = plot.slices(metric).axes[0]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    values = [results[name.split()[0]]["value"] for name in labels]
    assert labels[-1] == "d (no data)"
    assert values[:-1] == sorted(values[:-1], reverse=True)
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), values)
    ends = [
        segment[:, 0].tolist() for segment in axes.collections[0].get_segments() if len(segment)
    ]
    wanted = [[results[name][end] for end in ("lower", "upper")] for name in labels[:-1]]
    np.testing.assert_allclose(ends[:3], wanted)


def test_slices_of_a_collection_need_a_name():
    parts = {name: {"loss": 1.0, "accuracy": 0.5} for name in ("a", "b", "overall")}
    with pytest.raises(MetricInputError, match="'accuracy', 'loss'"):
        plot.slices(parts)
    assert plot.slices(parts, name="loss").axes[0].lines[0].get_xdata().tolist() == [1.0, 1.0]
    # Bootstrap(Sliced(...)) has the parts outside.
    outside = {end: dict.fromkeys(parts, i) for i, end in enumerate(("lower", "value", "upper"))}
    axes = plot.slices(outside).axes[0]
    assert axes.lines[0].get_xdata().tolist() == [1, 1]


def test_history_of_a_file(tmp_path):
    records = [
        {"step": 10, "loss": 1.0, "loss/lower": 0.5, "loss/upper": 1.5, "matrix": [[1, 2]]},
        {"step": 20, "loss": None, "loss/lower": None, "loss/upper": None, "matrix": None},
        {"step": 30, "loss": 0.5, "loss/lower": 0.25, "loss/upper": 0.75, "matrix": [[1, 2]]},
    ]
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, records)) + "\n\n")
    pairs = [(each["step"], {k: v for k, v in each.items() if k != "step"}) for each in records]
    for given in (path, str(path), records, pairs, pairs[::-1], iter(records)):
        (axes,) = plot.history(given).axes
        (line,) = axes.lines
        assert line.get_xdata().tolist() == [10, 20, 30]
        np.testing.assert_array_equal(line.get_ydata(), [1.0, NAN, 0.5])
        assert len(axes.collections) == 1
    path.write_text("{broken")
    with pytest.raises(MetricInputError, match="line 1"):
        plot.history(path)


@pytest.mark.parametrize(
    "result",
    [
        {"loss": {"value": 1.0, "lower": 0.5, "upper": 2.0, "std_error": 0.1}},
        {"value": {"loss": 1.0}, "lower": {"loss": 0.5}, "upper": {"loss": 2.0}},
        {"loss": 1.0, "lower/loss": 0.5, "upper/loss": 2.0},
    ],
)
def test_history_finds_intervals(result):
    (axes,) = plot.history([(0, result), (1, result)]).axes
    assert len(axes.lines) == 1
    assert set(axes.collections[0].get_paths()[0].vertices[:, 1]) == {0.5, 2.0}


def test_quantiles_are_bands(rng):
    rows = np.sort(rng.normal(size=(7, 5)), -1)
    axes = plot.quantiles(list(enumerate(rows)), q=(0.01, 0.25, 0.5, 0.75, 0.99)).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), rows[:, 2])
    for area, (low, high) in zip(axes.collections, ((0, 4), (1, 3)), strict=True):
        heights = area.get_paths()[0].vertices[:, 1]
        assert {*rows[:, low], *rows[:, high]} == set(heights)
    named = [
        {"step": i, **dict(zip(("p1", "p50", "p99"), row[:3].tolist(), strict=True))}
        for i, row in enumerate(rows)
    ]
    axes = plot.quantiles(named).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), rows[:, 1])


def test_health_shows_what_is_not_finite():
    records = run(3, 5)
    records[1]["layers/block1/grad_norm"] = float("inf")
    records[2]["layers/block1/grad_norm"] = NAN
    records[3]["layers/block1/grad_norm"] = 0.0
    axes = plot.health(records).axes[0]
    assert axes.get_yticklabels()[0].get_text() == "all"
    assert [patch.get_width() for patch in axes.patches] == [2]
    shown = axes.images[0].get_array()
    assert shown.mask.sum() == 2
    np.testing.assert_allclose(shown[0], [record["grad_norm"] for record in records])


def test_expert_load_draws_shares():
    share = np.array([0.5, 0.3, 0.2])
    axes = plot.expert_load({"share": share}).axes[0]
    assert [bar.get_height() for bar in axes.patches] == share.tolist()
    layers = plot.expert_load({"share": np.stack([share, share * NAN])}).axes[0]
    np.testing.assert_allclose(layers.images[0].get_array()[0], share * 3)
    assert len(layers.patches) == 1  # what has no data is crossed out


NOTHING = {
    "confusion_matrix": lambda: plot.confusion_matrix(ConfusionMatrix(num_classes=3)),
    "roc": lambda: plot.roc({"fpr": [NAN], "tpr": [NAN], "thresholds": [NAN]}),
    "precision_recall": lambda: plot.precision_recall(
        {"precision": [None], "recall": [None], "thresholds": [None]}
    ),
    "reliability": lambda: plot.reliability(
        {"confidence": [NAN] * 3, "accuracy": [NAN] * 3, "weight": [NAN] * 3}
    ),
    "isotonic reliability": lambda: plot.reliability(ScoreDecomposition(bits=10)),
    "score_histogram": lambda: plot.score_histogram(AUROC(bits=10)),
    "quantiles": lambda: plot.quantiles([(0, {"p1": NAN, "p50": NAN})]),
    "history": lambda: plot.history([(0, {"loss": NAN})]),
    "history-empty": lambda: plot.history([]),
    "slices": lambda: plot.slices({"a": NAN, "b": NAN, "overall": NAN}),
    "expert_load": lambda: plot.expert_load({"share": [NAN, NAN]}),
    "health": lambda: plot.health([(0, {"grad_norm": NAN, "head/grad_norm": None})]),
}


@pytest.mark.parametrize("name", NOTHING)
def test_no_data_is_said(name):
    figure = NOTHING[name]()
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert any("no data" in text for text in texts)
    assert overlapping(figure) == []


FUNCTIONS = [
    "confusion_matrix", "roc", "precision_recall", "reliability", "score_histogram", "quantiles",
    "history", "slices", "expert_load", "health",
]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("wrong", [0.5, object(), np.zeros(())])
def test_a_wrong_kind_is_named(name, wrong):
    with pytest.raises(MetricTypeError, match=rf"plot\.{name}: expected .*; got"):
        getattr(plot, name)(wrong)


def test_wrong_arguments():
    with pytest.raises(MetricTypeError, match="ax: expected"):
        plot.history(losses(["a"]), ax="here")
    with pytest.raises(MetricInputError, match="3 names"):
        plot.roc(curve(3), names=["a"])
    with pytest.raises(MetricInputError, match="no numbers called 'los'"):
        plot.history([(0, {"loss": 1.0})], names=["los"])
    with pytest.raises(MetricInputError, match="no 'step'"):
        plot.history([{"loss": 1.0}])


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: plot.confusion_matrix([[1, 2], [3, 4]], ax),
        lambda ax: plot.roc(curve(2), ax),
        lambda ax: plot.reliability(
            {"confidence": [0.3, 0.8], "accuracy": [0.2, 0.9], "weight": [0.5, 0.5]}, ax
        ),
        lambda ax: plot.reliability(ScoreDecomposition().update([0.3, 0.8], [0, 1]), ax),
        lambda ax: plot.power(0.5, ax, examples=9, sizes=[9, 36]),
        lambda ax: plot.history(losses(["a", "b"]), ax),
        lambda ax: plot.slices(sliced(3), ax),
        lambda ax: plot.expert_load({"share": [0.5, 0.5]}, ax),
        lambda ax: plot.health(run(2), ax),
    ],
)
def test_it_draws_into_the_axes_that_are_given(draw):
    figure = Figure(layout="constrained")
    left, right = figure.subplots(1, 2)
    assert draw(right) is figure
    assert right.has_data()
    assert not left.has_data()
    assert isinstance(right, matplotlib.axes.Axes)


def test_reliability_is_within_the_figure_of_its_axes(rng):
    bins = {name: rng.random(10).tolist() for name in ("confidence", "accuracy", "weight")}
    figure = Figure(figsize=(8, 4), layout="constrained")
    for axes in figure.subplots(1, 2):
        plot.reliability(bins, axes)
    assert [found for found in overlapping(figure) if "the edge" in found] == []


def test_a_notebook_shows_a_new_figure():
    # IPython calls it: "Rich display" in "Integrating your objects with IPython".
    figure = plot.confusion_matrix([[3, 1], [0, 2]])
    assert figure._repr_png_().startswith(b"\x89PNG")
    for other in (pickle.loads(pickle.dumps(figure)), copy.deepcopy(figure)):
        other.axes[0].clear()
        assert other._repr_png_() != figure._repr_png_()


def lightness(color) -> float:
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colors.to_rgb(color)
    ]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def test_colors_are_readable_on_light_and_dark():
    for color in COLORS:
        y = lightness(color)
        assert 1.05 / (y + 0.05) >= 2.99, color
        assert (y + 0.05) / (lightness("#15171c") + 0.05) >= 2.99, color


def test_lines_differ_in_black_and_white():
    styles = [line_style(i) for i in range(10)]
    for i, a in enumerate(styles):
        for b in styles[:i]:
            greys = [116 * lightness(x["color"]) ** (1 / 3) for x in (a, b)]
            assert a["linestyle"] != b["linestyle"] or abs(greys[0] - greys[1]) > 3


def test_p_values_are_drawn_if_they_are_results(rng):
    a, b = rng.normal(size=(2, 60))
    empty = Sliced(Compare(Mean(), method="formula"), 2)
    seen = empty.update(a, b, slices=np.arange(60) % 2)
    results = seen.results()
    for name in ("p_value", "difference"):
        ax = plot.slices(seen, name=name, sort=False).axes[0]
        dots = ax.lines[0].get_xdata()
        np.testing.assert_allclose(dots, [results[str(i)][name] for i in range(2)])
    # Beside a value, as an evaluation has them, they are none.
    of = {"value": 0.5, "p_value": 0.01, "p_adjusted": 0.02}
    assert plot.slices({"a": of, "overall": {"value": 0.4}}).axes[0].get_xlabel() == "value"
