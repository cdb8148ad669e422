"""Messages between two ranks, of arrays on GPUs: send, recv, exchange, and what has counts."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import fakecuda
import gpus
import numpy as np
import pytest
import walk

import pycoll
from pycoll import Communicator, UsageError
from pycoll.bootstrap import job as jobs
from pycoll.runtime.native import device_comm

pytestmark = gpus.MARKS

#: Bytes: none, parts of a word, of a line and just more, of a slot and about one, of several lanes
#: that end anywhere.
LENGTHS = (0, 1, 3, 40, 41, 1000, 4096, 65_537, (256 << 10) - 1, 256 << 10, (256 << 10) + 5)
LONG = 700_001, 3_000_003
#: How the ranks reach each other's memory.
WAYS = ("cuda", "shm", "tcp")


def opened(way: str = "cuda", timeout: float = 60, blocks: int | None = None) -> Communicator:
    """Return a communicator with a GPU whose ranks reach each other so.

    Args:
        way: How.
        timeout: Of calls.
        blocks: Of a kernel of messages, at most. With one, a few MiB take all slots of an edge.
    """
    mine = jobs.current()
    assert mine is not None
    with walk.apart("tcp" if way == "tcp" else "shm", mine.rank):
        os.environ["PYCOLL_TRANSPORT"] = "tcp"
        comm = pycoll.init(timeout=timeout)
        if way != "cuda":
            fakecuda.fail(",".join(f"cuIpcOpenMemHandle:{k}=201" for k in range(1, comm.size)))
        found = comm.cuda().reach
    assert {got for peer, got in enumerate(found) if peer != comm.rank} <= {way}
    if blocks is not None:
        comm._collectives.launch.cuda.streams.open().blocks = blocks
    return comm


def values(seed: Any, count: int, dtype: str = "u1") -> np.ndarray[Any, Any]:
    """Return the same random bytes on all ranks."""
    rng = np.random.default_rng(abs(hash(seed)) if not isinstance(seed, tuple) else seed)
    return rng.integers(0, 256, count * np.dtype(dtype).itemsize, dtype="u1").view(dtype)


def off(data: np.ndarray[Any, Any], by: int) -> gpus.Seen:
    """Return a copy on the GPU that begins so many elements behind an address that is aligned."""
    there = gpus.empty(data.size + by, data.dtype)[by:]
    there[...] = data
    return gpus.Seen(there)


def check(comm: Communicator) -> None:
    """Raise what the last launches left."""
    comm._collectives.launch.cuda.streams.open().check()


def alike(x: gpus.Seen, want: np.ndarray[Any, Any], what: Any = "") -> None:
    assert x.host.tobytes() == want.tobytes(), what


class Plan:
    """Who sends what to whom in one exchange: the same on all ranks."""

    def __init__(self, size: int, seed: int, most: int = 3, lengths: Any = LENGTHS) -> None:
        drawn = random.Random(f"{size} {seed}")
        #: Of each pair of ranks, in order: bytes of each message, and their seeds.
        self.messages = {
            (a, b): [
                (drawn.choice(lengths), (seed, a, b, k)) for k in range(drawn.randrange(most + 1))
            ]
            for a in range(size)
            for b in range(size)
        }
        self.drawn = drawn

    def ends(self, rank: int, turn: random.Random) -> tuple[list[Any], list[Any], list[Any]]:
        """Return what a rank sends, what it receives, and what it is to have received."""
        sends, recvs, want = [], [], []
        pairs = list(self.messages.items())
        turn.shuffle(pairs)
        for (a, b), messages in pairs:
            for nbytes, seed in messages:
                if a == rank:
                    sends.append((off(values(seed, nbytes), turn.randrange(9)), b))
                if b == rank:
                    recvs.append((off(np.zeros(nbytes, "u1"), turn.randrange(9)), a))
                    want.append(values(seed, nbytes))
        return sends, recvs, want


def exchanged(comm: Communicator, stream: fakecuda.Stream, plan: Plan, seed: int) -> None:
    sends, recvs, want = plan.ends(comm.rank, random.Random(f"{comm.rank} {seed}"))
    with comm.on_stream(stream):
        got = comm.exchange(sends, recvs)
    stream.synchronize()
    check(comm)
    assert [id(x) for x in got] == [id(x) for x, _ in recvs]
    for (x, peer), data in zip(recvs, want, strict=True):
        alike(x, data, (comm.rank, peer, data.size))


@pytest.mark.parametrize("size", [2, 3, 4, 8, 9])
def test_every_rank_exchanges_with_every_other_and_itself(size: int) -> None:
    def rank() -> None:
        with opened(timeout=120) as comm:
            stream = fakecuda.Stream()
            for seed in range(6 if size < 5 else 3):
                exchanged(comm, stream, Plan(size, seed, most=3 if size < 5 else 2), seed)

    gpus.ranks(size, rank)


@pytest.mark.parametrize("way", WAYS[1:])
def test_through_the_host_and_over_the_network(way: str) -> None:
    def rank() -> None:
        with opened(way) as comm:
            stream = fakecuda.Stream()
            for seed in range(4):
                exchanged(comm, stream, Plan(3, seed, lengths=(*LENGTHS, LONG[0])), seed)

    gpus.ranks(3, rank)


def test_some_reach_each_other_and_some_do_not() -> None:
    def rank() -> None:
        with pycoll.init(timeout=60) as comm:
            if comm.rank == 2:
                fakecuda.fail("cuIpcOpenMemHandle:1=201")
            comm.cuda()
            for seed in range(4):
                exchanged(comm, fakecuda.Stream(), Plan(3, seed), seed)

    gpus.ranks(3, rank)


@pytest.mark.parametrize("way", WAYS)
def test_one_message_after_the_other(way: str) -> None:
    def rank() -> None:
        with opened(way) as comm:
            stream = fakecuda.Stream()
            with comm.on_stream(stream):
                for turn, nbytes in enumerate((*LENGTHS, *LONG)):
                    data = values((turn,), nbytes)
                    if comm.rank == turn % 2:
                        comm.send(off(data, turn % 3), 1 - comm.rank)
                        continue
                    x = off(np.zeros(nbytes, "u1"), turn % 5)
                    assert comm.recv(x, 1 - comm.rank) is x
                    stream.synchronize()
                    check(comm)
                    alike(x, data, nbytes)
            stream.synchronize()
            check(comm)

    gpus.ranks(2, rank)


@pytest.mark.parametrize("way", WAYS)
def test_a_ring_of_stages(way: str) -> None:
    """A pipeline: each rank adds to what it gets from the one before, and passes it on."""

    def rank() -> None:
        with opened(way) as comm:
            stream, size = fakecuda.Stream(), comm.size
            x = gpus.of(np.zeros(50_000, "i8"))
            with comm.on_stream(stream):
                for turn in range(10):
                    if comm.rank:
                        comm.recv(x, comm.rank - 1)
                        stream.synchronize()
                        check(comm)
                        assert (x.host == np.arange(50_000) * turn + comm.rank - 1).all()
                    else:
                        x.host[...] = np.arange(50_000) * turn - 1
                    x.host[...] += 1
                    if comm.rank + 1 < size:
                        comm.send(x, comm.rank + 1)
                        stream.synchronize()
            check(comm)

    gpus.ranks(4, rank)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("blocks", [1, 2])
def test_more_than_the_slots_hold(way: str, blocks: int) -> None:
    """Both send first, and neither may wait with that for the other; slots are used again."""
    lengths = (9_000_001, 0, 17, 4 << 20)

    def rank() -> None:
        with opened(way, blocks=blocks) as comm:
            other, mine = 1 - comm.rank, comm.rank
            sends = [(off(values((mine, k), n), k), other) for k, n in enumerate(lengths)]
            recvs = [(off(np.zeros(n, "u1"), 3 * k), other) for k, n in enumerate(lengths)]
            for _ in range(2):
                comm.exchange(sends, recvs, async_op=True).synchronize()
                for k, n in enumerate(lengths):
                    alike(recvs[k][0], values((other, k), n), (k, n))

    gpus.ranks(2, rank)


def test_many_ranks_in_one_block() -> None:
    """A block with jobs of every rank: it must not wait for one while another can move."""

    def rank() -> None:
        with opened(blocks=1, timeout=120) as comm:
            lengths = (*LENGTHS, LONG[0], 2_000_001)
            for seed in range(3):
                exchanged(comm, fakecuda.Stream(), Plan(4, seed, lengths=lengths), seed)

    gpus.ranks(4, rank)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 9])
def test_what_has_counts(size: int) -> None:
    def rank() -> None:
        with pycoll.init(timeout=120) as comm:
            stream, mine = fakecuda.Stream(), comm.rank
            for turn in range(4):
                drawn = random.Random(f"{size} {turn}")
                most = (1, 20, 3000, 90_000)[turn]
                counts = [
                    [drawn.choice((0, 1, drawn.randrange(most + 1))) for _ in range(size)]
                    for _ in range(size)
                ]
                parts = [
                    [values((turn, a, b), counts[a][b], "f4") for b in range(size)]
                    for a in range(size)
                ]
                received = [counts[a][mine] for a in range(size)]
                x = gpus.of(np.concatenate(parts[mine]))
                out = gpus.of(np.zeros(sum(received), "f4"))
                root = turn % size
                at_root, sent = mine == root, counts[0]
                whole, part = gpus.of(np.zeros(sum(sent), "f4")), gpus.of(parts[0][mine])
                back = gpus.of(np.zeros(sent[mine], "f4"))
                with comm.on_stream(stream):
                    # The first one opens the GPU: it is a call of all ranks.
                    assert comm.alltoallv(x, counts[mine], out, received) is out
                    given = (sent, whole) if at_root else (None, None)
                    got = comm.gatherv(part, *given, root=root)
                    assert got is (whole if at_root else None)
                    comm.scatterv(*given[::-1], back, root=root)
                    made = comm.gatherv(part, sent if at_root else None, root=root)
                stream.synchronize()
                check(comm)
                alike(out, np.concatenate([parts[a][mine] for a in range(size)]), turn)
                alike(back, parts[0][mine])
                if at_root:
                    alike(whole, np.concatenate(parts[0]))
                    assert gpus.host(made).tobytes() == np.concatenate(parts[0]).tobytes()

    gpus.ranks(size, rank)


def test_beside_collectives_of_all_kinds() -> None:
    """They go by the same edges: packets, plain messages, the direct form."""

    def rank() -> None:
        with opened() as comm:
            stream = fakecuda.Stream()
            lengths = (3, 700, 100_000)
            xs = [gpus.of(np.zeros(n, "i4")) for n in lengths]
            mapped = comm.empty(5000, "i4", device="cuda")
            with comm.on_stream(stream):
                for turn in range(12):
                    for x in (*xs, mapped):
                        gpus.host(x)[...] = turn + comm.rank
                    comm.allreduce(xs[turn % 3])
                    sends, recvs, want = Plan(3, turn).ends(comm.rank, random.Random(turn))
                    comm.exchange(sends, recvs)
                    comm.allreduce(mapped)
                    counts = [turn, 0, 5]
                    y = gpus.of(values((turn, comm.rank), sum(counts), "i4"))
                    out = gpus.of(np.zeros(3 * counts[comm.rank], "i4"))
                    comm.alltoallv(y, counts, out, [counts[comm.rank]] * 3)
                    comm.allreduce(xs[(turn + 1) % 3])
                    stream.synchronize()
                    check(comm)
                    for x in (xs[turn % 3], xs[(turn + 1) % 3], mapped):
                        assert (gpus.host(x) == 3 * turn + 3).all()
                    for (x, _), data in zip(recvs, want, strict=True):
                        alike(x, data)
                    at = np.cumsum([0, *counts])
                    parts = [
                        values((turn, a), sum(counts), "i4")[at[comm.rank] : at[comm.rank + 1]]
                        for a in range(3)
                    ]
                    alike(out, np.concatenate(parts))

    gpus.ranks(3, rank)


@pytest.mark.parametrize("how", ["streams", "async", "itself alone"])
def test_what_a_rank_sends_itself_comes_behind_earlier_calls(how: str) -> None:
    """It is a copy, and no kernel puts it behind the call before, on another stream."""

    def rank() -> None:
        comm = opened("cuda")
        one, two = fakecuda.Stream(), fakecuda.Stream()
        count = 1000
        x = gpus.of(np.full(count * comm.size, comm.rank + 1.0, "f4"))
        z = gpus.of(np.zeros(count * comm.size, "f4"))
        comm.allreduce(gpus.of(np.ones(count * comm.size, "f4")), async_op=True).synchronize()
        if comm.rank == 1:
            time.sleep(1)
        if how == "async":
            comm.allreduce(x, async_op=True)
        else:
            with comm.on_stream(one):
                comm.allreduce(x)
        with comm.on_stream(two):
            comm.alltoallv(x, [count] * comm.size, z, [count] * comm.size)
            if how == "itself alone":  # and what comes next comes behind such a copy
                comm.exchange([(z, comm.rank)], [(x, comm.rank)])
        with comm.on_stream(one):
            comm.allreduce(x)
        one.synchronize()
        two.synchronize()
        want = sum(range(1, comm.size + 1))
        assert (gpus.host(z) == want).all()
        assert (gpus.host(x) == want * comm.size).all()
        comm.close()

    gpus.ranks(2, rank)


def test_as_works_on_the_communicators_stream() -> None:
    def rank() -> None:
        with opened() as comm:
            stream, other = fakecuda.Stream(), 1 - comm.rank
            x, y = gpus.of(np.zeros(1000, "i4")), gpus.of(np.zeros(1000, "i4"))
            for turn in range(5):
                x.host[...] = values((turn, comm.rank), 1000, "i4")
                with comm.on_stream(stream):
                    if comm.rank == 0:
                        works = [comm.send(x, 1, async_op=True), comm.recv(y, 1, async_op=True)]
                    else:
                        works = [comm.recv(y, 0, async_op=True), comm.send(x, 0, async_op=True)]
                    assert [work.wait() for work in works].count(y) == 1
                    work = comm.alltoallv(
                        x,
                        [500, 500],
                        x2 := gpus.of(np.zeros(1000, "i4")),
                        [500, 500],
                        async_op=True,
                    )
                    assert work.wait() is x2
                    assert "alltoallv(int32) at " in repr(work)
                stream.synchronize()
                assert all(work.done() and work.exception() is None for work in works)
                alike(y, values((turn, other), 1000, "i4"))
                at = slice(500 * comm.rank, 500 * comm.rank + 500)
                halves = [values((turn, a), 1000, "i4")[at] for a in range(2)]
                alike(x2, np.concatenate(halves))

    gpus.ranks(2, rank)


@pytest.mark.parametrize("way", WAYS)
def test_a_graph_is_replayed(way: str) -> None:
    def rank() -> None:
        with opened(way) as comm:
            stream, other = fakecuda.Stream(), 1 - comm.rank
            x, y, z, w = (gpus.of(np.zeros(n, "i4")) for n in (70_000, 70_000, 9, 9))
            whole = [70_000, 0][:: 1 - 2 * comm.rank]  # all of it goes to the rank itself
            with comm.on_stream(stream), fakecuda.capture(stream) as graphs:
                comm.exchange([(x, other), (w, comm.rank)], [(y, other), (z, comm.rank)])
                comm.alltoallv(y, whole, x, whole)
                if comm.rank == 0:
                    comm.send(z, 1)
                else:
                    comm.recv(z, 0)
            for turn in range(8):
                x.host[...] = values((turn, comm.rank), 70_000, "i4")
                w.host[...] = turn + comm.rank
                graphs[0].launch(stream)
                if turn == 4:  # messages beside the graph go on
                    with comm.on_stream(stream):
                        comm.exchange([(x, other)], [(y, other)])
                        comm.exchange([(y, other)], [(x, other)])
                stream.synchronize()
                check(comm)
                alike(y, values((turn, comm.rank if turn == 4 else other), 70_000, "i4"))
                alike(x, values((turn, other), 70_000, "i4"))
                assert (z.host == turn).all()
            graphs[0].close()

    gpus.ranks(2, rank)


def test_no_memory_is_asked_for_while_a_graph_is_captured(tmp_path: Path) -> None:
    def rank() -> None:
        gpus.use(tmp_path / f"{os.getpid()}.log")
        with opened() as comm:
            stream, other = fakecuda.Stream(), 1 - comm.rank
            x, y = gpus.of(np.zeros(9, "i4")), gpus.of(np.zeros(9, "i4"))
            before = len(fakecuda.calls())
            with comm.on_stream(stream), fakecuda.capture(stream) as graphs:
                comm.exchange([(x, other)], [(y, other)])
                comm.exchange([(y, other)], [(x, other)], async_op=True).wait()
            made = [call.name for call in fakecuda.calls()][before:]
            assert made.count("cuLaunchKernelEx") == 2
            for word in ("Alloc", "Free", "Synchronize", "Memcpy", "Module", "Query"):
                assert not [name for name in made if word in name], made
            assert fakecuda.remarks() == []
            graphs[0].close()

    fakecuda.library()
    pycoll.spawn(rank, 2, timeout=100)


def test_what_is_refused() -> None:
    def rank() -> None:
        with pycoll.init(timeout=60) as comm:
            x, host = gpus.of(np.zeros(6, "f4")), np.zeros(6, "f4")

            def refused(message: str, call: Any, *given: Any, **more: Any) -> None:
                with pytest.raises(UsageError, match=message):
                    call(*given, **more)

            other = 1 - comm.rank
            for call in (comm.send, comm.recv):
                refused(r"no GPU yet.* comm\.cuda\(\) on all ranks first", call, x, other)
            y = gpus.of(np.zeros(6, "f4"))
            no_gpu = "exchange: this communicator has no GPU yet"
            refused(no_gpu, comm.exchange, [(x, other)], [(y, other)])
            comm.cuda()
            mixed = "one array is on cuda:0 and another on the host"
            refused(mixed, comm.exchange, [(x, other)], [(host, other)])
            refused(mixed, comm.alltoallv, x, [3, 3], host, [3, 3])
            whole = gpus.of(np.zeros(12, "f4"))
            refused("and another on cuda:0", comm.gatherv, host, [6, 6], whole, root=comm.rank)
            alone = r"sends itself 1 messages and receives 0; on a GPU both ends are in one call"
            refused(alone, comm.send, x, comm.rank)
            refused("sends itself 0 messages and receives 1", comm.recv, x, comm.rank)
            less, own = gpus.of(np.zeros(5, "f4")), comm.rank
            refused("itself 24 bytes and receives 20", comm.exchange, [(x, own)], [(less, own)])
            most = device_comm.MOST_TRANSFERS
            text = f"{most + 2} messages at once on a GPU, want at most {most}"
            ends = [[(gpus.of(np.zeros(3)), other) for _ in range(most // 2 + 1)] for _ in range(2)]
            refused(text, comm.exchange, *ends)
            refused("timeout", comm.exchange, *ends, timeout=-1)
            # Nothing of all that was a message that the other was not refused, too.
            full = [(gpus.of(np.full(3, k, "f4")), other) for k in range(most // 2)]
            got = [(gpus.of(np.zeros(3, "f4")), other) for _ in range(most // 2)]
            comm.exchange(full, got, async_op=True).synchronize()
            assert [y.host.tolist() for y, _ in got] == [[k] * 3 for k in range(most // 2)]

    gpus.ranks(2, rank)


def test_more_ranks_than_a_kernel_has_messages_for() -> None:
    """A call is several kernels then, which have the same rounds on all ranks."""
    size = device_comm.MOST_TRANSFERS // 2 + 2

    def rank() -> None:
        with pycoll.init(timeout=250) as comm:
            mine, root = comm.rank, 3
            x = gpus.of(np.arange(size, dtype="i4") + 1000 * mine)
            out, whole = gpus.of(np.zeros(size, "i4")), None
            ones = [1] * size
            comm.alltoallv(x, ones, out, ones, async_op=True).synchronize()
            assert out.host.tolist() == [1000 * peer + mine for peer in range(size)]
            if mine == root:
                whole = gpus.of(np.zeros(size * size, "i4"))
            counts = [size] * size if mine == root else None
            comm.gatherv(x, counts, whole, root=root, async_op=True).synchronize()
            back = gpus.of(np.zeros(size, "i4"))
            comm.scatterv(whole, counts, back, root=root, async_op=True).synchronize()
            assert back.host.tolist() == x.host.tolist()
            if whole is not None:
                want = [1000 * peer + k for peer in range(size) for k in range(size)]
                assert whole.host.tolist() == want

    gpus.ranks(size, rank, timeout=300, patience=200)
