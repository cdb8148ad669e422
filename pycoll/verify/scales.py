"""Where an average divides: at the folds that first hold the contributions of all ranks.

No contribution is folded in twice, so of the operands of such a fold none was whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from pycoll.errors import ScheduleError
from pycoll.program.program import Program
from pycoll.schedule import Collective
from pycoll.verify.finding import At, finding
from pycoll.verify.network import build
from pycoll.verify.symbolic_run import SymbolicRun
from pycoll.verify.symmetry.group import Group
from pycoll.verify.symmetry.values import SymmetricValues


def where_whole(
    programs: Sequence[Program], collective: Collective, group: Group, slots: int
) -> tuple[frozenset[int], ...]:
    """Return which instructions divide in an average, for each representative's Program of a sum.

    Raises:
        ScheduleError: A fold completes some of its chunks and not others.
    """
    values = SymmetricValues(collective, group, programs[0].nchunks)
    found: list[set[int]] = [set() for _ in programs]

    def note(at: At, total: list[int]) -> None:
        whole = [values.whole(value) for value in total]
        if any(whole):
            if not all(whole):
                text = "completes some chunks and not others; an average needs one fold for each"
                raise finding(ScheduleError, text, at)
            found[at.program.rank].add(at.instruction)

    network = build(programs, collective, group)
    SymbolicRun(network, values, slots=slots, tiles=1, on_fold=note).complete()
    return tuple(map(frozenset, found))
