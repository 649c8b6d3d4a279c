"""The figures of values draw what NumPy finds in all rows."""

# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false
# Matplotlib's types say of an artist only that it is one.

import numpy as np
import pytest

from datarax import Interval, MetricInputError, MetricTypeError, Sliced, plot
from datarax.metrics import Histogram, Mean, Median, MedianAbsoluteError, SpearmanCorrCoef


def bars(figure):
    found = figure.axes[0].patches[0].get_data()
    return found.values, found.edges


@pytest.mark.parametrize("sign", [1, -1])
def test_distribution_of_a_metric_of_quantiles(rng, sign):
    values = (sign * rng.gamma(2, 10, 20_000)).astype(np.float32)
    values[:3] = 1e6, -1e6, 0
    seen = Median().update(values[:7000]).merge(Median().update(values[7000:]))
    figure = plot.distribution(seen, bins=30)
    shares, edges = bars(figure)
    low, high = np.quantile(values, (0.005, 0.995))
    assert edges[0] <= low
    assert high <= edges[-1]
    assert edges[-1] - edges[0] == pytest.approx(1.04 * (high - low), rel=0.05)
    # Values beyond the edges are in the outermost bars.
    expected, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    # A bin of the metric that holds the edge of a bar is divided between two bars.
    np.testing.assert_allclose(shares, expected / len(values), atol=0.004)
    assert shares.sum() == pytest.approx(1)
    name, shown = figure.axes[0].get_title().split()
    assert name == "median"
    # Three digits of a value from bins.
    assert float(shown) == pytest.approx(np.median(values), rel=0.006)


def test_distribution_of_a_histogram_is_exact(rng):
    values = rng.normal(0.5, 0.4, 500)
    metric = Histogram(num_bins=10, range=(0, 1)).update(values)
    shares, edges = bars(plot.distribution(metric))
    counts, same = np.histogram(np.clip(values.astype(np.float32), 0, 1), 10, (0, 1))
    np.testing.assert_allclose(edges, same)
    np.testing.assert_allclose(shares, counts / 500, rtol=1e-12)
    # Drawing does not change the metric.
    np.testing.assert_array_equal(bars(plot.distribution(metric))[0], shares)


def test_error_quantiles(rng):
    preds, target = rng.normal(size=(2, 5000)).astype(np.float32)
    axes = plot.error_quantiles(MedianAbsoluteError().update(preds, target)).axes[0]
    error = np.abs(preds.astype(float) - target)
    x, y = np.asarray(axes.lines[0].get_xydata(), float).T
    # At most one value away in rank, where the share of the rank is rounded.
    low, high = (
        np.quantile(error, np.clip(x + step, 0, 1), method="inverted_cdf")
        for step in (-1 / 5000, 1 / 5000)
    )
    assert (y >= 0.995 * low).all()
    assert (y <= 1.005 * high).all()
    ends = np.quantile(error, (0.5, 0.9, 0.99), method="inverted_cdf")
    said = [float(text.split(": ")[1]) for text in axes.get_title().split(", ")]
    np.testing.assert_allclose(said, ends, rtol=0.01)


def test_pairs_of_few_values_are_counted_exactly(rng):
    # An integer has a bin of the metric of its own, and here a cell of its own.
    preds, target = rng.integers(-3, 4, (2, 4000)).astype(np.float32)
    preds[:2], target[:2] = np.nan, np.inf
    seen = SpearmanCorrCoef(bits=9).update(preds[:99], target[:99])
    seen = seen.merge(SpearmanCorrCoef(bits=9).update(preds[99:], target[99:]))
    figure = plot.pairs(seen, bins=7)
    image = figure.axes[0].images[0]
    left, right, bottom, top = image.get_extent()
    assert (left, right) == (bottom, top)
    edges = np.linspace(left, right, 8)
    counts, _, _ = np.histogram2d(preds[2:], target[2:], (edges, edges))
    np.testing.assert_allclose(image.get_array(), counts, atol=1e-9)
    assert image.origin == "lower"


