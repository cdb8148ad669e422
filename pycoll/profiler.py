"""Profilers: callbacks that are told before and after each call.

Where none is registered nothing here is part of a call. To register one puts a function of Python
in front of each of the things by which the methods of a `Communicator` make their calls; when the
last is closed, what was there before is there again.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self

from pycoll import log
from pycoll.errors import UsageError, described, quoted
from pycoll.runtime.plan.options import Ordered

if TYPE_CHECKING:
    from pycoll.arrays.view import ArrayView
    from pycoll.runtime.plan.options import CallOptions
    from pycoll.runtime.plan.persistent import Plan


class CallEvent(NamedTuple):
    """What a profiler is told, before a call and after it.

    Attributes:
        phase: "begin" or "end"; both have the same `sequence`, and the same of all else that the
            first knows.
        collective: Name of the method, such as "allreduce", "send" or "broadcast_object".
        sequence: Number of the call, from 1, since this communicator had its first profiler.
            Collectives are counted by themselves, alike on ranks that registered at the same
            call; `send`, `recv` and `exchange` likewise.
        nbytes: Of the arrays that this rank gives; of those that it gets, where it gives none.
            None: it is not known, as of objects, or they are no arrays.
        dtype: Of their elements, such as "float32"; None likewise.
        op: "sum", ..., of a reduction.
        root: Of a collective that has one.
        peer: The other rank, of `send` and `recv`.
        device: "cpu", or such as "cuda:0"; None: not known.
        algorithm: What runs: where the user named it at the beginning, else at the end of a call
            on the host; None: not known.
        order: In which a reduction folds, "fixed" or "free": as this call asks, or else its
            communicator.
        communicator: Its name, alike on its ranks: "job", or such as "split 1 #7d3c..".
        rank: Of this process in it.
        size: How many ranks it has.
        error: What the call raises; None before it has ended, and if nothing went wrong.
    """

    phase: Literal["begin", "end"]
    collective: str
    sequence: int
    nbytes: int | None
    dtype: str | None
    op: str | None
    root: int | None
    peer: int | None
    device: str | None
    algorithm: str | None
    order: str | None
    communicator: str
    rank: int
    size: int
    error: BaseException | None = None


class Profiler:
    """A callback that is registered, until it is closed.

    Example:
        >>> with pycoll.register_profiler(print):
        ...     pass
    """

    def __init__(self, callback: Callable[[CallEvent], object]) -> None:
        self._callback = callback
        self._closed = False

    def close(self) -> None:
        """Tell it of nothing more, and let calls be as they were without it.

        Calls that are under way are not told of any more either. It may be called by any thread,
        from within a callback, and twice.

        Example:
            >>> profiler = comm.register_profiler(print)
            >>> profiler.close()
        """
        self._closed = True
        with _lock:
            if self in _everywhere:
                _everywhere.remove(self)
            for calls in list(_open):
                calls.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _tell(self, event: CallEvent) -> None:
        """Call it. What it raises ends it and not the call, which other ranks make, too."""
        if self._closed:
            return
        try:
            self._callback(event)
        except Exception as error:
            self.close()
            import traceback  # slow to load, and needed by nobody else

            text = "a profiler raised, and is closed: %s"
            log.warning("profiler", text, described(error))
            if sys.stderr is not None:  # as `logging` does with what its handlers raise
                print("pycoll: a profiler raised, and is closed:", file=sys.stderr)
                traceback.print_exception(error)


def register_profiler(callback: Callable[[CallEvent], object]) -> Profiler:
    """Have a function told before and after each call of all communicators of this process.

    Also of those that are made later. It is called in the thread that makes the call, or that
    finds out that a call with ``async_op`` has ended, and the call waits for it. What it raises is
    shown on standard error and closes it. It makes no calls itself: other ranks would have to
    make them, too.

    Args:
        callback: Takes a `CallEvent`.

    Returns:
        The Profiler; `Profiler.close` ends it.

    Raises:
        UsageError: ``callback`` is nothing that can be called.

    Example:
        >>> seen = []
        >>> with pycoll.register_profiler(seen.append):
        ...     x = comm.allreduce(np.ones(2), algorithm="ring")
        >>> [(event.phase, event.collective, event.nbytes, event.dtype) for event in seen]
        [('begin', 'allreduce', 16, 'float64'), ('end', 'allreduce', 16, 'float64')]
    """
    made = Profiler(_callable(callback))
    with _lock:
        _everywhere.append(made)
        for calls in list(_open):
            calls.add(made)
    return made


def _callable(callback: Callable[[CallEvent], object]) -> Callable[[CallEvent], object]:
    if not callable(callback):
        raise UsageError(
            f"register_profiler: callback is {quoted(callback)}, want a function of a CallEvent"
        )
    return callback


_lock = threading.RLock()  # reentrant: a finalizer may close one anywhere
_everywhere: list[Profiler] = []  #: of all communicators
_open: weakref.WeakSet[Calls] = weakref.WeakSet()
_inside = threading.local()  #: ``told``: this thread is in a callback


def _forked() -> None:
    """Free a child of a lock whose owner exists in the parent only."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forked)


