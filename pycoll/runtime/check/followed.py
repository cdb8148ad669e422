"""Followed: one element of a call, through the Programs that ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pycoll.algorithms import get
from pycoll.dtypes import UINT8, ReduceOp
from pycoll.errors import PycollError
from pycoll.program.reference import bounds
from pycoll.runtime.check.hops import Element, Fit, Graph, TooLarge
from pycoll.schedule import COLLECTIVES, Algorithm

if TYPE_CHECKING:
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.cache import BoundPlan
    from pycoll.runtime.plan.call import Call, Wanted

#: Ranks up to which their Programs are made anew: each rank makes those of all.
MOST_RANKS = 64

Block = tuple[int, int]  #: a rank, and the block of its input or output


class Followed:
    """A place of a block, in the inputs and outputs that have it.

    Args:
        engine: The communicator's.
        call: What all ranks asked for.
        wanted: The algorithm that the user named.
        plan: What ran.
        direct: Whether all arrays lay in memory that all ranks map.
    """

    def __init__(
        self, engine: Engine, call: Call, wanted: Wanted, plan: BoundPlan, direct: bool
    ) -> None:
        from pycoll.program.lower import compile_all

        self._call, self._size = call, engine.world.size
        if self._size > MOST_RANKS:
            raise TooLarge(f"{self._size} ranks, at most {MOST_RANKS} are followed")
        name = (plan.direct if direct else None) or plan.algorithm
        algorithm = wanted if isinstance(wanted, Algorithm) else get(name, call.collective)
        if algorithm.name != name:
            algorithm = get(name, call.collective)
        programs = compile_all(
            algorithm,
            self._size,
            direct=direct and plan.direct is not None,
            average=call.op is ReduceOp.AVG,
            placement=engine.world.placement.rotated(call.root),
        )
        self._nblocks = COLLECTIVES[call.collective].nblocks(self._size)
        self._parts = programs[0].nchunks // self._nblocks
        self._graph = Graph(programs, engine.world.slots)

    def element(
        self, offset: int, inputs: Mapping[Block, bytes], outputs: Mapping[Block, bytes]
    ) -> tuple[dict[Block, bytes], list[Fit]]:
        """Return what outputs should hold, and the flips that make it what they hold.

        Args:
            offset: Byte of the block at which the element begins; alike in all that are given.
            inputs: The element in each input that matters.
            outputs: In each output.
        """
        import numpy

        from pycoll.program.arithmetic import storage

        # What is only moved is followed byte by byte.
        dtype = self._call.dtype if COLLECTIVES[self._call.collective].reduces else UINT8
        places = {self._place(block, offset): block for block in outputs}
        given = {
            self._place(block, offset): numpy.frombuffer(value, storage(dtype))
            for block, value in inputs.items()
        }
        element = Element(self._graph, given, list(places), dtype, self._call.op)
        right = {places[place]: value for place, value in element.right().items()}
        there = {place: outputs[block] for place, block in places.items()}
        return right, [self._real(fit) for fit in element.fits(there)]

    def _place(self, block: Block, offset: int) -> tuple[int, int]:
        """Return the rank of a Program, and the chunk, that a place of a block belongs to."""
        (rank, number), root = block, self._call.root
        nbytes = self._call.blocks(self._size)[number]
        part = next(p for p in range(self._parts) if offset < bounds(p, self._parts, nbytes)[1])
        turned = (number - root) % self._nblocks
        return (rank - root) % self._size, turned * self._parts + part

    def _real(self, fit: Fit) -> Fit:
        root, size = self._call.root, self._size
        return fit._replace(source=(fit.source + root) % size, target=(fit.target + root) % size)


def followed(
    engine: Engine,
    call: Call,
    wanted: Wanted,
    plan: BoundPlan,
    direct: bool,
    offset: int,
    inputs: Mapping[Block, bytes],
    outputs: Mapping[Block, bytes],
) -> tuple[dict[Block, bytes], list[Fit], str]:
    """Do what `Followed` does; instead of an error return nothing found, and why."""
    try:
        made = Followed(engine, call, wanted, plan, direct)
        return *made.element(offset, inputs, outputs), ""
    except (TooLarge, PycollError) as error:
        return {}, [], str(error)
