"""Order: streams, events, graphs, and the host's own calls beside them."""

from __future__ import annotations

import fakecuda
import gpus
import numpy as np
import pytest

import pycoll
from pycoll.runtime.native import cuda as bindings_cuda

pytestmark = gpus.MARKS


def test_wait_orders_the_callers_stream_and_not_the_host() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            comm.cuda()
            stream = fakecuda.Stream()
            x, copy = gpus.of(np.zeros(1000, "u1")), gpus.of(np.zeros(1000, "u1"))
            at, there = x.host.ctypes.data, copy.host.ctypes.data
            for turn in range(10):
                with comm.on_stream(stream):
                    # What fills x is in front of the collective, what reads it behind.
                    bindings_cuda.fill(0, at, turn, 1000, stream.ptr)
                    work = comm.allreduce(x, async_op=True)
                    assert work.wait() is x
                    bindings_cuda.copy(0, there, at, 1000, stream.ptr)
                stream.synchronize()
                assert copy.host.tolist() == [2 * turn] * 1000
                assert work.done()
                assert work.exception() is None
                assert work.synchronize() is x

    gpus.ranks(2, rank)


def test_calls_on_several_streams_keep_their_order() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            streams = [fakecuda.Stream() for _ in range(3)]
            mine = [np.full(n, comm.rank + n, "i8") for n in (3, 5000, 200_000)]
            xs = [gpus.of(a) for a in mine]
            for turn in range(6):
                for i, x in enumerate(xs):
                    x.host[...] = mine[i]
                for i, x in enumerate(xs):  # nobody waits between these
                    with comm.on_stream(streams[(turn + i) % 3]):
                        comm.allreduce(x)
                for stream in streams:
                    stream.synchronize()
                for x, a in zip(xs, mine, strict=True):
                    assert (x.host == 2 * a.size + 1).all()

    gpus.ranks(2, rank)


def test_calls_of_host_and_gpu_take_turns() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            stream = fakecuda.Stream()
            for turn in range(5):
                a = np.full(3000, comm.rank + turn, "f8")
                x = gpus.of(a)
                with comm.on_stream(stream):
                    comm.allreduce(x)
                    work = comm.allreduce(a.copy(), async_op=True)
                    comm.barrier()
                    got = comm.allgather(a)
                stream.synchronize()
                assert (x.host == 2 * turn + 1).all()
                assert (work.wait() == 2 * turn + 1).all()
                assert got[:: a.size].tolist() == [turn, turn + 1]

    gpus.ranks(2, rank)


def test_a_graph_is_replayed() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            stream, other = fakecuda.Stream(), fakecuda.Stream()
            x, y = gpus.of(np.zeros(700, "f4")), gpus.of(np.zeros((2, 700), "f4"))
            z = gpus.of(np.zeros(100_000, "f8"))
            with comm.on_stream(stream):
                comm.allreduce(x)
                plan = comm.plan("allgather", x, y)
                comm.allreduce(z)
            stream.synchronize()
            with comm.on_stream(stream), fakecuda.capture(stream) as graphs:
                comm.allreduce(x)
                work = comm.allreduce(z, async_op=True)  # forks, and wait joins
                assert plan() is y
                assert work.wait() is z
                with pytest.raises(pycoll.UsageError, match="is captured into a graph: it runs"):
                    work.synchronize()
            for turn in range(20):
                x.host[...], z.host[...] = turn + comm.rank, turn - comm.rank
                graphs[0].launch(stream)
                stream.synchronize()
                assert (y.host == 2 * turn + 1).all()
                assert (z.host == 2 * turn - 1).all()
                if turn == 9:  # calls beside the graph go on
                    with comm.on_stream(other):
                        comm.allreduce(x)
                    other.synchronize()
                    assert (x.host == 2 * (2 * turn + 1)).all()
            graphs[0].close()

    gpus.ranks(2, rank)


def test_the_first_call_is_not_captured() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            stream, x = fakecuda.Stream(), gpus.of(np.ones(10, "f4"))
            wanted = "10 elements.* is captured into a graph, and has no plan yet.*comm.plan"
            for _ in range(2):
                with (
                    comm.on_stream(stream),
                    pytest.raises(pycoll.UsageError, match=wanted),
                    fakecuda.capture(stream),
                ):
                    comm.allreduce(x)
                comm.cuda()  # the plane is there now, the plan still is not
            with comm.on_stream(stream):
                comm.plan("allreduce", x)
                with fakecuda.capture(stream) as graphs:
                    comm.allreduce(x)
                graphs[0].launch(stream)
            stream.synchronize()
            assert x.host.tolist() == [2.0] * 10
            graphs[0].close()

    gpus.ranks(2, rank)


