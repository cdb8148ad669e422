"""The fixed order: one tree of folds for every element, whatever runs and wherever.

It is that of a loop over the ranks: ``((x[0] + x[1]) + x[2]) + ...``, of an average divided once at
the end; in a collective with a root the ranks count from the root on. An algorithm has it if that
is what the Programs of all ranks leave in every place of their output. One run with symbols tells:
tiles differ in nothing but their place, and control flow does not depend on data. That the Programs
are right at all is for the proof to say, see `gate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pycoll import collector
from pycoll.errors import PostconditionError
from pycoll.program.lower import compile_all
from pycoll.program.program import Program
from pycoll.program.slots import SLOTS
from pycoll.schedule import FLAT, Algorithm, Collective, Placement
from pycoll.schedule.trace import forget
from pycoll.verify.certificates import Form
from pycoll.verify.gate import LIMIT, TooLargeError, chunks_moved
from pycoll.verify.network import build
from pycoll.verify.symbolic_run import SymbolicRun
from pycoll.verify.values import Values, members

#: Ranks up to which traces are kept, as a proof of the same wants them again.
FEW = 64
#: What is looked at unless another form is meant.
SUM = Form(direct=False, average=False)
#: Folds within each other that a text shows.
_SHOWN = 8


def difference(programs: Sequence[Program], collective: Collective, average: bool = False) -> str:
    """Say what the Programs of all ranks, which are right, fold in another order; "" if nothing."""
    network = build(programs, collective)
    values = Values(collective, network.size, network.nchunks)
    run = SymbolicRun(network, values, slots=SLOTS, tiles=1)
    run.complete()
    wanted: dict[tuple[int, int], int] = {}
    for rank in range(network.size):
        for chunk in range(network.nchunks):
            place = rank * network.nchunks + chunk
            ranks, origin = values.after[place], values.origin[place]
            if ranks is None:
                continue
            want = wanted.get((origin, ranks))
            if want is None:
                want = wanted[origin, ranks] = canonical(values, origin, ranks)
                want = wanted[origin, ranks] = _averaged(values, want) if average else want
            got = run.memory[rank * network.stride + chunk]
            if got != want:
                return (
                    f"it folds chunk {chunk} on rank {rank} as {written(values, got)}, and not as "
                    f"{written(values, want)}"
                )
    return ""


def canonical(values: Values, chunk: int, ranks: int) -> int:
    """Return the value of a chunk that is folded in the fixed order, of a set of ranks as bits."""
    total = 0
    for rank in members(ranks):
        leaf = values.leaf(rank, chunk)
        total = values.fold(total, leaf) if total else leaf
    return total


def _averaged(values: Values, total: int) -> int:
    # One rank's sum is not divided.
    return values.scale(total) if values.size > 1 else total


def written(values: Values, value: int, depth: int = _SHOWN) -> str:
    """Write a tree with ranks as leaves, of two operands the one with the lesser rank first."""
    children = values.children[value]
    if not children:
        return str((value - 1) // values.nchunks) if value else "nothing"
    if depth == 0:
        return "..."
    if len(children) == 1:
        return f"{written(values, children[0], depth)}/size"
    first, second = sorted(children, key=lambda v: values.ranks[v] & -values.ranks[v])
    return f"({written(values, first, depth - 1)}+{written(values, second, depth - 1)})"


@lru_cache(maxsize=1024)  # a choice asks of the same algorithms for every length
def differs(algorithm: Algorithm, size: int, placement: Placement = FLAT, form: Form = SUM) -> str:
    """Say what an algorithm folds in another order; "" if nothing.

    Raises:
        NotDirect: There is no such form.
        TooLargeError: Its ranks move too many chunks.
        ScheduleError: It does not serve so many ranks.
    """
    require_small(algorithm, size, placement)
    return _differs(algorithm, size, placement, form)


def _differs(algorithm: Algorithm, size: int, placement: Placement, form: Form) -> str:
    with collector.paused():
        try:
            programs = compile_all(algorithm, size, **form._asdict(), placement=placement)
            return difference(programs, algorithm.collective, form.average)
        finally:
            if size > FEW:
                forget()


def require_small(algorithm: Algorithm, size: int, placement: Placement) -> None:
    """Raise TooLargeError where all ranks together move too much to be looked at."""
    moved = chunks_moved(algorithm, size, placement)
    if moved > LIMIT:
        raise TooLargeError(
            f"{algorithm.name} at {size} ranks takes too long to compare with the fixed order: its "
            f"ranks move {moved} chunks, more than {LIMIT}"
        )


def require_fixed(
    algorithm: Algorithm, size: int, placement: Placement | None, form: Form, *, whole: bool
) -> None:
    """Raise PostconditionError unless an algorithm, which is right, folds in the fixed order.

    Raises:
        TooLargeError: Its ranks move too many chunks, and that is not to be done however long it
            takes (``whole``).
    """
    find = _differs if whole else differs
    text = find(algorithm, size, placement or FLAT, form)
    if text:
        raise PostconditionError(
            f"{algorithm.name} at {size} ranks is right, but not in the fixed order: {text}"
        )
