"""Data goes from GPU to GPU between hosts: every collective, whatever makes it visible, and faults.

Both stand-ins play the machine: what a NIC writes into memory of a GPU is seen after a flush.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import fakecuda
import gpus
import numpy as np
import pytest
from collective_checks import COLLECTIVES, Case, blocks
from killed import until_one_is_killed

import pycoll
from pycoll import CollectiveTimeout, Communicator, PeerLostError, PycollError, UnavailableError
from pycoll.bootstrap import job
from pycoll.runtime.cuda import device_comm
from pycoll.runtime.native import verbs

#: How a NIC reaches a GPU's memory, and what makes its writes visible: options of the stand-ins for
#: libcuda and libibverbs, and what pycoll says of it.
WAYS = {
    "ordered": ({"capability": 90}, {}, "on: dma-buf, no flush"),
    "driver": ({"capability": 80, "flush": 1}, {}, "on: dma-buf, flushed by the driver"),
    "read": ({"capability": 80, "flush": 0}, {}, "on: dma-buf, flushed by an RDMA read"),
    "peermem": (
        {"capability": 80, "flush": 0},
        {"dmabuf": 0, "peermem": 1},
        "on: peermem, flushed by an RDMA read",
    ),
}


def state(comm: Communicator) -> verbs.NetState:
    """What the network of the device communicator has counted."""
    return verbs.comm_net_state(comm._collectives.launch.cuda.streams.open().comm)


def every(seed: int, count: int = 0, look: Callable[[], Any] | None = None) -> tuple[Any, ...]:
    """Be a rank: every collective; then so many calls drawn at random; every bit is looked at.

    Returns how the others are reached, what the network has counted, and what `look` finds then.
    """
    with pycoll.init() as comm:
        seen = gpus.DeviceChecks(comm, fakecuda.Stream())
        for collective in COLLECTIVES if not count else ():
            for n in (3, 5000, 200_001):
                seen.blocking(Case(collective, blocks(collective, n, comm.size)), offset=True)
        drawn = random.Random(seed)
        x = gpus.of(np.zeros(40_000, "i4"))
        with comm.on_stream(seen.stream):
            for call in range(count):
                n = drawn.choice((1, 9, 11, 300, 5000, 40_000) if call % 50 == 0 else (1, 9, 300))
                root = drawn.randrange(comm.size)
                part = gpus.Seen(x.host[:n])
                part.host[:] = np.arange(n) * (comm.rank + 1) + call
                if drawn.randrange(3):
                    comm.allreduce(part)
                    want = np.arange(n) * sum(range(1, comm.size + 1)) + comm.size * call
                else:
                    comm.broadcast(part, root=root)
                    want = np.arange(n) * (root + 1) + call
                seen.stream.synchronize()
                np.testing.assert_array_equal(part.host, want)
        sends = [
            (gpus.of(np.full(50_000 * comm.rank, comm.rank, "f4")), p) for p in range(comm.size)
        ]
        recvs = [(gpus.of(np.zeros(50_000 * p, "f4")), p) for p in range(comm.size)]
        comm.exchange(sends, recvs, async_op=True).synchronize()
        assert all((got.host == peer).all() for got, peer in recvs)
        gpu = comm.cuda()
        told = str(comm.explain("allreduce", 1 << 20, "cuda"))
        assert all(way in told for way in {*gpu.reach, *gpu.lacks} - {"cuda", ""})
        seen_last = (look(),) if look else ()
        return gpu.reach, gpu.lacks, gpu.gpudirect, state(comm), *seen_last


def unstaged(found: verbs.NetState) -> bool:
    """Whether no byte went through memory of the host, but those of messages in their lines."""
    return found.gpu_bytes > 0 and sum(found.bytes) - found.gpu_bytes <= 40 * found.requests


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hosts", [[0, 1], [0, 0, 1], [0, 1, 2, 3]])
def test_every_collective(cluster: Any, way: str, hosts: list[int]) -> None:
    gpu, card, said = WAYS[way]
    for rank, (reach, lacks, gpudirect, found) in enumerate(
        cluster.run(hosts, every, 1, gpu=gpu, card=card)
    ):
        here = [host == hosts[rank] for host in hosts]
        assert list(reach) == ["cuda" if near else "verbs+gpu" for near in here]
        assert set(lacks) == {""}
        assert gpudirect == said
        assert unstaged(found)
        assert (found.gpu_flushes == 0) == (way == "ordered")
    fabric = cluster.fabric
    assert (fabric.total("gpu_reads") > 0) == (way in ("read", "peermem"))
    assert (fabric.total("driver_flushes") > 0) == (way == "driver")
    assert (fabric.total("held") > 0) == (way != "ordered")
    assert fabric.total("never_landed") == fabric.total("unclosed") == 0


@pytest.mark.parametrize("way", ["driver", "read"])
def test_many_calls_over_several_rails(cluster: Any, way: str) -> None:
    gpu, card, said = WAYS[way]
    card = {**card, "devices": 3, "gbps": "100,50,100", "jitter": 20}
    for _, _, gpudirect, found in cluster.run([0, 1], every, 2, 1000, gpu=gpu, card=card):
        assert gpudirect == said
        assert unstaged(found)
        assert all(found.bytes[:3])


def test_ten_thousand_calls(cluster: Any) -> None:
    gpu, card, _ = WAYS["read"]
    for *_, found in cluster.run(
        [0, 1, 2], every, 3, 10_000, gpu=gpu, card={**card, "devices": 2}, timeout=900
    ):
        assert unstaged(found)


def test_each_rank_decides_for_itself(cluster: Any) -> None:
    """One has its data in memory of the host, and its peers theirs on their GPUs."""

    def rank() -> tuple[Any, ...]:
        if os.environ["FAKEVERBS_HOST"] == "1":
            os.environ["PYCOLL_GPU_RDMA"] = "off"
        return every(4)

    found = cluster.run([0, 1, 2], rank, gpu=WAYS["read"][0])
    off = "off, by PYCOLL_GPU_RDMA"
    assert found[0][:2] == (
        ("cuda", "verbs", "verbs+gpu"),
        ("", f"staged at its end: {off}", ""),
    )
    assert found[1][:3] == (
        ("verbs", "cuda", "verbs"),
        (f"staged here: {off}", "", f"staged here: {off}"),
        off,
    )
    assert unstaged(found[0][3])
    assert found[1][3].gpu_bytes == found[1][3].gpu_memory == 0


def test_a_network_that_cannot_takes_no_memory(cluster: Any) -> None:
    found = cluster.run([0, 1], every, 5, gpu=WAYS["read"][0], env={"PYCOLL_TRANSPORT": "tcp"})
    for rank, (reach, lacks, gpudirect, _) in enumerate(found):
        assert gpudirect == "tcp sends from memory of the host"
        assert reach[1 - rank] == "tcp"
        assert lacks[1 - rank] == f"staged at both ends: {gpudirect}"
    names = [call.name for call in fakecuda.calls(cluster.log(0))]
    assert "cuMemFree" not in names[: names.index("cuMemHostRegister")]


NO_DMABUF = "ibv_reg_dmabuf_mr of .* bytes: Operation not supported"
NO_PEERMEM = "nvidia_peermem is not loaded: modprobe nvidia_peermem"


@pytest.mark.parametrize(
    ("gpu", "card", "setting", "why"),
    [
        ({}, {"dmabuf": 0}, "auto", f"{NO_DMABUF}; {NO_PEERMEM}"),
        ({"dmabuf": 0}, {}, "auto", f"the GPU's driver exports no dma-buf.*; {NO_PEERMEM}"),
        ({}, {"dmabuf": 0}, "dmabuf", NO_DMABUF),
        ({}, {}, "peermem", NO_PEERMEM),
        (
            {},
            {"fail": "reg_dmabuf_mr:1"},
            "auto",
            f"ibv_reg_dmabuf_mr of .*: Cannot allocate memory.*; {NO_PEERMEM}",
        ),
    ],
)
def test_why_it_is_staged(
    cluster: Any, gpu: dict[str, object], card: dict[str, object], setting: str, why: str
) -> None:
    def rank() -> Any:
        try:
            return every(5)
        except UnavailableError as error:
            return str(error)

    env = {"PYCOLL_GPU_RDMA": setting}
    for found in cluster.run([0, 1], rank, gpu=gpu, card=card, env=env):
        if setting == "auto":
            assert re.fullmatch(f"staged at both ends: {why}", max(found[1])), found[1]
            assert set(found[0]) == {"cuda", "verbs"}
            assert found[3].gpu_bytes == 0
        else:
            before = f"PYCOLL_GPU_RDMA is {setting} on rank 0, whose GPU memory is not reached so: "
            assert re.fullmatch(before + why, found), found


class Meeting:
    """What ranks, which are forked, and a thread of the test beside them tell each other."""

    def __init__(self, ranks: int) -> None:
        fork = multiprocessing.get_context("fork")
        self.ranks = ranks
        self.up = fork.Semaphore(0)  #: each rank's first call has ended: it is connected
        self.enough = fork.Semaphore(0)  #: a rank has seen what it is to see
        self.calm = fork.Event()  #: the thread does no more
        self.ended = threading.Event()  #: the ranks are gone, however that was

    def all(self, said: Any) -> bool:
        """Wait until each rank has said it; False: they are gone."""
        return all(self._one(said) for _ in range(self.ranks))

    def _one(self, said: Any) -> bool:
        while not said.acquire(timeout=0.1):
            if self.ended.is_set():
                return False
        return True

    @contextmanager
    def beside(self, trouble: Callable[[], None]) -> Iterator[None]:
        """Have a thread do something to the network, from when all ranks are up."""
        thread = threading.Thread(target=lambda: self.all(self.up) and trouble())
        thread.start()
        try:
            yield
        finally:
            self.ended.set()
            thread.join()


class Called(NamedTuple):
    """What a rank knows of its calls."""

    calls: int
    gpudirect: str
    seen: verbs.NetState


def stream_calls(
    more: Callable[[verbs.NetState], bool], first: Callable[[], object] = lambda: None
) -> Called:
    """Be a rank: all-reduces of a length that goes by all rails; all are checked.

    Args:
        more: Whether this rank wants more calls; there are some until none does.
        first: Called when the first of them has ended.
    """
    with pycoll.init() as comm:
        stream = fakecuda.Stream()
        rows = np.random.default_rng(7).integers(-99, 99, (comm.size, 300_000)).astype("i4")
        x, wish, calls = gpus.of(rows[comm.rank]), gpus.of(np.ones(1, "i4")), 0
        while wish.host[0]:
            x.host[:] = rows[comm.rank]
            wish.host[0] = calls == 0 or more(state(comm))
            with comm.on_stream(stream):
                summed = comm.allreduce(x, async_op=True)
                told = comm.allreduce(wish, op="max", async_op=True)
            summed.synchronize()
            told.synchronize()
            np.testing.assert_array_equal(x.host, rows.sum(0))
            calls += 1
            if calls == 1:
                first()
        return Called(calls, comm.cuda().gpudirect, state(comm))


@pytest.mark.parametrize("way", ["ordered", "read", "driver"])
def test_rails_fail_and_come_back(cluster: Any, way: str) -> None:
    gpu, card, said = WAYS[way]
    meeting = Meeting(2)

    def rank() -> Called:
        told = False

        def more(seen: verbs.NetState) -> bool:
            nonlocal told
            if not told and seen.failures and seen.revivals:
                told = True
                meeting.enough.release()
            return not meeting.calm.is_set() or seen.live < seen.connections

        return stream_calls(more, meeting.up.release)

    def trouble() -> None:
        seen = threading.Event()
        watch = threading.Thread(target=lambda: meeting.all(meeting.enough) and seen.set())
        watch.start()
        turn = 0
        while not meeting.ended.wait(0.4) and (turn < 8 or not seen.is_set()):
            device = f"{turn % 2}/fake{turn // 2 % 2}"
            cluster.fabric.down(device)
            meeting.ended.wait(0.3)
            cluster.fabric.up(device)
            turn += 1
        meeting.calm.set()
        watch.join()

    env = {"PYCOLL_VERBS": "timeout=8,retry=1"}
    with meeting.beside(trouble):
        found = cluster.run([0, 1], rank, gpu=gpu, card={**card, "devices": 2}, env=env)
    assert found[0].calls == found[1].calls
    for _, told, seen in found:
        assert told == said
        assert seen.failures > 0
        assert seen.revivals > 0
        assert unstaged(seen)


@pytest.mark.parametrize("way", ["ordered", "read", "driver"])
def test_a_rail_that_is_down_as_memory_is_registered(cluster: Any, way: str) -> None:
    """It carries data from GPU to GPU once it is up, as if it had been."""
    gpu, card, said = WAYS[way]

    def rank() -> Called:
        place = job.current()
        assert place is not None
        mine, register = f"{place.rank}/fake0", device_comm.gpudirect.register

        def while_down(*given: Any) -> Any:
            cluster.fabric.down(mine)
            found = register(*given)
            cluster.fabric.up(mine)
            return found

        device_comm.gpudirect.register = while_down
        return stream_calls(lambda seen: not all(seen.bytes[:2]))

    found = cluster.run([0, 1], rank, gpu=gpu, card={**card, "devices": 2})
    for _, told, seen in found:
        assert told == said
        assert unstaged(seen)
        assert (seen.gpu_flushes == 0) == (way == "ordered")
    reads = [cluster.fabric.counts(f"{host}/fake0")["gpu_reads"] for host in (0, 1)]
    assert all(reads) == any(reads) == (way == "read")


@pytest.mark.parametrize("cut", ["for a while", "for good"])
def test_a_rail_that_cannot_flush(cluster: Any, cut: str) -> None:
    """Its own reads are lost, all else passes: what came waits; in the end its sender is lost."""
    meeting = Meeting(2)

    def rank() -> str:
        try:
            return str(stream_calls(lambda _: not meeting.calm.is_set(), meeting.up.release).calls)
        except PeerLostError as error:
            return str(error)

    def trouble() -> None:
        cluster.fabric.cut("1/fake0", "1/fake0")
        if cut == "for a while":
            meeting.ended.wait(1)
            cluster.fabric.heal("1/fake0", "1/fake0")
            meeting.calm.set()

    env = {"PYCOLL_VERBS": "timeout=8,retry=1"}
    with meeting.beside(trouble):
        found = cluster.run([0, 1], rank, gpu=WAYS["read"][0], card={"devices": 2}, env=env)
    if cut == "for a while":
        assert found[0] == found[1]
        assert int(found[0]) > 0
    else:
        # Both know the reason, whichever of them tells first.
        why = "what fake0 wrote into memory of GPU 0 cannot be flushed: "
        ends = f"rank 0 is lost: {why}", f"rank 1 is lost: it gave up rank 0: {why}"
        assert all(any(one in message for one in ends) for message in found), found


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_is_killed(cluster: Any, victim: int) -> None:
    def rank() -> Any:
        comm = pycoll.init(timeout=60)
        error = until_one_is_killed(comm, victim)
        comm.close()
        return str(error)

    found = cluster.run([0, 1, 2], rank, gpu=WAYS["read"][0], check=False)
    assert isinstance(found.pop(victim), PeerLostError)
    for message in found:
        assert message.startswith(f"rank {victim} ")


def test_a_rank_that_never_comes(cluster: Any) -> None:
    """Others give up, close, and leave nothing of the GPU's registered."""

    def rank() -> str:
        comm = pycoll.init(timeout=60)
        x = gpus.of(np.ones(100_000, "f4"))
        comm.allreduce(x, async_op=True).synchronize()
        comm.barrier()
        if comm.rank == 1:
            time.sleep(3)
            comm.close()
            return ""
        with pytest.raises((CollectiveTimeout, PeerLostError)) as late:
            comm.allreduce(x, async_op=True, timeout=0.5).synchronize()
        comm.close()
        return str(late.value)

    found = cluster.run([0, 1], rank, gpu=WAYS["read"][0])
    assert "allreduce" in found[0]
    assert cluster.fabric.objects()["gpu_mrs"] == 0


