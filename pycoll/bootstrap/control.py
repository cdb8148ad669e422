"""Control: a communicator's share of the control plane, which lasts until it is closed.

It carries deaths, aborts, statuses and small exchanges over one connection from every rank to rank
0, by a thread that sleeps until something happens: an idle control plane costs nothing. Ranks
are counted here as in the communicator; on the wire a rank is that of the whole job.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence

from pycoll.bootstrap.clock import Aligned
from pycoll.bootstrap.control_plane import ControlPlane
from pycoll.bootstrap.control_router import RANK, SECONDS
from pycoll.bootstrap.framing import (
    CALLS,
    MAX_BLOB,
    MAX_KEY,
    Frame,
    FrameType,
    encode,
    unpack_blobs,
    unpack_farewells,
)
from pycoll.bootstrap.group import number_of
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.reasons import CLOSED, EXITED, UNREACHABLE, WENT_ON
from pycoll.bootstrap.rendezvous import GRACE_SECONDS
from pycoll.bootstrap.survivor import Survivor
from pycoll.errors import (
    BootstrapError,
    BrokenError,
    ClosedError,
    CollectiveTimeout,
    PeerLostError,
    UsageError,
    encoded,
)

MAX_TEXT = 16384  #: characters of an abort's text
REFUSED = "refused"  #: kind of an abort that ends nothing: a call was refused, on one rank
GONE = "lost"  #: kind of an abort whose text says which rank is gone, and how
#: The same of a rank that left in good order; first comes the number of the call that misses it.
MISSED = "missed"
REVOKED = "revoked"  #: kind of an abort that a rank's user called for
_REFUSED_KEPT = 64  #: refused calls that another router is told of; a status has as many

OnLost = Callable[[int, str], None]
OnAbort = Callable[[int, str, str], None]
StatusOf = Callable[[], bytes]


def said(reason: str) -> str:
    """Return the reason of a loss as a clause."""
    return "it cannot be reached any more" if reason == UNREACHABLE else f"it {reason}"


class Exchange:
    """The calling thread's side of one exchange."""

    def __init__(self, frame: Frame, notice: Callable[[], None] | None = None) -> None:
        self.frame = frame  #: what this rank gives to it
        self.done = threading.Event()
        self.blobs: list[bytes] = []
        self.error: Exception | None = None
        self._notice = notice

    def resolve(self, blobs: list[bytes], error: Exception | None) -> None:
        """Give the outcome; only the first counts."""
        if not self.done.is_set():
            self.blobs, self.error = blobs, error
            if self._notice:
                self._notice()
            self.done.set()


