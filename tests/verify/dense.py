"""Vector clocks with an entry for every thread: what `pycoll.verify.order` must agree with."""

from __future__ import annotations

from pycoll.errors import RaceError, ScheduleError
from pycoll.verify.finding import finding
from pycoll.verify.network import INPUT, MESSAGE, Network, Step

Release = tuple[list[int], int, int]  #: what the releasing thread knew, the thread, its time
Access = tuple[int, int, int]  #: thread, time, step


class DenseOrder:
    """The clocks of all threads and the last accesses of every place."""

    def __init__(self, network: Network) -> None:
        n = len(network.threads)
        self.network = network
        # A list in `known` is never changed, only replaced, so a release shares it.
        self.known: list[list[int]] = [[0] * n for _ in range(n)]
        self.time = [1] * n
        self.writes: dict[int, Access] = {}
        self.reads: dict[int, dict[int, Access]] = {}
        self.touches: list[dict[int, Access]] = [{} for _ in range(network.size)]

    def release(self, thread: int) -> Release:
        """Let what ``thread`` has done be known to who acquires the result."""
        time = self.time[thread]
        self.time[thread] = time + 1
        return self.known[thread], thread, time

    def acquire(self, thread: int, release: Release) -> None:
        """Let ``thread`` know what the releasing thread knew."""
        theirs, other, time = release
        mine = self.known[thread]
        if mine[other] < time:  # else it has learnt all this already, perhaps by another way
            joined = list(map(max, mine, theirs))
            joined[other] = time
            self.known[thread] = joined

    def access(self, thread: int, step: int, fold: Step, offset: int) -> None:
        """Record a FOLD; RaceError if it conflicts with an access that is not ordered before."""
        _, n, _, sources, destinations, _ = fold
        known, now = self.known[thread], (thread, self.time[thread], step)
        for kind, index in sources:
            if kind == INPUT and not self.network.in_place:
                self._touch(index, now)
            elif kind != MESSAGE:
                for place in range(index + offset, index + offset + n):
                    write = self.writes.get(place)
                    if write is not None and write[1] > known[write[0]] and write[0] != thread:
                        raise self._race(now, write, place, "reads", "writes", kind == INPUT)
                    self.reads.setdefault(place, {})[thread] = now
                self._touch(index, now)
        for kind, index in destinations:
            if kind != MESSAGE:
                for place in range(index + offset, index + offset + n):
                    write = self.writes.get(place)
                    if write is not None and write[1] > known[write[0]] and write[0] != thread:
                        raise self._race(now, write, place, "writes", "writes", False)
                    for read in self.reads.pop(place, {}).values():
                        if read[1] > known[read[0]] and read[0] != thread:
                            raise self._race(now, read, place, "writes", "reads", False)
                    self.writes[place] = now
                self._touch(index, now)

    def _touch(self, index: int, now: Access) -> None:
        owner = self.network.owner(index)
        if owner != self.network.threads[now[0]].program.rank:
            self.touches[owner][now[0]] = now

    def finish(self) -> None:
        """RaceError if a peer may touch a rank's memory after that rank's call has returned."""
        ends = [[0] * len(self.time) for _ in range(self.network.size)]
        for ended, known in zip(self.network.threads, self.known, strict=True):
            rank = ended.program.rank
            ends[rank] = list(map(max, ends[rank], known))
        for owner, touches in enumerate(self.touches):
            for thread, time, step in touches.values():
                if time > ends[owner][thread]:
                    toucher = self.network.threads[thread]
                    end = self.network.threads[self.network.thread_of[owner, 0]]
                    raise finding(
                        RaceError,
                        f"touches memory of rank {owner}, which does not wait for this rank's "
                        "DONE afterwards and may have returned",
                        toucher.at(step),
                        end.at(len(end.code) - 1),
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
