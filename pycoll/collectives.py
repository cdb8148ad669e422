"""The collectives of a Communicator: one table, and one path for all of them.

A method of the Communicator calls what its row made of native code: a call whose plan is known is
one native call, and any other falls back to `Collectives`.
"""

from __future__ import annotations

from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from pycoll.runtime.plan.options import CallOptions

if TYPE_CHECKING:
    import weakref

    from pycoll.runtime.dispatch import Dispatcher
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.persistent import Plan


class Row(NamedTuple):
    """What native code has to know of a collective to run a plan of it."""

    name: str
    x_at_root: bool = False  #: elsewhere ``x`` is not looked at
    out_at_root: bool = False  #: elsewhere ``out`` is not looked at, and there is no result
    result: bool = True


#: A row's place is its number, as in `runtime.plan.request.NUMBERS`. Written down here because
#: `init` shall be quick, and that table comes with all that an algorithm needs.
ROWS = (
    Row("allreduce"),
    Row("broadcast"),
    Row("reduce", out_at_root=True),
    Row("allgather"),
    Row("reduce_scatter"),
    Row("alltoall"),
    Row("gather", out_at_root=True),
    Row("scatter", x_at_root=True),
    Row("barrier", result=False),
)
ALLREDUCE, BROADCAST, REDUCE, ALLGATHER, REDUCE_SCATTER, ALLTOALL, GATHER, SCATTER, _ = range(9)


class Collectives:
    """What the collectives of a communicator fall back to; whatever holds `calls` holds it."""

    def __init__(self, engine: Engine, owner: weakref.ref[Any]) -> None:
        self._engine = engine
        self._owner = owner

    def calls(self) -> SimpleNamespace:
        """Return what serves each row, by its name.

        All take (x, out, op, root, async_op, algorithm, timeout).
        """
        collective = self._engine.dispatcher.collective
        return SimpleNamespace(
            **{
                row.name: collective(row, number, *row[1:], self._serve, self._refused)
                for number, row in enumerate(ROWS)
            }
        )

    @cached_property
    def launch(self) -> Dispatcher:
        """What makes the plans."""
        # Loaded at the first call: it brings algorithms and passes, and `init` shall be quick.
        from pycoll.runtime.dispatch import Dispatcher

        return Dispatcher(self._engine, self._owner())

    def plan(self, collective: str, x: Any, out: Any, options: CallOptions) -> Plan:
        """Bind a collective to its arrays."""
        with self._engine.order.begins("plan"):
            return self.launch.bind(collective, x, out, options)

    def _serve(
        self,
        row: Row,
        code: int | None,
        x: Any,
        out: Any,
        op: Any,
        root: Any,
        async_op: Any,
        algorithm: Any,
        timeout: Any,
    ) -> Any:
        """Make a call, or carry one to its end that has begun and gave ``code``."""
        engine = self._engine
        if code is not None:
            return engine.waits.finish(code)
        if root is not engine.world.rank:
            root = self._root(row.name, root)
            if root != engine.world.rank:
                x = None if row.x_at_root else x
                out = None if row.out_at_root else out
        # As its constructor does, which is a function of Python's.
        options = tuple.__new__(CallOptions, (op, root, None, algorithm, timeout, "", False))
        if not row.result:
            return self.launch.arrive(options, async_op)
        return self.launch.run(row.name, x, out, options, async_op)

    def _root(self, who: str, root: Any) -> int:
        """Return a rank that the user named."""
        world = self._engine.world
        if root.__class__ is int and 0 <= root < world.size:
            return int(root)
        from pycoll.runtime.plan.request import rank_of

        self._engine.life.require_usable(who)
        return rank_of(root, world.size, f"{who}: root")

    def _refused(self, row: Row, error: BaseException, *call: Any) -> None:
        self._engine.order.refused(row.name, error)
