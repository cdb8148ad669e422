"""The timeline is of the Trace Event Format, and what Perfetto reads in it are the records."""

from __future__ import annotations

import importlib.util
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trace_processor
from made_records import JOB, MS, SECOND, Planted, records, save
from trace_processor import TraceProcessor

from pycoll.trace.analysis import Analysis, analyse
from pycoll.trace.job import gather
from pycoll.trace.timeline import write

SCHEMA = json.loads(Path(__file__).with_name("trace_event_format.json").read_text())
needs_jsonschema = pytest.mark.skipif(
    importlib.util.find_spec("jsonschema") is None,
    reason="jsonschema is not installed: pip install jsonschema",
)
needs_perfetto = pytest.mark.skipif(bool(trace_processor.lack()), reason=trace_processor.lack())


def mixed() -> list[dict[str, Any]]:
    """Return records with all that a timeline draws: a late rank, errors, a GPU, overlaps."""
    made = records(8, calls=16, planted=Planted(late={3: 5 * MS}))
    for record in made:
        events = record["comms"][0]["events"]
        events[4]["device"] = events[5]["device"] = f"cuda:{record['rank'] % 2}"
        # A call that was begun with async_op, and is under way during the next ones.
        events[8]["finished_ns"] = events[10]["finished_ns"] - 1000
        if record["rank"] != 6:
            events[12]["error"] = "CollectiveTimeout"
    return made


def timeline(tmp_path: Path, made: list[dict[str, Any]], **asked: Any) -> tuple[Analysis, str]:
    save(tmp_path, made)
    found, file = analyse(gather([tmp_path]), **asked), io.StringIO()
    write(found, file)
    return found, file.getvalue()


def of_records(made: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any], int]]:
    """Return the rank, the event and the duration of all calls, from the records themselves."""
    found = []
    for record in made:
        for event in record["comms"][0]["events"]:
            begin, end = event["entered_ns"], event["finished_ns"]
            end = record["clock"]["monotonic_ns"] if end is None else end
            found.append((record["rank"], event, 0 if begin is None else end - begin))
    return found


@needs_jsonschema
@pytest.mark.parametrize("size", [2, 3, 8])
def test_it_is_of_the_trace_event_format(tmp_path: Path, size: int) -> None:
    import jsonschema

    made = records(size, calls=16, planted=Planted(late={0: 5 * MS})) if size < 8 else mixed()
    _, text = timeline(tmp_path, made)
    checker = jsonschema.Draft202012Validator(SCHEMA)
    checker.check_schema(SCHEMA)
    value = json.loads(text)
    assert [error.message for error in checker.iter_errors(value)] == []
    assert {event["ph"] for event in value["traceEvents"]} >= {"X", "s", "f", "C", "M"}


@needs_jsonschema
def test_the_schema_finds_what_is_wrong(tmp_path: Path) -> None:
    import jsonschema

    checker = jsonschema.Draft202012Validator(SCHEMA)
    _, text = timeline(tmp_path, mixed())
    breaks: tuple[tuple[str, dict[str, Any]], ...] = (
        ("X", {"dur": -1}),
        ("X", {"ts": "0"}),
        ("X", {"tid": None}),
        ("X", {"color": "red"}),
        ("i", {"s": "x"}),
        ("s", {"id": None}),
        ("f", {"bp": "x"}),
        ("C", {"args": {"GB/s": "5"}}),
        ("M", {"args": {}}),
        ("M", {"name": "other"}),
    )
    for kind, change in breaks:
        value = json.loads(text)
        event = next(event for event in value["traceEvents"] if event["ph"] == kind)
        event.update(change)
        assert not checker.is_valid(value), (kind, change)


