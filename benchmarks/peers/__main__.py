"""Prints the tables of the pages on performance, or writes them there: `make bench-peers`."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.tables import machine

# Each has a process of its own: they differ in the number of devices, and leave memory behind.
TABLES = ("compiled", "eager", "first", "reading", "sync", "areas", "mean", "loop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="of each contestant, which take turns")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="a page with marks, or a folder of pages"
    )
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; default: all")
    args = parser.parse_args()
    write(args.write, "machine", machine())
    for name in args.tables or TABLES:
        command = [sys.executable, "-m", f"benchmarks.peers.{name}", "--runs", str(args.runs)]
        write(
            args.write,
            name,
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout,
        )


def write(page: Path | None, name: str, text: str) -> None:
    """Puts a text between `<!-- name -->` and `<!-- /name -->` of a page, or prints it.

    Of a folder, it is the page below it that has the marks.
    """
    text = re.sub(r"\n{3,}", "\n\n", text.strip())
    if page is None:
        print(f"\n## {name}\n\n{text}", flush=True)
        return
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    pages = sorted(page.rglob("*.md")) if page.is_dir() else [page]
    found = {each: old for each in pages if marks.search(old := each.read_text())}
    count = sum(len(marks.findall(old)) for old in found.values())
    if count != 1:
        raise SystemExit(f"{page}: expected one pair of marks for {name!r}; got {count}")
    for each, old in found.items():
        each.write_text(marks.sub(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", old))


if __name__ == "__main__":
    main()
