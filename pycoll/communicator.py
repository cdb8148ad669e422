"""Communicator: the group of ranks that a user holds."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pycoll.arguments import check_timeout
from pycoll.collectives import Collectives
from pycoll.config import Config
from pycoll.errors import UsageError, quoted
from pycoll.groups import Groups
from pycoll.objects import Objects
from pycoll.point_to_point import PointToPoint
from pycoll.runtime.plan.options import CallOptions
from pycoll.vector_collectives import VectorCollectives

if TYPE_CHECKING:
    from pycoll.algorithms import Algorithm
    from pycoll.bootstrap import Bootstrap
    from pycoll.cost import Explanation
    from pycoll.runtime.cuda.device_comm import Gpu
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.p2p.batch import Pairs
    from pycoll.runtime.p2p.transfers import Transfers
    from pycoll.runtime.plan.agreement import Selector
    from pycoll.runtime.plan.persistent import Plan


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


class Communicator:
    """The ranks of one job. Every rank makes the same calls in the same order.

    Used by one thread at a time. `init` makes it; `close` it, or use it in a ``with`` block.

    Methods take, beside what their own texts say:

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

    Blocks that are counted one by one (`allgatherv` and so on) have counts in elements.
    `allgatherv` and `reduce_scatterv` take those of all ranks, on all ranks, and run a verified
    algorithm. `alltoallv`, `gatherv` and `scatterv` take those that the rank itself has to know,
    and send every block straight to where it belongs.

    Messages from one rank to another (`send`, `recv`, `exchange`) arrive in the order in which they
    were sent; there is no order with anything else, and there are no tags. Both ends give arrays of
    one length and dtype.

    Objects (`broadcast_object` and so on) are what `pickle` serves. A pickle can make its reader
    run anything: these methods trust the ranks of the job, and nobody else. What came is loaded if
    it is what its rank vouched for; where it is not, TransportError breaks the communicator for
    all. Where a rank cannot pickle its object the error is raised there, and UsageError on the
    others; the communicator is as good as before. In a job that anybody could have joined (see
    `Bootstrap.public`) every call is a UsageError.

    A new communicator (`split`, `dup`) has queues, plans and failures of its own: one that breaks
    leaves the others usable. A process that dies breaks all that it belongs to. They may be closed
    in any order. The slots of each take up to 8 MiB of memory, as they are used, and arrays of its
    `empty` more.
    """

    def __init__(self, engine: Engine) -> None:
        self.rank = engine.world.rank
        self.size = engine.world.size
        self.local_rank = engine.bootstrap.local_rank
        self.local_size = engine.bootstrap.local_size
        self.launcher = engine.bootstrap.name  #: what started the ranks, such as "mpi4py"
        #: How ranks that share no memory reach each other: "verbs" or "tcp"; "shm" if all share it.
        self.transport = engine.world.transport
        self._engine = engine
        itself = weakref.ref(self)  # weak: this holds all that is made here
        self._collectives = Collectives(engine, itself)
        self._call = self._collectives.calls()
        self._byte = bytearray(1)  #: what a barrier reduces, and nobody looks at
        self._messages = PointToPoint(engine, itself)
        self._send = self._messages.call("send", receives=False)
        self._recv = self._messages.call("recv", receives=True)
        self._counted = VectorCollectives(engine, self._collectives, self._messages)
        self._objects = Objects(engine, self._collectives, self._counted)
        self._groups = Groups(engine, self._collectives)
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
            x: An array; or a list of arrays, which then travel together.
            out: Where the result goes, of the same shape and dtype; ``x`` itself by default.
            op: "sum", "prod", "min", "max" or "avg".
            async_op: Return a Work.
            algorithm: What runs.
            timeout: Seconds.

        Returns:
            ``out``, or ``x`` when it is None; with ``async_op`` a Work.
        """
        return self._call.allreduce(x, out, op, 0, async_op, algorithm, timeout)

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
        return self._call.broadcast(x, None, "sum", root, async_op, algorithm, timeout)

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
        return self._call.reduce(x, out, op, root, async_op, algorithm, timeout)

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
        return self._call.allgather(x, out, "sum", 0, async_op, algorithm, timeout)

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
        return self._call.reduce_scatter(x, out, op, 0, async_op, algorithm, timeout)

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
        return self._call.alltoall(x, out, "sum", 0, async_op, algorithm, timeout)

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
        return self._call.gather(x, out, "sum", root, async_op, algorithm, timeout)

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
        return self._call.scatter(x, out, "sum", root, async_op, algorithm, timeout)

    def barrier(self, async_op: bool = False, timeout: float | None = None) -> Any:
        """Return once every rank has called it."""
        return self._call.barrier(self._byte, None, "max", 0, async_op, None, timeout)

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
        asked = CallOptions(op, root, counts, algorithm, timeout)
        return self._collectives.plan(collective, x, out, asked)

    def allgatherv(
        self,
        x: Any,
        counts: Sequence[int],
        out: Any = None,
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Do what `allgather` does, with arrays that are not equally long.

        Args:
            x: This rank's array, of ``counts[rank]`` elements.
            counts: Elements of every rank's array, alike on all ranks.
            out: Where they go, ``sum(counts)`` elements; a new flat array by default.
            async_op: Return a Work.
            algorithm: What runs.
            timeout: Seconds.
        """
        asked = CallOptions("sum", 0, counts, algorithm, timeout)
        return self._counted.by_counts("allgather", x, out, asked, async_op)

    def reduce_scatterv(
        self,
        x: Any,
        counts: Sequence[int],
        out: Any = None,
        op: str = "sum",
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Do what `reduce_scatter` does, with parts that are not equally long.

        Args:
            x: An array of ``sum(counts)`` elements.
            counts: Elements of every rank's part, alike on all ranks.
            out: Where this rank's ``counts[rank]`` elements go; a new flat array by default.
            op: "sum", "prod", "min", "max" or "avg".
            async_op: Return a Work.
            algorithm: What runs.
            timeout: Seconds.
        """
        asked = CallOptions(op, 0, counts, algorithm, timeout)
        return self._counted.by_counts("reduce_scatter", x, out, asked, async_op)

    def alltoallv(
        self,
        x: Any,
        send_counts: Sequence[int],
        out: Any,
        recv_counts: Sequence[int],
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Give every rank a part of ``x``, and get a part from every rank into ``out``.

        Args:
            x: The parts for all ranks, one behind the other in order of rank.
            send_counts: Elements of each.
            out: Where the parts from all ranks go, one behind the other in order of rank.
            recv_counts: Elements of each.
            async_op: Return a Work.
            timeout: Seconds.

        Returns:
            ``out``.
        """
        return self._counted.alltoallv(x, send_counts, out, recv_counts, async_op, timeout)

    def gatherv(
        self,
        x: Any,
        counts: Sequence[int] | None = None,
        out: Any = None,
        root: int = 0,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Do what `gather` does, with arrays that are not equally long.

        Args:
            x: This rank's array.
            counts: On the root, the elements of every rank's array.
            out: On the root, where they go, one behind the other in order of rank; a new flat
                array by default. In place on the root: its own part of ``out`` is ``x``.
            root: The rank that gets them.
            async_op: Return a Work.
            timeout: Seconds.

        Returns:
            On the root ``out``, or the new array; None elsewhere.
        """
        return self._counted.rooted("gatherv", x, counts, out, root, async_op, timeout)

    def scatterv(
        self,
        x: Any = None,
        counts: Sequence[int] | None = None,
        out: Any = None,
        root: int = 0,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Do what `scatter` does, with parts that are not equally long.

        Args:
            x: On the root, the parts of all ranks, one behind the other in order of rank; elsewhere
                it is not looked at.
            counts: On the root, the elements of each.
            out: Where this rank's part goes. The root may leave it out: its part stays in ``x``.
            root: The rank that has the array.
            async_op: Return a Work.
            timeout: Seconds.

        Returns:
            ``out``, or on the root a flat view of its part of ``x``.
        """
        return self._counted.rooted("scatterv", x, counts, out, root, async_op, timeout)

    def send(self, x: Any, to: int, async_op: bool = False, timeout: float | None = None) -> Any:
        """Send an array; return once it may be written again.

        Args:
            x: The array.
            to: The rank that receives it.
            async_op: Return a Work.
            timeout: Seconds.
        """
        return self._send(x, to, async_op, timeout)

    def recv(self, x: Any, frm: int, async_op: bool = False, timeout: float | None = None) -> Any:
        """Receive into an array, and return it.

        Args:
            x: The array.
            frm: The rank that sends it.
            async_op: Return a Work.
            timeout: Seconds.
        """
        return self._recv(x, frm, async_op, timeout)

    def exchange(
        self,
        sends: Pairs = (),
        recvs: Pairs = (),
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Send and receive messages that all move at once, in any order.

        Args:
            sends: Pairs of an array and the rank that receives it.
            recvs: Pairs of an array and the rank that sends it.
            async_op: Return a Work.
            timeout: Seconds.

        Returns:
            The arrays of ``recvs``.
        """
        return self._messages.exchange(sends, recvs, async_op, timeout)

    def broadcast_object(self, obj: Any = None, root: int = 0, timeout: float | None = None) -> Any:
        """Return the object of rank ``root``.

        Args:
            obj: The object, on the root; elsewhere it is not looked at.
            root: The rank that has it.
            timeout: Seconds, for the voucher and again for the object.
        """
        return self._objects.broadcast(obj, root, timeout)

    def allgather_object(self, obj: Any, timeout: float | None = None) -> list[Any]:
        """Return the objects of all ranks, in order of rank.

        Args:
            obj: This rank's object.
            timeout: Seconds, for the vouchers and again for the objects.
        """
        return self._objects.allgather(obj, timeout)

    def gather_object(
        self, obj: Any, root: int = 0, timeout: float | None = None
    ) -> list[Any] | None:
        """Return the objects of all ranks, in order of rank, on rank ``root``; None elsewhere.

        Args:
            obj: This rank's object.
            root: The rank that gets them.
            timeout: Seconds, for the vouchers and again for the objects.
        """
        return self._objects.gather(obj, root, timeout)

    def scatter_object(
        self, objs: Sequence[Any] | None = None, root: int = 0, timeout: float | None = None
    ) -> Any:
        """Return the one of ``objs``, of rank ``root``, that is this rank's.

        Args:
            objs: On the root, an object for each rank; elsewhere it is not looked at.
            root: The rank that has them.
            timeout: Seconds, for the vouchers and again for the objects.
        """
        return self._objects.scatter(objs, root, timeout)

    def split(self, color: int | None, key: int = 0, timeout: float | None = None) -> Self | None:
        """Return a communicator of the ranks that give the same color; every rank calls it.

        Args:
            color: Which of the new communicators this rank joins; None: none of them.
            key: Ranks there are in order of key, and of rank here where keys are equal.
            timeout: Seconds.

        Returns:
            The new communicator, or None if ``color`` is None.
        """
        return self._groups.split(type(self), color, key, timeout)

    def dup(self, timeout: float | None = None) -> Self:
        """Return another communicator of the same ranks; every rank calls it."""
        return self._groups.dup(type(self), timeout)

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
        return self._collectives.launch.on(device, "empty").empty(shape, dtype)

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
        return self._collectives.launch.cuda.describe(device, check_timeout("cuda", timeout))

    def on_stream(self, stream: Any) -> AbstractContextManager[None]:
        """Enqueue calls on a stream, whatever is current for the arrays: for a ``with`` block.

        Args:
            stream: Of torch or cupy, anything with `__cuda_stream__`, or CUDA's handle, an integer.
        """
        self._engine.life.require_usable("on_stream")
        return self._collectives.launch.cuda.streams.on_stream(stream)

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
        return self._collectives.launch.on(device, "explain").explain(collective, _length(nbytes))

    def close(self) -> None:
        """Finish queued work, take leave of the other ranks and free everything."""
        self._engine.close()

    @property
    def _transfers(self) -> Transfers:
        return self._messages.transfers

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