class Shortcut(Protocol):
    """Something beside the communicator that makes its calls by native code."""

    def detour(self, on: bool) -> None:
        """Leave all calls to the methods of the communicator, or do so no more."""


class Asked(NamedTuple):
    """What is known of a call from its arguments, none of which has been checked."""

    collective: str
    given: Any = None  #: an array, a list of them; None: there is none
    out: Any = None
    op: Any = None
    root: Any = None
    peer: Any = None
    algorithm: Any = None
    order: Any = None  #: None: the communicator's
    message: bool = False  #: it is not made by all ranks


_REDUCING = ("allreduce", "reduce", "reduce_scatter")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_NATIVE = (*_REDUCING, "broadcast", "allgather", "alltoall", "gather", "scatter")


class Calls:
    """The calls of one communicator, and the profilers that see them.

    Args:
        comm: The communicator, which holds this.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = weakref.ref(comm)
        self._engine = comm._engine
        self._name = comm._engine.bootstrap.label
        self._place = comm.rank, comm.size
        self._order = comm._order
        self._checks = comm._checks  #: what looks at its results; None: nothing does
        self._profilers: tuple[Profiler, ...] = ()
        self._plain: dict[str, Any] = {}  #: attributes of the communicator as they are otherwise
        self._plans: weakref.WeakKeyDictionary[Plan, Asked] = weakref.WeakKeyDictionary()
        self._launches: weakref.WeakKeyDictionary[Plan, tuple[Any, Any]]
        self._launches = weakref.WeakKeyDictionary()  #: of plans: what was there, what is now
        self._shortcuts: weakref.WeakSet[Shortcut] = weakref.WeakSet()
        self._collectives, self._messages = itertools.count(1), itertools.count(1)
        with _lock:
            _open.add(self)
            for profiler in _everywhere:
                self.add(profiler)

    def register(self, callback: Callable[[CallEvent], object]) -> Profiler:
        """See `Communicator.register_profiler`."""
        self._engine.life.require_usable("register_profiler")
        made = Profiler(_callable(callback))
        with _lock:
            self.add(made)
        return made

    def add(self, profiler: Profiler) -> None:
        """Have a profiler see the calls; under the lock."""
        comm = self._comm()
        if comm is None:
            return
        self._profilers += (profiler,)
        if not self._plain:
            self._put_in_front(comm)

    def remove(self, profiler: Profiler) -> None:
        """Have it see them no more; under the lock."""
        if profiler not in self._profilers:
            return
        self._profilers = tuple(one for one in self._profilers if one is not profiler)
        if not self._profilers:
            self._take_away()

    def shortcut(self, way: Shortcut) -> None:
        """Have something that calls native code by itself leave that while there are profilers."""
        with _lock:
            self._shortcuts.add(way)
            if self._plain or self._checks is not None:
                way.detour(True)

    def bound(self, plan: Plan, collective: str, x: Any, out: Any, options: CallOptions) -> None:
        """Note what a plan was made of, whose runs are calls."""
        asked = _asked_of(collective, x, out, options.op, options.root, options.algorithm)
        with _lock:
            self._plans[plan] = asked
            if self._plain:
                self._see_plan(plan, asked)

    def _put_in_front(self, comm: Any) -> None:
        front = dict(_fronts(comm, self._see))
        self._plain = {name: getattr(comm, name) for name in front}
        vars(comm).update(front)
        for plan, asked in list(self._plans.items()):
            self._see_plan(plan, asked)
        for way in list(self._shortcuts):
            way.detour(True)

    def _take_away(self) -> None:
        if comm := self._comm():
            vars(comm).update(self._plain)
        self._plain = {}
        for plan, (before, now) in list(self._launches.items()):
            if plan._launch is now:  # else the communicator is closed, and the plan refuses
                plan._launch = before
        self._launches.clear()
        for way in list(self._shortcuts):
            way.detour(self._checks is not None)

    def _see(self, call: Callable[..., Any], asks: Callable[..., Asked]) -> Callable[..., Any]:
        """Return what tells the profilers of a call, and makes it."""
        from pycoll.runtime.work import Work

        def run(*args: Any) -> Any:
            if getattr(_inside, "told", False):  # a callback makes it
                return call(*args)
            ended = self._begin(asks(*args))
            try:
                result = call(*args)
            except BaseException as error:
                ended(error)
                raise
            if isinstance(result, Work):
                result._tell_end(ended)
            else:
                ended(at_once=True)
            return result

        return run

    def _see_plan(self, plan: Plan, asked: Asked) -> None:
        before, known = plan._launch, asked._replace(algorithm=plan.algorithm)
        this = weakref.ref(plan)  # weak: what is made here is the plan's

        def launch() -> Any:
            held = this()
            assert held is not None  # it is being called
            return held._finished(before())

        now = self._see(launch, lambda: known)
        self._launches[plan] = before, now
        plan._launch = now

    def _begin(self, asked: Asked) -> Callable[..., None]:
        """Tell that a call begins; return what tells that it has ended."""
        given, out = _views(asked.given), _views(asked.out)
        views = [*given, *out]
        number = next(self._messages if asked.message else self._collectives)
        nbytes, dtype, device = _summary(given or out, asked)
        named = getattr(asked.algorithm, "name", asked.algorithm)
        event = CallEvent(
            phase="begin",
            collective=asked.collective,
            sequence=number,
            nbytes=nbytes,
            dtype=dtype,
            op=_known(asked.op, str),
            root=_known(asked.root, int),
            peer=_known(asked.peer, int),
            device=device,
            algorithm=_known(named, str),
            order=self._order_of(asked),
            communicator=self._name,
            rank=self._place[0],
            size=self._place[1],
        )
        profilers = self._profilers
        _tell_all(profilers, event)

        def ended(error: BaseException | None = None, at_once: bool = False) -> None:
            by = event.algorithm
            if at_once and device == "cpu" and not asked.message:
                by = self._ran(views) or by
            _tell_all(profilers, event._replace(phase="end", error=error, algorithm=by))

        return ended

    def _order_of(self, asked: Asked) -> str | None:
        if asked.op is None:
            return None
        known: str | None = _known(asked.order, str)
        return self._order if asked.order is None else known

    def _ran(self, views: list[ArrayView | None]) -> str | None:
        """Return the algorithm of the host's last call, which is over."""
        if self._engine.life.over:  # a signal handler has closed it meanwhile
            return None
        failure = self._engine.failure
        plan = self._checks.ran if self._checks is not None else None
        if plan is None:
            plan = failure.plans.get(failure.statuses.own().signature)
        holds = self._engine.heap.holds
        mapped = all(view is not None and holds(view.address, view.nbytes) for view in views)
        direct: str | None = getattr(plan, "direct", None)
        found: str | None = getattr(plan, "algorithm", None)
        return direct if direct and mapped and views else found


