"""The same bits of every ordered algorithm, over every transport, in every placement and tile."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from ctypes.util import find_library
from typing import Any

import numpy as np
import pytest
from ordered_folds import DTYPES, MOST, ORDERED, Array, bits, in_order, messages

import pycoll
from pycoll import Communicator
from pycoll.bootstrap import job
from pycoll.cost import Choice, Question
from pycoll.runtime.host import locality
from pycoll.runtime.native import bindings, codes

pytestmark = pytest.mark.native

#: Where ranks are: one digit for each, the number of its host.
TOGETHER = ("000", "0000")
APART = ("0011", "0101", "00011", "012")
TILES = (64, 1 << 18)
#: Algorithms that fold in another order, among three ranks or more.
OTHERS = {"allreduce": "ring", "reduce": "chain", "reduce_scatter": "ring"}


def play(places: str, way: str) -> None:
    """Let this rank be on its host, and reach those on others by a network."""
    mine = job.current()
    assert mine is not None
    here, connect = places[mine.rank], bindings.comm_connect

    def connected(comm: Any, peer: int, blob: bytes) -> Any:
        return codes.UNMAPPABLE if places[peer] != here else connect(comm, peer, blob)

    bindings.comm_connect = connected
    locality.boot_id = lambda: f"host {here}"
    os.environ["PYCOLL_TRANSPORT"] = way
    os.environ["PYCOLL_RAILS" if way == "verbs" else "PYCOLL_FABRIC"] = (
        f"fake{mine.rank}:1" if way == "verbs" else "tcp"
    )


class Chosen:
    """A selector that chooses what it is told next."""

    def __init__(self) -> None:
        self.algorithm, self.tile = "", 0

    def __call__(self, question: Question) -> Choice:
        assert question.order == "fixed"
        return Choice(self.algorithm, self.tile, False, self.algorithm, "told")


def call(comm: Communicator, name: str, xs: list[Array], turn: int, **how: Any) -> Array | None:
    """Make a call, in place or not, on arrays of `empty` or not."""
    empty: Callable[..., Array] = comm.empty if turn & 1 else np.empty
    x = xs[comm.rank]
    mine, out = empty(x.size, x.dtype), None
    mine[...] = x
    if turn & 2 and how.get("root", comm.rank) == comm.rank:
        out = empty(x.size // comm.size if name == "reduce_scatter" else x.size, x.dtype)
    found: Array | None = getattr(comm, name)(mine, out, **how)
    return found


def ends(
    comm: Communicator, name: str, xs: list[Array], root: int = 0, step: int = 1
) -> Array | None:
    """Return what a rank ends with in the fixed order: what a loop over the ranks computes.

    With a step of -1 the loop is the other way round.
    """
    total = in_order((xs[root:] + xs[:root])[::step])
    if name == "reduce_scatter":
        return np.split(total, comm.size)[comm.rank]
    return total if name == "allreduce" or comm.rank == root else None


def every_way(comm: Communicator, chosen: Chosen) -> tuple[int, dict[str, bool]]:
    """Compare the bits of every way to make a call with those of the loop.

    Returns:
        How many ways these are; and of collectives and dtypes, whether this rank ends with other
        bits where the same data are folded in another order.
    """
    ways, other, size = 0, dict[str, bool](), comm.size
    for name, algorithms in ORDERED.items():
        for algorithm, dtype, tile in itertools.product(algorithms, DTYPES, TILES):
            chosen.algorithm, chosen.tile = algorithm, tile
            ways += 1
            # Of another length: else the plan of the call before it would serve this one.
            count = MOST // size // 2 * size - size * ways
            xs = [x[:count] for x in messages(size, dtype)]
            how = {"root": ways % size} if name == "reduce" else {}
            want, back = (ends(comm, name, xs, step=step, **how) for step in (1, -1))
            got = call(comm, name, xs, ways, **how)
            assert bits(got) == bits(want), (name, algorithm, dtype, tile)
            assert got is None or bits(got) != bits(back)
        for dtype in DTYPES:
            xs = [x[: MOST // size * size] for x in messages(size, dtype)]
            got = call(comm, name, xs, 0, order="free", algorithm=OTHERS[name])
            other[f"{name} {dtype}"] = bits(got) != bits(ends(comm, name, xs))
    return ways, other


def compared(way: str, places: str) -> int:
    """Run a job over all ways of one placement; return how many there were."""

    def rank() -> tuple[int, dict[str, bool]]:
        play(places, way)
        chosen, hosts = Chosen(), set(places)
        with pycoll.init(selector=chosen, order="fixed", timeout=60) as comm:
            assert comm.transport == (way if len(hosts) > 1 else "shm")
            flat = len(hosts) in (1, len(places))
            assert comm._engine.world.placement.flat == flat
            return every_way(comm, chosen)

    ways, others = zip(*pycoll.spawn(rank, len(places), timeout=200), strict=True)
    assert len(set(ways)) == 1
    # Some rank's at least: a ring folds one block in the order of the ranks, too.
    other = {cell: any(one[cell] for one in others) for cell in others[0]}
    assert len(other) == len(ORDERED) * len(DTYPES)
    assert all(other.values()), other
    return int(ways[0])


def all_compared(way: str, placements: tuple[str, ...]) -> int:
    """Run a job for each placement; return how many combinations had the bits (pytest -rP)."""
    total = sum(compared(way, places) for places in placements)
    print(f"{total} combinations of algorithm, dtype, tile and placement over {way}")
    return total


def test_the_bits_are_those_of_a_loop_over_the_ranks() -> None:
    assert all_compared("tcp", TOGETHER + APART) == 396


@pytest.mark.stand_in
def test_so_over_rdma() -> None:
    assert all_compared("verbs", APART[1:]) == 198


@pytest.mark.own_process  # libfabric loads the machine's libibverbs
@pytest.mark.skipif(not find_library("fabric"), reason="no libfabric: apt-get install libfabric1")
def test_so_over_libfabric() -> None:
    assert all_compared("libfabric", APART) == 264