def test_flows_and_clocks_are_in_it(tmp_path: Path) -> None:
    made = mixed()
    found, text = timeline(tmp_path, made)
    value = json.loads(text)
    assert value["otherData"] == {
        "format": "pycoll-trace-1",
        "job": JOB,
        "size": 8,
        "missing": [],
        "clock": "CLOCK_MONOTONIC of rank 0",
        "clock_error_ns": 20_000,
        "zero_ns": value["otherData"]["zero_ns"],
    }
    starts = {
        (event["ts"] * 1000, event["pid"])
        for event in value["traceEvents"]
        if "late_by_ns" in event.get("args", {})
    }
    late = found.lateness[0].late
    assert {one.rank for one in late} == {3}
    assert len(starts) == len(late)
    arrows = [event for event in value["traceEvents"] if event["ph"] in "sf"]
    begins = {event["id"]: event for event in arrows if event["ph"] == "s"}
    ends = {event["id"]: event for event in arrows if event["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert {event["pid"] for event in begins.values()} == {4}
    assert {event["pid"] for event in ends.values()} == {1, 2, 3, 5, 6, 7, 8}
    assert {(event["ts"] * 1000, 4) for event in begins.values()} <= starts
    assert all(begins[i]["ts"] == ends[i]["ts"] for i in begins)


def test_the_first_event_is_at_0_and_nanoseconds_are_decimals(tmp_path: Path) -> None:
    made = mixed()
    found, text = timeline(tmp_path, made)
    value = json.loads(text)
    assert min(event["ts"] for event in value["traceEvents"] if "ts" in event) == 0
    zero = value["otherData"]["zero_ns"]
    shift = found.clocks.shift_ns
    want = {
        (zero + round(event["ts"] * 1000), event["pid"] - 1, round(event["dur"] * 1000))
        for event in value["traceEvents"]
        if event.get("cat", "").startswith("call")
    }
    assert want == {
        (
            shift[rank] + (e["entered_ns"] if e["entered_ns"] is not None else e["finished_ns"]),
            rank,
            d,
        )
        for rank, e, d in of_records(made)
    }


def test_only_what_was_asked_for_is_drawn(tmp_path: Path) -> None:
    _, text = timeline(tmp_path, mixed(), seq=7)
    events = json.loads(text)["traceEvents"]
    slices = [event for event in events if event.get("cat", "").startswith("call")]
    assert len(slices) == 8
    assert {event["args"]["seq"] for event in slices} == {7}


def test_files_without_calls_make_an_empty_timeline(tmp_path: Path) -> None:
    made = records(2, calls=1)
    for record in made:
        record["comms"] = []
    _, text = timeline(tmp_path, made)
    assert {event["ph"] for event in json.loads(text)["traceEvents"]} == {"M"}


SLICES = """
select process.name as process, thread.name as thread, slice.ts, slice.dur, slice.name,
       slice.category, slice.arg_set_id
from slice join thread_track on slice.track_id = thread_track.id
join thread using (utid) join process using (upid)
"""


def arguments(perfetto: TraceProcessor) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for row in perfetto.query("select arg_set_id, key, display_value from args"):
        name = row["key"].removeprefix("args.").removeprefix("debug.")
        found.setdefault(row["arg_set_id"], {})[name] = row["display_value"]
    return found


@needs_perfetto
def test_perfetto_reads_every_call_as_it_was_recorded(tmp_path: Path) -> None:
    made = mixed()
    found, text = timeline(tmp_path, made)
    perfetto = TraceProcessor(text.encode())
    hidden = "select name, value from stats where severity != 'info' and value > 0"
    assert perfetto.query(hidden) == []
    rows = perfetto.query(SLICES)
    of = arguments(perfetto)
    calls = [row for row in rows if row["category"].startswith("call")]
    assert Counter(row["process"] for row in calls) == {
        f"rank {r['rank']} on {r['host']}": len(r["comms"][0]["events"]) for r in made
    }
    # Each slice by its rank and seq: name, duration and arguments are those of the record.
    zero = json.loads(text)["otherData"]["zero_ns"]
    seen = {(row["process"].split()[1], of[row["arg_set_id"]]["seq"]): row for row in calls}
    for rank, event, duration in of_records(made):
        row = seen.pop((str(rank), str(event["seq"])))
        arrived = event["entered_ns"] if event["entered_ns"] is not None else event["finished_ns"]
        assert row["ts"] == arrived + found.clocks.shift_ns[rank] - zero
        assert (row["dur"], row["name"]) == (duration, event["call"])
        args = of[row["arg_set_id"]]
        for name in ("algorithm", "dtype", "op", "device", "nbytes", "waited_ns", "waits", "line"):
            assert args.get(name, "") == str(event[name]), name
        assert args.get("longest_wait_for_rank", "None") == str(event["peer"])
        assert args.get("error", "") == event["error"]
        assert ("unfinished" in args) == (event["finished_ns"] is None)
        rails = [args.get(f"sent by mlx5_{i}:1") for i in range(len(event["sent"]))]
        assert rails == [str(nbytes) for nbytes in event["sent"]]
    assert seen == {}


@needs_perfetto
def test_perfetto_reads_threads_errors_arrows_and_counters(tmp_path: Path) -> None:
    made = mixed()
    found, text = timeline(tmp_path, made)
    perfetto = TraceProcessor(text.encode())
    rows = perfetto.query(SLICES)
    threads = {(row["process"], row["thread"]) for row in rows}
    assert {name for _, name in threads} == {"world", "world (2)", "calls of the GPU"}
    assert len(threads) == 3 * 8
    # The call that overlapped the next ones pushed them into another thread: slices nest.
    inner = perfetto.query("select distinct category from slice where depth > 0")
    assert inner == [{"category": "late"}]
    errors = Counter(row["name"] for row in rows if row["category"] == "error")
    assert errors == {"CollectiveTimeout": 7}
    late = perfetto.query(
        "select out_process.name as frm, count(distinct in_process.name) as others, "
        "count(*) as arrows, min(d.ts - s.ts) as early, max(d.ts - s.ts) as late from flow "
        "join slice s on slice_out = s.id join thread_track ot on s.track_id = ot.id "
        "join thread o on ot.utid = o.utid join process out_process on o.upid = out_process.upid "
        "join slice d on slice_in = d.id join thread_track it on d.track_id = it.id "
        "join thread i on it.utid = i.utid join process in_process on i.upid = in_process.upid "
        "group by frm"
    )
    assert [(row["frm"], row["others"]) for row in late] == [("rank 3 on node1", 7)]
    begun = sum(1 for event in json.loads(text)["traceEvents"] if event["ph"] == "s")
    assert late[0]["arrows"] == begun > 7 * 8
    assert (late[0]["early"], late[0]["late"]) == (0, 0)
    counters = perfetto.query(
        "select name, upid, sum((value) * dur) as sent from (select t.name, t.upid, c.value, "
        "lead(c.ts, 1, c.ts) over (partition by c.track_id order by c.ts) - c.ts as dur "
        "from counter c join process_counter_track t on c.track_id = t.id) group by name, upid"
    )
    assert {row["name"] for row in counters} == {"sent by mlx5_0:1 GB/s", "sent by mlx5_1:1 GB/s"}
    assert len(counters) == 16
    # The area below a counter is what calls sent by that rail.
    sent = sum(sum(event["sent"]) for _, event, took in of_records(made) if took)
    assert sum(row["sent"] for row in counters) == pytest.approx(sent, rel=1e-2)
    labels = perfetto.query("select count(*) as n from process where name like 'rank %'")
    assert labels == [{"n": 8}]
    assert found.clocks.error_ns == 20_000


@needs_perfetto
def test_perfetto_is_told_what_it_cannot_answer(tmp_path: Path) -> None:
    _, text = timeline(tmp_path, records(2, calls=1))
    with pytest.raises(ValueError, match="no such table: calls"):
        TraceProcessor(text.encode()).query("select * from calls")


def test_a_call_that_never_ended_is_drawn_until_the_file_was_written(tmp_path: Path) -> None:
    made = records(2, calls=8, planted=Planted(stopped={1}))
    _, text = timeline(tmp_path, made)
    (open_call,) = [
        event
        for event in json.loads(text)["traceEvents"]
        if event["ph"] == "X" and event["cat"] == "call,unfinished"
    ]
    entered = made[0]["comms"][0]["events"][-1]["entered_ns"]
    assert open_call["dur"] * 1000 == made[0]["clock"]["monotonic_ns"] - entered > 19 * SECOND
    assert open_call["args"]["unfinished"] is True
