"""The ranks of `pycoll run`: their output is passed on, the first failure ends them all."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pycoll.bootstrap.control_router import rank_list
from pycoll.bootstrap.forwarding import Lines, Sink
from pycoll.bootstrap.processes import Process, Started, Starter, end_children

LAST = 20  #: lines of a failed rank that are shown once more
#: How long a rank that has lost another may be the only one to fail: the other is on its way out.
PATIENCE = 3.0
_AT_A_TIME = 16  #: ranks that are started before what they say is heard
_CONSEQUENCE = re.compile(r"\b(PeerLostError|BrokenError|Connection (closed|reset) by peer)\b")


@dataclass(eq=False)
class Rank:
    """A rank's process, as the launcher sees it."""

    number: int
    process: Process
    streams: tuple[int, int]
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST))
    code: int | None = None  #: as subprocess has it: below 0 the signal

    @property
    def bereft(self) -> bool:
        """Whether it seems to have failed because another rank went away."""
        return any(_CONSEQUENCE.search(line) for line in self.last)

    @property
    def fate(self) -> str:
        """How it ended."""
        assert self.code is not None
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        return f"was ended by {_name(-self.code)}"


class Ranks:
    """Starts the ranks of a job, passes on what they write, and sees how they end.

    Args:
        starter: What starts them; closed in the end.
        grace: Seconds from one step of ending them to the next, harsher one.
    """

    ENDING = (signal.SIGTERM, signal.SIGKILL)  #: what ranks get, one after the other

    def __init__(self, starter: Starter, grace: float) -> None:
        self._starter, self._size, self._grace = starter, starter.size, grace
        self._ranks: list[Rank] = []
        self._streams: dict[int, tuple[Rank, Lines]] = {}  # file descriptor → what comes there
        self._out, self._err = Sink(1), Sink(2)
        self._sinks = [self._out, self._err]  # in turn
        self._failed: list[Rank] = []  # of themselves, in order
        self._told: int | None = None  # the signal that ended the job
        self._urgent = False  # a signal came, be it to end what was ending: wait for no reader
        self._steps: list[signal.Signals] = []  # that are still to be sent
        self._sent: dict[int, list[Rank]] = {}  # signal → whom it was sent to
        self._until: float | None = None  # when to take the next

    def run(self, signals: int) -> int:
        """Start the ranks, none of them a fork, and see to the end of the job; see `wait`."""
        self.start(signals)
        return self.wait(signals)

    def start(self, signals: int) -> bool:
        """Start the ranks; False in a rank that is a fork of this process.

        What starts a thousand of them takes a while, in which the first may fail, or a signal come.

        Args:
            signals: A pipe with the number of each signal that this process gets.
        """
        for number in range(self._size):
            if self._steps or self._sent:
                break
            if not self._start(number):
                return False
            if number % _AT_A_TIME == _AT_A_TIME - 1:
                self._turn(signals, 0.0)
        return True

    def wait(self, signals: int) -> int:
        """See to the end of the job, and return its exit code. Nothing is left of it.

        Args:
            signals: As above.
        """
        with contextlib.closing(self._starter):
            try:
                while self._running() or self._streams:
                    self._turn(signals)
                    if not self._running():
                        end_children()  # what they left would keep their streams open
                for line in self._report():
                    self._err.add(line.encode())
                while any(sink.held for sink in self._sinks):
                    self._turn(signals)
            finally:
                end_children()
        if self._told is not None:
            return 128 + self._told
        code = self._cause().code if self._failed else 0
        assert code is not None
        return code if code >= 0 else 128 - code

    def _start(self, number: int) -> bool:
        started = self._starter.start(number)
        if started is None:
            return False
        self._add(number, started)
        return True

    def _add(self, number: int, started: Started) -> Rank:
        rank = Rank(number, started.process, (started.out, started.err))
        self._ranks.append(rank)
        prefix = f"[{number:{len(str(self._size - 1))}}] "
        for fd, sink in ((started.out, self._out), (started.err, self._err)):
            self._streams[fd] = rank, Lines(fd, prefix, sink, rank.last)
        return rank

    def _say(self, line: str) -> None:
        """Write a line of the launcher's own."""
        self._err.add(f"pycoll run: {line}".encode())

    def _running(self) -> list[Rank]:
        return [rank for rank in self._ranks if rank.code is None]

    def _turn(self, signals: int, most: float | None = None) -> None:
        """Wait until something happens, at most so many seconds, and deal with it."""
        poll = select.poll()
        poll.register(signals, select.POLLIN)
        full = {sink for sink in self._sinks if sink.full()}
        for fd, (_, lines) in self._streams.items():
            if lines.sink not in full:
                poll.register(fd, select.POLLIN)
        for sink in self._sinks:
            if sink.held:
                poll.register(sink.fd, select.POLLOUT)
        left = most
        if self._until is not None:
            left = max(0.0, self._until - time.monotonic())
            left = left if most is None else min(left, most)
        ready = {fd for fd, _ in poll.poll(None if left is None else 1000 * left)}
        for fd in [fd for fd in self._streams if fd in ready]:  # in the order of ranks
            self._read(fd)
        for sink in [s for s in self._sinks if s.held and s.fd in ready][:1]:
            self._sinks.reverse()  # both may be one pipe, which has room for one
            if not sink.pass_on():
                self._end(signal.SIGPIPE)
        if signals in ready:
            for came in os.read(signals, 4096):
                self._heed(came)
        if self._until is not None and time.monotonic() >= self._until:
            self._step()

    def _heed(self, came: int) -> None:
        if came == signal.SIGCHLD:
            self._reap()
        elif came == signal.SIGUSR1:  # theirs, as mpirun does: they may write records
            for rank in self._running():
                rank.process.send_signal(came)
        else:
            self._end(came)

    def _read(self, fd: int) -> None:
        _, lines = self._streams[fd]
        if not lines.read():
            del self._streams[fd]
            os.close(fd)

    def _reap(self) -> None:
        for rank in self._running():
            rank.code = rank.process.poll()
            if rank.code is None:
                continue
            for fd in rank.streams:
                while self._streams.get(fd, (None,))[0] is rank and _readable(fd):
                    self._read(fd)
            if rank.code and not self._sent and self._told is None:
                self._failed.append(rank)
        self._decide()

    def _decide(self) -> None:
        """Have the job end if a rank has failed."""
        if self._failed and not self._steps and not self._sent:
            self._steps = [*self.ENDING]
            # Of those that came together, one that is not the consequence of another.
            self._until = time.monotonic() + PATIENCE * self._cause().bereft
        elif self._failed and not self._sent and not self._cause().bereft:
            self._until = time.monotonic()

    def _cause(self) -> Rank:
        return min(self._failed, key=lambda rank: rank.bereft)

    def _end(self, told: int) -> None:
        """End the ranks because of a signal; one that comes again takes the next step at once."""
        self._urgent = True
        if self._told is None and not self._failed:
            self._told = told
        if not self._steps and not self._sent:
            kind = signal.SIGINT if told == signal.SIGINT else signal.SIGTERM
            self._steps = [*dict.fromkeys((kind, signal.SIGTERM, signal.SIGKILL))]
            self._step()
        elif told == signal.SIGINT or not self._sent or signal.SIGKILL not in self._steps[:1]:
            self._step()

    def _step(self) -> None:
        """Send the next signal to those that still run; after the last, drop what nobody reads."""
        self._until = time.monotonic() + self._grace
        if not self._steps:
            if self._urgent:
                for sink in self._sinks:
                    sink.held.clear()
            else:
                self._until = None
            return
        step = self._steps.pop(0)
        self._sent[step] = self._running()
        for rank in self._sent[step]:
            rank.process.send_signal(step)

    def _report(self) -> Iterator[str]:
        """Say how the job ended, if not well."""
        forced = [rank.number for rank in self._ranks if rank.code == -signal.SIGKILL]
        forced = [n for n in forced if n in {r.number for r in self._sent.get(signal.SIGKILL, [])}]
        after = f"; {rank_list(forced)} had to be killed" if forced else ""
        if self._told is not None:
            yield f"pycoll run: ended by {_name(self._told)}{after}"
        elif self._failed:
            rank = self._cause()
            others = [r.number for r in self._sent.get(signal.SIGTERM, [])]
            ended = f"; {rank_list(others)} got SIGTERM" if others else ""
            who = f"rank {rank.number} (process {rank.process.pid})"
            yield f"pycoll run: {who} {rank.fate}{ended}{after}"
            if self._size > 1 and rank.last:
                yield f"pycoll run: the last lines of rank {rank.number}:"
                yield from (f"    {line}" for line in rank.last)


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"
