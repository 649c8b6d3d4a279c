"""Figures as pictures: the same each time, and readable on light and dark pages."""

# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false
# Matplotlib's types say of an artist only that it is one.

import io
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.image import imread

from datarax import Collection, Interval, Sliced, plot
from datarax.evaluation.pictures import pictures
from datarax.metrics import (
    AUROC,
    Accuracy,
    AveragePrecision,
    CalibrationError,
    ConfusionMatrix,
    Mean,
    ScoreDecomposition,
)
from datarax.plot import canvas
from datarax.plot.canvas import INK, svg
from tests.evaluation.browsing import CHROMIUM, require_chromium

REFERENCES = Path(__file__).parent / "references"
RATES = np.linspace(0, 1, 9)
RUN = [
    {"step": 10 * i, "train/loss": 1 / (1 + i), "test/loss": 1.2 / (1 + i / 2)} for i in range(8)
]
FIGURES = {
    "confusion_matrix": lambda k: plot.confusion_matrix(
        [[90 + k, 10], [3, 7]], names=["no", "yes"]
    ),
    "roc": lambda k: plot.roc({"fpr": RATES, "tpr": RATES ** (0.3 + k), "thresholds": 1 - RATES}),
    "precision_recall": lambda k: plot.precision_recall(
        {"precision": 0.5 + RATES / (2 + k), "recall": 1 - RATES, "thresholds": RATES}
    ),
    "reliability": lambda k: plot.reliability(
        {"confidence": [0.2, 0.7 + k / 10], "accuracy": [0.1, 0.9], "weight": [0.25, 0.75]}
    ),
    "isotonic_reliability": lambda k: plot.reliability(
        ScoreDecomposition().update(RATES, [0, 0, 1, k > 0, 0, 0, 1, 1, 1])
    ),
    "power": lambda k: plot.power(0.01 * (1 + k), examples=100, sizes=(50, 200)),
    "quantiles": lambda k: plot.quantiles(
        [(i, [-i - k, 0, 2 * i]) for i in range(5)], q=(0.1, 0.5, 0.9)
    ),
    "history": lambda k: plot.history([*RUN, {"step": 80, "train/loss": k, "test/loss": None}]),
    "slices": lambda k: plot.slices(
        {
            n: {"value": x, "lower": x - 0.1, "upper": x + 0.1}
            for n, x in {"de": 0.5, "fr": 0.7 + k / 5, "overall": 0.6}.items()
        }
    ),
    "expert_load": lambda k: plot.expert_load({"share": [0.4, 0.3, 0.3 + k], "balance": 0.98}),
    "health": lambda k: plot.health(
        [
            (i, {"grad_norm": 2.0, "head/grad_norm": 1.0 + k, "body/grad_norm": 10.0**i})
            for i in range(6)
        ]
    ),
}


@cache
def drawn(name: str) -> str:
    """The picture that several tests look at."""
    return svg(FIGURES[name](0))


