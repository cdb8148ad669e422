"""What mypy refuses: each line that ends with a remark, and no other."""

from __future__ import annotations

import numpy as np
import torch

import pycoll


def words(comm: pycoll.Communicator, x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    comm.allreduce(x, op="xor")  # refused
    comm.reduce(x, op="SUM")  # refused
    comm.reduce_scatter(x, op=max)  # refused
    comm.reduce_scatterv(x, [1, 2], op="mean")  # refused
    comm.plan("allreduce", x, op="xor")  # refused
    comm.plan("all_reduce", x)  # refused
    comm.explain("allreduce", 8, device="gpu")  # refused
    comm.empty(3, device="gpu")  # refused
    comm.allreduce(x, asynchronous=True)  # refused
    comm.allreduce(x, timeout="3")  # refused
    comm.broadcast(x, root="0")  # refused
    comm.allreduce(x, order="fast")  # refused
    comm.broadcast(x, order="fixed")  # refused


def arrays(comm: pycoll.Communicator, x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    comm.allreduce(5)  # refused
    comm.allreduce("text")  # refused
    comm.allgather(None)  # refused
    comm.send(1.5, to=0)  # refused
    comm.recv(x, frm=None)  # refused
    comm.exchange([x], [x])  # refused
    comm.allgatherv(x, 3)  # refused


def results(comm: pycoll.Communicator, x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    comm.allreduce(x, async_op=True).sum()  # refused
    comm.allreduce(x).wait()  # refused
    comm.allreduce(x).norm()  # refused
    comm.allreduce(torch.ones(3)).astype("f4")  # refused
    comm.reduce(x).sum()  # refused
    comm.barrier().wait()  # refused
    comm.split(0).close()  # refused
    comm.plan("allreduce", x)().wait()  # refused
    comm.allgather_object(3)[0].upper()  # refused
    pycoll.spawn(lambda: 1, 2)[0].upper()  # refused
    pycoll.spawn(lambda: 1, 2, start="thread")  # refused


@pycoll.algorithm("all_reduce")  # refused
def nothing(b: pycoll.ScheduleBuilder) -> None: ...
