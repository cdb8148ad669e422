"""A record by symmetry: from the Programs of the ranks that represent all others."""

from __future__ import annotations

from functools import cache

from pycoll.algorithms import Algorithm
from pycoll.errors import DeadlockError
from pycoll.program.lower import Facts, compile_own, scaled
from pycoll.program.program import Program
from pycoll.schedule import Kind, Placement, RankSteps, rank_steps
from pycoll.schedule.placement import FLAT
from pycoll.verify.prove import Verdict
from pycoll.verify.record import Record
from pycoll.verify.scales import where_whole
from pycoll.verify.symmetry.canonical import canonical_digest
from pycoll.verify.symmetry.group import Group
from pycoll.verify.symmetry.proof import find_group, prove_representatives
from pycoll.verify.unrolled import unrollings


def by_symmetry(
    algorithm: Algorithm, size: int, slots: int, average: bool, placement: Placement | None
) -> Record | None:
    """Return the record of a staged form; None where no group fits.

    That every rank does what its representative does is for each to check of itself, see
    `Record.admits`.

    Raises:
        ScheduleError: What is wrong with the representatives.
    """
    place, collective = placement or FLAT, algorithm.collective

    @cache
    def program(rank: int) -> Program:
        # What is known of all ranks does not matter for the search, as long as it is one for all.
        return compile_own(algorithm, size, rank, Facts(1, True, 1), placement=placement)

    group = find_group(program, size, collective, placement)
    if group is None:
        return None
    sides = [rank_steps(algorithm, size, rank, place) for rank in range(group.step)]
    for fused in (True, False):
        facts = Facts(max(map(_widest, sides)), fused, max(len(s.receives) for s in sides))
        programs = [
            compile_own(algorithm, size, rank, facts, placement=placement)
            for rank in range(group.step)
        ]
        try:
            return _record(algorithm, programs, facts, group, slots, average)
        except DeadlockError:
            if not fused:
                raise
    raise AssertionError


def _record(
    algorithm: Algorithm,
    sums: list[Program],
    facts: Facts,
    group: Group,
    slots: int,
    average: bool,
) -> Record:
    collective, programs, scales = algorithm.collective, sums, None
    if average:
        scales = where_whole(sums, collective, group, slots)
        programs = [scaled(p, one) for p, one in zip(sums, scales, strict=True)]
    proof = prove_representatives(programs, collective, group, slots=slots, average=average)
    tiles = unrollings(slots)
    verdict = Verdict(algorithm.name, group.size, slots, tiles, proof.instructions, proof.seconds)
    digests = b"".join(canonical_digest(p, group, p.rank) for p in sums)
    return Record(verdict, facts, digests, group, scales)


def _widest(side: RankSteps) -> int:
    return max((s.chunks.nchunks for s in side.steps if s.kind is Kind.SEND), default=1)
