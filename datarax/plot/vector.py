"""Figures as SVG text that is a part of a page."""

import hashlib
import io
import re
from typing import TYPE_CHECKING

from datarax._optional import optional
from datarax.plot.canvas import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def svg(figure: "Figure") -> str:
    """A figure as inline SVG: its background is transparent, text and axes have the page's colour.

    Figures of the same values give the same text: there are no dates and no random ids. The ids of
    different pictures differ, so that they can be on one page. Text is drawn as paths, so that it
    does not depend on the fonts of the page.
    """
    matplotlib = optional("matplotlib", "plot", "datarax.plot")
    layout = figure.get_layout_engine()
    if layout is not None:
        for _ in range(3):  # it is found step by step; drawing makes the last one
            layout.execute(figure)
    file = io.StringIO()
    settings = {"svg.hashsalt": "datarax", "svg.fonttype": "path", "image.composite_image": False}
    with matplotlib.rc_context(settings):
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=none)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # A style sheet would hold for the whole page.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = text.replace("<svg ", '<svg style="stroke-linejoin:round;stroke-linecap:butt" ', 1)
    text = text.replace(INK, "currentColor")
    # Only what is referred to needs an id.
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    prefix = "d" + hashlib.sha256(text.encode()).hexdigest()[:10]
    text = re.sub(
        r'\s+id="([^"]*)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", text
    )
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", text)
    # A hundredth of a point is enough, and paths are most of the text.
    text = re.sub(r' d="[^"]*"', lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]), text)
    return re.sub(r"\n\s*", "\n", text).strip()
