"""Data goes from GPU to GPU between hosts over libfabric (FI_HMEM).

Both stand-ins play the machine: what a provider's NIC writes into memory of a GPU is seen after a
flush, whatever the GPU promises, and no packet may lie there.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import time
from typing import Any

import fakecuda
import fakefabric
import gpus
import numpy as np
import pytest
from collective_checks import COLLECTIVES, Case, blocks
from killed import until_one_is_killed

import pycoll
from pycoll import CollectiveTimeout, Communicator, PeerLostError, UnavailableError
from pycoll.runtime.native import verbs

pytestmark = pytest.mark.skipif(bool(fakefabric.lack()), reason=fakefabric.lack() or "-")

#: A provider whose NIC reaches a GPU's memory.
CARD = {"minor": 18, "hmem": "p2p"}
#: What makes its writes visible: options of the stand-in for libcuda, and what pycoll says of it.
WAYS = {
    "driver": ({"capability": 80, "flush": 1}, "on: FI_HMEM, flushed by the driver"),
    "read": ({"capability": 80, "flush": 0}, "on: FI_HMEM, flushed by an RDMA read"),
    "ordered": ({"capability": 90, "flush": 0}, "on: FI_HMEM, flushed by an RDMA read"),
}


class Counts(ctypes.Structure):
    """What the stand-in has counted, in this process."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("held", "by_read", "by_driver", "never", "open", "reads")
    ]


def counts() -> dict[str, int]:
    found = Counts()
    ctypes.CDLL(fakefabric.SONAME).fakefabric_counts(ctypes.byref(found))
    return {name: getattr(found, name) for name, _ in Counts._fields_}


def state(comm: Communicator) -> verbs.NetState:
    """What the network of the device communicator has counted."""
    return verbs.comm_net_state(comm._collectives.launch.cuda.streams.open().comm)


def unstaged(found: verbs.NetState) -> bool:
    """Whether no byte went through memory of the host, but headers and messages in their lines."""
    return found.gpu_bytes > 0 and sum(found.bytes) - found.gpu_bytes <= 130 * found.requests


def every(seed: int, count: int = 0) -> tuple[Any, ...]:
    """Be a rank: every collective; then so many calls drawn at random; every bit is looked at."""
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
                part = gpus.Seen(x.host[:n])
                part.host[:] = np.arange(n) * (comm.rank + 1) + call
                comm.allreduce(part)
                seen.stream.synchronize()
                want = np.arange(n) * sum(range(1, comm.size + 1)) + comm.size * call
                np.testing.assert_array_equal(part.host, want)
        sends = [
            (gpus.of(np.full(50_000 * comm.rank, comm.rank, "f4")), p) for p in range(comm.size)
        ]
        recvs = [(gpus.of(np.zeros(50_000 * p, "f4")), p) for p in range(comm.size)]
        comm.exchange(sends, recvs, async_op=True).synchronize()
        assert all((got.host == peer).all() for got, peer in recvs)
        gpu = comm.cuda()
        told = gpu.reach, gpu.lacks, gpu.gpudirect, state(comm)
    return *told, counts()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hosts", [[0, 1], [0, 0, 1], [0, 1, 2, 3]])
def test_every_collective(cluster: Any, way: str, hosts: list[int]) -> None:
    gpu, said = WAYS[way]
    for rank, (reach, lacks, gpudirect, found, card) in enumerate(
        cluster.run(hosts, every, 1, gpu=gpu, card=CARD, transport="libfabric")
    ):
        here = [host == hosts[rank] for host in hosts]
        assert list(reach) == ["cuda" if near else "libfabric+gpu" for near in here]
        assert set(lacks) == {""}
        assert gpudirect == said
        assert unstaged(found)
        assert 0 < found.gpu_flushes <= found.gpu_flushed
        assert card["held"] == card["by_driver" if way == "driver" else "by_read"] > 0
        assert card["never"] == card["open"] == 0
        assert (card["reads"] > 0) == (way != "driver")


def test_writes_to_one_place_and_short_queues(cluster: Any) -> None:
    card = {**CARD, "places": 1, "queue": 14}
    for *_, found, _ in cluster.run(
        [0, 1, 2], every, 2, gpu=WAYS["read"][0], card=card, transport="libfabric"
    ):
        assert unstaged(found)


@pytest.mark.parametrize("way", ["driver", "read"])
def test_many_calls(cluster: Any, way: str) -> None:
    for *_, found, card in cluster.run(
        [0, 1, 2], every, 3, 1000, gpu=WAYS[way][0], card=CARD, transport="libfabric"
    ):
        assert unstaged(found)
        assert card["never"] == 0


def test_a_flush_that_fails_is_made_again(cluster: Any) -> None:
    card = {**CARD, "flush_fail": 5}
    for *_, found, seen in cluster.run(
        [0, 1], every, 4, gpu=WAYS["read"][0], card=card, transport="libfabric"
    ):
        assert unstaged(found)
        assert seen["held"] == seen["by_read"]


