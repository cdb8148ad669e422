"""What went wrong with a call, told alike to every rank.

A communicator breaks once: the first failure is kept, whatever thread sees it, and the native
engine is told so that a call in progress ends. The rank that sees a failure tells the others over
the control plane. Nothing here runs on the good path, except that a rank which has waited for
some milliseconds says in its status what it is doing.
"""

from __future__ import annotations

import contextlib
import enum
import sys
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from pycoll.bootstrap.control import GONE, MISSED, REFUSED, REVOKED
from pycoll.bootstrap.reasons import CLOSED, DIED, EXITED, GARBLED, UNREACHABLE
from pycoll.errors import (
    BrokenError,
    BusyError,
    CollectiveTimeout,
    MismatchError,
    PeerLostError,
    PycollError,
    RevokedError,
    described,
)
from pycoll.runtime.call_site import user_line
from pycoll.runtime.native import bindings, codes
from pycoll.runtime.native.bindings import RankStatus
from pycoll.runtime.refusal import Refusals
from pycoll.runtime.status import Control as StatusControl
from pycoll.runtime.status import Statuses

if TYPE_CHECKING:
    from pycoll.runtime.join import World

#: How long a rank that knows of a failure waits for what the others have to say about it.
_SAY_SECONDS = 1.0
#: Characters of what is told of a call that was refused.
_REFUSED_TEXT = 1000
#: How long, at most, a rank waits for a control plane that has to find another router first.
_HEAR_SECONDS, _LOOK_SECONDS = 60.0, 0.05
#: What is known of a mismatch before the ranks have said what they called.
_DIFFERENT = "ranks called different things"


#: Attribute of an exception that all ranks were told of.
TOLD = "_pycoll_told"
#: Attribute of a failure: the call that its text ends with, whose line only the caller knows.
_UNPLACED = "_pycoll_unplaced"
#: `bindings.comm_entered` where it is the thread that asks.
_HERE = 2


class Cause(enum.IntEnum):
    """Why this rank aborted its own engine."""

    LOST = 1
    MISMATCH = 2
    TIMEOUT = 3
    ERROR = 4


class _Departed(NamedTuple):
    """A rank that is gone."""

    calls: int  #: that it finished, at least
    how: str
    died: bool  #: it did not take leave: whoever waits, for whomever, may wait for it in the end
    exact: bool = True  #: the calls; of a remote rank that died, only what was last heard is known

    def __str__(self) -> str:
        if self.exact:
            return f"{self.how} after {calls_text(self.calls)}"
        return f"{self.how} after at least {calls_text(self.calls)}" if self.calls else self.how


class _Missed(NamedTuple):
    """A rank that left, as another rank that cannot go on without it has said."""

    call: int  #: number of the call that misses it
    teller: int
    text: str


#: How to say why a rank is gone; a reason that is not here says it itself.
_LEFT = {
    DIED: "died",
    EXITED: "exited",
    CLOSED: "closed its communicator",
    GARBLED: "sent what no rank of this version sends",
    UNREACHABLE: "cannot be reached any more",
}


class Described(Protocol):
    """What a signature stands for."""

    @property
    def text(self) -> str:
        """Return the call as errors show it."""


class Control(StatusControl, Protocol):
    """What is used here of the control plane."""

    def abort(self, kind: str, text: str) -> None:
        """Tell every other rank that this rank gives up, and why."""

    def calls_of(self, rank: int) -> int | None:
        """Return how many calls a rank had made when it left in good order."""

    def fail(self, kind: str, text: str) -> None:
        """The same, and end the exchanges and call back here as there."""


