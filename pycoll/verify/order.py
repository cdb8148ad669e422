"""Happens-before: which accesses to shared memory are ordered, at a cost of what happens.

An epoch is (thread, time); a thread's time advances at each release. An access of thread u at time
T happened before what t does now when a chain of releases and acquires leads from u, at T or later,
to t. Vector clocks would answer that at once, and copy an entry of every thread with every message.
But the question is only ever asked of threads that share memory: in a staged network the channels
of one rank, in a direct one those that touch a peer and the peer. So two things are kept:

- what is cheap to know: ``near``, the clock of the rank's own channels, passed on with LOCAL
  signals alone; and ``direct``, the latest time that t has heard of any other thread itself;
- ``heard``, what every thread acquired and when, as a log.

The first two only hold what is true, and lowering orders channels by LOCAL signals and peers by
DONE, so they nearly always answer yes. Where they do not, the order may still come by way of other
ranks' messages: then the log is walked back from t over all that happened before, which answers
exactly, as a vector clock would.

In a network of representatives a thread stands for one of every block of ranks, and only what leads
back to the very same rank orders two of its channels. So the walk keeps the element of the group by
which it has come away from its rank, and what is cheap to know is learnt from edges that have no
twist.

Only the last write of a place and the reads since then are kept: an older access that is ordered
before them is ordered before whatever they are ordered before (FastTrack).

IN and OUT of a rank count as the same memory, as they are in place; apart they conflict less.
Where a collective cannot be in place, IN is memory that nobody writes.
"""

from __future__ import annotations

from array import array

from pycoll.errors import RaceError, ScheduleError
from pycoll.verify.finding import finding
from pycoll.verify.network import INPUT, MESSAGE, Network, Step

Release = tuple[list[int], int, int]  #: `near` of the releasing thread, the thread, its time
Access = tuple[int, int, int]  #: thread, time, step


class Order:
    """What every thread has heard, and the last accesses of every place."""

    def __init__(self, network: Network) -> None:
        threads = network.threads
        self.compose = network.group.compose
        self.network = network
        self.ranks = [thread.program.rank for thread in threads]
        self.channels = [thread.channel for thread in threads]
        # A list in `near` is never changed, only replaced, so a release shares it.
        self.near = [[0] * len(thread.program.channel_starts) for thread in threads]
        self.direct: list[dict[int, int]] = [{} for _ in threads]
        self.heard = [array("q") for _ in threads]  # own time, other thread, its time, twist; ...
        self.time = [1] * len(threads)
        self.writes: dict[int, Access] = {}
        self.reads: dict[int, dict[int, Access]] = {}
        self.touches: list[dict[int, Access]] = [{} for _ in range(network.held)]

    def release(self, thread: int) -> Release:
        """Let what ``thread`` has done be known to who acquires the result."""
        time = self.time[thread]
        self.time[thread] = time + 1
        return self.near[thread], thread, time

    def acquire(self, thread: int, release: Release, twist: int = 0) -> None:
        """Let ``thread`` know what the releasing thread knew, which is ``twist`` away from it."""
        theirs, other, time = release
        self.heard[thread].extend((self.time[thread], other, time, twist))
        if twist:
            return
        if self.ranks[thread] == self.ranks[other]:
            joined = list(map(max, self.near[thread], theirs))
            joined[self.channels[other]] = max(joined[self.channels[other]], time)
            self.near[thread] = joined
        else:
            direct = self.direct[thread]
            direct[other] = max(time, direct.get(other, 0))

    def ordered(self, access: Access, thread: int) -> bool:
        """Tell whether an access happened before what ``thread`` does now."""
        other, time, _ = access
        if other == thread:
            return True
        if self.ranks[other] == self.ranks[thread]:
            if time <= self.near[thread][self.channels[other]]:
                return True
        elif time <= self.direct[thread].get(other, 0):
            return True
        return self._reaches(other, time, thread)

    def _reaches(self, other: int, time: int, thread: int) -> bool:
        """Walk back from ``thread`` for a release of ``other`` at ``time`` or later."""
        latest = {(thread, 0): self.time[thread]}  # by thread and element: up to when it is before
        walked: dict[tuple[int, int], int] = {}  # how much of its log has been read
        left = [(thread, 0)]
        while left:
            at = left.pop()
            log, upto, k = self.heard[at[0]], latest[at], walked.get(at, 0)
            while k < len(log) and log[k] <= upto:
                sent = log[k + 2]
                sender = log[k + 1], self.compose(at[1], log[k + 3])
                if sender == (other, 0) and sent >= time:
                    return True
                if sent > latest.get(sender, 0):
                    latest[sender] = sent
                    left.append(sender)
                k += 4
            walked[at] = k
        return False

    def access(self, thread: int, step: int, fold: Step, offset: int) -> None:
        """Record a FOLD; RaceError if it conflicts with an access that is not ordered before."""
        _, n, _, sources, destinations, _ = fold
        now = (thread, self.time[thread], step)
        for kind, index in sources:
            if kind == INPUT and not self.network.in_place:
                self._touch(index, now)
            elif kind != MESSAGE:
                for place in range(index + offset, index + offset + n):
                    write = self.writes.get(place)
                    if write is not None and not self.ordered(write, thread):
                        raise self._race(now, write, place, "reads", "writes", kind == INPUT)
                    self.reads.setdefault(place, {})[thread] = now
                self._touch(index, now)
        for kind, index in destinations:
            if kind != MESSAGE:
                for place in range(index + offset, index + offset + n):
                    write = self.writes.get(place)
                    if write is not None and not self.ordered(write, thread):
                        raise self._race(now, write, place, "writes", "writes", False)
                    for read in self.reads.pop(place, {}).values():
                        if not self.ordered(read, thread):
                            raise self._race(now, read, place, "writes", "reads", False)
                    self.writes[place] = now
                self._touch(index, now)

    def _touch(self, index: int, now: Access) -> None:
        owner = self.network.owner(index)
        if owner != self.ranks[now[0]]:
            self.touches[owner][now[0]] = now

    def finish(self) -> None:
        """RaceError if a peer may touch a rank's memory after that rank's call has returned."""
        thread_of = self.network.thread_of
        for owner, touches in enumerate(self.touches):
            if not touches:
                continue
            first = self.network.threads[thread_of[owner, 0]]
            ends = [thread_of[owner, c] for c in range(len(first.program.channel_starts))]
            for access in touches.values():
                if not any(self.ordered(access, end) for end in ends):
                    raise finding(
                        RaceError,
                        f"touches memory of rank {owner}, which does not wait for this rank's "
                        "DONE afterwards and may have returned",
                        self.network.threads[access[0]].at(access[2]),
                        first.at(len(first.code) - 1),
                    )

    def _race(
        self, now: Access, before: Access, place: int, does: str, did: str, reads_input: bool
    ) -> ScheduleError:
        network = self.network
        here, there = network.threads[now[0]], network.threads[before[0]]
        where = network.place(place)
        chunk = place % network.stride
        in_place = " (IN and OUT are one memory in place)" if reads_input else ""
        return finding(
            RaceError,
            f"{does} {where}{in_place}, which rank {there.program.rank}, channel {there.channel} "
            f"{did} with no order between the two",
            here.at(now[2]),
            there.at(before[2]),
            chunk=chunk if chunk < network.nchunks else None,
        )
