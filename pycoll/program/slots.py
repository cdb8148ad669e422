"""How many slots an edge has where a Program runs, and how long its messages may be."""

from __future__ import annotations

from pycoll.program.isa import CHUNK_UNIT

#: One is filled while the other is read, and two more hide a late reader.
SLOTS = 4
#: Small messages that may be on their way on an edge between hosts.
LINES = 32
#: The most bytes of such a message. MPI's send up to 64 KiB over TCP without asking; but 32 slots
#: of that length are more than a second-level cache holds (decision 18).
SMALL_BYTES = 32 << 10
#: Bytes of a slot: a tile fits the second-level cache twice.
SLOT_BYTES = 256 << 10
#: Of few ranks that have a host to themselves, for long messages that are only moved: an edge's
#: slots are then more than its reader's second-level cache holds (decision 6).
LONG_SLOT_BYTES = 1 << 20
#: What all messages to a rank may take, in bytes. Of a group, a quarter: there may be many.
BUDGET_BYTES = 32 << 20
#: No message takes less memory, however short it is.
_PAGE = 4096


def message_bytes(
    edges: int,
    slots: int,
    budget: int,
    slot_bytes: int = SLOT_BYTES,
    widest: int = 1,
    longest: int = SLOT_BYTES,
) -> int:
    """Return the longest message with which the edges into a rank fit its slots and its budget.

    The widest message is sent as a whole, so it may go beyond the budget, but not beyond a slot.

    Args:
        edges: The most edges into one rank, of any rank.
        slots: Of an edge.
        budget: What all messages to a rank may take, in bytes.
        slot_bytes: Room of one message.
        widest: Chunks of the widest message of any rank.
        longest: Bytes beyond which no message is wanted.

    Returns:
        Bytes; a power of two, so that messages begin at whole pages.
    """
    fair = budget // (slots * max(1, edges))
    least = max(_PAGE, power_of_two(2 * widest * CHUNK_UNIT - 1))
    return min(slot_bytes, max(least, min(longest, power_of_two(fair))))


def tile_bytes(wanted: int, widest: int, message: int) -> int:
    """Return how many bytes of each chunk are sent at a time: the tile.

    Args:
        wanted: The most that is wanted, a multiple of `CHUNK_UNIT`.
        widest: Chunks of the widest message of any rank.
        message: Bytes of the longest message, see `message_bytes`.

    Returns:
        A multiple of `CHUNK_UNIT`; 0: not even the shortest of so many chunks fit a message.
    """
    return min(wanted, message // widest // CHUNK_UNIT * CHUNK_UNIT)


def power_of_two(n: int) -> int:
    """Return the greatest power of two up to n."""
    return 1 << n.bit_length() >> 1
