"""What these tests share lies beside them; under importlib mode no path leads here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

import patient


@pytest.fixture
def healthy(tmp_path: Path) -> patient.Patient:
    """A machine on which all is well."""
    return patient.healthy(tmp_path)
