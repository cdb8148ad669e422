"""Arrays of GPUs among ranks of several hosts, over both stand-ins."""

from __future__ import annotations

import os
from typing import Any

import fakecuda
import gpus
import numpy as np
import pytest

import pycoll
from pycoll.runtime.native.gpu_probe import Tried, gpu_probe

#: Lengths in float32: of a packet, of one slot, of many.
COUNTS = (3, 5000, 300_001)


def sums(hosts: list[int]) -> dict[str, str]:
    """Be a rank: sum arrays of GPUs, and look at every bit; returns how the others are reached."""
    with pycoll.init() as comm:
        stream = fakecuda.Stream()
        for count in COUNTS:
            rows = np.random.default_rng(count).integers(-99, 99, (comm.size, count))
            x = gpus.of(rows[comm.rank].astype("f4"))
            for _ in range(2):
                x.host[:] = rows[comm.rank]
                with comm.on_stream(stream):
                    comm.allreduce(x)
                stream.synchronize()
                np.testing.assert_array_equal(x.host, rows.sum(0).astype("f4"))
        reach = comm.cuda().reach
        return {str(hosts[peer] == hosts[comm.rank]): way for peer, way in enumerate(reach)}


@pytest.mark.parametrize("hosts", [[0, 1], [0, 1, 2, 3], [0, 0, 1]])
def test_sums_have_the_right_bits(cluster: Any, hosts: list[int]) -> None:
    for reach in cluster.run(hosts, sums, hosts):
        assert reach["True"] == "cuda"
        assert reach["False"].startswith("verbs")
    sent = [cluster.fabric.counts(f"{host}/fake0")["tx_bytes"] for host in set(hosts)]
    assert all(nbytes > 4 * max(COUNTS) for nbytes in sent)
    assert cluster.fabric.total("unclosed") == 0


def test_ranks_are_on_the_hosts_that_the_test_says(cluster: Any) -> None:
    def rank() -> tuple[int, int]:
        with pycoll.init() as comm:
            return comm.local_size, int(os.environ["FAKEVERBS_HOST"])

    assert cluster.run([0, 1, 1], rank) == [(1, 0), (2, 1), (2, 1)]


def test_a_host_with_nvidia_peermem(cluster: Any) -> None:
    gpu, card = {"dmabuf": 0}, {"peermem": 1}
    (tried,) = cluster.run([0], lambda: gpu_probe(0, "fake0"), gpu=gpu, card=card)
    assert (tried.peermem, tried.dmabuf[:35]) == ("", "the GPU's driver exports no dma-buf")
    (tried,) = cluster.run([0], lambda: gpu_probe(0, "fake0"), card=card)
    assert tried == Tried("", "", "none")
