"""What edges carry is what the schedule sends, at both ends."""

from __future__ import annotations

from collections import Counter

import pytest

from pycoll.algorithms import get
from pycoll.program.isa import Direction, EdgeKind
from pycoll.program.lower import compile_all
from pycoll.program.volume import volume
from pycoll.schedule import Kind, schedule


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize(
    "name", ["allreduce.ring", "allreduce.bruck", "allreduce.double_binary_tree", "gather.binomial"]
)
def test_edges_carry_what_is_sent(name: str, size: int) -> None:
    algorithm = get(*reversed(name.split(".")))
    s = schedule(algorithm, size)
    starts = [chunk * chunk * 64 for chunk in range(s.nchunks + 1)]  # each of another length
    ends: dict[Direction, Counter[tuple[int, int, int]]] = {d: Counter() for d in Direction}
    for program in compile_all(algorithm, size):
        for edge, found in zip(program.edges, volume(program, starts), strict=True):
            if edge.kind is EdgeKind.LOCAL:
                assert found == (0, 0)
                continue
            pair = (program.rank, edge.peer)
            both = pair if edge.direction is Direction.SEND else pair[::-1]
            ends[edge.direction][*both, edge.channel] += found.nbytes
    wanted = Counter[tuple[int, int, int]]()
    for rank, steps in enumerate(s.ranks):
        for step in steps:
            if step.kind is Kind.SEND:
                first, n = step.chunks.chunk, step.chunks.nchunks
                wanted[rank, step.peers[0], step.channel] += starts[first + n] - starts[first]
    assert ends[Direction.SEND] == ends[Direction.RECV] == wanted
