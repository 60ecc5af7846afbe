"""``python -m vtensor`` is the command ``vtensor``."""

import sys

from .cli import main

sys.exit(main())
