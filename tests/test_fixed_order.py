"""The fixed order as a user asks for it, what is refused, and what `explain` says of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ordered_folds import DTYPES, MOST, ORDERED, bits, in_order, messages

import pycoll
from pycoll import Communicator, MismatchError, ScheduleError, UsageError
from pycoll.bootstrap import job
from pycoll.runtime.plan import cache

pytestmark = pytest.mark.native


def test_what_is_chosen_has_the_bits_too() -> None:
    def rank() -> None:
        with pycoll.init(order="fixed", timeout=60) as comm:
            xs = messages(3, "float32")
            want = in_order(xs)
            for count in (1, 10, 300, MOST):
                assert bits(comm.allreduce(xs[comm.rank][:count].copy())) == bits(want[:count])
            lists = comm.allreduce([xs[comm.rank].copy(), xs[comm.rank][:7].copy()])
            assert [bits(x) for x in lists] == [bits(want), bits(want[:7])]
            queued = comm.allreduce(xs[comm.rank].copy(), async_op=True).wait()
            assert bits(queued) == bits(want)
            mean = comm.allreduce(xs[comm.rank].copy(), op="avg")
            assert bits(mean) == bits(want / np.float32(3))
            counts = [1, 7, 12]
            part = comm.reduce_scatterv(xs[comm.rank][:20].copy(), counts)
            assert bits(part) == bits(np.split(want[:20], [1, 8])[comm.rank])
            assert (comm.broadcast(xs[comm.rank].copy()) == xs[0]).all()
            comm.barrier()

    pycoll.spawn(rank, 3, timeout=100)


def test_another_order_gives_other_bits() -> None:
    """Else nothing is shown by the tests above."""

    def rank() -> list[bool]:
        with pycoll.init(timeout=60) as comm:
            same = []
            for dtype in DTYPES:
                xs = messages(3, dtype)
                free = comm.allreduce(xs[comm.rank].copy(), algorithm="ring")
                same.append(bits(free) == bits(in_order(xs)))
            return same

    assert pycoll.spawn(rank, 3, timeout=100) == [[False] * 3] * 3


def test_an_order_of_a_call_and_of_the_communicator() -> None:
    def rank() -> None:
        xs = messages(3, "float32")
        want = bits(in_order(xs))

        def got(comm: Communicator, **how: Any) -> bytes:
            return bits(comm.allreduce(xs[comm.rank].copy(), **how))

        with pycoll.init(timeout=60, order="free") as comm:
            for _ in range(3):  # the plan's making, and native calls
                assert got(comm, order="fixed") == want
                assert got(comm, algorithm="ring") != want
                assert got(comm, order="free", algorithm="ring") != want
            with pytest.raises(UsageError, match="algorithm is a tuple"):
                got(comm, algorithm=(None, "fixed"))  # which is not how a plan is found
            plan = comm.plan("allreduce", xs[comm.rank].copy(), order="fixed")
            assert "fixed order" in repr(plan)
            assert bits(plan()) == want
        with pycoll.init(timeout=60, order="fixed") as comm:
            half = comm.split(0)
            assert half is not None
            with comm.dup() as twin, half:
                for each in (comm, twin, half):
                    for _ in range(2):
                        assert got(each) == got(each, order="fixed") == want
                        assert got(each, order="free", algorithm="ring") != want

    pycoll.spawn(rank, 3, timeout=100)


def test_an_algorithm_that_folds_in_another_order_is_refused() -> None:
    @pycoll.algorithm("allreduce")
    def from_the_end(b: pycoll.ScheduleBuilder) -> None:
        b.chunks(1)
        for peer in range(b.size):
            if peer != b.rank:
                b.send(b.input[:], to=peer)
        b.recv_reduce(b.output[:], frm=range(b.size - 1, -1, -1))

    def rank() -> None:
        with pycoll.init(timeout=60) as comm:
            x = np.ones(4)
            text = r"'ring' does not fold in the fixed order among 3 ranks: it folds chunk 1 on "
            with pytest.raises(UsageError, match=text + r"rank 0 as \(0\+\(1\+2\)\), and not as"):
                comm.allreduce(x, algorithm="ring", order="fixed")
            with pytest.raises(UsageError, match=r"'from_the_end' does not .*\(0\+\(1\+2\)\)"):
                comm.allreduce(x, algorithm=from_the_end, order="fixed")
            with pytest.raises(UsageError, match="ranks are counted from root 2"):
                comm.reduce(x, root=2, algorithm="chain", order="fixed")
            with pytest.raises(UsageError, match="order is 'fast', want 'fixed' or 'free'"):
                comm.allreduce(x, order="fast")  # type: ignore[call-overload]
            with pytest.raises(UsageError, match="broadcast: order is 'fixed', but it folds"):
                comm.plan("broadcast", x, order="fixed")
            assert comm.allreduce(x, order="fixed").tolist() == [3.0] * 4  # all are still in step

    pycoll.spawn(rank, 3, timeout=100)


def test_pycoll_algorithm_is_refused_where_it_folds_in_another_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYCOLL_ALGORITHM", "ring")

    def rank() -> None:
        with pycoll.init(timeout=60) as comm:
            with pytest.raises(UsageError, match="algorithm 'ring' does not fold"):
                comm.allreduce(np.ones(4), order="fixed")
            comm.allreduce(np.ones(4))

    pycoll.spawn(rank, 3, timeout=100)


def test_ranks_that_ask_for_different_orders() -> None:
    def rank() -> None:
        current = job.current()
        assert current is not None
        order = "fixed" if current.rank else "free"
        with pytest.raises(UsageError, match="order is 'fixed' on rank 1 and 'free' on rank 0"):
            pycoll.init(order=order)  # type: ignore[arg-type]
        with (
            pycoll.init(timeout=60) as comm,
            pytest.raises(MismatchError, match=r"allreduce\(sum, float64, 4 elements, fixed order"),
        ):
            comm.allreduce(np.ones(4), order=order)  # type: ignore[call-overload]

    pycoll.spawn(rank, 2, timeout=100)


def test_a_rank_whose_program_was_not_compared_runs_nothing() -> None:
    def rank() -> None:
        current = job.current()
        assert current is not None
        kind: type[pycoll.PycollError] = MismatchError
        text = "rank 1"
        if current.rank == 1:
            cache.code_of = lambda blob: bytes(8)
            kind, text = ScheduleError, "rank 1 would run another program than the one that was"
        with pycoll.init(timeout=60) as comm, pytest.raises(kind, match=text):
            comm.allreduce(np.ones(4), order="fixed")

    pycoll.spawn(rank, 2, timeout=100)


def test_survivors_keep_the_order() -> None:
    def rank() -> None:
        xs = messages(4, "float32")
        with pycoll.init(timeout=60, order="fixed") as comm:
            if comm.rank == 3:
                comm.revoke()
            with comm.shrink() as left:
                for _ in range(3):
                    assert bits(left.allreduce(xs[left.rank].copy())) == bits(in_order(xs))

    pycoll.spawn(rank, 4, timeout=100)


def test_explain_says_what_it_costs() -> None:
    def rank() -> None:
        with pycoll.init(timeout=60) as comm:
            found = comm.explain("allreduce", 64 << 20, order="fixed")
            assert found.free is not None
            assert found.free.free is None
            assert found.choice.algorithm in ORDERED["allreduce"]
            able = {c.algorithm for c in found.candidates if c.seconds is not None}
            assert able <= {*ORDERED["allreduce"]}
            assert f"in any order: {found.free.choice.algorithm}, " in str(found)
            assert "ring " in str(found)
            assert "is not in the fixed order: it folds chunk 1 on rank 0" in str(found)
            with pytest.raises(UsageError, match="order is 'fixed', but broadcast folds nothing"):
                comm.explain("broadcast", 8, order="fixed")
        with pycoll.init(timeout=60, order="fixed") as comm:
            assert comm.explain("allreduce", 8).question.order == "fixed"
            assert comm.explain("broadcast", 8).question.order == "free"

    pycoll.spawn(rank, 3, timeout=100)
