"""Communicator: the group of ranks that a user holds."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pycoll.arguments import check_timeout
from pycoll.config import Config
from pycoll.errors import UsageError, quoted
from pycoll.groups import Groups

if TYPE_CHECKING:
    from pycoll.bootstrap import Bootstrap
    from pycoll.cost import Explanation
    from pycoll.runtime.cuda.device_comm import Gpu
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.agreement import Selector


def init(
    bootstrap: Bootstrap | None = None,
    timeout: float | None = None,
    selector: Selector | str | None = None,
) -> Communicator:
    """Meet the other ranks of the job and return the communicator of all of them.

    Args:
        bootstrap: How to meet; found out from the launcher by default.
        timeout: Seconds until a wait for another rank fails, here and in every call; 300, or
            PYCOLL_TIMEOUT, by default.
        selector: Chooses the algorithms: a function from a Question to a Choice, or to None where
            it has no opinion, given alike to all ranks; or the name of one that a package brings
            under the entry points ``pycoll.selectors``, given to rank 0. By default cost decides.

    Raises:
        UsageError: The ranks were given different selectors, or a name that no package brings.
        UnavailableError: The native engine, or what the launcher or the settings need, is missing.
        BootstrapError: The ranks did not meet, or cannot reach each other's memory.
    """
    # Loaded here: `import pycoll` must work, and be quick, where there is no engine.
    from pycoll.bootstrap import detect
    from pycoll.bootstrap.descriptors import enough
    from pycoll.runtime.engine import Engine

    if bootstrap is not None and not hasattr(bootstrap, "allgather"):
        raise UsageError(
            f"init: bootstrap is {quoted(bootstrap)}, want a pycoll.bootstrap.Bootstrap, or None"
        )
    named = isinstance(selector, str) and selector != ""
    if not (selector is None or named or callable(selector)):
        raise UsageError(
            f"init: selector is {quoted(selector)}, want a function from a Question to a Choice, "
            "the name of a plug-in, or None"
        )
    config = Config.load(timeout=timeout)
    with enough("init"):
        met = detect(config) if bootstrap is None else bootstrap
    try:
        with enough("init", met.size):
            return Communicator(Engine(met, config, selector))
    except BaseException:
        met.close()
        raise


def _length(nbytes: int) -> int:
    try:
        number = operator.index(nbytes)
    except TypeError:
        number = -1
    if number < 0:
        raise UsageError(f"explain: nbytes is {quoted(nbytes)}, want an integer of at least 0")
    return number


def _on_host(device: str, who: str) -> bool:
    if not isinstance(device, str):  # of an array == would be no answer
        raise UsageError(f'{who}: device is {quoted(device)}, want "cpu" or "cuda"')
    return device == "cpu"


class Communicator(Groups):
    """The ranks of one job. Every rank makes the same calls in the same order.

    Used by one thread at a time. `init` makes it; `close` it, or use it in a ``with`` block.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.local_rank = engine.bootstrap.local_rank
        self.local_size = engine.bootstrap.local_size
        self.launcher = engine.bootstrap.name  #: what started the ranks, such as "mpi4py"
        #: How ranks that share no memory reach each other: "verbs" or "tcp"; "shm" if all share it.
        self.transport = engine.world.transport
        finalizer = weakref.finalize(self, engine.leave)
        finalizer.atexit = False  # the engine sees to that itself

    def empty(self, shape: int | Iterable[int], dtype: Any = "float64", device: str = "cpu") -> Any:
        """Return an array in memory that the other ranks can reach: no copy on the way.

        Its elements have no set value. The memory is freed with the last reference to it.

        Args:
            shape: A length or lengths.
            dtype: Of the elements, which are a fixed number of bytes.
            device: "cpu" for an array of numpy; "cuda" for one in the memory of this communicator's
                GPU, of cupy where that is installed, else a small class of its own. The first call
                for a GPU is made by all ranks, see `cuda`.
        """
        self._engine.life.require_usable("empty")
        if _on_host(device, "empty"):
            return self._engine.heap.empty(shape, dtype)
        return self._launch.on(device, "empty").empty(shape, dtype)

    def cuda(self, device: int | None = None, timeout: float | None = None) -> Gpu:
        """Make ready for arrays in the memory of GPUs; all ranks call it.

        The first call with such an array does so by itself. What is set up here is memory on the
        GPU and ways to the memory of the other ranks' GPUs.

        Args:
            device: Number of this rank's GPU, as CUDA counts; by default the current one of torch
                or cupy, where one is loaded, else one for each rank of a host in turn.
            timeout: Seconds until all ranks have called it.

        Returns:
            What the communicator has there, such as its ``stream``.

        Raises:
            UnavailableError: On some rank there is no GPU, or what it needs is missing; on all.
        """
        self._engine.life.require_usable("cuda")
        return self._launch.cuda.describe(device, check_timeout("cuda", timeout))

    def on_stream(self, stream: Any) -> AbstractContextManager[None]:
        """Enqueue calls on a stream, whatever is current for the arrays: for a ``with`` block.

        Args:
            stream: Of torch or cupy, anything with `__cuda_stream__`, or CUDA's handle, an integer.
        """
        self._engine.life.require_usable("on_stream")
        return self._launch.cuda.streams.on_stream(stream)

    def explain(self, collective: str, nbytes: int, device: str = "cpu") -> Explanation:
        """Say which algorithm would run, and what was predicted or measured of all of them.

        Args:
            collective: Name of the collective.
            nbytes: Bytes of the whole message: of all blocks, where every rank has one.
            device: What memory the arrays lie in: "cpu" or, after `cuda` or a first call with an
                array there, "cuda".

        Returns:
            An Explanation; ``str()`` of it is a table.
        """
        self._engine.life.require_usable("explain")
        if not isinstance(collective, str):
            raise UsageError(f"explain: collective is {quoted(collective)}, want a name")
        if _on_host(device, "explain"):
            return self._engine.selection.explain(collective, _length(nbytes))
        return self._launch.on(device, "explain").explain(collective, _length(nbytes))

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

    def __repr__(self) -> str:
        state = self._engine.state()
        return f"<pycoll.Communicator rank {self.rank} of {self.size}{state and f', {state}'}>"
