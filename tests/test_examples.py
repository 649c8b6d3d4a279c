"""Every example is run: docstrings, README.md, docs/ and notebooks/, with what they print."""

import contextlib
import doctest
import importlib
import io
import json
import re
import textwrap
import warnings
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import pytest

import datarax
from tests import processes
from tests.helpers import long
from tests.test_layers import MODULES, ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# A fenced block of Python and, right below it, what it prints.
BLOCK = re.compile(
    r"^(?P<indent> *)```python\n(?P<code>.*?)^ *```$(?:\n\s*```text\n(?P<prints>.*?)^ *```$)?",
    re.DOTALL | re.MULTILINE,
)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def printed(code: str, name: str, namespace: dict[str, object]) -> str:
    """Runs `code` in `namespace`, with `name` in a traceback, and returns what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("error", datarax.UndefinedMetricWarning)
        exec(compile(code, name, "exec"), namespace)
    return out.getvalue()


@pytest.mark.parametrize("module", [m for m in MODULES if not m.endswith("__main__")])
def test_docstrings(module):
    runner, out = doctest.DocTestRunner(), io.StringIO()
    for test in doctest.DocTestFinder().find(importlib.import_module(module)):
        runner.run(test, out=out.write)
    assert runner.summarize(verbose=False).failed == 0, out.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_pages(page):
    text, namespace = page.read_text(), {"__name__": page.stem}
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```python")
    for block in blocks:
        line = text.count("\n", 0, block.start()) + 1
        # The lines above keep a traceback's line numbers those of the page.
        code = "\n" * line + textwrap.dedent(block["code"])
        out = printed(code, relative(page), namespace)
        assert out == textwrap.dedent(block["prints"] or ""), f"{relative(page)}:{line}"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_powers_are_written_as_code(page):
    # Markdown takes two powers of a paragraph for bold text, and shows neither's stars.
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    assert re.findall(r"\d\*\*-?\d+", text) == []


def _first_block(page: str) -> re.Match[str]:
    block = BLOCK.search((ROOT / "docs/recipes" / page).read_text())
    assert block
    return block


def _first_program(page: str) -> str:
    return printed(_first_block(page)["code"], page, {"__name__": "__main__"})


def test_recipes_on_several_processes():
    alone, together = "several-processes.md", "generated-text.md"
    with processes.Group(_first_program, 3, alone) as group:
        prints = _first_block(alone)["prints"]
        assert group.results() == [prints, "", ""]
        group.again(_first_program, together)  # the same processes: they import JAX only once
        assert group.results() == [_first_block(together)["prints"]] * 3


# Three of them take as long as the ten others.
SLOW = "is-my-run-healthy", "two-processes", "evaluate-a-language-model"


@pytest.mark.parametrize(
    "notebook",
    [pytest.param(x, marks=long) if x.stem in SLOW else x for x in NOTEBOOKS],
    ids=relative,
)
def test_notebooks(notebook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    cells = [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]
    assert cells
    for number, cell in enumerate(cells, 1):
        where = f"{relative(notebook)}, code cell {number}"
        # As a user runs it: Optax needs JAX's usual promotion of dtypes.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            out = printed("".join(cell["source"]), where, namespace)
        # Pictures are drawn, and not compared.
        stored = ["".join(each["text"]) for each in cell["outputs"] if "text" in each]
        assert out == "".join(stored), where
    plt.close("all")  # those of all notebooks would be too many for one process


def test_notebooks_are_listed():
    text = (ROOT / "notebooks" / "README.md").read_text()
    assert [path.name for path in NOTEBOOKS if f"({path.name})" not in text] == []
