"""How large the package is, by folder: modules, lines of code, comments, and uses of `Any`.

A line of code is a line that holds a token of the program: no docstring, comment or blank line.

    python benchmarks/lines.py                          # the package, and each of its folders
    python benchmarks/lines.py datarax/cli tests/cli    # these folders or files, each in a row
"""

import ast
import io
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[1] / "datarax"
LAYOUT = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


class Lines(NamedTuple):
    """The counts of a module, or of several together."""

    modules: int
    code: int
    comments: int
    anys: int

    @classmethod
    def of(cls, path: Path) -> "Lines":
        """The counts of a file, or the sums over a folder with its folders."""
        if path.is_file():
            return cls(1, *counted(path.read_text()))
        files = [cls.of(file) for file in sorted(path.rglob("*.py"))]
        return cls(*map(sum, zip(*files, strict=True))) if files else cls(0, 0, 0, 0)


def counted(source: str) -> tuple[int, int, int]:
    """The lines of code, the lines with a comment, and the uses of the name `Any` of a module."""
    strings = docstring_lines(source)
    code, comments, anys = set(), set(), 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in LAYOUT and token.start[0] not in strings:
            code.update(range(token.start[0], token.end[0] + 1))
            anys += token.type == tokenize.NAME and token.string == "Any"
    return len(code), len(comments), anys


def docstring_lines(source: str) -> set[int]:
    """The lines of all strings that are statements: docstrings, and those below an attribute."""
    return {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def main(paths: list[str]) -> None:
    rows = [(path, Lines.of(Path(path))) for path in paths]
    if not paths:
        folders = sorted({file.parent for file in PACKAGE.glob("*/*.py")})
        alone = [Lines.of(file) for file in sorted(PACKAGE.glob("*.py"))]
        rows = [("datarax", Lines.of(PACKAGE))]
        rows.append(("  modules of its own", Lines(*map(sum, zip(*alone, strict=True)))))
        rows += [(f"  {folder.name}", Lines.of(folder)) for folder in folders]
    elif len(rows) > 1:
        columns = zip(*(lines for _, lines in rows), strict=True)
        rows.append(("together", Lines(*map(sum, columns))))
    width = max(len(label) for label, _ in rows)
    print(f"{'':{width}} modules    code  comments/100  Any/1000")
    for label, (modules, code, comments, anys) in rows:
        each = code or 1
        shares = f"{100 * comments / each:13.1f} {1000 * anys / each:9.1f}"
        print(f"{label:{width}} {modules:7,} {code:7,} {shares}")


if __name__ == "__main__":
    main(sys.argv[1:])
