"""What one streaming multiprocessor (SM) holds, for each compute capability.

Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Granularities
and the four partitions: the occupancy calculator that comes with CUDA (cuda_occupancy.h).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pycoll.errors import UnavailableError, UsageError, quoted

KIB = 1024
WARP = 32


@dataclass(frozen=True)
class Limits:
    """The limits of one SM. Shared memory is in bytes, registers are 32 bits wide."""

    threads: int  #: resident at once
    blocks: int  #: resident at once
    shared: int  #: with the largest carve-out from the L1 cache
    shared_per_block: int  #: that a block may ask for, its static part included
    reserved: int = KIB  #: that the system takes of every block's SM beside what it asked for
    shared_unit: int = 128  #: shared memory is given out in multiples of it
    registers: int = 64 * KIB
    register_unit: int = 256  #: a warp is given registers in multiples of it
    partitions: int = 4  #: each has a share of its own of the registers; a warp stays in one

    @classmethod
    def of(cls, capability: tuple[int, int], **told: int) -> Limits:
        """Return the limits of a GPU that is there, by what its driver tells of them."""
        # What no driver tells has been the same since 8.0; before, the unit was larger.
        return replace(TABLE.get(capability, TABLE[9, 0]), **told)


#: By (major, minor).
TABLE = {
    (7, 0): Limits(2048, 32, 96 * KIB, 96 * KIB, reserved=0, shared_unit=256),
    (7, 5): Limits(1024, 16, 64 * KIB, 64 * KIB, reserved=0, shared_unit=256),
    (8, 0): Limits(2048, 32, 164 * KIB, 163 * KIB),
    (8, 6): Limits(1536, 16, 100 * KIB, 99 * KIB),
    (8, 7): Limits(1536, 16, 164 * KIB, 163 * KIB),
    (8, 9): Limits(1536, 24, 100 * KIB, 99 * KIB),
    (9, 0): Limits(2048, 32, 228 * KIB, 227 * KIB),
    (10, 0): Limits(2048, 32, 228 * KIB, 227 * KIB),
    (10, 3): Limits(2048, 32, 228 * KIB, 227 * KIB),
    (11, 0): Limits(1536, 24, 228 * KIB, 227 * KIB),
    (12, 0): Limits(1536, 24, 100 * KIB, 99 * KIB),
    (12, 1): Limits(1536, 24, 100 * KIB, 99 * KIB),
}


def limits(capability: tuple[int, int]) -> Limits:
    """Return the limits of a compute capability, such as ``(9, 0)``.

    Raises:
        UsageError: It is not two integers.
        UnavailableError: The table has no such row.
    """
    if not (
        isinstance(capability, tuple | list)
        and len(capability) == 2
        and all(isinstance(part, int) for part in capability)
    ):
        raise UsageError(
            f"overlap: capability is {quoted(capability)}, want two integers such as (9, 0)"
        )
    found = TABLE.get((capability[0], capability[1]))
    if found is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in TABLE)
        raise UnavailableError(
            f"overlap: no limits are known for compute capability "
            f"{quoted(capability[0])}.{quoted(capability[1])}; "
            f"known are {known}; on a machine with that GPU they are asked of its driver"
        )
    return found
