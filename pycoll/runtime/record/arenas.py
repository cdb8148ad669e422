"""Arenas: the memory of the ranks of this machine, found and read from outside.

A rank's shared memory is a file without a name, which /proc shows to whoever may trace the process.
It is opened and mapped for reading only: no rank finds out, waits or is woken. Nothing that is read
there is believed, as any process can make such a file.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from pycoll.errors import UnavailableError
from pycoll.runtime.native import bindings, trace
from pycoll.runtime.record.kinds import Kind, by_call
from pycoll.runtime.record.stats import CallStats
from pycoll.runtime.record.ticks import Clock

#: What /proc shows of a descriptor of such memory; native/shm/shm.c names it.
_LINK = "/memfd:pycoll (deleted)"
#: A wait for a peer that is so long is remembered.
_LONG_WAIT_US = 1000
#: Searching for new ranks takes at most this share of the time, and is not done more often.
_SEARCH_SHARE, _SEARCH_SECONDS = 0.05, 1.0
#: More ranks than any job has.
_MOST_RANKS = 1 << 24
_STATES = {bindings.CALLING: "calling", bindings.CLOSED: "closed"}


class About(NamedTuple):
    """What a rank says of itself; texts may hold anything."""

    pid: int  #: in its own PID namespace
    job: str
    name: str  #: of the communicator, alike on all its ranks
    rank: int
    size: int
    device: str
    rails: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> About | None:
        """Return what a text of `Recorder` says; None if it is none."""
        if text.count("\t") < 6:
            return None
        pid, job, *name, rank, size, device, rails = text.split("\t")  # a name may hold tabs
        at, own, among = (_number(one) for one in (pid, rank, size))
        if not (at > 0 and 0 <= own < among <= _MOST_RANKS):
            return None
        named = tuple(rails.split(",")) if rails else ()
        return cls(at, job, "\t".join(name), own, among, device, named)


class Wait(NamedTuple):
    """A call that waited long for a peer, or does so."""

    call: int  #: its number
    peer: int
    seconds: float  #: that the call has waited so far, for whomever


class Look(NamedTuple):
    """What a rank's memory said at a moment."""

    at_ns: int  #: the moment, of CLOCK_MONOTONIC here
    state: str  #: "calling", "idle" or "closed"
    calls: int  #: begun
    kind: Kind  #: of the last one
    since_ns: int | None  #: when that began, or ended if the rank is idle; None: not known
    waits: int  #: times that nothing could be done in the last call
    peer: int | None  #: that the last call has waited for the longest
    last_wait: Wait | None
    waited_ns: int  #: in all calls
    collectives: dict[str, CallStats]  #: of the calls that have begun
    sent: tuple[int, ...]  #: bytes by rail


class Seen(NamedTuple):
    """A rank that was looked at."""

    key: tuple[int, int]  #: tells its memory from any other on this machine
    pid: int  #: here
    host: str
    stopped: bool  #: its process is, by a signal or a debugger
    about: About
    look: Look


class Sight(NamedTuple):
    """What could be seen of this machine."""

    ranks: list[Seen]
    passed_over: int  #: processes that this user may not look into
    unreadable: int  #: memory of that name which is none of a rank of this version


class Arena:
    """A rank's memory, mapped for reading only.

    Args:
        pid: Of a process, as it is numbered here.
        path: Of the memory in /proc.

    Raises:
        OSError: There is no such file, or this user may not open it.
        ValueError: It is no memory of a rank, or one of another version of pycoll.
    """

    def __init__(self, pid: int, path: str) -> None:
        self.pid, self.path = pid, path
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._memory = _mapped(fd)
            self.key = _key(os.fstat(fd))
        finally:
            os.close(fd)
        ring = trace.trace_find(self._memory)
        if ring is None:
            raise ValueError(f"{path} is no memory of a rank of this version")
        self._ring = ring
        self.about: About | None = None

    def there(self) -> bool:
        """Tell whether the process still has it."""
        try:
            return _key(os.stat(self.path)) == self.key
        except OSError:
            return False

    def own(self) -> bool:
        """Tell whether the process is the rank that it is of; a child of it has it, too."""
        self.about = self.about or About.read(trace.trace_about(self._ring))
        return self.about is not None and _inner_pid(self.pid) == self.about.pid

    def look(self, clock: Clock) -> Look | None:
        """Return what it says; None if it is no memory of a rank any more."""
        latest = trace.trace_latest(self._ring, _LONG_WAIT_US)
        totals = trace.trace_totals(self._ring)
        status = trace.trace_status(self._memory)
        if status is None:
            return None
        calls, signature, number = status
        refused = signature == bindings.REFUSED
        text = totals.calls.get(signature, (0, "a refused call" if refused else "a call"))[1]
        event = latest.begun if latest.begun and latest.begun.sequence == calls else None
        state = _STATES.get(number, "idle")
        if state == "calling" and event and event.finished:
            state = "idle"
        last = latest.finished
        ticks = event.entered if event else 0
        if state != "calling":
            ticks = last.finished if last else 0
        return Look(
            time.monotonic_ns(),
            *(state, calls, Kind.read(text), clock.ns(ticks)),
            event.waits if event else 0,
            event.peer if event and event.peer >= 0 else None,
            _wait(latest.waited),
            *(totals.waited_ns, by_call(totals)),
            last.sent if last else (),
        )


