"""`datarax merge`: one result of the folders of several evaluations."""

import argparse
from pathlib import Path

from datarax import __version__
from datarax._errors import CheckpointError
from datarax.cli.console_tables import Summary
from datarax.cli.evaluate import show_and_write
from datarax.cli.interrupts import promptly
from datarax.evaluation.outcome import PARTIAL, files_of, merged
from datarax.evaluation.outcome_summary import summary_of
from datarax.evaluation.output_folder import held
from datarax.evaluation.tasks import imported


def run(args: argparse.Namespace) -> int:
    """Runs the command, and returns its exit code."""
    folder: Path = args.output
    for module in args.modules:  # only the user says what is imported, never a folder
        imported(module)
    if (folder / PARTIAL).exists():
        raise CheckpointError(
            f"{str(folder)!r} holds an evaluation that was stopped: use another folder for --output"
        )

    def computed() -> tuple[Summary, dict[str, bytes]]:
        outcome = merged(args.folders, duplicates=args.allow_duplicates, title=args.title or "")
        summary = summary_of(outcome, __version__)
        return summary, files_of(outcome, summary)

    # Before the folder is made: a merge that is refused leaves none behind.
    summary, contents = promptly(computed)
    with held(folder):
        show_and_write(folder, summary, contents)
    return 0
