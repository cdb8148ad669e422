"""The gate: nothing runs that is not proved, unless the caller says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pycoll.algorithms import Algorithm
from pycoll.errors import ScheduleError
from pycoll.program.lower import compile_all, completes_of, facts_of
from pycoll.schedule import NotDirect, Placement, schedule
from pycoll.verify import cache as disk
from pycoll.verify.certificates import Form, certified, certified_without_direct
from pycoll.verify.prove import Verdict, verify_programs
from pycoll.verify.record import Record, digest_of

LIMIT = 256  #: ranks up to which a missing proof is made on the spot


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
) -> Record:
    """Return why this may run: a certificate, a proof kept in ``cache``, or a new proof.

    Above ``limit`` ranks nothing is proved; then only a certificate or ``unproved`` opens.

    Raises:
        NotDirect: There is no direct form.
        ScheduleError: It is wrong (see ``verify_programs``), or too large to be proved.
    """
    form = Form(direct, average)
    known = by_certificate(algorithm, size, slots, Form(direct, False), placement)
    if known is not None:
        if not average:
            return known
        if certified(algorithm, size, slots, form) is not None:
            completes = completes_of(schedule(algorithm, size, placement))
            return replace(known, completes=completes)
    if size > limit and not unproved:
        raise ScheduleError(
            f"{algorithm.name} at {size} ranks has no certificate, and above {limit} ranks nothing "
            "is proved on the spot; raise the limit, or pass unproved=True to run it as it is"
        )
    if size > limit:
        return _unproved(algorithm, size, slots, form, placement)
    key = disk.key(algorithm, size, slots, form, placement) if cache is not None else ""
    if cache is not None and key:
        kept = disk.load(cache, key)
        if kept is not None:
            return kept
    record = _proved(algorithm, size, slots, form, placement)
    if cache is not None and key:
        disk.store(cache, key, record)
    return record


def by_certificate(
    algorithm: Algorithm, size: int, slots: int, form: Form, placement: Placement | None
) -> Record | None:
    """Return what a certificate says, without tracing any rank; None where there is none.

    Certificates are of flat placements: they do not cover an algorithm that asks for another. Of an
    average they do not say where it ends, so they say nothing.

    Raises:
        NotDirect: It says that there is no direct form.
    """
    flat = placement is None or placement.flat
    staged = certified(algorithm, size, slots, Form(False, False))
    if form.average or staged is None or (staged.asks and not flat):
        return None
    found = certified(algorithm, size, slots, form)
    if found is None:
        if form.direct and certified_without_direct(algorithm, size, slots):
            raise NotDirect(f"{algorithm.name}: no direct form among {size} ranks")
        return None
    verdict = Verdict(algorithm.name, size, slots, (), 0, 0.0, "certificate")
    return Record(verdict, found.facts)


def _proved(
    algorithm: Algorithm, size: int, slots: int, form: Form, placement: Placement | None
) -> Record:
    s = schedule(algorithm, size, placement)
    programs = compile_all(algorithm, size, **form._asdict(), placement=placement)
    verdict = verify_programs(programs, algorithm.collective, slots=slots, average=form.average)
    return Record(
        replace(verdict, name=algorithm.name),
        facts_of(s),
        completes_of(s) if form.average else None,
        b"".join(map(digest_of, programs)),
    )


def _unproved(
    algorithm: Algorithm, size: int, slots: int, form: Form, placement: Placement | None
) -> Record:
    s = schedule(algorithm, size, placement)
    verdict = Verdict(algorithm.name, size, slots, (), 0, 0.0, "unproved")
    return Record(verdict, facts_of(s), completes_of(s) if form.average else None)
