"""The Program of one rank among any number, without tracing them all."""

from __future__ import annotations

from pycoll.config import Config
from pycoll.errors import ScheduleError, UsageError
from pycoll.program.lower import compile_own
from pycoll.program.program import Program
from pycoll.program.slots import SLOTS
from pycoll.schedule import Algorithm, Placement
from pycoll.verify import Record, gate
from pycoll.verify.gate import TooLargeError
from pycoll.verify.verdict import Progress


def own_program(
    algorithm: Algorithm,
    size: int,
    rank: int,
    placement: Placement,
    progress: Progress,
    direct: bool = False,
) -> tuple[Program, Record]:
    """Return a rank's Program as a job would run it, and the record of its proof.

    The record is that of a certificate or of an earlier proof, or else of a new one, which stays
    on disk as a job's does.

    Raises:
        UsageError: It would take too long to prove.
        NotDirect: There is no direct form.
        ScheduleError: The algorithm is wrong.
    """
    config = Config.load()
    for whole in (False, True):
        try:
            record = gate(
                algorithm,
                size,
                slots=SLOTS,
                direct=direct,
                cache=config.cache,
                unproved=config.unproved,
                placement=placement,
                whole=whole,
                progress=progress,
            )
        except TooLargeError as error:
            raise UsageError(str(error)) from None

        def lower(rank: int, known: Record = record) -> Program:
            where = known.lowered_for(placement)
            return compile_own(algorithm, size, rank, known.facts, direct=direct, placement=where)

        progress(f"lowering rank {rank}")
        program = lower(rank)
        # As in a job: if it is not like the rank that was taken for it, all are proved one by one.
        if record.admits(program, algorithm.collective, lower):
            return program, record
    raise ScheduleError(
        f"{algorithm.name}: rank {rank} would run another program than the one that was proved; an "
        "algorithm may depend on its arguments only"
    )


def origin(record: Record) -> str:
    """Say where the proof comes from, and who was proved."""
    verdict = record.verdict
    texts = {"proof": "made now", "cache": "of an earlier job"}
    found = texts.get(verdict.origin, verdict.origin)
    return f"{found}; {verdict.how()}" if verdict.origin in texts else found
