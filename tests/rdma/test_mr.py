"""Memory regions of the registration cache on real verbs, while the memory changes."""

from __future__ import annotations

from pathlib import Path

import compiled
from rack import Rack

ROOT = Path(__file__).parents[2]
CACHE = [
    "verbs/memory",
    "memory/rcache",
    "memory/mem_events",
    "memory/mem_type",
    "gpu/driver/cuda",
    "gpu/driver/cuda_memory",
]


def test_no_write_goes_to_memory_of_before(rack: Rack) -> None:
    parts = compiled.parts("plain", (*CACHE, *compiled.RAIL))
    driver = compiled.driver(ROOT / "tests" / "native" / "mr.c", "plain", parts)
    done = rack.guest.run([str(driver), "rxe0", "rxe1", "36"])
    assert done.stdout.splitlines() == [
        "36 writes to memory as it was; kept: yes, found again: yes",
        "a region that was kept in spite of it: nothing arrives",
    ]
