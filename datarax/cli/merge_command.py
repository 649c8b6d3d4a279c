"""`datarax merge`: one result of the folders of several evaluations."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.text import Text

from datarax import __version__
from datarax.cli import console_tables
from datarax.evaluation.outcome import merged, write_outcome
from datarax.evaluation.output_folder import held


def run(args: argparse.Namespace) -> int:
    """Runs the command, and returns its exit code."""
    folder: Path = args.output
    console = Console(highlight=False)
    outcome = merged(args.folders, duplicates=args.allow_duplicates, title=args.title or "")
    summary = outcome.summary(__version__)
    with held(folder):
        try:
            console_tables.show(console, summary)
        finally:
            written = write_outcome(folder, outcome, summary)
    console.print(Text(f" {written[-1]}", style="dim"), soft_wrap=True)
    return 0
