"""Records: what the event ring has of each kind of call, whoever reads it and whenever."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import ClosedError, Communicator, UsageError
from pycoll.runtime.native import trace
from pycoll.runtime.record import events, places, recorder, ticks
from pycoll.runtime.record.kinds import Kind

Event = dict[str, Any]
HERE = __file__


def run(function: Callable[[Communicator], Any], size: int = 2, **settings: str) -> list[Any]:
    """What each rank's function returns."""

    def rank() -> Any:
        os.environ.update(settings)
        return function(pycoll.init())

    return pycoll.spawn(rank, size, timeout=120)


def calls(comm: Communicator, since: int = 0) -> list[Event]:
    """What is told of a communicator's calls."""
    mine = comm._engine.recorder.told(ticks.Clock())
    return [event for event in mine["events"] if event["seq"] > since]


def last(comm: Communicator) -> Event:
    return calls(comm)[-1]


def here() -> int:
    return sys._getframe(1).f_lineno


def every_kind(comm: Communicator) -> None:
    """Make a call of each kind, two ranks."""
    me, x = comm.rank, np.ones(1000, "float32")
    counts, pairs = [300, 700], [[1, 2], [3, 4]]
    comm.allreduce(x)
    comm.allreduce(x, op="max", algorithm="ring")
    comm.allreduce(x, order="fixed", algorithm="ordered_chain")
    comm.allgather(x)
    comm.broadcast(x, root=1)
    comm.reduce(x, op="min")
    comm.reduce_scatter(np.ones(2000, "int32"))
    comm.alltoall(np.ones(2000, "int32"))
    comm.gather(x)
    comm.scatter(np.ones(2000, "int64"), np.ones(1000, "int64"))
    comm.barrier()
    comm.allgatherv(np.ones(counts[me]), counts)
    comm.reduce_scatterv(np.ones(1000), counts)
    comm.alltoallv(
        np.ones(sum(pairs[me])),
        pairs[me],
        np.empty(pairs[0][me] + pairs[1][me]),
        [pairs[0][me], pairs[1][me]],
    )
    comm.gatherv(np.ones(counts[me], "uint8"), counts)
    comm.scatterv(None if me else np.ones(1000), counts, np.empty(counts[me]))
    comm.allgather_object("text")
    comm.broadcast_object("text")
    comm.gather_object("text")
    comm.scatter_object(None if me else ["a", "b"])
    comm.allreduce([x, np.ones(100, "float32"), np.ones(3)])
    comm.allreduce(x, async_op=True).wait()
    comm.barrier(async_op=True).wait()
    comm.plan("allreduce", x)()


#: call, algorithm (None: whichever was fastest), bytes, dtype, operation, of `every_kind`
KINDS = [
    ("allreduce", None, 4000, "float32", "sum"),
    ("allreduce", "ring", 4000, "float32", "max"),
    ("allreduce", "ordered_chain", 4000, "float32", "sum"),
    ("allgather", None, 8000, "float32", ""),
    ("broadcast", None, 4000, "float32", ""),
    ("reduce", None, 4000, "float32", "min"),
    ("reduce_scatter", None, 8000, "int32", "sum"),
    ("alltoall", None, 8000, "int32", ""),
    ("gather", None, 8000, "float32", ""),
    ("scatter", None, 16000, "int64", ""),
    ("barrier", None, 1, "uint8", "max"),
    ("allgatherv", None, 8000, "float64", ""),
    ("reduce_scatterv", None, 8000, "float64", "sum"),
    ("alltoallv", "pairwise", 0, "float64", ""),
    ("gatherv", "pairwise", 0, "uint8", ""),
    ("scatterv", "pairwise", 0, "float64", ""),
    *(
        (f"{ahead}{name}_object", None, None, dtype, "")
        for name in ("allgather", "broadcast", "gather", "scatter")
        for ahead, dtype in (("lengths of ", "int64"), ("", "uint8"))
    ),
    ("allreduce", None, 4400, "float32", "sum"),  # of a list: one call per dtype
    ("allreduce", None, 24, "float64", "sum"),
    ("allreduce", None, 4000, "float32", "sum"),
    ("barrier", None, 1, "uint8", "max"),
    ("allreduce", None, 4000, "float32", "sum"),
]