def test_communicators_follow_each_other(cluster: Any) -> None:
    """Each frees its memory once no NIC reaches it: the stand-in would say so otherwise."""

    def rank() -> None:
        for turn in range(4):
            with pycoll.init() as comm:
                x = gpus.of(np.full(70_000, turn, "f4"))
                comm.allreduce(x, async_op=True).synchronize()
                assert (x.host == comm.size * turn).all()
                assert "verbs+gpu" in comm.cuda().reach

    cluster.run([0, 1], rank, gpu=WAYS["driver"][0])
    assert cluster.fabric.objects()["gpu_mrs"] == 0


def test_a_rank_raises(cluster: Any) -> None:
    """Others that wait for its messages hear why."""

    def calls() -> None:
        x, stream = gpus.of(np.ones(100_000, "f4")), fakecuda.Stream()
        with pycoll.init(timeout=60) as comm:
            for call in range(1_000_000):
                if comm.rank == 1 and call == 15:
                    raise PycollError("enough")
                with comm.on_stream(stream):
                    comm.allreduce(x, async_op=True).synchronize()

    def rank() -> str:
        with pytest.raises(PycollError) as heard:
            calls()
        return str(heard.value)

    found = cluster.run([0, 1, 2], rank, gpu=WAYS["read"][0], card={"devices": 2})
    assert found.pop(1) == "enough"
    for message in found:
        assert message.startswith("rank 1 ")


