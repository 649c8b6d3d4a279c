"""`datarax merge`: one result of the folders of several evaluations."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.text import Text

from datarax import __version__
from datarax.cli import console_tables
from datarax.evaluation.outcome import merged, save_state, write_outcome


def run(args: argparse.Namespace) -> int:
    """Runs the command, and returns its exit code."""
    folder: Path = args.output
    outcome = merged(args.folders, duplicates=args.allow_duplicates, title=args.title or "")
    folder.mkdir(parents=True, exist_ok=True)
    save_state(folder, outcome)
    summary = outcome.summary(__version__)
    written = write_outcome(folder, outcome, summary)
    console = Console(highlight=False)
    console_tables.show(console, summary)
    console.print(Text(f" {written[-1]}", style="dim"), soft_wrap=True)
    return 0