def test_every_kind_of_call() -> None:
    def rank(comm: Communicator) -> list[Event]:
        every_kind(comm)
        return calls(comm)

    first = every_kind.__code__.co_firstlineno
    found = run(rank)
    for mine in found:
        assert [event["seq"] for event in mine] == list(range(1, len(KINDS) + 1))
        for event, (call, algorithm, nbytes, dtype, op) in zip(mine, KINDS, strict=True):
            assert (event["call"], event["dtype"], event["op"]) == (call, dtype, op)
            assert nbytes in (None, event["nbytes"]), call
            assert event["algorithm"], call
            assert algorithm in (None, event["algorithm"])
            assert event["error"] == ""
            assert event["sent"] == []
            assert event["finished_ns"] is not None
            assert event["entered_ns"] is None or event["entered_ns"] <= event["finished_ns"]
            assert event["entered_ns"] is not None or event["waits"] == 0
            assert event["peer"] in (None, 0, 1)
            file, _, line = event["line"].rpartition(":")
            assert file == HERE
            assert first < int(line) < first + 60
        finished = [event["finished_ns"] for event in mine]
        assert finished == sorted(finished)
        lines = [int(event["line"].rpartition(":")[2]) for event in mine]
        assert lines == sorted(lines)
        assert len(set(lines)) == len(KINDS) - 5  # objects are two calls each, the list was two
    same = [[(e["seq"], e["call"], e["algorithm"], e["nbytes"]) for e in mine] for mine in found]
    assert same[0] == same[1]


def test_messages_are_no_calls() -> None:
    def rank(comm: Communicator) -> list[str]:
        x, peer = np.ones(10), 1 - comm.rank
        comm.barrier()
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            comm.recv(x, 0)
        comm.exchange([(x, peer)], [(np.empty(10), peer)])
        comm.barrier()
        return [event["call"] for event in calls(comm)]

    assert run(rank) == [["barrier", "barrier"]] * 2


def test_refused_calls() -> None:
    def rank(comm: Communicator) -> None:
        line = here() + 2
        with pytest.raises(UsageError):
            comm.allreduce(np.ones(2), algorithm="nope")
        event = last(comm)
        assert event["line"] in (f"{HERE}:{line}", None)
        assert event["seq"] == 1
        assert event["call"].startswith("allreduce at ")
        assert "refused with UsageError: algorithm is 'nope'" in event["call"]
        assert (event["algorithm"], event["nbytes"], event["error"]) == ("", 0, "refused")
        works = [comm.allreduce(np.ones(2), async_op=True) for _ in range(20)]
        line = here() + 2
        with pytest.raises(UsageError):
            comm.allgatherv(np.ones(2), [1])
        works.append(comm.allreduce(np.ones(2), async_op=True))
        for work in works:
            work.wait()
        comm.barrier()
        queued = calls(comm)[21]
        assert queued["error"] == "refused"
        assert queued["line"] == f"{HERE}:{line}"
        assert comm.stats().calls == 24

    run(rank)


def until_it_breaks(call: Callable[[], object]) -> None:
    """Call again and again."""
    while True:
        call()


def test_a_call_that_times_out() -> None:
    def rank() -> Event:
        comm = pycoll.init()
        comm.barrier()
        if comm.rank == 1:
            with pytest.raises(pycoll.PycollError):
                until_it_breaks(comm._engine.failure.raise_failure)
        else:
            with pytest.raises(pycoll.CollectiveTimeout):
                comm.allreduce(np.ones(3), timeout=0.2)
        return last(comm)

    late, other = pycoll.spawn(rank, 2, timeout=60, check=False)
    assert (late["seq"], late["call"], late["peer"]) == (2, "allreduce", 1)
    assert late["error"] == "CollectiveTimeout"
    assert late["finished_ns"] is not None
    assert (other["seq"], other["error"]) == (1, "")


def test_a_call_that_is_mismatched() -> None:
    def rank() -> Event:
        comm = pycoll.init()
        comm.barrier()
        with pytest.raises(pycoll.MismatchError):
            comm.allreduce(np.ones(3 + comm.rank))
        return last(comm)

    for event in pycoll.spawn(rank, 2, timeout=60, check=False):
        assert (event["seq"], event["call"]) == (2, "allreduce")
        assert event["error"]


