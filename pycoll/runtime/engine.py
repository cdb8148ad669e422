"""Engine: one rank's native communicator, from joining to closing, and its waits."""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pycoll.arrays import driver
from pycoll.bootstrap import Bootstrap
from pycoll.bootstrap.control_loop import CLOSED, EXITED
from pycoll.config import Config
from pycoll.errors import (
    BrokenError,
    BusyError,
    ClosedError,
    MismatchError,
    PeerLostError,
    PycollError,
    UsageError,
    described,
    quoted,
)
from pycoll.runtime.call_site import amid
from pycoll.runtime.failure import TOLD, Faults
from pycoll.runtime.host.heap import Heap
from pycoll.runtime.host.side import SLICE_SECONDS, HostSide
from pycoll.runtime.join import World, join
from pycoll.runtime.native import bindings, codes, load
from pycoll.runtime.net.connections import Connections
from pycoll.runtime.plan.agreement import Agreement, Selector, agree

if TYPE_CHECKING:
    from pycoll.runtime.plan.selection import Selection

T = TypeVar("T")

#: Of messages the peer, as the user gave it, and whether they are sent.
Lanes = Iterable[tuple[Any, bool]]

#: A rank that has waited this long says what it is doing; large messages take milliseconds anyway.
_QUIET_SECONDS = 0.01
_MAX_SECONDS = 86400  #: of a timeout
_LISTED = 8  #: ranks of a communicator that a text lists
#: How long leaving waits for threads that are about to leave a wait.
_LEAVE_SECONDS = 1.0
#: How long a board waits for whoever takes a communicator away; then it says nothing of others.
_LOOK_SECONDS = 0.5
#: Finished works that nobody waits for are kept, with their arrays, until there are so many.
_FEW = 8


class Pending(Protocol):
    """Work that has been started, and that nobody has waited for."""

    def done(self) -> bool:
        """Tell whether it has ended."""

    def exception(self) -> PycollError | None:
        """Wait until it has ended; return what went wrong."""


class Revocable(Protocol):
    """Something that holds pointers into the engine, and lets go of them."""

    def revoke(self, refuse: Callable[..., Any]) -> None:
        """Never use the engine again: calls go to ``refuse``, which raises."""


class Side(Protocol):
    """What runs the calls of a communicator: threads of the host, or a GPU."""

    @property
    def faults(self) -> Callable[..., Faults]:
        """Return what makes the object that knows of failures."""

    def refuse(self) -> int | None:
        """Count a call that was refused; return its number, None if there are no more calls."""

    def calls(self) -> int:
        """Return how many calls this rank has finished, or launched."""

    def busy(self) -> bool:
        """Tell whether something runs that no thread of the host is inside of."""

    def wait(self, work: Any, seconds: float) -> int | None:
        """Wait for native work for a moment, at most so long; return its code, or None."""

    def inside(self) -> bool:
        """Tell whether other threads are in `wait`, which return as soon as the work has ended."""

    def drain(self) -> None:
        """Wait until all that was launched has ended."""

    def shut(self, reason: str) -> None:
        """Give back what the engine does not know of: it leaves."""


