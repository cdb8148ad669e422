"""View: what follows from two looks at the ranks of this machine, by communicator."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pycoll.benchmark.operation import OPERATIONS
from pycoll.runtime.record.arenas import About, Look, Seen, Sight, process_state

FORMAT = "pycoll-top-1"
#: A call that has been under way so long, and waited, is stuck until somebody comes.
STUCK_SECONDS = 0.1


@dataclass(frozen=True)
class Row:
    """A rank; rates are of the time since the look before, and None at the first one."""

    rank: int
    pid: int
    host: str
    device: str
    state: str  #: "calling", "idle", "stopped", "closed" or "gone"
    number: int  #: calls that have begun; the last one's number
    call: str  #: the last one, such as allreduce; "": there is none yet
    algorithm: str
    nbytes: int
    dtype: str
    op: str
    seconds: float | None  #: how long it has been in that state; None: not known
    behind: int  #: calls that another rank has begun, and this one has not
    awaited: bool  #: the others wait for it
    waits_for: int | None  #: whom its call under way has waited for the longest
    last_wait_for: int | None  #: whom the last call that waited long did
    last_wait_seconds: float | None
    calls_per_s: float | None
    bytes_per_s: float | None  #: of calls that have ended
    bus_bytes_per_s: float | None  #: the same, as busbw of nccl-tests
    waiting: float | None  #: share of the time
    rails: dict[str, float | None]  #: bytes per second
    collectives: dict[str, Any]  #: as those of `Communicator.stats`


@dataclass(frozen=True)
class Group:
    """A communicator."""

    job: str
    name: str
    size: int
    here: int  #: ranks of this machine
    newest: int  #: call that any of them has begun
    waits_for: list[int]  #: ranks that the others wait for, here or not
    ranks: list[Row]


@dataclass(frozen=True)
class Snapshot:
    """All that can be seen of this machine."""

    host: str
    passed_over: int  #: processes that this user may not look into
    unreadable: int  #: memory with the name of a rank's that is none, or of another version
    communicators: list[Group]

    def told(self) -> dict[str, Any]:
        """Return what JSON shows of it."""
        return {"format": FORMAT, **asdict(self)}


class View:
    """Keeps one look to hold the next against.

    Args:
        host: This machine.
        job: How a job's id begins that alone is shown; "": all.
        pid: A process whose job alone is shown; None: all.
    """

    def __init__(self, host: str, job: str = "", pid: int | None = None) -> None:
        self._host, self._job, self._pid = host, job, pid
        self._of_pid: set[str] = set()  #: jobs of that process, which may have ended since
        self._before: dict[tuple[int, int], Seen] = {}
        #: Of communicators of which ranks are here still, those that are here no more.
        self._gone: dict[tuple[int, int], Seen] = {}

    def next(self, sight: Sight) -> Snapshot:
        """Return what a look shows."""
        ranks = self._wanted(sight.ranks)
        now = {seen.key: seen for seen in ranks}
        known = {_group(seen) for seen in ranks}
        places = {(_group(seen), seen.about.rank) for seen in ranks}
        self._gone = {
            key: seen
            for key, seen in {**self._gone, **self._before}.items()
            if key not in now
            and _group(seen) in known
            and (_group(seen), seen.about.rank) not in places
        }
        every = sorted([*ranks, *self._gone.values()], key=_order)
        groups = [self._of(list(some)) for _, some in itertools.groupby(every, _group)]
        self._before = now
        return Snapshot(self._host, sight.passed_over, sight.unreadable, groups)

    def _wanted(self, ranks: list[Seen]) -> list[Seen]:
        jobs = {seen.about.job for seen in ranks if seen.about.job.startswith(self._job)}
        if self._pid is not None:
            self._of_pid |= {seen.about.job for seen in ranks if seen.pid == self._pid}
            jobs &= self._of_pid
        return [seen for seen in ranks if seen.about.job in jobs]

    def _of(self, ranks: list[Seen]) -> Group:
        newest = max(seen.look.calls for seen in ranks)
        rows = [self._row(seen, newest) for seen in ranks]
        waits_for = awaited(rows)
        about = ranks[0].about
        return Group(
            *(printable(about.job), printable(about.name), about.size),
            sum(seen.key not in self._gone for seen in ranks),
            *(newest, waits_for),
            [replace(row, awaited=row.rank in waits_for) for row in rows],
        )

    def _row(self, seen: Seen, newest: int) -> Row:
        look, about = seen.look, seen.about
        before = self._before.get(seen.key)
        gone = seen.key in self._gone
        state = "stopped" if seen.stopped else look.state
        if gone:
            state = "closed" if process_state(seen.pid) else "gone"
        rates = _rates(about.size, look, None if gone or before is None else before.look)
        wait = look.last_wait
        names = [printable(name) for name in about.rails]
        kind = look.kind
        return Row(
            rank=about.rank,
            pid=seen.pid,
            host=seen.host,
            device=printable(about.device),
            state=state,
            number=look.calls,
            call=printable(kind.call) if look.calls else "",
            algorithm=printable(kind.algorithm),
            nbytes=kind.nbytes,
            dtype=printable(kind.dtype),
            op=printable(kind.op),
            seconds=None if gone else _since(look),
            behind=newest - look.calls,
            awaited=False,
            waits_for=_peer(look.peer, about) if look.state == "calling" and look.waits else None,
            last_wait_for=_peer(wait.peer, about) if wait else None,
            last_wait_seconds=wait.seconds if wait else None,
            calls_per_s=rates.calls,
            bytes_per_s=rates.nbytes,
            bus_bytes_per_s=rates.bus,
            waiting=rates.waiting,
            rails=dict(zip(names, [*rates.sent, *(None for _ in names)], strict=False)),
            collectives={printable(n): asdict(one) for n, one in look.collectives.items()},
        )


def awaited(rows: Iterable[Row]) -> list[int]:
    """Return the ranks that others wait for, and that wait for nobody themselves.

    Those are the ones that have not come to a call in which another is stuck. Where all have come,
    each waits for the peer that its call has waited for the longest, and that one for its own; who
    is at the end of such a chain is meant, or nobody if it is a circle. It may be a rank of another
    host.
    """
    by_rank = {row.rank: row for row in rows}
    stuck = {rank: row for rank, row in by_rank.items() if _stuck(row)}
    if not stuck:
        return []
    furthest = max(row.number for row in stuck.values())
    late = [r for r, row in by_rank.items() if r not in stuck and row.number < furthest]
    if late:
        return late
    ends = set()
    for row in stuck.values():
        passed, at = {row.rank}, row.waits_for
        while at in stuck and at not in passed:
            passed.add(at)
            at = stuck[at].waits_for
        if at is not None and at not in passed:
            ends.add(at)
    return sorted(ends)


def printable(text: str) -> str:
    """Return a text without what a terminal would heed."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _stuck(row: Row) -> bool:
    long = row.seconds is not None and row.seconds >= STUCK_SECONDS
    return row.state == "calling" and row.waits_for is not None and long


