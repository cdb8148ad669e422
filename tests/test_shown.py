"""What people see who print a thing, or call what is not to be called."""

from __future__ import annotations

import numpy as np
import pytest

import pycoll
from pycoll import topology
from pycoll.cost import Tuning
from pycoll.errors import counted, quoted
from pycoll.overlap.result import Measured
from pycoll.program.lower import compile_all
from pycoll.schedule import schedule


def test_a_collective_says_how_it_is_called() -> None:
    assert repr(pycoll.allreduce) == "<pycoll.allreduce, a collective>"
    with pytest.raises(
        pycoll.UsageError, match=r"comm = pycoll.init\(\), then comm.allreduce\(x\)"
    ):
        pycoll.allreduce(np.ones(3))


def test_algorithms_and_verdicts_are_one_line() -> None:
    ring = pycoll.algorithms.get("ring")
    assert repr(ring) == "<pycoll.Algorithm ring for allreduce>"
    verdict = pycoll.verify(ring, size=3)
    assert str(verdict).startswith("ring is correct at 3 ranks: 72 instructions, proved in ")
    assert repr(verdict) == f"<pycoll.Verdict {verdict}>"


def test_a_schedule_and_its_programs_are_one_line() -> None:
    """A failing assertion, or a prompt, would else show every step of every rank."""
    ring = pycoll.algorithms.get("ring")
    builder = pycoll.ScheduleBuilder(3, 1)
    assert repr(builder) == "<pycoll.ScheduleBuilder allreduce, rank 1 of 3: 0 steps>"
    ring(builder)
    assert repr(builder) == "<pycoll.ScheduleBuilder allreduce, rank 1 of 3: 8 steps>"
    traced = schedule(ring, 3)
    assert repr(traced) == "<pycoll.Schedule ring for allreduce at 3 ranks: 24 steps>"
    (program, *_) = compile_all(ring, 3)
    assert repr(program) == "<pycoll Program of rank 0 of 3: 24 instructions in 1 channel>"


def test_what_describes_a_machine_is_one_line() -> None:
    cluster = topology.cluster(2)
    assert repr(cluster) == ("<topology.Topology of 2 nodes and 2 ranks; topology.tree() draws it>")
    assert repr(cluster.nodes[0]) == "<topology.Node node0: 1 socket, 1 NIC, 0 devices>"
    rows = {("allreduce", "ring"): ((8, 1e-6), (64, 2e-6))}
    assert repr(Tuning(2, rows=rows)) == "<pycoll Tuning of 2 ranks: 2 measured rows>"
    times = {"sequential": (2e-6,) * 4, "concurrent": (1e-6,) * 4}
    assert repr(Measured((1e-6,) * 4, (1e-6,) * 4, times)) == (
        "<overlap.Measured concurrent saves 50.0% of sequential and hides 100% of the collective; "
        "print it for all>"
    )


@pytest.mark.native
def test_communicators_and_works_say_what_state_they_are_in() -> None:
    def rank() -> None:
        comm = pycoll.init()
        assert repr(comm) == f"<pycoll.Communicator rank {comm.rank} of 2>"
        found = comm.explain("allreduce", 8)
        assert repr(found).startswith("<pycoll.Explanation allreduce, 8 B, 2 ranks: ")
        work = comm.allreduce(np.ones(3), async_op=True)
        assert repr(work).startswith("<pycoll.Work allreduce(sum, float64, 3 elements) at ")
        work.wait()
        assert repr(work).endswith(", finished>")
        broken = comm.dup()
        comm.close()
        assert repr(comm).endswith(" of 2, closed>")
        with pytest.raises((pycoll.MismatchError, pycoll.BrokenError)):
            broken.allreduce(np.ones(3 + broken.rank))
        assert repr(broken).endswith(" of 2, broken>")

    pycoll.spawn(rank, 2, timeout=60)


def test_a_value_in_a_message_is_one_short_line() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    assert quoted("a\nb") == r"'a\nb'"
    assert quoted(np.ones((2, 2))) == "array([[1., 1.], [1., 1.]])"
    assert quoted(Odd()) == "<Odd>"
    assert quoted(10**5000) == "<int>"
    assert len(quoted("x" * 1000)) == 80


def test_one_of_something_has_no_plural() -> None:
    assert [counted(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
