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
checks that of its own with `SymmetricProof.covers`, whose digest forgets nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pycoll.algorithms import Algorithm
from pycoll.errors import ScheduleError
from pycoll.program.isa import ProgramFlag
from pycoll.program.lower import compile_program
from pycoll.program.program import Program
from pycoll.schedule import Collective, Placement
from pycoll.verify.network import build
from pycoll.verify.symmetry.canonical import NotSymmetricError, canonical_digest, is_moved
from pycoll.verify.symmetry.contract import invariant
from pycoll.verify.symmetry.group import Group, Rotation, Xor
from pycoll.verify.symmetry.values import SymmetricValues
from pycoll.verify.unrolled import run_all

ByRank = Callable[[int], Program]


@dataclass(frozen=True)
class SymmetricProof:
    """What was proved of all ranks whose Programs are covered."""

    name: str  #: of the algorithm
    group: Group
    slots: int
    digests: tuple[bytes, ...]  #: of the representatives' Programs, by class
    nchunks: int
    widest: int
    instructions: int  #: of all ranks' Programs
    most_peers: int  #: of any rank
    seconds: float

    def covers(self, program: Program) -> bool:
        """Tell whether a rank's own Program is what was proved of that rank."""
        group = self.group
        if program.size != group.size or not 0 <= program.rank < group.size:
            return False
        try:
            digest = canonical_digest(program, group, program.rank)
        except NotSymmetricError:
            return False
        return digest == self.digests[program.rank % group.step]


def prove_symmetric(
    algorithm: Algorithm,
    size: int,
    *,
    slots: int = 2,
    direct: bool = False,
    average: bool = False,
    placement: Placement | None = None,
) -> SymmetricProof | None:
    """Prove an algorithm by its symmetry; None where no group fits.

    The representatives are lowered, and a few ranks beside them to see which group may fit. That it
    does fit is for every rank to check of its own Program: see `SymmetricProof.covers`.

    Raises:
        ScheduleError: What is wrong, as ``verify_programs`` says it, with a representative for any
            rank of its class. It is certain only if all ranks are covered.
    """
    if direct:
        return None
    known: dict[int, Program] = {}

    def program(rank: int) -> Program:
        if rank not in known:
            known[rank] = compile_program(
                algorithm, size, rank, direct=direct, average=average, placement=placement
            )
        return known[rank]

    group = find_group(program, size, algorithm.collective, placement)
    if group is None:
        return None
    programs = [program(rank) for rank in range(group.step)]
    known.clear()
    proof = prove_representatives(
        programs, algorithm.collective, group, slots=slots, average=average
    )
    return replace(proof, name=algorithm.name)


def prove_representatives(
    programs: list[Program],
    collective: Collective,
    group: Group,
    *,
    slots: int = 2,
    average: bool = False,
) -> SymmetricProof:
    """Prove all ranks by the representatives' Programs, in the order of their ranks.

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
    try:
        network = build(programs, collective, group)
        run_all(network, SymmetricValues(collective, group, first.nchunks), slots, average)
    except ScheduleError as error:
        error.add_note(f"All are proved by one of a kind: rank r stands for {_alike(group)}.")
        raise
    return SymmetricProof(
        name=collective.name,
        group=group,
        slots=slots,
        digests=tuple(canonical_digest(p, group, p.rank) for p in programs),
        nchunks=first.nchunks,
        widest=first.widest,
        instructions=group.order * sum(len(p.instructions) for p in programs),
        most_peers=max(len({e.peer for e in p.edges} - {p.rank}) for p in programs),
        seconds=time.perf_counter() - began,
    )


def _alike(group: Group) -> str:
    if group.step == 1:
        return "every rank"
    return f"rank r of every {group.step}, wherever it is named"


def find_group(
    program: ByRank, size: int, collective: Collective, placement: Placement | None = None
) -> Group | None:
    """Return a group that fits the Programs of the first, second and last block of ranks."""
    for group in _groups(program(0).nchunks, size, collective, placement):
        if invariant(collective, group, program(0).nchunks) and _fits(program, group):
            return group
    return None


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


def _fits(program: ByRank, group: Group) -> bool:
    for g in dict.fromkeys((1, group.order - 1)):
        for rank in range(group.step):
            if not is_moved(program(group.rank(g, rank)), program(rank), group, g):
                return False
    return True


__all__ = [
    "SymmetricProof",
    "find_group",
    "prove_representatives",
    "prove_symmetric",
]
