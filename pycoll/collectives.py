"""The collectives of a Communicator: one method each, over one path.

A call whose plan is known is one native call; what that does not serve, `runtime.launch` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pycoll.runtime.plan.options import CallOptions

if TYPE_CHECKING:
    from pycoll.algorithms import Algorithm
    from pycoll.runtime.dispatch import Dispatcher
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.persistent import Plan

#: Places in `schedule.COLLECTIVES`, by which native code knows plans. Written down here because
#: `init` shall be quick, and that table comes with all that an algorithm needs.
ALLREDUCE, BROADCAST, REDUCE, ALLGATHER, REDUCE_SCATTER, ALLTOALL, GATHER, SCATTER = range(8)


class Collectives:
    """What ranks do together.

    Every method takes, beside what its own text says:

    - ``async_op``: return at once, with a Work whose ``wait()`` returns the result;
    - ``algorithm``: name of a built-in or an algorithm of one's own; by default the fastest;
    - ``timeout``: seconds until the call fails; the communicator's by default.

    An array is a contiguous one of numpy or torch, or anything with the buffer protocol or
    DLPack. Its first axis holds the blocks of the ranks where a collective cuts or joins arrays.
    A new array is of numpy or torch as ``x`` is.

    What is only moved may be of any dtype whose elements are a fixed number of bytes: integers and
    floats of any width, bool, complex, fp8, datetime64, strings, structures, either byte order.
    Reductions take those with arithmetic, see `pycoll.dtypes.DTYPES`; UsageError says what to pass
    instead of another.

    ``op="avg"`` is the sum and then one division by ``size``. Of integers both are done in their
    dtype, as NCCL does them: the sum wraps, the quotient is truncated towards zero.
    """

    def __init__(self, engine: Engine) -> None:
        self.rank = engine.world.rank
        self.size = engine.world.size
        self._engine = engine
        self._call = engine.launcher.call  #: runs the plan for some arrays, if there is one
        self._comes = engine.launcher.comes  #: notes a call that does not begin by `_call`
        self._barrier: Plan | None = None

    def allreduce(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Combine ``x`` of all ranks elementwise; every rank gets the result, the same bits.

        Args:
            x: An array; or a list of arrays, which then travel together.
            out: Where the result goes, of the same shape and dtype; ``x`` itself by default.
            op: "sum", "prod", "min", "max" or "avg".
            async_op: Return a Work.
            algorithm: What runs.
            timeout: Seconds.

        Returns:
            ``out``, or ``x`` when it is None; with ``async_op`` a Work.
        """
        try:
            if algorithm is None and timeout is None and not async_op:
                # The path of nearly all calls: one native call finds the plan and runs it.
                done = self._call(ALLREDUCE, x, out, op, 0)
                if done is not None:
                    return done if done.__class__ is not int else self._finish(done, x, out)
            else:
                self._comes()
            asked = CallOptions(op, 0, None, algorithm, timeout)
            return self._launch.run("allreduce", x, out, asked, async_op)
        except BaseException as error:
            self._engine.order.refused("allreduce", error)
            raise

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Give every rank what ``x`` holds on rank ``root``: in place. Returns ``x``.

        Args:
            x: An array, of one length and dtype on all ranks; or a list of arrays.
            root: The rank that has the data.
            async_op: Return a Work.
            algorithm: What runs.
            timeout: Seconds.
        """
        try:
            if algorithm is None and timeout is None and not async_op:
                done = self._call(BROADCAST, x, None, 0, root)
                if done is not None:
                    return done if done.__class__ is not int else self._finish(done, x, None)
            else:
                self._comes()
            asked = CallOptions("sum", root, None, algorithm, timeout)
            return self._launch.run("broadcast", x, None, asked, async_op)
        except BaseException as error:
            self._engine.order.refused("broadcast", error)
            raise

    def reduce(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        root: int = 0,
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Combine ``x`` of all ranks elementwise; rank ``root`` gets the result.

        Args:
            x: An array.
            out: On the root, where the result goes, of the same shape; ``x`` itself by default.
            op: "sum", "prod", "min", "max" or "avg".
            root: The rank that gets the result.
            async_op: Return a Work.
            algorithm: What runs.
            timeout: Seconds.

        Returns:
            On the root ``out``, or ``x`` when it is None; None elsewhere.
        """
        try:
            if root.__class__ is not int:
                root = self._rank_of(root, "reduce: root")
            if self.rank != root:
                out = None
            if algorithm is None and timeout is None and not async_op:
                done = self._call(REDUCE, x, out, op, root)
                if done is not None:
                    if done.__class__ is int:
                        done = self._finish(done, x, out)
                    return done if self.rank == root else None
            else:
                self._comes()
            asked = CallOptions(op, root, None, algorithm, timeout)
            return self._launch.run("reduce", x, out, asked, async_op)
        except BaseException as error:
            self._engine.order.refused("reduce", error)
            raise

    def allgather(
        self,
        x: Any,
        out: Any = None,
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Give every rank the arrays of all ranks, one behind the other in order of rank.

        Args:
            x: This rank's array, as long on every rank. In place: this rank's part of ``out``.
            out: Where they go, ``size`` times as long; a new array by default, in which they are
                joined along the first axis.
            async_op: Return a Work.
            algorithm: What runs.
            timeout: Seconds.

        Returns:
            ``out``, or the new array.
        """
        try:
            if algorithm is None and timeout is None and not async_op:
                done = self._call(ALLGATHER, x, out, 0, 0)
                if done is not None:
                    return done if done.__class__ is not int else self._finish(done, x, out)
            else:
                self._comes()
            asked = CallOptions("sum", 0, None, algorithm, timeout)
            return self._launch.run("allgather", x, out, asked, async_op)
        except BaseException as error:
            self._engine.order.refused("allgather", error)
            raise

    def reduce_scatter(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Combine ``x`` of all ranks elementwise; rank r gets the r-th part of the result.

        Args:
            x: An array whose first axis is a multiple of ``size`` long.
            out: Where this rank's part goes; a new array by default. In place: this rank's part
                of ``x``.
            op: "sum", "prod", "min", "max" or "avg".
            async_op: Return a Work.
            algorithm: What runs.
            timeout: Seconds.

        Returns:
            ``out``, or the new array.
        """
        try:
            if algorithm is None and timeout is None and not async_op:
                done = self._call(REDUCE_SCATTER, x, out, op, 0)
                if done is not None:
                    return done if done.__class__ is not int else self._finish(done, x, out)
            else:
                self._comes()
            asked = CallOptions(op, 0, None, algorithm, timeout)
            return self._launch.run("reduce_scatter", x, out, asked, async_op)
        except BaseException as error:
            self._engine.order.refused("reduce_scatter", error)
            raise

    def alltoall(
        self,
        x: Any,
        out: Any = None,
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Give rank r the r-th part of ``x`` of every rank, in order of rank.

        Args:
            x: An array whose first axis is a multiple of ``size`` long.
            out: Where the parts go, as long as ``x``; a new array by default. It may be ``x``
                itself, which costs a copy.
            async_op: Return a Work.
            algorithm: What runs.
            timeout: Seconds.

        Returns:
            ``out``, or the new array.
        """
        try:
            if algorithm is None and timeout is None and not async_op:
                done = self._call(ALLTOALL, x, out, 0, 0)
                if done is not None:
                    return done if done.__class__ is not int else self._finish(done, x, out)
            else:
                self._comes()
            asked = CallOptions("sum", 0, None, algorithm, timeout)
            return self._launch.run("alltoall", x, out, asked, async_op)
        except BaseException as error:
            self._engine.order.refused("alltoall", error)
            raise

    def gather(
        self,
        x: Any,
        out: Any = None,
        root: int = 0,
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Give rank ``root`` the arrays of all ranks, one behind the other in order of rank.

        Args:
            x: This rank's array, as long on every rank. In place on the root: its part of ``out``.
            out: On the root, where they go, ``size`` times as long; a new array by default, in
                which they are joined along the first axis.
            root: The rank that gets them.
            async_op: Return a Work.
            algorithm: What runs.
            timeout: Seconds.

        Returns:
            On the root ``out``, or the new array; None elsewhere.
        """
        try:
            if root.__class__ is not int:
                root = self._rank_of(root, "gather: root")
            if self.rank != root:
                out = None
            if algorithm is None and timeout is None and not async_op:
                done = self._call(GATHER, x, out, 0, root)
                if done is not None:
                    if done.__class__ is int:
                        done = self._finish(done, x, out)
                    return done if self.rank == root else None
            else:
                self._comes()
            asked = CallOptions("sum", root, None, algorithm, timeout)
            return self._launch.run("gather", x, out, asked, async_op)
        except BaseException as error:
            self._engine.order.refused("gather", error)
            raise

    def scatter(
        self,
        x: Any = None,
        out: Any = None,
        root: int = 0,
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Give rank r the r-th part of the array that rank ``root`` has.

        Args:
            x: On the root, an array whose first axis is a multiple of ``size`` long; elsewhere it
                is not looked at.
            out: Where this rank's part goes. The root may leave it out: its part stays where it
                is, in ``x``.
            root: The rank that has the array.
            async_op: Return a Work.
            algorithm: What runs.
            timeout: Seconds.

        Returns:
            ``out``, or on the root a view of its part of ``x``.
        """
        try:
            if root.__class__ is not int:
                root = self._rank_of(root, "scatter: root")
            if self.rank != root:
                x = None
            if algorithm is None and timeout is None and not async_op:
                done = self._call(SCATTER, x, out, 0, root)
                if done is not None:
                    return done if done.__class__ is not int else self._finish(done, x, out)
            else:
                self._comes()
            asked = CallOptions("sum", root, None, algorithm, timeout)
            return self._launch.run("scatter", x, out, asked, async_op)
        except BaseException as error:
            self._engine.order.refused("scatter", error)
            raise

    def barrier(self, async_op: bool = False, timeout: float | None = None) -> Any:
        """Return once every rank has called it."""
        if async_op or timeout is not None:
            with self._engine.order.begins("barrier"):
                return self._launch.arrive(CallOptions(timeout=timeout), async_op)
        if self._barrier is None:
            with self._engine.order.begins("barrier"):
                self._barrier = self._launch.barrier()
        return self._barrier()

    def plan(
        self,
        collective: str,
        x: Any = None,
        out: Any = None,
        op: str = "sum",
        root: int = 0,
        counts: Sequence[int] | None = None,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Plan:
        """Return a call bound to its arrays, which it keeps alive: ``plan()`` runs it.

        Arguments are those of the collective's own method; ``collective`` is its name.
        """
        with self._engine.order.begins("plan"):
            asked = CallOptions(op, root, counts, algorithm, timeout)
            return self._launch.bind(collective, x, out, asked)

    def _rank_of(self, value: Any, who: str) -> int:
        """Return a rank that the user named by something else than a plain int."""
        self._comes()  # before anything that raises
        from pycoll.runtime.plan.request import rank_of

        self._engine.life.require_usable(who.partition(":")[0])
        return rank_of(value, self.size, who)

    def _finish(self, code: int, x: Any, out: Any) -> Any:
        """Carry a call that has not ended at once to its end, and return its result."""
        self._engine.waits.finish_on(code, x, out)
        return x if out is None else out

    @cached_property
    def _launch(self) -> Dispatcher:
        # Loaded at the first call: it brings algorithms and passes, and `init` shall be quick.
        from pycoll.runtime.dispatch import Dispatcher

        return Dispatcher(self._engine, self)