def test_a_call_that_another_thread_revokes() -> None:
    def rank() -> Event:
        comm = pycoll.init()
        comm.barrier()
        if comm.rank == 0:
            threading.Timer(0.1, comm.revoke).start()
            with pytest.raises(pycoll.PycollError):
                comm.allreduce(np.ones(3))
        else:
            with pytest.raises(pycoll.PycollError):
                until_it_breaks(comm._engine.failure.raise_failure)
        return last(comm)

    event = pycoll.spawn(rank, 2, timeout=60, check=False)[0]
    assert (event["seq"], event["call"]) == (2, "allreduce")
    assert event["error"]


class Caller:
    def __init__(self, comm: Communicator) -> None:
        self.comm = comm

    def method(self) -> int:
        self.comm.barrier()
        return here() - 1

    @property
    def prop(self) -> int:
        self.comm.barrier()
        return here() - 1


def decorated(function: Callable[..., int]) -> Callable[..., int]:
    def inner(*args: Any) -> int:
        return function(*args)

    return inner


@decorated
def behind_a_decorator(comm: Communicator) -> int:
    comm.barrier()
    return here() - 1


@contextlib.contextmanager
def around(comm: Communicator) -> Iterator[int]:
    comm.barrier(); at = here()  # fmt: skip  # noqa: E702
    yield at


def generator(comm: Communicator) -> Iterator[int]:
    comm.barrier()
    yield here() - 1
    comm.barrier()
    yield here() - 1


async def coroutine(comm: Communicator) -> int:
    comm.barrier()
    return here() - 1


def places_of(comm: Communicator) -> list[tuple[str, str | None, str]]:
    """What they are called, the line that was found, and the right one."""
    import asyncio

    found: list[tuple[str, str | None, str]] = []

    def check(name: str, line: int | None, file: str = HERE) -> None:
        found.append((name, last(comm)["line"], f"{file}:{line}"))

    def nested() -> int:
        comm.barrier()
        return here() - 1

    check("nested", nested())
    call = lambda: comm.barrier()  # noqa: E731
    at = here() - 1
    call()
    check("lambda", at)
    at = here() + 1
    [comm.barrier() for _ in range(3)]
    check("comprehension", at)
    at = here() + 1
    any(comm.barrier() for _ in range(3))
    check("generator expression", at)
    check("method", Caller(comm).method())
    check("property", Caller(comm).prop)
    check("decorator", behind_a_decorator(comm))
    for line in generator(comm):
        check("generator", line)
    with around(comm) as at:
        check("context manager", at)
    check("coroutine", asyncio.run(coroutine(comm)))
    exec(compile("\n\n\ncomm.barrier()", "<made up>", "exec"), {"comm": comm})
    check("exec", 4, "<made up>")
    exec(compile("comm.barrier()\ncomm.barrier()", "<one>", "exec"), {"comm": comm})
    check("exec of the same", 2, "<one>")
    exec(compile("comm.barrier()\n\n\ncomm.barrier()", "<two>", "exec"), {"comm": comm})
    check("exec of what compiles to the same", 4, "<two>")
    sorted([1], key=lambda _: comm.barrier())
    check("key", here() - 1)
    at = here() + 2
    comm.allreduce(
        np.ones(
            3,
        ),
    )
    found[-1:] = found[-1:]
    assert at - 1 <= int((last(comm)["line"] or "").rpartition(":")[2]) <= at + 3
    work = comm.allreduce(np.ones(3), async_op=True)
    at = here() - 1
    work.wait()
    check("async", at)
    plan = comm.plan("allreduce", np.ones(3))
    plan()
    check("plan", here() - 1)

    def recurse(depth: int) -> int:
        if depth:
            return recurse(depth - 1)
        comm.barrier()
        return here() - 1

    check("recursion", recurse(50))
    try:
        raise KeyError
    except KeyError:
        comm.barrier()
        check("except", here() - 1)
    with comm.register_profiler(lambda event: None):
        comm.barrier()
        check("profiler", here() - 1)
        comm.allgatherv(np.ones(comm.rank + 1), range(1, comm.size + 1))
        check("profiler, counts", here() - 1)
        plan()
        check("profiler, plan", here() - 1)
    return found


@pytest.mark.skipif(not recorder.PLACES, reason="this Python's frames are not known")
def test_the_line_is_the_users() -> None:
    for found in run(places_of):
        for name, got, want in found:
            assert got == want, name