def test_what_is_never_flushed(cluster: Any) -> None:
    """Its sender is lost in the end; both ranks know why, whichever of them tells first."""

    def rank() -> str:
        if os.environ["FAKEFABRIC_HOST"] == "1":
            os.environ["FAKEFABRIC_FLUSH_FAIL"] = "1000000000"
        comm = pycoll.init(timeout=60)
        x = gpus.of(np.ones(100_000, "f4"))
        with pytest.raises(PeerLostError) as lost:
            comm.allreduce(x, async_op=True).synchronize()
        comm.close()
        assert counts()["open"] == 0
        return str(lost.value)

    why = "what it wrote into memory of GPU 0 cannot be flushed: "
    ends = f"rank 0 is lost: {why}", f"rank 1 is lost: it gave up rank 0: {why}"
    for message in cluster.run([0, 1], rank, gpu=WAYS["read"][0], card=CARD, transport="libfabric"):
        assert any(one in message for one in ends), message


def test_each_rank_decides_for_itself(cluster: Any) -> None:
    """One has its data in memory of the host, and its peers theirs on their GPUs."""

    def rank() -> tuple[Any, ...]:
        if os.environ["FAKEFABRIC_HOST"] == "1":
            os.environ["PYCOLL_GPU_RDMA"] = "off"
        return every(5)

    card = {**CARD, "writes": "newer"}
    found = cluster.run([0, 1, 2], rank, gpu=WAYS["read"][0], card=card, transport="libfabric")
    off = "off, by PYCOLL_GPU_RDMA"
    assert found[0][:2] == (
        ("cuda", "libfabric", "libfabric+gpu"),
        ("", f"staged at its end: {off}", ""),
    )
    assert found[1][2] == off
    assert unstaged(found[0][3])
    assert found[0][4]["held"] > 0
    assert found[1][3].gpu_bytes == found[1][3].gpu_memory == found[1][4]["held"] == 0


@pytest.mark.parametrize(
    ("gpu", "card", "setting", "why"),
    [
        ({}, {"minor": 17}, "auto", "libfabric 1.17 may call CUDA while a kernel waits for it; .*"),
        ({}, {"minor": 18}, "auto", "provider efa has no endpoint for memory of a GPU: fi_info .*"),
        ({}, {**CARD, "writes": "emulated"}, "auto", "provider efa does not write to a peer's .*"),
        ({}, {**CARD, "writes": "none"}, "auto", "provider efa does not write to a peer's .*"),
        (
            {},
            {**CARD, "hmem": "copies"},
            "auto",
            "fi_setopt of FI_OPT_CUDA_API_PERMITTED, to false, of provider efa: .*",
        ),
        ({"rdma": 0}, CARD, "auto", "fi_mr_regattr with FI_HMEM_CUDA of provider efa: .*"),
        ({}, {**CARD, "longest": 65536}, "auto", "provider efa writes 65536 bytes at most, .*"),
        ({}, CARD, "dmabuf", "over libfabric its provider chooses between dma-buf and .*"),
    ],
)
def test_why_it_is_staged(
    cluster: Any, gpu: dict[str, object], card: dict[str, object], setting: str, why: str
) -> None:
    def rank() -> Any:
        try:
            return every(6)
        except UnavailableError as error:
            return str(error)

    env = {"PYCOLL_GPU_RDMA": setting}
    for found in cluster.run([0, 1], rank, gpu=gpu, card=card, env=env, transport="libfabric"):
        if setting == "auto":
            assert re.fullmatch(f"staged at both ends: {why}", max(found[1])), found[1]
            assert set(found[0]) == {"cuda", "libfabric"}
            assert found[3].gpu_bytes == found[4]["held"] == found[4]["open"] == 0
        else:
            before = f"PYCOLL_GPU_RDMA is {setting} on rank 0, whose GPU memory is not reached so: "
            assert re.fullmatch(before + why, found), found


#: Which registrations of a GPU's memory ranks are refused, and the peers that they stage for that.
#: The first is that of a flush; then, for each remote peer, its slots', and what it is sent from's.
REFUSED: dict[str, tuple[list[int], dict[int, str], dict[int, set[int]]]] = {
    "on one rank": ([0, 1, 2], {1: "4"}, {1: {2}}),
    "on both ranks": ([0, 1, 2], {0: "2", 1: "2"}, {0: {1}, 1: {0}}),
    "of what is sent from": ([0, 1, 2], {2: "5"}, {2: {1}}),
    "from the third peer on": ([0, 1, 2, 3], {0: "6+"}, {0: {3}}),
    "of all peers of a rank": ([0, 1, 2], {1: "2+"}, {1: {0, 2}}),
    "for a flush": ([0, 1, 2], {1: "1"}, {1: {0, 2}}),
    "beside peers of the same host": ([0, 1, 1], {0: "4+", 1: "2"}, {0: {2}, 1: {0}}),
}


def refuse(refused: dict[int, str]) -> None:
    """Have the stand-in refuse this rank registrations of a GPU's memory."""
    place = pycoll.bootstrap.job.current()
    assert place is not None
    if place.rank in refused:
        os.environ["FAKEFABRIC_REFUSE_HMEM"] = refused[place.rank]


