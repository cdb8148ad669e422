"""A call on arrays of a GPU that was refused on one rank, who goes on: what follows is right or
raises."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any

import fakecuda
import gpus
import numpy as np
import pytest
import walk

import pycoll
from pycoll import BrokenError, CollectiveTimeout, Communicator, MismatchError, UsageError
from pycoll.bootstrap import job as jobs
from pycoll.runtime.native import device_comm
from pycoll.runtime.refusal import Refusals

pytestmark = gpus.MARKS

#: How messages go: the elements of each, and how the ranks reach each other's memory.
FORMS = {
    "packets": (700, "cuda"),
    "plain": (100_000, "cuda"),
    "direct": (5000, "cuda"),  # of arrays of `empty`
    "shm": (5000, "shm"),
    "tcp": (5000, "tcp"),
}
#: More than a rank that is out of step makes before it knows.
MANY = 50
#: Turn that one rank is refused.
FIRST = 10


def opened(form: str = "packets") -> tuple[Communicator, Any]:
    """Return a communicator and an array of its GPU, whose messages go in this form."""
    count, reach = FORMS[form]
    mine = jobs.current()
    assert mine is not None
    with walk.apart("tcp" if reach == "tcp" else "shm", mine.rank):
        os.environ["PYCOLL_TRANSPORT"] = "tcp"
        comm = pycoll.init(timeout=60)
        if reach != "cuda":
            fakecuda.fail("cuIpcOpenMemHandle:1=201")
        found = comm.cuda().reach
    assert {way for peer, way in enumerate(found) if peer != comm.rank} == {reach}
    if form == "direct":
        return comm, comm.empty(count, "f4", device="cuda")
    return comm, gpus.of(np.zeros(count, "f4"))


def call(comm: Communicator, x: Any, turn: int) -> None:
    """Make one call; of no other turn are its numbers."""
    values = gpus.host(x)
    values[...] = 100 * turn + comm.rank
    comm.allreduce(x, async_op=True).synchronize()
    want = sum(100 * turn + rank for rank in range(comm.size))
    assert (values == want).all(), f"turn {turn}: {values[0]}, want {want}"


def refused(comm: Communicator, x: Any) -> None:
    """Make a call that is refused."""
    with pytest.raises(UsageError, match="op is 'median'"):
        comm.allreduce(x, op="median")


def mismatched(comm: Communicator, step: Callable[[int], None], at: int = FIRST) -> str:
    """Make steps until this rank hears that it is out of step with others; return what it hears.

    Args:
        comm: The communicator, which is closed then.
        step: What a turn does.
        at: The turn to begin with: of a rank that was refused the first one, the second.
    """

    def steps() -> None:
        for turn in range(at, FIRST + MANY):
            step(turn)

    with pytest.raises(MismatchError) as raised:
        steps()
    comm.close()
    return str(raised.value)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("form", FORMS)
def test_a_rank_that_goes_on_is_told_and_so_are_the_others(form: str) -> None:
    def rank() -> str:
        comm, x = opened(form)
        for turn in range(3):
            call(comm, x, turn)
        if comm.rank == 1:
            refused(comm, x)
        return mismatched(comm, lambda turn: call(comm, x, turn), FIRST + (comm.rank == 1))

    for text in gpus.ranks(2, rank):
        assert re.search(
            r"rank 1 had called allreduce at \S*test_device_out_of_step\.py:\d+, refused with Usage"
            r"Error: op is 'median'",
            text,
        ), text


def test_what_all_ranks_were_refused_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a rank has not heard yet that another was refused it, too."""

    def rank() -> str:
        comm, x = opened()
        note = Refusals.note

        def late(refusals: Refusals, rank: int, number: int, text: str) -> None:
            if rank == comm.rank:
                note(refusals, rank, number, text)

        monkeypatch.setattr(Refusals, "note", late)
        call(comm, x, 0)
        refused(comm, x)
        comm.barrier()
        y = gpus.of(np.zeros(700 + comm.rank, "f4"))
        return mismatched(comm, lambda turn: call(comm, y, turn))

    for text in gpus.ranks(2, rank):
        assert "ranks called different things" in text
        assert "refused" not in text


