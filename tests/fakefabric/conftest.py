"""What these tests share lies beside them; under importlib mode no path leads here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
