"""The proof: all ranks' Programs do what the collective promises, whatever the interleaving.

Each Program's loop is unrolled to a few tiles, which decide for any number of them: see `unrolled`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from pycoll.errors import UsageError
from pycoll.program.program import Program
from pycoll.program.slots import SLOTS
from pycoll.schedule import Collective
from pycoll.verify.network import build
from pycoll.verify.unrolled import run_all
from pycoll.verify.values import Values
from pycoll.verify.verdict import Verdict


def verify_programs(
    programs: Sequence[Program],
    collective: Collective,
    *,
    slots: int = SLOTS,
    average: bool = False,
) -> Verdict:
    """Prove the Programs of all ranks, or raise what is wrong with them.

    Raises:
        PostconditionError: A value is missing, counted twice, or not what was promised.
        RaceError: Two accesses to one place are not ordered.
        DeadlockError: A rank waits for ever.
        ScheduleError: The Programs do not fit the machine or each other.
    """
    if slots < 1:
        raise UsageError(f"slots is {slots}, want at least 1")
    began = time.perf_counter()
    if average and not collective.reduces:
        raise UsageError(f"{collective.name} folds nothing, so it has no average")
    network = build(programs, collective)
    values = Values(collective, network.size, network.nchunks)
    unrollings = run_all(network, values, slots, average)
    return Verdict(
        name=collective.name,
        size=network.size,
        slots=slots,
        tiles=unrollings,
        instructions=sum(len(p.instructions) for p in programs),
        seconds=time.perf_counter() - began,
        by="rank by rank",
    )