def test_more_ranks_than_there_is_memory_for(cluster: Any) -> None:
    gpu = {"memory_mib": 512}  # of which a 16th is 32: a peer takes 8 and some
    three = cluster.run([0, 1, 2, 3], every, 6, gpu=gpu)
    assert all("verbs+gpu" in reach for reach, *_ in three)
    for reach, lacks, gpudirect, found in cluster.run([0, 1, 2, 3, 4], every, 6, gpu=gpu):
        why = "the messages of 4 ranks take 32 MiB, more than a 16th of the memory of GPU 0"
        assert gpudirect == why
        assert max(lacks) == f"staged at both ends: {why}"
        assert set(reach) == {"cuda", "verbs"}
        assert found.gpu_memory == 0


def test_communicators_beside_each_other(cluster: Any) -> None:
    def rank() -> None:
        with pycoll.init() as comm, comm.dup() as other:
            streams = fakecuda.Stream(), fakecuda.Stream()
            xs = [gpus.of(np.full(60_000, turn + comm.rank, "i4")) for turn in range(2)]
            for _ in range(20):
                for one, x, stream in zip((comm, other), xs, streams, strict=True):
                    with one.on_stream(stream):
                        one.allreduce(x, op="max")
            for turn, (x, stream) in enumerate(zip(xs, streams, strict=True)):
                stream.synchronize()
                assert (x.host == turn + comm.size - 1).all()
            assert unstaged(state(comm))
            assert unstaged(state(other))

    cluster.run([0, 1, 2], rank, gpu=WAYS["read"][0])
    assert cluster.fabric.objects()["gpu_mrs"] == 0
