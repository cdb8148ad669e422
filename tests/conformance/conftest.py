"""The modules that these tests share lie beside them; under importlib mode no path leads here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

import joined
import stand_in
from joined import Opened, held


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens the ranks of a job in this process; closes them, and finds nothing left behind."""
    before = held()
    jobs: list[list[Any]] = []

    def open_ranks(size: int, **options: int) -> list[Any]:
        jobs.append([joined.open_rank(rank, size, **options) for rank in range(size)])
        return jobs[-1]  # whoever closes a rank takes it from this list

    yield open_ranks
    for comms in jobs:
        while comms:
            joined.close(comms.pop(0), comms)
    assert held() <= before
    if (network := stand_in.network) is not None:
        assert set(network.objects().values()) == {0}
        assert network.total("unclosed") == 0