@pytest.mark.parametrize("case", REFUSED)
def test_a_registration_that_fails_has_its_peer_staged(cluster: Any, case: str) -> None:
    hosts, refused, staged = REFUSED[case]
    why = "fi_mr_regattr with FI_HMEM_CUDA of provider efa: .*"

    def rank() -> tuple[Any, ...]:
        refuse(refused)
        return every(7)

    found = cluster.run(hosts, rank, gpu=WAYS["read"][0], card=CARD, transport="libfabric")
    for mine, (reach, lacks, gpudirect, seen, card) in enumerate(found):
        alone = staged.get(mine, set())
        remote = {peer for peer, host in enumerate(hosts) if host != hosts[mine]}
        for peer in remote:
            ends = peer in alone, mine in staged.get(peer, set())
            assert reach[peer] == ("libfabric" if any(ends) else "libfabric+gpu")
            said = {
                (False, False): "",
                (True, False): f"staged here: {why}",
                (False, True): f"staged at its end: {why}",
                (True, True): f"staged at both ends: {why}",
            }
            assert re.fullmatch(said[ends], lacks[peer]), lacks[peer]
        on = "on: FI_HMEM, flushed by an RDMA read"
        if alone == remote:
            assert re.fullmatch(why, gpudirect)
        else:
            rest = f"; staged for rank {min(alone)}: {why}" if alone else ""
            assert re.fullmatch(on + rest, gpudirect), gpudirect
            assert unstaged(seen) == (not alone)
        assert (seen.gpu_bytes > 0) == (alone != remote)
        assert card["held"] == card["by_read"]
        assert card["never"] == card["open"] == 0


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_is_killed_among_ranks_that_stage_some(cluster: Any, victim: int) -> None:
    def rank() -> Any:
        refuse({0: "2"})  # rank 1 is staged
        comm = pycoll.init(timeout=60)
        error = until_one_is_killed(comm, victim)
        comm.close()
        return str(error), counts()["open"]

    found = cluster.run(
        [0, 1, 2], rank, gpu=WAYS["read"][0], card=CARD, check=False, transport="libfabric"
    )
    assert isinstance(found.pop(victim), PeerLostError)
    for message, regions in found:
        assert message.startswith(f"rank {victim} ")
        assert regions == 0


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_is_killed(cluster: Any, victim: int) -> None:
    def rank() -> Any:
        comm = pycoll.init(timeout=60)
        error = until_one_is_killed(comm, victim)
        comm.close()
        return str(error), counts()["open"]

    found = cluster.run(
        [0, 1, 2], rank, gpu=WAYS["read"][0], card=CARD, check=False, transport="libfabric"
    )
    assert isinstance(found.pop(victim), PeerLostError)
    for message, regions in found:
        assert message.startswith(f"rank {victim} ")
        assert regions == 0


def test_a_rank_that_never_comes(cluster: Any) -> None:
    """Others give up, close, and leave nothing of the GPU's registered."""

    def rank() -> tuple[str, int]:
        comm = pycoll.init(timeout=60)
        x = gpus.of(np.ones(100_000, "f4"))
        comm.allreduce(x, async_op=True).synchronize()
        comm.barrier()
        if comm.rank == 1:
            time.sleep(3)
            comm.close()
            return "", counts()["open"]
        with pytest.raises((CollectiveTimeout, PeerLostError)) as late:
            comm.allreduce(x, async_op=True, timeout=0.5).synchronize()
        comm.close()
        return str(late.value), counts()["open"]

    found = cluster.run([0, 1], rank, gpu=WAYS["read"][0], card=CARD, transport="libfabric")
    assert "allreduce" in found[0][0]
    assert [regions for _, regions in found] == [0, 0]


def test_communicators_follow_each_other(cluster: Any) -> None:
    """Each frees its memory once no NIC reaches it: the stand-in would say so otherwise."""

    def rank() -> int:
        for turn in range(4):
            with pycoll.init() as comm:
                x = gpus.of(np.full(70_000, turn, "f4"))
                comm.allreduce(x, async_op=True).synchronize()
                assert (x.host == comm.size * turn).all()
                assert "libfabric+gpu" in comm.cuda().reach
        return counts()["open"]

    assert cluster.run([0, 1], rank, gpu=WAYS["driver"][0], card=CARD, transport="libfabric") == [
        0,
        0,
    ]


def test_an_endpoint_that_stays_open_keeps_its_memory(cluster: Any) -> None:
    """A provider that closes nothing may still have the GPU's memory: that is not freed."""

    def rank() -> None:
        with pycoll.init() as comm:
            x = gpus.of(np.full(70_000, 3, "f4"))
            comm.allreduce(x, async_op=True).synchronize()
            assert (x.host == comm.size * 3).all()

    card = {**CARD, "busy": 1}
    cluster.run([0, 1], rank, gpu=WAYS["read"][0], card=card, transport="libfabric")
