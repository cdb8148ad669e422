"""The proof of all ranks by one of each class.

A group acts on ranks, chunks and Programs (`group`, `canonical`), leaves the contract as it is
(`contract`), and no element but 0 leaves a rank where it is. Let every rank g·r have the Program
g·P of its representative r. Then the whole network is mapped to itself by every element, and:

- *Edges.* A SEND of r to g·q meets the RECV of q from g⁻¹·r, which is the same edge moved by g⁻¹:
  the network of representatives has one edge for each that the group makes of it.
- *One run decides.* Counts have one signaller and control flow never depends on data, so the whole
  network has one maximal run but for the order of independent steps. The run in which all ranks of
  a class take each step together is one: a step that is enabled for one of them is for all, and no
  step disables another. The network of representatives runs just that, with the same slots and
  tiles; if it stops, all stop, and levels of edges are those of its own.
- *Values.* Leaves, folds and scales commute with the group, so memory of rank g·r holds g times
  what r's holds. What r receives from g·q is g times what q sent, as `values` computes it.
- *Postconditions* hold for g·r if they do for r, as the contract is the same for both. That all
  ranks hold the same bits is checked across the group, see `SymmetricValues.uneven`.
- *Races.* In the staged form only channels of one rank share memory. An order between two of a
  representative counts if it leads back to that very rank, see `order`.

All classes are proved at once. It remains that every rank's Program is g·P, to the bit: each rank
checks that of its own with `covers`, whose digest forgets nothing; or, where ranges
wrap round the end, that it is g·P but for cuts, as `cut` says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pycoll.errors import ScheduleError
from pycoll.program.isa import ProgramFlag
from pycoll.program.program import Program
from pycoll.schedule import Collective, Placement
from pycoll.verify.network import build
from pycoll.verify.symmetry.canonical import NotSymmetricError, canonical_digest, is_moved
from pycoll.verify.symmetry.contract import invariant
from pycoll.verify.symmetry.cut import PIECES, grouped, has_blocks, is_cut
from pycoll.verify.symmetry.group import Group, Rotation, Xor
from pycoll.verify.symmetry.values import SymmetricValues
from pycoll.verify.unrolled import run_all

ByRank = Callable[[int], Program]


@dataclass(frozen=True)
class SymmetricProof:
    """What was proved of all ranks whose Programs are covered."""

    digests: tuple[bytes, ...]  #: of the representatives' Programs, by class
    instructions: int  #: of all ranks, where each has as many as its representative
    seconds: float


def covers(
    program: Program,
    digest: bytes,
    collective: Collective,
    group: Group,
    cut: bool,
    representative: Program | None,
) -> bool:
    """Tell whether a rank's Program is what was proved of its class.

    Args:
        program: The rank's own.
        digest: Of its class.
        collective: What it is for.
        group: Up to which ranks of a class do the same.
        cut: Ranks may differ in how ranges of chunks are cut.
        representative: The Program of the rank that stands for the class; None unless ``cut``.
    """
    try:
        if not cut:
            return canonical_digest(program, group, program.rank) == digest
        assert representative is not None
        base = grouped(representative) if has_blocks(representative) else representative
        if canonical_digest(base, group, base.rank) != digest:
            return False
    except NotSymmetricError:
        return False
    return is_cut(program, base, collective, group)


def prove_representatives(
    programs: list[Program],
    collective: Collective,
    group: Group,
    *,
    cut: bool = False,
    slots: int = 2,
    average: bool = False,
) -> SymmetricProof:
    """Prove all ranks by the representatives' Programs, in the order of their ranks.

    With ``cut`` also those whose ranges are cut where they wrap round, see `cut`; it takes at least
    two slots.

    Raises:
        ScheduleError: The group does not leave the contract as it is, the Programs are direct, or
            they are wrong.
    """
    began = time.perf_counter()
    first = programs[0]
    if first.flags & ProgramFlag.DIRECT:
        raise ScheduleError("direct Programs touch peers' memory: they are proved as a whole")
    if not invariant(collective, group, first.nchunks):
        raise ScheduleError(f"{group.name} does not leave what {collective.name} promises as it is")
    if cut and not (slots >= PIECES and all(map(has_blocks, programs))):
        raise ScheduleError(f"cut Programs have one channel and {PIECES} slots, got {slots}")
    if cut:
        programs = [*map(grouped, programs)]
    try:
        network = build(programs, collective, group)
        values = SymmetricValues(
            collective, group, first.nchunks, in_order=cut and group.keeps_order
        )
        run_all(network, values, slots // PIECES if cut else slots, average)
    except ScheduleError as error:
        error.add_note(f"All are proved by one of a kind: rank r stands for {_alike(group)}.")
        raise
    return SymmetricProof(
        digests=tuple(canonical_digest(p, group, p.rank) for p in programs),
        instructions=group.order * sum(len(p.instructions) for p in programs),
        seconds=time.perf_counter() - began,
    )


def _alike(group: Group) -> str:
    if group.step == 1:
        return "every rank"
    return f"rank r of every {group.step}, wherever it is named"


def find_group(
    program: ByRank,
    size: int,
    collective: Collective,
    placement: Placement | None = None,
    *,
    cuts: bool = True,
) -> tuple[Group, bool] | None:
    """Return a group that fits a few ranks' Programs, and whether only with ranges that are cut.

    Those are looked for if ``cuts``.
    """
    groups = [
        group
        for group in _groups(program(0).nchunks, size, collective, placement)
        if invariant(collective, group, program(0).nchunks)
    ]
    for group in groups:
        if all(is_moved(mine, base, group, g) for g, mine, base in _looked_at(program, group)):
            return group, False
    for group in groups if cuts else ():
        if all(
            has_blocks(base) and is_cut(mine, grouped(base), collective, group)
            for _, mine, base in _looked_at(program, group)
        ):
            return group, True
    return None


def _looked_at(program: ByRank, group: Group) -> Iterator[tuple[int, Program, Program]]:
    """Yield an element, a Program and that of its representative, one after the other.

    The first of the second block, and all of the last, where what wraps round shows.
    """
    last = group.order - 1
    for g, rank in dict.fromkeys([(1, 0), *((last, rank) for rank in range(group.step))]):
        yield g, program(group.rank(g, rank)), program(rank)


def _groups(
    nchunks: int, size: int, collective: Collective, placement: Placement | None
) -> Iterator[Group]:
    steps = [1]
    for level in placement.levels if placement else ():
        width = size // len(set(level.groups))
        if level.groups == tuple(rank // width for rank in range(size)):
            steps.append(width)
    for step in steps:
        order = size // step
        kinds: list[type[Group]] = [Rotation]
        if order > 2 and order & (order - 1) == 0:
            kinds.append(Xor)  # of two blocks both are the same
        for unit in _units(nchunks, order, step, collective.nblocks(size)) if order > 1 else ():
            for kind in kinds:
                yield kind(order, step, unit, collective.equal_blocks)


def _units(nchunks: int, order: int, step: int, blocks: int) -> list[int]:
    """Return how many chunks may move together: as many as are of a block of ranks, or any."""
    if blocks > 1:
        return [step * (nchunks // blocks)]
    most = nchunks // order if nchunks % order == 0 else 0
    return [0, *(unit for unit in range(most, 0, -1) if most % unit == 0)]
