"""Timeline: an analysis as JSON of the Trace Event Format, which Perfetto and Chrome show.

A process stands for a rank, a thread for a communicator, or for all calls of a rank's GPU. Calls
that overlap need a thread each, since slices of one thread have to nest. Times are microseconds
after the earliest event, with nanoseconds as decimals.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from pycoll.trace.analysis import FORMAT, Analysis
from pycoll.trace.calls import Communicator
from pycoll.trace.record import Event
from pycoll.trace.words import duration

_THREADS = 1000  #: of a process at most; their numbers are unlike those of other processes


class _Slice(NamedTuple):
    """A call as it is drawn. Times are of the common clock."""

    start_ns: int
    end_ns: int
    rank: int
    comm: Communicator
    event: Event


def write(found: Analysis, file: IO[str]) -> None:
    """Write the timeline.

    Args:
        found: What is shown, with the communicators and calls that were asked for.
        file: Where to; text.
    """
    slices = sorted(_slices(found), key=lambda s: (s.start_ns, s.rank, s.event.seq))
    zero = min((s.start_ns for s in slices), default=0)
    threads = _threads(slices)
    file.write('{"displayTimeUnit": "ns",\n"otherData": ')
    json.dump(_other(found, zero), file)
    file.write(',\n"traceEvents": [')
    events = itertools.chain(
        _processes(found, threads),
        _calls(found, slices, threads, zero),
        _arrows(found, slices, threads, zero),
        _counters(slices, zero),
    )
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    for i, event in enumerate(events):
        file.write(",\n" if i else "\n")
        file.write(encode(event))
    file.write("\n]}\n")


def pid(rank: int) -> int:
    """Return a rank's number of process; 0 is the kernel's own to those who read timelines."""
    return rank + 1


def _slices(found: Analysis) -> Iterator[_Slice]:
    for comm in found.comms:
        for rank, event in comm.events():
            shift = found.clocks.shift_ns[rank]
            end = event.finished_ns
            if end is None:  # it is drawn until the file was written
                end = max(found.job.records[rank].clock.monotonic_ns, event.arrived_ns)
            yield _Slice(event.arrived_ns + shift, end + shift, rank, comm, event)


def _threads(slices: list[_Slice]) -> dict[tuple[int, str], list[list[int]]]:
    """Deal the slices of each thread to lanes in which none overlap: lists of their indices."""
    ends: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    lanes: dict[tuple[int, str], list[list[int]]] = defaultdict(list)
    for i, one in enumerate(slices):
        key = one.rank, _thread(one)
        free = ends[key]
        if free and free[0][0] <= one.start_ns:
            _, lane = heapq.heappop(free)
        else:
            lane = len(lanes[key])
            lanes[key].append([])
        lanes[key][lane].append(i)
        heapq.heappush(free, (one.end_ns, lane))
    return lanes


def _thread(one: _Slice) -> str:
    return one.comm.name if one.event.device in ("", "cpu") else "calls of the GPU"


def _other(found: Analysis, zero: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "job": found.job.name,
        "size": found.job.size,
        "missing": found.job.missing,
        "clock": f"CLOCK_MONOTONIC of rank {found.clocks.reference}",
        "clock_error_ns": found.clocks.error_ns,
        "zero_ns": zero,
    }


def _processes(
    found: Analysis, threads: dict[tuple[int, str], list[list[int]]]
) -> Iterator[dict[str, Any]]:
    error = found.clocks.error_ns
    for rank, host in sorted(found.clocks.names.items()):
        of = found.clocks.errors_ns[found.clocks.host[rank]]
        wrong = "not aligned" if of is None else f"at most {duration(of)} wrong"
        yield _named("process_name", rank, 0, name=f"rank {rank} on {host}")
        yield _named("process_labels", rank, 0, labels=f"clock {wrong}")
        yield _named("process_sort_index", rank, 0, sort_index=rank)
    for rank, name, lane, tid in _lanes(threads):
        shown = name if lane == 0 else f"{name} ({lane + 1})"
        yield _named("thread_name", rank, tid, name=shown)
        yield _named("thread_sort_index", rank, tid, sort_index=tid)
    if error is None:
        yield {
            "ph": "i",
            "s": "g",
            "name": "clocks of some hosts are not aligned",
            "cat": "clock",
            "ts": 0,
            "pid": pid(min(found.job.records)),
            "tid": 0,
        }


def _named(what: str, rank: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid(rank), "tid": tid, "args": args}


def _lanes(
    threads: dict[tuple[int, str], list[list[int]]],
) -> Iterator[tuple[int, str, int, int]]:
    """Yield the rank, the name, the lane and the number of each thread."""
    used: dict[int, int] = defaultdict(int)
    for (rank, name), lanes in sorted(threads.items()):
        for lane in range(len(lanes)):
            used[rank] += 1
            yield rank, name, lane, pid(rank) * _THREADS + used[rank]


def _numbers(threads: dict[tuple[int, str], list[list[int]]]) -> dict[int, int]:
    """Return the number of the thread of each slice."""
    return {i: tid for rank, name, lane, tid in _lanes(threads) for i in threads[rank, name][lane]}


def _calls(
    found: Analysis,
    slices: list[_Slice],
    threads: dict[tuple[int, str], list[list[int]]],
    zero: int,
) -> Iterator[dict[str, Any]]:
    numbers = _numbers(threads)
    behind = {
        (late.comm.id, late.seq, late.rank): round(late.behind_ns)
        for one in found.lateness
        for late in one.late
    }
    for i, one in enumerate(slices):
        event = one.event
        args = _args(one)
        if not event.transfer and (one.comm.id, event.seq, one.rank) in behind:
            args["late_by_ns"] = behind[one.comm.id, event.seq, one.rank]
        place = {"pid": pid(one.rank), "tid": numbers[i]}
        yield {
            "ph": "X",
            "name": event.kind,
            "cat": "call" if event.finished_ns is not None else "call,unfinished",
            "ts": (one.start_ns - zero) / 1000,
            "dur": (one.end_ns - one.start_ns) / 1000,
            **place,
            "args": args,
        }
        if event.error:
            yield {
                "ph": "i",
                "s": "t",
                "name": event.error,
                "cat": "error",
                "ts": (one.end_ns - zero) / 1000,
                **place,
                "args": {"seq": event.seq, "call": event.call, "line": event.line or ""},
            }


def _args(one: _Slice) -> dict[str, Any]:
    event, rails = one.event, one.comm.rails[one.rank]
    took = one.end_ns - one.start_ns
    args: dict[str, Any] = {
        "communicator": one.comm.name,
        "seq": event.seq,
        "call": event.call,
        "algorithm": event.algorithm,
        "nbytes": event.nbytes,
        "dtype": event.dtype,
        "op": event.op,
        "device": event.device,
        "waited_ns": event.waited_ns,
        "waits": event.waits,
    }
    if event.line is not None:
        args["line"] = event.line
    if event.peer is not None:
        args["longest_wait_for_rank"] = one.comm.ranks[event.peer]
    if event.finished_ns is None:
        args["unfinished"] = True
    elif event.entered_ns is None:
        args["beginning"] = "not known: it never waited"
    elif took:
        args["GBps"] = round(event.nbytes / took, 4)
    for rail, nbytes in enumerate(event.sent):
        args[f"sent by {_rail(rails, rail)}"] = nbytes
    if event.error:
        args["error"] = event.error
    return args


def _rail(rails: tuple[str, ...], rail: int) -> str:
    return rails[rail] if rail < len(rails) else f"rail {rail}"


def _arrows(
    found: Analysis,
    slices: list[_Slice],
    threads: dict[tuple[int, str], list[list[int]]],
    zero: int,
) -> Iterator[dict[str, Any]]:
    """Yield an arrow from each late arrival to each of those who waited for it.

    Perfetto turns an arrow round that leads to a slice which began earlier, as the call of whoever
    waited did. So it leads to a slice within that call, from the late arrival on.
    """
    late_to = [late for one in found.lateness for late in one.late]
    wanted = {(late.comm.id, late.seq) for late in late_to}
    numbers = _numbers(threads)
    where = {
        (s.comm.id, s.event.seq, s.rank): i
        for i, s in enumerate(slices)
        if not s.event.transfer and (s.comm.id, s.event.seq) in wanted
    }
    ids = itertools.count(1)
    for late in late_to:
        i = where[late.comm.id, late.seq, late.rank]
        at = slices[i].start_ns
        if slices[i].end_ns == at:
            continue  # nothing to begin an arrow in
        for rank, lost in late.lost_ns.items():
            j = where[late.comm.id, late.seq, rank]
            if not lost or not slices[j].start_ns <= at < slices[j].end_ns:
                continue
            ts = {"ts": (at - zero) / 1000}
            arrow: dict[str, Any] = {"name": "late", "cat": "late", "id": next(ids), **ts}
            there = {"pid": pid(rank), "tid": numbers[j]}
            yield {"ph": "s", **arrow, "pid": pid(late.rank), "tid": numbers[i]}
            yield {
                "ph": "X",
                "name": f"after rank {late.rank} came",
                "cat": "late",
                **ts,
                "dur": (slices[j].end_ns - at) / 1000,
                **there,
                "args": {"seq": late.seq, "lost_ns": lost},
            }
            yield {"ph": "f", "bp": "e", **arrow, **there}


def _counters(slices: list[_Slice], zero: int) -> Iterator[dict[str, Any]]:
    """Yield each rank's bandwidth by rail: what calls sent, evenly over the time that they took."""
    changes: dict[tuple[int, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for one in slices:
        took = one.end_ns - one.start_ns
        for number, nbytes in enumerate(one.event.sent):
            if took and nbytes:
                steps = changes[one.rank, _rail(one.comm.rails[one.rank], number)]
                steps[one.start_ns] += nbytes / took
                steps[one.end_ns] -= nbytes / took
    for (rank, rail), steps in sorted(changes.items()):
        now = 0.0
        for at, change in sorted(steps.items()):
            now += change
            yield {
                "ph": "C",
                "name": f"sent by {rail}",
                "pid": pid(rank),
                "tid": 0,
                "ts": (at - zero) / 1000,
                "args": {"GB/s": max(0.0, round(now, 4))},
            }
