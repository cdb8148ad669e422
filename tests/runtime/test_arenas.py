"""Arenas: where there are many ranks, each maps a few, and any other when it is first needed."""

from __future__ import annotations

import importlib
import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import (
    BrokenError,
    Communicator,
    MismatchError,
    PeerLostError,
    ScheduleError,
    UnavailableError,
)
from pycoll.algorithms import Algorithm, algorithm, get
from pycoll.program.lower import compile_program
from pycoll.program.program import Program
from pycoll.runtime import arenas, room
from pycoll.runtime.native import bindings, codes
from pycoll.runtime.plan import proof
from pycoll.schedule import ScheduleBuilder, allreduce

SIZE = 7  #: ranks; 3 has 0, 2 and 4 mapped from the start
LONG = 400_000  #: float64: by rendezvous


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these few be many."""
    monkeypatch.setattr(room, "EAGER", 2)


def others_mapped() -> int:
    maps = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[4] for line in maps if "memfd:pycoll" in line}) - 1


def world(comm: Communicator) -> Any:
    return comm._engine.world


@pytest.mark.parametrize("size", [1, 2, 3, 4, 65, 1000])
def test_attempts_connect_all_ranks_and_try_each_both_ways(size: int) -> None:
    ranks = list(range(5, 5 + size))
    tried = {rank: arenas.attempts(rank, ranks) for rank in ranks}
    assert all(rank not in peers and len(peers) <= 3 for rank, peers in tried.items())
    met = Counter(peer for peers in tried.values() for peer in peers)
    assert all(met[rank] >= min(2, size - 1) for rank in ranks)
    mutual = {rank: {p for p in peers if rank in tried[p]} for rank, peers in tried.items()}
    reached, new = {5}, {5}
    while new:
        new = {peer for rank in new for peer in mutual[rank]} - reached
        reached |= new
    assert reached == set(ranks)


@algorithm(allreduce)
def own_ring(b: ScheduleBuilder) -> None:
    get("ring")(b)


@pytest.mark.parametrize("proved", [True, False])
@pytest.mark.parametrize("name", ["ring", "own"])
def test_one_rank_lowers_for_all_that_do_the_same(
    name: str, proved: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """But no user's algorithm, and not if it hands out another Program than the one proved."""
    monkeypatch.setenv("PYCOLL_CACHE", str(tmp_path))
    gate = importlib.import_module("pycoll.verify.gate")  # the name is the function's, too
    monkeypatch.setattr(gate, "FEW", 2)
    monkeypatch.setattr(gate, "certified", lambda *of: None)
    lowered: list[int] = []

    def compile_own(made: Algorithm, size: int, rank: int, *of: Any, **more: Any) -> Program:
        lowered.append(rank)
        program = real(made, size, rank, *of, **more)
        return program if proved else replace(program, nscratch=program.nscratch + 1)

    real = proof.compile_own
    monkeypatch.setattr(proof, "compile_own", compile_own)

    def job() -> int:
        with pycoll.init(timeout=60) as comm:
            x = np.full(1000, comm.rank + 1.0)
            wanted = name if name == "ring" else own_ring
            for op, want in (("sum", SIZE * (SIZE + 1) / 2), ("avg", (SIZE + 1) / 2)):
                if proved:
                    assert (comm.allreduce(x.copy(), op=op, algorithm=wanted) == want).all()
                    continue
                with pytest.raises(ScheduleError, match="another program than the one"):
                    comm.allreduce(x, op=op, algorithm=wanted)
            return len(lowered)

    said = pycoll.spawn(job, SIZE)
    if proved:
        assert sum(said) == (2 if name == "ring" else 2 * SIZE)


def test_a_rank_maps_whom_it_talks_to() -> None:
    def job() -> tuple[int, int, int]:
        with pycoll.init(timeout=60) as comm:
            first = others_mapped()
            assert world(comm).lazy
            assert all(world(comm).mapped)
            x = np.full(1000, comm.rank + 1.0)
            for algorithm in ("ring", "ring", "recursive_doubling"):
                y = comm.allreduce(x.copy(), algorithm=algorithm)
                assert (y == SIZE * (SIZE + 1) / 2).all()
            second = others_mapped()
            parts = np.arange(SIZE * 3.0) + 100 * comm.rank
            got = comm.alltoall(parts)
            want = [100 * peer + 3 * comm.rank + k for peer in range(SIZE) for k in range(3)]
            assert got.tolist() == want
            comm.barrier()
            return first, second, others_mapped()

    said = pycoll.spawn(job, SIZE)
    assert {first for first, _, _ in said[1:]} <= {2, 3}
    assert said[3][:2] == (3, 6) or said[3][1] > said[3][0]
    assert {last for _, _, last in said} == {SIZE - 1}


