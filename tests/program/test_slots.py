"""Tiles: what a plan sends at a time fits its slots, and its edges their budget."""

from __future__ import annotations

import pytest

from pycoll.program.slots import BUDGET_BYTES, SLOT_BYTES, SLOTS, message_bytes, tile_bytes


@pytest.mark.parametrize("size", range(2, 9))
def test_few_ranks_are_not_bound_by_the_budget(size: int) -> None:
    for edges in (1, size - 1, 2 * (size - 1)):
        assert message_bytes(edges, SLOTS, BUDGET_BYTES) == SLOT_BYTES
    for widest in (1, 2, 3, size):
        fits = SLOT_BYTES // widest // 64 * 64
        assert tile_bytes(1 << 30, widest, SLOT_BYTES) == fits
        assert tile_bytes(4096, widest, SLOT_BYTES) == min(4096, fits)


@pytest.mark.parametrize("edges", [1, 10, 63, 1023, 4092, 65535])
@pytest.mark.parametrize("widest", [1, 3, 64, 512, 4096])
@pytest.mark.parametrize("budget", [BUDGET_BYTES, BUDGET_BYTES // 4])
@pytest.mark.parametrize("slot", [SLOT_BYTES, 8192])
def test_what_the_edges_of_a_plan_touch_fits_the_budget(
    edges: int, widest: int, budget: int, slot: int
) -> None:
    message = message_bytes(edges, SLOTS, budget, slot)
    tile = tile_bytes(1 << 30, widest, message)
    assert tile % 64 == 0
    assert tile * widest <= message <= slot
    # No slot takes less than a page.
    assert message * SLOTS * edges <= max(budget, 4096 * SLOTS * edges)
    assert message == slot or 4 * message * SLOTS * edges > budget
    assert (tile + 64) * widest > message


@pytest.mark.parametrize("edges", [1, 10, 1023])
@pytest.mark.parametrize("widest", [1, 65, 512, 4096])
def test_the_widest_message_goes_beyond_the_budget_but_not_beyond_a_slot(
    edges: int, widest: int
) -> None:
    """Bruck's all-to-all of 1,024 ranks sends 512 chunks, and a rank's budget may be 256 KiB."""
    for slot in (SLOT_BYTES, 8192):
        message = message_bytes(edges, SLOTS, 256 << 10, slot, widest)
        tile = tile_bytes(1 << 30, widest, message)
        assert message <= slot
        assert (tile == 0) == (widest * 64 > slot)
        assert message & (message - 1) == 0


def test_a_message_of_too_many_chunks_has_no_tile() -> None:
    assert tile_bytes(4096, 4096, message_bytes(1, SLOTS, BUDGET_BYTES)) == 64
    assert tile_bytes(4096, 4097, message_bytes(1, SLOTS, BUDGET_BYTES)) == 0
    assert tile_bytes(4096, 65, message_bytes(1 << 20, SLOTS, BUDGET_BYTES)) == 0
    # halving_doubling of 1,024 ranks
    assert tile_bytes(4096, 512, message_bytes(10, SLOTS, BUDGET_BYTES)) == 512
