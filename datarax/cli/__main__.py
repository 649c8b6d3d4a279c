"""`python -m datarax.cli` runs the command `datarax`."""

from datarax.cli import program

program()