class Engine:
    """One rank's side of a communicator. Communicator is what users hold.

    Args:
        bootstrap: The ranks.
        config: Its settings.
        selector: What the user gave to choose algorithms by.
        settled: What the ranks have agreed on, in place of `selector`.
        side: Makes what runs the calls, from the native communicator and its ranks.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        config: Config,
        selector: Selector | str | None = None,
        settled: Agreement | None = None,
        side: Callable[[Any, World], Side] = HostSide,
    ) -> None:
        self.timeout = config.timeout
        self.bootstrap = bootstrap
        self.cache = config.cache
        self._config = config
        self._closed = False
        self._parent = 0  #: in the child of a fork, the process that the communicator belongs to
        self._pid = os.getpid()
        self._waiter = 0  #: the thread that waits for an unfinished call
        self._revocable: weakref.WeakSet[Revocable] = weakref.WeakSet()
        self._handles: weakref.WeakSet[Any] = weakref.WeakSet()
        self._pending: set[Pending] = set()
        self._followers: list[Engine] = []
        self._many = _FEW  #: pending works at which to look which are finished
        self.world: World
        self.world, self.comm = join(bootstrap, config)
        self.number = bindings.comm_number(self.comm)
        #: Starts cached plans without Python's help; `Plans` fills it.
        self.launcher = load.fastcall.Launcher(self.number, self.timeout)
        self.heap = Heap(self.comm)
        self.side = side(self.comm, self.world)
        self.faults = self._faults()
        try:
            #: What calls choose their algorithms by.
            self._settled = settled or agree(bootstrap, self.world, config, selector)
            bootstrap.control.attach(
                self.faults.on_lost, self.faults.on_abort, self.faults.boards.said
            )
            self.links = Connections(self.comm, bootstrap, self.world, config, self.faults)
        except BaseException:
            bootstrap.close()  # behind it no callback runs on what is freed here
            self.heap.close()  # which owns the native communicator
            raise
        _open(self)

    @cached_property
    def selection(self) -> Selection:
        """How calls choose their algorithms."""
        # Loaded at the first plan: it brings every algorithm, and joining shall be quick.
        from pycoll.runtime.plan.selection import Selection

        return Selection(self.world, self._settled)

    def group(self, ranks: list[int], key: str) -> Engine:
        """Return an engine of some of the ranks; each of them calls this."""
        return self.found(ranks, key, Engine)

    def found(self, ranks: list[int], key: str, make: Callable[..., T]) -> T:
        """Return what ``make`` makes of some of the ranks, which have all made a call for it.

        Raises:
            PycollError: What broke this communicator meanwhile; PeerLostError if a rank has died.
        """
        try:
            return self._form(ranks, key, make, self._config)
        except PycollError:
            self.faults.bereave(key.partition(" ")[0])
            raise

    def apart(self, ranks: list[int], key: str, config: Config) -> Engine:
        """Return an engine of some of the ranks with settings of its own, without a call on this.

        Those that are left may go on so: only what breaks this communicator meanwhile fails it. A
        death among its own ranks it hears of by itself. No failure of this one is raised in its
        place, since any thread may call this: that is kept for whoever calls on this one next.
        """
        return self._form(ranks, key, Engine, config, {*self.faults.causes(), *ranks})

    def _form(
        self,
        ranks: list[int],
        key: str,
        make: Callable[..., T],
        config: Config,
        but: Container[int] = (),
    ) -> T:
        bootstrap = self.bootstrap.group(ranks, key)
        try:
            with self.faults.forming(bootstrap.control, but):
                return make(bootstrap, config, settled=self._settled)
        except BaseException:
            bootstrap.close()
            raise

    def follow(self, engine: Engine) -> None:
        """Close, and leave, with another engine, which belongs to the same communicator.

        What is launched here on a GPU counts in `places` of both.
        """
        engine._followers.append(self)
        bindings.comm_follow(self.comm, engine.comm)

    # Calls.

    def call(self, plan: Any, x: int, out: int, timeout: float | None = None) -> None:
        """Run a plan on the arrays at two addresses, to its end."""
        seconds = self.timeout if timeout is None else timeout
        try:
            code = bindings.run(self.comm, plan, x, out, seconds)
            if code:
                self.finish(code, seconds)
        except BaseException as error:
            self.interrupted(error)
            raise

    def finish(self, code: int, timeout: float | None = None) -> None:
        """Carry a call that gave ``code`` instead of a result to its end, or raise."""
        if code == codes.AGAIN:
            self._waiter = threading.get_ident()
            code = bindings.resume(self.comm, _QUIET_SECONDS)
            while code == codes.AGAIN:
                self.faults.describe()
                self.faults.look()
                code = bindings.resume(self.comm, SLICE_SECONDS)
            self._waiter = 0
        if code:
            self.faults.raise_for(code, self.timeout if timeout is None else timeout)

    def finish_on(self, code: int, *arrays: Any) -> None:
        """Carry a call on buffers to its end; meanwhile no other thread can resize them."""
        held = [memoryview(array) for array in arrays if array is not None]
        try:
            self.finish(code)
        finally:
            for view in held:
                view.release()

    def finish_transfer(self, code: int, timeout: float) -> None:
        """Carry a transfer, which is on no board, to its end, or raise."""
        if code == codes.AGAIN:
            self._waiter = threading.get_ident()
            while code == codes.AGAIN:
                code = bindings.resume(self.comm, SLICE_SECONDS)
            self._waiter = 0
        if code:
            self.faults.raise_for(code, timeout)

    def interrupted(self, error: BaseException) -> None:
        """Break the communicator if ``error`` left a call unfinished in this thread."""
        if amid(self):  # the call that is unfinished is another one, which goes on
            return
        mine = self._waiter in (0, threading.get_ident())
        if mine and not (self._closed or self._parent):
            self._waiter = 0
            self.faults.interrupted(error)

    def places(self) -> int:
        """Return how many calls and messages of this rank have taken their places."""
        return 0 if self._closed else bindings.comm_op_count(self.comm)

    def noted(self, launch: Callable[[], Any]) -> Callable[[], Any]:
        """Return ``launch`` so that it notes `places` first; what is native does so by itself."""
        native = isinstance(launch, load.fastcall.Plan)
        comes = self.launcher.comes

        def start() -> Any:
            comes()
            return launch()

        return launch if native else start

    def refused(self, what: str, error: BaseException, before: int | None = None) -> None:
        """See to a call that ``error`` ended, wherever it had got to; called by its method.

        A call that was unfinished breaks the communicator. One that had not begun takes its place
        among the calls all the same: other ranks may have made theirs, and whatever this rank
        calls next must not be taken for it. Ranks that were refused alike stay in step. One that
        had ended has its place: a signal handler runs behind the native call, and may raise there.
        Nobody knows what memory a bad argument was meant to be in: a refused call counts on this
        communicator and on those that follow it.

        Args:
            what: Name of the method.
            error: What it raises.
            before: `places` when the call came in; by default what the launcher, a port or a bound
                plan noted then.

        Raises:
            BusyError: In place of what an import says that is under way already.
        """
        if self._begun(error, before):
            return
        for engine in (self, *self._followers):
            number = engine.side.refuse()
            if number is not None:
                engine.faults.refuse(what, error, number)

    def refused_messages(
        self, what: str, error: BaseException, lanes: Lanes, before: int | None = None
    ) -> None:
        """See to messages in the same way: those that had not begun take their places.

        Args:
            what: Name of the method.
            error: What it raises.
            lanes: Of each message the peer, and whether it is sent. One whose peer is no rank might
                have been meant for any.
            before: As in `refused`.
        """
        if self._begun(error, before):
            return
        done = []
        for peer, sending in lanes:
            try:
                number = operator.index(peer)
            except TypeError:
                number = -1
            size = self.world.size
            peers = [number] if 0 <= number < size else range(size)
            done += [bindings.refuse_message(self.comm, peer, sending) for peer in peers]
        if any(done):
            self.faults.refuse(what, error, 0)

    def _begun(self, error: BaseException, before: int | None) -> bool:
        """End a call that was unfinished; tell whether it needs no place: it had its own."""
        if self._closed or self._parent:
            return True
        if amid(self):
            if isinstance(error, ImportError):
                raise BusyError(
                    "a call of this thread is under way on this communicator, and what calls need "
                    "is still being imported; let the signal handler only note what happened"
                ) from None
            return True
        self.interrupted(error)
        if TOLD in vars(error) or isinstance(error, BrokenError | PeerLostError | MismatchError):
            return True  # it is all ranks' affair: what broke is the plane of a GPU, or this
        if isinstance(error, BusyError):
            return True
        before = bindings.comm_op_count_before(self.comm) if before is None else before
        return self.places() != before

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Make calls that a call of the user's needs before it begins itself.

        Once they have ended well, on all ranks, they count no more in `places`: the user's call may
        still be refused.
        """
        before = self.places()
        yield
        bindings.comm_uncount_ops(self.comm, before)

    @contextlib.contextmanager
    def begins(self, what: str) -> Iterator[None]:
        """Do what `refused` does for an exception out of the block."""
        before = self.places()
        try:
            yield
        except BaseException as error:
            self.refused(what, error, before)
            raise

    @contextlib.contextmanager
    def entirely(self, what: str, before: int | None = None) -> Iterator[None]:
        """Break the communicator, with what follows it, if what is done inside stops half way.

        A call of several messages that ends between two of them would leave this rank behind by
        the rest, and the next call would meet what others still send for this one. Where its arrays
        are on a GPU, so are its messages.

        Args:
            what: The call, as the others are told of it.
            before: `places` when it came in, if nothing of it was done by then: as long as it has
                taken none it is only refused.
        """
        try:
            yield
        except BaseException as error:
            if before is None or self.places() != before:
                for engine in (self, *self._followers):
                    engine._give_up(error, what)
            raise

    def _give_up(self, error: BaseException, what: str) -> None:
        if self.faults.failure is None and not bindings.comm_broken(self.comm):
            self.faults.give_up(error, what)

    def work_place(self) -> Any:
        """Return where `submit` may put native work."""
        return bindings.work_place()

    def submit(self, plan: Any, x: int, out: int, timeout: float, where: str, work: Any) -> None:
        """Queue a plan behind what was queued before; the native work goes to ``work``."""
        code = bindings.submit(self.comm, plan, x, out, timeout, where, work)
        if code:
            self.faults.raise_for(code, timeout)

    def wait(self, work: Any, seconds: float) -> int | None:
        """Wait for native work for a moment, at most so long; return its code, or None."""
        return self.side.wait(work, seconds)

    def track(self, work: Pending) -> None:
        """Keep ``work``, and so its arrays, until it is `settled`."""
        self._pending.add(work)
        if len(self._pending) < self._many:
            return
        for old in list(self._pending):
            if old is not work and old.done():
                old.exception()
        self._many = max(_FEW, 2 * len(self._pending))  # so that it costs each work the same

    def finish_pending(self) -> None:
        """Wait for all works that are kept."""
        for work in list(self._pending):
            work.exception()

    def settled(self, work: Pending) -> None:
        """Let go of ``work``: it needs neither native code nor its arrays any more."""
        self._pending.discard(work)

    # Life.

    def keep(self, handle: Any) -> Any:
        """Free a native program or plan when the engine closes, if nobody did before."""
        self._handles.add(handle)
        return handle

    def lend(self, holder: Revocable) -> None:
        """Have ``holder`` let go of its pointers when the engine closes."""
        self._revocable.add(holder)

    def require_usable(self, what: str) -> None:
        """Raise what keeps this engine from being used, if anything does."""
        self.require_own(what)
        if self._closed:
            raise ClosedError(f"{what}: the communicator is closed")

    def state(self) -> str:
        """Return what keeps this engine from being used, in a word; empty if nothing does."""
        if self._parent:
            return "of another process"
        if self._closed:
            return "closed"
        return "broken" if bindings.comm_broken(self.comm) else ""

    def check_timeout(self, what: str, timeout: Any) -> float | None:
        """Return a timeout that a user gave; UsageError if it is none."""
        if timeout is None:
            return None
        number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if number and 0 < timeout <= _MAX_SECONDS:
            return float(timeout)
        raise UsageError(
            f"{what}: timeout is {quoted(timeout)}, want seconds, more than 0 and at most "
            f"{_MAX_SECONDS}, or None"
        )

    def require_own(self, what: str) -> None:
        """Raise UsageError in the child of a fork."""
        if self._parent:
            raise UsageError(
                f"{what}: this communicator belongs to process {self._parent}, and this is its "
                f"child {os.getpid()}: call pycoll.init() in the process that uses it"
            )

    def refuse(self, *arguments: Any) -> Any:
        """Stand in for what was revoked."""
        self.require_usable("call")
        raise ClosedError("the communicator is closed")

    def close(self, reason: str = CLOSED) -> None:
        """Finish queued work, take leave of the other ranks and free everything."""
        if self._closed or self._parent:
            return
        self.side.drain()
        for follower in self._followers:
            follower.close(reason)
        self.finish_pending()
        if self.calling():
            raise UsageError("close: another thread is inside a call on this communicator")
        self.leave(reason)

    def leave(self, reason: str = EXITED) -> None:
        """Take leave without waiting for anything; what is queued is dropped."""
        if self._closed or self._parent:
            return
        if self.bootstrap.control.current() or self.links.current():
            # Collected there, perhaps amid a callback that uses what would be freed here.
            threading.Thread(target=self.leave, args=(reason,)).start()
            return
        self.side.shut(reason)
        with _freeing:
            self._closed = True
            _live.discard(self)
        for follower in self._followers:
            follower.leave(reason)
        handles = list(self._handles)  # held: whoever is revoked lets go of them
        for holder in list(self._revocable):
            holder.revoke(self.refuse)
        self.launcher.close()
        if self._pending:
            bindings.comm_abort(self.comm, 0, -1, "the communicator was closed")
            self.finish_pending()
        until = time.monotonic() + _LEAVE_SECONDS
        while self.side.inside() and time.monotonic() < until:
            time.sleep(0)  # every work is finished: whoever waited for it is about to leave
        self.links.close()
        self.bootstrap.close(self.calls(), reason=reason)
        if self.calling() or self.side.inside():
            # A thread sleeps in a call, and the process ends: it may sleep on, on what it uses.
            for handle in handles:
                bindings.abandon(handle)
            return
        for handle in handles:
            bindings.release(handle)
        self.heap.close()

    def leave_after(self, error: BaseException) -> None:
        """Take leave because of an exception of the user's; the others are told which."""
        self.leave(failed(error))

    def _faults(self) -> Faults:
        itself = weakref.ref(self)  # weak: this holds what is made here

        def elsewhere() -> str:
            # Not for ever: amid what holds it Python may collect a communicator, and its leave
            # waits until the control thread, which is here, has called back.
            if not _freeing.acquire(timeout=_LOOK_SECONDS):
                return ""
            try:
                found = [other.doing() for other in list(_live) if other is not itself()]
            finally:
                _freeing.release()
            return "; and in ".join(filter(None, found))

        control = self.bootstrap.control
        name = self.bootstrap.describe
        return self.side.faults(self.comm, control, self.world, name, elsewhere)

    def forked(self) -> None:
        """In the child of a fork: let go; everything belongs to the parent."""
        self._parent = self._pid
        self.links.forked()
        for holder in list(self._revocable):
            holder.revoke(self.refuse)

    def next_call(self) -> int:
        """Return the number that this rank's next call will have; equal on ranks in step."""
        return bindings.comm_calls(self.comm) + 1

    def calls(self) -> int:
        """Return how many calls this rank has finished."""
        return self.side.calls()

    def doing(self) -> str:
        """Return what this rank waits in, for ranks of other communicators; empty: in nothing."""
        if self._closed or self._parent or bindings.comm_broken(self.comm):
            return ""
        call = self.faults.calling() or ("a transfer" if self._waiter else "")
        ranks = self.bootstrap.control.ranks
        few = f"ranks {list(ranks)}" if len(ranks) <= _LISTED else f"{len(ranks)} ranks"
        on = "the communicator of all ranks" if self.bootstrap.whole else f"a communicator of {few}"
        return f"{call} on {on} of the job" if call else ""

    def calling(self) -> bool:
        """Tell whether a call is under way; one that failed stays on the board."""
        own = bindings.status_read(self.comm, self.world.rank)
        on_board = own.state == bindings.CALLING and not bindings.comm_broken(self.comm)
        # Behind queued calls it is not on the board yet; a transfer never is.
        entered = self._waiter != 0 or bindings.comm_entered(self.comm) != 0
        return self.side.busy() or on_board or entered


