"""`python -m datarax.cli` runs the command `datarax`."""

import sys

from datarax.cli import main

sys.exit(main())
