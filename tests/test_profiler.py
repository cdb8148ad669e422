"""Callbacks that are told before and after each call: what of, when, and what they may do."""

from __future__ import annotations

import contextlib
import io
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll.runtime.native import load

pytestmark = pytest.mark.native

#: The attributes by which a communicator makes its calls.
WAYS = (
    *("_allreduce", "_broadcast", "_reduce", "_allgather", "_reduce_scatter", "_alltoall"),
    *("_gather", "_scatter", "_barrier", "_send", "_recv", "_exchange"),
    *("_counted", "_objects", "_together"),
)


def ways(comm: Any) -> list[Any]:
    return [getattr(comm, name) for name in WAYS]


def brief(event: pycoll.CallEvent) -> tuple[Any, ...]:
    return event.phase, event.collective, event.sequence


def test_what_is_told_of_each_call() -> None:
    def rank() -> Any:
        with pycoll.init() as comm:
            seen: list[pycoll.CallEvent] = []
            r, peer = comm.rank, 1 - comm.rank
            x, y = np.ones(6), np.ones(6, "f4")
            with comm.register_profiler(seen.append):
                comm.allreduce(x, op="max")
                comm.allreduce([x, np.ones(6)], algorithm="ring")
                comm.broadcast(y, root=1)
                comm.reduce(x)
                comm.allgather(x)
                comm.reduce_scatter(x, op="min")
                comm.alltoall(y)
                comm.gather(x, root=1)
                comm.scatter(x if r == 0 else None, np.empty(3))
                comm.barrier()
                comm.allgatherv(np.ones(r + 1), [1, 2])
                comm.reduce_scatterv(np.ones(3), [1, 2], op="prod")
                comm.alltoallv(x, [3, 3], np.empty(6), [3, 3])
                comm.gatherv(x, [6, 6], root=1)
                comm.scatterv(x if r == 0 else None, [3, 3], np.empty(3))
                comm.broadcast_object("text", root=1)
                comm.allgather_object("text")
                comm.gather_object("text")
                comm.scatter_object(["a", "b"] if r == 0 else None)
                comm.send(x, peer) if r == 0 else comm.recv(x, peer)
                comm.exchange([(x, peer)], [(np.empty(6), peer)])
            begun, ended = seen[::2], seen[1::2]
            for first, last in zip(begun, ended, strict=True):
                assert last == first._replace(phase="end", algorithm=last.algorithm)
                assert first.algorithm in (None, last.algorithm)
                assert (first.communicator, first.rank, first.size) == ("job", r, 2)
            return [(*tuple(e[1:9]), e.algorithm is not None) for e in ended]

    none, f4, f8 = (None,) * 5, "float32", "float64"
    both = [
        ("allreduce", 1, 48, f8, "max", None, None, "cpu", True),
        ("allreduce", 2, 96, f8, "sum", None, None, "cpu", True),
        ("broadcast", 3, 24, f4, None, 1, None, "cpu", True),
        ("reduce", 4, 48, f8, "sum", 0, None, "cpu", True),
        ("allgather", 5, 48, f8, None, None, None, "cpu", True),
        ("reduce_scatter", 6, 48, f8, "min", None, None, "cpu", True),
        ("alltoall", 7, 24, f4, None, None, None, "cpu", True),
        ("gather", 8, 48, f8, None, 1, None, "cpu", True),
        ("scatter", 9, 48, f8, None, 0, None, "cpu", True),
        ("barrier", 10, 0, None, None, None, None, "cpu", True),
        ("allgatherv", 11, 8, f8, None, None, None, "cpu", True),
        ("reduce_scatterv", 12, 24, f8, "prod", None, None, "cpu", True),
        ("alltoallv", 13, 48, f8, None, None, None, "cpu", False),
        ("gatherv", 14, 48, f8, None, 1, None, "cpu", False),
        ("scatterv", 15, 48, f8, None, 0, None, "cpu", False),
        ("broadcast_object", 16, None, None, None, 1, None, None, False),
        ("allgather_object", 17, *none, None, False),
        ("gather_object", 18, None, None, None, 0, None, None, False),
        ("scatter_object", 19, None, None, None, 0, None, None, False),
        ("send", 1, 48, f8, None, None, 1, "cpu", False),
        ("exchange", 2, 96, f8, None, None, None, "cpu", False),
    ]
    zero, one = pycoll.spawn(rank, 2, timeout=100)
    assert zero == both
    # What a rank gives differs, and what it is not asked to give it gets.
    other = {8: ("scatter", 9, 24), 10: ("allgatherv", 11, 16), 14: ("scatterv", 15, 24)}
    for i, row in other.items():
        both[i] = (*row, *both[i][3:])
    both[19] = ("recv", 1, 48, f8, None, None, 0, "cpu", False)
    assert one == both