def _tell_all(profilers: tuple[Profiler, ...], event: CallEvent) -> None:
    _inside.told = True
    try:
        for profiler in profilers:
            profiler._tell(event)
    finally:
        _inside.told = False


def _fronts(
    comm: Any, see: Callable[[Callable[..., Any], Callable[..., Asked]], Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the attributes by which a communicator makes its calls, with what is to be in front."""
    for name in _NATIVE:
        yield f"_{name}", see(getattr(comm, f"_{name}"), _asks(name))
    yield "_barrier", see(comm._barrier, lambda *_: Asked("barrier", []))
    yield "_send", see(comm._send, lambda x, to, *_: Asked("send", x, peer=to, message=True))
    yield "_recv", see(comm._recv, lambda x, frm, *_: Asked("recv", x, peer=frm, message=True))
    yield "_exchange", see(comm._exchange, _asked_of_exchange)
    yield (
        "_together",
        see(
            comm._together,
            lambda what, found, root, *_: Asked(what, [v.owner for v in found.views], root=root),
        ),
    )
    counted, objects = comm._counted, comm._objects
    yield (
        "_counted",
        SimpleNamespace(
            by_counts=see(
                counted.by_counts,
                lambda name, x, out, options, *_: _asked_of(
                    name, x, out, options.op, None, options.algorithm
                )._replace(collective=f"{name}v"),
            ),
            alltoallv=see(counted.alltoallv, lambda x, sent, out, *_: Asked("alltoallv", x, out)),
            rooted=see(
                counted.rooted,
                lambda name, x, counts, out, root, *_: Asked(name, x, out, root=root),
            ),
        ),
    )
    yield (
        "_objects",
        SimpleNamespace(
            broadcast=see(objects.broadcast, lambda _, root, *more: _object("broadcast", root)),
            allgather=see(objects.allgather, lambda *_: _object("allgather")),
            gather=see(objects.gather, lambda _, root, *more: _object("gather", root)),
            scatter=see(objects.scatter, lambda _, root, *more: _object("scatter", root)),
        ),
    )


def _asks(name: str) -> Callable[..., Asked]:
    def asked(
        x: Any, out: Any, op: Any, root: Any, async_op: Any, algorithm: Any, timeout: Any
    ) -> Asked:
        return _asked_of(name, x, out, op, root, algorithm)

    return asked


def _asked_of(name: Any, x: Any, out: Any, op: Any, root: Any, algorithm: Any) -> Asked:
    reduces, rooted, order = name in _REDUCING, name in _ROOTED, None
    if isinstance(algorithm, Ordered):
        algorithm, order = algorithm.algorithm, algorithm.order
    return Asked(
        name,
        x,
        out,
        op=op if reduces else None,
        root=root if rooted else None,
        algorithm=algorithm,
        order=order,
    )


def _asked_of_exchange(sends: Any, recvs: Any, *_: Any) -> Asked:
    listed = [pairs for pairs in (sends, recvs) if isinstance(pairs, list | tuple)]
    pairs = [pair for one in listed for pair in one]
    known = len(listed) == 2 and all(isinstance(pair, tuple) and pair for pair in pairs)
    # A generator is left alone: it can be read once.
    return Asked("exchange", [pair[0] for pair in pairs] if known else None, message=True)


def _object(name: str, root: Any = None) -> Asked:
    return Asked(f"{name}_object", root=root)


def _known(value: Any, kind: type) -> Any:
    """Return what a user gave where it is what it should be; it has not been checked yet."""
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _arrays(given: Any) -> Iterator[Any]:
    if isinstance(given, list | tuple):
        yield from given
    elif given is not None:
        yield given


def _views(given: Any) -> list[ArrayView | None]:
    """Look at arrays; None is one that cannot be looked at, which the call will refuse."""
    from pycoll.arrays import families

    found: list[ArrayView | None] = []
    for x in _arrays(given):
        try:
            found.append(families.look(x, "x"))
        except Exception:  # an object's own methods may raise anything
            found.append(None)
    return found


def _summary(
    views: list[ArrayView | None], asked: Asked
) -> tuple[int | None, str | None, str | None]:
    """Return the bytes of arrays, their dtype and their device."""
    known = [view for view in views if view is not None]
    if len(known) < len(views) or (asked.given is None and asked.out is None):
        return None, None, None
    dtypes = {view.dtype.name for view in known}
    devices = {"cpu" if v.device.kind == "cpu" else str(v.device) for v in known} or {"cpu"}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    return sum(v.nbytes for v in known), dtype, devices.pop() if len(devices) == 1 else None
