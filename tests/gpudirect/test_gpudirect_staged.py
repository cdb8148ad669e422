"""Memory of a GPU that can be registered for some peers alone: the data of the others is staged.

The stand-in for libibverbs refuses registrations of a GPU's memory, counted in each process. A rank
makes those of a flush first, one with each card, and then, for each remote peer in order, that of
its slots with each card, and that of what it is sent from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import gpus
import numpy as np
import pytest
from killed import until_one_is_killed
from test_gpudirect_calls import WAYS, every, state, unstaged

import pycoll
from pycoll import PeerLostError, UnavailableError

#: Which registrations of a GPU's memory each rank is refused (the rest of them: None), over how
#: many cards, and of each rank the peers that it stages for that.
REFUSED: dict[str, tuple[list[int], int, Mapping[int, tuple[int, int | None]], Any]] = {
    "on one rank": ([0, 1, 2], 1, {1: (4, 1)}, {1: {2}}),
    "on both ranks": ([0, 1, 2], 1, {0: (2, 1), 1: (2, 1)}, {0: {1}, 1: {0}}),
    "with the second of two cards": ([0, 1, 2], 2, {0: (4, 1)}, {0: {1}}),
    "of what is sent from": ([0, 1, 2], 2, {2: (9, 1)}, {2: {1}}),
    "of what is sent from, with the second of two cards": ([0, 1, 2], 2, {2: (10, 1)}, {2: {1}}),
    "from the third peer on": ([0, 1, 2, 3], 1, {0: (6, None)}, {0: {3}}),
    "of all peers of a rank": ([0, 1, 2], 2, {1: (3, None)}, {1: {0, 2}}),
    "of all peers": ([0, 1], 2, {0: (3, None), 1: (3, None)}, {0: {1}, 1: {0}}),
    "for a flush": ([0, 1, 2], 2, {1: (2, 1)}, {1: {0, 2}}),
    "beside peers of the same host": ([0, 1, 1], 1, {0: (4, None), 1: (2, 1)}, {0: {2}, 1: {0}}),
}
#: By each way: the call that is counted, the option of the stand-in, and the reason.
BY = {
    "dma-buf": ("reg_dmabuf_mr", {}, "ibv_reg_dmabuf_mr of .* bytes: Cannot allocate memory"),
    "peermem": (
        "reg_peermem_mr",
        {"dmabuf": 0, "peermem": 1},
        ".*ibv_reg_mr by nvidia_peermem of .* bytes: Cannot allocate memory",
    ),
}


def refuse(call: str, refused: Mapping[int, tuple[int, int | None]]) -> None:
    """Have the stand-in refuse this rank so many registrations of a GPU's memory from one on."""
    place = pycoll.bootstrap.job.current()
    assert place is not None
    if place.rank in refused:
        first, count = refused[place.rank]
        wanted = [f"{first}+"] if count is None else [str(first + k) for k in range(count)]
        os.environ["FAKEVERBS_FAIL"] = ",".join(f"{call}:{one}" for one in wanted)


def registered(fabric: Any) -> int:
    """How many regions of a GPU's memory this process has."""
    return int(fabric.objects(os.getpid())["gpu_mrs"])


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("case", REFUSED)
def test_a_registration_that_fails_has_its_peer_staged(cluster: Any, case: str, by: str) -> None:
    hosts, devices, refused, staged = REFUSED[case]
    call, way, why = BY[by]

    def rank() -> Any:
        refuse(call, refused)
        found = every(7, look=lambda: registered(cluster.fabric))
        assert registered(cluster.fabric) == 0
        return found

    card = {"devices": devices, **way}
    found = cluster.run(hosts, rank, gpu=WAYS["read"][0], card=card)
    for mine, (reach, lacks, gpudirect, seen, regions) in enumerate(found):
        alone = staged.get(mine, set())
        remote = {peer for peer, host in enumerate(hosts) if host != hosts[mine]}
        for peer in remote:
            ends = peer in alone, mine in staged.get(peer, set())
            assert reach[peer] == ("verbs" if any(ends) else "verbs+gpu")
            said = {
                (False, False): "",
                (True, False): f"staged here: {why}.*",
                (False, True): f"staged at its end: {why}.*",
                (True, True): f"staged at both ends: {why}.*",
            }
            assert re.fullmatch(said[ends], lacks[peer]), lacks[peer]
        assert {reach[peer] for peer in range(len(hosts)) if peer not in remote} == {"cuda"}
        unreached = alone == remote
        assert regions == (0 if unreached else devices + 2 * devices * len(remote - alone))
        assert (seen.gpu_bytes > 0) == (not unreached)
        if unreached:
            assert re.match(why, gpudirect)
        else:
            on = f"on: {by}, flushed by an RDMA read"
            rest = f"; staged for rank {min(alone)}: {why}.*" if alone else ""
            assert re.fullmatch(on + rest, gpudirect), gpudirect
            assert unstaged(seen) == (not alone)
    assert cluster.fabric.objects()["gpu_mrs"] == 0