def test_without_a_profiler_nothing_is_in_front_of_native_code() -> None:
    """The same objects serve calls as if there never had been one, plans and all."""
    with pycoll.init() as comm:
        natives = {"builtin_function_or_method"}
        x = np.ones(3)
        plan = comm.plan("allreduce", x)
        assert {type(way).__name__ for way in ways(comm)[:12]} == natives
        assert type(plan._launch) is load.fastcall.Plan
        before, launch = ways(comm), plan._launch
        with comm.register_profiler(print) as one, pycoll.register_profiler(print):
            assert not set(map(id, before)) & set(map(id, ways(comm)))
            assert plan._launch is not launch
            later = comm.plan("allreduce", x)
            one.close()
            assert comm._allreduce is not before[0]  # the other is there still
        assert all(a is b for a, b in zip(before, ways(comm), strict=True))
        assert plan._launch is launch
        assert type(later._launch) is load.fastcall.Plan


def test_plans_that_repeat_are_told_of_each_time() -> None:
    with pycoll.init() as comm:
        seen: list[pycoll.CallEvent] = []
        x = np.ones(3)
        early = comm.plan("allreduce", x, op="max")
        early()
        with comm.register_profiler(seen.append):
            late = comm.plan("broadcast", [x, np.ones(2)])
            assert seen == []  # to make one is no call
            assert early() is x
            assert late()[0] is x
        late()
        assert [brief(event) for event in seen] == [
            *(("begin", "allreduce", 1), ("end", "allreduce", 1)),
            *(("begin", "broadcast", 2), ("end", "broadcast", 2)),
        ]
        assert [(e.nbytes, e.op, e.root, e.algorithm) for e in seen[::2]] == [
            (24, "max", None, early.algorithm),
            (40, None, 0, late.algorithm),
        ]


def test_reductions_are_told_with_their_order() -> None:
    """An algorithm that is named beside an order is told of as well."""

    def rank() -> Any:
        told: list[Any] = []
        for mine in ("free", "fixed"):
            with pycoll.init(order=mine) as comm:
                seen: list[pycoll.CallEvent] = []
                x = np.ones(4)
                with comm.register_profiler(seen.append):
                    comm.allreduce(x)
                    comm.allreduce(x, order="fixed", algorithm="one_shot")
                    comm.reduce(x, order="free")
                    comm.reduce_scatterv(x, [2, 2], order="fixed")
                    comm.plan("reduce_scatter", x, order="fixed")()
                    comm.broadcast(x)
                    with contextlib.suppress(pycoll.UsageError):
                        comm.allreduce(x, order=3)
                assert seen[2].algorithm == "one_shot"
                assert [e.order for e in seen[::2]] == [e.order for e in seen[1::2]]
                told.append([event.order for event in seen[::2]])
        return told

    rest = ["fixed", "free", "fixed", "fixed", None, None]
    assert pycoll.spawn(rank, 2, timeout=100) == [[["free", *rest], ["fixed", *rest]]] * 2


