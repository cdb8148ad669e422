"""Room: what edges and heaps may take, by arithmetic."""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

import pytest

from pycoll.runtime import room

TIB = 1 << 40


class Ranks(NamedTuple):
    """What all ranks agree on."""

    slot_bytes: int = room.SLOT_BYTES
    slots: int = room.SLOTS
    budget: int = room.BUDGET_BYTES


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("size", [1, 2, 8, 64, 300, 1 << 20])
def test_fair_slots_fit_the_budget(size: int, whole: bool) -> None:
    each = room.fair_bytes(size, whole)
    assert each % 4096 == 0
    assert each & (each - 1) == 0
    edges, budget = 2 * (size - 1), room.BUDGET_BYTES // (1 if whole else 4)
    assert edges * room.SLOTS * each <= max(budget, edges * room.SLOTS * 4096)


@pytest.mark.parametrize(
    ("size", "arenas", "each"),
    [
        (1, 2, 256 << 10),
        (64, 65, 256 << 10),
        (1024, 1025, 256 << 10),
        (4096, 4097, 32 << 10),  # every rank maps the whole of all others
        (16384, 2, 256 << 10),
        (1 << 20, 2, 256 << 10),
    ],
)
def test_slots_shrink_only_where_address_space_ends(size: int, arenas: int, each: int) -> None:
    assert room.slot_bytes(size, arenas, room.SLOTS_BYTES) == each
    assert arenas * size * 6 * room.SLOTS * each <= room.SLOTS_BYTES


def test_slots_never_fall_below_their_fair_share() -> None:
    for size in (2, 17, 64, 300, 5000):
        for whole in (True, False):
            assert room.slot_bytes(size, size + 1, 1, whole) == room.fair_bytes(size, whole)


def test_heaps_and_slots_of_the_job_and_its_groups_fit_a_process() -> None:
    slots = room.SLOTS_BYTES + room.GROUPS * (room.SLOTS_BYTES // room.GROUPS)
    heaps = room.HEAPS_BYTES + room.GROUPS * (room.HEAPS_BYTES // room.GROUPS)
    assert slots + heaps <= 128 * TIB - 16 * TIB


def test_a_limit_of_address_space_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 << 30, 8 << 30))
    assert room.slots_room() == 2 << 30
    assert room.slots_room(whole=False) == (2 << 30) // room.GROUPS
    assert room.heap_bytes(4) <= 1 << 30


def test_the_heap_fits_the_address_space(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = (48 << 40) // os.sysconf("SC_PAGE_SIZE")
    honest = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda n: pages if n == "SC_PHYS_PAGES" else honest(n))
    for size in (1, 4, 7):
        each = room.heap_bytes(size)
        assert each % 4096 == 0
        assert (each + 4096) * size > 1 << 45
        assert each * size <= 1 << 45
        assert 64 * size * room.heap_bytes(size, whole=False) <= 1 << 45


@pytest.mark.parametrize("size", range(2, 9))
def test_few_ranks_are_not_bound_by_the_budget(size: int) -> None:
    for widest in (1, 2, 3, size):
        fits = room.SLOT_BYTES // widest // 64 * 64
        for edges in (size - 1, 4 * (size - 1), room.most_edges(size)):
            assert room.tile_for(1 << 30, widest, edges, Ranks()) == fits
        assert room.tile_for(4096, widest, 1, Ranks()) == min(4096, fits)


@pytest.mark.parametrize("edges", [1, 10, 63, 1023, 4092, 65535])
@pytest.mark.parametrize("widest", [1, 3, 64, 512, 4096])
def test_what_the_edges_of_a_plan_touch_fits_the_budget(edges: int, widest: int) -> None:
    for world in (Ranks(), Ranks(budget=room.BUDGET_BYTES // 4), Ranks(slot_bytes=8192)):
        tile = room.tile_for(1 << 30, widest, edges, world)
        assert tile % 64 == 0
        assert tile * widest <= world.slot_bytes
        # No slot takes less than a page.
        assert max(4096, tile * widest) * world.slots * edges <= max(
            world.budget, 4096 * world.slots * edges
        )
        wider = (tile + 64) * widest
        assert wider > world.slot_bytes or 2 * wider * world.slots * edges > world.budget


def test_a_message_of_too_many_chunks_has_no_tile() -> None:
    assert room.tile_for(4096, 4096, 1, Ranks()) == 64
    assert room.tile_for(4096, 4097, 1, Ranks()) == 0
    assert room.tile_for(4096, 65, 1 << 20, Ranks()) == 0
    assert room.tile_for(4096, 512, 10, Ranks()) == 512, "halving_doubling of 1,024 ranks"
