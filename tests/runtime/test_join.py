"""Meeting: what ranks tell each other is checked before it is believed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

from pycoll.config import Config
from pycoll.errors import BootstrapError
from pycoll.program.slots import LONG_SLOT_BYTES
from pycoll.runtime import join, room
from pycoll.runtime.native import bindings

SPACE = b'"room": 1, "host_memory": 1, "rdma": false, "domain": "a", '
PLACED = b'{"cpus": "1", "heap": 1, ' + SPACE + b'"host": "a", "memory": 0'
ASKED = b', "transport": "tcp", "fabric": "", '


def settings(timeout: float) -> Config:
    return Config.load({}, timeout=timeout)


class Ended:
    """An allgather that is over."""

    def __init__(self, blobs: list[bytes]) -> None:
        self.blobs = blobs

    def done(self) -> bool:
        return True

    def finish(self) -> list[bytes]:
        return self.blobs


class Alone:
    """A bootstrap of one rank whose answers a test may change."""

    rank, size, whole = 0, 1, True

    def __init__(self, *changes: Callable[[bytes], list[bytes]]) -> None:
        self.changes = list(changes)

    def allgather(self, blob: bytes, timeout: float) -> list[bytes]:
        return self.changes.pop(0)(blob) if self.changes else [blob]

    def begin(self, blob: bytes, timeout: float, notice: Callable[[], None]) -> Ended:
        return Ended(self.allgather(blob, timeout))

    def describe(self, rank: int) -> str:
        return f"rank {rank}"


def test_one_rank() -> None:
    world, comm, *_ = join.join(Alone(), Config.load({}, timeout=10, algorithm="ring"))
    bindings.comm_close(comm)
    assert (world.rank, world.size, world.algorithm) == (0, 1, "ring")
    assert world.cores >= 1
    assert (world.slot_bytes, world.budget) == (room.SLOT_BYTES, room.BUDGET_BYTES)
    assert world.long_slot_bytes == LONG_SLOT_BYTES
    assert (world.mapped, world.remote, world.hosts) == ((True,), False, (0,))
    assert (world.lazy, world.direct) == (False, True)
    assert (world.transport, world.wire) == ("shm", 0.0)
    assert world.placement.flat


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"\xff", r"rank 0 introduced itself with b'\\xff', which this version"),
        (b"[]", "which this version"),
        (b'{"cpus": "1"}', "which this version"),
        (
            b'{"cpus": 3, "heap": 1, ' + SPACE + b'"host": "a", "memory": 0}',
            "this version .* understand: cpus",
        ),
        (
            b'{"cpus": "1", "heap": "1", ' + SPACE + b'"host": "a", "memory": 0}',
            "not understand: heap, room or host_memory",
        ),
        (
            b'{"cpus": "1", "heap": 1, ' + SPACE + b'"host": 7, "memory": 0}',
            "not understand: host or memory",
        ),
        (
            b'{"cpus": "1", "heap": 1, ' + SPACE + b'"host": "a", "memory": -2}',
            "understand: host or memory",
        ),
        (
            b'{"cpus": "x", "heap": 1, ' + SPACE + b'"host": "a", "memory": 0}',
            "not understand: invalid literal",
        ),
        (PLACED + b', "transport": "x"}', "not understand: transport"),
        (PLACED + ASKED + b'"verbs": "tc=x"}', "not understand: tc as an integer"),
        (PLACED + ASKED + b'"verbs": 7}', "does not understand: "),
    ],
)
def test_an_introduction_that_is_none(blob: bytes, message: str) -> None:
    with pytest.raises(BootstrapError, match=message):
        join.join(Alone(lambda mine: [blob]), settings(10))


def test_another_version() -> None:
    def two(mine: bytes) -> list[bytes]:
        return [mine, json.dumps(json.loads(mine) | {"version": "9.9"}).encode()]

    with pytest.raises(BootstrapError, match=r"rank 1 runs pycoll 9\.9, rank 0 runs .*; install"):
        join.join(Alone(two), settings(10))


def test_trouble_of_another_rank_is_raised_here() -> None:
    same = [lambda mine: [mine], lambda mine: [mine]]
    with pytest.raises(BootstrapError, match=r"^rank 7 cannot reach rank 3$"):
        join.join(Alone(*same, lambda mine: [mine, b"1 rank 7 cannot reach rank 3"]), settings(10))


def test_two_ranks_are_mapped_when_each_reached_the_other() -> None:
    assert join._both_ways([0b111, 0b111, 0b111]) == [0b111, 0b111, 0b111]
    assert join._both_ways([0b011, 0b111, 0b110]) == [0b011, 0b111, 0b110]
    assert join._both_ways([0b111, 0b010, 0b111]) == [0b101, 0b010, 0b101]
    assert join._both_ways([0, 0, 0]) == [0b001, 0b010, 0b100]


class Meeting:
    """Two ranks that are threads."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self.barrier = threading.Barrier(2)
        self.blobs: dict[int, bytes] = {}
        self.change = change


def test_a_bitmap_that_is_none() -> None:
    same = [lambda mine: [mine], lambda mine: [mine]]
    with pytest.raises(BootstrapError, match=r"^rank 0 says that it reached 'xyz'$"):
        join.join(Alone(*same, lambda mine: [b"xyz"]), settings(10))


class Later:
    """An allgather on a thread."""

    def __init__(self, allgather: Callable[[], list[bytes]]) -> None:
        self.blobs: list[bytes] = []
        self.thread = threading.Thread(target=lambda: self.blobs.extend(allgather()))
        self.thread.start()

    def done(self) -> bool:
        return not self.thread.is_alive()

    def finish(self) -> list[bytes]:
        self.thread.join()
        return self.blobs


class Half:
    size, whole = 2, True

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.turn = meeting, rank, 0

    def allgather(self, blob: bytes, timeout: float) -> list[bytes]:
        self.turn += 1
        if self.turn == 2 and self.rank == 1:
            blob = self.meeting.change(blob)
        self.meeting.blobs[self.rank] = blob
        self.meeting.barrier.wait()
        both = [self.meeting.blobs[0], self.meeting.blobs[1]]
        self.meeting.barrier.wait()
        return both

    def begin(self, blob: bytes, timeout: float, notice: Callable[[], None]) -> Later:
        return Later(lambda: self.allgather(blob, timeout))

    def describe(self, rank: int) -> str:
        return f"rank {rank}"


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b"", lambda b: b[::-1]])
def test_an_address_that_lies(change: Callable[[bytes], bytes]) -> None:
    meeting, errors = Meeting(change), []

    def rank(number: int) -> None:
        with pytest.raises(BootstrapError, match="rank 0 cannot reach rank 1: ") as raised:
            join.join(Half(meeting, number), settings(2))
        errors.append(str(raised.value))

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(errors)) == 1, "both ranks tell the same"
