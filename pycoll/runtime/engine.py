"""Engine: one rank's native communicator, from joining to closing."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Container, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pycoll import log
from pycoll.arrays import driver
from pycoll.bootstrap import Bootstrap
from pycoll.bootstrap.reasons import CLOSED, EXITED
from pycoll.config import Config
from pycoll.errors import (
    CollectiveTimeout,
    PeerLostError,
    PycollError,
    UsageError,
    counted,
    described,
)
from pycoll.order import FIXED
from pycoll.runtime.failure import Failure
from pycoll.runtime.host.heap import Heap
from pycoll.runtime.host.side import HostSide, slice_seconds
from pycoll.runtime.introduce import introduce
from pycoll.runtime.join import Begin, Reunion, World, join, of_some
from pycoll.runtime.life import Life
from pycoll.runtime.native import bindings, load
from pycoll.runtime.net.connections import Connections
from pycoll.runtime.op_order import OpOrder
from pycoll.runtime.plan.agreement import Agreement, Selector, agree
from pycoll.runtime.record import triggers
from pycoll.runtime.record.recorder import Recorder
from pycoll.runtime.side import Side
from pycoll.runtime.waits import Waits

if TYPE_CHECKING:
    from pycoll.runtime.plan.earlier import Choices
    from pycoll.runtime.plan.selection import Selection

T = TypeVar("T")

_LISTED = 8  #: ranks of a communicator that a text lists
#: How long leaving waits for threads that are about to leave a wait.
_LEAVE_SECONDS = 1.0
#: How long a status waits for whoever takes a communicator away; then it says nothing of others.
_LOOK_SECONDS = 0.5


class Revocable(Protocol):
    """Something that holds pointers into the engine, and lets go of them."""

    def revoke(self, refuse: Callable[..., Any]) -> None:
        """Never use the engine again: calls go to ``refuse``, which raises."""


class Engine:
    """One rank's side of a communicator. Communicator is what users hold.

    Args:
        bootstrap: The ranks.
        config: Its settings.
        selector: What the user gave to choose algorithms by.
        agreement: What the ranks have agreed on, in place of `selector`.
        side: Makes what runs the calls, from the native communicator and its ranks.
        gpu: Bus id of the GPU whose kernels make the calls; None: threads of the host do.
        reunion: What the ranks know of each other that were in one communicator before.
        inherited: What they know of that one's choices.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        config: Config,
        selector: Selector | str | None = None,
        agreement: Agreement | None = None,
        side: Callable[[Any, World], Side] = HostSide,
        gpu: str | None = None,
        reunion: Reunion | None = None,
        inherited: Choices | None = None,
    ) -> None:
        self.timeout = config.timeout
        self.bootstrap = bootstrap
        self.cache = config.cache
        self._config = config
        self.life = Life()
        self._revocable: weakref.WeakSet[Revocable] = weakref.WeakSet()
        self._handles: weakref.WeakSet[Any] = weakref.WeakSet()
        self._followers: list[Engine] = []
        self._inherited = inherited
        self.world: World
        self.world, self.comm, self.arenas, self._said, summaries = join(
            bootstrap, config, gpu, reunion
        )
        introduce(bootstrap, self.world, config)
        if inherited:
            inherited.agree(summaries)
        self.number = bindings.comm_number(self.comm)
        #: Starts cached plans without Python's help; `Plans` fills it.
        self.dispatcher = load.fastcall.Dispatcher(self.number, self.timeout)
        self.heap = Heap(self.comm)
        self.side = side(self.comm, self.world)
        self.failure = self._make_failure()
        self.recorder = self._make_recorder()
        near = self.world.hosts.count(self.world.hosts[self.world.rank])
        pause = slice_seconds(near, self.timeout)
        self.waits = Waits(self.comm, self.side, self.failure, self.life, self.timeout, pause)
        self.order = OpOrder(
            *(self.comm, self.world.size, self.side, self.waits, self.failure, self.life),
            *(self.dispatcher, self.arenas),
        )
        try:
            #: What calls choose their algorithms by.
            self._agreement = agreement or agree(bootstrap, self.world, config, selector)
            self.unproved = self._agreement.unproved
            #: Reductions fold in the fixed order, unless a call says otherwise.
            self.fixed = self._agreement.order == FIXED
            self.check = self._agreement.check
            bootstrap.control.attach(
                self.failure.on_lost, self.failure.on_abort, self.failure.statuses.said
            )
            self.links = Connections(
                self.comm, bootstrap, self.world, config, self.failure, self.arenas
            )
        except BaseException as error:
            # First: behind it no callback runs on what is freed here.
            bootstrap.close(reason=failed(error))
            self.recorder.close()
            self.heap.close()  # which owns the native communicator
            raise
        _open(self)

    @cached_property
    def selection(self) -> Selection:
        """How calls choose their algorithms."""
        # Loaded at the first plan: it brings every algorithm, and joining shall be quick.
        from pycoll.runtime.plan.selection import Selection

        return Selection(self.world, self._agreement, self.once, choices=self._inherited)

    def once(self, key: str, make: Callable[[], bytes], timeout: float | None = None) -> bytes:
        """Return what one of the ranks that ask for ``key`` makes.

        Raises:
            PeerLostError: A rank has died that the next call misses; the communicator does not know
                it yet, see `Failure.bereave_call`.
            CollectiveTimeout: It was not made within `timeout` seconds, or the communicator's.
        """
        seconds = self.timeout if timeout is None else timeout
        try:
            return self.bootstrap.control.once(key, make, seconds)
        except CollectiveTimeout:
            raise
        except PycollError as error:
            if self.failure.misses_dead():
                raise PeerLostError(str(error)) from error
            self.failure.raise_failure()
            # The communicator is broken, and the call will say how once it has begun.
            return make()

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
            self.failure.bereave(f"{key.partition(' ')[0]}()")
            raise

    def apart(self, ranks: list[int], key: str, config: Config) -> Engine:
        """Return an engine of some of the ranks with settings of its own, without a call on this.

        Those that are left may go on so: only what breaks this communicator meanwhile fails it. A
        death among its own ranks it hears of by itself. No failure of this one is raised in its
        place, since any thread may call this: that is kept for whoever calls on this one next.
        """
        return self._form(ranks, key, Engine, config, {*self.failure.causes(), *ranks})

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
            with self.failure.forming(bootstrap.control, but):
                return make(bootstrap, config, agreement=self._agreement)
        except BaseException as error:
            bootstrap.close(reason=failed(error))
            raise

    @property
    def config(self) -> Config:
        """The settings of this rank."""
        return self._config

    def remade(
        self, ranks: Sequence[int], bootstrap: Bootstrap, accept: Begin | None = None
    ) -> Engine:
        """Return an engine of some of the ranks, with the settings of this one, which is broken.

        Args:
            ranks: Of this one, in the order of the new one.
            bootstrap: The same ranks.
            accept: Called once this rank needs no other any more, if that is before the end.
        """
        from pycoll.runtime.plan.earlier import Choices

        chosen = vars(self).get("selection")
        inherited = (chosen.choices if chosen else self._inherited or Choices()).heirs()
        reunion = Reunion(
            of_some(self._said, ranks, self.bootstrap.whole),
            inherited.summary(),
            None if self.world.remote or self.world.lazy else accept,
        )
        return Engine(
            *(bootstrap, self._config),
            agreement=self._agreement,
            reunion=reunion,
            inherited=inherited,
        )

    def follow(self, engine: Engine) -> None:
        """Close, and leave, with another engine, which belongs to the same communicator.

        What is launched here on a GPU counts in `order` of both.
        """
        engine._followers.append(self)
        self.order.follow(engine.order)
        bindings.comm_follow(self.comm, engine.comm)

    def keep(self, handle: Any) -> Any:
        """Free a native program or plan when the engine closes, if nobody did before."""
        self._handles.add(handle)
        return handle

    def lend(self, holder: Revocable) -> None:
        """Have ``holder`` let go of its pointers when the engine closes."""
        self._revocable.add(holder)

    def state(self) -> str:
        """Return what keeps this engine from being used, in a word; empty if nothing does."""
        if self.life.parent:
            return "of another process"
        if self.life.closed:
            return "closed"
        return "broken" if bindings.comm_broken(self.comm) else ""

    def close(self, reason: str = CLOSED) -> None:
        """Finish queued work, take leave of the other ranks and free everything."""
        if self.life.over:
            return
        self.side.drain()
        for follower in self._followers:
            follower.close(reason)
        self.waits.finish_pending()
        if self.calling():
            raise UsageError("close: another thread is inside a call on this communicator")
        calls = self.calls()
        log.debug("group", "rank %d: closes after %s", self.world.rank, counted(calls, "call"))
        self.leave(reason)

    def leave(self, reason: str = EXITED) -> None:
        """Take leave without waiting for anything; what is queued is dropped."""
        if self.life.over:
            return
        aside = self.bootstrap.control, self.links, self.recorder
        if any(thread.current() for thread in aside):
            # Collected there, perhaps amid a callback that uses what would be freed here.
            threading.Thread(target=self.leave, args=(reason,)).start()
            return
        triggers.settle()
        self.recorder.close()
        self.side.shut(reason)
        with _freeing:
            self.life.closed = True
            _live.discard(self)
        for follower in self._followers:
            follower.leave(reason)
        handles = list(self._handles)  # held: whoever is revoked lets go of them
        for holder in list(self._revocable):
            holder.revoke(self.life.refuse)
        self.dispatcher.close()
        if self.waits.pending():
            bindings.comm_abort(self.comm, 0, -1, "the communicator was closed")
            self.waits.finish_pending()
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

    def _make_failure(self) -> Failure:
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
        made = self.side.make_failure(self.comm, control, self.world, name, elsewhere)
        made.on_broken = triggers.broke
        return made

    def _make_recorder(self) -> Recorder:
        triggers.begin(self._config.record)
        return Recorder(
            *(self.comm, self.bootstrap, self.world, self.side.device_name, self.side.times),
            self.failure.refused_text,
        )

    def forked(self) -> None:
        """In the child of a fork: let go; everything belongs to the parent."""
        self.life.forked()
        self.links.forked()
        for holder in list(self._revocable):
            holder.revoke(self.life.refuse)
        self.dispatcher.close()

    def next_call(self) -> int:
        """Return the number that this rank's next call will have; equal on ranks in step."""
        return bindings.comm_calls(self.comm) + 1

    def calls(self) -> int:
        """Return how many calls this rank has finished."""
        return self.side.calls()

    def doing(self) -> str:
        """Return what this rank waits in, for ranks of other communicators; empty: in nothing."""
        if self.life.over or bindings.comm_broken(self.comm):
            return ""
        call = self.failure.calling() or ("a transfer" if self.waits.waiter else "")
        ranks = self.bootstrap.control.ranks
        few = f"ranks {list(ranks)}" if len(ranks) <= _LISTED else f"{len(ranks)} ranks"
        on = "the communicator of all ranks" if self.bootstrap.whole else f"a communicator of {few}"
        return f"{call} on {on} of the job" if call else ""

    def calling(self) -> bool:
        """Tell whether a call is under way; one that failed stays in the status."""
        own = bindings.status_read(self.comm, self.world.rank)
        on_board = own.state == bindings.CALLING and not bindings.comm_broken(self.comm)
        # Behind queued calls it is not in the status yet; a transfer never is.
        entered = self.waits.waiter != 0 or bindings.comm_entered(self.comm) != 0
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
    if error is not None and _live:
        triggers.broke(error)
    triggers.settle()
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
