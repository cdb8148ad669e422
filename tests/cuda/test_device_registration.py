"""Users' own arrays, which peers open: the direct form runs on them as on those of comm.empty."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from ctypes import byref, c_size_t, c_uint64, c_ulonglong
from pathlib import Path
from typing import Any

import fakecuda
import gpus
import numpy as np
import pytest

import pycoll
from pycoll.communicator import Communicator
from pycoll.errors import PeerLostError, UsageError
from pycoll.runtime.cuda.device_comm import DeviceComm
from pycoll.runtime.cuda.reclaim import RECLAIMER
from pycoll.runtime.cuda.registration import lack
from pycoll.runtime.native.device_comm import Registration

sys.path.append(str(Path(__file__).parents[1] / "gpu"))

import kernels
import together

pytestmark = gpus.MARKS

COUNT = 1 << 18  #: of int32: 1 MiB
FEW = 20_000  #: of int32: little more than what goes in packets
CALLS = 4  #: after so many on every rank an array is reached
MOST = 31  #: allocations of a rank that are reached at a time
IDLE = 128  #: calls after which one may make room for another


def device(comm: Communicator) -> DeviceComm:
    dc = comm._collectives.launch.cuda.streams.dc
    assert dc is not None
    return dc


def registered(comm: Communicator) -> Registration:
    """Return what has become of this rank's arrays."""
    return device(comm).registered()


def free(comm: Communicator, x: gpus.Seen) -> None:
    """Free an array's memory; nothing uses it any more."""
    device(comm).drain()  # which lets go of it
    x.host = None
    x.__cuda_array_interface__ = {}


def given(rank: int, turn: int, count: int = COUNT) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng((rank, turn))
    return rng.integers(-(1 << 30), 1 << 30, count, dtype="int32")


def total(comm: Communicator, turn: int, count: int = COUNT) -> np.ndarray[Any, Any]:
    every = [given(rank, turn, count) for rank in range(comm.size)]
    return np.sum(every, axis=0, dtype="int32")


def array(count: int = COUNT) -> gpus.Seen:
    return gpus.Seen(gpus.empty(count, "int32"))


def allreduce(comm: Communicator, x: gpus.Seen, turn: int, stream: fakecuda.Stream) -> None:
    """All-reduce random data, and check the result."""
    count = x.host.size
    x.host[...] = given(comm.rank, turn, count)
    with comm.on_stream(stream):
        comm.allreduce(x, algorithm="two_shot")
    stream.synchronize()
    assert (x.host == total(comm, turn, count)).all(), (comm.rank, turn)


def allreduces(
    comm: Communicator, x: gpus.Seen, stream: fakecuda.Stream, calls: int = CALLS, turn: int = 0
) -> int:
    """The same so many times; return how many of the calls were direct."""
    before = registered(comm).direct
    for k in range(calls):
        allreduce(comm, x, turn + k, stream)
    return registered(comm).direct - before


def undefined(log: Path, *but: str) -> list[str]:
    """Return what was undefined or hung, but for what is in the nature of the test."""
    bad = [r for r in fakecuda.remarks(log) if r.startswith(("hang", "undefined"))]
    return [remark for remark in bad if not any(word in remark for word in but)]


FREED = "of memory that another process has open"


@pytest.mark.parametrize("size", [2, 3, 4])
def test_arrays_of_users_are_moved_where_they_lie(size: int, tmp_path: Path) -> None:
    def rank() -> tuple[str, int, Registration]:
        with pycoll.init() as comm:
            said = comm.cuda().registration
            stream, x = fakecuda.Stream(), array()
            allreduces(comm, x, stream)
            direct = allreduces(comm, x, stream, 2 * CALLS)
            return said, direct, registered(comm)

    log = tmp_path / "log"
    for said, direct, last in gpus.ranks(size, rank, log=log):
        assert said == "on"
        assert direct == 2 * CALLS  # each of them
        assert (last.reached, last.opened, last.lack) == (1, size - 1, "")
    lines = fakecuda.calls(log)
    opened = [c for c in lines if c.name == "cuIpcOpenMemHandle" and not c.result]
    closed = [c for c in lines if c.name == "cuIpcCloseMemHandle" and not c.result]
    assert len(opened) == len(closed) == 2 * size * (size - 1)  # arenas, and the arrays
    assert undefined(log) == []