@pytest.mark.skipif(not recorder.PLACES, reason="this Python's frames are not known")
def test_the_line_while_the_interpreter_is_traced() -> None:
    def rank(comm: Communicator) -> None:
        sys.settrace(lambda *_: None)
        sys.setprofile(lambda *_: None)
        comm.barrier()
        line = here() - 1
        sys.setprofile(None)
        sys.settrace(None)
        assert last(comm)["line"] == f"{HERE}:{line}"

    run(rank)


def many_codes(comm: Communicator, count: int) -> list[tuple[str | None, str]]:
    found = []
    for number in range(count):
        text = "\n" * number + "comm.barrier()"
        exec(compile(text, f"<{number}>", "exec"), {"comm": comm})
        found.append((last(comm)["line"] if number % 20 == 0 else None, f"<{number}>:{number + 1}"))
    mine = calls(comm)[-count:]
    return [(event["line"], want) for event, (_, want) in zip(mine, found, strict=True)]


def test_more_code_objects_than_there_is_room_for() -> None:
    def rank(comm: Communicator) -> int:
        known = 0
        for got, want in many_codes(comm, 600):
            assert got in (None, want)
            known += got == want
        return known

    for known in run(rank):
        assert known > 0 or not recorder.PLACES  # how many, their addresses decide


def test_a_python_whose_frames_are_not_known() -> None:
    def rank(comm: Communicator) -> None:
        assert not places.fastcall.place_begin(None)
        every_kind(comm)
        assert {event["line"] for event in calls(comm)} == {None}
        assert json.loads(json.dumps(comm.record()))["comms"]

    run(rank)


def test_a_trial_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "line_of", lambda place: "elsewhere:1")
    began = []
    monkeypatch.setattr(
        places,
        "fastcall",
        type(
            "Fastcall",
            (),
            {
                "place_begin": staticmethod(lambda own: began.append(own) or True),
                "place": staticmethod(lambda: 1),
            },
        ),
    )
    assert not places.begin()
    assert began[-1] is None


def test_numbers_that_stand_for_no_place() -> None:
    for number in (0, 1, 0xFFFFFFFF, 1 << 62, (1 << 64) - 1):
        if number >> 32 > len(places.fastcall.places()) or number < 1 << 32:
            assert places.line_of(number) is None


def test_labels_that_say_nothing() -> None:
    assert Kind.read("") == Kind("")
    assert Kind.read("a\tb\tmany\tc") == Kind("a", "b", 0, "c", "")
    assert Kind.read("a\tb\t7\tc\td\te\tf") == Kind("a", "b", 7, "c", "d")
    assert events._error(1) == events._error(1)
    assert events._error(12345)


LATE_NS = 200_000_000
WAITED_NS = 40_000_000  #: of that, however loaded the machine is


def late(comm: Communicator, how: str, heard: int, told: int) -> tuple[Event, int]:
    """The event of a call to which rank 0 comes late, and when it came."""
    x = np.ones(1000)
    plan = comm.plan("allreduce", x)
    for _ in range(3):
        comm.allreduce(x)
        plan()
    comm.barrier()
    if comm.rank == 0:
        os.read(heard, 1)
        time.sleep(LATE_NS / 1e9)
    else:
        os.write(told, b"1")
    came = time.monotonic_ns()
    if how == "async":
        comm.allreduce(x, async_op=True).wait()
    elif how == "plan":
        plan()
    elif how == "list":
        comm.allreduce([x, np.ones(3)])
    elif how == "objects":
        comm.allgather_object(1)
    elif how == "ring":
        comm.allreduce(x, algorithm="ring")
    else:
        comm.allreduce(x)
    first = [event for event in calls(comm) if (event["finished_ns"] or came) > came]
    return first[0], came


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("how", ["call", "async", "plan", "list", "objects", "ring"])
def test_whoever_waits_knows_for_whom(how: str, transport: str) -> None:
    settings = {"PYCOLL_TRANSPORT": "tcp"} if transport == "tcp" else {}
    heard, told = os.pipe()
    (mine, came), (theirs, began) = run(lambda comm: late(comm, how, heard, told), **settings)
    os.close(heard)
    os.close(told)
    assert theirs["peer"] == 0
    assert theirs["waits"] > 0
    assert theirs["waited_ns"] >= WAITED_NS
    assert theirs["entered_ns"] >= began
    assert mine["waited_ns"] < theirs["waited_ns"]
    entered = mine["finished_ns"] if mine["entered_ns"] is None else mine["entered_ns"]
    assert theirs["entered_ns"] < came < entered


