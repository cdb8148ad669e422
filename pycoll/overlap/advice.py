"""Advice on one kernel: how many of its blocks an SM may hold for a collective to run beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from pycoll.overlap.limits import Limits
from pycoll.overlap.occupancy import Footprint, lacking, padding_for, resident


@dataclass(frozen=True)
class Advice:
    """What to do about a kernel, so that blocks of a collective find room beside its blocks."""

    natural: int  #: blocks per SM that the kernel has by itself
    capped: int  #: blocks per SM to allow; `natural` where nothing need be, or can be, done
    pad_bytes: int  #: dynamic shared memory to add to a launch, which brings that about
    fits: bool  #: whether a block of the collective then fits beside them
    reason: str

    def __str__(self) -> str:
        """Return the advice in one line."""
        if self.capped == self.natural:
            return f"{self.natural} blocks per SM: {self.reason}"
        return (
            f"{self.natural} blocks per SM, capped at {self.capped} by {self.pad_bytes:,} B of "
            f"padding: {self.reason}"
        )


def advise(kernel: Footprint, collective: Footprint, sm: Limits) -> Advice:
    """Return the least cap on ``kernel`` that leaves an SM room for a block of ``collective``."""
    natural = resident(kernel, sm)
    if natural == 0:
        return Advice(0, 0, 0, False, "the kernel cannot be launched: a block exceeds the SM")
    short = lacking(collective, kernel, natural, sm)
    if not short:
        return Advice(natural, natural, 0, True, "a block of the collective fits beside them")
    for count in range(natural - 1, 0, -1):
        padding = padding_for(kernel, count, sm)
        if padding is None:
            continue
        # The padding takes shared memory itself: fewer blocks are held at times than were meant.
        held = resident(kernel, sm, padding)
        if not lacking(collective, kernel, held, sm, padding):
            return Advice(natural, held, padding, True, f"without it {_lack(short)}")
    last = lacking(collective, kernel, 1, sm)
    if last:
        reason = (
            f"never fits: beside a single block {_lack(last)}; padding cannot help, use fewer "
            "blocks than SMs, or give the collective SMs of its own (a green context)"
        )
    else:
        reason = (
            f"{_lack(short)}, and no padding of at most {sm.shared_per_block:,} B per block "
            "mends it"
        )
    return Advice(natural, natural, 0, False, reason)


class Driver(Protocol):
    """What counts blocks by the driver's own rules."""

    def resident(self, handle: int, threads: int, dynamic: int) -> int:
        """Return how many blocks of a kernel an SM holds."""

    def room(self, handle: int, blocks: int, threads: int) -> int:
        """Return the most dynamic shared memory with which an SM holds so many blocks."""


def confirm(advice: Advice, kernel: Footprint, gpu: Driver, handle: int, sm: Limits) -> Advice:
    """Return the advice as the driver bears it out: its count is the one that holds."""
    natural = gpu.resident(handle, kernel.threads, kernel.dynamic)
    if natural != advice.natural:
        reason = f"the driver counts {natural} blocks per SM, where {advice.natural} were reckoned"
        return Advice(natural, natural, 0, False, f"{reason}: nothing is advised")
    if not advice.pad_bytes:
        return advice
    # With more than this, one block more than the cap no longer fits.
    room = gpu.room(handle, advice.capped + 1, kernel.threads)
    if room < kernel.dynamic + advice.pad_bytes:
        return advice
    padding = room - kernel.dynamic + sm.shared_unit
    if kernel.shared + kernel.dynamic + padding > sm.shared_per_block:
        reason = f"the driver leaves {room:,} B to each of {advice.capped + 1} blocks per SM"
        return Advice(natural, natural, 0, False, f"{reason}: padding cannot cap them")
    return replace(advice, pad_bytes=padding)


def _lack(short: list[str]) -> str:
    return f"a block of the collective lacks {' and '.join(short)}"