class Wanted:
    """What this rank wants of those things that one rank makes for all."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.told = threading.Event()  #: there is something to do, or it is over
        self.over = threading.Event()
        self.blob: bytes | None = None  #: once told, None: this rank is to make it
        self.error: Exception | None = None


class Control:
    """One per communicator; usable from any thread of the process that made it.

    Args:
        plane: What carries it.
        ranks: The job's ranks in this communicator, in its order; all by default.
        number: Under which its frames travel; 0 is that of all ranks.
    """

    def __init__(
        self, plane: ControlPlane, ranks: Sequence[int] | None = None, number: int = 0
    ) -> None:
        star = plane.star
        self.number = number
        self.ranks = tuple(range(star.size) if ranks is None else ranks)
        self.size = len(self.ranks)
        self.rank = self.ranks.index(star.rank)
        self.members = tuple(star.members[rank] for rank in self.ranks)
        #: A key of this communicator's ranks alone.
        self.secret = hmac.digest(star.secret, b"group %d" % number, hashlib.sha256)
        self._plane = plane
        self._here = {rank: i for i, rank in enumerate(self.ranks)}
        self._closed = False
        self._lock = threading.RLock()  # a finalizer or a signal handler may close this amid a call
        self._calling = threading.RLock()  # held while a callback of this communicator runs
        self._exchanges: dict[str, Exchange] = {}
        self._wanted: dict[str, Wanted] = {}
        # What a router that takes another's place is told anew. The last exchange that was
        # completed here may not be so elsewhere; the one before is.
        self._given: Frame | None = None
        self._aborts: list[Frame] = []
        self._refused: deque[Frame] = deque(maxlen=_REFUSED_KEPT)  # of them there may be any number
        self._lost: dict[int, str] = {}
        self._calls: dict[int, int] = {}
        self._statuses: dict[int, bytes] = {}
        self._answered = threading.Event()  # of the present question, if there is one
        self._asking = False  # there is one
        self._broken: Exception | None = None  #: why no exchange can end
        self._fatal: Exception | None = None  #: the same, but for ranks that left in good order
        self._untold: deque[Frame] = deque()
        self._asked = False
        self._survivor: Survivor | None = None  #: once this rank recovers
        self._callbacks: tuple[OnLost, OnAbort, StatusOf | None] | None = None
        if self.size > 1:
            plane.add(self, self._joining() if number else None)

    def group(self, ranks: Sequence[int], key: str) -> Control:
        """Return the control of some of these ranks; each of them calls this, and nobody else.

        Args:
            ranks: Ranks of this communicator, this one among them, in the order of the new one.
            key: The same on all of them; never given before to a group of the same ranks.
        """
        self._check_usable("group")
        members = [self.ranks[rank] for rank in ranks if 0 <= rank < self.size]
        if len(set(members)) < len(ranks) or self.ranks[self.rank] not in members:
            raise UsageError(
                f"group {key!r}: ranks are {list(ranks)}, want ranks below {self.size}, each "
                f"once, and {self.rank} among them"
            )
        return Control(self._plane, members, number_of(self.number, key, members))

    def recover(self, seconds: float) -> Survivor:
        """Tell the router that this rank goes on without those who are gone; see `Survivor`.

        Args:
            seconds: How long each step may take that waits for others.
        """
        self._check_usable("recover")
        with self._lock:
            if self._survivor:
                raise UsageError(
                    "shrink: it was called on this communicator before: shrink the one it "
                    "returned; if it raised, this rank is out"
                )
            self._survivor = Survivor(
                lambda kind, body: self._post(self._frame(kind, body=body)), seconds
            )
        self._survivor.begin()
        return self._survivor

    def forsake(self) -> bool:
        """Turn to another router, as this one does not answer; False: it is this rank."""
        return self._plane.forsake()

    def attach(self, on_lost: OnLost, on_abort: OnAbort, status: StatusOf | None = None) -> None:
        """Name the callbacks; what happened before is told now. All on the control thread.

        Args:
            on_lost: Told a rank that is gone, and the reason.
            on_abort: Told a rank that gave up, the kind and the text.
            status: Returns what this rank answers to an `ask`.
        """
        self._check_usable("attach")
        if self._callbacks:
            raise UsageError("attach: the control plane has its callbacks already")
        self._callbacks = on_lost, on_abort, status
        self._plane.post()

    def abort(self, kind: str, text: str) -> None:
        """Tell every other rank, once, that this rank gives up, and why."""
        self._abort(kind, text)

    def fail(self, kind: str, text: str) -> None:
        """The same, and end the exchanges and call back here as there."""
        self._give_up(self._abort(kind, text))
        self._plane.post()

    def ask(self) -> threading.Event:
        """Ask every rank for its status; `statuses` knows the answers once the event is set."""
        self._check_usable("ask")
        with self._lock:
            answered, self._asking = self._answered, True
        self._post(self._frame(FrameType.ASK))
        return answered

    def statuses(self) -> dict[int, bytes]:
        """Return the last status of each rank that has ever been asked and has answered."""
        with self._lock:
            return dict(self._statuses)

    def exchange(self, key: str, blob: bytes, timeout: float) -> list[bytes]:
        """Give every rank's blob to every rank, in rank order.

        Args:
            key: Names this exchange on all ranks; at most 256 bytes.
            blob: This rank's part; at most 1 MiB.
            timeout: Seconds until the exchange fails on every rank that came.

        Raises:
            CollectiveTimeout: Ranks did not come in time; the message names them.
            PeerLostError: A rank is gone.
            BrokenError: A rank called `abort`.
        """
        return self.finish(self.begin(key, blob, timeout), key, timeout)

    def begin(
        self, key: str, blob: bytes, timeout: float, notice: Callable[[], None] | None = None
    ) -> Exchange:
        """Begin an exchange, which `finish` ends; ``notice`` is called once it can."""
        self._check_usable("exchange")
        if len(blob) > MAX_BLOB:
            raise UsageError(f"exchange {key!r}: blob has {len(blob)} bytes, at most {MAX_BLOB}")
        if not 0 <= timeout <= 86400:
            raise UsageError(f"exchange {key!r}: timeout is {timeout}, want 0 to 86400 seconds")
        frame = self._frame(FrameType.CONTRIBUTE, key, SECONDS.pack(timeout) + blob)
        exchange = Exchange(frame, notice)
        if self.size == 1:
            exchange.resolve([bytes(blob)], None)
            return exchange
        with self._lock:
            if self._broken:
                raise self._broken
            if key in self._exchanges:
                raise UsageError(f"exchange {key!r} is already under way in this process")
            self._exchanges[key] = exchange
        try:
            self._post(frame)
        except BaseException:
            with self._lock:
                del self._exchanges[key]
            raise
        return exchange

    def finish(self, exchange: Exchange, key: str, timeout: float) -> list[bytes]:
        """Wait for an exchange that was begun, and return every rank's blob."""
        try:
            # The router keeps the time, because it knows who is missing.
            if not exchange.done.wait(timeout + GRACE_SECONDS):
                raise CollectiveTimeout(
                    f"exchange {key!r}: rank {self.rank} waited {timeout:g} s, "
                    "and the control plane does not answer"
                )
        finally:
            with self._lock:
                self._exchanges.pop(key, None)
        if exchange.error:
            raise exchange.error
        return exchange.blobs

    def once(self, key: str, make: Callable[[], bytes], timeout: float) -> bytes:
        """Return what one of the ranks that want it makes; the others wait for that.

        No rank waits for one that does not want it. If the maker leaves meanwhile, or `make` raises
        on it, the next one makes it; a rank that all others have left makes it itself.

        Args:
            key: The same on all ranks that want the same; at most 256 bytes.
            make: Returns it, less than 1 MiB; called on one rank, in the thread that calls this.
            timeout: Seconds to wait for the rank that makes it.

        Raises:
            CollectiveTimeout: It was not made in time.
            PeerLostError: A rank is gone.
            BrokenError: A rank called `abort`.
        """
        if self.size == 1:
            return make()
        self._check_usable("once")
        mine = Wanted(self._frame(FrameType.ONCE, key))
        while True:
            with self._lock:
                if self._fatal:
                    raise self._fatal
                if self._alone():
                    return make()
                wanted = self._wanted.setdefault(key, mine)
            if wanted is mine:
                break
            # Another thread wants the same.
            if wanted.over.wait(timeout) and wanted.blob is not None:
                return wanted.blob
        making = False
        try:
            self._post(mine.frame)
            if not mine.told.wait(timeout):
                raise CollectiveTimeout(
                    f"rank {self.rank} waited {timeout:g} s for another to make what all need"
                )
            if mine.error:
                raise mine.error
            if mine.blob is None:
                making = True
                mine.blob = self._make(key, make)
            return mine.blob
        finally:
            with self._lock:
                del self._wanted[key]
                asked = mine.told.is_set() and mine.blob is None and mine.error is None
                if asked and not making:  # as it gave up waiting: let another make it
                    self._post(self._frame(FrameType.MADE, key))
            mine.over.set()

    def _make(self, key: str, make: Callable[[], bytes]) -> bytes:
        try:
            blob = make()
            if len(blob) >= MAX_BLOB:
                raise UsageError(f"once {key!r}: {len(blob)} bytes, less than {MAX_BLOB} wanted")
        except BaseException:
            self._post(self._frame(FrameType.MADE, key))
            raise
        self._post(self._frame(FrameType.MADE, key, b"\1" + blob))
        return blob

    def cancel(self, error: Exception) -> None:
        """End the exchanges, here alone."""
        self._fail(error)

    def check(self) -> None:
        """Raise what keeps exchanges from ending, if anything does: a rank is gone, or gave up."""
        with self._lock:
            if self._broken:
                raise self._broken

    def describe(self, rank: int) -> str:
        """Return "rank 3 (process 4711 on node7)", for messages; of a group, its number in both."""
        of_job = self.ranks[rank]
        also = "" if of_job == rank else f"rank {of_job} of the job, "
        return f"rank {rank} ({also}{self.members[rank]})"

    def lost(self) -> dict[int, str]:
        """Return the ranks that are gone, each with its reason."""
        with self._lock:
            return dict(self._lost)

    def calls_of(self, rank: int) -> int | None:
        """Return how many calls `rank` had finished when it left in good order.

        It is known before `on_lost` is told. None while the rank is here, and if it died.
        A rank that closed after its n-th call has done its part of the calls 1 to n.
        """
        with self._lock:
            return self._calls.get(rank)

    def close(self, calls: int = 0, *, reason: str = CLOSED) -> None:
        """Take leave of the other ranks; no callback runs after it. Closing twice does nothing.

        Args:
            calls: How many calls this rank has finished, for the others' `calls_of`.
            reason: CLOSED, EXITED when the interpreter ends without close(), or a clause that says
                more, such as "failed with ValueError: ..."; what is too long is cut off.
        """
        if self._survivor and self._survivor.accepted:
            reason = WENT_ON if reason in (CLOSED, EXITED) else f"{WENT_ON}; {reason}"
        reason = encoded(reason[:MAX_KEY])[:MAX_KEY].decode(errors="ignore")
        with self._lock:
            if self._closed or self._plane.forked:
                return
            self._closed = True
        if self.size > 1:
            farewell = self._frame(FrameType.CLOSED, reason, CALLS.pack(calls))
            said = [*self._refused, *self._aborts, *self._recovering()]
            self._plane.leave(self, [self._joining(), *said, farewell])
        self.end(ClosedError(f"rank {self.rank} has closed its control plane"))
        with self._calling:  # held by none but the control thread, which may be who calls this
            return

    @property
    def job_rank(self) -> int:
        """Return this rank's number in the whole job."""
        return self.ranks[self.rank]

    def align(self, seconds: float) -> Aligned | None:
        """Find out how the clock here stands to that of a rank whom all ranks of the job ask.

        Returns:
            None: nobody has ever answered.
        """
        return self._plane.align(seconds)

    def job(self) -> tuple[Member, ...]:
        """Return where every rank of the whole job lives."""
        return tuple(self._plane.star.members)

    def current(self) -> bool:
        """Tell whether the caller is the control thread, which cannot wait for its own end."""
        return self._plane.current()

    def forget(self) -> None:
        """Run in a forked child, where a thread that holds the lock does not exist."""
        self._lock = threading.RLock()

    def _joining(self) -> Frame:
        """Return what tells a router of this communicator."""
        return self._frame(FrameType.JOIN, body=struct.pack(f"<{self.size}I", *self.ranks))

    def _recovering(self) -> list[Frame]:
        if self._survivor is None:
            return []
        kind, body = self._survivor.frame()
        return [self._frame(kind, body=body)]

    def _frame(self, kind: FrameType, key: str = "", body: bytes = b"") -> Frame:
        return Frame(kind, self.ranks[self.rank], key, body, self.number)

    def _abort(self, kind: str, text: str) -> Frame:
        self._check_usable("abort")
        frame = self._frame(FrameType.ABORT, kind, encoded(text[:MAX_TEXT]))
        (self._refused if kind == REFUSED else self._aborts).append(frame)
        self._post(frame)
        return frame

    def _check_usable(self, what: str) -> None:
        if self._plane.forked:
            raise UsageError(
                f"{what}: this communicator belongs to process {self._plane.pid}, and this is its "
                f"child {os.getpid()}: call pycoll.init() in the process that uses it"
            )
        if self._closed:
            raise ClosedError(f"{what}: rank {self.rank} has closed its control plane")

    def _post(self, frame: Frame) -> None:
        encode(frame)  # a key that is too long is the caller's error, not the thread's
        with self._lock:
            # Not after the farewell: rank 0 may have forgotten the group.
            if not self._closed and self.size > 1:
                self._plane.post(frame)

    # What follows runs on the control thread.

    def recall(self) -> list[Frame]:
        """Return what a router that knows nothing must hear: it may have heard some of it."""
        with self._lock:
            left = [
                self._frame(
                    FrameType.HEARD, self._lost[r], RANK.pack(self.ranks[r]) + CALLS.pack(calls)
                )
                for r, calls in self._calls.items()
            ]
            given = [self._given] if self._given else []
            given += [exchange.frame for exchange in self._exchanges.values()]
            given += [wanted.frame for wanted in self._wanted.values()]
            question = [self._frame(FrameType.ASK)] if self._asking else []
            said = [*self._refused, *self._aborts, *self._recovering()]
            return [self._joining(), *left, *said, *given, *question]

    def deliver(self, frame: Frame) -> None:
        """Act on a frame that is for this communicator."""
        if frame.kind is FrameType.GATHERED:
            self._resolve(frame.key, unpack_blobs(frame.body, self.size), None)
        elif frame.kind is FrameType.MISSING:
            text = frame.body.decode(errors="replace")
            self._resolve(frame.key, [], CollectiveTimeout(f"exchange {frame.key!r}: {text}"))
        elif frame.kind in (FrameType.MAKE, FrameType.MADE):
            self._told(frame)
        elif frame.kind is FrameType.ASK:
            self._asked = True
            self.tell()
        elif frame.kind is FrameType.STATUSES:
            said = unpack_blobs(frame.body, self.size)
            with self._lock:
                self._statuses.update({rank: status for rank, status in enumerate(said) if status})
                answered, self._answered = self._answered, threading.Event()
                self._asking = False
            answered.set()
        elif frame.kind in (FrameType.PROPOSED, FrameType.CHOSEN, FrameType.OUT):
            if self._survivor:
                self._survivor.hear(frame)
        elif frame.kind is FrameType.ABORT and frame.rank in self._here:
            self._give_up(frame)
        elif frame.kind is FrameType.CLOSED and frame.rank in self._here:
            self._lose(frame._replace(rank=self._here[frame.rank]))
        elif frame.kind is FrameType.LEFT:
            for farewell in unpack_farewells(frame):
                self.deliver(farewell)
        else:
            raise BootstrapError(
                f"the control router sent {frame.kind.name} about rank {frame.rank}"
            )

    def lose(self, rank: int, reason: str) -> None:
        """Note that a rank of the job is gone without having left this communicator."""
        if rank in self._here:
            self._lose(Frame(FrameType.LOST, self._here[rank], reason))

    def tell(self) -> None:
        """Call back for what happened, once there are callbacks."""
        if not (self._untold or self._asked):  # mostly; it is called at every turn of the loop
            return
        with self._calling:
            while self._untold and self._callbacks and not self._closed:
                frame = self._untold.popleft()
                try:
                    if frame.kind is FrameType.ABORT:
                        text = frame.body.decode(errors="replace")
                        self._callbacks[1](frame.rank, frame.key, text)
                    else:
                        self._callbacks[0](frame.rank, frame.key)
                except Exception as error:  # the others must still be told
                    self._plane.report(error)
            if self._asked and self._callbacks and not self._closed:
                self._asked = False
                try:
                    status = self._callbacks[2]() if self._callbacks[2] else b""
                except Exception as error:
                    self._plane.report(error)
                    return
                self._post(self._frame(FrameType.STATUS, body=status))

    def end(self, error: Exception) -> None:
        """Fail every exchange, and a recovery: nothing is heard any more."""
        self._fail(error)
        if self._survivor:
            self._survivor.end(error)

    def _resolve(self, key: str, blobs: list[bytes], error: Exception | None) -> None:
        with self._lock:
            exchange = self._exchanges.get(key)
            if exchange and error is None:
                self._given = exchange.frame
        if exchange:
            exchange.resolve(blobs, error)

    def _told(self, frame: Frame) -> None:
        """Hear that what this rank wants is there, or that it is to make it."""
        with self._lock:
            wanted = self._wanted.get(frame.key)
            # Told before: it is making it, and another router asks again.
            if wanted and not wanted.told.is_set():
                if frame.kind is FrameType.MADE:
                    wanted.blob = frame.body
                wanted.told.set()
            # It waits no longer, or is about to raise: let another.
            if frame.kind is FrameType.MAKE and (wanted is None or wanted.error):
                self._post(self._frame(FrameType.MADE, frame.key))

    def _give_up(self, frame: Frame) -> None:
        text = frame.body.decode(errors="replace")
        rank = self._here[frame.rank]
        self._announce(frame._replace(rank=rank))
        if frame.key in (REFUSED, MISSED):  # it is still there; who is missed has taken leave
            return
        gone = frame.key == GONE
        gave_up = BrokenError(f"rank {rank} gave up ({frame.key}): {text}")
        self._fail(PeerLostError(text) if gone else gave_up)

    def _lose(self, frame: Frame) -> None:
        with self._lock:
            if frame.rank in self._lost:
                return
            if frame.kind is FrameType.CLOSED:
                (self._calls[frame.rank],) = CALLS.unpack(frame.body)
            self._lost[frame.rank] = frame.key
        self._announce(frame)
        died = frame.kind is FrameType.LOST
        if self._fatal or (self._broken and not died):  # there may be one for each rank
            return
        gone = PeerLostError(f"{self.describe(frame.rank)} is gone: {said(frame.key)}")
        # Who left in good order is not missed by those that make something for the rest.
        (self._fail if died else self._break)(gone)

    def _break(self, error: Exception) -> None:
        """Fail every exchange, those under way and those to come."""
        with self._lock:
            self._broken = self._broken or error
            keys = list(self._exchanges)
            left = [*self._wanted.values()] if self._alone() else []
        for key in keys:
            self._resolve(key, [], error)
        for wanted in left:  # nobody else will make it, and perhaps nobody carries frames
            wanted.told.set()

    def _fail(self, error: Exception) -> None:
        """The same, and fail whoever waits for what is made once."""
        with self._lock:
            self._fatal = self._fatal or error
            waiting = [wanted for wanted in self._wanted.values() if not wanted.told.is_set()]
        for wanted in waiting:
            wanted.error = error
            wanted.told.set()
        self._break(error)

    def _alone(self) -> bool:
        return len(self._lost) == self.size - 1

    def _announce(self, frame: Frame) -> None:
        """Tell the callbacks first: who learns it from a failing exchange finds it known to all."""
        self._untold.append(frame)
        if self._plane.current():
            self.tell()