def _group(seen: Seen) -> tuple[str, str, int]:
    return seen.about.job, seen.about.name, seen.about.size


def _order(seen: Seen) -> tuple[str, bool, str, int, int]:
    about = seen.about  # the job itself comes before groups of it
    return about.job, about.name != "job", about.name, about.size, about.rank


def _since(look: Look) -> float | None:
    return max(0.0, (look.at_ns - look.since_ns) / 1e9) if look.since_ns else None


def _peer(peer: int | None, about: About) -> int | None:
    return peer if peer is not None and peer < about.size else None


@dataclass(frozen=True)
class _Rates:
    """What was done in a second between two looks; None: there was no look before."""

    calls: float | None = None
    nbytes: float | None = None
    bus: float | None = None
    waiting: float | None = None  #: seconds
    sent: tuple[float, ...] = ()  #: by rail


def _rates(size: int, now: Look, before: Look | None) -> _Rates:
    seconds = (now.at_ns - before.at_ns) / 1e9 if before else 0.0
    if before is None or seconds <= 0:
        return _Rates()
    finished, earlier = _finished(now), _finished(before)
    many = {name: max(0, n - earlier.get(name, 0)) for name, n in finished.items()}
    bus = sum(_crossings(name, size) * n for name, n in many.items())
    # Before the first call has ended a ring says nothing of rails.
    sent = zip(now.sent, before.sent or [0] * len(now.sent), strict=False)
    return _Rates(
        max(0, now.calls - before.calls) / seconds,
        sum(many.values()) / seconds,
        bus / seconds,
        min(1.0, max(0, now.waited_ns - before.waited_ns) / 1e9 / seconds),
        tuple(max(0, n - then) / seconds for n, then in sent),
    )


def _finished(look: Look) -> dict[str, int]:
    """Return the bytes of calls that have ended, by their names."""
    nbytes = {name: one.nbytes for name, one in look.collectives.items()}
    if look.state == "calling" and look.kind.call in nbytes:
        nbytes[look.kind.call] -= look.kind.nbytes
    return nbytes


def _crossings(name: str, size: int) -> float:
    return OPERATIONS[name].crossings(size) if name in OPERATIONS else 1.0
