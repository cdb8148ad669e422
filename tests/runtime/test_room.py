"""Room: what edges and heaps may take, by arithmetic."""

from __future__ import annotations

import os
import resource

import pytest

from pycoll.program.slots import LONG_SLOT_BYTES, SLOT_BYTES
from pycoll.runtime import room

TIB = 1 << 40


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


def test_long_slots_are_as_long_as_there_is_room_for() -> None:
    for size in range(1, room.FEW + 1):
        long = room.slot_bytes(size, size + 1, room.SLOTS_BYTES, longest=LONG_SLOT_BYTES)
        assert long == LONG_SLOT_BYTES
        # All that a rank receives from all others by one channel.
        assert (size - 1) * room.SLOTS * long <= room.BUDGET_BYTES
    assert room.slot_bytes(4, 5, 1, longest=LONG_SLOT_BYTES) == room.fair_bytes(4)


class _World:
    slots, slot_bytes, long_slot_bytes = room.SLOTS, SLOT_BYTES, LONG_SLOT_BYTES
    budget = room.BUDGET_BYTES


def test_only_who_wants_a_long_tile_sends_long_messages() -> None:
    assert room.message_bytes(1, 1, _World()) == SLOT_BYTES
    assert room.message_bytes(1, 1, _World(), SLOT_BYTES // 2) == SLOT_BYTES
    assert room.message_bytes(1, 1, _World(), LONG_SLOT_BYTES) == LONG_SLOT_BYTES
    assert room.message_bytes(8, 1, _World(), LONG_SLOT_BYTES) == LONG_SLOT_BYTES
    assert room.message_bytes(9, 1, _World(), LONG_SLOT_BYTES) == LONG_SLOT_BYTES // 2


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