@pytest.mark.parametrize("kib", [(60, 72), (4, 1024), (1, 8), (72, 1024)], ids=str)
def test_ranks_whose_lengths_differ_are_told_whatever_way_they_go(kib: tuple[int, int]) -> None:
    """Of one the message goes in packets, of the other in slots, and by other blocks."""

    def rank() -> str:
        comm = pycoll.init(timeout=60)
        x = gpus.of(np.zeros(kib[comm.rank] << 8, "f4"))
        comm.cuda()
        return mismatched(comm, lambda turn: call(comm, x, turn))

    for text in gpus.ranks(2, rank):
        assert "ranks called different things" in text


@pytest.mark.parametrize("name", ["one_shot", "ring"])
@pytest.mark.parametrize("counts", [(0, 1), (1, 2), (2, 3), (2, 700), (9, 0), (700, 23)], ids=str)
def test_packets_of_other_lengths_are_of_another_call(counts: tuple[int, int], name: str) -> None:
    """A message may be longer or shorter than the one that is waited for, or be empty."""

    def rank() -> str:
        comm = pycoll.init(timeout=60)
        x = gpus.of(np.zeros(counts[comm.rank], "f4"))
        comm.cuda()

        def step(turn: int) -> None:
            del turn
            comm.allreduce(x, algorithm=name, async_op=True).synchronize()

        return mismatched(comm, step)

    for text in gpus.ranks(2, rank):
        assert "ranks called different things" in text


@pytest.mark.parametrize(
    "names", [("one_shot", "two_shot"), ("recursive_doubling", "ring")], ids=str
)
@pytest.mark.parametrize("counts", [(5, 5), (700, 5)], ids=str)
def test_packets_of_other_algorithms_are_of_another_call(
    names: tuple[str, str], counts: tuple[int, int]
) -> None:
    def rank() -> str:
        comm = pycoll.init(timeout=60)
        x = gpus.of(np.zeros(counts[comm.rank % 2], "f4"))
        comm.cuda()
        name = names[comm.rank % 2]
        return mismatched(
            comm, lambda turn: comm.allreduce(x, algorithm=name, async_op=True).synchronize()
        )

    for text in gpus.ranks(3, rank):
        assert "ranks called different things" in text


def test_all_of_several_ranks_are_told() -> None:
    def rank() -> str:
        comm, x = opened()

        def step(turn: int) -> None:
            call(comm, x, turn + (turn > 0 and comm.rank == 0))
            if turn == 0 and comm.rank == 0:
                refused(comm, x)

        return mismatched(comm, step, 0)  # some may hear of it while they wait for the first

    for text in gpus.ranks(4, rank):
        assert "ranks called different things" in text


@pytest.mark.parametrize("form", FORMS)
def test_ranks_that_are_all_refused_stay_in_step(form: str) -> None:
    def rank() -> None:
        comm, x = opened(form)
        for turn in range(12):
            if turn % 3 == 1:
                refused(comm, x)
            call(comm, x, turn)
        comm.close()

    gpus.ranks(2, rank)


@pytest.mark.usefixtures("patient")
def test_a_refusal_before_the_first_call_on_a_gpu() -> None:
    def rank(alone: bool) -> str:
        comm, x = pycoll.init(timeout=60), gpus.of(np.zeros(700, "f4"))
        if comm.rank == 0 or not alone:
            refused(comm, x)
        if alone:
            return mismatched(comm, lambda turn: call(comm, x, turn), FIRST + (comm.rank == 0))
        for turn in range(3):
            call(comm, x, turn)
        comm.close()
        return ""

    assert gpus.ranks(2, rank, False) == ["", ""]
    for text in gpus.ranks(2, rank, True):
        assert "rank 0: allreduce at" in text
        assert "refused with UsageError" in text


