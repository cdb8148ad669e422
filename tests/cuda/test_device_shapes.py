"""How many blocks a call runs in, and whether its messages go in packets."""

from __future__ import annotations

import os
from typing import Any

import gpus
import numpy as np
import pytest

import pycoll
from pycoll.cost import Choice, Question
from pycoll.cost.kernel import LL, Kernel
from pycoll.program.isa import HOST_DESTINATIONS, MAX_DESTINATIONS
from pycoll.program.program import Program
from pycoll.runtime.native import bindings
from pycoll.runtime.native.device_comm import Shape

pytestmark = gpus.MARKS

KIB = 1 << 10
LENGTHS = (0, 4, 3 * KIB, 3 * KIB + 4, 64 * KIB, 64 * KIB + 4, 100_000, 512 * KIB, 4096 * KIB)


def shapes(algorithm: Any, lengths: tuple[int, ...], most: int = 32) -> list[Shape]:
    """Return what all-reduces of float32 become on two ranks, which agree; each is run, too."""

    def rank() -> list[Shape]:
        os.environ["PYCOLL_CUDA_BLOCKS"] = str(most)
        comm = pycoll.init(timeout=60)
        found = []
        for nbytes in lengths:
            values = np.random.default_rng(comm.rank + nbytes).integers(0, 99, nbytes // 4)
            x = gpus.of(values.astype("f4"))
            plan = comm.plan("allreduce", x, algorithm=algorithm)
            plan()
            want = comm.allreduce(values.astype("f4"))
            comm.allreduce(gpus.of(np.zeros(1, "f4")), async_op=True).synchronize()
            assert (gpus.host(x) == want).all(), nbytes
            assert plan.shape is not None
            found.append(plan.shape)
        comm.close()
        return found

    first, second = gpus.ranks(2, rank)
    assert first == second
    return list(first)


@pytest.mark.parametrize(("name", "channels"), [("one_shot", 1), ("double_binary_tree", 4)])
def test_blocks_follow_from_the_length_as_the_model_has_it(name: str, channels: int) -> None:
    found = shapes(name, LENGTHS)
    for nbytes, shape in zip(LENGTHS, found, strict=True):
        protocol, instances = Kernel().shape(nbytes, channels, True)
        got = shape.instances, shape.blocks, shape.packets
        assert got == (instances, instances * channels, protocol is LL), nbytes
    assert [shape.blocks for shape in found][-1] == 32


@pytest.mark.parametrize(("nbytes", "staged", "direct"), [(256 * KIB, 4, 16), (1 << 20, 8, 32)])
def test_the_direct_form_has_as_many_blocks_as_its_own_channels_allow(
    nbytes: int, staged: int, direct: int
) -> None:
    """Beside a staged form of four channels it ran in a quarter of the blocks."""

    def tree(asked: Question) -> Choice:
        return Choice("double_binary_tree", 256 * KIB, False, "two_shot", "asked for")

    def rank() -> tuple[int, int, int]:
        with pycoll.init(timeout=60, selector=tree) as comm:
            values = np.random.default_rng(comm.rank).integers(0, 99, nbytes // 4).astype("f4")
            x, want = gpus.of(values), comm.allreduce(values.copy())
            y = comm.empty(values.size, "float32", device="cuda")
            gpus.host(y)[...] = values
            shape = comm.plan("allreduce", x).shape
            for array in (x, y):
                comm.allreduce(array, async_op=True).synchronize()
                assert (gpus.host(array) == want).all()
            assert shape is not None
            return shape.instances, shape.blocks, shape.direct_instances

    assert gpus.ranks(2, rank) == [(staged, max(4 * staged, direct), direct)] * 2


@pytest.mark.parametrize("most", [4, 5, 16])
def test_the_setting_is_an_upper_bound(most: int) -> None:
    free, bound = shapes("one_shot", LENGTHS), shapes("one_shot", LENGTHS, most)
    for nbytes, a, b in zip(LENGTHS, free, bound, strict=True):
        if b.packets:
            assert b.blocks == min(a.blocks, most), nbytes
        else:  # too few blocks for packets, which are of 12 KiB a block at most
            assert b.blocks == min(most, max(1, -(-nbytes // (16 * KIB)))), nbytes
    assert bound[4].packets is (most * 12 * KIB >= 64 * KIB)


@pycoll.algorithm(pycoll.broadcast)
def uneven(b: pycoll.ScheduleBuilder) -> None:
    """Each rank has the data from rank 0 by a channel of its own, so rank 1 has fewer channels."""
    b.chunks(1)
    for peer in range(1, b.size):
        with b.channel(peer - 1):
            if b.rank == 0:
                b.send(b.output[:], to=peer)
            elif b.rank == peer:
                b.recv(b.output[:], frm=0)


@pytest.mark.parametrize(("nbytes", "instances"), [(4, 1), (20 * KIB, 3), (256 * KIB, 6)])
def test_ranks_of_fewer_channels_cut_a_call_as_the_others_do(nbytes: int, instances: int) -> None:
    """20 KiB go in packets, by a block of each channel for 3 KiB of it."""

    def rank() -> tuple[int, int]:
        comm = pycoll.init(timeout=60)
        values = np.arange(nbytes // 4, dtype="f4")
        x = gpus.of(values if comm.rank == 0 else 0 * values)
        plan = comm.plan("broadcast", x, algorithm=uneven)
        plan()
        comm.allreduce(gpus.of(np.zeros(1, "f4")), async_op=True).synchronize()
        assert (gpus.host(x) == values).all()
        comm.close()
        assert plan.shape is not None
        return plan.shape.blocks, plan.shape.instances

    found = gpus.ranks(4, rank)
    assert found == [(k * instances, instances) for k in (3, 1, 2, 3)]


def test_a_kernel_stores_to_all_at_once_and_a_cpu_to_two() -> None:
    def rank() -> list[tuple[int, int]]:
        loaded, load = [], bindings.program_load

        def spy(comm: Any, blob: bytes, root: int, destinations: int) -> Any:
            code = Program.from_bytes(blob).instructions
            loaded.append((destinations, max(len(i.destinations) for i in code)))
            return load(comm, blob, root, destinations)

        bindings.program_load = spy
        comm = pycoll.init(timeout=60)
        x = np.arange(100, dtype="f4") + comm.rank
        there = gpus.of(x)
        comm.allreduce(there, algorithm="one_shot", async_op=True).synchronize()
        assert (gpus.host(there) == comm.allreduce(x, algorithm="one_shot")).all()
        comm.close()
        return loaded

    for loaded in gpus.ranks(5, rank):
        assert (MAX_DESTINATIONS, 4) in loaded
        assert (HOST_DESTINATIONS, 2) in loaded
        assert all(most <= limit for limit, most in loaded)