#: Engines of this process that are open.
_live: set[Engine] = set()
#: Held while one communicator's control thread looks at the others, and by whoever takes one away.
_freeing = threading.RLock()
_registered = 0  #: process whose exit handlers have `_leave_all`


def _open(engine: Engine) -> None:
    # Registered late and per process. Late: handlers run last in, first out, and the control
    # plane's own farewell, registered before, cannot say how many calls were made. Per process:
    # a forked rank starts with no handlers.
    global _registered
    _live.add(engine)
    if _registered != os.getpid():
        _registered = os.getpid()
        atexit.register(_leave_all)


def _leave_all() -> None:
    error = getattr(sys, "last_value", None)  # what ends the interpreter, if anything does
    for engine in list(_live):
        engine.leave(EXITED if error is None else failed(error))


def failed(error: BaseException) -> str:
    """Return the reason to leave with because of an exception."""
    return f"failed with {described(error)}"[:160]


def _forget_all() -> None:
    global _freeing
    _freeing = threading.RLock()
    for engine in list(_live):
        engine.forked()
    _live.clear()


os.register_at_fork(after_in_child=_forget_all)


def _gpu_of(address: int) -> int:
    # Loaded at the first array of a GPU: most programs have none.
    from pycoll.runtime.native import cuda

    return cuda.pointer(address).device


driver.gpu_of = _gpu_of
