from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pycoll.algorithms import BUILTIN, Algorithm, algorithm, get
from pycoll.errors import ScheduleError
from pycoll.program.lower import Facts, compile_own
from pycoll.program.program import Program
from pycoll.schedule import Level, Placement, ScheduleBuilder, allgather, allreduce, schedule
from pycoll.schedule.trace import forget
from pycoll.verify import Record, by_certificate, certificates, certify
from pycoll.verify.certificates import FILE, Form, certified, digest, forms, source_digest
from pycoll.verify.gate import prove

STAGED = Form(direct=False, average=False)


def test_the_certificates_in_the_tree_are_of_this_source() -> None:
    table = json.loads(FILE.read_text())
    for a in BUILTIN:
        entry = table[f"{a.collective.name}/{a.name}"]
        assert entry["digest"] == digest(a), "the pipeline changed: make certificates"
        for form in forms(a):
            if not form.direct:
                assert all(certified(a, size, 2, form) for size in range(2, 65))


def test_certificates_are_made_for_the_sizes_where_a_form_exists() -> None:
    table = certify.certify((1, 3), workers=1)
    assert list(table) == [f"{a.collective.name}/{a.name}" for a in BUILTIN]
    shot = table["allreduce/one_shot"]["forms"]
    assert isinstance(shot, dict)
    assert shot["staged"] == shot["staged average"] == [(1, 3)]
    assert "direct" not in shot or shot["direct"] == [(1, 1)]


def test_sizes_beyond_carry_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certify, "BUILTIN", (get("ring"), get("double_binary_tree"), get("bruck")))
    table = certify.certify((2, 2), workers=1, beyond=(72, 80))
    monkeypatch.setattr(certificates, "certificates", lambda: table)
    flat, nodes = Placement(), Placement.of(Level("node", tuple(r // 8 for r in range(72))))
    for a in (get("ring"), get("double_binary_tree"), get("bruck")):
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


def test_the_command_writes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(certify, "FILE", tmp_path / "certificates.json")
    monkeypatch.setattr(certify, "SIZES", (2, 2))
    monkeypatch.setattr(certify, "BEYOND", ())
    monkeypatch.setattr(sys, "argv", ["certify", "--workers", "1"])
    certify.main()
    table = json.loads((tmp_path / "certificates.json").read_text())
    assert table["allreduce/ring"]["forms"]["staged"] == [[2, 2]]
    assert "allreduce/ring: " in capsys.readouterr().out


def test_without_source_or_file_nothing_is_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "FILE", tmp_path / "none.json")
    certificates.certificates.cache_clear()
    assert certificates.certificates() == {}
    certificates.certificates.cache_clear()
    assert source_digest(("no/such/*.py",)) == ""
    monkeypatch.setattr(certificates, "source_digest", lambda: "")
    assert not certified(get("ring"), 4, 2, STAGED)


def test_the_command_line_is_documented() -> None:
    command = [sys.executable, "-m", "pycoll.verify.certify", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "prove every built-in" in done.stdout


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
