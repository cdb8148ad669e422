"""Survivor: one rank's side of the recovery of a broken communicator; `Recovery` is the router's.

It reports to whatever router there is, again to each that takes another's place, and accepts what
that proposes, once it has joined it. All of it is told to the thread that recovers, as words.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from pycoll.bootstrap.control_router import SECONDS
from pycoll.bootstrap.framing import Frame, FrameType
from pycoll.bootstrap.recovery import Ballot, Proposal, Report
from pycoll.bootstrap.rendezvous import GRACE_SECONDS
from pycoll.errors import BrokenError

Send = Callable[[FrameType, bytes], None]

SUPERSEDED = "another view is proposed"


class Accepting:
    """A view is accepted here, and not yet chosen: the others may still be at it.

    That this rank has accepted does not say that another is ready: if one falls silent, the view
    may be chosen all the same, and breaks at its first call.

    Args:
        survivor: Who accepts.
        told: Called once the router says more.
    """

    def __init__(self, survivor: Survivor, told: Callable[[], None]) -> None:
        self._survivor, self._told = survivor, told
        self._over = False

    def notice(self) -> None:
        """Note that the router has said more."""
        self._told()
        self._over = True  # behind it: who waits may take away what it needs

    def done(self) -> bool:
        """Tell whether the router has said more, or this rank has waited long enough."""
        return self._over or self._survivor.patience() <= 0

    def finish(self) -> list[bytes]:
        """Go on with the view, chosen or not, unless another is proposed.

        Raises:
            BrokenError: Another is.
        """
        if self._survivor.superseded():
            raise BrokenError(SUPERSEDED)
        return []


class Survivor:
    """What a rank has accepted, and the last that it has been told and has not acted on.

    Args:
        send: Sends a frame of this communicator to the router.
        seconds: How long each step may take that waits for other ranks.
        grace: How long past that the router may take to say so.
    """

    def __init__(self, send: Send, seconds: float, grace: float = GRACE_SECONDS) -> None:
        self._send, self._seconds, self._grace = send, seconds, grace
        self._report = Report()
        self._words: list[Proposal | str] = []
        self._ended: Exception | None = None  #: why nothing more will be heard
        self._told = threading.Condition(threading.RLock())
        self._since = time.monotonic()  #: when this rank last said something to the router
        self._joined: Ballot | None = None  #: name of the view; one at a time
        self._on_word: Callable[[], None] | None = None  #: called once the router says more

    def begin(self) -> None:
        """Report to the router."""
        self._send(*self.frame())

    def frame(self) -> tuple[FrameType, bytes]:
        """Return what a router that knows nothing is told."""
        self._since = time.monotonic()
        return FrameType.RECOVER, SECONDS.pack(self._seconds) + self._report.pack()

    def next(self) -> Proposal | str | None:
        """Wait for what the router decides.

        Returns:
            A view to join, after which `accept` is called; or `chosen` is set; or why this rank is
            out; None: the router has said nothing for too long.

        Raises:
            ClosedError: This rank has closed the broken communicator.
            BootstrapError: The control plane has ended.
        """
        with self._told:
            while not (self._words or self._ended) and (left := self.patience()) > 0:
                self._told.wait(left)
            if self._words:
                return self._words.pop()
            if self._ended:
                raise self._ended
            self._since = time.monotonic()
            return None

    @property
    def accepted(self) -> bool:
        """Whether this rank has accepted any view."""
        return bool(self._report.accepted)

    @property
    def chosen(self) -> Proposal | None:
        """The proposal of which all voters have accepted the view."""
        return self._report.chosen

    @contextlib.contextmanager
    def joining(self, superseded: Callable[[], None]) -> Iterator[None]:
        """Call ``superseded`` once the router says more while what is inside goes on."""
        with self._told:
            self._on_word = superseded
            told = bool(self._words or self._ended)
        try:
            if told:
                superseded()
            yield
        finally:
            with self._told:
                self._on_word = None

    def joined(self, proposal: Proposal) -> bool:
        """Tell whether this view is the one that this rank has joined last."""
        return proposal.view.name == self._joined

    def accept(self, proposal: Proposal) -> None:
        """Say that this rank has joined a view."""
        with self._told:
            self._joined = proposal.view.name
            self._accept(proposal)

    def accepting(self, proposal: Proposal, told: Callable[[], None]) -> Accepting:
        """Accept a view that this rank needs nobody any more to join, and wait for the others.

        Args:
            proposal: Of the view.
            told: Called once the router says more, in place of what `joining` was given.

        Raises:
            BrokenError: Another view is proposed.
        """
        accepting = Accepting(self, told)
        with self._told:
            if self.superseded():
                raise BrokenError(SUPERSEDED)
            self._on_word = accepting.notice
            self.accept(proposal)
        return accepting

    def superseded(self) -> bool:
        """Tell whether the router has said more, and not that the view is chosen."""
        with self._told:
            return not self.chosen and bool(self._words or self._ended)

    def patience(self) -> float:
        """Return how many seconds the router may still take."""
        return self._since + self._seconds + self._grace - time.monotonic()

    def raise_out(self) -> None:
        """Say to all routers from now on that this rank has given up."""
        with self._told:
            self._report = self._report._replace(out=True)
            self._send(*self.frame())

    def end(self, error: Exception) -> None:
        """Have who waits for the router wait no longer."""
        with self._told:
            self._ended = self._ended or error
            self._told.notify_all()
            on_word = self._on_word
        if on_word:
            on_word()

    # What follows runs on the control thread.

    def hear(self, frame: Frame) -> None:
        """Take what the router says."""
        with self._told:
            word: Proposal | str
            if frame.kind is FrameType.OUT:
                word = frame.body.decode(errors="replace")
            else:
                word, _ = Proposal.unpack(frame.body)
                if frame.kind is FrameType.CHOSEN:
                    self._report = self._report._replace(chosen=word)
                elif word.ballot != word.view.name:
                    # Perhaps another router's, of which all that are here have this share.
                    self._accept(word)
                    return
            self._words[:] = [word]  # what it said before holds no more
            self._told.notify_all()
            on_word = self._on_word
        if on_word:
            on_word()

    def _accept(self, proposal: Proposal) -> None:
        self._since = time.monotonic()
        self._report = self._report._replace(accepted=(*self._report.accepted, proposal))
        self._send(FrameType.ACCEPT, proposal.ballot.pack())
