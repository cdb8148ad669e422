"""The seam to a device communicator: what is refused, and memory of a rank in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import fakecuda
import pytest

from pycoll.errors import InternalError, UnavailableError
from pycoll.runtime.native import bindings, codes, cuda, device_comm

HEAP = 1 << 16
SIZE = 3

#: Rank 2 of three: it tells its addresses, hears those of the others, and closes when told to.
OTHER = """
import sys
from pycoll.runtime.native import bindings, codes, device_comm, load
def tell(blob): print(blob.hex(), flush=True)
def hear(): return bytes.fromhex(sys.stdin.readline())
comm = bindings.comm_open(2, 3, slots=2, slot_bytes=4096, heap_bytes=0, spin=0)
tell(bindings.comm_address(comm))
waiting = {0: hear(), 1: hear()}
while waiting:
    bindings.comm_accept(comm)
    waiting = {p: blob for p, blob in waiting.items() if bindings.comm_connect(comm, p, blob)}
tell(b"connected")
hear()
bindings.comm_sealed(comm)
opened = device_comm.device_comm_open(comm, 0, [0, 1, 2], 1 << 16)
tell(device_comm.device_comm_address(opened, comm))
reasons = [device_comm.device_comm_connect(opened, comm, p, hear()) for p in (0, 1)]
device_comm.device_comm_seal(opened, comm, [not reasons[0], not reasons[1], False], True)
tell(repr((reasons, device_comm.device_comm_state(opened))).encode())
hear()
device_comm.device_comm_detach(opened, 1)
tell(b"detached")
hear()
device_comm.device_comm_close(opened)
bindings.comm_close(comm)
"""


def connected(comms: dict[int, Any], blobs: dict[int, bytes]) -> None:
    """Connect each of these ranks to all others."""
    waiting = [(rank, peer) for rank in comms for peer in blobs if peer != rank]
    while waiting:
        for comm in comms.values():
            bindings.comm_accept(comm)
        waiting = [
            (rank, peer)
            for rank, peer in waiting
            if bindings.comm_connect(comms[rank], peer, blobs[peer]) == codes.AGAIN
        ]


def engine(rank: int, size: int) -> Any:
    return bindings.comm_open(rank, size, slots=2, slot_bytes=4096, heap_bytes=0, spin=0)


@pytest.fixture
def alone() -> Iterator[Any]:
    """A communicator of one rank."""
    comm = engine(0, 1)
    bindings.comm_sealed(comm)
    yield comm
    bindings.comm_close(comm)


@pytest.mark.fake_cuda
def test_the_heap_of_a_plane(alone: Any) -> None:
    opened = device_comm.device_comm_open(alone, 0, [0], HEAP)
    device_comm.device_comm_seal(opened, alone, [False], True)
    half, rest = (
        device_comm.device_comm_alloc(opened, HEAP // 2),
        device_comm.device_comm_alloc(opened, HEAP // 2),
    )
    assert half is not None
    assert rest == half + HEAP // 2
    assert device_comm.device_comm_alloc(opened, 1) is None
    assert cuda.pointer(half).kind == cuda.DEVICE
    device_comm.device_comm_free(opened, half)
    with pytest.raises(InternalError, match=r"free of empty\(\) memory on a GPU"):
        device_comm.device_comm_free(opened, half)
    assert device_comm.device_comm_alloc(opened, 1) == half
    assert device_comm.device_comm_state(opened) == device_comm.State(0, 0, 0, 0, 0, 0, 0, 32, 0)
    assert device_comm.device_comm_stuck(opened) is None
    assert device_comm.device_comm_check(opened) == device_comm.device_comm_wait(opened, 0) == 0
    device_comm.device_comm_close(opened)


@pytest.mark.fake_cuda
@pytest.mark.parametrize("ranks", [[], [1], [0, 0], [0, 1]])
def test_local_ranks_that_cannot_be(alone: Any, ranks: list[int]) -> None:
    with pytest.raises(InternalError, match="local ranks that are not in order"):
        device_comm.device_comm_open(alone, 0, ranks, HEAP)


@pytest.mark.fake_cuda
def test_a_gpu_that_is_not_there(alone: Any) -> None:
    with pytest.raises(InternalError, match="GPU 7: there are 1"):
        device_comm.device_comm_open(alone, 7, [0], HEAP)


@pytest.mark.fake_cuda(memory_mib=8)
def test_a_gpu_that_is_full(alone: Any) -> None:
    with pytest.raises(UnavailableError, match=r"GPU 0: cuMemAlloc\(.*OUT_OF_MEMORY"):
        device_comm.device_comm_open(alone, 0, [0], 1 << 30)
    assert cuda.pointer(0).kind == cuda.UNKNOWN  # and the driver still answers


@pytest.mark.fake_cuda
def test_two_ranks_of_a_process_open_a_third_one_once() -> None:
    env = os.environ | fakecuda.environment()
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None

        def tell(blob: bytes = b"") -> None:
            other.stdin.write(blob.hex().encode() + b"\n")
            other.stdin.flush()

        def hear() -> bytes:
            return bytes.fromhex(other.stdout.readline().decode())

        comms = {rank: engine(rank, SIZE) for rank in (0, 1)}
        blobs = {rank: bindings.comm_address(comm) for rank, comm in comms.items()}
        blobs[2] = hear()
        tell(blobs[0])
        tell(blobs[1])
        connected(comms, blobs)
        while (said := hear()) != b"connected":
            raise AssertionError(said)
        tell()
        mine = {}
        for rank, comm in comms.items():
            bindings.comm_sealed(comm)
            mine[rank] = device_comm.device_comm_open(comm, 0, [0, 1, 2], HEAP)
        there = {
            rank: device_comm.device_comm_address(mine[rank], comms[rank]) for rank in mine
        } | {2: hear()}
        for rank, opened in mine.items():
            for peer in range(SIZE):
                if peer != rank:
                    assert (
                        device_comm.device_comm_connect(opened, comms[rank], peer, there[peer])
                        == ""
                    )
            device_comm.device_comm_seal(
                opened, comms[rank], [peer != rank for peer in range(SIZE)], True
            )
            assert device_comm.device_comm_state(opened).direct == 2
        tell(there[0])
        tell(there[1])
        assert hear().startswith(
            b"(['', ''], State(launched=0, captured=0, handed_over=0, pinned=0, dir"
        )
        opened = [call for call in fakecuda.calls() if call.name == "cuIpcOpenMemHandle"]
        here = [call for call in opened if call.pid == os.getpid()]
        assert [call.result for call in here] == [0]  # one for two ranks
        device_comm.device_comm_detach(mine[0], 1)
        assert not [call for call in fakecuda.calls() if call.name == "cuIpcCloseMemHandle"]
        device_comm.device_comm_detach(mine[1], 1)
        closed = [call for call in fakecuda.calls() if call.name == "cuIpcCloseMemHandle"]
        assert len(closed) == 1
        tell()
        assert hear() == b"detached"
        tell()
        for rank, opened in mine.items():
            device_comm.device_comm_close(opened)
            bindings.comm_close(comms[rank])
        assert other.wait() == 0
    assert fakecuda.remarks() == []
