from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pycoll.algorithms import BUILTIN, Algorithm, algorithm, get, hierarchical
from pycoll.errors import ScheduleError
from pycoll.program.lower import Facts, compile_own
from pycoll.program.program import Program
from pycoll.schedule import Level, Placement, ScheduleBuilder, allgather, allreduce, schedule
from pycoll.schedule.trace import forget
from pycoll.verify import Record, by_certificate, certificates, certify, sources
from pycoll.verify.certificates import FILE, Form, certified, digest, entry_of, forms
from pycoll.verify.gate import prove
from pycoll.verify.sources import PACKAGE, files_of, source_digest

STAGED = Form(direct=False, average=False)


def test_the_certificates_in_the_tree_are_of_this_source() -> None:
    table = json.loads(FILE.read_text())
    for a in BUILTIN:
        entry = table[f"{a.collective.name}/{a.name}"]
        assert entry["files"] == list(files_of(a))
        assert entry["digest"] == digest(a, files_of(a)), "the source changed: make certificates"
        for form in forms(a):
            if not form.direct:
                assert all(certified(a, size, 2, form) for size in range(2, 65))


def test_certificates_are_made_for_the_sizes_where_a_form_exists() -> None:
    table = certify.certify(BUILTIN, (1, 3), workers=1)
    assert list(table) == [f"{a.collective.name}/{a.name}" for a in BUILTIN]
    shot = table["allreduce/one_shot"]["forms"]
    assert isinstance(shot, dict)
    assert shot["staged"] == shot["staged average"] == [(1, 3)]
    assert "direct" not in shot or shot["direct"] == [(1, 1)]


