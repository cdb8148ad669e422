"""Room: how much memory and address space the edges and the heap of a communicator get.

A slot's address follows from its edge (decision 5), so every edge of every two ranks has room,
used or not. That is address space; memory and page tables come with the first touch. So the *slot*,
the room of one message, shrinks with the number of ranks only where address space would not do, or
where a device pins what it may touch; and the *tile*, what a plan sends at a time, is bounded by
the memory that the plan's edges touch.
"""

from __future__ import annotations

import os
import resource
from typing import Protocol

from pycoll.program import slots
from pycoll.program.isa import CHUNK_UNIT, MAX_CHANNELS
from pycoll.program.slots import (
    BUDGET_BYTES,
    LINES,
    LONG_SLOT_BYTES,
    SLOT_BYTES,
    SLOTS,
    SMALL_BYTES,
    power_of_two,
)

#: Address space that all heaps, and all slots, may take together in each process, of the 128 TiB
#: that it has; those of a group, a share of it.
HEAPS_BYTES, SLOTS_BYTES, GROUPS = 1 << 45, 1 << 44, 64
#: Edges of two ranks each way: those of Programs, and two for transfers.
_CHANNELS = MAX_CHANNELS + 2


#: Up to so many ranks have long slots, if all share a host: their edges then fit the budget.
FEW = 8
#: Up to so many ranks map each other as they join, and have direct forms.
EAGER = 64
#: Slots are whole pages.
_PAGE = 4096
#: Of a job, however many ranks share a host.
_LEAST_BUDGET = 256 << 10


class World(Protocol):
    """What is used here of the ranks."""

    @property
    def slots(self) -> int:
        """Return the slots of an edge."""

    @property
    def long_slot_bytes(self) -> int:
        """Return the longest message of any plan."""

    @property
    def budget(self) -> int:
        """Return what all messages to a rank may take, in bytes."""


def eager(size: int, pinned: bool) -> bool:
    """Tell whether all peers are mapped as ranks join: few, or pinned as a whole."""
    return pinned or size <= EAGER


def held(size: int, near: int, pinned: bool = False) -> int:
    """Return of how many arenas a process has room for the slots: its own, and its peers'.

    Those of windows, and of shadows, are together as long as one arena's.

    Args:
        size: Ranks.
        near: Ranks of its host.
        pinned: The memory of all edges is pinned.
    """
    return near + 1 if eager(size, pinned) else 2


def memory_bytes() -> int:
    """Return the memory of this host."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def budget_bytes(whole: bool = True, share: int = BUDGET_BYTES << 6) -> int:
    """Return what all messages of a plan to a rank may take.

    Args:
        whole: The ranks are the job, not a group of it.
        share: A rank's share of its host's memory, in bytes; a rank has several plans, and arrays.
    """
    budget = min(BUDGET_BYTES, max(_LEAST_BUDGET, share >> 6))
    return budget if whole else budget // 4


def fair_bytes(size: int, whole: bool = True) -> int:
    """Return the bytes of a slot with which edges from all other ranks fit the budget.

    So long are the slots of two channels that all other ranks use: for what may be pinned, and for
    transfers, which may be with any rank.
    """
    return slots.message_bytes(2 * (size - 1), SLOTS, budget_bytes(whole))


def slot_bytes(
    size: int, arenas: int, room: int, whole: bool = True, longest: int = SLOT_BYTES
) -> int:
    """Return the bytes of a slot.

    Args:
        size: Ranks.
        arenas: So many arenas' slots a process has, its own, those that it maps and shadows.
        room: Bytes of address space for all slots, as `slots_room` gives it.
        whole: The ranks are the job, not a group of it.
        longest: Bytes of a slot where there is room.
    """
    spacious = power_of_two(room // (arenas * size * _CHANNELS * SLOTS))
    return max(fair_bytes(size, whole), min(longest, spacious))


def longest_slot_bytes(size: int, alone: bool) -> int:
    """Return the bytes that a slot should have where there is room.

    Args:
        size: Ranks.
        alone: They are the job, have a host to themselves, and nothing pins their memory.
    """
    return LONG_SLOT_BYTES if alone and size <= FEW else SLOT_BYTES


def small_bytes(
    size: int, slot: int, arenas: int, room: int, budget: int, pinned: bool = False
) -> int:
    """Return up to how many bytes a message between hosts is small: many may be in flight.

    Those of two channels that all other ranks use fit the budget once more.

    Args:
        size: Ranks.
        slot: Bytes of a slot.
        arenas: As of `slot_bytes`.
        room: As of `slot_bytes`; small slots take a quarter of it besides.
        budget: What all messages of a plan to a rank may take.
        pinned: RDMA may pin them, those of all channels, used or not.
    """
    fair = power_of_two(budget // (LINES * 2 * max(1, size - 1)))
    spacious = power_of_two(room // (4 * arenas * size * _CHANNELS * LINES))
    small = min(SMALL_BYTES, slot // 4, fair, spacious) // (4 if pinned else 1)
    return small if small >= CHUNK_UNIT else 0


def with_trailer(message: int) -> int:
    """Return the bytes of a slot with room for what goes by RDMA behind the longest message.

    Short slots have none, as a page each is much for them: a message that fills one takes a
    second work request.

    Args:
        message: Bytes of the longest message.
    """
    return message + _PAGE if message >= _PAGE << 4 else message


def slots_room(whole: bool = True) -> int:
    """Return how much address space this process would give all slots."""
    room = min(SLOTS_BYTES, _address_space() // 4)
    return room if whole else room // GROUPS


def heap_bytes(size: int, whole: bool = True) -> int:
    """Return how much address space this rank would give each rank's heap."""
    room = min(HEAPS_BYTES, _address_space() // 2)
    room = room if whole else room // GROUPS
    return min(memory_bytes(), room // size) >> 12 << 12


def message_bytes(edges: int, widest: int, world: World, tile: int = SLOT_BYTES) -> int:
    """Return the longest message of a plan.

    Args:
        edges: The most into one rank.
        widest: Chunks of its widest message.
        world: Of the communicator.
        tile: Bytes wanted of a chunk at a time.
    """
    longest = max(SLOT_BYTES, tile)
    slot = world.long_slot_bytes
    return slots.message_bytes(edges, world.slots, world.budget, slot, widest, longest)


def _address_space() -> int:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return 1 << 47 if limit == resource.RLIM_INFINITY else limit