@pytest.mark.parametrize("how", ["call", "list", "plan"])
def test_the_first_call_on_a_gpu_is_refused_once_the_gpu_is_open(how: str) -> None:
    def wrong(comm: Communicator, x: Any) -> None:
        make = functools.partial(comm.plan, "allreduce") if how == "plan" else comm.allreduce
        arrays = [x, gpus.of(np.zeros(9, "f4"))] if how == "list" else x
        with pytest.raises(UsageError, match="algorithm is 'none'"):
            make(arrays, algorithm="none")

    def rank(alone: bool) -> None:
        comm, x = pycoll.init(timeout=60), gpus.of(np.zeros(700, "f4"))
        if comm.rank == 0 or not alone:
            wrong(comm, x)
        if alone:
            mismatched(comm, lambda turn: call(comm, x, turn), FIRST + (comm.rank == 0))
            return
        for turn in range(3):
            call(comm, x, turn)
            assert comm.allreduce(np.ones(3)).tolist() == [2.0] * 3
        comm.close()

    gpus.ranks(2, rank, False)
    gpus.ranks(2, rank, True)


@pytest.mark.parametrize("first", ["host", "gpu"])
def test_refusals_count_on_the_host_and_on_the_gpu(first: str) -> None:
    """Which of the two a call was meant for nobody can say once its arguments are bad."""

    def rank(alone: bool) -> None:
        comm, x = opened()
        host = np.zeros(3)

        def on_host(turn: int) -> None:
            host[...] = turn + comm.rank
            assert comm.allreduce(host).tolist() == [2 * turn + 1] * 3

        call(comm, x, 0)
        on_host(0)
        if comm.rank == 1 or not alone:
            refused(comm, host if first == "host" else x)
        if alone:
            step = on_host if first == "gpu" else lambda turn: call(comm, x, turn)
            mismatched(comm, step, FIRST + (comm.rank == 1))
            return
        for turn in range(3):
            on_host(turn)
            call(comm, x, turn)
        comm.close()

    gpus.ranks(2, rank, False)
    gpus.ranks(2, rank, True)


def test_the_gpu_counts_where_the_hosts_calls_have_failed_before() -> None:
    def rank() -> None:
        comm, x = opened()
        call(comm, x, 0)
        with pytest.raises(MismatchError):
            comm.allreduce(np.zeros(3 + comm.rank))
        call(comm, x, 1)
        if comm.rank == 1:
            refused(comm, x)
        mismatched(comm, lambda turn: call(comm, x, turn), FIRST + (comm.rank == 1))

    gpus.ranks(2, rank)


@pytest.mark.parametrize("first", ["host", "gpu"])
def test_a_call_that_failed_is_none_that_was_refused(first: str) -> None:
    def rank() -> None:
        comm, x = opened()
        host = np.ones(3)

        def late() -> None:
            while True:
                comm.allreduce(host if first == "host" else x, timeout=0.5)

        call(comm, x, 0)
        comm.barrier()
        if comm.rank == 0:
            with pytest.raises(CollectiveTimeout):
                late()
        if first == "host":
            call(comm, x, 1)
        else:
            assert comm.allreduce(host).tolist() == [2.0] * 3
        comm.close()

    gpus.ranks(2, rank)


def test_a_call_of_several_that_ends_half_way_breaks_the_gpu_too() -> None:
    """As bitwise reductions and sums of sparse tensors of torch are, on whatever device."""

    def rank() -> None:
        comm, x = opened()

        def several() -> None:
            call(comm, x, 0)
            with comm._engine.order.entirely("two calls"):
                if comm.rank == 0:
                    raise KeyboardInterrupt
                call(comm, x, 1)

        with pytest.raises(KeyboardInterrupt if comm.rank == 0 else BrokenError) as raised:
            several()
        if comm.rank == 1:
            assert "KeyboardInterrupt inside two calls" in str(raised.value)
        for array in (x, np.zeros(3)):
            with pytest.raises(BrokenError):
                comm.allreduce(array)
        comm.close()

    gpus.ranks(2, rank)


