import numpy as np
import pytest

from pycoll.algorithms import BUILTIN, algorithm
from pycoll.dtypes import INT64
from pycoll.errors import DeadlockError
from pycoll.passes import feasible
from pycoll.program.isa import EdgeKind
from pycoll.program.lower import compile_all, facts_of
from pycoll.program.reference import run
from pycoll.schedule import Algorithm, ScheduleBuilder, allreduce, schedule


@pytest.mark.parametrize("size", [1, 2, 3, 8, 17])
@pytest.mark.parametrize("a", BUILTIN, ids=lambda a: a.name)
def test_built_ins_fuse(a: Algorithm, size: int) -> None:
    assert feasible(schedule(a, size))


@algorithm(allreduce)
def eager_ring(b: ScheduleBuilder) -> None:
    """Fill both slots of every edge, then pass on what comes in: each waits for the next."""
    b.chunks(2)
    right, left = (b.rank + 1) % b.size, (b.rank - 1) % b.size
    for c in range(2):
        b.send(b.input[c], to=right)
    for hop in range(1, b.size):
        for c in range(2):
            b.recv(b.scratch[c], frm=left)
            if hop < b.size - 1:
                b.send(b.scratch[c], to=right)
            b.reduce(b.scratch[c], into=b.output[c])


def test_a_circle_that_fusing_would_close_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    data = [np.arange(100, dtype=np.int64) * (rank + 1) for rank in range(4)]
    assert not feasible(schedule(eager_ring, 4))
    for out in run(compile_all(eager_ring, 4), data, INT64, tile=64, slots=2):
        np.testing.assert_array_equal(out, np.arange(100) * 10)
    # The check is needed: fused all the same, the ranks wait for each other.
    monkeypatch.setattr("pycoll.program.lower.feasible", lambda s: True)
    facts_of.cache_clear()
    with pytest.raises(DeadlockError, match="no rank can go on"):
        run(compile_all(eager_ring, 4), data, INT64, tile=64, slots=2)
    facts_of.cache_clear()


def test_a_local_edge_counts_as_a_wait() -> None:
    @algorithm(allreduce)
    def two_streams(b: ScheduleBuilder) -> None:
        peer = 1 - b.rank
        b.send(b.input[0], to=peer)
        b.recv_reduce(b.output[0], frm=peer)
        with b.channel(1):  # sends what channel 0 has folded
            b.send(b.output[0], to=peer)
            b.recv(b.output[0], frm=peer)

    assert feasible(schedule(two_streams, 2))
    kinds = [edge.kind for edge in compile_all(two_streams, 2)[0].edges]
    assert kinds.count(EdgeKind.LOCAL) == 2
