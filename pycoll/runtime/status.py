"""Statuses: what every rank says it is doing; of mapped ranks read, of remote ranks asked for."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pycoll.errors import PycollError, encoded
from pycoll.runtime.native import bindings
from pycoll.runtime.native.bindings import RankStatus

if TYPE_CHECKING:
    from pycoll.runtime.join import World

#: A call that has waited this long makes its rank ask for the statuses of remote ranks; then after
#: twice as long, and so on, up to the second.
ASK_SECONDS, MOST_ASK_SECONDS = 0.5, 16.0

#: A status on its way: sequence, signature, state; the texts follow, with a zero byte between them.
_LAYOUT = struct.Struct("<QQI")


class Control(Protocol):
    """What is used here of the control plane."""

    def ask(self) -> threading.Event:
        """Ask every rank for its status; the event is set when there are answers."""

    def statuses(self) -> dict[int, bytes]:
        """Return the last status of each rank that has answered."""


class Statuses:
    """The statuses of one communicator."""

    def __init__(
        self, comm: Any, control: Control, world: World, elsewhere: Callable[[], str] = str
    ) -> None:
        self._comm, self._control = comm, control
        self._elsewhere = elsewhere  #: what this process does on its other communicators
        self._rank, self._mapped = world.rank, world.mapped
        self._all = all(world.mapped) and not world.lazy  #: every status can be read
        self._patience = ASK_SECONDS * (1 + world.size // 128)  #: so many answers take longer
        self._asking = (0, 0.0, 0.0)  #: number of the call; when to ask next; the pause then
        self._answered: threading.Event | None = None  #: of the last question
        self._heard: dict[int, set[int]] = {}  #: of each call's number, what ranks have called

    def own(self) -> RankStatus:
        """Return this rank's status."""
        return bindings.status_read(self._comm, self._rank)

    def of(self, rank: int) -> RankStatus | None:
        """Return a rank's status; None of one that cannot be read and has never answered."""
        return self._read(rank) or parse(self._control.statuses().get(rank, b""))

    def exact(self, rank: int) -> bool:
        """Tell whether `of` returns what a rank's status says now, and not what was last heard."""
        return self._read(rank) is not None

    def differ(self, own: RankStatus) -> bool:
        """Tell whether a rank is in the call of this rank's number, and has called another."""
        if bindings.status_differs(self._comm):
            return True
        if self._answered and self._answered.is_set():
            self._answered = None
            self._heard.clear()
            for said in self._control.statuses().values():
                heard = parse(said)
                if heard and heard.state == bindings.CALLING:
                    self._heard.setdefault(heard.sequence, set()).add(heard.signature)
        return not self._heard.get(own.sequence, {own.signature}) <= {own.signature}

    def _read(self, rank: int) -> RankStatus | None:
        return bindings.status_look(self._comm, rank) if self._mapped[rank] else None

    def said(self) -> bytes:
        """Return what this rank answers to ranks that cannot read its status."""
        own = self.own()
        texts = f"{own.text}\0{self._elsewhere()}"
        return _LAYOUT.pack(own.sequence, own.signature, own.state) + encoded(texts)

    def elsewhere(self, rank: int) -> str:
        """Return what a rank's process does on its other communicators, as it said when asked."""
        status = parse(self._control.statuses().get(rank, b""))
        return status.elsewhere if status else ""

    def ask_in_time(self, own: RankStatus) -> None:
        """Ask for statuses that cannot be read if this call has waited long, more and more rarely.

        What was heard holds until the next answer: a sequence only grows, and two ranks that are
        in one numbered call with different signatures never leave it.
        """
        if self._all:
            return
        number, due, pause = self._asking
        now = time.monotonic()
        if number != own.sequence:
            self._asking = own.sequence, now + self._patience, self._patience
        elif now >= due:
            pause = min(2 * pause, MOST_ASK_SECONDS)
            self._asking = number, now + pause, pause
            self.question()

    def question(self) -> threading.Event | None:
        """Ask every rank for its status; the event is set when there are answers."""
        try:
            self._answered = self._control.ask()
        except PycollError:  # closed meanwhile
            return None
        return self._answered

    def refresh(self, seconds: float) -> None:
        """Ask every rank for its status and what it does elsewhere; wait at most so long."""
        answered = self.question()
        if answered:
            answered.wait(seconds)


def parse(said: bytes) -> RankStatus | None:
    """Read a status as a remote rank said it; None if it is not one."""
    if len(said) < _LAYOUT.size:
        return None
    sequence, signature, state = _LAYOUT.unpack_from(said)
    text, _, elsewhere = said[_LAYOUT.size :].decode(errors="replace").partition("\0")
    return RankStatus(sequence, signature, state, text, elsewhere)