@pytest.mark.parametrize("count", [3, LONG])
def test_messages_to_whom_nobody_mapped_before(count: int) -> None:
    def job() -> None:
        with pycoll.init(timeout=60) as comm:
            x = np.arange(count) + 1000.0 * comm.rank
            out = comm.empty(count)
            far, back = (comm.rank + 3) % SIZE, (comm.rank - 3) % SIZE
            for _ in range(3):
                out[:] = 0
                work = comm.send(x, to=far, async_op=True)
                comm.recv(out, frm=back)
                work.wait()
                assert (out == np.arange(count) + 1000.0 * back).all()
            heap = comm.empty(count)
            heap[:] = x
            comm.exchange([(heap, back)], [(out, far)])
            assert (out == np.arange(count) + 1000.0 * far).all()
            comm.barrier()

    pycoll.spawn(job, SIZE)


def test_direct_forms_are_not_offered() -> None:
    def job() -> None:
        with pycoll.init(timeout=60) as comm:
            assert not world(comm).direct
            x = comm.empty(1 << 16)
            x[:] = comm.rank
            assert (comm.allreduce(x) == SIZE * (SIZE - 1) / 2).all()
            assert "empty()" not in str(comm.explain("allreduce", 1 << 20))

    pycoll.spawn(job, SIZE)


def test_what_a_rank_sent_before_it_left_is_received() -> None:
    def job() -> list[float]:
        comm = pycoll.init(timeout=60)
        x = np.full(5, comm.rank + 1.0)
        if comm.rank == 1:
            comm.send(x, to=5)
        elif comm.rank == 5:
            time.sleep(1)  # rank 1 is gone by then
            comm.recv(x, frm=1)
            with pytest.raises(PeerLostError, match=r"rank 1 .*closed its communicator"):
                comm.recv(x, frm=1)
        if comm.rank != 5:
            comm.close()
        return x.tolist()

    assert pycoll.spawn(job, SIZE)[5] == [2.0] * 5


def test_a_broadcast_from_a_root_that_is_gone() -> None:
    def job() -> float:
        comm = pycoll.init(timeout=60)
        if comm.rank == 4:
            time.sleep(1)
        x = comm.broadcast(np.full(3, float(comm.rank)), root=1, algorithm="binomial")
        comm.close()
        return float(x[0])

    assert pycoll.spawn(job, SIZE) == [1.0] * SIZE


