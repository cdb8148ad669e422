"""What a user writes; mypy refuses none of it, and knows each type."""

from __future__ import annotations

import array
from typing import Any, assert_type

import cupy
import numpy as np
import torch
from numpy.typing import NDArray

import pycoll
from pycoll import Plan, Work, algorithms, cost, topology

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]


def collectives(comm: pycoll.Communicator, x: Vector, y: NDArray[np.int32], flag: bool) -> None:
    assert_type(comm.allreduce(x), Vector)
    assert_type(comm.allreduce(x, y), NDArray[np.int32])
    assert_type(comm.allreduce(x, op="max", algorithm="ring", timeout=3), Vector)
    assert_type(comm.allreduce(x, order="fixed"), Vector)
    assert_type(comm.reduce_scatter(x, async_op=True, order="free"), Work[Vector])
    assert_type(comm.plan("allreduce", x, order="fixed"), Plan[Vector])
    assert_type(comm.allreduce(x, async_op=True), Work[Vector])
    assert_type(comm.allreduce(x, async_op=True).wait(), Vector)
    assert_type(comm.allreduce(x, async_op=flag), Vector | Work[Vector])
    assert_type(comm.allreduce([x, x]), list[Vector])
    assert_type(comm.allreduce([x, x], async_op=True).wait(timeout=1), list[Vector])
    assert_type(comm.broadcast(x, root=1), Vector)
    assert_type(comm.reduce(x, op="avg"), Vector | None)
    assert_type(comm.allgather(x), Vector)
    assert_type(comm.reduce_scatter(y), NDArray[np.int32])
    assert_type(comm.alltoall(x, x), Vector)
    assert_type(comm.gather(x, async_op=True), Work[Vector | None])
    assert_type(comm.scatter(None, x), Vector)
    assert_type(comm.allgatherv(x, [1, 2], async_op=True), Work[Vector])
    assert_type(comm.reduce_scatterv(x, (1, 2), op="min"), Vector)
    assert_type(comm.alltoallv(x, [1, 2], y, [2, 1]), NDArray[np.int32])
    assert_type(comm.gatherv(x), Vector | None)
    assert_type(comm.scatterv(x, [1, 2]), Vector)
    assert_type(comm.barrier(async_op=True), Work[None])
    comm.barrier()
    comm.barrier(True, 3.0).wait()


def libraries(comm: pycoll.Communicator) -> None:
    assert_type(comm.allreduce(torch.ones(3)), torch.Tensor)
    assert_type(comm.allgather(torch.ones(3), async_op=True).wait().norm(), torch.Tensor)
    assert_type(comm.allreduce(cupy.ones(3)), cupy.ndarray)
    assert_type(comm.allreduce(array.array("d", [1])), "array.array[float]")
    assert_type(comm.allreduce(b"ab", bytearray(2)), bytearray)
    assert_type(comm.empty((2, 3), "float32"), NDArray[Any])
    assert_type(comm.empty(3, device="cuda"), Any)


def messages(comm: pycoll.Communicator, x: Vector) -> None:
    comm.send(x, to=1)
    assert_type(comm.send(x, 1, async_op=True), Work[None])
    assert_type(comm.recv(x, frm=1), Vector)
    assert_type(comm.recv(x, 1, True), Work[Vector])
    assert_type(comm.exchange([(x, 1)], [(x, 1)]), list[Vector])
    assert_type(comm.exchange(sends=((x, r) for r in (0, 1)), recvs=[(x, 1)]), list[Vector])


def objects(comm: pycoll.Communicator) -> None:
    assert_type(comm.allgather_object(f"rank {comm.rank}"), list[str])
    assert_type(comm.gather_object(3), list[int] | None)
    assert_type(comm.broadcast_object({"seed": 1} if comm.rank == 0 else None), Any)
    assert_type(comm.split(color=None), pycoll.Communicator | None)
    assert_type(comm.dup(), pycoll.Communicator)


def plans(comm: pycoll.Communicator, x: Vector) -> None:
    assert_type(comm.plan("allreduce", x), Plan[Vector])
    assert_type(comm.plan("allreduce", x)(), Vector)
    assert_type(comm.plan("gather", x)(), Vector | None)
    assert_type(comm.plan("allreduce", [x, x])(), list[Vector])
    assert_type(comm.plan("allgather", x, counts=[1, 2], timeout=3)(), Vector)


@pycoll.algorithm("allreduce")
def nothing(b: pycoll.ScheduleBuilder) -> None:
    b.send(b.output[:], to=(b.rank + 1) % b.size)


def functions() -> None:
    def rank(offset: int) -> float:
        with pycoll.init(timeout=60) as comm:
            return float(comm.allreduce(np.ones(1))[0]) + offset

    assert_type(pycoll.spawn(rank, 2, 3), list[float])
    assert_type(pycoll.verify("ring", size=3).seconds, float)
    assert_type(algorithms.get("ring"), pycoll.Algorithm)
    assert_type(topology.cluster(2).hops(0, 1), int)
    question = cost.Question("allreduce", nbytes=8, size=4, cores=4)
    assert_type(cost.explain(question).choice.algorithm, str)