@pytest.mark.parametrize("size", [2, 3])
def test_input_and_output_apart(size: int) -> None:
    def rank() -> int:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x, part = fakecuda.Stream(), array(size * COUNT), array()
            for turn in range(3 * CALLS):
                every = [given(r, turn, size * COUNT) for r in range(size)]
                x.host[...] = every[comm.rank]
                with comm.on_stream(stream):
                    comm.reduce_scatter(x, part, algorithm="direct")
                    stream.synchronize()
                    folded = np.sum(every, axis=0, dtype="int32")
                    mine = slice(comm.rank * COUNT, (comm.rank + 1) * COUNT)
                    assert (part.host == folded[mine]).all()
                    x.host[...] = 0
                    comm.allgather(part, x, algorithm="direct")
                    stream.synchronize()
                    assert (x.host == folded).all()
            return registered(comm).direct

    for direct in gpus.ranks(size, rank):
        assert direct >= 4 * CALLS


def test_arrays_within_an_allocation() -> None:
    """A part of an allocation, as pools give them, and one with another beside it."""

    def rank() -> int:
        with pycoll.init() as comm:
            comm.cuda()
            stream, pool = fakecuda.Stream(), gpus.empty(3 * COUNT, "int32")
            direct = 0
            for turn in range(3):
                at = 64 * (comm.rank + 1) * (turn + 1)
                x = gpus.Seen(pool[at : at + COUNT])
                pool[...] = 7
                direct = allreduces(comm, x, stream)
                assert (pool[:at] == 7).all()
                assert (pool[at + COUNT :] == 7).all()
            assert registered(comm).reached == 1
            return direct

    assert gpus.ranks(3, rank) == [CALLS] * 3


def test_short_calls_ask_for_nothing() -> None:
    def rank() -> int:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x = fakecuda.Stream(), array(16 << 10)
            for turn in range(5):
                allreduce(comm, x, turn, stream)
            return registered(comm).questions

    assert gpus.ranks(2, rank) == [0, 0]


def test_a_call_asks_the_driver_once_for_each_allocation() -> None:
    def rank() -> int:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x = fakecuda.Stream(), array()
            allreduces(comm, x, stream)
            before = registered(comm).questions
            allreduces(comm, x, stream, 8)
            return registered(comm).questions - before

    assert gpus.ranks(2, rank) == [10, 10]  # two looks whether one more is still there


@pytest.mark.parametrize("who", ["all", "one"])
def test_an_address_that_comes_again_is_another_allocation(who: str, tmp_path: Path) -> None:
    """The stand-in fills what is freed while others have it open: they must not read there."""

    def rank() -> list[int]:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x, direct = fakecuda.Stream(), array(), []
            for turn in range(4):
                allreduces(comm, x, stream, 2 * CALLS, 100 * turn)  # one is closed, one opened
                direct.append(allreduces(comm, x, stream, CALLS, 100 * turn + 50))
                if who == "all" or comm.rank == 1:
                    before = x.host.ctypes.data
                    free(comm, x)
                    x = array()
                    assert x.host.ctypes.data == before
            assert registered(comm).opened == comm.size - 1
            return direct

    log = tmp_path / "log"
    for direct in gpus.ranks(3, rank, log=log):
        assert direct == [CALLS] * 4
    assert undefined(log, FREED) == []


def test_it_comes_again_while_calls_are_under_way(tmp_path: Path) -> None:
    """Nobody waits between calls but for what is freed; other calls are behind it in the stream."""

    def rank() -> None:
        with pycoll.init() as comm:
            comm.cuda()
            stream, other = fakecuda.Stream(), array()
            for turn in range(30):
                x = array(FEW)
                x.host[...] = given(comm.rank, turn, FEW)
                other.host[...] = given(comm.rank, 1000 + turn)
                with comm.on_stream(stream):
                    comm.allreduce(x, algorithm="two_shot")
                    done = fakecuda.Event().record(stream)
                    comm.allreduce(other, algorithm="two_shot")
                done.synchronize()
                assert (x.host == total(comm, turn, FEW)).all()
                del x  # KeepAlive holds it for some calls, or until nothing runs
                stream.synchronize()
                assert (other.host == total(comm, 1000 + turn)).all()

    log = tmp_path / "log"
    gpus.ranks(3, rank, log=log)
    # Before a peer has come to open it, too: that one is refused, and says so.
    assert undefined(log, FREED, "cuIpcOpenMemHandle of memory that is freed") == []


