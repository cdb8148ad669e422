"""A record by symmetry: from the Programs of the ranks that represent all others."""

from __future__ import annotations

from functools import cache

from pycoll.algorithms import Algorithm
from pycoll.errors import DeadlockError, counted
from pycoll.program.lower import Facts, compile_own, scaled
from pycoll.program.program import Program
from pycoll.schedule import Kind, Placement, RankSteps, rank_steps
from pycoll.schedule.placement import FLAT
from pycoll.verify.record import Record
from pycoll.verify.scales import where_whole
from pycoll.verify.symmetry.canonical import canonical_digest
from pycoll.verify.symmetry.cut import PIECES
from pycoll.verify.symmetry.group import Group
from pycoll.verify.symmetry.proof import find_group, prove_representatives
from pycoll.verify.unrolled import unrollings
from pycoll.verify.verdict import Progress, Verdict, silent

_ANY_WIDTH = 1 << 20


def by_symmetry(
    algorithm: Algorithm,
    size: int,
    slots: int,
    average: bool,
    placement: Placement | None,
    progress: Progress = silent,
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
        # What is not known yet of all ranks: any width will do, as long as it is one for all.
        return compile_own(algorithm, size, rank, Facts(_ANY_WIDTH, True, 1), placement=placement)

    # Where ranges are cut, ranks divide in instructions of their own, which nobody has told them.
    cuts = slots >= PIECES and not average
    progress("looking for ranks that do the same")
    found = find_group(program, size, collective, placement, cuts=cuts)
    if found is None:
        return None
    group, cut = found
    compared = program.cache_info().currsize
    program.cache_clear()  # of 100,000 ranks one is hundreds of megabytes
    progress(f"proving {_by(group)}")
    # A range that the representative has in two pieces is whole on others: each checks of itself
    # that none of its messages is wider than what is said here.
    seen = {*range(group.step), size // 2, size - 1} if cut else {*range(group.step)}
    sides = [rank_steps(algorithm, size, rank, place) for rank in sorted(seen)]
    widest, edges = max(map(_widest, sides)), max(len(side.receives) for side in sides)
    for fused in (True, False):
        facts = Facts(widest, fused, edges)
        sums = [
            compile_own(algorithm, size, rank, facts, placement=placement)
            for rank in range(group.step)
        ]
        try:
            return _record(algorithm, sums, facts, group, cut, slots, average, compared)
        except DeadlockError:
            if not fused:
                raise
    raise AssertionError


def _record(
    algorithm: Algorithm,
    sums: list[Program],
    facts: Facts,
    group: Group,
    cut: bool,
    slots: int,
    average: bool,
    compared: int,
) -> Record:
    collective, programs, scales = algorithm.collective, sums, None
    if average:
        scales = where_whole(sums, collective, group, slots)
        programs = [scaled(p, one) for p, one in zip(sums, scales, strict=True)]
    proof = prove_representatives(
        programs, collective, group, cut=cut, slots=slots, average=average
    )
    tiles = unrollings(slots // PIECES if cut else slots)
    verdict = Verdict(
        *(algorithm.name, group.size, slots, tiles, proof.instructions, proof.seconds),
        by=_by(group),
        compared=compared,
    )
    digests = proof.digests
    if average:
        digests = tuple(canonical_digest(p, group, p.rank) for p in sums)
    return Record(verdict, facts, b"".join(digests), group, cut, scales)


def _by(group: Group) -> str:
    return f"{counted(group.step, 'rank')} for all, by {group.name}"


def _widest(side: RankSteps) -> int:
    return max((s.chunks.nchunks for s in side.steps if s.kind is Kind.SEND), default=1)
