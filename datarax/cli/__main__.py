"""`python -m datarax.cli` is the command `datarax`."""

import sys

from datarax.cli import main

sys.exit(main())