def pixels(figure, dpi=50) -> np.ndarray:
    """The picture in greys, of shape (height, width)."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi, facecolor="white")
    file.seek(0)
    return imread(file)[..., :3] @ np.array([0.299, 0.587, 0.114])


def coarse(grey: np.ndarray, cells: int = 16) -> np.ndarray:
    """The mean greys of a grid of cells: what is seen from afar."""
    rows = np.array_split(grey, cells, axis=0)
    return np.array([[x.mean() for x in np.array_split(row, cells, axis=1)] for row in rows])


@pytest.mark.parametrize("name", list(FIGURES)[::4])
def test_pictures_are_deterministic(name):
    make = FIGURES[name]
    first = drawn(name)
    assert svg(make(0)) == first
    assert svg(make(0.5)) != first


@pytest.mark.parametrize("name", FIGURES)
def test_pictures_look_like_their_references(name):
    # Fonts differ between versions of Matplotlib a little; a missing artist is more than that.
    wanted = np.loadtxt(REFERENCES / f"{name}.csv", delimiter=",")
    seen = coarse(pixels(FIGURES[name](0)))
    # Matplotlib 3.9 draws a colour bar that is a little higher.
    older = tuple(map(int, matplotlib.__version__.split(".")[:2])) < (3, 10)
    assert np.abs(seen - wanted).mean() < (0.03 if older else 0.015)
    assert np.abs(seen - wanted).max() < 0.25


def test_references_are_distinct():
    files = {path.stem: np.loadtxt(path, delimiter=",") for path in REFERENCES.glob("*.csv")}
    assert files.keys() == FIGURES.keys()
    assert sum(path.stat().st_size for path in REFERENCES.iterdir()) < 60_000
    for name, image in files.items():
        others = [np.abs(image - other).mean() for key, other in files.items() if key != name]
        assert min(others) > 0.015


@pytest.mark.parametrize("name", FIGURES)
def test_an_svg_is_a_part_of_a_page(name):
    text = drawn(name)
    ElementTree.fromstring(text)  # it is well-formed
    assert text.startswith("<svg ")
    assert "currentColor" in text
    assert not re.search(r"<\?xml|<!DOCTYPE|<metadata|<style|20\d\d-\d\d-\d\d", text)
    # Nothing but hidden clip paths has the colour of neither page.
    assert not re.search(r"#0{6}|#f{6}|#010203", text)
    ids = re.findall(r'\sid="([^"]+)"', text)
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
    assert len(ids) == len(set(ids))
    assert set(used) == set(ids)


@pytest.mark.parametrize("name", FIGURES)
def test_all_text_beside_the_data_is_ink(name):
    # Black text, such as of the title of a legend by default, is not seen on a dark page.
    figure = FIGURES[name](0)
    for axes in figure.axes:
        legend = axes.get_legend()
        texts = [axes.title, axes.xaxis.label, axes.yaxis.label]
        texts += [] if legend is None else [legend.get_title(), *legend.get_texts()]
        assert {to_hex(text.get_color()) for text in texts if text.get_text()} <= {INK}


def test_ids_of_different_pictures_differ():
    ids = [re.findall(r'\sid="([^"]+)"', drawn(name)) for name in FIGURES]
    assert sum(map(len, ids)) == len({each for several in ids for each in several})


def test_pictures_are_seen_on_light_and_dark_pages(tmp_path):
    require_chromium()
    text = drawn("reliability")
    greys = {}
    for page, ink in (("#15171c", "#e8e8e8"), ("#ffffff", "#111111")):
        file, shot = tmp_path / "page.html", tmp_path / "page.png"
        style = f"background:{page};color:{ink};margin:0"
        file.write_text(f'<meta charset="utf-8"><body style="{style}">{text}')
        command = [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path}/profile",
            "--window-size=660,520",
            "--hide-scrollbars",
            f"--screenshot={shot}",
            file.as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        image = imread(shot)[..., :3].mean(-1)
        corner = image[-2, -2]
        greys[page] = np.abs(image - corner)
    # The same things stand out from both pages; text most of all.
    dark, light = greys.values()
    assert dark.max() > 0.7
    assert light.max() > 0.7
    seen = [(x > 0.1).mean() for x in (dark, light)]
    assert 0.5 < seen[0] / seen[1] < 2


def test_colors_of_series_can_be_told_apart_in_grey():
    # Two lines on top of one another: what differs is the dashes and the grey.
    figure = plot.history([{"step": i, "a/x": 1.0, "b/x": 2.0} for i in range(50)])
    lines = figure.axes[0].lines
    assert len({line.get_linestyle() for line in lines}) == 2


@pytest.fixture(scope="module")
def collection(module_rng):
    rng = module_rng
    target = rng.integers(0, 2, 60)
    preds = np.clip(rng.normal(0.4, 0.2, 60) + 0.2 * target, 0, 1).astype(np.float32)
    preds[0] = np.nan
    metrics = Collection(
        {
            "loss": Mean().from_outputs(values="preds"),
            "quality": Collection(
                {
                    "ap": AveragePrecision(bits=10),
                    "auroc": AUROC(bits=10),
                }
            ),
            "accuracy": Accuracy(),
            "matrix": ConfusionMatrix(),
            "ece": CalibrationError(num_bins=5),
            "parts": ScoreDecomposition(bits=10),
        }
    )
    metrics = Sliced(metrics, 2)
    ids = jnp.asarray(rng.integers(0, 2, 60))
    return metrics.update(preds=jnp.asarray(preds), target=jnp.asarray(target), slices=ids)


def test_pictures_of_a_collection(collection):
    found = pictures(collection)
    assert [picture.name for picture in found] == [
        "confusion_matrix", "roc", "precision_recall", "score_histogram", "reliability",
        "isotonic_reliability",
    ]  # fmt: skip
    for picture in found:
        assert picture.svg.startswith("<svg")
        assert picture.title
        assert "1 NaN" in picture.caption
    assert len({picture.svg for picture in found}) == len(found)
    # The user's style changes nothing.
    import matplotlib as mpl

    with mpl.rc_context({"text.color": "red", "axes.labelcolor": "red", "lines.linewidth": 9}):
        again = pictures(collection)
    assert again == found


def test_metrics_of_equal_data_have_one_picture_also_within_wrappers(rng):
    target = rng.integers(0, 2, 60)
    preds = rng.random(60).astype(np.float32)
    metrics = Collection(
        {
            "auroc": Interval(AUROC(bits=10)),
            "ap": AveragePrecision(bits=10),
            "other": AUROC(bits=12),
        }
    ).update(preds=preds, target=target)
    found = [picture.name for picture in pictures(metrics)]
    assert found == [
        "auroc-roc", "other-roc", "ap-precision_recall", "other-precision_recall",
        "auroc-score_histogram", "other-score_histogram",
    ]  # fmt: skip


def test_pictures_have_one_size(collection):
    sizes = {re.search(r'viewBox="([^"]*)"', picture.svg)[1] for picture in pictures(collection)}
    assert len(sizes) == 1


def test_a_matrix_for_each_label_is_wide(rng):
    preds, target = rng.random((9, 5)).astype(np.float32), rng.integers(0, 2, (9, 5))
    (found,) = pictures(ConfusionMatrix(num_labels=5).update(preds, target))
    assert found.is_wide


def test_aligned_axes_have_one_place(rng):
    names = [f"a class with the long name {i}" for i in range(12)]
    figures = [canvas.new_figure(5.0, 3.9) for _ in range(3)]
    axes = [canvas.new_axes(figure) for figure in figures]
    plot.confusion_matrix(np.eye(12), axes[0], names=names)
    preds, target = rng.random(50).astype(np.float32), rng.integers(0, 2, 50)
    plot.roc(AUROC(bits=10).update(preds, target), axes[1])
    plot.reliability(CalibrationError(num_bins=5).update(preds, target), axes[2])
    canvas.align(figures)
    ends = []
    for figure in figures:
        svg(figure)
        shown = [ax.get_position() for ax in figure.axes if not hasattr(ax, "_colorbar")]
        ends.append([shown[0].x0, shown[-1].y0, shown[0].x1, shown[0].y1])
        assert shown[0].x1 - shown[0].x0 > 0.3
    np.testing.assert_allclose(ends, np.broadcast_to(ends[0], (3, 4)), atol=1e-6)


def test_metrics_of_different_data_have_a_picture_each():
    metrics = Collection(
        {
            "a/b c": ConfusionMatrix(num_classes=2),
            "d": ConfusionMatrix(num_classes=3),
        }
    )
    found = pictures(metrics, names=["x", "y", "z"])
    assert [picture.name for picture in found] == ["a-b-c-confusion_matrix", "d-confusion_matrix"]
    assert [picture.title for picture in found] == [
        "Confusion matrix: a/b c",
        "Confusion matrix: d",
    ]
    assert pictures(Mean()) == []


def test_without_matplotlib_the_extra_is_named():
    code = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Refusing())
import datarax
from datarax.evaluation.pictures import pictures
from datarax.metrics import Mean

for use in (lambda: datarax.plot.expert_load({"share": [1.0]}), lambda: pictures(Mean())):
    try:
        use()
    except datarax.MissingExtraError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install '.[plot]'") == 2
    assert "datarax.plot needs matplotlib" in done.stdout


if __name__ == "__main__":  # records the references
    REFERENCES.mkdir(exist_ok=True)
    for name, make in FIGURES.items():
        np.savetxt(REFERENCES / f"{name}.csv", coarse(pixels(make(0))), "%.3f", delimiter=",")
