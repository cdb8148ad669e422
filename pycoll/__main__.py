"""``python -m pycoll``: the same as the ``pycoll`` command."""

from __future__ import annotations

import sys

from pycoll.cli import main

if __name__ == "__main__":
    sys.exit(main())