def test_no_memory_is_asked_for_and_nobody_waits_while_a_graph_is_captured(tmp_path) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            stream, x = fakecuda.Stream(), gpus.of(np.ones(1000, "f4"))
            with comm.on_stream(stream):
                comm.allreduce(x)
                stream.synchronize()
                before = len(fakecuda.calls())
                with fakecuda.capture(stream) as graphs:
                    comm.allreduce(x)
                    comm.allreduce(x, async_op=True).wait()
                made = [call.name for call in fakecuda.calls()][before:]
            assert "cuLaunchKernelEx" in made
            for word in ("Alloc", "Free", "Synchronize", "Memcpy", "Module", "Query"):
                assert not [name for name in made if word in name], made
            graphs[0].close()

    # Each rank has a log of its own.
    def own_log() -> None:
        import os

        gpus.use(tmp_path / f"{os.getpid()}.log")
        rank()

    fakecuda.library()
    pycoll.spawn(own_log, 2, timeout=100)


def test_arrays_of_different_streams_want_a_word() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            one, two = fakecuda.Stream(), fakecuda.Stream()
            x = gpus.Seen(gpus.empty(4), stream=one.ptr)
            out = gpus.Seen(gpus.empty(4), stream=two.ptr)
            x.host[...] = 1
            with pytest.raises(pycoll.UsageError, match=r"by different streams.*comm\.on_stream"):
                comm.allreduce(x, out)
            with comm.on_stream(two):
                comm.allreduce(x, out)
            two.synchronize()
            comm.allreduce(x)  # on the stream that its interface names
            one.synchronize()
            assert x.host.tolist() == out.host.tolist() == [2.0] * 4
            x.__cuda_array_interface__["stream"] = 0  # as libraries call the default stream
            out.__cuda_array_interface__["stream"] = 1  # as the interface does
            comm.allreduce(x, out)
            fakecuda.cu("cuCtxSynchronize")
            assert out.host.tolist() == [4.0] * 4
            with pytest.raises(pycoll.UsageError, match="on_stream: stream is 'x', want a stream"):
                comm.on_stream("x").__enter__()

    gpus.ranks(2, rank)


def test_what_a_graph_packs_into_is_nobody_elses() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            stream = fakecuda.Stream()
            xs = [gpus.of(np.zeros(n, "f4")) for n in (10, 20, 30)]
            flat = gpus.of(np.zeros(comm.size, "f4"))  # its input is copied away first
            with comm.on_stream(stream):
                comm.allreduce(xs)
                comm.alltoall(flat, flat)
                plan = comm.plan("allreduce", xs)
                graphs = []
                for captured in (
                    lambda: comm.allreduce(xs),
                    lambda: comm.allreduce(xs, async_op=True).wait(),
                    plan,
                    lambda: comm.alltoall(flat, flat),
                    lambda: comm.alltoall(flat, flat, async_op=True).wait(),
                ):
                    with fakecuda.capture(stream) as made:
                        captured()
                    graphs += made
                del plan, captured
                for _ in range(100):  # so that nothing is held any more but what has to be
                    comm.allreduce(xs)
                    stream.synchronize()
                others = [comm.empty(64, device="cuda") for _ in range(100)]
                for other in others:
                    gpus.host(other)[...] = 7
                for graph in graphs:
                    for x in (*xs, flat):
                        x.host[...] = 1
                    graph.launch(stream)
                    stream.synchronize()
                    assert all((gpus.host(other) == 7).all() for other in others)
                for graph in graphs:
                    graph.close()

    gpus.ranks(2, rank)


def test_a_work_may_be_asked_while_something_else_is_captured() -> None:
    """CUDA counts the question whether an event has happened among what ends a capture."""

    def rank() -> None:
        with pycoll.init() as comm:
            x, y = (gpus.of(np.ones(10, "f4")) for _ in range(2))
            stream = fakecuda.Stream()
            with comm.on_stream(stream):
                comm.allreduce(y)
            stream.synchronize()
            work = comm.allreduce(x, async_op=True)
            with comm.on_stream(stream), fakecuda.capture(stream) as graphs:
                work.done()
                comm.allreduce(y)
            work.synchronize()
            graphs[0].launch(stream)
            stream.synchronize()
            assert (x.host == comm.size).all()
            assert (y.host == comm.size**2).all()

    gpus.ranks(2, rank)
