"""Profilers and arrays on GPUs: a call has ended for them once it is enqueued."""

from __future__ import annotations

import fakecuda
import gpus
import numpy as np
import pytest

import pycoll

pytestmark = gpus.MARKS


def test_what_is_told_of_calls_on_a_gpu() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            comm.cuda()
            seen: list[pycoll.CallEvent] = []
            stream, peer = fakecuda.Stream(), 1 - comm.rank
            x, y = gpus.of(np.ones(100, "f4")), gpus.of(np.ones(100, "f4"))
            with comm.on_stream(stream):
                plan = comm.plan("allreduce", x, op="max")
                with comm.register_profiler(seen.append):
                    for _ in range(2):
                        comm.allreduce(x, op="max", algorithm="ring")
                    plan()
                    work = comm.broadcast(x, root=1, async_op=True)
                    work.wait()  # which orders streams, and knows nothing of the end
                    assert seen[-1].phase == "begin"
                    work.synchronize()
                    assert (seen[-1].phase, seen[-1].collective) == ("end", "broadcast")
                    comm.exchange([(x, peer)], [(y, peer)])
                    with pytest.raises(pycoll.UsageError) as refused:
                        comm.allreduce(x, op="nonsense")
                    assert seen[-1].error is refused.value
                plan()
            stream.synchronize()
            found = [(*e[1:8], e.device, e.algorithm) for e in seen if e.phase == "end"]
            assert found == [
                *[
                    ("allreduce", n, 400, "float32", "max", None, None, "cuda:0", "ring")
                    for n in (1, 2)
                ],
                ("allreduce", 3, 400, "float32", "max", None, None, "cuda:0", plan.algorithm),
                ("broadcast", 4, 400, "float32", None, 1, None, "cuda:0", None),
                ("exchange", 1, 800, "float32", None, None, None, "cuda:0", None),
                ("allreduce", 5, 400, "float32", "nonsense", None, None, "cuda:0", None),
            ]

    gpus.ranks(2, rank)


def test_a_call_that_is_captured_is_told_of_once() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            comm.cuda()
            seen: list[str] = []
            stream, x = fakecuda.Stream(), gpus.of(np.ones(100, "f4"))
            with comm.on_stream(stream):
                comm.allreduce(x)
                stream.synchronize()
                with comm.register_profiler(lambda event: seen.append(event.phase)):
                    with fakecuda.capture(stream) as graphs:
                        comm.allreduce(x)
                        comm.allreduce(x, async_op=True).wait()
                    for _ in range(3):
                        graphs[0].launch(stream)
                    stream.synchronize()
            assert seen == ["begin", "end"] * 2

    gpus.ranks(2, rank)
