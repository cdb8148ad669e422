"""What the tests of this folder share: tests/simt/simulation.py, and data of tests/conformance."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "conformance")]