class Failure:
    """The failure of one communicator, and how its ranks come to agree on it."""

    def __init__(
        self,
        comm: Any,
        control: Control,
        world: World,
        name: Callable[[int], str],
        elsewhere: Callable[[], str] = str,
    ) -> None:
        #: The first; never raised itself: its traceback would keep the user's frames alive.
        self.error: PycollError | None = None
        #: Signature of a call → what runs it, as long as somebody may run it.
        self.plans: weakref.WeakValueDictionary[int, Described] = weakref.WeakValueDictionary()
        self._comm = comm
        self._control = control
        self._rank = world.rank
        self._size = world.size
        self.statuses = Statuses(comm, control, world, elsewhere)
        self._name = name  #: rank → "rank 2 (process 71 on node7)"
        self._reported = False  #: the failure was raised to the user once
        self._departed: dict[int, _Departed] = {}
        self._missed: _Missed | None = None  #: what another rank has said of one that left
        self._mismatched = sys.maxsize  #: number of the first call that ranks disagree on
        #: Mismatch: what the ranks say that they called, by rank and number of the call.
        self._said: dict[int, dict[int, str]] = {}
        #: Groups that some of the ranks are about to form, each with the causes it does not mind.
        self._forming: dict[Control, Container[int]] = {}
        #: Told, on any thread, what broke the communicator, once.
        self.on_broken: Callable[[PycollError], object] = lambda error: None
        self._moved = threading.Condition()
        self._refusals = Refusals(comm, self._moved)

    def departed(self) -> bool:
        """Tell whether any rank is gone."""
        return bool(self._departed)

    def died(self, rank: int) -> bool:
        """Tell whether a rank's process has ended."""
        found = self._departed.get(rank)
        return found is not None and found.died

    def uneasy(self) -> bool:
        """Tell whether there is anything to `look` for: a rank is gone, or refused a call."""
        return bool(self._departed or self._refusals)

    # The control thread comes in here.

    def on_lost(self, rank: int, reason: str) -> None:
        """Note that a rank is gone: it died, or it left in good order."""
        calls = self._control.calls_of(rank)
        died = calls is None
        if calls is None:  # it died without a word, but its status outlives it
            status = self.statuses.of(rank)  # of a remote rank, the last that was heard
            calls = status.sequence - (status.state == bindings.CALLING) if status else 0
        exact = not died or self.statuses.exact(rank)
        with self._moved:
            self._departed[rank] = _Departed(calls, _LEFT.get(reason, reason), died, exact)
            self._moved.notify_all()
        self._look_for_departed(self.statuses.own())
        bindings.comm_gone(self._comm, rank, died)  # transfers with it end; if it died, all do
        self._fail_forming()

    def on_abort(self, rank: int, kind: str, text: str) -> None:
        """Note that a rank gave up, and why."""
        if kind == "mismatch":
            number, _, call = text.partition(" ")
            with self._moved:
                self._said.setdefault(rank, {})[int(number)] = call
                self._mismatched = min(self._mismatched, int(number))
                self._moved.notify_all()
            own = self.statuses.own()
            self._look_for_mismatch(own)
            if own.sequence > int(number) or own.state != bindings.CALLING:
                self._say(int(number), own)  # nobody is inside that call who would
        elif kind == REFUSED:
            number, _, call = text.partition(" ")
            self._refusals.note(rank, int(number), call)
            self._look_for_refused(self.statuses.own())
        elif kind == GONE:
            self._break(PeerLostError(text), Cause.LOST, rank)
        elif kind == MISSED:
            number, _, text = text.partition(" ")
            missed = _Missed(int(number), rank, text)
            self._missed = min(missed, self._missed or missed)
            self.heed_missed()
        elif kind == "timeout":
            self._break(CollectiveTimeout(text), Cause.TIMEOUT, rank)
        elif kind == REVOKED:
            self._break(RevokedError(f"{self._name(rank)} {text}"), Cause.ERROR, rank)
        elif kind == "transfer":
            self._break(MismatchError(text), Cause.MISMATCH, rank)
        else:
            self._break(BrokenError(f"{self._name(rank)} gave up: {text}"), Cause.ERROR, rank)

    # The caller's thread comes in here.

    def describe(self, where: str = "") -> str:
        """Say in the status what this rank's present call is; return it.

        Args:
            where: The text of a queued call; believed if the present call is of that kind.
        """
        own = self.statuses.own()
        if own.text:
            return own.text
        call = self._text(own, "a call")
        text = where if where.startswith(f"{call} at ") else f"{call} at {user_line()}"
        bindings.status_describe(self._comm, text)
        return text

    def calling(self) -> str:
        """Return what call this rank is inside, in words; empty: none."""
        own = self.statuses.own()
        return own.text or self._text(own, "a call") if own.state == bindings.CALLING else ""

    def look(self) -> None:
        """Compare this rank's status with the others'; abort the call if it can never end.

        It finds what no message tells: a rank that waits, elsewhere in the same numbered call, for
        ranks that do not send to this one, and a rank that has left.
        """
        own = self.statuses.own()
        self._look_for_departed(own)  # first: a rank that died may have been in another call
        self.heed_missed(waiting=True)
        if own.state != bindings.CALLING:
            return
        self.statuses.ask_in_time(own)
        if self.statuses.differ(own):
            self._mismatched = min(self._mismatched, own.sequence)
        self._look_for_refused(own)
        self._look_for_mismatch(own)

    def heed_missed(self, *, waiting: bool = False) -> None:
        """Break it if a rank that left is missed in a call that this one has come to, too.

        Earlier calls end well: who left has done its part in them, and so has who misses it.

        Args:
            waiting: For something else than a call, which may be for whoever has given up.
        """
        missed, own = self._missed, self.statuses.own()
        if missed is None or self.error is not None:
            return
        calling = own.state == bindings.CALLING
        number = self._next()
        if number >= missed.call:
            self._lose(missed.teller, missed.text, told=True)
        elif waiting and not calling:  # who waits for this rank in a call before has to hear of it
            self._lose(missed.teller, missed.text, call=number)

    def _look_for_mismatch(self, own: RankStatus) -> None:
        # A rank may still be in an earlier call, which ends well: all others have done their part.
        if own.sequence >= self._mismatched:
            self._break(MismatchError(_DIFFERENT), Cause.MISMATCH, -1)

    def _look_for_refused(self, own: RankStatus) -> None:
        """Find out whether this rank has made a call that another was refused."""
        self._compare_refused([self._rank])
        self._look_for_mismatch(own)

    def _compare_refused(self, ranks: Iterable[int]) -> None:
        """Note the first call that some rank was refused, and some of ``ranks`` not."""
        with self._moved:
            number = self._refusals.first_made(ranks)
            if number is not None:
                self._mismatched = min(self._mismatched, number)

    def _look_for_departed(self, own: RankStatus) -> None:
        # The same: who has finished call n is not missed by those that are still in it.
        if own.state != bindings.CALLING:
            return
        missed = [item for item in self._departed.items() if own.sequence > item[1].calls]
        if not any(departed.died for _, departed in missed):
            self._look_for_mismatch(own)  # because of which they may have left in good order
        # Who died before who left: that may be why it left.
        for rank, departed in sorted(missed, key=lambda item: not item[1].died)[:1]:
            call = own.text or self._text(own, "a call")
            text = f"{self._name(rank)} {departed} and takes no part in call {own.sequence}, {call}"
            unplaced = "" if own.text else call
            self._lose(rank, text, told=departed.died, call=own.sequence, unplaced=unplaced)

    def refuse(self, what: str, error: BaseException, number: int) -> None:
        """Tell the others of a call, or of messages (number 0), that took its place unbegun."""
        text = f"{what} at {user_line()}, refused with {described(error)}"[:_REFUSED_TEXT]
        self._refusals.note(self._rank, number, text)
        self._tell(REFUSED, f"{number} {text}")

    def heed_refused(self, other: Failure) -> None:
        """Know of the messages that ranks were refused on another communicator of theirs."""
        for rank, text in other._refusals.last_messages():
            self._refusals.note(rank, 0, text)

    def refused_text(self, number: int) -> str:
        """Return what is told of a call that this rank was refused; empty: nothing any more."""
        return self._refusals.text(self._rank, number)

    def interrupted(self, error: BaseException) -> None:
        """End the call that an exception (Ctrl-C) left unfinished in this thread, on every rank."""
        if bindings.resume(self._comm, 0) == codes.AGAIN:
            calling = self.statuses.own().state == bindings.CALLING
            self.give_up(error, self.describe() if calling else f"a transfer at {user_line()}")

    def give_up(self, error: BaseException, call: str) -> None:
        """Break the communicator on every rank: ``error`` stopped ``call`` half way here."""
        what = f"{type(error).__name__} inside {call}"
        vars(error)[TOLD] = True
        failure = BrokenError(f"rank {self._rank} stopped by {what}")
        self._reported = True  # the user sees `error` itself
        self._break(failure, Cause.ERROR, self._rank)
        while bindings.resume(self._comm, 1) == codes.AGAIN:
            pass
        self._tell("error", what)

    def raise_for(self, code: int, timeout: float, where: str = "") -> NoReturn:
        """Raise what a call that ended with ``code`` means."""
        if code == codes.BUSY:
            raise BusyError(
                "this thread is inside a call on this communicator already, which goes on: let a "
                "signal handler or finalizer only note what happened, and call later"
                if bindings.comm_entered(self._comm) == _HERE
                else "another thread is inside a call on this communicator; "
                "give each thread a communicator of its own"
            )
        if code == codes.BROKEN and self.error is None:
            # A queued call broke it, and its Work has not been waited for.
            code = bindings.comm_broken(self._comm) or code
        native = codes.comm_error(self._comm)
        told = code in (codes.ABORTED, codes.BROKEN)  # its cause is one of `Cause`
        transfer = not told and native.code == code and native.cause == codes.TRANSFER
        if where and not transfer:
            self.describe(where)
        if transfer:
            self._transfer_failed(native, where)
        elif code == codes.TIMEDOUT:
            self._time_out(timeout)
        elif code == codes.MISMATCH:
            self._break(MismatchError(_DIFFERENT), Cause.MISMATCH, native.peer)
        elif code == codes.LOST:
            self._note_lost_link(native.peer, f"the connection to it broke ({native.text})")
        elif code not in (codes.ABORTED, codes.BROKEN):
            self._unexpected(code, self.describe())
        self._place()
        self._raise(in_call=code != codes.BROKEN)

    def _raise(self, *, in_call: bool) -> NoReturn:
        """Raise the failure itself to the first who asks, and to all others that it is broken."""
        failure = self.error
        if failure is None:
            failure = BrokenError("the communicator was closed inside this call")
        first, self._reported = not self._reported, True
        if first and str(failure) == _DIFFERENT:
            failure = self.error = self._agree_on_mismatch()
        if first and (in_call or isinstance(failure, PeerLostError | MismatchError)):
            error = _copy(failure)
            vars(error)[TOLD] = True
            raise error
        raise BrokenError(f"an earlier failure broke the communicator: {failure}") from _copy(
            failure
        )

    def _place(self) -> None:
        """Say at which line the call was made that the failure ended, if it had not said so yet."""
        failure = self.error
        if failure is None or self._reported or self.statuses.own().state != bindings.CALLING:
            return
        if call := vars(failure).get(_UNPLACED):
            self.error = type(failure)(str(failure).removesuffix(call) + self.describe())

    def raise_failure(self) -> None:
        """Raise what broke the communicator, on this rank or another, if anything did."""
        if self.error is not None:
            self._raise(in_call=True)

    def bereave(self, what: str) -> None:
        """Raise that a rank has died if one has: ``what``, outside of any call, cannot go on."""
        dead = self._dead()
        if dead:
            self._miss(dead[0], what)
        self.raise_failure()

    def bereave_call(self, what: str) -> None:
        """Raise what broke the communicator; so does a death that the next call, ``what``, misses.

        A rank that died may have done its part in it.
        """
        missed = self.misses_dead()
        if missed:
            self._miss(missed[0], f"call {self._next()}, {what}")
        self.raise_failure()

    def misses_dead(self) -> list[int]:
        """Return the ranks that have died and that the next call misses."""
        number = self._next()
        return [rank for rank in self._dead() if self._departed[rank].calls < number]

    def _next(self) -> int:
        own = self.statuses.own()
        return own.sequence + (own.state != bindings.CALLING)

    def _miss(self, rank: int, what: str) -> None:
        name = f"{self._name(rank)} {self._departed[rank]}"
        self._lose(rank, f"{name} and takes no part in {what} at {user_line()}", told=True)

    @contextlib.contextmanager
    def forming(self, group: Control, but: Container[int] = ()) -> Iterator[None]:
        """Have a group, which is formed inside, fail on all its ranks if this communicator breaks.

        One of them may hear of it elsewhere, and then never come.

        Args:
            group: The group's control plane.
            but: Which of the `causes` do not fail it.
        """
        self.heed_missed(waiting=True)
        with self._moved:
            self._forming[group] = but
        self._fail_forming()
        try:
            yield
        finally:
            with self._moved:
                self._forming.pop(group, None)  # None: it has failed

    def causes(self) -> dict[int, PycollError]:
        """Return what ends this communicator: the ranks that died, else -1, each as an error."""
        lost: dict[int, PycollError] = {rank: self._lost(rank) for rank in self._dead()}
        return lost or ({} if self.error is None else {-1: self.error})

    def _fail_forming(self) -> None:
        with self._moved:
            causes = self.causes()
            failed = {
                group: failures[0]
                for group, but in self._forming.items()
                if (failures := [failure for cause, failure in causes.items() if cause not in but])
            }
            for group in failed:
                del self._forming[group]
        for group, failure in failed.items():
            kind = GONE if isinstance(failure, PeerLostError) else "error"
            with contextlib.suppress(PycollError):  # closed meanwhile
                group.fail(kind, f"the communicator that this one comes from broke: {failure}")

    def revoke(self, what: str) -> None:
        """Break the communicator on every rank, unless something has: ``what`` was called."""
        if self.error is None:
            text = f"called {what} at {user_line()}"
            # First: another thread, whose call it ends, may close the communicator at once.
            self._tell(REVOKED, text)
            self._break(RevokedError(f"{self._name(self._rank)} {text}"), Cause.ERROR, self._rank)

    def fail(self, error: PycollError) -> NoReturn:
        """Break the communicator on every rank because of what ended a call before it began."""
        self._break(_copy(error), Cause.ERROR, self._rank)
        self._tell("error", str(error))
        self._raise(in_call=True)

    def lose_link(self, peer: int, why: str) -> NoReturn:
        """Break the communicator on every rank: there is no connection to a remote peer."""
        self._note_lost_link(peer, why)
        self._raise(in_call=True)

    def refuse_link(self, peer: int, why: str) -> None:
        """The same, from any thread: this rank cannot use its connection; the next call raises."""
        self._lose(peer, f"{self._name(peer)} is lost to rank {self._rank}: {why}")

    def _note_lost_link(self, peer: int, why: str) -> None:
        rank, departed = self._blame(peer)
        if departed is None:
            self.refuse_link(peer, f"{why}; the control plane has not lost it")
            return
        also = why if rank == peer else f"the connection to {self._name(peer)} ended after it"
        text = f"{self._name(rank)} {departed}; {also}"
        self._lose(rank, text)

    def _blame(self, peer: int) -> tuple[int, _Departed | None]:
        """Return who is gone, where all that is seen here is the end of the way to ``peer``.

        A rank that died takes its connections along, and so does one that leaves because another
        has died. The control plane knows better than this rank, and is about to say it.
        """

        def told() -> bool:
            return bool(self.error is not None or peer in self._departed or self._dead())

        with self._moved:
            known = self._moved.wait_for(told, _SAY_SECONDS)
        # If the control plane answers, it has nothing to say. If it does not, it is about to.
        answered = None if known else self.statuses.question()
        until = time.monotonic() + _HEAR_SECONDS
        with self._moved:
            while answered and not (answered.is_set() or told()) and time.monotonic() < until:
                self._moved.wait(_LOOK_SECONDS)
            dead = self._dead()
            rank = dead[0] if dead else peer  # the first: others may have gone because of it
            return rank, self._departed.get(rank)

    def _bereavement(self) -> PeerLostError | None:
        """Return what to say if a rank has died: who heard of it may call other things."""
        dead = self._dead()
        return self._lost(dead[0]) if dead else None

    def _lost(self, rank: int) -> PeerLostError:
        return PeerLostError(f"{self._name(rank)} {self._departed[rank]}")

    def _dead(self) -> list[int]:
        """Return the ranks that went without taking leave, in the order of the news."""
        return [rank for rank, departed in list(self._departed.items()) if departed.died]

    def _lose(
        self, peer: int, text: str, *, told: bool = False, call: int = 0, unplaced: str = ""
    ) -> None:
        """Break the communicator because a rank is gone.

        Args:
            peer: The rank.
            text: What is known of it, and who misses it.
            told: All other ranks hear of it as this one did, and need not be told.
            call: Number of the first call that cannot end without it; 0: nothing can go on.
            unplaced: The call that the text ends with, if its line is missing there.
        """
        if self.error is None:
            failure = PeerLostError(text)
            vars(failure)[_UNPLACED] = unplaced
            self._break(failure, Cause.LOST, peer)
            if not told:
                self._tell(*((MISSED, f"{call} {text}") if call else (GONE, text)))

    def _transfer_failed(self, native: codes.Error, where: str) -> None:
        place = self._placed(where)
        what = f"{native.text} ({place})"
        if native.code == codes.TIMEDOUT:
            self.statuses.refresh(_SAY_SECONDS)
            elsewhere = self._elsewhere(native.peer)
            status = self.statuses.of(native.peer)
            last = (
                ""
                if status is None
                else status.text or self._text(status, f"call {status.sequence}")
            )
            if status is None or not status.sequence:
                what += f"; rank {native.peer} has made no call yet{elsewhere}"
            elif status.state == bindings.CALLING:
                what += f"; rank {native.peer} is in {last}"
            else:
                what += f"; rank {native.peer} is in no collective, its last was {last}{elsewhere}"
            self._break(CollectiveTimeout(what), Cause.TIMEOUT, self._rank)
            self._tell("timeout", what)
        elif native.code == codes.MISMATCH:
            if bindings.REFUSED_P2P_OP in native.text:  # else it is about what came later
                for rank, text in self._refusals.messages(
                    (self._rank, native.peer), lambda: native.peer in self._departed
                ):
                    what += f"; rank {rank} had called {text}"
            self._break(MismatchError(what), Cause.MISMATCH, native.peer)
            self._tell("transfer", what)
        elif native.code == codes.LOST:
            rank, departed = self._blame(native.peer)
            how = "is gone" if departed is None else departed.how
            self._lose(rank, f"{self._name(rank)} {how}: {what}")
        else:
            self._unexpected(native.code, f"a transfer {place}")

    def _placed(self, where: str) -> str:
        """Say at which line a transfer was made that has failed, whose call ends with it."""
        return f"at {where.rpartition(' at ')[2] or user_line()}"

    def _unexpected(self, code: int, call: str) -> None:
        try:
            codes.raise_for(code, self._comm, call)
        except PycollError as error:
            self._break(_copy(error), Cause.ERROR, self._rank)
            self._tell("error", str(error))

    def _break(self, failure: PycollError, cause: Cause, peer: int) -> None:
        if isinstance(failure, MismatchError):
            failure = self._bereavement() or failure
        with self._moved:
            first = self.error is None
            if first:
                self.error = failure
            self._moved.notify_all()
        bindings.comm_abort(self._comm, cause, peer, str(failure))
        if first:
            self.on_broken(failure)
        self._fail_forming()

    def _tell(self, kind: str, text: str) -> None:
        try:
            self._control.abort(kind, text)
        except PycollError:  # closed meanwhile: there is nobody to tell
            return

    def _time_out(self, timeout: float) -> None:
        own, stuck, call = self.statuses.own(), bindings.comm_stuck(self._comm), self.describe()
        self.statuses.refresh(_SAY_SECONDS)
        others = {rank: self.statuses.of(rank) for rank in range(self._size) if rank != self._rank}
        late = [r for r, status in others.items() if not status or status.sequence < own.sequence]
        with self._moved:
            # Where nobody is late now, somebody was: whoever saw it is about to say so.
            told = self._moved.wait_for(lambda: self.error is not None, 0 if late else _SAY_SECONDS)
        if told:
            return
        text = f"{call} did not finish within {timeout:g} s"
        if stuck is not None and stuck.peer >= 0:
            text += f": rank {self._rank} waits for rank {stuck.peer}"
        for rank in late[:8]:
            text += f"; {self._late(rank, others[rank], own)}"
        if len(late) > 8:
            text += f"; and {len(late) - 8} ranks more"
        if not late:
            text += "; every rank has made this call, so one is stopped or starved inside it"
        self._break(CollectiveTimeout(text), Cause.TIMEOUT, self._rank)
        self._tell("timeout", text)

    def _late(self, rank: int, status: RankStatus | None, own: RankStatus) -> str:
        call = self._text(own, "it").partition("(")[0]
        if status is None:
            return f"rank {rank} does not say what it is doing"
        elsewhere = self._elsewhere(rank)
        if not status.sequence:
            return f"rank {rank} has made no call yet{elsewhere}"
        last = status.text or self._text(status, "another call")
        if status.state == bindings.CALLING:
            return f"rank {rank} is in call {status.sequence}, {last}, before this one"
        made = calls_text(status.sequence)
        return (
            f"rank {rank} has made {made}, last {last}, and has not called this {call}{elsewhere}"
        )

    def _elsewhere(self, rank: int) -> str:
        found = self.statuses.elsewhere(rank)
        return f"; its process is in {found}" if found else ""

    def _agree_on_mismatch(self) -> PycollError:
        own = self.statuses.own()
        with self._moved:
            self._mismatched = min(self._mismatched, own.sequence)
        self._compare_refused(range(self._size))
        self._say(self._mismatched, own)
        with self._moved:
            # The first call that they disagree on is the one to name: others may know of an
            # earlier one than this rank, which says then what it called there.
            self._moved.wait_for(self._all_said, _SAY_SECONDS)
            number = self._mismatched
            said = {rank: calls.get(number) for rank, calls in self._said.items()}
        lines = []
        for rank in range(self._size):
            lines.append(f"rank {rank}: {said.get(rank) or self._guess(rank, number)}")
        return self._bereavement() or MismatchError(f"{_DIFFERENT}: {'; '.join(lines)}")

    def _all_said(self) -> bool:
        here = (rank for rank in range(self._size) if rank not in self._departed)
        return all(self._mismatched in self._said.get(rank, ()) for rank in here)

    def _say(self, number: int, own: RankStatus) -> None:
        """Tell the others what this rank's call of a number was, once, if it has made it."""
        if own.sequence < number:
            return
        text = self._refusals.text(self._rank, number)
        if number == own.sequence and own.state == bindings.CALLING:
            text = self.describe()
        elif not text:
            text = f"{self._called(self._rank, number)}, which has ended there"
        with self._moved:
            if number in self._said.setdefault(self._rank, {}):
                return
        # First: the caller's thread, which waits for all to have said it, may close behind that.
        self._tell("mismatch", f"{number} {text}")
        with self._moved:
            self._said[self._rank].setdefault(number, text)
            self._moved.notify_all()

    def _guess(self, rank: int, number: int) -> str:
        if refused := self._refusals.text(rank, number):
            return refused
        status = self.statuses.of(rank)
        if status is None:
            return "does not say"
        if status.sequence < number:
            return f"has not made call {number} yet"
        if status.sequence > number:
            return self._called(rank, number)
        return status.text or self._text(status, "an unknown call")

    def _called(self, rank: int, number: int) -> str:
        """Return what one of the last calls of a mapped rank was, in words."""
        signature = bindings.status_call(self._comm, rank, number)
        if signature == bindings.REFUSED:
            return "a call that was refused"
        if signature == bindings.FORGOTTEN:
            followed = bindings.STATUS_CALLS - 1
            return f"a call that {followed} or more have followed, and that is not known any more"
        plan = self.plans.get(signature)
        return "an unknown call" if plan is None else plan.text

    def _text(self, status: RankStatus, otherwise: str) -> str:
        plan = self.plans.get(status.signature)
        return otherwise if plan is None else plan.text


def _copy(error: PycollError) -> PycollError:
    return type(error)(*error.args)


def calls_text(number: int) -> str:
    """Return a number of calls in words."""
    return f"{number} call{'' if number == 1 else 's'}"
