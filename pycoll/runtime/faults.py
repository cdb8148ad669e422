"""What went wrong with a call, told alike to every rank.

A communicator breaks once: the first failure is kept, whatever thread sees it, and the native
engine is told so that a call in progress ends. The rank that sees a failure tells the others over
the control plane. Nothing here runs on the good path, except that a rank which has waited for
some milliseconds says on its board what it is doing.
"""

from __future__ import annotations

import enum
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from pycoll.bootstrap.control import GONE
from pycoll.bootstrap.reactor import CLOSED, DIED, EXITED, GARBLED, UNREACHABLE
from pycoll.errors import (
    BrokenError,
    CollectiveTimeout,
    MismatchError,
    PeerLostError,
    PycollError,
    UsageError,
)
from pycoll.runtime import bindings, boards
from pycoll.runtime.bindings import Board
from pycoll.runtime.boards import Boards
from pycoll.runtime.line import user_line

if TYPE_CHECKING:
    from pycoll.runtime.join import World

#: How long a rank that knows of a failure waits for what the others have to say about it.
_SAY_SECONDS = 1.0
#: What is known of a mismatch before the ranks have said what they called.
_DIFFERENT = "ranks called different things"


#: `bindings.Error.cause` where it was a transfer that failed.
_TRANSFER = 1


class Cause(enum.IntEnum):
    """Why this rank aborted its own engine."""

    LOST = 1
    MISMATCH = 2
    TIMEOUT = 3
    ERROR = 4


class _Departed(NamedTuple):
    """A rank that is gone."""

    calls: int  #: that it finished
    how: str


#: How to say why a rank is gone; a reason that is not here says it itself.
_LEFT = {
    DIED: "died",
    EXITED: "exited",
    CLOSED: "closed its communicator",
    GARBLED: "sent what no rank of this version sends",
    UNREACHABLE: "cannot be reached any more",
}


class Named(Protocol):
    """What a signature stands for."""

    @property
    def text(self) -> str:
        """Return the call as errors show it."""


class Control(boards.Control, Protocol):
    """What is used here of the control plane."""

    def abort(self, kind: str, text: str) -> None:
        """Tell every other rank that this rank gives up, and why."""

    def calls_of(self, rank: int) -> int | None:
        """Return how many calls a rank had made when it left in good order."""


