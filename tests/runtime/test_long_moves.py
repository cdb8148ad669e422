"""Long messages within a host: every byte arrives, by whatever slots and copies they go."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import PeerLostError
from pycoll.program.slots import LONG_SLOT_BYTES, SLOT_BYTES
from pycoll.runtime import room

MIB = 1 << 20


def _pattern(rank: int, turn: int, nbytes: int) -> Any:
    return (np.arange(nbytes, dtype="uint32") * 40503 + rank * 97 + turn >> 7).astype("uint8")


def _moves(nbytes: int) -> int:
    """Make each collective that moves a block of ``nbytes``; return the bytes of a slot."""
    comm = pycoll.init()
    rank, size = comm.rank, comm.size
    for turn in range(2):
        x = _pattern(rank, turn, nbytes)
        root = turn % size
        assert (comm.broadcast(x.copy(), root) == _pattern(root, turn, nbytes)).all()
        every = comm.allgather(x, np.empty(size * nbytes, "uint8"))
        blocks = every.reshape(size, nbytes)
        assert all((blocks[r] == _pattern(r, turn, nbytes)).all() for r in range(size))
        mine = np.concatenate([_pattern(rank, turn + r, nbytes) for r in range(size)])
        out = comm.alltoall(mine, np.empty_like(mine)).reshape(size, nbytes)
        assert all((out[r] == _pattern(r, turn + rank, nbytes)).all() for r in range(size))
        part = comm.scatter(every if rank == root else None, np.empty(nbytes, "uint8"), root)
        assert (part == _pattern(rank, turn, nbytes)).all()
        whole = np.empty(size * nbytes, "uint8") if rank == root else None
        whole = comm.gather(x, whole, root)
        assert whole is None or (whole == every).all()
    return int(comm._engine.world.long_slot_bytes)


@pytest.mark.parametrize("nbytes", [4 * MIB + 13, 9 * MIB])
@pytest.mark.parametrize("size", [2, 3])
def test_long_blocks_arrive(size: int, nbytes: int) -> None:
    found = pycoll.spawn(lambda: _moves(nbytes), size, timeout=60)
    assert found == [LONG_SLOT_BYTES] * size


def test_more_ranks_than_few_have_slots_as_ever() -> None:
    size = room.FEW + 1
    assert pycoll.spawn(lambda: _moves(4 * MIB), size, timeout=120) == [SLOT_BYTES] * size


def _exchanges() -> bool:
    """Exchange with both neighbours; return whether all of it came, every time."""
    comm = pycoll.init()
    rank, size = comm.rank, comm.size
    after, before = (rank + 1) % size, (rank - 1) % size
    right = True
    for turn, nbytes in enumerate((4 * MIB - 1, 4 * MIB, 4 * MIB, 8 * MIB + 3, 4 * MIB)):
        x, out = _pattern(rank, turn, nbytes), np.zeros(nbytes, "uint8")
        comm.exchange([(x, after)], [(out, before)])
        right &= bool((out == _pattern(before, turn, nbytes)).all())
        x[:] = 0  # its reader has it
    return right


@pytest.mark.parametrize("size", [2, 3])
def test_exchanges_of_long_messages_arrive(size: int) -> None:
    assert pycoll.spawn(_exchanges, size) == [True] * size


def _anywhere() -> bool:
    """Send and broadcast between arrays that lie anywhere in their pages."""
    comm = pycoll.init()
    rank, other = comm.rank, 1 - comm.rank
    whole, came = np.zeros(1 << 18, "uint8"), np.zeros(1 << 18, "uint8")
    page, place = -whole.ctypes.data % 4096, -came.ctypes.data % 4096
    right = True
    for at in (0, 1, 7, 8, 15, 16, 17, 63, 64, 2048, 4070, 4079, 4081, 4095):
        for nbytes in (2047, 2048, 2049, 4096, 40_003, 100_000):
            x, out = whole[page + at :][:nbytes], came[place + 4095 - at :][:nbytes]
            x[:], came[:] = _pattern(rank, at, nbytes), 7
            comm.exchange([(x, other)], [(out, other)])
            right &= bool((out == _pattern(other, at, nbytes)).all())
            right &= int((came != 7).sum()) == int((out != 7).sum())  # nothing beside it
            right &= bool((comm.broadcast(x) == _pattern(0, at, nbytes)).all())
    return right


def test_arrays_anywhere_in_their_pages_arrive() -> None:
    assert pycoll.spawn(_anywhere, 2) == [True, True]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("what", ["broadcast", "exchange"])
def test_a_rank_that_is_killed_amid_long_messages(what: str, victim: int) -> None:
    def rank() -> str:
        comm = pycoll.init(timeout=30)
        x, out = np.ones(8 * MIB, "uint8"), np.zeros(8 * MIB, "uint8")
        other = 1 - comm.rank

        def call() -> None:
            if what == "broadcast":
                comm.broadcast(x, victim)
            else:
                comm.exchange([(x, other)], [(out, other)])

        def repeat() -> None:
            while True:
                call()

        for _ in range(3):
            call()
        if comm.rank == victim:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
        with pytest.raises(PeerLostError) as lost:
            repeat()
        return str(lost.value)

    found = pycoll.spawn(rank, 2, timeout=60, check=False)
    assert isinstance(found.pop(victim), PeerLostError)
    assert found[0].startswith(f"rank {victim} (process ")