def test_a_plan_of_a_closed_communicator_refuses_after_its_profiler_is_closed() -> None:
    comm = pycoll.init()
    plan = comm.plan("allreduce", np.ones(3))
    profiler = pycoll.register_profiler(print)
    comm.close()
    profiler.close()
    with pytest.raises(pycoll.ClosedError):
        plan()


def test_the_end_of_a_work_is_told_once_when_somebody_finds_out() -> None:
    def rank() -> Any:
        with pycoll.init() as comm:
            seen: list[pycoll.CallEvent] = []
            with comm.register_profiler(seen.append):
                work = comm.allreduce(np.ones(4), async_op=True)
                assert [event.phase for event in seen] == ["begin"]
                threads = [threading.Thread(target=work.wait) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                work.wait()
                assert [event.phase for event in seen] == ["begin", "end"]
                comm.barrier(async_op=True)  # nobody waits for it: whoever closes does
                part = comm.dup()
                forgotten = part.register_profiler(seen.append)
                part.barrier(async_op=True)
                part.close()
                assert brief(seen[-1]) == ("end", "barrier", 1)
                assert seen[-1].communicator.startswith("dup 1 #")
                comm.barrier(async_op=True).wait()
            forgotten.close()
            return seen[-1].communicator

    assert pycoll.spawn(rank, 2, timeout=100) == ["job"] * 2


def test_a_work_that_outlives_its_profiler_tells_nobody() -> None:
    with pycoll.init() as comm:
        seen: list[pycoll.CallEvent] = []
        with comm.register_profiler(seen.append):
            work = comm.barrier(async_op=True)
        work.wait()
        assert [event.phase for event in seen] == ["begin"]


def test_errors_are_told_and_raised_as_ever() -> None:
    def rank() -> Any:
        with pycoll.init() as comm:
            seen: list[pycoll.CallEvent] = []
            with comm.register_profiler(seen.append):
                for bad in (5, [5], object()):
                    with pytest.raises(pycoll.UsageError, match="want an array") as refused:
                        comm.allreduce(bad)
                    assert seen[-1].error is refused.value
                    assert (seen[-1].nbytes, seen[-1].dtype, seen[-1].device) == (None,) * 3
                if comm.rank == 0:  # refused alone: the other hears of it in its call
                    with pytest.raises(pycoll.UsageError):
                        comm.barrier(timeout=-1)
                with pytest.raises(pycoll.MismatchError) as failed:
                    comm.allreduce(np.ones(1))
                assert seen[-1].error is failed.value
                assert brief(seen[-1]) == ("end", "allreduce", 5 - comm.rank)
                assert len(seen) == 2 * (5 - comm.rank)
            return True

    assert pycoll.spawn(rank, 2, timeout=100) == [True, True]


def test_a_work_that_fails_tells_its_error() -> None:
    def rank() -> Any:
        comm = pycoll.init()
        seen: list[pycoll.CallEvent] = []
        with comm.register_profiler(seen.append):
            if comm.rank == 0:
                work = comm.recv(np.empty(1), 1, async_op=True, timeout=0.1)
                with pytest.raises(pycoll.PycollError) as failed:
                    work.wait()
                assert seen[-1].error is failed.value
            else:
                comm.revoke()
        comm._engine.leave()
        return True

    assert pycoll.spawn(rank, 2, timeout=100) == [True, True]


def test_a_profiler_that_raises_is_closed_and_the_call_goes_on() -> None:
    def rank() -> Any:
        told = io.StringIO()
        seen: list[pycoll.CallEvent] = []

        def wrong(event: pycoll.CallEvent) -> None:
            seen.append(event)
            if event.phase == phase:
                raise ValueError("a bug of the profiler's")

        with pycoll.init() as comm, contextlib.redirect_stderr(told):
            plain = ways(comm)
            for phase in ("begin", "end"):
                seen.clear()
                profiler = comm.register_profiler(wrong) if comm.rank == 0 else None
                for _ in range(2):
                    assert comm.allreduce(np.ones(2))[0] == 2
                assert len(seen) == (("begin", "end").index(phase) + 1) * (comm.rank == 0)
                assert all(a is b for a, b in zip(plain, ways(comm), strict=True))
                if profiler:
                    profiler.close()
        return told.getvalue().count("ValueError: a bug of the profiler's")

    assert pycoll.spawn(rank, 2, timeout=100) == [2, 0]


def test_of_several_one_that_raises_does_not_silence_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[str] = []
    with (
        pycoll.init() as comm,
        comm.register_profiler(lambda event: 1 / 0),
        comm.register_profiler(lambda event: seen.append(event.phase)),
    ):
        comm.barrier()
    assert seen == ["begin", "end"]
    assert "a profiler raised, and is closed" in capsys.readouterr().err


def test_who_interrupts_in_a_profiler_is_not_held_back() -> None:
    def interrupt(event: pycoll.CallEvent) -> None:
        raise KeyboardInterrupt

    with pycoll.init() as comm:
        with comm.register_profiler(interrupt), pytest.raises(KeyboardInterrupt):
            comm.barrier()
        comm.barrier()


def test_calls_within_a_profiler_are_not_told_of() -> None:
    seen: list[tuple[Any, ...]] = []

    def meddle(event: pycoll.CallEvent) -> None:
        seen.append(brief(event))
        comm.allreduce(np.ones(1))

    with pycoll.init() as comm:
        with comm.register_profiler(meddle):
            comm.barrier()
        assert seen == [("begin", "barrier", 1), ("end", "barrier", 1)]


def test_a_profiler_may_close_itself() -> None:
    seen: list[str] = []

    def once(event: pycoll.CallEvent) -> None:
        seen.append(event.phase)
        profiler.close()

    with pycoll.init() as comm:
        profiler = comm.register_profiler(once)
        comm.barrier()
        comm.barrier()
    assert seen == ["begin"]


def test_one_of_the_process_sees_communicators_that_are_made_later() -> None:
    def rank() -> Any:
        everywhere: list[str] = []
        here: list[str] = []
        with (
            pycoll.register_profiler(lambda event: everywhere.append(event.communicator)),
            pycoll.init() as comm,
            comm.register_profiler(lambda event: here.append(event.communicator)),
        ):
            comm.barrier()
            half = comm.split(comm.rank)
            half.barrier()
            half.close()
        assert here == ["job"] * 2
        assert everywhere[:2] == ["job"] * 2
        return everywhere[2:]

    first, second = pycoll.spawn(rank, 2, timeout=100)
    assert first == [first[0]] * 2
    assert second == [second[0]] * 2
    assert first[0].startswith("split 1 #")
    assert first[0] != second[0]


def test_a_communicator_with_a_profiler_is_collected_without_the_collector() -> None:
    comm = pycoll.init()
    plan = comm.plan("allreduce", np.ones(2))
    with pycoll.register_profiler(print):
        gone = weakref.ref(comm), weakref.ref(plan), weakref.ref(comm._collectives)
        del plan
        comm.close()
        del comm
        assert [ref() for ref in gone] == [None] * 3


def test_a_closed_communicator_takes_no_profiler() -> None:
    comm = pycoll.init()
    comm.close()
    with pytest.raises(pycoll.ClosedError, match=r"^register_profiler: "):
        comm.register_profiler(print)
    with pytest.raises(pycoll.UsageError, match=r"callback is 5, want a function of a CallEvent"):
        pycoll.register_profiler(5)  # type: ignore[arg-type]


def test_an_error_names_the_line_of_the_user_and_not_of_what_tells_profilers() -> None:
    with pycoll.init() as comm, comm.register_profiler(lambda event: None):
        work = comm.allreduce(np.ones(1), async_op=True)
        assert "test_profiler.py:" in repr(work)
        work.wait()
