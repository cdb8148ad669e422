"""Communicator: the group of ranks that a user holds."""

from __future__ import annotations

import weakref
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pycoll.config import Config
from pycoll.errors import UsageError

if TYPE_CHECKING:
    from pycoll.algorithms import Algorithm
    from pycoll.bootstrap import Bootstrap
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.launch import Launch
    from pycoll.runtime.persistent import Plan


def init(bootstrap: Bootstrap | None = None, timeout: float | None = None) -> Communicator:
    """Meet the other ranks of the job and return the communicator of all of them.

    Args:
        bootstrap: How to meet; found out from the launcher by default.
        timeout: Seconds until a wait for another rank fails, here and in every call; 300, or
            PYCOLL_TIMEOUT, by default.

    Raises:
        UnavailableError: The native engine, or what the launcher needs, is missing.
        BootstrapError: The ranks did not meet, or cannot reach each other's memory.
    """
    # Loaded here: `import pycoll` must work, and be quick, where there is no engine.
    from pycoll.bootstrap import detect
    from pycoll.runtime.engine import Engine

    config = Config.load(timeout=timeout)
    met = detect(config) if bootstrap is None else bootstrap
    try:
        return Communicator(Engine(met, config))
    except BaseException:
        met.close()
        raise


class Communicator:
    """The ranks of one job. Every rank makes the same calls in the same order.

    Used by one thread at a time. `init` makes it; `close` it, or use it in a ``with`` block.
    """

    def __init__(self, engine: Engine) -> None:
        self.rank = engine.world.rank
        self.size = engine.world.size
        self.local_rank = engine.bootstrap.local_rank
        self.local_size = engine.bootstrap.local_size
        self.launcher = engine.bootstrap.name  #: what started the ranks, such as "mpi4py"
        self._engine = engine
        self._call = engine.launcher.call
        self._barrier: Plan | None = None
        finalizer = weakref.finalize(self, engine.leave)
        finalizer.atexit = False  # the engine sees to that itself

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
            x: A contiguous array of numpy or torch, or anything with the buffer protocol or
                DLPack; or a list of arrays, which then travel together.
            out: Where the result goes, of the same shape and dtype; ``x`` itself by default.
            op: "sum", "prod", "min", "max" or "avg".
            async_op: Return at once, with a Work whose ``wait()`` returns the result.
            algorithm: Name of a built-in or an algorithm of one's own; by default the fastest.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            ``out``, or ``x`` when it is None; with ``async_op`` a Work.
        """
        try:
            if algorithm is None and timeout is None and not async_op:
                # The path of nearly all calls: one native call finds the plan and runs it.
                done = self._call(0, x, out, op, 0)
                if done is not None:
                    if done.__class__ is not int:
                        return done
                    # Held, so that no other thread can resize what native code uses.
                    with memoryview(x), memoryview(x if out is None else out):
                        self._engine.finish(done)
                    return x if out is None else out
            return self._launch.allreduce(x, out, op, async_op, algorithm, timeout)
        except BaseException as error:
            self._engine.interrupted(error)
            raise

    def plan(
        self,
        collective: str,
        x: Any,
        out: Any = None,
        op: str = "sum",
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Plan:
        """Return a call bound to its arrays, which it keeps alive: ``plan()`` runs it.

        Arguments are those of the collective's own method; ``collective`` is its name.
        """
        if collective != "allreduce":
            raise UsageError(f"plan: collective is {collective!r}, want 'allreduce'")
        return self._launch.plan(x, out, op, algorithm, timeout)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        if self._barrier is None:
            self._barrier = self._launch.barrier()
        self._barrier()

    def empty(self, shape: int | tuple[int, ...], dtype: Any = "float64") -> Any:
        """Return a numpy array in memory that the other ranks can reach: no copy on the way.

        Its elements have no set value. The memory is freed with the last reference to it.
        """
        self._engine.require_usable("empty")
        return self._engine.heap.empty(shape, dtype)

    def close(self) -> None:
        """Finish queued work, take leave of the other ranks and free everything."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:  # tell the others why, and do not wait for what may never end
            self._engine.leave_after(error)

    @cached_property
    def _launch(self) -> Launch:
        # Loaded at the first call: it brings algorithms and passes, and `init` shall be quick.
        from pycoll.runtime.launch import Launch

        return Launch(self._engine, self)

    def __repr__(self) -> str:
        return f"<pycoll.Communicator rank {self.rank} of {self.size}>"
