"""``python -m lgm``."""

import sys

from .cli import main

sys.exit(main())