class Arenas:
    """Those of this machine that this user may read.

    Raises:
        UnavailableError: There is no /proc.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], Arena] = {}
        self._passed_over = self._unreadable = 0
        self._due = 0.0  #: when to search again
        self._here = os.uname().nodename
        if not process_state(os.getpid()):
            raise UnavailableError("ranks are found in /proc, which is not mounted")

    def look(self) -> Sight:
        """Look at every rank once."""
        if time.monotonic() >= self._due:
            self._search()
        clock, ranks = Clock(), []
        for key, arena in list(self._found.items()):
            state = process_state(arena.pid)
            look = arena.look(clock) if state and arena.there() else None
            if look is None:  # its memory is given back, too
                del self._found[key]
            elif arena.about:
                stopped = state in ("T", "t")
                ranks.append(
                    Seen(key, arena.pid, self._host(arena.pid), stopped, arena.about, look)
                )
        return Sight(ranks, self._passed_over, self._unreadable)

    def _search(self) -> None:
        began = time.monotonic()
        self._passed_over = self._unreadable = 0
        bad: set[tuple[int, int]] = set()
        for pid in _pids():
            try:
                self._search_process(pid, bad)
            except PermissionError:
                self._passed_over += 1
            except OSError:  # it has ended meanwhile
                continue
        self._unreadable = len(bad)
        now = time.monotonic()
        self._due = now + max(_SEARCH_SECONDS, (now - began) / _SEARCH_SHARE)

    def _search_process(self, pid: int, bad: set[tuple[int, int]]) -> None:
        for path in _descriptors(pid):
            try:
                key = _key(os.stat(path))
                if key in self._found:
                    continue
                arena = Arena(pid, path)
            except OSError:
                continue
            except ValueError:
                bad.add(key)
                continue
            if arena.own():
                self._found[arena.key] = arena

    def _host(self, pid: int) -> str:
        """Return where a process runs: what it calls this host only it can tell."""
        try:
            here = os.readlink("/proc/self/ns/uts") == os.readlink(f"/proc/{pid}/ns/uts")
        except OSError:
            here = True
        return self._here if here else f"{self._here} (container)"


def process_state(pid: int) -> str:
    """Return the letter of a process's state, such as "S"; "" if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0].decode("ascii", "replace")
    except (OSError, IndexError):
        return ""
    return "" if state in ("Z", "X") else state


def _number(text: str) -> int:
    """Return what a text of few digits stands for; -1 of any other."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def _wait(event: trace.RawEvent | None) -> Wait | None:
    return Wait(event.sequence, event.peer, event.waited_ns / 1e9) if event else None


def _key(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _mapped(fd: int) -> mmap.mmap:
    """Map a file for reading.

    Raises:
        ValueError: Reading could raise SIGBUS, or there is no room for it.
    """
    try:
        found = os.fstat(fd)
        # What can be cut short has no page there then; nor has huge memory, once that is used up.
        shrinks = not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        huge = os.fstatvfs(fd).f_bsize != mmap.PAGESIZE
        if not stat.S_ISREG(found.st_mode) or shrinks or huge:
            raise ValueError("it is not sealed, as memory of ranks is")
        return mmap.mmap(fd, found.st_size, mmap.MAP_SHARED, mmap.PROT_READ)
    except (OSError, OverflowError) as error:
        raise ValueError(f"it cannot be mapped: {error}") from error


def _pids() -> Iterator[int]:
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                yield int(entry.name)


def _descriptors(pid: int) -> Iterator[str]:
    """Yield the paths of a process's descriptors of such memory."""
    with os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            try:
                if os.readlink(entry.path) == _LINK:
                    yield entry.path
            except OSError:  # closed meanwhile
                continue


def _inner_pid(pid: int) -> int:
    """Return how a process numbers itself: in a container it is another number; 0: it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("NSpid:"):
                    return int(line.split()[-1])
    except (OSError, ValueError):
        pass
    return 0
