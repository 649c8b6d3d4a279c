"""The power of an evaluation: how probably it finds a difference."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from datarax._checks import finite_number, positive_int
from datarax._errors import MetricInputError
from datarax._xp import special
from datarax.plot import canvas
from datarax.uncertainty import detectable_difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def power(
    std_error: float,
    ax: "Axes | None" = None,
    *,
    examples: int | None = None,
    sizes: Sequence[int] = (),
    power: float = 0.8,
    confidence: float = 0.95,
) -> "Figure":
    """The probability that a two-sided test finds a difference, over the true difference.

    For a true difference d it is `F(d / std_error - z) + F(-d / std_error - z)`, with F the normal
    distribution and z its quantile at `(1 + confidence) / 2`. The lines to the axes are at the
    `datarax.uncertainty.detectable_difference` of the wanted power, which the legend has too.

    Args:
        std_error: the standard error of the difference, such as that of an evaluation so far.
        ax: where to draw, instead of a new figure.
        examples: of how many independent examples, or clusters, `std_error` is; only with `sizes`.
        sizes: numbers of examples, up to ten, with a curve for each: the standard error falls with
            the root of the number. Without them, there is one curve, of `std_error`.
        power: the power that is wanted, at least 0.5 and below 1.
        confidence: that of the interval which should not contain 0.

    Raises:
        MetricInputError: `std_error` is not a number above 0, `sizes` are not one to ten positive
            integers, one of `sizes` and `examples` is given without the other, or `power` or
            `confidence` is out of range.

    Example:
        >>> from datarax import plot
        >>> axes = plot.power(0.02, examples=1000, sizes=(1000, 4000)).axes[0]
        >>> print([text.get_text() for text in axes.get_legend().get_texts()])
        ['1000: 0.056', '4000: 0.028']
    """
    error = finite_number(std_error, "std_error", "a number above 0", lambda x: x > 0)
    if (examples is None) != (not len(sizes)):
        raise MetricInputError(
            f"examples={examples!r} and sizes={sizes!r}; expected both, or neither"
        )
    if len(sizes) > canvas.MOST_NAMED:
        raise MetricInputError(f"sizes={sizes!r}; expected at most {canvas.MOST_NAMED} of them")
    for name, count in (("examples", examples), *(("sizes", size) for size in sizes)):
        if count is not None:
            positive_int(count, name)
    scales = [1.0] if examples is None else [(examples / size) ** 0.5 for size in sizes]
    errors = error * np.asarray(scales)
    found = detectable_difference(errors, power=power, confidence=confidence)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    ax = canvas.axes_of(ax, 6.6)
    x = np.linspace(0, 1.5 * max(found), 301)
    for i, (each, least) in enumerate(zip(errors, found, strict=True)):
        curve = special.ndtr(x / each - z) + special.ndtr(-x / each - z)
        name = canvas.number(least) if examples is None else f"{sizes[i]}: {canvas.number(least)}"
        style = canvas.line_style(i, len(errors))
        thin: canvas.Style = {"color": style["color"], "linewidth": 0.8, "linestyle": ":"}
        ax.plot(x, curve, label=name, **style)
        ax.plot([least, least], [0, power], **thin)
    ink = canvas.ink_of(ax)
    ax.plot([0, max(found)], [power, power], color=ink, linewidth=0.8, linestyle=":")
    ax.set(xlim=(0, x[-1]), ylim=(0, 1.02), xlabel="true difference", ylabel="power")
    canvas.grid(ax)
    title = "detectable\ndifference"
    canvas.legend(ax, title=title if examples is None else f"examples:\n{title}")
    return canvas.figure_of(ax)