@pytest.mark.parametrize("way", ["ordered", "driver"])
def test_what_is_staged_waits_for_no_flush(cluster: Any, way: str) -> None:
    """It is the host's memory; and data of the other peers is still flushed where it must be."""

    def rank() -> Any:
        refuse("reg_dmabuf_mr", {0: (3, 1)})  # that of rank 2's slots
        with pycoll.init() as comm:
            comm.cuda()
            sends, recvs = [], []
            if comm.rank == 0:
                recvs = [(gpus.of(np.zeros(50_000, "f4")), 2)]
            if comm.rank == 2:
                sends = [(gpus.of(np.full(50_000, 7, "f4")), 0)]
            if sends or recvs:
                comm.exchange(sends, recvs, async_op=True).synchronize()
            assert all((got.host == 7).all() for got, _ in recvs)
            comm.barrier()  # to the sender its message is done before it has left
            return comm.cuda().reach, state(comm)

    found = cluster.run([0, 1, 2], rank, gpu=WAYS[way][0], card={"devices": 1})
    assert found[0][0] == ("cuda", "verbs+gpu", "verbs")
    assert found[0][1].gpu_flushes == found[0][1].gpu_flushed == 0
    assert found[2][1].gpu_bytes == 200_000


def test_peermem_takes_what_no_dmabuf_is_made_of(cluster: Any) -> None:
    def rank() -> Any:
        refuse("reg_dmabuf_mr", {0: (4, None)})
        return every(8, look=lambda: registered(cluster.fabric))

    card = {"devices": 1, "peermem": 1}
    found = cluster.run([0, 1, 2], rank, gpu=WAYS["read"][0], card=card)
    for mine, (reach, lacks, gpudirect, seen, regions) in enumerate(found):
        memory = "dma-buf and peermem" if mine == 0 else "dma-buf"
        assert set(reach) == {"cuda", "verbs+gpu"}
        assert set(lacks) == {""}
        assert gpudirect == f"on: {memory}, flushed by an RDMA read"
        assert unstaged(seen)
        assert regions == 1 + 2 * 2


@pytest.mark.parametrize("setting", ["dmabuf", "peermem"])
def test_who_insists_has_it_for_every_peer(cluster: Any, setting: str) -> None:
    call, way, why = BY["dma-buf" if setting == "dmabuf" else "peermem"]

    def rank() -> str:
        refuse(call, {1: (4, None)})
        with pytest.raises(UnavailableError) as heard:
            every(9)
        assert registered(cluster.fabric) == 0
        return str(heard.value)

    env = {"PYCOLL_GPU_RDMA": setting}
    card = {"devices": 1, **way}
    for message in cluster.run([0, 1, 2], rank, gpu=WAYS["read"][0], card=card, env=env):
        before = f"PYCOLL_GPU_RDMA is {setting} on rank 1, whose GPU memory is not reached so: "
        assert re.fullmatch(f"{before}rank 2: {why}.*", message), message


def test_many_calls_among_ranks_that_stage_some(cluster: Any) -> None:
    """Over several cards that overtake each other; two ranks stage the third, which does not."""

    def rank() -> Any:
        refuse("reg_dmabuf_mr", {0: (4, 1), 2: (10, 1)})
        return every(10, 1000)

    card = {"devices": 3, "gbps": "100,50,100", "jitter": 20}
    found = cluster.run([0, 1, 2], rank, gpu=WAYS["read"][0], card=card)
    assert [reach for reach, *_ in found] == [
        ("cuda", "verbs", "verbs+gpu"),
        ("verbs", "cuda", "verbs"),
        ("verbs+gpu", "verbs", "cuda"),
    ]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_is_killed(cluster: Any, victim: int) -> None:
    def rank() -> Any:
        refuse("reg_dmabuf_mr", {0: (3, 1)})  # rank 1 is staged
        comm = pycoll.init(timeout=60)
        error = until_one_is_killed(comm, victim)
        reach = comm.cuda().reach
        comm.close()
        return str(error), reach, registered(cluster.fabric)

    found = cluster.run([0, 1, 2], rank, gpu=WAYS["read"][0], card={"devices": 2}, check=False)
    assert isinstance(found.pop(victim), PeerLostError)
    for message, reach, regions in found:
        assert message.startswith(f"rank {victim} ")
        assert "verbs+gpu" in reach
        assert regions == 0