def test_sizes_beyond_carry_records(monkeypatch: pytest.MonkeyPatch) -> None:
    some = get("ring"), get("double_binary_tree"), get("bruck")
    table = json.loads(json.dumps(certify.certify(some, (2, 2), workers=1, beyond=(72, 80))))
    monkeypatch.setattr(certificates, "certificates", lambda: table)
    flat, nodes = Placement(), Placement.of(Level("node", tuple(r // 8 for r in range(72))))
    for a in some:
        for average in (False, True):
            record = by_certificate(a, 72, 4, Form(False, average), nodes)
            if average and a.name == "bruck":
                assert record is not None
                assert (record.group, record.digests) == (None, b"")
            assert record is not None
            assert record.verdict.origin == "certificate"
            fresh = prove(a, 72, 4, Form(False, average))
            assert (record.facts, record.group, record.scales) == (
                *(fresh.facts, fresh.group, fresh.scales),
            )
            assert by_certificate(a, 73, 4, Form(False, average), flat) is None
            assert by_certificate(a, 80, 2, Form(False, average), flat) is None


@pytest.mark.parametrize("size", [72, 256, 1024])
def test_ranks_run_what_they_would_lower_themselves(size: int) -> None:
    """Where one lowers for all, what the others make of it is what their own steps lower to."""
    tried = 0
    for a in BUILTIN:
        record = by_certificate(a, size, 4, Form(False, average=False), None)
        if record is None or not record.alike:
            continue

        def own(rank: int, a: Algorithm = a, facts: Facts = record.facts) -> bytes:
            return compile_own(a, size, rank, facts).to_bytes()

        assert record.group is not None
        few = (record.group.step, size // 2 + 1, size - 1)
        for rank in range(size) if size == 72 else few:
            image = record.image(own(record.representative(rank)), rank)
            assert image is not None, (a, rank)
            assert image.to_bytes() == own(rank), (a, rank)
        tried += 1
        forget()
    assert tried > 10


@pytest.mark.parametrize("size", [8, 72])
def test_a_certificate_covers_what_runs_on_several_hosts(size: int) -> None:
    """It names what it covers by the flat placement, and does not ask for another."""
    nodes, tried = Placement.of(Level("node", tuple(r // 4 for r in range(size)))), 0
    for a in BUILTIN:
        record = by_certificate(a, size, 4, Form(False, average=False), nodes)
        if record is None:
            continue

        def own(rank: int, a: Algorithm = a, known: Record = record) -> Program:
            where = known.lowered_for(nodes)
            return compile_own(a, size, rank, known.facts, placement=where)

        for rank in (0, 1, size - 1):
            assert record.admits(own(rank), a.collective, own), (a, rank)
        tried += 1
    assert tried > 10


def test_sizes_with_gaps_are_written_as_intervals() -> None:
    assert certify.spans([2, 3, 4, 8, 16, 17]) == [(2, 4), (8, 8), (16, 17)]


def test_the_command_proves_what_is_not_of_this_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    void, kept = get("ring"), get("ring", "allgather")
    table = {certify.key(a): entry_of(a) for a in (void, kept)}
    table[certify.key(void)] = {**json.loads(json.dumps(entry_of(void))), "digest": "of another"}
    path = tmp_path / "certificates.json"
    monkeypatch.setattr(certify, "FILE", path)
    monkeypatch.setattr(certify, "BUILTIN", (void, kept))
    monkeypatch.setattr(certify, "SIZES", (2, 2))
    monkeypatch.setattr(certify, "BEYOND", ())
    monkeypatch.setattr(certificates, "certificates", lambda: table)

    def written(*arguments: str) -> tuple[dict[str, Any], str]:
        monkeypatch.setattr(sys, "argv", ["certify", "--workers", "1", *arguments])
        certify.main()
        return json.loads(path.read_text()), capsys.readouterr().out

    found, said = written()
    assert list(found) == ["allreduce/ring", "allgather/ring"]
    assert found["allreduce/ring"]["forms"]["staged"] == [[2, 2]]
    assert found["allgather/ring"] == entry_of(kept)
    assert said.startswith("allreduce/ring: ")
    assert "1 proved, 1 kept" in said
    table.update(found)  # so now nothing is left to do
    again, said = written()
    assert (again, "0 proved, 2 kept" in said) == (found, True)
    found, said = written("--all")
    assert found["allgather/ring"]["forms"]["staged"] == [[2, 2]]
    assert "2 proved, 0 kept" in said


@cache
def stamps() -> dict[str, dict[str, Any]]:
    """Return what ties a certificate of each algorithm to the source as it is."""
    of = {certify.key(a): (a, files_of(a)) for a in BUILTIN}
    return {key: {"digest": digest(a, f), "files": list(f)} for key, (a, f) in of.items()}


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the source, which can be edited, and a certificate of it for each algorithm."""
    copy = tmp_path / "pycoll"
    for folder in ("algorithms", "schedule", "passes", "program", "verify"):
        shutil.copytree(
            PACKAGE / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    monkeypatch.setattr(certificates, "certificates", stamps)
    monkeypatch.setattr(sources, "PACKAGE", copy)
    source_digest.cache_clear()
    yield copy
    source_digest.cache_clear()


def void() -> set[str]:
    """Return the files whose algorithms have no certificate of the source as it is now."""
    source_digest.cache_clear()
    found: dict[str, set[bool]] = {}
    for a in BUILTIN:
        found.setdefault(Path(sources.defining(a)).stem, set()).add(entry_of(a) is None)
    assert all(len(answers) == 1 for answers in found.values())  # all of a file alike
    return {name for name, answers in found.items() if answers == {True}}


ALL = {Path(sources.defining(a)).stem for a in BUILTIN}
HIERARCHICAL = {"allreduce", "broadcast", "reduce", "allgather", "reduce_scatter"}


@pytest.mark.parametrize(
    ("edited", "voided"),
    [
        ("algorithms/alltoall.py", {"alltoall"}),
        ("algorithms/allreduce.py", {"allreduce"}),
        ("algorithms/ordered_reduce.py", {"ordered_reduce"}),
        ("algorithms/reduce.py", {"reduce", "allreduce"}),
        ("algorithms/halves.py", {"allgather", "reduce_scatter", "allreduce"}),
        ("algorithms/levels.py", HIERARCHICAL),
        ("algorithms/runs.py", {"ordered_allreduce", "ordered_reduce", "ordered_reduce_scatter"}),
        ("algorithms/decorator.py", ALL),
        ("algorithms/plugins.py", set()),
        ("algorithms/__init__.py", set()),
        ("schedule/builder.py", ALL),
        ("passes/fuse.py", ALL),
        ("program/lower.py", ALL),
        ("verify/symmetry/group.py", ALL),
        ("verify/prove.py", set()),
    ],
)
def test_an_edit_voids_the_certificates_of_what_depends_on_it(
    copied: Path, edited: str, voided: set[str]
) -> None:
    assert void() == set()
    with (copied / edited).open("a") as file:
        file.write("# edited\n")
    assert void() == voided
    (copied / edited).write_bytes((PACKAGE / edited).read_bytes())
    assert void() == set()


def test_a_new_file_of_algorithms_voids_none_and_a_new_one_of_the_pipeline_all(
    copied: Path,
) -> None:
    (copied / "algorithms/one_more.py").write_text("from pycoll.algorithms.tree import rooted\n")
    assert void() == set()
    (copied / "passes/one_more.py").write_text("")
    assert void() == ALL


def test_a_file_that_is_gone_voids_its_importers(copied: Path) -> None:
    (copied / "algorithms/halves.py").unlink()
    assert void() == {"allgather", "reduce_scatter", "allreduce"}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from pycoll.algorithms.halves import spans", {"halves"}),
        ("import pycoll.algorithms.halves as h", {"halves"}),
        ("from pycoll.algorithms import halves", {"halves"}),
        ("from . import halves", {"halves"}),
        ("from .halves import spans", {"halves"}),
        ("def f():\n    from ..algorithms.levels import split", {"levels"}),
        ("from pycoll.schedule import Level", set()),
        ("from pycoll.algorithms_of_others import x", set()),
        ("import math", set()),
    ],
)
def test_imports_are_found_however_they_are_written(
    copied: Path, line: str, found: set[str]
) -> None:
    path = copied / "algorithms/alltoall.py"
    path.write_text(f"{line}\n")
    names = {Path(file).stem for file in files_of(get("pairwise", "alltoall"))}
    assert names == {"alltoall", *found}


@pytest.mark.parametrize(
    "line",
    ["import pycoll", "from pycoll import algorithms", "from pycoll.algorithms import get"],
)
def test_what_imports_the_package_depends_on_all_that_it_imports(copied: Path, line: str) -> None:
    (copied / "algorithms/alltoall.py").write_text(f"{line}\n")
    names = {Path(file).stem for file in files_of(get("pairwise", "alltoall"))}
    assert names >= {"__init__", "plugins", "decorator", *ALL}


def test_what_stands_in_no_file_under_its_name_depends_on_all() -> None:
    made = hierarchical(get("ring"), get("binomial", "reduce"), get("binomial", "broadcast"))
    assert sources.defining(made) == ""
    every = sorted(f"algorithms/{path.name}" for path in (PACKAGE / "algorithms").glob("*.py"))
    assert list(files_of(made)) == every
    assert {sources.defining(a) for a in BUILTIN} <= set(every)


def test_a_certificate_names_the_file_that_defines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an algorithm that moved to another file would keep that of the text it had before."""
    monkeypatch.setattr(certificates, "defining", lambda a: "algorithms/elsewhere.py")
    assert entry_of(get("ring")) is None


def test_without_source_or_file_nothing_is_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "FILE", tmp_path / "none.json")
    certificates.certificates.cache_clear()
    assert certificates.certificates() == {}
    certificates.certificates.cache_clear()
    assert source_digest(("no/such/*.py",)) == ""
    monkeypatch.setattr(certificates, "source_digest", lambda *_: "")
    assert not certified(get("ring"), 4, 2, STAGED)


def test_the_command_line_is_documented() -> None:
    command = [sys.executable, "-m", "pycoll.verify.certify", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "--all" in done.stdout


@algorithm(allreduce)
def needs_nodes(b: ScheduleBuilder) -> None:
    if b.placement.flat:
        raise ScheduleError("there are no nodes")
    get("ring")(b)


@algorithm(allreduce)
def broken(b: ScheduleBuilder) -> None:
    raise ScheduleError("broken everywhere")


@algorithm(allgather)
def gathers(b: ScheduleBuilder) -> None:
    pass


def test_what_refuses_a_flat_placement_has_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(name: str, collective: str) -> Algorithm:
        return {"needs_nodes": needs_nodes, "broken": broken}[name]

    monkeypatch.setattr(certify, "get", chosen)
    assert certify.prove(("allreduce", "needs_nodes", 4, STAGED)) is None
    with pytest.raises(ScheduleError, match="broken everywhere"):
        certify.prove(("allreduce", "broken", 4, STAGED))
    assert not certify.refuses_flat(get("ring"), 4)
    nodes = Placement.of(Level("node", (0, 0, 1, 1)))
    assert schedule(needs_nodes, 4, nodes).nchunks == 4


def test_averages_are_of_collectives_that_fold() -> None:
    assert {form.average for form in forms(get("ring"))} == {False, True}
    assert {form.average for form in forms(gathers)} == {False}