class Faults:
    """The failure of one communicator, and how its ranks come to agree on it."""

    def __init__(
        self, comm: Any, control: Control, world: World, name: Callable[[int], str]
    ) -> None:
        #: The first; never raised itself: its traceback would keep the user's frames alive.
        self.failure: PycollError | None = None
        #: Signature of a call → what runs it, as long as somebody may run it.
        self.plans: weakref.WeakValueDictionary[int, Named] = weakref.WeakValueDictionary()
        self._comm = comm
        self._control = control
        self._rank = world.rank
        self._size = world.size
        self.boards = Boards(comm, control, world)
        self._name = name  #: rank → "rank 2 (process 71 on node7)"
        self._reported = False  #: the failure was raised to the user once
        self._departed: dict[int, _Departed] = {}
        self._mismatched = sys.maxsize  #: number of the first call that ranks disagree on
        self._said: dict[int, str] = {}  #: mismatch: what the ranks say that they called
        self._moved = threading.Condition()

    def departed(self) -> bool:
        """Tell whether any rank is gone."""
        return bool(self._departed)

    # The control thread comes in here.

    def on_lost(self, rank: int, reason: str) -> None:
        """Note that a rank is gone: it died, or it left in good order."""
        calls = self._control.calls_of(rank)
        if calls is None:  # it died without a word, but its board outlives it
            board = self.boards.of(rank)  # of a remote rank, the last that was heard
            calls = board.sequence - (board.state == bindings.CALLING) if board else 0
        with self._moved:
            self._departed[rank] = _Departed(calls, _LEFT.get(reason, reason))
            self._moved.notify_all()
        self._look_for_departed(self.boards.own())
        bindings.comm_gone(self._comm, rank)  # transfers with it end

    def on_abort(self, rank: int, kind: str, text: str) -> None:
        """Note that a rank gave up, and why."""
        if kind == "mismatch":
            number, _, call = text.partition(" ")
            with self._moved:
                self._said[rank] = call
                self._mismatched = min(self._mismatched, int(number))
                self._moved.notify_all()
            self._look_for_mismatch(self.boards.own())
        elif kind == GONE:
            self._break(PeerLostError(text), Cause.LOST, rank)
        elif kind == "timeout":
            self._break(CollectiveTimeout(text), Cause.TIMEOUT, rank)
        elif kind == "transfer":
            self._break(MismatchError(text), Cause.MISMATCH, rank)
        else:
            self._break(BrokenError(f"{self._name(rank)} gave up: {text}"), Cause.ERROR, rank)

    # The caller's thread comes in here.

    def describe(self, where: str = "") -> str:
        """Say on the board what this rank's present call is; return it.

        Args:
            where: The text of a queued call; believed if the present call is of that kind.
        """
        own = self.boards.own()
        if own.text:
            return own.text
        call = self._text(own, "a call")
        text = where if where.startswith(f"{call} at ") else f"{call} at {user_line()}"
        bindings.board_describe(self._comm, text)
        return text

    def look(self) -> None:
        """Compare this rank's board with the others'; abort the call if it can never end.

        It finds what no message tells: a rank that waits, elsewhere in the same numbered call, for
        ranks that do not send to this one, and a rank that has left.
        """
        own = self.boards.own()
        if own.state != bindings.CALLING:
            return
        self.boards.ask_in_time(own)
        for rank in range(self._size):
            if rank != self._rank and self._differs(own, rank):
                self._mismatched = min(self._mismatched, own.sequence)
        self._look_for_mismatch(own)
        self._look_for_departed(own)

    def _look_for_mismatch(self, own: Board) -> None:
        # A rank may still be in an earlier call, which ends well: all others have done their part.
        if own.state == bindings.CALLING and own.sequence >= self._mismatched:
            self._break(MismatchError(_DIFFERENT), Cause.MISMATCH, -1)

    def _look_for_departed(self, own: Board) -> None:
        # The same: who has finished call n is not missed by those that are still in it.
        for rank, departed in list(self._departed.items()):
            if own.state == bindings.CALLING and own.sequence > departed.calls:
                call = own.text or self._text(own, "a call")
                text = (
                    f"{self._name(rank)} {departed.how} after {calls_text(departed.calls)} "
                    f"and takes no part in call {own.sequence}, {call}"
                )
                self._break(PeerLostError(text), Cause.LOST, rank)

    def _differs(self, own: Board, rank: int) -> bool:
        # Read twice: the owner writes the signature, the sequence and the state one after the
        # other, and leaves IDLE before it does. Equal readings cannot straddle that.
        seen = self.boards.of(rank)
        if seen is None or (own.sequence, bindings.CALLING) != (seen.sequence, seen.state):
            return False
        return seen.signature != own.signature and seen == self.boards.of(rank)

    def interrupted(self, error: BaseException) -> None:
        """End the call that an exception (Ctrl-C) left unfinished in this thread, on every rank."""
        if bindings.resume(self._comm, 0) == bindings.AGAIN:
            calling = self.boards.own().state == bindings.CALLING
            self.give_up(error, self.describe() if calling else f"a transfer at {user_line()}")

    def give_up(self, error: BaseException, call: str) -> None:
        """Break the communicator on every rank: ``error`` stopped ``call`` half way here."""
        what = f"{type(error).__name__} inside {call}"
        failure = BrokenError(f"rank {self._rank} stopped by {what}")
        self._reported = True  # the user sees `error` itself
        self._break(failure, Cause.ERROR, self._rank)
        while bindings.resume(self._comm, 1) == bindings.AGAIN:
            pass
        self._tell("error", what)

    def raise_for(self, code: int, timeout: float, where: str = "") -> NoReturn:
        """Raise what a call that ended with ``code`` means."""
        if code == bindings.BUSY:
            raise UsageError(
                "another thread is inside a call on this communicator; "
                "give each thread a communicator of its own"
            )
        if code == bindings.BROKEN and self.failure is None:
            # A queued call broke it, and its Work has not been waited for.
            code = bindings.comm_broken(self._comm) or code
        native = bindings.comm_error(self._comm)
        told = code in (bindings.ABORTED, bindings.BROKEN)  # its cause is one of `Cause`
        transfer = not told and native.code == code and native.cause == _TRANSFER
        if where and not transfer:
            self.describe(where)
        if transfer:
            self._transfer_failed(native, where)
        elif code == bindings.TIMEDOUT:
            self._time_out(timeout)
        elif code == bindings.MISMATCH:
            self._break(MismatchError(_DIFFERENT), Cause.MISMATCH, native.peer)
        elif code == bindings.LOST:
            self._note_lost_link(native.peer, f"the connection to it broke ({native.text})")
        elif code not in (bindings.ABORTED, bindings.BROKEN):
            self._unexpected(code)
        failure = self.failure
        if failure is None:
            failure = BrokenError("the communicator was closed inside this call")
        first, self._reported = not self._reported, True
        if first and str(failure) == _DIFFERENT:
            failure = self.failure = self._agree_on_mismatch()
        in_call = code != bindings.BROKEN
        if first and (in_call or isinstance(failure, PeerLostError | MismatchError)):
            raise _copy(failure)
        raise BrokenError(f"an earlier failure broke the communicator: {failure}") from _copy(
            failure
        )

    def lose_link(self, peer: int, why: str) -> NoReturn:
        """Break the communicator on every rank: there is no connection to a remote peer."""
        self._note_lost_link(peer, why)
        self._reported = True
        failure = self.failure
        assert failure is not None
        raise _copy(failure)

    def refuse_link(self, peer: int, why: str) -> None:
        """The same, from any thread: this rank cannot use its connection; the next call raises."""
        self._lose(peer, f"is lost to rank {self._rank}: {why}")

    def _note_lost_link(self, peer: int, why: str) -> None:
        with self._moved:
            # A rank that died takes its connections along, and the control plane knows it better.
            self._moved.wait_for(
                lambda: self.failure is not None or peer in self._departed, _SAY_SECONDS
            )
            departed = self._departed.get(peer)
        if departed:
            self._lose(peer, f"{departed.how} after {calls_text(departed.calls)}; {why}")
        else:
            self.refuse_link(peer, f"{why}; the control plane has not lost it")

    def _lose(self, peer: int, how: str) -> None:
        if self.failure is None:
            text = f"{self._name(peer)} {how}"
            self._break(PeerLostError(text), Cause.LOST, peer)
            self._tell(GONE, text)

    def _transfer_failed(self, native: bindings.Error, where: str) -> None:
        what = f"{native.text} (at {where.rpartition(' at ')[2] or user_line()})"
        if native.code == bindings.TIMEDOUT:
            board = self.boards.of(native.peer)
            last = (
                "" if board is None else board.text or self._text(board, f"call {board.sequence}")
            )
            if board is None or not board.sequence:
                what += f"; rank {native.peer} has made no call yet"
            elif board.state == bindings.CALLING:
                what += f"; rank {native.peer} is in {last}"
            else:
                what += f"; rank {native.peer} is in no collective, its last was {last}"
            self._break(CollectiveTimeout(what), Cause.TIMEOUT, self._rank)
            self._tell("timeout", what)
        elif native.code == bindings.MISMATCH:
            self._break(MismatchError(what), Cause.MISMATCH, native.peer)
            self._tell("transfer", what)
        elif native.code == bindings.LOST:
            with self._moved:
                self._moved.wait_for(lambda: native.peer in self._departed, _SAY_SECONDS)
            departed = self._departed.get(native.peer)
            how = "is gone" if departed is None else departed.how
            self._lose(native.peer, f"{how}: {what}")
        else:
            self._unexpected(native.code)

    def _unexpected(self, code: int) -> None:
        try:
            bindings.raise_for(code, self._comm, self.describe())
        except PycollError as error:
            self._break(_copy(error), Cause.ERROR, self._rank)
            self._tell("error", str(error))

    def _break(self, failure: PycollError, cause: Cause, peer: int) -> None:
        with self._moved:
            if self.failure is None:
                self.failure = failure
            self._moved.notify_all()
        bindings.comm_abort(self._comm, cause, peer, str(failure))

    def _tell(self, kind: str, text: str) -> None:
        try:
            self._control.abort(kind, text)
        except PycollError:  # closed meanwhile: there is nobody to tell
            return

    def _time_out(self, timeout: float) -> None:
        own, stuck, call = self.boards.own(), bindings.comm_stuck(self._comm), self.describe()
        self.boards.refresh(_SAY_SECONDS)
        others = {rank: self.boards.of(rank) for rank in range(self._size) if rank != self._rank}
        late = [r for r, board in others.items() if not board or board.sequence < own.sequence]
        with self._moved:
            # Where nobody is late now, somebody was: whoever saw it is about to say so.
            told = self._moved.wait_for(
                lambda: self.failure is not None, 0 if late else _SAY_SECONDS
            )
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

    def _late(self, rank: int, board: Board | None, own: Board) -> str:
        call = self._text(own, "it").partition("(")[0]
        if board is None:
            return f"rank {rank} does not say what it is doing"
        if not board.sequence:
            return f"rank {rank} has made no call yet"
        last = board.text or self._text(board, "another call")
        if board.state == bindings.CALLING:
            return f"rank {rank} is in call {board.sequence}, {last}, before this one"
        made = calls_text(board.sequence)
        return f"rank {rank} has made {made}, last {last}, and has not called this {call}"

    def _agree_on_mismatch(self) -> MismatchError:
        mine = self.describe()
        own, others = self.boards.own(), set(range(self._size)) - {self._rank}
        self._tell("mismatch", f"{own.sequence} {mine}")
        with self._moved:
            self._moved.wait_for(lambda: self._said.keys() >= others, _SAY_SECONDS)
            said = {**self._said, self._rank: mine}
        lines = []
        for rank in range(self._size):
            board = self.boards.of(rank)
            lines.append(f"rank {rank}: {said.get(rank) or self._guess(board, own)}")
        failure = MismatchError(f"{_DIFFERENT}: {'; '.join(lines)}")
        return failure

    def _guess(self, board: Board | None, own: Board) -> str:
        if board is None:
            return "does not say"
        if board.sequence < own.sequence:
            return f"has not made call {own.sequence} yet"
        return board.text or self._text(board, "an unknown call")

    def _text(self, board: Board, otherwise: str) -> str:
        plan = self.plans.get(board.signature)
        return otherwise if plan is None else plan.text


def _copy(error: PycollError) -> PycollError:
    return type(error)(*error.args)


def calls_text(number: int) -> str:
    """Return a number of calls in words."""
    return f"{number} call{'' if number == 1 else 's'}"
