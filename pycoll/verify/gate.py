"""The gate: nothing runs that is not proved, unless the caller says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pycoll import collector
from pycoll.algorithms import BUILTIN, Algorithm
from pycoll.errors import ScheduleError
from pycoll.program.lower import compile_all, facts_of, scales_of
from pycoll.schedule import NotDirect, Placement, rank_steps, schedule
from pycoll.schedule.placement import FLAT
from pycoll.verify import cache as disk
from pycoll.verify.beyond import certified_beyond
from pycoll.verify.certificates import Form, certified, certified_without_direct
from pycoll.verify.prove import verify_programs
from pycoll.verify.record import Record, digest_of
from pycoll.verify.representatives import by_symmetry
from pycoll.verify.verdict import Progress, Verdict, silent

#: Chunks that all ranks together move, up to which they are proved one by one on the spot: about a
#: minute, and 2 GB.
LIMIT = 1 << 20
#: Ranks up to which they are proved one by one though a few might represent all.
FEW = 32


class TooLargeError(ScheduleError):
    """It may be right, but to prove it would take too long.

    The text says why. Whoever lets a user ask for a proof adds what the user can do.
    """


def gate(
    algorithm: Algorithm,
    size: int,
    *,
    slots: int = 2,
    direct: bool = False,
    average: bool = False,
    cache: Path | None = None,
    limit: int = LIMIT,
    unproved: bool = False,
    placement: Placement | None = None,
    whole: bool = False,
    progress: Progress = silent,
) -> Record:
    """Return why this may run: a certificate, a proof kept in ``cache``, or a new proof.

    Args:
        algorithm: What is to run.
        size: Number of ranks.
        slots: Of an edge.
        direct: The zero-copy form.
        average: The Programs that divide.
        cache: Folder of records.
        limit: Chunks that all ranks together move, up to which they are proved one by one.
        unproved: Let through what is too large to be proved.
        placement: Which ranks lie close together.
        whole: Prove the ranks one by one, and do not take a few for all.
        progress: Is told at which stage a proof is.

    Raises:
        NotDirect: There is no direct form.
        ScheduleError: It is wrong (see ``verify_programs``), or too large to be proved.
    """
    form = Form(direct, average)
    known = by_certificate(algorithm, size, slots, Form(direct, False), placement)
    if known is not None and not whole:
        if not average:
            return known
        if certified(algorithm, size, slots, form) is not None:
            return replace(known, scales=_scales(algorithm, size, form, placement))
    key = ""
    # A user's algorithm is told by the schedule of all ranks, which of many takes for ever to make.
    if cache is not None and (
        algorithm in BUILTIN or chunks_moved(algorithm, size, placement) <= limit
    ):
        key = disk.key(algorithm, size, slots, form, placement)
    if cache is not None and key and not whole:
        kept = disk.load(cache, key)
        if kept is not None:
            return kept
    with collector.paused():
        try:
            record = prove(
                algorithm, size, slots, form, placement, limit=limit, whole=whole, progress=progress
            )
        except TooLargeError as error:
            if unproved:
                progress("tracing all ranks")
                return _unproved(algorithm, size, slots, form, placement)
            raise TooLargeError(
                f"{error}; pycoll.init(unproved=True), or PYCOLL_UNPROVED=yes, runs it as it is"
            ) from None
    if cache is not None and key:
        disk.store(cache, key, record)
    return record


def by_certificate(
    algorithm: Algorithm, size: int, slots: int, form: Form, placement: Placement | None
) -> Record | None:
    """Return what a certificate says, without tracing any rank; None where there is none.

    Certificates are of flat placements: they do not cover an algorithm that asks for another. Of an
    average at few ranks they do not say where it ends, so they say nothing.

    Raises:
        NotDirect: It says that there is no direct form.
    """
    flat = placement is None or placement.flat
    staged = certified(algorithm, size, slots, Form(False, False))
    if staged is not None and not (staged.asks and not flat) and not form.average:
        found = certified(algorithm, size, slots, form)
        if found is None:
            if certified_without_direct(algorithm, size, slots):
                raise NotDirect(f"{algorithm.name}: no direct form among {size} ranks")
            return None
        verdict = Verdict(algorithm.name, size, slots, (), 0, 0.0, "certificate")
        return Record(verdict, found.facts)
    if form.direct:
        return None
    return certified_beyond(algorithm, size, slots, form.average, flat)


def prove(
    algorithm: Algorithm,
    size: int,
    slots: int,
    form: Form,
    placement: Placement | None = None,
    *,
    limit: float = LIMIT,
    whole: bool = False,
    progress: Progress = silent,
) -> Record:
    """Return a new proof, see `gate`.

    Raises:
        TooLargeError: The ranks do not all do the same, and move more than ``limit`` chunks.
        ScheduleError: It is wrong.
    """
    small = chunks_moved(algorithm, size, placement) <= limit
    by_few = size > FEW and not form.direct and not whole
    if by_few:
        try:
            record = by_symmetry(algorithm, size, slots, form.average, placement, progress)
        except ScheduleError:
            # Of a rank that is not like its representative it would not be true.
            if not small:
                raise
            record = None
        if record is not None:
            return record
    if small:
        progress("proving rank by rank")
        return _one_by_one(algorithm, size, slots, form, placement)
    why = "its ranks do not all do the same" if by_few else "its ranks are proved one by one"
    raise TooLargeError(
        f"{algorithm.name} at {size} ranks takes too long to prove on the spot: {why}, and they "
        f"move more than {limit} chunks"
    )


def _unproved(
    algorithm: Algorithm, size: int, slots: int, form: Form, placement: Placement | None
) -> Record:
    verdict = Verdict(algorithm.name, size, slots, (), 0, 0.0, "unproved")
    scales = _scales(algorithm, size, form, placement) if form.average else None
    return Record(verdict, facts_of(schedule(algorithm, size, placement)), scales=scales)


def _one_by_one(
    algorithm: Algorithm, size: int, slots: int, form: Form, placement: Placement | None
) -> Record:
    sums = compile_all(algorithm, size, direct=form.direct, placement=placement)
    programs, scales = sums, None
    if form.average:
        programs = compile_all(algorithm, size, **form._asdict(), placement=placement)
        scales = tuple(map(scales_of, programs))
    verdict = verify_programs(programs, algorithm.collective, slots=slots, average=form.average)
    return Record(
        replace(verdict, name=algorithm.name),
        facts_of(schedule(algorithm, size, placement)),
        b"".join(map(digest_of, sums)),
        scales=scales,
    )


def _scales(
    algorithm: Algorithm, size: int, form: Form, placement: Placement | None
) -> tuple[frozenset[int], ...]:
    programs = compile_all(algorithm, size, **form._asdict(), placement=placement)
    return tuple(map(scales_of, programs))


def chunks_moved(algorithm: Algorithm, size: int, placement: Placement | None) -> int:
    """Return about how many chunks all ranks together move or fold, by a few of them."""
    ranks = {0, 1 % size, size // 2, size - 1}
    sides = [rank_steps(algorithm, size, rank, placement or FLAT) for rank in ranks]
    moved = sum(s.chunks.nchunks * max(1, len(s.peers)) for side in sides for s in side.steps)
    return moved * size // len(ranks)