def test_a_call_that_has_not_ended() -> None:
    def rank(comm: Communicator) -> Event | None:
        comm.barrier()
        if comm.rank == 1:
            comm.recv(np.empty(1), 0)
        else:
            work = comm.allreduce(np.ones(3), async_op=True)
            deadline = time.monotonic() + 60
            while (event := last(comm))["seq"] == 1 or not event["waited_ns"]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            comm.send(np.ones(1), 1)
            found = event
            work.wait()
        if comm.rank == 1:
            comm.allreduce(np.ones(3))
            return None
        assert last(comm)["finished_ns"] is not None
        return found

    event = run(rank)[0]
    assert event["finished_ns"] is None
    assert event["entered_ns"] is not None
    assert (event["peer"], event["error"]) == (1, "")


def test_the_ring_has_the_last_calls_and_stats_count_all() -> None:
    def rank(comm: Communicator) -> None:
        x = np.ones(1)
        for _ in range(1000):
            comm.allreduce(x)
            comm.allreduce(x, algorithm="ring")
            comm.barrier()
        found = calls(comm)
        assert [event["seq"] for event in found] == list(range(3000 - trace.EVENTS + 1, 3001))
        names = ("allreduce", "allreduce", "barrier")
        assert all(event["call"] == names[(event["seq"] - 1) % 3] for event in found)
        stats = comm.stats()
        assert stats.calls == 3000
        assert {name: one.calls for name, one in stats.collectives.items()} == {
            "allreduce": 2000,
            "barrier": 1000,
        }
        reduced = stats.collectives["allreduce"]
        assert reduced.nbytes == 2000 * 8
        assert reduced.algorithms["ring"] >= 1000
        assert sum(reduced.algorithms.values()) == 2000
        assert stats.waits > 0
        assert stats.waited_seconds >= 0

    run(rank)


def test_more_kinds_of_calls_than_labels() -> None:
    def rank(comm: Communicator) -> None:
        ring = trace.comm_trace(comm._engine.comm)
        for number in range(5000):  # as plans of so many lengths would have
            trace.label(
                comm._engine.comm, number * 0x9E3779B97F4A7C15 % 2**64 + 7, f"call {number}"
            )
        for length in range(1, 30):
            comm.allreduce(np.ones(length))
            comm.barrier()
        crowd = [number * 0x2545F4914F6CDD1D % 2**64 + 5 for number in range(5000)]
        for number in crowd:
            trace.label(comm._engine.comm, number, "other\tring\t1")
        for length in range(1, 30):
            comm.allreduce(np.ones(length))
        totals = trace.trace_totals(ring)
        labelled = sum(count for count, _ in totals.calls.values())
        assert totals.unlabelled > 0
        assert labelled + totals.unlabelled == comm.stats().calls == 87
        assert len(totals.calls) <= trace.LABELS
        assert len(calls(comm)) == 87

    run(rank)


def test_a_long_label_is_cut_off() -> None:
    def rank(comm: Communicator) -> None:
        trace.label(comm._engine.comm, 99, "x" * 1000)
        trace.say_about(comm._engine.comm, "é" * 5000)
        ring = trace.comm_trace(comm._engine.comm)
        assert trace.trace_totals(ring).calls[99] == (0, "x" * 111)
        assert trace.trace_about(ring).startswith("é" * 100)

    run(rank, 1)


# Other threads, the end of communicators, and forks


def test_a_thread_that_reads_all_the_time() -> None:
    def rank(comm: Communicator) -> int:
        x = {length: np.ones(length) for length in range(1, 9)}
        over, wrong, seen = threading.Event(), [], set()

        def look() -> None:
            while not over.is_set():
                for event in calls(comm):
                    seen.add(event["seq"])
                    want = 8 * (event["seq"] % 8 + 1)
                    ok = event["call"] == "allreduce" and event["nbytes"] == want
                    if not ok or event["error"] or event["op"] != "sum":
                        wrong.append(event)

        thread = threading.Thread(target=look)
        thread.start()
        for number in range(1, 2500):
            if number % 7 == 0:
                comm.allreduce(x[number % 8 + 1], async_op=True).wait()
            else:
                comm.allreduce(x[number % 8 + 1])
        over.set()
        thread.join()
        assert wrong == []
        assert comm.stats().calls == 2499
        return len(seen)

    for seen in run(rank):
        assert seen >= trace.EVENTS - 1


