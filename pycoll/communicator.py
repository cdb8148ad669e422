"""Communicator: the group of ranks that a user holds."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from pycoll.arguments import check_timeout
from pycoll.collectives import Collectives
from pycoll.config import Config, join_address
from pycoll.errors import UsageError, quoted
from pycoll.groups import Groups
from pycoll.objects import Objects
from pycoll.order import FIXED, FREE, require_order
from pycoll.point_to_point import PointToPoint
from pycoll.profiler import CallEvent, Calls, Profiler
from pycoll.runtime.plan.options import CallOptions, Ordered
from pycoll.vector_collectives import VectorCollectives

if TYPE_CHECKING:
    from typing import Unpack

    from numpy.typing import DTypeLike, NDArray

    from pycoll.algorithms import Algorithm
    from pycoll.arrays.protocol import Array, Out, X
    from pycoll.bootstrap import Bootstrap
    from pycoll.corruption import Checks
    from pycoll.cost import Explanation
    from pycoll.dtypes import OpName
    from pycoll.order import OrderName
    from pycoll.runtime.cuda.device_comm import Gpu
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.p2p.transfers import Transfers
    from pycoll.runtime.plan.agreement import Selector
    from pycoll.runtime.plan.options import (
        Bound,
        Either,
        EitherBy,
        EitherInOrder,
        Queued,
        QueuedBy,
        QueuedInOrder,
        Waits,
        WaitsBy,
        WaitsInOrder,
    )
    from pycoll.runtime.plan.persistent import Plan
    from pycoll.runtime.record.stats import Stats
    from pycoll.runtime.work import Work

T = TypeVar("T")


def init(
    bootstrap: Bootstrap | None = None,
    timeout: float | None = None,
    selector: Selector | str | None = None,
    unproved: bool | None = None,
    order: OrderName | None = None,
) -> Communicator:
    """Meet the other ranks of the job and return the communicator of all of them.

    Where PYCOLL_NEWCOMER says so, which `pycoll run --elastic` sets for a process that replaces
    another, this waits until the job takes the process in, as `join` does; see `joining`.

    Args:
        bootstrap: How to meet; found out from the launcher by default.
        timeout: Seconds until a wait for another rank fails, here and in every call; 300, or
            PYCOLL_TIMEOUT, by default.
        selector: Chooses the algorithms: a function from a Question to a Choice, or to None where
            it has no opinion, given alike to all ranks; or the name of one that a package brings
            under the entry points ``pycoll.selectors``, given to rank 0. By default cost decides.
        unproved: Run an algorithm as it is where a proof would take too long, which happens at
            hundreds of ranks that do not all do the same, rather than choose another, or raise
            ScheduleError if it was asked for; given alike to all ranks. False, or PYCOLL_UNPROVED,
            by default. Errors name what runs so.
        order: "fixed": reductions fold in the order of the ranks, here and in all communicators
            that are made of this one, so that the bits of a result depend on nothing but the
            number of ranks; given alike to all. "free", or PYCOLL_ORDER, by default.

    Returns:
        The communicator; `Communicator.close` ends it.

    Raises:
        UsageError: The ranks were given different selectors or orders, or a name that no package
            brings.
        UnavailableError: The native engine, or what the launcher or the settings need, is missing.
        BootstrapError: The ranks did not meet, or cannot reach each other's memory.

    Example:
        >>> def job():
        ...     with pycoll.init() as comm:
        ...         return comm.allreduce(np.ones(2)).tolist()
        >>> pycoll.spawn(job, 2)
        [[2.0, 2.0], [2.0, 2.0]]
    """
    # Loaded here: `import pycoll` must work, and be quick, where there is no engine.
    from pycoll.bootstrap import detect, launcher
    from pycoll.bootstrap.descriptors import enough
    from pycoll.runtime.engine import Engine, failed

    if bootstrap is not None and not hasattr(bootstrap, "allgather"):
        raise UsageError(
            f"init: bootstrap is {quoted(bootstrap)}, want a pycoll.bootstrap.Bootstrap, or None"
        )
    _check_selector("init", selector)
    config = Config.load(timeout=timeout, unproved=unproved, order=order)
    if bootstrap is None and launcher(config) == "join":
        return _join("init", config, config.timeout, selector)
    with enough("init"):
        met = detect(config) if bootstrap is None else bootstrap
    try:
        with enough("init", met.size):
            return Communicator(Engine(met, config, selector))
    except BaseException as error:
        met.close(reason=failed(error))
        raise


def join(
    address: str | None = None,
    timeout: float | None = None,
    wait: float | None = None,
    selector: Selector | str | None = None,
    unproved: bool | None = None,
    order: OrderName | None = None,
) -> Communicator:
    """Wait until a running job takes this process in, and return its new communicator.

    The ranks of the job call `Communicator.grow`, before or after this is called. Whatever ends
    their attempt, this process waits on for the next one.

    Args:
        address: Where the job's rank 0 listens as it grows, "host:port", or several with commas
            between them where it may be on one host or another; PYCOLL_JOIN_ADDRESS by default.
        timeout: Seconds until a wait for another rank fails, in every call; as `init` has it.
        wait: Seconds to wait here until the job grows; ``timeout`` by default.
        selector: As the ranks of the job gave it to `init`.
        unproved: As `init` has it.
        order: As the ranks of the job gave it to `init`.

    Returns:
        The communicator, in which the ranks of the job come first.

    Raises:
        UsageError: There is no address, or the job's selector, or order, is another.
        UnavailableError: The native engine, or what the settings need, is missing.
        BootstrapError: Nobody took this process in; or the job has another key, or version.

    Example:
        >>> comm = pycoll.join("node7:29500", wait=3600)  # doctest: +SKIP
    """
    _check_selector("join", selector)
    where = None if address is None else join_address("join: address", address)
    config = Config.load(timeout=timeout, unproved=unproved, order=order, join_address=where)
    waits = check_timeout("join: wait", wait)
    return _join("join", config, config.timeout if waits is None else waits, selector)


def joining() -> bool:
    """Tell whether `init` joins a job that runs already: PYCOLL_NEWCOMER says so.

    `pycoll run --elastic` sets it for a process that replaces another. A program may ask so that it
    does not begin what the others are amid.

    Example:
        >>> pycoll.joining()
        False
    """
    from pycoll.bootstrap import launcher

    return launcher(Config.load()) == "join"


def _join(who: str, config: Config, wait: float, selector: Selector | str | None) -> Communicator:
    from pycoll.bootstrap.descriptors import enough
    from pycoll.runtime import grow

    if config.join_address is None:
        raise UsageError(
            f"{who}: no address, want that of the job to join: pycoll.join('host:port'), or "
            "PYCOLL_JOIN_ADDRESS, as given to grow()"
        )
    with enough(who):
        return Communicator(grow.join(config, wait, selector))


def _check_selector(who: str, selector: object) -> None:
    named = isinstance(selector, str) and selector != ""
    if not (selector is None or named or callable(selector)):
        raise UsageError(
            f"{who}: selector is {quoted(selector)}, want a function from a Question to a Choice, "
            "the name of a plug-in, or None"
        )


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

    Used by one thread at a time. `init` makes it; `close` it, or use it in a ``with`` block. In the
    examples there are two ranks, what is shown is what rank 0 gets, and ``np`` is numpy.

    Attributes:
        rank: Number of this process among them, from 0.
        size: How many they are.
        local_rank: Number of this process among those of its host.
        local_size: How many those are.
        launcher: What started the ranks, such as "mpi4py".
        transport: How ranks that share no memory reach each other: "verbs", "libfabric" or "tcp";
            "shm" if all share it.

    What any call raises:

    - UsageError: an argument cannot be served; the text says which, and what to pass. The call
      counts all the same: ranks that are all refused alike go on as if nothing had happened;
    - MismatchError: the ranks' calls are not alike, or one of them was refused;
    - CollectiveTimeout: the seconds have passed; the text says who waits for whom;
    - PeerLostError: a rank has died, or left;
    - BrokenError: one of the three has broken the communicator before, or another rank was stopped
      inside a call;
    - ClosedError: it is closed;
    - TransportError: the operating system or the fabric refused an operation;
    - UnavailableError: there is no memory for a new array, or something that a GPU needs is
      missing.

    An array is a contiguous one of numpy or torch, or anything with the buffer protocol or
    DLPack. Its first axis holds the blocks of the ranks where a collective cuts or joins arrays.
    A new array is of numpy or torch as ``x`` is.

    What is only moved may be of any dtype whose elements are a fixed number of bytes: integers and
    floats of any width, bool, complex, fp8, datetime64, strings, structures, either byte order.
    Reductions take those with arithmetic, see ``pycoll.dtypes.DTYPES``; UsageError says what to
    pass instead of another.

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
        self.launcher = engine.bootstrap.name
        self.transport = engine.world.transport
        self._engine = engine
        self._order = FIXED if engine.fixed else FREE
        itself = weakref.ref(self)  # weak: this holds all that is made here
        self._collectives = Collectives(engine, itself)
        call = self._collectives.calls()
        # Methods load these before they call them: then Python finds an attribute by its index,
        # and does not look for a method of that name first.
        self._allreduce, self._broadcast, self._reduce = call.allreduce, call.broadcast, call.reduce
        self._allgather, self._reduce_scatter = call.allgather, call.reduce_scatter
        self._alltoall, self._gather, self._scatter = call.alltoall, call.gather, call.scatter
        self._barrier = call.barrier
        self._byte = bytearray(1)  #: what a barrier reduces, and nobody looks at
        self._messages = PointToPoint(engine, itself, self._collectives)
        self._send = self._messages.call("send", receives=False)
        self._recv = self._messages.call("recv", receives=True)
        self._exchange = self._messages.exchange()
        self._counted = VectorCollectives(engine, self._collectives, self._messages)
        self._objects = Objects(engine, self._collectives, self._counted)
        self._together = self._messages.together
        self._groups = Groups(engine, self._collectives)
        self._checks: Checks | None = None
        if engine.check:
            # Loaded where it is asked for; before profilers, which see a checked call as one.
            from pycoll.corruption import Checks

            self._checks = Checks(self, engine.check)
        self._calls = Calls(self)  # last: where a profiler is registered it changes the others
        finalizer = weakref.finalize(self, engine.leave)
        finalizer.atexit = False  # the engine sees to that itself

    @overload
    def allreduce(
        self, x: X, out: Out | None = None, op: OpName = "sum", **how: Unpack[WaitsInOrder]
    ) -> Out: ...

    @overload
    def allreduce(
        self, x: X, out: Out | None = None, op: OpName = "sum", **how: Unpack[QueuedInOrder]
    ) -> Work[Out]: ...

    @overload
    def allreduce(
        self,
        x: Sequence[X],
        out: Sequence[Out] | None = None,
        op: OpName = "sum",
        **how: Unpack[WaitsInOrder],
    ) -> list[Out]: ...

    @overload
    def allreduce(
        self,
        x: Sequence[X],
        out: Sequence[Out] | None = None,
        op: OpName = "sum",
        **how: Unpack[QueuedInOrder],
    ) -> Work[list[Out]]: ...

    @overload
    def allreduce(
        self, x: X, out: Out | None = None, op: OpName = "sum", **how: Unpack[EitherInOrder]
    ) -> Out | Work[Out]: ...

    @overload
    def allreduce(
        self,
        x: Sequence[X],
        out: Sequence[Out] | None = None,
        op: OpName = "sum",
        **how: Unpack[EitherInOrder],
    ) -> list[Out] | Work[list[Out]]: ...

    def allreduce(
        self,
        x: Any,
        out: Any = None,
        op: OpName = "sum",
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
        order: OrderName | None = None,
    ) -> Any:
        """Combine ``x`` of all ranks elementwise; every rank gets the result, the same bits.

        Args:
            x: An array of any shape, alike on all ranks; or a list of arrays, which then travel
                together.
            out: Where the result goes, of the same shape and dtype; ``x`` itself by default.
            op: "sum", "prod", "min", "max" or "avg".
            async_op: Return at once, with a Work.
            algorithm: What runs: a name or an algorithm of one's own; by default the fastest.
            timeout: Seconds until the call fails; the communicator's by default.
            order: "fixed": fold in the order of the ranks, so that the bits depend on nothing but
                their number; "free": as is fastest; by default as `init` was told.

        Returns:
            ``out``, or ``x`` when it is None; with ``async_op`` a Work of it.

        Raises:
            UsageError: The arrays do not go together, or their dtype is not reduced.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.allreduce(np.full(3, comm.rank + 1.0), op="max")
            array([2., 2., 2.])
        """
        call = self._allreduce
        asked = algorithm if order is None else self._asked(algorithm, order)
        return call(x, out, op, 0, async_op, asked, timeout)

    @overload
    def broadcast(self, x: X, root: int = 0, **how: Unpack[WaitsBy]) -> X: ...

    @overload
    def broadcast(self, x: X, root: int = 0, **how: Unpack[QueuedBy]) -> Work[X]: ...

    @overload
    def broadcast(self, x: Sequence[X], root: int = 0, **how: Unpack[WaitsBy]) -> list[X]: ...

    @overload
    def broadcast(
        self, x: Sequence[X], root: int = 0, **how: Unpack[QueuedBy]
    ) -> Work[list[X]]: ...

    @overload
    def broadcast(self, x: X, root: int = 0, **how: Unpack[EitherBy]) -> X | Work[X]: ...

    @overload
    def broadcast(
        self, x: Sequence[X], root: int = 0, **how: Unpack[EitherBy]
    ) -> list[X] | Work[list[X]]: ...

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Give every rank what ``x`` holds on rank ``root``: in place.

        Args:
            x: An array, of one length and dtype on all ranks; or a list of arrays, which then
                travel together.
            root: The rank that has the data.
            async_op: Return at once, with a Work.
            algorithm: What runs: a name or an algorithm of one's own; by default the fastest.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            ``x``; with ``async_op`` a Work of it.

        Raises:
            UsageError: ``x`` is no array that can be written, or ``root`` is no rank.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.broadcast(np.full(3, comm.rank), root=1)
            array([1, 1, 1])
        """
        call = self._broadcast
        return call(x, None, "sum", root, async_op, algorithm, timeout)

    @overload
    def reduce(
        self,
        x: X,
        out: Out | None = None,
        op: OpName = "sum",
        root: int = 0,
        **how: Unpack[WaitsInOrder],
    ) -> Out | None: ...

    @overload
    def reduce(
        self,
        x: X,
        out: Out | None = None,
        op: OpName = "sum",
        root: int = 0,
        **how: Unpack[QueuedInOrder],
    ) -> Work[Out | None]: ...

    @overload
    def reduce(
        self,
        x: X,
        out: Out | None = None,
        op: OpName = "sum",
        root: int = 0,
        **how: Unpack[EitherInOrder],
    ) -> Out | Work[Out | None] | None: ...

    def reduce(
        self,
        x: Any,
        out: Any = None,
        op: OpName = "sum",
        root: int = 0,
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
        order: OrderName | None = None,
    ) -> Any:
        """Combine ``x`` of all ranks elementwise; rank ``root`` gets the result.

        Args:
            x: An array of any shape, alike on all ranks.
            out: On the root, where the result goes, of the same shape and dtype; ``x`` itself by
                default. Elsewhere it is not looked at.
            op: "sum", "prod", "min", "max" or "avg".
            root: The rank that gets the result.
            async_op: Return at once, with a Work.
            algorithm: What runs: a name or an algorithm of one's own; by default the fastest.
            timeout: Seconds until the call fails; the communicator's by default.
            order: "fixed": fold in the order of the ranks, so that the bits depend on nothing but
                their number; "free": as is fastest; by default as `init` was told.

        Returns:
            On the root ``out``, or ``x`` when it is None; None elsewhere. With ``async_op`` a Work
            of it.

        Raises:
            UsageError: The arrays do not go together, their dtype is not reduced, or ``root`` is no
                rank.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.reduce(np.full(3, comm.rank + 1.0), root=0)
            array([3., 3., 3.])
        """
        call = self._reduce
        asked = algorithm if order is None else self._asked(algorithm, order)
        return call(x, out, op, root, async_op, asked, timeout)

    @overload
    def allgather(self, x: X, out: Out | None = None, **how: Unpack[WaitsBy]) -> Out: ...

    @overload
    def allgather(self, x: X, out: Out | None = None, **how: Unpack[QueuedBy]) -> Work[Out]: ...

    @overload
    def allgather(
        self, x: X, out: Out | None = None, **how: Unpack[EitherBy]
    ) -> Out | Work[Out]: ...

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
            async_op: Return at once, with a Work.
            algorithm: What runs: a name or an algorithm of one's own; by default the fastest.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            ``out``, or the new array; with ``async_op`` a Work of it.

        Raises:
            UsageError: The arrays do not go together: ``out`` is not ``size`` times as long, or
                overlaps ``x``.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.allgather(np.full(2, comm.rank))
            array([0, 0, 1, 1])
        """
        call = self._allgather
        return call(x, out, "sum", 0, async_op, algorithm, timeout)

    @overload
    def reduce_scatter(
        self, x: X, out: Out | None = None, op: OpName = "sum", **how: Unpack[WaitsInOrder]
    ) -> Out: ...

    @overload
    def reduce_scatter(
        self, x: X, out: Out | None = None, op: OpName = "sum", **how: Unpack[QueuedInOrder]
    ) -> Work[Out]: ...

    @overload
    def reduce_scatter(
        self, x: X, out: Out | None = None, op: OpName = "sum", **how: Unpack[EitherInOrder]
    ) -> Out | Work[Out]: ...

    def reduce_scatter(
        self,
        x: Any,
        out: Any = None,
        op: OpName = "sum",
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
        order: OrderName | None = None,
    ) -> Any:
        """Combine ``x`` of all ranks elementwise; rank r gets the r-th part of the result.

        Args:
            x: An array whose first axis is a multiple of ``size`` long, alike on all ranks.
            out: Where this rank's part goes; a new array by default. In place: this rank's part
                of ``x``.
            op: "sum", "prod", "min", "max" or "avg".
            async_op: Return at once, with a Work.
            algorithm: What runs: a name or an algorithm of one's own; by default the fastest.
            timeout: Seconds until the call fails; the communicator's by default.
            order: "fixed": fold in the order of the ranks, so that the bits depend on nothing but
                their number; "free": as is fastest; by default as `init` was told.

        Returns:
            ``out``, or the new array; with ``async_op`` a Work of it.

        Raises:
            UsageError: ``x`` cannot be cut into ``size`` parts, its dtype is not reduced, or
                ``out`` is no such part.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.reduce_scatter(np.arange(4.0))
            array([0., 2.])
        """
        call = self._reduce_scatter
        asked = algorithm if order is None else self._asked(algorithm, order)
        return call(x, out, op, 0, async_op, asked, timeout)

    @overload
    def alltoall(self, x: X, out: Out | None = None, **how: Unpack[WaitsBy]) -> Out: ...

    @overload
    def alltoall(self, x: X, out: Out | None = None, **how: Unpack[QueuedBy]) -> Work[Out]: ...

    @overload
    def alltoall(
        self, x: X, out: Out | None = None, **how: Unpack[EitherBy]
    ) -> Out | Work[Out]: ...

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
            x: An array whose first axis is a multiple of ``size`` long, alike on all ranks.
            out: Where the parts go, as long as ``x``; a new array by default. It may be ``x``
                itself, which costs a copy.
            async_op: Return at once, with a Work.
            algorithm: What runs: a name or an algorithm of one's own; by default the fastest.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            ``out``, or the new array; with ``async_op`` a Work of it.

        Raises:
            UsageError: ``x`` cannot be cut into ``size`` parts, or ``out`` is not as long.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.alltoall(np.array([10, 20]) + comm.rank)
            array([10, 11])
        """
        call = self._alltoall
        return call(x, out, "sum", 0, async_op, algorithm, timeout)

    @overload
    def gather(
        self, x: X, out: Out | None = None, root: int = 0, **how: Unpack[WaitsBy]
    ) -> Out | None: ...

    @overload
    def gather(
        self, x: X, out: Out | None = None, root: int = 0, **how: Unpack[QueuedBy]
    ) -> Work[Out | None]: ...

    @overload
    def gather(
        self, x: X, out: Out | None = None, root: int = 0, **how: Unpack[EitherBy]
    ) -> Out | Work[Out | None] | None: ...

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
                which they are joined along the first axis. Elsewhere it is not looked at.
            root: The rank that gets them.
            async_op: Return at once, with a Work.
            algorithm: What runs: a name or an algorithm of one's own; by default the fastest.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            On the root ``out``, or the new array; None elsewhere. With ``async_op`` a Work of it.

        Raises:
            UsageError: The arrays do not go together, or ``root`` is no rank.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.gather(np.full(2, comm.rank), root=0)
            array([0, 0, 1, 1])
        """
        call = self._gather
        return call(x, out, "sum", root, async_op, algorithm, timeout)

    @overload
    def scatter(
        self, x: X | None = None, out: Out | None = None, root: int = 0, **how: Unpack[WaitsBy]
    ) -> Out: ...

    @overload
    def scatter(
        self, x: X | None = None, out: Out | None = None, root: int = 0, **how: Unpack[QueuedBy]
    ) -> Work[Out]: ...

    @overload
    def scatter(
        self, x: X | None = None, out: Out | None = None, root: int = 0, **how: Unpack[EitherBy]
    ) -> Out | Work[Out]: ...

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
            async_op: Return at once, with a Work.
            algorithm: What runs: a name or an algorithm of one's own; by default the fastest.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            ``out``, or on the root a view of its part of ``x``; with ``async_op`` a Work of it.

        Raises:
            UsageError: ``x`` cannot be cut into ``size`` parts, ``out`` is no such part, or
                ``root`` is no rank.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.scatter(np.arange(4), np.empty(2, int), root=0)
            array([0, 1])
        """
        call = self._scatter
        return call(x, out, "sum", root, async_op, algorithm, timeout)

    @overload
    def barrier(self, async_op: Literal[False] = False, timeout: float | None = None) -> None: ...

    @overload
    def barrier(self, async_op: Literal[True], timeout: float | None = None) -> Work[None]: ...

    @overload
    def barrier(self, async_op: bool, timeout: float | None = None) -> Work[None] | None: ...

    def barrier(self, async_op: bool = False, timeout: float | None = None) -> Any:
        """Return once every rank has called it.

        Args:
            async_op: Return at once, with a Work.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            None; with ``async_op`` a Work of it.

        Raises:
            UsageError: ``timeout`` is no number of seconds.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.barrier(timeout=60)
            >>> comm.barrier(async_op=True).wait()
        """
        call = self._barrier
        return call(self._byte, None, "max", 0, async_op, None, timeout)

    @overload
    def plan(
        self,
        collective: Literal["allreduce", "broadcast"],
        x: Sequence[X],
        out: Sequence[Out] | None = None,
        op: OpName = "sum",
        root: int = 0,
        **how: Unpack[Bound],
    ) -> Plan[list[Out]]: ...

    @overload
    def plan(
        self,
        collective: Literal["reduce", "gather"],
        x: X,
        out: Out | None = None,
        op: OpName = "sum",
        root: int = 0,
        **how: Unpack[Bound],
    ) -> Plan[Out | None]: ...

    @overload
    def plan(
        self,
        collective: Literal[
            "allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "scatter"
        ],
        x: X | None = None,
        out: Out | None = None,
        op: OpName = "sum",
        root: int = 0,
        **how: Unpack[Bound],
    ) -> Plan[Out]: ...

    def plan(
        self,
        collective: str,
        x: Any = None,
        out: Any = None,
        op: OpName = "sum",
        root: int = 0,
        counts: Sequence[int] | None = None,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
        order: OrderName | None = None,
    ) -> Plan[Any]:
        """Bind a collective to its arrays, with all decisions taken: for calls that repeat.

        Args:
            collective: Name of the collective, which is that of its method.
            x: As the method takes it; the plan keeps it alive.
            out: As the method takes it; the plan keeps it alive.
            op: As the method takes it.
            root: As the method takes it.
            counts: Elements of every rank's block, where they differ, of "allgather" and
                "reduce_scatter"; alike on all ranks.
            algorithm: What runs: a name or an algorithm of one's own; by default the fastest.
            timeout: Seconds until a run of it fails; the communicator's by default.
            order: As the method takes it.

        Returns:
            The Plan: ``plan()`` makes the call, and returns what the method does.

        Raises:
            UsageError: There is no such collective, or the method would refuse the arguments.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> plan = comm.plan("allreduce", np.ones(2))
            >>> plan()
            array([2., 2.])
        """
        asked = algorithm if order is None else self._asked(algorithm, order)
        options = CallOptions(op, root, counts, asked, timeout)
        made = self._collectives.plan(collective, x, out, options)
        if self._checks is not None:
            self._checks.bound(made, collective, x, out, options)
        self._calls.bound(made, collective, x, out, options)
        return made

    @overload
    def allgatherv(
        self, x: X, counts: Sequence[int], out: Out | None = None, **how: Unpack[WaitsBy]
    ) -> Out: ...

    @overload
    def allgatherv(
        self, x: X, counts: Sequence[int], out: Out | None = None, **how: Unpack[QueuedBy]
    ) -> Work[Out]: ...

    @overload
    def allgatherv(
        self, x: X, counts: Sequence[int], out: Out | None = None, **how: Unpack[EitherBy]
    ) -> Out | Work[Out]: ...

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
            async_op: Return at once, with a Work.
            algorithm: What runs: a name or an algorithm of one's own; by default the fastest.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            ``out``, or the new array; with ``async_op`` a Work of it.

        Raises:
            UsageError: ``counts`` has no number for each rank, or the arrays are not of these
                lengths.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.allgatherv(np.full(comm.rank + 1, comm.rank), [1, 2])
            array([0, 1, 1])
        """
        options = CallOptions("sum", 0, counts, algorithm, timeout)
        return self._counted.by_counts("allgather", x, out, options, async_op)

    @overload
    def reduce_scatterv(
        self,
        x: X,
        counts: Sequence[int],
        out: Out | None = None,
        op: OpName = "sum",
        **how: Unpack[WaitsInOrder],
    ) -> Out: ...

    @overload
    def reduce_scatterv(
        self,
        x: X,
        counts: Sequence[int],
        out: Out | None = None,
        op: OpName = "sum",
        **how: Unpack[QueuedInOrder],
    ) -> Work[Out]: ...

    @overload
    def reduce_scatterv(
        self,
        x: X,
        counts: Sequence[int],
        out: Out | None = None,
        op: OpName = "sum",
        **how: Unpack[EitherInOrder],
    ) -> Out | Work[Out]: ...

    def reduce_scatterv(
        self,
        x: Any,
        counts: Sequence[int],
        out: Any = None,
        op: OpName = "sum",
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
        order: OrderName | None = None,
    ) -> Any:
        """Do what `reduce_scatter` does, with parts that are not equally long.

        Args:
            x: An array of ``sum(counts)`` elements.
            counts: Elements of every rank's part, alike on all ranks.
            out: Where this rank's ``counts[rank]`` elements go; a new flat array by default.
            op: "sum", "prod", "min", "max" or "avg".
            async_op: Return at once, with a Work.
            algorithm: What runs: a name or an algorithm of one's own; by default the fastest.
            timeout: Seconds until the call fails; the communicator's by default.
            order: "fixed": fold in the order of the ranks, so that the bits depend on nothing but
                their number; "free": as is fastest; by default as `init` was told.

        Returns:
            ``out``, or the new array; with ``async_op`` a Work of it.

        Raises:
            UsageError: ``counts`` has no number for each rank, or the arrays are not of these
                lengths.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.reduce_scatterv(np.arange(3.0), [2, 1])
            array([0., 2.])
        """
        asked = algorithm if order is None else self._asked(algorithm, order)
        options = CallOptions(op, 0, counts, asked, timeout)
        return self._counted.by_counts("reduce_scatter", x, out, options, async_op)

    @overload
    def alltoallv(
        self,
        x: Array,
        send_counts: Sequence[int],
        out: X,
        recv_counts: Sequence[int],
        **how: Unpack[Waits],
    ) -> X: ...

    @overload
    def alltoallv(
        self,
        x: Array,
        send_counts: Sequence[int],
        out: X,
        recv_counts: Sequence[int],
        **how: Unpack[Queued],
    ) -> Work[X]: ...

    @overload
    def alltoallv(
        self,
        x: Array,
        send_counts: Sequence[int],
        out: X,
        recv_counts: Sequence[int],
        **how: Unpack[Either],
    ) -> X | Work[X]: ...

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
            async_op: Return at once, with a Work.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            ``out``; with ``async_op`` a Work of it.

        Raises:
            UsageError: Counts have no number for each rank, the arrays are not of these lengths, or
                overlap.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.alltoallv(np.full(3, comm.rank), [1, 2], np.empty(2 + 2 * comm.rank, int),
            ...                [1 + comm.rank] * 2)
            array([0, 1])
        """
        return self._counted.alltoallv(x, send_counts, out, recv_counts, async_op, timeout)

    @overload
    def gatherv(
        self,
        x: X,
        counts: Sequence[int] | None = None,
        out: Out | None = None,
        root: int = 0,
        **how: Unpack[Waits],
    ) -> Out | None: ...

    @overload
    def gatherv(
        self,
        x: X,
        counts: Sequence[int] | None = None,
        out: Out | None = None,
        root: int = 0,
        **how: Unpack[Queued],
    ) -> Work[Out | None]: ...

    @overload
    def gatherv(
        self,
        x: X,
        counts: Sequence[int] | None = None,
        out: Out | None = None,
        root: int = 0,
        **how: Unpack[Either],
    ) -> Out | Work[Out | None] | None: ...

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
            async_op: Return at once, with a Work.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            On the root ``out``, or the new array; None elsewhere. With ``async_op`` a Work of it.

        Raises:
            UsageError: ``counts`` has no number for each rank, the arrays are not of these lengths,
                or ``root`` is no rank.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.gatherv(np.full(comm.rank + 1, comm.rank), [1, 2], root=0)
            array([0, 1, 1])
        """
        return self._counted.rooted("gatherv", x, counts, out, root, async_op, timeout)

    @overload
    def scatterv(
        self,
        x: X | None = None,
        counts: Sequence[int] | None = None,
        out: Out | None = None,
        root: int = 0,
        **how: Unpack[Waits],
    ) -> Out: ...

    @overload
    def scatterv(
        self,
        x: X | None = None,
        counts: Sequence[int] | None = None,
        out: Out | None = None,
        root: int = 0,
        **how: Unpack[Queued],
    ) -> Work[Out]: ...

    @overload
    def scatterv(
        self,
        x: X | None = None,
        counts: Sequence[int] | None = None,
        out: Out | None = None,
        root: int = 0,
        **how: Unpack[Either],
    ) -> Out | Work[Out]: ...

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
            async_op: Return at once, with a Work.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            ``out``, or on the root a flat view of its part of ``x``; with ``async_op`` a Work of
            it.

        Raises:
            UsageError: ``counts`` has no number for each rank, the arrays are not of these lengths,
                or ``root`` is no rank.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.scatterv(np.arange(3), [1, 2], np.empty(comm.rank + 1, int), root=0)
            array([0])
        """
        return self._counted.rooted("scatterv", x, counts, out, root, async_op, timeout)

    @overload
    def send(
        self, x: Array, to: int, async_op: Literal[False] = False, timeout: float | None = None
    ) -> None: ...

    @overload
    def send(
        self, x: Array, to: int, async_op: Literal[True], timeout: float | None = None
    ) -> Work[None]: ...

    @overload
    def send(
        self, x: Array, to: int, async_op: bool, timeout: float | None = None
    ) -> Work[None] | None: ...

    def send(self, x: Array, to: int, async_op: bool = False, timeout: float | None = None) -> Any:
        """Send an array to one rank; return once it may be written again.

        Args:
            x: The array, of any shape and of a dtype of fixed size.
            to: The rank that receives it.
            async_op: Return at once, with a Work.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            None; with ``async_op`` a Work of it.

        Raises:
            UsageError: ``x`` is no array, or ``to`` is no rank; or it is on a GPU, and nobody has
                called `cuda` yet.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> received = np.empty(2)
            >>> comm.recv(received, frm=1) if comm.rank == 0 else comm.send(np.ones(2), to=0)
            array([1., 1.])
        """
        call = self._send
        return call(x, to, async_op, timeout)

    @overload
    def recv(
        self, x: X, frm: int, async_op: Literal[False] = False, timeout: float | None = None
    ) -> X: ...

    @overload
    def recv(
        self, x: X, frm: int, async_op: Literal[True], timeout: float | None = None
    ) -> Work[X]: ...

    @overload
    def recv(self, x: X, frm: int, async_op: bool, timeout: float | None = None) -> X | Work[X]: ...

    def recv(self, x: Any, frm: int, async_op: bool = False, timeout: float | None = None) -> Any:
        """Receive the next message of one rank into an array.

        On GPUs what is called behind it waits for it, also with ``async_op``: ranks that receive
        from each other use `exchange`.

        Args:
            x: The array, of the length and dtype of the one that is sent.
            frm: The rank that sends it.
            async_op: Return at once, with a Work.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            ``x``; with ``async_op`` a Work of it.

        Raises:
            UsageError: ``x`` is no array that can be written, or ``frm`` is no rank; or it is on a
                GPU, and nobody has called `cuda` yet.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> work = comm.recv(np.empty(2), frm=1 - comm.rank, async_op=True)
            >>> comm.send(np.ones(2), to=1 - comm.rank)
            >>> work.wait()
            array([1., 1.])
        """
        call = self._recv
        return call(x, frm, async_op, timeout)

    @overload
    def exchange(
        self,
        sends: Iterable[tuple[Array, int]] = (),
        recvs: Iterable[tuple[X, int]] = (),
        **how: Unpack[Waits],
    ) -> list[X]: ...

    @overload
    def exchange(
        self,
        sends: Iterable[tuple[Array, int]] = (),
        recvs: Iterable[tuple[X, int]] = (),
        **how: Unpack[Queued],
    ) -> Work[list[X]]: ...

    @overload
    def exchange(
        self,
        sends: Iterable[tuple[Array, int]] = (),
        recvs: Iterable[tuple[X, int]] = (),
        **how: Unpack[Either],
    ) -> list[X] | Work[list[X]]: ...

    def exchange(
        self,
        sends: Iterable[tuple[Any, int]] = (),
        recvs: Iterable[tuple[Any, int]] = (),
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Send and receive messages that all move at once, so that no order of them can deadlock.

        Args:
            sends: Pairs of an array and the rank that receives it.
            recvs: Pairs of an array and the rank that sends it.
            async_op: Return at once, with a Work.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            The arrays of ``recvs``; with ``async_op`` a Work of them.

        Raises:
            UsageError: What is listed are no such pairs, or an array is received that another one
                overlaps; or they are on GPUs, and too many, or nobody has called `cuda` yet.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> me, peer = comm.rank, 1 - comm.rank
            >>> comm.exchange([(np.full(2, me), peer)], [(np.empty(2, int), peer)])
            [array([1, 1])]
        """
        call = self._exchange
        return call(sends, recvs, async_op, timeout)

    def broadcast_object(self, obj: Any = None, root: int = 0, timeout: float | None = None) -> Any:
        """Return the object of rank ``root`` on every rank.

        Args:
            obj: The object, on the root; elsewhere it is not looked at.
            root: The rank that has it.
            timeout: Seconds, for the pickle headers that go ahead and again for the objects.

        Returns:
            The object itself on the root, a copy of it elsewhere.

        Raises:
            UsageError: ``root`` is no rank, or see `Communicator` about objects.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.broadcast_object({"seed": comm.rank}, root=1)
            {'seed': 1}
        """
        return self._objects.broadcast(obj, root, timeout)

    def allgather_object(self, obj: T, timeout: float | None = None) -> list[T]:
        """Return the objects of all ranks on every rank.

        Args:
            obj: This rank's object.
            timeout: Seconds, for the pickle headers that go ahead and again for the objects.

        Returns:
            The objects, in order of rank.

        Raises:
            UsageError: See `Communicator` about objects.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.allgather_object(f"rank {comm.rank}")
            ['rank 0', 'rank 1']
        """
        return self._objects.allgather(obj, timeout)

    def gather_object(self, obj: T, root: int = 0, timeout: float | None = None) -> list[T] | None:
        """Return the objects of all ranks on rank ``root``.

        Args:
            obj: This rank's object.
            root: The rank that gets them.
            timeout: Seconds, for the pickle headers that go ahead and again for the objects.

        Returns:
            On the root the objects, in order of rank; None elsewhere.

        Raises:
            UsageError: ``root`` is no rank, or see `Communicator` about objects.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.gather_object(f"rank {comm.rank}", root=0)
            ['rank 0', 'rank 1']
        """
        return self._objects.gather(obj, root, timeout)

    def scatter_object(
        self, objs: Sequence[Any] | None = None, root: int = 0, timeout: float | None = None
    ) -> Any:
        """Give each rank one of the objects that rank ``root`` has.

        Args:
            objs: On the root, an object for each rank; elsewhere it is not looked at.
            root: The rank that has them.
            timeout: Seconds, for the pickle headers that go ahead and again for the objects.

        Returns:
            This rank's object.

        Raises:
            UsageError: ``objs`` is not one object for each rank, ``root`` is no rank, or see
                `Communicator` about objects.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.scatter_object(["first", "second"], root=0)
            'first'
        """
        return self._objects.scatter(objs, root, timeout)

    def split(self, color: int | None, key: int = 0, timeout: float | None = None) -> Self | None:
        """Return a communicator of the ranks that give the same color; every rank calls it.

        Args:
            color: Which of the new communicators this rank joins, any integer of 64 bits; None:
                none
                of them.
            key: Ranks there are in order of key, and of rank here where keys are equal.
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            The new communicator, or None if ``color`` is None.

        Raises:
            UsageError: ``color`` or ``key`` is no integer of 64 bits.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> with comm.split(color=comm.rank) as alone:
            ...     alone.size
            1
        """
        return self._groups.split(type(self), color, key, timeout)

    def revoke(self) -> None:
        """Break this communicator on every rank: calls under way end, and later ones raise.

        One rank calls it, say one that met an error of its own, so that the others do not wait for
        it until their timeout. They get a RevokedError. Other communicators of the same ranks go
        on, and of this one `shrink` makes another. One that is broken already stays as it is.

        Raises:
            ClosedError: This rank has closed it.

        Example:
            >>> part = comm.dup()
            >>> part.revoke()
            >>> try:
            ...     part.barrier()
            ... except pycoll.BrokenError as error:
            ...     print("called revoke()" in str(error))
            True
            >>> part.close()
        """
        self._engine.life.require_usable("revoke")
        self._engine.failure.revoke("revoke()")

    def shrink(self, timeout: float | None = None) -> Self:
        """Return a communicator of the ranks that live; each of them calls this.

        Call it once a call has raised: it breaks this communicator on the other ranks, too, as
        `revoke` does. The ranks keep their order. Who is proved dead is left out, however many that
        are; who only does not come in time, if the others are more than half of the ranks, or half
        of them with the lowest. All who get a communicator get the same one.

        What was made of this communicator (plans, GPU memory) stays its own, and arrays of `empty`
        keep what is in them. Close it when you like. A communicator is shrunk once.

        Args:
            timeout: Seconds that a rank may take to come; the communicator's by default.

        Returns:
            The new communicator, whose timeout and selector are those of this one.

        Raises:
            LostError: The others went on without this rank, or too few have come.
            UsageError: ``timeout`` is no number of seconds, or this was called before.
            ClosedError: This rank has closed the communicator, perhaps meanwhile.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> with comm.dup() as broken, broken.shrink() as smaller:
            ...     smaller.size  # nobody has died
            2
        """
        return self._groups.shrink(type(self), timeout)

    def grow(self, n: int, address: str | None = None, timeout: float | None = None) -> Self:
        """Return a communicator of these ranks and of `n` new processes; every rank calls it.

        The new processes call `pycoll.join`, before or after that. These ranks keep their numbers,
        and this communicator stays usable. A process that has died is replaced by
        ``comm.shrink().grow(1)``.

        Args:
            n: How many come.
            address: Where rank 0 listens meanwhile, "host:port", or several with commas between
                them, of which it takes that of its own host; PYCOLL_JOIN_ADDRESS by default.
            timeout: Seconds to wait for the newcomers; the communicator's by default.

        Returns:
            The new communicator; newcomers have its last `n` ranks.

        Raises:
            UsageError: `n` is no number of ranks, or there is no address, or no PYCOLL_SECRET for
                one that other machines reach; or a newcomer has another selector.
            MismatchError: The ranks give another `n`, or address.
            CollectiveTimeout: Too few came in time. Nothing has changed, on any rank.
            PeerLostError: A newcomer, or a rank, died meanwhile.
            BootstrapError: Rank 0 cannot listen there.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> larger = comm.grow(1, address="node7:29500")  # doctest: +SKIP
        """
        return self._groups.grow(type(self), n, address, timeout)

    def dup(self, timeout: float | None = None) -> Self:
        """Return another communicator of the same ranks; every rank calls it.

        Args:
            timeout: Seconds until the call fails; the communicator's by default.

        Returns:
            The new communicator.

        Raises:
            UsageError: ``timeout`` is no number of seconds.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> with comm.dup() as other:
            ...     other.allreduce(np.ones(1))
            array([2.])
        """
        return self._groups.dup(type(self), timeout)

    @overload
    def empty(
        self,
        shape: int | Iterable[int],
        dtype: DTypeLike = "float64",
        device: Literal["cpu"] = "cpu",
    ) -> NDArray[Any]: ...

    @overload
    def empty(
        self, shape: int | Iterable[int], dtype: Any = "float64", *, device: Literal["cuda"]
    ) -> Any: ...

    def empty(
        self,
        shape: int | Iterable[int],
        dtype: Any = "float64",
        device: Literal["cpu", "cuda"] = "cpu",
    ) -> Any:
        """Return an array in memory that the other ranks can reach: no copy on the way.

        Its elements have no set value. The memory is freed with the last reference to it.

        Args:
            shape: A length or lengths.
            dtype: Of the elements, which are a fixed number of bytes.
            device: "cpu" for an array of numpy; "cuda" for one in the memory of this communicator's
                GPU, of cupy where that is installed, else a small class of its own. The first call
                for a GPU is made by all ranks, see `cuda`.

        Returns:
            The array.

        Raises:
            UsageError: An argument is none of these.
            UnavailableError: There is no memory for it, or no GPU.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> x = comm.empty((2, 3), "float32")
            >>> x.shape, x.dtype
            ((2, 3), dtype('float32'))
        """
        self._engine.life.require_usable("empty")
        if _on_host(device, "empty"):
            return self._engine.heap.empty(shape, dtype)
        return self._collectives.launch.on(device, "empty").empty(shape, dtype)

    def cuda(self, device: int | None = None, timeout: float | None = None) -> Gpu:
        """Make ready for arrays in the memory of GPUs; all ranks call it.

        The first collective with such an array does so by itself; `send`, `recv` and `exchange`,
        which not all ranks may call, want it done. What is set up here is memory on the GPU and
        ways to the memory of the other ranks' GPUs.

        Args:
            device: Number of this rank's GPU, as CUDA counts; by default the current one of torch
                or cupy, where one is loaded, else one for each rank of a host in turn.
            timeout: Seconds until all ranks have called it.

        Returns:
            What the communicator has there, such as its ``stream``.

        Raises:
            UsageError: ``device`` is no number of a GPU, or the communicator's is another.
            UnavailableError: On some rank there is no GPU, or what it needs is missing; on all.
            PycollError: What any call raises, see `Communicator`.

        Example:
            >>> comm.cuda().stream  # doctest: +SKIP
        """
        self._engine.life.require_usable("cuda")
        return self._collectives.launch.cuda.describe(device, check_timeout("cuda", timeout))

    def on_stream(self, stream: object) -> AbstractContextManager[None]:
        """Enqueue calls on a stream, whatever is current for the arrays: for a ``with`` block.

        Args:
            stream: Of torch or cupy, anything with `__cuda_stream__`, or CUDA's handle, an integer.

        Returns:
            What a ``with`` statement takes.

        Raises:
            UsageError: ``stream`` is none of these.
            ClosedError: The communicator is closed.

        Example:
            >>> with comm.on_stream(stream):  # doctest: +SKIP
            ...     comm.allreduce(x)
        """
        self._engine.life.require_usable("on_stream")
        return self._collectives.launch.cuda.streams.on_stream(stream)

    def explain(
        self,
        collective: str,
        nbytes: int,
        device: Literal["cpu", "cuda"] = "cpu",
        order: OrderName | None = None,
    ) -> Explanation:
        """Say which algorithm would run, and what was predicted or measured of all of them.

        Args:
            collective: Name of the collective.
            nbytes: Bytes of the whole message: of all blocks, where every rank has one.
            device: What memory the arrays lie in: "cpu" or, after `cuda` or a first call with an
                array there, "cuda".
            order: As a reduction takes it; with "fixed" it says what the free choice would take,
                too.

        Returns:
            An Explanation; ``str()`` of it is a table.

        Raises:
            UsageError: There is no such collective, ``nbytes`` is no integer of at least 0, or
                there
                is no such device.
            ClosedError: The communicator is closed.

        Example:
            >>> comm.explain("allreduce", nbytes=8).choice.algorithm
            'one_shot'
        """
        self._engine.life.require_usable("explain")
        if not isinstance(collective, str):
            raise UsageError(f"explain: collective is {quoted(collective)}, want a name")
        wanted = None if order is None else require_order("explain", order)
        on_host, count = _on_host(device, "explain"), _length(nbytes)
        if on_host:
            return self._engine.selection.explain(collective, count, wanted)
        return self._collectives.launch.on(device, "explain").explain(collective, count, wanted)

    def register_profiler(self, callback: Callable[[CallEvent], object]) -> Profiler:
        """Have a function told before and after each call of this communicator, by this rank.

        Those of communicators that are made of it are not told; `pycoll.register_profiler` is for
        all, and says what a callback may do. While there is one, calls take longer.

        Args:
            callback: Takes a `CallEvent`.

        Returns:
            The Profiler; `Profiler.close` ends it.

        Raises:
            UsageError: ``callback`` is nothing that can be called.
            ClosedError: The communicator is closed.

        Example:
            >>> with comm.register_profiler(lambda event: print(event.phase, event.sequence)):
            ...     comm.barrier()
            begin 1
            end 1
        """
        return self._calls.register(callback)

    def stats(self) -> Stats:
        """Return what this rank has counted on this communicator since it was made.

        Returns:
            `Stats`: calls and bytes by collective and algorithm, waits, bytes by rail, connections.
            Calls of arrays on a GPU are counted by the communicator of the GPU alone.

        Raises:
            ClosedError: The communicator is closed.

        Example:
            >>> before = comm.stats().calls
            >>> comm.barrier()
            >>> comm.stats().calls - before
            1
        """
        self._engine.life.require_usable("stats")
        return self._engine.recorder.stats()

    def record(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return the last calls of all communicators of this process, and write them.

        It is no call: ranks may differ in it. What is in a record, and what `pycoll trace` makes of
        those of all ranks, is in docs/trace.md. With the setting PYCOLL_RECORD one is written when
        a communicator breaks, and on SIGUSR1.

        Args:
            path: A file to write it to as JSON, or a directory that is there, in which it is
                called ``pycoll-record.JOB.RANK.json``.

        Returns:
            What a file holds.

        Raises:
            UsageError: The file cannot be written.
            ClosedError: The communicator is closed.

        Example:
            >>> comm.barrier()
            >>> record = comm.record()
            >>> record["comms"][0]["events"][-1]["call"]
            'barrier'
        """
        from pycoll.runtime.record.triggers import recorded

        self._engine.life.require_usable("record")
        return recorded("record()", path)

    def close(self) -> None:
        """Finish queued work, take leave of the other ranks and free everything.

        It waits for no rank. What is called on the communicator afterwards is ClosedError.

        Raises:
            UsageError: Another thread is inside a call on this communicator.

        Example:
            >>> other = comm.dup()
            >>> other.close()
        """
        self._engine.close()

    def _asked(self, algorithm: Any, order: object) -> Any:
        """Return what plans are found by; the order by itself is not looked at here.

        Then a call that is refused for it has begun, and counts.
        """
        same = isinstance(order, str) and order == self._order
        return algorithm if same else Ordered(algorithm, order)

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
