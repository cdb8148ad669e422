"""The Program of one rank among any number, without tracing them all."""

from __future__ import annotations

from pycoll.config import Config
from pycoll.errors import UsageError
from pycoll.program.lower import compile_own
from pycoll.program.program import Program
from pycoll.program.slots import SLOTS
from pycoll.schedule import Algorithm, Placement
from pycoll.verify import Record, gate
from pycoll.verify.gate import TooLargeError


def own_program(
    algorithm: Algorithm, size: int, rank: int, placement: Placement, direct: bool = False
) -> tuple[Program, Record]:
    """Return a rank's Program as a job would run it, and the record of its proof.

    The record is that of a certificate or of an earlier proof, or else of a new one, which stays
    on disk as a job's does.

    Raises:
        UsageError: It would take too long to prove, or this rank is not like those that were.
        NotDirect: There is no direct form.
        ScheduleError: The algorithm is wrong.
    """
    try:
        record = gate(
            algorithm,
            size,
            slots=SLOTS,
            direct=direct,
            cache=Config.load().cache,
            placement=placement,
        )
    except TooLargeError:
        raise UsageError(
            f"{algorithm.name} at {size} ranks: the ranks do not all do the same, and are too many "
            "to be proved one by one in a minute, so a job would refuse it; want fewer ranks"
        ) from None

    def lower(of: int) -> Program:
        return compile_own(algorithm, size, of, record.facts, direct=direct, placement=placement)

    program = lower(rank)
    if not record.admits(program, algorithm.collective, lower):
        raise UsageError(
            f"{algorithm.name} at {size} ranks: rank {rank} is not like the rank that was proved "
            "for it, so a job would prove all ranks one by one"
        )
    return program, record
