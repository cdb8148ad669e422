"""How the ranks' GPUs reach each other: memory of GPUs, memory of the host, the network."""

from __future__ import annotations

import logging
import os
import sys
from logging.handlers import BufferingHandler
from pathlib import Path

import fakecuda
import gpus
import numpy as np
import pytest
from collective_checks import COLLECTIVES, Case, blocks
from hosts import Hosts, lack

import pycoll
from pycoll.communicator import Communicator

pytestmark = gpus.MARKS


def checked(comm: Communicator, reach: set[str], transport: str) -> None:
    """Every collective, once; and how it went."""
    gpu = comm.cuda()
    assert set(gpu.reach) == reach
    assert gpu.reach[comm.rank] == "cuda"
    if reach <= {"cuda", "shm"}:
        assert gpu.gpudirect == "no rank is on another host"
    seen = gpus.DeviceChecks(comm, fakecuda.Stream())
    for collective in COLLECTIVES:
        for count in (3, 5000, 200_001):
            seen.blocking(Case(collective, blocks(collective, count, comm.size)), offset=True)
    sends = [
        (gpus.of(np.full(50_000 * comm.rank, comm.rank, "f4")), peer) for peer in range(comm.size)
    ]
    recvs = [(gpus.of(np.zeros(50_000 * peer, "f4")), peer) for peer in range(comm.size)]
    comm.exchange(sends, recvs, async_op=True).synchronize()
    assert all((x.host == peer).all() for x, peer in recvs)
    x = gpus.of(np.ones(4, "f4"))
    assert comm.plan("allreduce", x).transport == transport
    told = str(comm.explain("allreduce", 1 << 20, "cuda"))
    assert "by published rates of GPUs joined by NVLink, not measured" in told
    assert ("empty()" in told) == (reach == {"cuda"})  # what does not run is not promised


def test_through_memory_of_gpus() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            checked(comm, {"cuda"}, "cuda")

    gpus.ranks(2, rank)


def test_through_memory_of_the_host_where_one_cannot_open_the_others() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            if comm.rank == 0:
                fakecuda.fail("cuIpcOpenMemHandle:1=201")
            said = BufferingHandler(100)
            logging.getLogger("pycoll").addHandler(said)
            logging.getLogger("pycoll").setLevel(logging.INFO)
            checked(comm, {"cuda", "shm"}, "shm")
            why = (
                "the GPU memory of rank 1: cuIpcOpenMemHandle on GPU 0"
                if comm.rank == 0
                else "it does not reach the memory of this rank's GPU"
            )
            text = f"rank {comm.rank}: rank {1 - comm.rank} by shm: {why}"
            assert any(text in record.getMessage() for record in said.buffer)
            assert f"rank {1 - comm.rank} by shm: {why}" in str(
                comm.explain("allreduce", 1 << 20, "cuda")
            )
            assert why in comm.cuda().lacks[1 - comm.rank]

    gpus.ranks(2, rank)


def test_some_reach_each_other_and_some_do_not() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            if comm.rank == 2:
                fakecuda.fail("cuIpcOpenMemHandle:1=201")
            comm.cuda()
            seen = gpus.DeviceChecks(comm, fakecuda.Stream())
            for collective in COLLECTIVES:
                seen.blocking(Case(collective, blocks(collective, 5000, 3)))

    gpus.ranks(3, rank)


@pytest.mark.net
@pytest.mark.skipif(bool(lack()), reason=lack() or "-")
@pytest.mark.parametrize("ranks", [(1, 1), (2, 1)])
def test_over_the_network(root, ranks: tuple[int, ...]) -> None:
    host_of = [host for host, n in enumerate(ranks) for _ in range(n)]
    shared = [root, *(root / "tests" / name for name in (".", "fakecuda", "net", "cuda"))]
    with Hosts(len(ranks)) as hosts:
        running = [
            hosts.run(
                host,
                [sys.executable, __file__],
                env={
                    **os.environ,
                    **fakecuda.environment(),
                    "PYTHONPATH": ":".join(map(str, shared)),
                    "PYCOLL_RANK": str(rank),
                    "PYCOLL_SIZE": str(len(host_of)),
                    "PYCOLL_ADDRESS": f"{hosts.address(0)}:29400",
                    "PYCOLL_SECRET": "ab" * 16,
                },
            )
            for rank, host in enumerate(host_of)
        ]
        assert [process.wait(timeout=200) for process in running] == [0] * len(host_of)


def test_an_address_that_comes_again() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            stream, addresses = fakecuda.Stream(), set()
            for turn in range(6):
                x = gpus.of(np.full(1 << 18, comm.rank + turn, "f4"))
                addresses.add(x.host.ctypes.data)
                with comm.on_stream(stream):
                    comm.allreduce(x)
                stream.synchronize()
                assert (x.host == 2 * turn + 1).all()
                del x
            assert addresses

    gpus.ranks(2, rank)


def main() -> None:
    """Be a rank of `test_over_the_network`."""
    gpus.use()
    with pycoll.init() as comm:
        transport = comm.plan("allreduce", gpus.of(np.ones(4, "f4"))).transport
        checked(comm, {"cuda", "tcp"}, transport)
        assert "tcp" in transport or comm.local_size > 1


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))
    main()