def test_pairs_beyond_the_axes_are_in_the_outermost_cells(rng):
    target = rng.normal(size=30_000).astype(np.float32)
    preds = (target + rng.normal(0, 0.3, target.size)).astype(np.float32)
    preds[:5], target[5:9] = 1e5, -1e5
    axes = plot.pairs(SpearmanCorrCoef(bits=9).update(preds, target)).axes[0]
    image = axes.images[0]
    left, right, *_ = image.get_extent()
    assert -4 < left < -2
    assert 2 < right < 4
    assert image.get_array().sum() == pytest.approx(30_000)
    top = image.get_array()[-1].sum()
    assert top >= 5


def test_binned_values_stand_over_their_bins(rng):
    edges = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
    ids = rng.integers(1, 11, 400)
    values = rng.random(400).astype(np.float32)
    metric = Sliced(Interval(Mean()), 12).update(values, slices=ids)
    axes = plot.binned(metric, edges=edges, label="words").axes[0]
    line = axes.lines[0]
    places = np.unique(ids)
    expected = [values[ids == i].mean() for i in places]
    np.testing.assert_allclose(line.get_ydata(), expected, rtol=1e-5)
    middle = np.sqrt([edges[i] * edges[i + 1] for i in places])
    np.testing.assert_allclose(line.get_xdata(), middle)
    assert axes.get_xscale() == "log"
    assert axes.get_xlim() == (edges[places[0]], edges[places[-1] + 1])
    ends = axes.collections[0].get_segments()
    lower, upper = ([metric.results()[str(i)][end] for i in places] for end in ("lower", "upper"))
    np.testing.assert_allclose([[s[0, 1], s[1, 1]] for s in ends], np.transpose([lower, upper]))
    assert axes.lines[1].get_ydata()[0] == pytest.approx(values.mean())


def test_a_bin_from_zero_on_has_a_place_on_a_logarithmic_axis():
    results = {"0": 0.5, "1": 0.25, "overall": 0.3}
    axes = plot.binned(results, edges=(0, 2, 80)).axes[0]
    assert axes.get_xscale() == "log"
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [2**0.5, 160**0.5])
    axes = plot.binned(results, edges=(-2, 2, 80)).axes[0]
    assert axes.get_xscale() == "linear"


def test_without_data_the_figure_says_so():
    empty = (
        plot.distribution(Median()),
        plot.distribution(Histogram(edges=(0, 1, 2))),
        plot.error_quantiles(MedianAbsoluteError()),
        plot.pairs(SpearmanCorrCoef(bits=6)),
        plot.binned(Sliced(Mean(), 2), edges=(0, 1, 2)),
    )
    for figure in empty:
        assert [text.get_text() for text in figure.axes[0].texts] == ["no data"]


def test_one_value_has_a_width():
    seen = Median().update(np.full(5, 3.0, np.float32))
    shares, edges = bars(plot.distribution(seen, bins=4))
    assert shares.max() == 1
    assert edges[0] < 3 < edges[-1]
    same = SpearmanCorrCoef(bits=6).update(np.zeros(5, np.float32), np.zeros(5, np.float32))
    assert plot.pairs(same).axes[0].images[0].get_array().sum() == 5


def test_other_things_are_refused():
    for draw in (plot.distribution, plot.error_quantiles, plot.pairs):
        with pytest.raises(MetricTypeError, match=rf"datarax\.plot\.{draw.__name__}: expected"):
            draw(Mean())
    with pytest.raises(MetricTypeError, match=r"datarax\.plot\.pairs"):
        plot.pairs(SpearmanCorrCoef(exact=True))  # which has no table
    with pytest.raises(MetricTypeError, match=r"datarax\.plot\.binned"):
        plot.binned(Mean(), edges=(0, 1))
    with pytest.raises(MetricInputError, match="2 slices and edges"):
        plot.binned(Sliced(Mean(), 2), edges=(0, 1))
    with pytest.raises(MetricInputError, match="slices without names"):
        plot.binned(Sliced(Mean(), 2, names=("a", "b")), edges=(0, 1, 2))