@pytest.mark.parametrize("how", ["first", "known", "async", "plan"])
def test_a_call_that_was_launched_is_none_that_was_refused(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C behind the launch: all ranks have made the call."""

    def rank() -> None:
        comm, x = opened()
        y, stream, launch = (
            gpus.of(np.zeros(700, "f4")),
            fakecuda.Stream(),
            device_comm.device_comm_launch,
        )
        make = functools.partial(comm.allreduce, y, async_op=how == "async")
        if how == "plan":
            make = comm.plan("allreduce", y)
        elif how == "known":
            call(comm, x, 0)

        def interrupted(*arguments: Any) -> None:
            launch(*arguments)
            raise KeyboardInterrupt

        with comm.on_stream(stream):
            if comm.rank == 0:
                with monkeypatch.context() as patch:
                    patch.setattr(device_comm, "device_comm_launch", interrupted)
                    with pytest.raises(KeyboardInterrupt):
                        make()
            else:
                make()
        for turn in range(3):
            call(comm, x, turn)
            assert comm.allreduce(np.ones(3)).tolist() == [2.0] * 3
        if comm.rank == 1:  # as ever
            refused(comm, x)
        mismatched(comm, lambda turn: call(comm, x, turn), FIRST + (comm.rank == 1))

    gpus.ranks(2, rank)


def test_a_plan_whose_run_is_refused() -> None:
    def rank() -> None:
        comm, x = opened()
        stream = fakecuda.Stream()
        plan = comm.plan("allreduce", x)
        launch = plan._launch

        def stopped() -> None:
            raise UsageError("not now")

        def run(turn: int) -> None:
            x.host[...] = turn + comm.rank
            with comm.on_stream(stream):
                plan()
            stream.synchronize()
            comm.allreduce(gpus.of(np.ones(9, "f4")), async_op=True).synchronize()
            assert (x.host == 2 * turn + 1).all()

        run(0)
        if comm.rank == 0:
            plan._launch = plan._engine.order.noted(stopped)
            with pytest.raises(UsageError, match="not now"):
                plan()
            plan._launch = launch
        mismatched(comm, run, FIRST + (comm.rank == 0))

    gpus.ranks(2, rank)


class Replayed:
    """A call in a graph, which is launched again and again."""

    def __init__(self, comm: Communicator, x: Any) -> None:
        self._comm, self._x, self._stream = comm, x, fakecuda.Stream()
        with comm.on_stream(self._stream), fakecuda.capture(self._stream) as graphs:
            comm.allreduce(x)
        self._graph = graphs[0]

    def __call__(self, turn: int) -> None:
        """Launch it; what went wrong is raised by the next call, and else the result is right."""
        values = gpus.host(self._x)
        values[...] = 100 * turn + self._comm.rank
        self._graph.launch(self._stream)
        self._stream.synchronize()
        got, y = values.copy(), gpus.of(np.ones(9, "f4"))
        self._comm.allreduce(y, async_op=True).synchronize()
        assert (got == 200 * turn + 1).all(), f"turn {turn}: {got[0]}"

    def close(self) -> None:
        """Let go of the graph."""
        self._graph.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_graph_is_replayed_behind_a_refusal(form: str) -> None:
    def rank() -> None:
        comm, x = opened(form)
        call(comm, x, 0)
        replayed = Replayed(comm, x)
        replayed(0)
        for turn in range(1, 4):
            refused(comm, x)
            replayed(turn)
            call(comm, x, turn)
        if comm.rank == 1:
            refused(comm, x)  # what it replays now is like the call that the other makes
            mismatched(comm, replayed)
        else:
            steps = (lambda turn: call(comm, x, 1000 + turn), replayed)
            mismatched(comm, lambda turn: steps[min(turn - FIRST, 1)](turn))
        replayed.close()

    gpus.ranks(2, rank)


def test_a_refusal_while_a_graph_is_captured() -> None:
    def rank(alone: bool) -> None:
        comm, x = opened()
        call(comm, x, 0)
        stream = fakecuda.Stream()
        with comm.on_stream(stream), fakecuda.capture(stream) as graphs:
            if comm.rank == 0 or not alone:
                refused(comm, x)
            else:
                comm.allreduce(x)
            comm.allreduce(x)

        def replay(turn: int) -> None:
            x.host[...] = turn + comm.rank
            graphs[0].launch(stream)
            stream.synchronize()
            got = x.host.copy()
            call(comm, x, turn)
            assert (got == 2 * turn + 1).all()

        if alone:
            mismatched(comm, replay)
        else:
            for turn in range(3):
                replay(turn)
            comm.close()
        graphs[0].close()

    gpus.ranks(2, rank, False)
    gpus.ranks(2, rank, True)
