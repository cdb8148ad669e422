"""Files that are damaged, wrong or not of one job: a line says what, and what is wanted."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from made_records import COMM, JOB, MS, SECOND, records, save

from pycoll.errors import UsageError
from pycoll.trace.analysis import analyse
from pycoll.trace.clocks import align
from pycoll.trace.job import UnreadableError, gather
from pycoll.trace.reading import read_record

#: What no field may be.
GARBAGE: tuple[Any, ...] = (-(1 << 70), 1 << 70, 1.5, True, {"a": 1}, [None], [-1], float("nan"))


def fields() -> list[tuple[Any, ...]]:
    """Return the ways to all fields that are read."""
    record = records(2, calls=1)[0]
    comm = record["comms"][0]
    ways: list[tuple[Any, ...]] = [(name,) for name in record if name not in ("format", "version")]
    ways += [("clock", name) for name in record["clock"]]
    ways += [("comms", 0, name) for name in comm]
    ways += [("comms", 0, "events", 0, name) for name in comm["events"][0]]
    ways += [("comms", 0, "links", 0, name) for name in comm["links"][0]]
    return [*ways, ("comms", 0), ("comms", 0, "events", 0), ("comms", 0, "links", 0)]


def shown(way: tuple[Any, ...]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in way)
    return text.lstrip(".")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / f"pycoll-record.{JOB}.0.json"


def why(file: Path, text: str | bytes) -> str:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=r"want ") as raised:
        read_record(file)
    said = str(raised.value)
    assert "\n" not in said
    assert len(said) < 400
    return said


@pytest.mark.parametrize("way", fields(), ids=shown)
def test_a_field_that_is_wrong_or_lacking_is_named(file: Path, way: tuple[Any, ...]) -> None:
    good = records(2, calls=1)[0]
    *path, name = way
    for garbage in GARBAGE:
        record = copy.deepcopy(good)
        at: Any = record
        for step in path:
            at = at[step]
        at[name] = garbage
        said = why(file, json.dumps(record))
        # An object with other fields is told by the first that it lacks.
        assert said.startswith(
            (f"{shown(way)} is ", f"{shown(way)} lacks ", f"{shown(way)}[0] is ")
        )
    if isinstance(name, str):
        record = copy.deepcopy(good)
        at = record
        for step in path:
            at = at[step]
        del at[name]
        assert why(file, json.dumps(record)).startswith(
            f"{shown(tuple(path)) or 'the record'} lacks '{name}', want "
        )


def test_what_is_no_file_says_so(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (pipe, tmp_path / "nothing"):
        with pytest.raises(UsageError, match=r"it cannot be read: .*; want a record file"):
            read_record(path)


def test_fields_of_later_versions_are_left_alone(file: Path) -> None:
    record = records(2, calls=1)[0]
    record["more"] = record["comms"][0]["events"][0]["more"] = {"x": 1}
    file.write_text(json.dumps(record))
    assert read_record(file).rank == 0


def test_a_file_that_was_cut_off_says_so(file: Path) -> None:
    text = json.dumps(records(2, calls=1)[0])
    for length in range(1, len(text), 7):
        cut = text[:length]
        if not cut.endswith("}"):
            assert why(file, cut).startswith(f"it ends in the middle, after {length} characters;")
        else:
            assert why(file, cut).startswith("it is no JSON (")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty; want a record file (pycoll-record-1)"),
        (b"\xff\xfe\0", "it is no text; want"),
        ("hello", "it is no JSON (Expecting value: line 1 column 1 (char 0)); want"),
        ("[" * 100_000, "it is no JSON ("),
        ("[]", "it has no 'format'; want"),
        ("{}", "it has no 'format'; want"),
        ('{"format": "pycoll-record-2"}', "format is 'pycoll-record-2', want 'pycoll-record-1'"),
        ('{"format": 1}', "format is 1, want 'pycoll-record-1'"),
    ],
)
def test_what_is_no_record_says_so(file: Path, text: str | bytes, said: str) -> None:
    assert why(file, text).startswith(said)


def comm(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = record["comms"][0]
    return found


WRONG = (
    (lambda r: r.update(rank=2), "rank is 2, want less than size, which is 2"),
    (lambda r: r["clock"].update(offset_ns=None), "clock has some of reference, offset_ns and"),
    (lambda r: r["comms"].append(comm(r)), f"two of comms have the id '{COMM}'; want"),
    (lambda r: comm(r).update(ranks=[0, 0]), "comms[0].ranks is [0, 0], want each once"),
    (lambda r: comm(r).update(ranks=[0, 2]), "comms[0].ranks is [0, 2], want each once, and less"),
    (lambda r: comm(r).update(hosts=[0]), "comms[0].hosts has 1 numbers, want 2 as in ranks"),
    (lambda r: comm(r).update(rank=1), "comms[0].rank is 1, want where 0, the rank of the job"),
    (lambda r: comm(r).update(rank=7), "comms[0].rank is 7, want where 0, the rank of the job"),
    (lambda r: comm(r)["events"].append(comm(r)["events"][0]), "comms[0].events has two calls"),
    (lambda r: comm(r)["events"][0].update(peer=2), "comms[0].events[0].peer is 2, want less"),
    (lambda r: comm(r)["events"][0].update(sent=[1, 1, 1]), "comms[0].events[0].sent has 3"),
    (lambda r: comm(r)["events"][0].update(finished_ns=1), "comms[0].events[0].finished_ns is 1,"),
    (
        lambda r: comm(r)["events"][0].update(finished_ns=None, entered_ns=None),
        "comms[0].events[0] has neither entered_ns nor finished_ns, want",
    ),
    (lambda r: comm(r)["links"][0].update(peer=9), "comms[0].links[0].peer is 9, want less than 2"),
    (lambda r: comm(r)["links"][0].update(rail=2), "comms[0].links[0].rail is 2, want less than 2"),
)


@pytest.mark.parametrize(("break_it", "said"), WRONG, ids=[said for _, said in WRONG])
def test_fields_that_contradict_each_other_are_named(file: Path, break_it: Any, said: str) -> None:
    record = records(2, calls=1)[0]
    break_it(record)
    assert why(file, json.dumps(record)).startswith(said)


def test_a_bad_file_is_left_out_and_the_others_are_read(tmp_path: Path) -> None:
    paths = save(tmp_path, records(8))
    text = paths[5].read_text()
    paths[5].write_text(text[: len(text) // 2])
    job = gather([tmp_path])
    assert [path for path, _ in job.bad] == [paths[5]]
    assert job.missing == [5]
    (finding,) = analyse(job).findings
    assert (finding.kind, finding.ranks) == ("missing", (5,))
    assert f"{paths[5]} could not be read" in finding.text


def test_where_no_file_is_good_each_is_named(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"pycoll-record.{JOB}.{rank}.json").write_text("{")
    with pytest.raises(UnreadableError) as raised:
        gather([tmp_path])
    first, second = str(raised.value).splitlines()
    assert first.startswith(f"{tmp_path}/pycoll-record.{JOB}.0.json: it ends in the middle")
    assert second.startswith(f"{tmp_path}/pycoll-record.{JOB}.1.json: it ends in the middle")


def test_files_of_two_jobs_are_refused(tmp_path: Path) -> None:
    made = records(4)
    made[2]["job"] = "ffff"
    paths = save(tmp_path, made)
    want = f"3 files of job '{JOB}', such as {paths[0]}; 1 file of job 'ffff', such as {paths[2]}"
    with pytest.raises(UnreadableError, match="the files are of 2 jobs") as raised:
        gather([tmp_path])
    assert want in str(raised.value)
    assert str(raised.value).endswith("want those of one")


def test_of_several_files_of_a_rank_the_newest_is_taken(tmp_path: Path) -> None:
    made = records(4)
    paths = save(tmp_path, made)
    old = copy.deepcopy(made[2])
    old["clock"]["unix_ns"] -= SECOND
    old["host"] = "elsewhere"
    (tmp_path / "older.json").write_text(json.dumps(old))
    job = gather([tmp_path / "older.json", tmp_path, paths[1]])  # named twice: read once
    assert job.records[2].path == paths[2]
    assert job.notes == (f"rank 2 has 2 files; the newest is taken, {paths[2]}",)


def test_a_job_that_grew_has_the_largest_size(tmp_path: Path) -> None:
    made = records(4)
    made[0]["size"] = 5
    save(tmp_path, made)
    job = gather([tmp_path])
    assert (job.size, job.missing) == (5, [4])
    assert "sizes of the job are [4, 5]" in job.notes[0]


def test_a_file_that_contradicts_the_others_is_left_out(tmp_path: Path) -> None:
    made = records(4)
    comm(made[3])["hosts"] = [0, 0, 0, 0]
    paths = save(tmp_path, made)
    job = gather([tmp_path])
    assert job.bad == (
        (
            paths[3],
            f"comms[0].hosts is [0, 0, 0, 0], want [0, 1, 2, 3], as other files have {COMM}",
        ),
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing.json", "there is no such file, want record files"),
        (".", "has no record files, want files named"),
        ("x" * 300, "File name too long, want record files"),
    ],
)
def test_a_path_that_leads_to_nothing_is_refused(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gather([tmp_path / name])


def test_clocks_come_together(tmp_path: Path) -> None:
    """The same call, which all ranks left at one moment, ends at one moment again."""
    save(tmp_path, records(8, noise=0, error=1000))
    found = analyse(gather([tmp_path]))
    assert found.clocks.error_ns == 1000
    events = found.comms[0].calls[0]
    ends = [
        (event.finished_ns or 0) + found.clocks.shift_ns[rank] for rank, event in events.items()
    ]
    assert max(ends) - min(ends) <= 5_000 + 2 * 1000


def test_a_host_has_one_clock(tmp_path: Path) -> None:
    made = records(8)
    made[2]["clock"]["error_ns"] = 500  # better than that of rank 3, on the same host
    made[5]["clock"]["offset_ns"] += MS
    save(tmp_path, made)
    clocks = align(gather([tmp_path]))
    assert clocks.shift_ns[2] == clocks.shift_ns[3] == made[2]["clock"]["offset_ns"]
    assert clocks.between_ns(2, 3) == 0
    assert clocks.between_ns(2, 4) == 500 + 20_000
    assert clocks.errors_ns[clocks.host[3]] == 500
    (note,) = clocks.notes
    assert note.startswith("ranks 4 and 5 share the clock of node2, and their offset_ns are 1.0")


def test_one_aligned_rank_is_enough_for_its_host(tmp_path: Path) -> None:
    made = records(8)
    made[6]["clock"].update(reference=None, offset_ns=None, error_ns=None)
    save(tmp_path, made)
    clocks = align(gather([tmp_path]))
    assert clocks.shift_ns[6] == clocks.shift_ns[7] == made[7]["clock"]["offset_ns"]
    assert clocks.error_ns == 20_000


def test_a_host_that_was_not_aligned_lies_by_the_time_of_day(tmp_path: Path) -> None:
    made = records(8)
    for rank in (6, 7):
        made[rank]["clock"].update(reference=None, offset_ns=None, error_ns=None)
    save(tmp_path, made)
    found = analyse(gather([tmp_path]))
    assert found.findings == []
    assert found.clocks.error_ns is None
    assert found.lateness[0].apart == (6, 7)
    assert "the clock of node3 (ranks 6-7) was not aligned" in found.notes[0]
    # The time of day of that host goes 9 ms before that of rank 0's.
    events = found.comms[0].calls[0]
    ends = {r: (event.finished_ns or 0) + found.clocks.shift_ns[r] for r, event in events.items()}
    assert abs(ends[6] - ends[0] - 9 * MS) < MS


def test_ranks_of_one_host_need_no_alignment(tmp_path: Path) -> None:
    made = records(4, hosts=1)
    for record in made:
        record["clock"].update(reference=None, offset_ns=None, error_ns=None)
    save(tmp_path, made)
    clocks = align(gather([tmp_path]))
    assert (clocks.error_ns, clocks.notes) == (0, ())
    assert set(clocks.shift_ns.values()) == {0}
