"""Known faults: `python -m tests.known_faults` puts each in, and names the test that finds it.

They are faults of the past and changes of one token, spread over the package. Whoever removes tests
or makes them lighter shows with them that nothing was lost. `known_faults.json` says of each what
it does, which tests are to find it, and what it changes: a file, a text that stands there once, and
what takes its place. If the code has moved on, the program says so: change the fault so that it
does the same as before. Not part of every run: `make known-faults`.
"""

import json
import shlex
import sys
from pathlib import Path

from tests.mutants import ROOT, copied, found_by

FAULTS = json.loads(Path(__file__).with_suffix(".json").read_text())


def changed(changes: list[tuple[str, str, str]]) -> dict[str, str]:
    """The texts of the files with the changes."""
    texts: dict[str, str] = {}
    for target, old, new in changes:
        text = texts.get(target) or (ROOT / target).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{target} holds {text.count(old)} times, and not once: {old}")
        texts[target] = text.replace(old, new)
    for target, text in texts.items():
        compile(text, target, "exec")  # a text that is not Python is no fault, but an error
    return texts


def is_by_a_test(report: str) -> bool:
    """True if what `found_by` reports is a test that fails, and no error of collection or set-up.

    A fault with which a module cannot be imported shows nothing about the tests.
    """
    return bool(report) and not report.startswith("ERROR")


def main() -> int:
    """Tries the faults whose description has one of the words given; by default all."""
    words = sys.argv[1:] or [""]
    chosen = [fault for fault in FAULTS if any(word in fault["what"] for word in words)]
    texts = [changed(fault["changes"]) for fault in chosen]  # before the first minute has passed
    missed = 0
    with copied() as folder:
        for fault, text in zip(chosen, texts, strict=True):
            report = found_by(folder, text, shlex.split(fault["tests"]))
            is_found = is_by_a_test(report)
            missed += not is_found
            said = report if is_found else f"NOT FOUND by {fault['tests']}: {report or 'all pass'}"
            print(f"{fault['what']}: {said}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