@pytest.mark.parametrize("what", [np.zeros(8), "no array"])
def test_memory_that_cannot_be_mapped_at_its_first_use(
    what: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "rank 6, whose memory was to be mapped: Permission denied"

    def refuse(comm: Any, peer: int, blob: bytes) -> None:
        raise UnavailableError(text)

    def job() -> str:
        comm = pycoll.init(timeout=60)
        if comm.rank == 2:
            monkeypatch.setattr(bindings, "comm_map", refuse)  # of this process
            with pytest.raises(UnavailableError) as raised:
                comm.send(what, to=6)
            return str(raised.value)
        with pytest.raises(BrokenError) as broken:
            comm.recv(np.zeros(8), frm=(comm.rank + 1) % SIZE)
        return str(broken.value)

    said = pycoll.spawn(job, SIZE)
    assert said[2] == text
    assert all(text in one for one in said)


def test_where_an_attempt_fails_all_are_mapped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = bindings.comm_try

    def refuse(comm: Any, peer: int, blob: bytes) -> int:
        return codes.UNMAPPABLE if peer == 3 else honest(comm, peer, blob)

    monkeypatch.setattr(bindings, "comm_try", refuse)

    def job() -> int:
        with pycoll.init(timeout=60) as comm:
            assert not world(comm).lazy
            assert all(world(comm).mapped)
            count = others_mapped()
            assert comm.allreduce(np.ones(1))[0] == SIZE
            return count

    assert pycoll.spawn(job, SIZE) == [SIZE - 1] * SIZE


@pytest.mark.usefixtures("patient")
def test_ranks_that_call_different_things() -> None:
    def job() -> str:
        comm = pycoll.init(timeout=60)

        def calls() -> None:
            comm.allreduce(np.ones(4 + (comm.rank == 5)), algorithm="recursive_doubling")
            comm.barrier()

        with pytest.raises(MismatchError) as raised:
            calls()
        return str(raised.value)

    said = pycoll.spawn(job, SIZE)
    assert any("rank 5: allreduce(sum, float64, 5 elements" in text for text in said)


def test_a_rank_that_dies_is_lost_to_all() -> None:
    def job() -> str:
        comm = pycoll.init(timeout=60)
        comm.barrier()
        if comm.rank == 6:
            os._exit(3)

        def calls() -> None:
            for _ in range(3):
                comm.allreduce(np.ones(4))

        with pytest.raises(PeerLostError) as raised:
            calls()
        return str(raised.value)

    said = pycoll.spawn(job, SIZE, check=False)
    assert all("rank 6" in str(text) and "died" in str(text) for text in said[:6])


def test_a_message_that_is_refused_to_whom_nobody_mapped() -> None:
    def job() -> None:
        comm = pycoll.init(timeout=60)
        x = np.zeros(4)
        if comm.rank == 1:
            with pytest.raises(pycoll.UsageError):
                comm.send("no array", to=5)
            with pytest.raises(MismatchError):
                comm.recv(x, frm=5)
        elif comm.rank == 5:
            with pytest.raises(MismatchError, match="refused"):
                comm.recv(x, frm=1)
        else:
            with pytest.raises(MismatchError):
                comm.barrier()

    pycoll.spawn(job, SIZE)


def test_a_group_of_many() -> None:
    def job() -> None:
        with pycoll.init(timeout=60) as comm:
            group = comm.split(comm.rank % 2)
            assert world(group).lazy
            assert group.allreduce(np.ones(1))[0] == 4 - comm.rank % 2
            comm.barrier()

    pycoll.spawn(job, SIZE)


@pytest.fixture
def pair() -> Any:
    options: dict[str, Any] = {"slots": 2, "slot_bytes": 4096, "heap_bytes": 0, "spin": 0}
    comms = [bindings.comm_open(rank, 2, **options, windows=True) for rank in range(2)]
    yield comms
    for comm in comms:
        bindings.comm_close(comm)


def test_a_program_wants_its_peers_mapped(pair: list[Any]) -> None:
    one, other = pair
    blob = compile_program(get("ring"), 2, 0).to_bytes()
    bindings.comm_near(one, 1)
    bindings.comm_sealed(one)
    assert bindings.status_look(one, 1) is None
    with pytest.raises(pycoll.InternalError, match=r"program: edge 0: .* peer 1"):
        bindings.program_load(one, blob)
    bindings.comm_map(one, 1, bindings.comm_address(other))
    bindings.release(bindings.program_load(one, blob))
    status = bindings.status_look(one, 1)
    assert status is not None
    assert status.state == bindings.IDLE


def test_who_is_not_near_comes_too_late(pair: list[Any]) -> None:
    one, other = pair
    with pytest.raises(pycoll.InternalError, match="1 of 2 ranks are connected"):
        bindings.comm_sealed(one)
    bindings.comm_remote(one, 1)
    bindings.comm_sealed(one)
    with pytest.raises(pycoll.InternalError, match="rank 1 comes too late"):
        bindings.comm_near(one, 1)
    assert bindings.comm_try(one, 1, bindings.comm_address(other)) == 0, "remote: nothing to map"


def test_memory_of_who_is_gone_is_stood_in_for() -> None:
    options: dict[str, Any] = {"slots": 2, "slot_bytes": 4096, "heap_bytes": 0, "spin": 0}
    one, other = (bindings.comm_open(rank, 2, **options, windows=True) for rank in range(2))
    blob = bindings.comm_address(other)
    bindings.comm_close(other)
    assert bindings.comm_try(one, 1, blob) == codes.LOST, "before it is sealed, it is an error"
    bindings.comm_near(one, 1)
    bindings.comm_sealed(one)
    bindings.comm_map(one, 1, blob)
    assert bindings.status_look(one, 1) is None
    bindings.release(bindings.program_load(one, compile_program(get("ring"), 2, 0).to_bytes()))
    bindings.comm_close(one)
