"""The gate: nothing runs that is not proved, unless the caller says so."""

from __future__ import annotations

from pathlib import Path

from pycoll.algorithms import Algorithm
from pycoll.errors import ScheduleError
from pycoll.schedule import Placement, asks_placement, schedule
from pycoll.verify import cache as disk
from pycoll.verify.certificates import Form, certified
from pycoll.verify.prove import Verdict, verify

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
) -> Verdict:
    """Return why this may run: a certificate, a proof kept in ``cache``, or a new proof.

    Certificates are of flat placements: they do not cover an algorithm that asks for another.
    Above ``limit`` ranks nothing is proved; then only a certificate or ``unproved`` opens.

    Raises:
        ScheduleError: It is wrong (see ``verify_programs``), or too large to be proved.
    """
    form = Form(direct, average)
    flat = placement is None or placement.flat
    if certified(algorithm, size, slots, form) and (
        flat or not asks_placement(algorithm, size, placement)
    ):
        return Verdict(algorithm.name, size, slots, (), 0, 0.0, "certificate")
    if size > limit:
        if unproved:
            return Verdict(algorithm.name, size, slots, (), 0, 0.0, "unproved")
        raise ScheduleError(
            f"{algorithm.name} at {size} ranks has no certificate, and above {limit} ranks nothing "
            "is proved on the spot; raise the limit, or pass unproved=True to run it as it is"
        )
    key = disk.key(schedule(algorithm, size, placement), slots, form) if cache is not None else ""
    if cache is not None and key:
        known = disk.load(cache, key)
        if known is not None:
            return known
    verdict = verify(
        algorithm, size, slots=slots, direct=direct, average=average, placement=placement
    )
    if cache is not None and key:
        disk.store(cache, key, verdict)
    return verdict
