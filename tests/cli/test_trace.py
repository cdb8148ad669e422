"""``pycoll trace``: what it prints, writes and returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_records import COMM, JOB, MS, Planted, records, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path, records(8, calls=16, planted=Planted(late={3: 5 * MS})))
    return tmp_path


def test_the_report_says_who_was_late_and_what_it_cost(cli: Any, folder: Path) -> None:
    done = cli("trace", str(folder))
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == (
        f"job {JOB}: every rank of 8, on 4 hosts: "
        "node0 (0-1), node1 (2-3), node2 (4-5), node3 (6-7)"
    )
    assert lines[1] == "communicator world: 8 ranks (0-7); 17 calls, 0 to 16"
    assert "error of a host's at most 20.0 us, none within a host" in lines[2]
    (late,) = [line for line in lines if line.startswith("late: ")]
    assert late.startswith("late: rank 3 was late to 16 of 17 calls of world: slower to come th")
    assert "    the others lost 5" in done.out
    for title in (
        "arrivals at calls",
        "waits: ",
        "links between hosts: ",
        "  call       algorithm",
    ):
        assert sum(line.startswith(title) for line in lines) == 1


def test_where_nothing_is_wrong_it_says_so(cli: Any, tmp_path: Path) -> None:
    save(tmp_path, records(8))
    done = cli("trace", *sorted(map(str, tmp_path.glob("*"))))
    assert done.code == 0
    assert "\nnothing stands out: nobody was late, no link is slow, ranks agree\n" in done.out


def test_json_has_all_of_it(cli: Any, folder: Path) -> None:
    done = cli("trace", str(folder), "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert list(found) == [
        *("format", "job", "size", "files", "bad_files", "missing", "notes", "clock_error_ns"),
        *("findings", "communicators", "lateness", "links", "waits", "kinds", "call"),
    ]
    assert found["format"] == "pycoll-trace-1"
    assert [file["rank"] for file in found["files"]] == list(range(8))
    assert [(f["kind"], f["ranks"]) for f in found["findings"]] == [("late", [3])]
    (late,) = found["lateness"]
    assert {row["rank"]: row["late"] > 0 for row in late["ranks"]} == {r: r == 3 for r in range(8)}
    assert {one["rank"] for one in late["late"]} == {3}
    assert len(found["links"]) == 8 * 6 * 2
    assert found["communicators"] == [
        {"id": COMM, "name": "world", "ranks": list(range(8)), "calls": 17}
    ]


def test_one_call_is_shown_rank_by_rank(cli: Any, folder: Path) -> None:
    done = cli("trace", str(folder), "--call", "5")
    assert done.code == 0
    head = next(i for i, row in enumerate(done.out.splitlines()) if row.startswith("  rank  call"))
    rows = done.out.splitlines()[head + 1 : head + 9]
    assert [row.split()[0] for row in rows] == [str(rank) for rank in range(8)]
    assert all(" broadcast binomial_tree " in row for row in rows)
    assert "late: rank 3 was late to 1 of 17 calls of world" in done.out
    found = json.loads(cli("trace", str(folder), "--call", "5", "--json").out)
    rows = found["call"]
    assert [row["rank"] for row in rows] == list(range(8))
    assert {row["seq"] for row in rows} == {5}
    assert max(rows, key=lambda row: row["arrived_after_ns"])["rank"] == 3


def test_a_call_of_which_some_ranks_know_nothing(cli: Any, tmp_path: Path) -> None:
    save(tmp_path, records(3, planted=Planted(stopped={1})))
    done = cli("trace", str(tmp_path), "--call", "32")
    assert "\n  1     no such call\n" in done.out
    assert " not finished " in done.out


def test_one_communicator_by_name_or_id(cli: Any, folder: Path) -> None:
    for name in ("world", COMM):
        assert cli("trace", str(folder), "--comm", name).code == 0
    done = cli("trace", str(folder), "--comm", "other")
    assert (done.code, done.err) == (2, "pycoll trace: --comm is 'other', want one of world\n")


def test_the_timeline_is_written(cli: Any, folder: Path) -> None:
    path = folder / "timeline.json"
    done = cli("trace", str(folder), "-o", str(path))
    assert done.code == 0
    assert len(json.loads(path.read_text())["traceEvents"]) > 8 * 16
    # It lies beside the records, and is none.
    assert cli("trace", str(folder)).out == done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--call", "99"], "--call is 99, want 0 to 16"),
        (["--call", "-1"], "argument --call: '-1', want an integer of at least 0"),
        (["--call", "x"], "argument --call: 'x', want an integer of at least 0"),
        (
            ["-o", "/nowhere/at/all.json"],
            "-o /nowhere/at/all.json: No such file or directory; want",
        ),
    ],
)
def test_bad_arguments(cli: Any, folder: Path, arguments: list[str], said: str) -> None:
    done = cli("trace", str(folder), *arguments)
    assert done.code == 2
    assert done.err.startswith(f"pycoll trace: {said}")
    assert done.out == ""


def test_a_path_that_leads_nowhere(cli: Any, tmp_path: Path) -> None:
    done = cli("trace", str(tmp_path / "no.json"))
    assert (done.code, done.out) == (2, "")
    assert "no.json: there is no such file, want record files or their folder" in done.err


def test_a_bad_file_is_a_line_and_the_exit_code_and_the_rest_is_reported(
    cli: Any, folder: Path
) -> None:
    bad = folder / f"pycoll-record.{JOB}.6.json"
    bad.write_text(bad.read_text()[:1000])
    done = cli("trace", str(folder))
    assert done.code == 1
    assert done.err == (
        f"pycoll trace: {bad}: it ends in the middle, after 1000 characters; want the whole file\n"
    )
    assert "\nlate: rank 3 " in done.out
    assert "\nmissing: there is no file of rank 6: what it did is not known; " in done.out


def test_files_of_two_jobs_are_an_error(cli: Any, folder: Path) -> None:
    made = records(8)
    made[5]["job"] = "ffff"
    save(folder, made)
    done = cli("trace", str(folder))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("pycoll trace: the files are of 2 jobs (8 files of job ")
    assert done.err.endswith("want those of one\n")


def test_sixty_four_ranks_with_all_calls_that_are_kept(cli: Any, tmp_path: Path) -> None:
    save(tmp_path, records(64, calls=1023, planted=Planted(late={17: 5 * MS})))
    done = cli("trace", str(tmp_path), "--json")
    found = json.loads(done.out)
    assert [(f["kind"], f["ranks"]) for f in found["findings"]] == [("late", [17])]
    assert found["findings"][0]["late"] >= 1023
