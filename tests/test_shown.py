"""What people see who print a thing, or call what is not to be called."""

from __future__ import annotations

import numpy as np
import pytest

import pycoll
from pycoll.errors import quoted


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
