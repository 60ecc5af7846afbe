"""``python -m vtensor`` is the command ``vtensor``."""

import sys

from .command.cli import main

sys.exit(main())
