"""Draws the figures of docs/plot.md, by running the code of the page.

    python docs/_figures.py

After each `figure = plot.NAME(...)` of the page it writes docs/images/plot-NAME.svg. If
a name other than `figure` is assigned, that is the name of the file.
"""

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Any

from datarax.plot.canvas import svg

DOCS = Path(__file__).parent
# The page that shows an image passes on its scheme, also where the reader has switched it.
STYLE = "svg{color:#202020}@media(prefers-color-scheme:dark){svg{color:#e0e0e0}}"


def small(text: str) -> str:
    """The same picture in fewer characters, with a style sheet."""
    tenths = re.compile(r"-?\d+\.\d+")
    for name in ("x", "y", "d"):
        text = re.sub(
            rf'(?<= {name}=")[^"]*',
            lambda m: tenths.sub(lambda n: f"{float(n[0]):.1f}", m[0]),
            text,
        )
    text = re.sub(r'(?<= d=")[^"]*', lambda m: re.sub(r"\s*([A-Za-z])\s*", r"\1", m[0]), text)
    text = re.sub(r' style="[^"]*"', lambda m: re.sub(r"([:;]) ", r"\1", m[0]), text)
    for i, name in enumerate(sorted(set(re.findall(r' id="(.*?)"', text)), reverse=True)):
        text = text.replace(name, f"i{i}")
    text = text.replace("<g>\n", "<g>").replace("xlink:href", "href")
    sheet = STYLE
    counts = Counter(re.findall(r' style="([^"]*)"', text))
    for i, style in enumerate(style for style, count in counts.items() if count > 2):
        text = text.replace(f' style="{style}"', f' class="s{i}"')
        sheet += f".s{i}{{{style}}}"
    return text.replace(">", f"><style>{sheet}</style>", 1)


def main() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / "plot.md").read_text(), re.S | re.M)
    namespace: dict[str, Any] = {}
    for statement in ast.parse("".join(blocks)).body:
        exec(compile(ast.Module([statement], []), "docs/plot.md", "exec"), namespace)
        if drawn := re.match(r"(\w+) = plot\.(\w+)\(", ast.unparse(statement)):
            variable, function = drawn.groups()
            text = small(svg(namespace[variable]))
            name = function if variable == "figure" else variable
            (DOCS / "images" / f"plot-{name}.svg").write_text(text + "\n")


if __name__ == "__main__":
    main()