def test_freed_memory_is_closed_without_a_successor(tmp_path: Path) -> None:
    def rank() -> tuple[int, int]:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x, y = fakecuda.Stream(), array(), array()
            allreduces(comm, x, stream)
            allreduces(comm, y, stream)
            before = registered(comm).opened
            free(comm, x)
            allreduces(comm, y, stream, 4 * MOST)
            return before, registered(comm).opened

    log = tmp_path / "log"
    assert gpus.ranks(2, rank, log=log) == [(2, 1)] * 2
    assert undefined(log, FREED) == []


def test_freed_memory_is_closed_though_no_call_follows(tmp_path: Path) -> None:
    """Else it would stay taken: who freed it, and who has it open, have threads for that."""

    def rank() -> int:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x, y = fakecuda.Stream(), array(), array()
            allreduces(comm, x, stream)
            allreduces(comm, y, stream)
            opened = registered(comm).opened
            comm.barrier()
            if comm.rank != 1:
                free(comm, x)
            until = time.monotonic() + 60
            want = opened - (comm.size - 1 if comm.rank == 1 else comm.size - 2)
            while registered(comm).opened != want and time.monotonic() < until:
                time.sleep(0.01)
            comm.barrier()
            assert allreduces(comm, y, stream) == CALLS
            return registered(comm).opened - want

    log = tmp_path / "log"
    assert gpus.ranks(3, rank, log=log) == [0] * 3
    assert undefined(log, FREED) == []


def test_nobody_looks_after_registrations_that_are_gone() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x = fakecuda.Stream(), array()
            allreduces(comm, x, stream)
            assert device(comm).registers
            comm.barrier()
            free(comm, x)
            until = time.monotonic() + 60
            while RECLAIMER._thread is not None and time.monotonic() < until:
                time.sleep(0.01)
            assert RECLAIMER._thread is None
            assert not device(comm).registers
            comm.barrier()

    gpus.ranks(2, rank)


