"""``python -m mge``: the same as the command ``mge``."""

import sys

from mge.cli import main

if __name__ == "__main__":
    sys.exit(main())
