"""How many blocks of a kernel an SM holds, and what room they leave: arithmetic, no GPU.

The rules are those of CUDA's occupancy calculator. Registers are given to warps, in units, out of
the partition that a warp runs in; shared memory to blocks, in units, with what the system reserves.
"""

from __future__ import annotations

from dataclasses import dataclass

from pycoll.arguments import require_fields
from pycoll.errors import UsageError, quoted
from pycoll.overlap.limits import WARP, Limits


@dataclass(frozen=True)
class Footprint:
    """What one block of a kernel takes of an SM."""

    threads: int
    registers: int  #: per thread
    shared: int = 0  #: bytes that the kernel declares
    dynamic: int = 0  #: bytes that its launch asks for besides

    def __post_init__(self) -> None:
        require_fields(self)
        if not 1 <= self.threads <= 1024:
            raise UsageError(f"overlap: a block has {quoted(self.threads)} threads, want 1 to 1024")
        if not 1 <= self.registers <= 255:
            raise UsageError(
                f"overlap: a thread has {quoted(self.registers)} registers, want 1 to 255"
            )

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // WARP)


def warp_registers(block: Footprint, sm: Limits) -> int:
    """Return the registers that one warp takes."""
    return _up(block.registers * WARP, sm.register_unit)


def block_shared(block: Footprint, sm: Limits, padding: int = 0) -> int:
    """Return the bytes of shared memory that one block takes, padded or not."""
    return _up(block.shared + block.dynamic + padding + sm.reserved, sm.shared_unit)


def resident(block: Footprint, sm: Limits, padding: int = 0) -> int:
    """Return how many blocks of one kernel an SM holds; 0: it cannot be launched.

    Args:
        block: What each takes.
        sm: What there is.
        padding: Bytes of shared memory that each is given for nothing.
    """
    if block.shared + block.dynamic + padding > sm.shared_per_block:
        return 0
    each = warp_registers(block, sm)
    warps = sm.registers // sm.partitions // each * sm.partitions
    found = min(sm.blocks, sm.threads // (block.warps * WARP), warps // block.warps)
    taken = block_shared(block, sm, padding)
    return min(found, sm.shared // taken) if taken else found


def fits_beside(other: Footprint, block: Footprint, count: int, sm: Limits, padding: int) -> bool:
    """Tell whether one block of another kernel fits beside ``count`` of this one."""
    return not lacking(other, block, count, sm, padding)


def lacking(
    other: Footprint, block: Footprint, count: int, sm: Limits, padding: int = 0
) -> list[str]:
    """Return what is short for ``other`` beside ``count`` blocks: registers, threads, ..."""
    short = []
    left = sm.registers // sm.partitions - _share(block.warps * count, sm) * warp_registers(
        block, sm
    )
    if _share(other.warps, sm) * warp_registers(other, sm) > left:
        short.append("registers")
    if (block.warps * count + other.warps) * WARP > sm.threads:
        short.append("threads")
    if count + 1 > sm.blocks:
        short.append("blocks")
    if count * block_shared(block, sm, padding) + block_shared(other, sm) > sm.shared:
        short.append("shared memory")
    return short


def beside(other: Footprint, block: Footprint, count: int, sm: Limits, padding: int = 0) -> int:
    """Return how many blocks of another kernel fit beside ``count`` of this one on an SM."""
    left = sm.registers // sm.partitions - _share(block.warps * count, sm) * warp_registers(
        block, sm
    )
    warps = max(left, 0) // warp_registers(other, sm) * sm.partitions
    warps = min(warps, sm.threads // WARP - block.warps * count)
    found = min(warps // other.warps, sm.blocks - count)
    if taken := block_shared(other, sm):
        found = min(found, (sm.shared - count * block_shared(block, sm, padding)) // taken)
    return max(found, 0)


def padding_for(block: Footprint, count: int, sm: Limits) -> int | None:
    """Return the padding, in whole units, that lets an SM hold at most ``count`` blocks.

    Returns:
        Bytes of dynamic shared memory besides the kernel's own, 0 if it needs none; None if
        padding cannot do it, as a block may not be given that much.
    """
    if resident(block, sm) <= count:
        return 0
    # The least amount of which count + 1 no longer go into the SM, in whole units.
    taken = (sm.shared // (count + 1) // sm.shared_unit + 1) * sm.shared_unit
    padding = taken - sm.reserved - block.shared - block.dynamic
    return padding if 0 < resident(block, sm, padding) <= count else None


def _share(warps: int, sm: Limits) -> int:
    """Return the warps in the fullest partition, if they are spread evenly."""
    return -(-warps // sm.partitions)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