class Property(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of GPU 0, without a handle for others."""

    _fields_ = (
        *(("type", ctypes.c_int), ("handles", ctypes.c_int), ("kind", ctypes.c_int)),
        *(("device", ctypes.c_int), ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)),
    )


def virtual(count: int) -> gpus.Seen:
    """Return an array in virtual memory, as torch's expandable segments are."""
    unit = 2 << 20
    nbytes, none, handle, at = unit * -(-4 * count // unit), c_ulonglong(0), c_uint64(), c_uint64()
    prop, access = Property(1, 0, 1, 0), (ctypes.c_int * 3)(1, 0, 3)
    fakecuda.cu("cuMemCreate", byref(handle), c_size_t(nbytes), byref(prop), none)
    fakecuda.cu(
        "cuMemAddressReserve", byref(at), c_size_t(nbytes), c_size_t(unit), c_uint64(0), none
    )
    fakecuda.cu("cuMemMap", at, c_size_t(nbytes), c_size_t(0), handle, none)
    fakecuda.cu("cuMemSetAccess", at, c_size_t(nbytes), access, c_size_t(1))
    place = (ctypes.c_char * nbytes).from_address(at.value)
    return gpus.Seen(np.frombuffer(place, "int32", count))


@pytest.mark.parametrize("how", ["virtual memory", "the driver refuses"])
def test_an_array_that_cannot_be_shared_has_all_ranks_go_through_slots(how: str) -> None:
    def rank() -> tuple[int, str, Registration]:
        with pycoll.init() as comm:
            comm.cuda()
            if comm.rank == 1 and how != "virtual memory":
                fakecuda.fail("cuIpcGetMemHandle:1=801")
            stream = fakecuda.Stream()
            x = virtual(COUNT) if comm.rank == 1 and how == "virtual memory" else array()
            direct = allreduces(comm, x, stream, 3 * CALLS)
            return direct, comm.cuda().registration, registered(comm)

    for r, (direct, said, found) in enumerate(gpus.ranks(3, rank)):
        assert direct == 0
        assert (found.reached, found.refused) == ((0, 1) if r == 1 else (1, 0))
        if r != 1:
            assert said == "on"
        elif how == "virtual memory":
            assert said.startswith("on, but not for every array: rank 1 cannot share it: it is ")
            assert "virtual memory" in said
        else:
            assert "rank 1 cannot share it: cuIpcGetMemHandle" in said


def test_a_rank_that_cannot_open_them(tmp_path: Path) -> None:
    def rank() -> tuple[int, int, str]:
        with pycoll.init() as comm:
            comm.cuda()
            if comm.rank == 2:
                fakecuda.fail("cuIpcOpenMemHandle:1=2")
            stream, x = fakecuda.Stream(), array()
            first = allreduces(comm, x, stream, 3 * CALLS)
            said = comm.cuda().registration
            # Somewhat later it is tried again.
            allreduces(comm, x, stream, IDLE + CALLS)
            return first, allreduces(comm, x, stream), said

    log = tmp_path / "log"
    found = gpus.ranks(3, rank, log=log)
    assert [first for first, _, _ in found] == [0] * 3
    assert [again for _, again, _ in found] == [CALLS] * 3
    told = [said for _, _, said in found if said != "on"]
    assert len(told) == 1
    assert "on, but not for every array: rank 2 cannot open it: cuIpcOpenMemHandle" in told[0]
    assert undefined(log) == []


def test_more_arrays_than_can_be_reached_at_a_time(tmp_path: Path) -> None:
    def rank() -> tuple[Registration, int, int, Registration]:
        with pycoll.init() as comm:
            comm.cuda()
            stream = fakecuda.Stream()
            arrays = [array(FEW) for _ in range(MOST + 3)]
            for turn in range(2):
                for k, x in enumerate(arrays):
                    allreduce(comm, x, 100 * turn + k, stream)
            full = registered(comm)
            last = allreduces(comm, arrays[-1], stream, 2 * CALLS)
            # What was not used for long makes room.
            allreduces(comm, arrays[-1], stream, IDLE + 2 * CALLS)
            again = allreduces(comm, arrays[-1], stream)
            return full, last, again, registered(comm)

    log = tmp_path / "log"
    for full, last, again, end in gpus.ranks(2, rank, log=log):
        assert full.reached == MOST
        assert last == 0
        assert again == CALLS
        assert end.reached <= MOST
        assert end.opened <= MOST
    assert undefined(log) == []


def test_a_graph_gains_by_what_is_reached_later() -> None:
    def rank() -> tuple[int, int]:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x, small = fakecuda.Stream(), array(), array(16)
            with comm.on_stream(stream):
                comm.plan("allreduce", x, algorithm="two_shot")
                with fakecuda.capture(stream) as graphs:
                    comm.allreduce(x, algorithm="two_shot")
            counts = []
            for turn in range(6):
                if turn == 3:  # short calls, too, look what peers have said
                    for k in range(CALLS):
                        allreduce(comm, small, k, stream)
                before = registered(comm).direct
                x.host[...] = given(comm.rank, turn)
                graphs[0].launch(stream)
                stream.synchronize()
                assert (x.host == total(comm, turn)).all()
                counts.append(registered(comm).direct - before)
            assert counts == sorted(counts)
            graphs[0].close()
            return counts[0], counts[-1]

    assert gpus.ranks(3, rank) == [(0, 1)] * 3


def test_what_no_graph_names_is_closed_though_there_is_one(tmp_path: Path) -> None:
    def rank() -> tuple[int, int]:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x, y = fakecuda.Stream(), array(), array()
            allreduces(comm, x, stream)
            allreduces(comm, y, stream)
            with comm.on_stream(stream), fakecuda.capture(stream) as graphs:
                comm.allreduce(y, algorithm="two_shot")
            before = registered(comm).opened
            free(comm, x)
            for turn in range(4 * MOST):
                allreduce(comm, y, turn, stream)
                y.host[...] = given(comm.rank, turn)
                graphs[0].launch(stream)
                stream.synchronize()
                assert (y.host == total(comm, turn)).all()
            after = registered(comm).opened
            graphs[0].close()
            return before, after

    log = tmp_path / "log"
    assert gpus.ranks(2, rank, log=log) == [(2, 1)] * 2
    assert undefined(log, FREED) == []


def test_what_a_graph_names_is_closed_when_the_graph_is_gone(tmp_path: Path) -> None:
    def rank() -> tuple[int, int]:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x, y = fakecuda.Stream(), array(), array()
            allreduces(comm, x, stream)
            with comm.on_stream(stream), fakecuda.capture(stream) as graphs:
                comm.allreduce(x, algorithm="two_shot")
            x.host[...] = given(comm.rank, 0)
            graphs[0].launch(stream)
            stream.synchronize()
            assert (x.host == total(comm, 0)).all()
            free(comm, x)  # contrary to the rule, but the graph is not launched any more
            allreduces(comm, y, stream, 4 * MOST)
            kept = registered(comm).opened
            graphs[0].close()
            allreduces(comm, y, stream, 2 * CALLS)
            return kept, registered(comm).opened

    log = tmp_path / "log"
    assert gpus.ranks(2, rank, log=log) == [(2, 1)] * 2
    assert undefined(log, FREED) == []


def test_two_communicators_share_an_array(tmp_path: Path) -> None:
    def rank() -> tuple[int, int]:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x = fakecuda.Stream(), array()
            with comm.split(0, key=-comm.rank) as other:
                other.cuda()
                for turn in range(2 * CALLS):
                    allreduce(comm, x, turn, stream)
                    allreduce(other, x, turn, stream)
                both = allreduces(other, x, stream)
            return both, allreduces(comm, x, stream)

    log = tmp_path / "log"
    assert gpus.ranks(3, rank, log=log) == [(CALLS, CALLS)] * 3
    assert undefined(log) == []


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_closed_while_arrays_are_being_opened(calls: int, tmp_path: Path) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            comm.cuda()
            stream, arrays = fakecuda.Stream(), [array(FEW) for _ in range(5)]
            for turn in range(calls):
                for x in arrays:
                    allreduce(comm, x, turn, stream)

    log = tmp_path / "log"
    gpus.ranks(3, rank, log=log)
    lines = fakecuda.calls(log)
    opened, closed = (
        sum(c.name == name and not c.result for c in lines)
        for name in ("cuIpcOpenMemHandle", "cuIpcCloseMemHandle")
    )
    assert opened == closed
    assert undefined(log) == []


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_killed_while_arrays_are_being_opened(calls: int) -> None:
    def rank() -> str:
        comm = pycoll.init()
        comm.cuda()
        stream, arrays = fakecuda.Stream(), [array(FEW) for _ in range(5)]
        for turn in range(calls):
            for x in arrays:
                allreduce(comm, x, turn, stream)
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

        def go_on() -> None:
            while True:
                with comm.on_stream(stream):
                    comm.allreduce(arrays[0], async_op=True).synchronize()

        with pytest.raises(PeerLostError) as lost:
            go_on()
        comm.close()
        return str(lost.value)

    found = gpus.ranks(3, rank, check=False)
    assert isinstance(found.pop(1), PeerLostError)
    assert all(message.startswith("rank 1 (process ") for message in found)


def test_ranks_that_come_at_different_times(tmp_path: Path) -> None:
    """Opening waits for all kernels of the process on the stand-in: nobody waits in vain."""

    def rank() -> int:
        with pycoll.init() as comm:
            comm.cuda()
            rng, stream = np.random.default_rng(comm.rank), fakecuda.Stream()
            arrays = [array(FEW) for _ in range(12)]
            for turn in range(3):
                for k, x in enumerate(arrays):
                    x.host[...] = given(comm.rank, 100 * turn + k, FEW)
                    for _ in range(int(rng.integers(0, 400))):  # a while
                        given(0, 0, 100)
                    with comm.on_stream(stream):
                        comm.allreduce(x, algorithm="two_shot")  # nobody waits for it
                stream.synchronize()
                for k, x in enumerate(arrays):
                    assert (x.host == total(comm, 100 * turn + k, FEW)).all()
            return registered(comm).reached

    log = tmp_path / "log"
    for reached in gpus.ranks(4, rank, log=log):
        assert reached >= 10
    assert undefined(log) == []


@pytest.mark.fake_cuda(devices=3)
def test_ranks_that_are_threads() -> None:
    kernels.take_any()
    met, found = together.Meeting(3, 100.0), {}

    def rank(comm: Any) -> None:
        fakecuda.use(comm.rank)
        said = comm.cuda(comm.rank).registration
        stream, x = fakecuda.Stream(), array()
        comm.plan("allreduce", x, algorithm="two_shot")
        met.of(comm.rank).gather(0.0)
        allreduces(comm, x, stream)
        found[comm.rank] = said, allreduces(comm, x, stream)
        met.of(comm.rank).gather(0.0)

    together.spawn(rank, 3, timeout=60.0)
    assert found == dict.fromkeys(range(3), ("on", CALLS))
    assert [c for c in fakecuda.calls() if c.name == "cuIpcOpenMemHandle"] == []
    assert [r for r in fakecuda.remarks() if r.startswith(("hang", "undefined"))] == []


def test_a_switch_folds_what_lies_in_heaps_alone() -> None:
    """The arrays have the same number and offset on all ranks, in allocations that it knows not."""

    def rank() -> tuple[str, int, tuple[int, int]]:
        with pycoll.init() as comm:
            fakecuda.use(comm.rank)
            said = comm.cuda(comm.rank).multicast
            stream, x = fakecuda.Stream(), array()
            allreduces(comm, x, stream)
            direct, before = allreduces(comm, x, stream), fakecuda.switched()
            y = comm.empty(COUNT, "int32", device="cuda")
            allreduce(comm, gpus.Seen(gpus.host(y)), 0, stream)
            assert min(fakecuda.switched()) > 0
            return said, direct, before

    assert gpus.ranks(3, rank, devices=3, multicast=1) == [("on", CALLS, (0, 0))] * 3


def test_without_a_heap(monkeypatch) -> None:
    monkeypatch.setenv("PYCOLL_CUDA_HEAP", "0")

    def rank() -> int:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x = fakecuda.Stream(), array()
            allreduces(comm, x, stream)
            return allreduces(comm, x, stream)

    assert gpus.ranks(2, rank) == [CALLS] * 2


def test_turned_off(monkeypatch) -> None:
    monkeypatch.setenv("PYCOLL_CUDA_REGISTER", "off")

    def rank() -> tuple[str, int]:
        with pycoll.init() as comm:
            said = comm.cuda().registration
            stream, x = fakecuda.Stream(), array()
            return said, allreduces(comm, x, stream, 3 * CALLS)

    assert gpus.ranks(2, rank) == [("off, by PYCOLL_CUDA_REGISTER", 0)] * 2


class At:
    """Where a rank lives."""

    host, namespace = "here", 1

    def __init__(self, pid: int) -> None:
        self.pid = pid


def test_where_it_is_not_done() -> None:
    a, b, again = At(1), At(2), At(1)
    assert lack(["auto", "auto"], True, [a, b], [a, b]) == ""
    assert lack(["auto", "auto"], True, [a, again], [a, again]) == ""  # nothing is opened
    assert lack(["auto", "auto"], False, [a, b], [a, b]).startswith("not all ranks reach")
    mixed = "some ranks share a process and some do not"
    assert lack(["auto"] * 3, True, [a, b, again], [a, b, again]) == mixed
    assert lack(["auto"] * 2, True, [a, b], [a, b, again]) == mixed
    with pytest.raises(UsageError, match=r"^PYCOLL_CUDA_REGISTER is off on rank 1 and"):
        lack(["auto", "off"], True, [a, b], [a, b])