def test_kinds_that_give_way_while_another_thread_reads() -> None:
    def rank(comm: Communicator) -> None:
        ring, over = comm._engine.comm, threading.Event()
        wrong = []

        def look() -> None:
            while not over.is_set():
                for signature, (_, text) in trace.trace_totals(
                    trace.comm_trace(ring)
                ).calls.items():
                    if text != f"{signature}" * (1 + signature % 5):
                        wrong.append((signature, text))

        thread = threading.Thread(target=look)
        thread.start()
        for number in range(1, 1_000_000):
            signature = number * 0x9E3779B97F4A7C15 % 2**64
            trace.label(ring, signature, f"{signature}" * (1 + signature % 5))
        over.set()
        thread.join()
        assert wrong == []

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # or each of the calls waits 5 ms for the thread that reads
    try:
        run(rank, 1)
    finally:
        sys.setswitchinterval(interval)


def test_records_amid_the_life_and_death_of_communicators() -> None:
    def rank(comm: Communicator) -> int:
        over, failed, made = threading.Event(), [], []

        def look() -> None:
            while not over.is_set():
                try:
                    found = comm.record()
                    made.append(len(found["comms"]))
                    json.dumps(found)
                except BaseException as error:
                    failed.append(error)

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(30):
            part = comm.split(number % 2)
            part.allreduce(np.ones(3))
            if number % 3 == 0:
                part.close()
            elif number % 3 == 1:
                del part
                gc.collect()
            else:
                part.itself = part  # only the collector finds it
            comm.dup().barrier()
        over.set()
        for thread in threads:
            thread.join()
        assert failed == []
        assert made[0] >= 1
        del part
        gc.collect()
        return max(made)

    assert min(run(rank)) >= 1


def test_a_communicator_that_is_collected_amid_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank(comm: Communicator) -> None:
        parts = {comm.rank: comm.dup()}
        plain = events.read

        def read(*args: Any) -> Any:
            if parts:
                parts.clear()
                gc.collect()
            return plain(*args)

        monkeypatch.setattr(recorder.events, "read", read)
        found = comm.record()
        assert found["comms"][0]["name"] == "job"
        deadline = time.monotonic() + 60
        while len(comm.record()["comms"]) > 1:
            assert time.monotonic() < deadline
        comm.barrier()

    run(rank)


def test_what_a_closed_communicator_answers() -> None:
    def rank(comm: Communicator) -> None:
        other = comm.dup()
        other.close()
        for call in (other.record, other.stats):
            with pytest.raises(ClosedError, match=r"closed"):
                call()
        assert len(comm.record()["comms"]) == 1
        comm.barrier()

    run(rank)


def test_shrunk_communicators() -> None:
    def rank() -> Any:
        comm = pycoll.init()
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(pycoll.PycollError):
            until_it_breaks(comm.barrier)
        smaller = comm.shrink()
        smaller.allreduce(np.ones(3))
        told = smaller.record()
        return told["rank"], [(one["name"], one["ranks"], one["rank"]) for one in told["comms"]]

    found = pycoll.spawn(rank, 3, timeout=60, check=False)
    for number, at in ((0, 0), (2, 1)):
        job_rank, comms = found[number]
        assert job_rank == number
        (name, ranks, place) = comms[-1]
        assert (ranks, place) == ([0, 2], at)
        assert name != "job"


def test_a_forked_child_records_nothing_and_the_parent_still_does(tmp_path: Path) -> None:
    def rank(comm: Communicator) -> None:
        comm.barrier()
        file = tmp_path / f"pycoll-record.{comm._engine.bootstrap.job_id}.{comm.rank}.json"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert recorder.record("child") == {"comms": []}
                assert threading.active_count() == 1
                signal.raise_signal(signal.SIGUSR1)  # which ends it, as it does any process
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGUSR1
        assert not file.exists()
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline = time.monotonic() + 60
        while not file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        found = json.loads(file.read_text())
        assert (found["reason"], found["pid"], found["rank"]) == ("SIGUSR1", os.getpid(), comm.rank)
        comm.barrier()

    run(rank, PYCOLL_RECORD=str(tmp_path))


