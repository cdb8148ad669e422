"""Lateness: which rank came to calls behind the others, and what these lost by it.

A rank's delay in a call is by how much it took longer to come to it, since the end of its last call
on any communicator, than the median of the others: who ends a call late comes late to the next one
without having lost any time itself. That compares no clocks. Of calls that only one rank has such a
time of, the first ones in the files, the delay is the arrival behind the median of the others'
arrivals. Somebody is always last, so a delay counts only beyond what chance and the clocks explain:

- the *noise* of a communicator is 1.4826 times the median of how far delays lie from the median
  delay of their rank: a standard deviation that outliers, and one rank that is always late, leave
  as it is;
- the *clock error* of a rank is the largest with any rank that it is compared with; 0 where no
  clocks are compared;
- a rank is late *steadily* if, of at least `FEW` calls, its median delay is more than the clock
  error plus three times the noise, or plus `LEAST_NS` if that is more;
- a rank is late *at times* in calls in which its delay is more than the clock error plus twenty
  times the noise, or plus `LEAST_ONCE_NS` if that is more, and more than eight times the median
  distance of the others from their median, as in a first call to which all come scattered. It is
  named for them if they sum up to a fiftieth of the time.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from pycoll.errors import counted
from pycoll.trace.calls import Communicator
from pycoll.trace.clocks import Clocks
from pycoll.trace.finding import Finding
from pycoll.trace.record import Event
from pycoll.trace.words import duration

#: Fewer calls than this tell nothing of the noise.
FEW = 8
LEAST_NS, LEAST_ONCE_NS = 20_000, 1_000_000
#: How many times the noise a median delay, and a single one, must be.
STEADILY, AT_TIMES = 3.0, 20.0
#: How many times the others' distance from their median a single delay must be.
APART = 8.0
#: What part of the time delays of single calls must sum up to for their rank to be named.
SHARE = 0.02


@dataclass(frozen=True)
class Late:
    """A call to which a rank came late."""

    comm: Communicator
    seq: int
    rank: int
    behind_ns: float  #: more than the median of the others
    lost_ns: dict[int, int]  #: what each of the others waited because of it

    def encode(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {
            "comm": self.comm.id,
            "seq": self.seq,
            "rank": self.rank,
            "behind_ns": round(self.behind_ns),
            "lost_ns": sum(self.lost_ns.values()),
        }


@dataclass
class Standing:
    """How one rank stands in one communicator."""

    rank: int
    calls: int  #: in which it was compared
    last: int  #: in how many it came last
    median_ns: float  #: of its delays, which are negative where it came before the others
    error_ns: int  #: of the clocks
    steadily: bool
    late: list[Late]

    @property
    def sum_ns(self) -> float:
        """Sum of its delays in the calls to which it was late."""
        return sum(late.behind_ns for late in self.late)

    @property
    def lost_ns(self) -> int:
        """What the others lost by it, all together."""
        return sum(sum(late.lost_ns.values()) for late in self.late)


@dataclass
class Lateness:
    """What one communicator's calls say."""

    comm: Communicator
    noise_ns: float
    span_ns: int  #: from the first arrival to the last
    standings: list[Standing]  #: by rank
    apart: tuple[int, ...]  #: ranks that were not compared, as their clocks were not aligned

    def only(self, seq: int) -> Lateness:
        """Return this with the delays of one call."""
        standings = [
            replace(s, late=[late for late in s.late if late.seq == seq]) for s in self.standings
        ]
        return replace(self, standings=standings)

    @property
    def late(self) -> list[Late]:
        """All calls to which somebody was late."""
        return sorted((one for s in self.standings for one in s.late), key=lambda one: one.seq)

    def encode(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {
            "comm": self.comm.id,
            "noise_ns": round(self.noise_ns),
            "not_compared": list(self.apart),
            "ranks": [
                {
                    "rank": s.rank,
                    "calls": s.calls,
                    "last": s.last,
                    "late": len(s.late),
                    "median_ns": round(s.median_ns),
                    "sum_ns": round(s.sum_ns),
                    "lost_ns": s.lost_ns,
                    "clock_error_ns": s.error_ns,
                }
                for s in self.standings
            ],
            "late": [one.encode() for one in self.late],
        }


_Delays = dict[int, dict[int, float]]  #: by call, by rank


def lateness(comm: Communicator, clocks: Clocks) -> Lateness:
    """Compare the arrivals of all ranks at all calls."""
    ranks, apart = _comparable(comm, clocks)
    arrivals = _arrivals(comm, clocks, ranks)
    taken = _taken(comm, arrivals)
    delays = {seq: _delays(taken.get(seq, at)) for seq, at in arrivals.items()}
    of: dict[int, list[float]] = {}
    for one in delays.values():
        for rank, delay in one.items():
            of.setdefault(rank, []).append(delay)
    medians = {rank: statistics.median(found) for rank, found in sorted(of.items())}
    off = [abs(d - medians[rank]) for rank, found in of.items() for d in found]
    noise = 1.4826 * statistics.median(off) if off else 0.0
    clocked = {rank: _error(rank, list(medians), clocks) for rank in medians}
    errors = {rank: 0 if taken else error for rank, error in clocked.items()}
    lasts = Counter(max(one, key=one.__getitem__) for one in arrivals.values())
    standings = []
    for rank, median in medians.items():
        error, calls = errors[rank], len(of[rank])
        most = error + max(STEADILY * noise, LEAST_NS)
        steadily = calls >= FEW and median > most
        standing = Standing(rank, calls, lasts[rank], median, error, steadily, [])
        for seq, one in delays.items():
            wrong = 0 if seq in taken else clocked[rank]
            if rank in one and (
                one[rank] > max(most, wrong)
                if steadily
                else _at_times(one, rank, taken.get(seq, arrivals[seq]), wrong, noise)
            ):
                lost = _lost(comm.calls[seq], arrivals[seq], rank, one[rank])
                standing.late.append(Late(comm, seq, rank, one[rank], lost))
        standings.append(standing)
    every = [at for one in arrivals.values() for at in one.values()]
    span = max(every) - min(every) if every else 0
    return Lateness(comm, noise, span, standings, apart)


def _comparable(comm: Communicator, clocks: Clocks) -> tuple[set[int], tuple[int, ...]]:
    """Return the most ranks whose times can be compared, and the others."""
    present = [rank for rank in comm.ranks if rank in clocks.shift_ns]
    groups: dict[int, set[int]] = {}
    for rank in present:
        known = clocks.errors_ns[clocks.host[rank]] is not None
        groups.setdefault(-1 if known else clocks.host[rank], set()).add(rank)
    largest = max(groups.values(), key=len, default=set())
    return largest, tuple(rank for rank in present if rank not in largest)


def _arrivals(comm: Communicator, clocks: Clocks, ranks: set[int]) -> dict[int, dict[int, int]]:
    """Return when ranks came, by call, where at least two did."""
    found = {}
    for seq, events in comm.calls.items():
        at = {r: e.arrived_ns + clocks.shift_ns[r] for r, e in events.items() if r in ranks}
        if len(at) > 1:
            found[seq] = at
    return found


def _taken(comm: Communicator, arrivals: dict[int, dict[int, int]]) -> dict[int, dict[int, int]]:
    """Return how long ranks took to come, by call, where that is known of at least two."""
    found = {}
    for seq, at in arrivals.items():
        one = {r: t for r in at if (t := comm.taken_ns.get((r, seq))) is not None}
        if len(one) > 1:
            found[seq] = one
    return found


def _delays(at: dict[int, int]) -> dict[int, float]:
    """Return how far each rank lies behind the median of the others."""
    order = sorted(at.values())
    n, half = len(order), len(order) // 2
    delays = {}
    for rank, came in at.items():
        # The sorted others are `order` without one that is equal to `came`.
        if n % 2 == 0:
            median: float = order[half] if came < order[half] else order[half - 1]
        elif came < order[half]:
            median = (order[half] + order[half + 1]) / 2
        elif came > order[half]:
            median = (order[half - 1] + order[half]) / 2
        else:
            median = (order[half - 1] + order[half + 1]) / 2
        delays[rank] = came - median
    return delays


def _error(rank: int, others: list[int], clocks: Clocks) -> int:
    return max((clocks.between_ns(rank, other) or 0 for other in others), default=0)


def _at_times(
    delays: dict[int, float], rank: int, at: dict[int, int], error: int, noise: float
) -> bool:
    if delays[rank] <= error + max(AT_TIMES * noise, LEAST_ONCE_NS):
        return False
    others = [came for other, came in at.items() if other != rank]
    middle = statistics.median(others)
    return delays[rank] > APART * statistics.median(abs(came - middle) for came in others)


def _lost(events: dict[int, Event], at: dict[int, int], late: int, behind: float) -> dict[int, int]:
    """Return what others waited, but not more than until the late one came, nor than its delay."""
    return {
        rank: min(events[rank].waited_ns, at[late] - came, round(behind))
        for rank, came in at.items()
        if came < at[late]
    }


def findings(found: Lateness) -> list[Finding]:
    """Name the ranks that are late steadily, or whose delays cost much."""
    named = []
    for s in found.standings:
        if s.late and (s.steadily or s.sum_ns >= SHARE * found.span_ns):
            named.append(_finding(found, s))
    return named


def _finding(found: Lateness, s: Standing) -> Finding:
    comm = found.comm
    behind = [late.behind_ns for late in s.late]
    worst = max(s.late, key=lambda late: late.behind_ns)
    event = comm.calls[worst.seq][s.rank]
    lines = Counter(comm.calls[late.seq][s.rank].line for late in s.late)
    line, at_it = lines.most_common(1)[0]
    where = f", mostly at {line}" if line and 2 * at_it > len(s.late) else ""
    text = (
        f"rank {s.rank} was late to {len(s.late)} of {counted(s.calls, 'call')} of {comm.name}: "
        f"slower to come than the median of the others by {duration(statistics.median(behind))} in "
        f"the median, {duration(s.sum_ns)} in all, most at {event.kind} {worst.seq} "
        f"({duration(worst.behind_ns)}){where}\n"
        f"the others lost {duration(s.lost_ns)} by it, all together; clock error "
        f"{duration(s.error_ns)}, noise {duration(found.noise_ns)}"
    )
    lost: Counter[int] = Counter()
    for late in s.late:
        lost.update(late.lost_ns)
    return Finding(
        "late",
        (s.rank,),
        text,
        {
            "comm": comm.id,
            "calls": s.calls,
            "late": len(s.late),
            "steadily": s.steadily,
            "median_ns": round(statistics.median(behind)),
            "sum_ns": round(s.sum_ns),
            "lost_ns": {str(rank): ns for rank, ns in sorted(lost.items())},
            "line": line,
        },
    )
