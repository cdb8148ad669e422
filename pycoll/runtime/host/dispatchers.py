"""Dispatchers: they start cached plans on arrays of the host without Python's help."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from pycoll.program.isa import HOST_DESTINATIONS
from pycoll.runtime.native import load
from pycoll.runtime.plan.call import BARRIER
from pycoll.runtime.plan.geometry import geometry
from pycoll.runtime.plan.request import KINDS, NUMBERS, in_place
from pycoll.schedule import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.cache import BoundPlan
    from pycoll.runtime.plan.call import Call
    from pycoll.runtime.plan.options import Asked
    from pycoll.runtime.plan.proof import Form
    from pycoll.runtime.plan.selection import Selection


class Dispatchers:
    """Those of one communicator: one for each choice of algorithm. The target of its plans."""

    direct = True
    destinations = HOST_DESTINATIONS  #: of a REDUCE_COPY

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @cached_property
    def selection(self) -> Selection:
        """How calls choose their algorithms."""
        return self._engine.selection

    def of(self, asked: Asked) -> Any:
        """Return the dispatcher for one choice of algorithm; None: the fastest."""
        return self._engine.dispatcher.of(asked)

    def keep(self, call: Call, handle: Any, forms: Sequence[Form], timeout: float | None) -> Any:
        """Return the native plan itself."""
        return self._engine.keep(handle)

    def offer(self, call: Call, asked: Asked, made: BoundPlan) -> None:
        """Let the dispatcher find a plan by the arrays of a call."""
        world = self._engine.world
        kind, blocks = KINDS[call.collective], call.blocks(world.size)
        g = geometry(COLLECTIVES[call.collective], world.rank, world.size, call.root)
        x, out = g.input.total(blocks), g.output.total(blocks)
        has_x = kind.out == "x" or g.input.nblocks > 0
        flags = load.fastcall
        arrays = flags.APART * (not kind.collective.in_place) | flags.SHAPED * kind.alike
        if kind.default is in_place or not (g.input.nblocks and g.output.nblocks):
            arrays |= flags.ALIAS
        self.of(asked).add(
            NUMBERS["barrier" if call == BARRIER else call.collective],
            int(call.op),
            call.root,
            call.dtype.code,
            x if g.input.nblocks else out,
            out,
            has_x,
            arrays,
            made.number,
        )

    def forget(self) -> None:
        """Let no dispatcher find a plan."""
        self._engine.dispatcher.drop()

    def transport(self, peers: set[int]) -> str:
        """Return what moves the data to these ranks."""
        world = self._engine.world
        names = {"shm" if world.mapped[peer] else world.transport for peer in peers}
        return "+".join(sorted(names)) or "shm"