def test_ranks_that_are_forked_from_a_rank_record_themselves(tmp_path: Path) -> None:
    def inner() -> str:
        comm = pycoll.init()
        comm.barrier()
        os.kill(os.getpid(), signal.SIGUSR1)
        file = tmp_path / f"pycoll-record.{comm._engine.bootstrap.job_id}.{comm.rank}.json"
        deadline = time.monotonic() + 60
        while not file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        comm.barrier()
        return file.name

    def rank(comm: Communicator) -> list[str]:
        comm.barrier()
        found = pycoll.spawn(inner, 2, timeout=60)
        comm.barrier()
        return found

    names = run(rank, PYCOLL_RECORD=str(tmp_path))
    assert len({name for found in names for name in found}) == 4


# Files


def test_a_record_in_a_file_or_a_directory(tmp_path: Path) -> None:
    def rank(comm: Communicator) -> None:
        comm.barrier()
        made = comm.record(tmp_path)
        name = f"pycoll-record.{made['job']}.{comm.rank}.json"
        assert json.loads((tmp_path / name).read_text()) == made
        mine = tmp_path / f"mine{comm.rank}"
        comm.record(mine)
        comm.record(str(mine))
        assert json.loads(mine.read_text())["rank"] == comm.rank
        assert not [one for one in tmp_path.iterdir() if one.name.startswith(f".mine{comm.rank}")]
        for bad in ("", tmp_path / "none" / "file", 7, b"bytes", "nul\0"):
            with pytest.raises(UsageError, match=r"^record: path is "):
                comm.record(bad)  # type: ignore[arg-type]
        comm.barrier()

    run(rank)


def test_what_a_record_says(tmp_path: Path) -> None:
    def rank(comm: Communicator) -> dict[str, Any]:
        part = comm.split(0)
        assert part is not None
        part.barrier()
        return comm.record()

    found = run(rank)
    for number, made in enumerate(found):
        assert made["format"] == "pycoll-record-1"
        assert made["version"] == pycoll.__version__
        assert (made["rank"], made["size"], made["reason"]) == (number, 2, "record()")
        told = made["clock"]
        assert abs(told["offset_ns"]) <= told["error_ns"]
        assert abs(told["unix_ns"] - time.time_ns()) < 3600e9
        assert abs(told["monotonic_ns"] - time.monotonic_ns()) < 3600e9
        assert [one["rank"] for one in made["comms"]] == [number] * 2
        for one in made["comms"]:
            assert (one["ranks"], one["hosts"]) == ([0, 1], [0, 0])
            assert (one["transport"], one["rails"], one["links"]) == ("shm", [], [])
    assert [one["id"] for one in found[0]["comms"]] == [one["id"] for one in found[1]["comms"]]
    assert len({one["id"] for one in found[0]["comms"]}) == 2
    assert found[0]["job"] == found[1]["job"]


def test_without_the_setting_there_is_no_thread_and_no_handler() -> None:
    def rank(comm: Communicator) -> list[str]:
        comm.barrier()
        handlers = [handled(os.getpid(), number) for number in (signal.SIGUSR1, signal.SIGTERM)]
        assert handlers == [False, False]
        return [thread.name for thread in threading.enumerate()]

    for names in run(rank):
        assert "pycoll-record" not in names


def handled(pid: int, number: int) -> bool:
    text = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (line.split()[1] for line in text.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_the_programs_own_handlers_are_left_alone(tmp_path: Path) -> None:
    def rank() -> None:
        os.environ["PYCOLL_RECORD"] = str(tmp_path)
        came: list[int] = []
        signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
        comm = pycoll.init()
        signal.signal(signal.SIGTERM, lambda *_: came.append(2))
        comm.barrier()
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        assert came == [1, 2]
        assert "pycoll-record" in [thread.name for thread in threading.enumerate()]
        comm.barrier()
        comm.close()
        signal.raise_signal(signal.SIGTERM)
        assert came == [1, 2, 2]

    pycoll.spawn(rank, 2, timeout=60)
    assert list(tmp_path.iterdir()) == []
