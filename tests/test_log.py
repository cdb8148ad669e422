"""What is said of decisions, by `logging` and on standard error."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import pycoll
from pycoll.runtime import introduce
from pycoll.verbosity import SUBJECTS, Verbosity

ROOT = Path(__file__).parents[1]
JOB = """
import sys, numpy as np, pycoll
with pycoll.init() as comm:
    for _ in range(2):
        comm.allreduce(np.ones(1000))
print("logging" in sys.modules)
"""


def run(monkeypatch: pytest.MonkeyPatch, level: str) -> tuple[str, str]:
    """Return what a job of one rank prints, and what it says on standard error."""
    monkeypatch.setenv("PYCOLL_LOG", level)
    done = subprocess.run(
        [sys.executable, "-c", JOB], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("level", ["", "warning"])
def test_nothing_is_said_of_what_goes_well(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    assert run(monkeypatch, level)[1] == ""


def test_logging_is_not_loaded_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """To load it takes longer than to load pycoll."""
    assert run(monkeypatch, "")[0] == "False"


def test_a_setting_shows_decisions_with_time_host_and_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = run(monkeypatch, "info")[1].splitlines()
    assert all(re.match(r"[\d-]+ [\d:,]+ \S+:\d+ INFO pycoll\.\w+: ", line) for line in lines)
    said = [line.partition(" INFO pycoll.")[2] for line in lines]
    wanted = [
        "bootstrap: rank 0 of 1, by launcher single",
        "transport: shm: every rank maps the memory of all 1",
        rf"bootstrap: pycoll {pycoll.__version__}, engine by \w+ .+; Python 3\.\S+",
        r"bootstrap: 1 rank on 1 host: \S+ \(0\)",
        r"bootstrap: rank 0: settings .*PYCOLL_LOG=info",
        r"selection: allreduce of 8000 bytes on 1 rank: \w+, .+ predicted",  # of two calls alike
        r"proof: allreduce: one_shot at 1 rank: certificate",
    ]
    for line, pattern in zip(said, wanted, strict=True):
        assert re.fullmatch(pattern, line)


def subjects(lines: list[str]) -> set[tuple[str, str]]:
    """Return the levels and the loggers of what was said."""
    return set(re.findall(r" (\w+) pycoll\.(\w+): ", "\n".join(lines)))


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("group=debug", {("DEBUG", "group")}),
        ("warning,selection=info", {("INFO", "selection")}),
        (
            "info , Group=Debug , bootstrap=warning",
            {("INFO", "transport"), ("INFO", "selection"), ("INFO", "proof"), ("DEBUG", "group")},
        ),
    ],
)
def test_single_loggers_have_levels_of_their_own(
    monkeypatch: pytest.MonkeyPatch, asked: str, wanted: set[tuple[str, str]]
) -> None:
    assert subjects(run(monkeypatch, asked)[1].splitlines()) == wanted


def test_each_process_writes_a_file_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also one that is forked from another that has spoken: `spawn` forks its ranks."""
    code = """
import os, pycoll
def rank():
    with pycoll.init(): return os.getpid()
if __name__ == "__main__":
    pycoll.init().close()
    print(os.getpid(), *pycoll.spawn(rank, 2, start="fork"))
"""
    monkeypatch.setenv("PYCOLL_LOG", f"bootstrap=info:{tmp_path}/%%,%h,%p")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    host = os.uname().nodename
    files = {f"%,{host},{number}" for number in done.stdout.split()}
    assert {path.name for path in tmp_path.iterdir()} == files
    for path in tmp_path.iterdir():
        said = path.read_text()
        assert {f"{host}:{path.name.rpartition(',')[2]}"} == set(re.findall(r" (\S+:\d+) ", said))
        assert said.count("by launcher") == 1


def test_a_file_that_cannot_be_written_ends_no_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, said = run(monkeypatch, f"info:{tmp_path / 'no'}%%/log")
    assert f"PYCOLL_LOG names {tmp_path / 'no'}%/log, which cannot be written: No such" in said
    assert "by launcher single" in said


def test_every_logger_is_one_of_those_that_can_be_asked_for() -> None:
    named = set()
    for path in (ROOT / "pycoll").rglob("*.py"):
        named |= set(re.findall(r"log\.(?:debug|info|warning)\(\s*\"(\w+)\"", path.read_text()))
    assert named == set(SUBJECTS)
    page = (ROOT / "docs" / "logging.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", page, re.M) == list(SUBJECTS.items())


def test_a_verbosity_is_shown_as_it_is_asked_for() -> None:
    for text in ("info", "net=debug", "info,net=debug:/tmp/log.%h.%p", "debug:log,=:x"):
        assert str(Verbosity.parse(text)) == text


@pytest.mark.parametrize(
    ("preset", "asked", "rule"),
    [("ring", None, "ring, as PYCOLL_ALGORITHM says"), (None, "one_shot", "one_shot, asked for")],
)
def test_the_rule_that_selected_an_algorithm(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    preset: str | None,
    asked: str | None,
    rule: str,
) -> None:
    if preset:
        monkeypatch.setenv("PYCOLL_ALGORITHM", preset)
    caplog.set_level(logging.INFO, "pycoll")
    with pycoll.init() as comm:
        comm.allreduce(np.ones(3), algorithm=asked)
    assert f"allreduce of 24 bytes on 1 rank: {rule}" in caplog.messages


def test_without_a_handler_of_the_users_warnings_are_not_shown() -> None:
    code = "import logging; from pycoll import log; log.warning('net', 'a connection failed')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""


def test_a_proof_is_said_where_it_is_made_and_where_it_was_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    @pycoll.algorithm("allreduce")
    def nothing(b: pycoll.ScheduleBuilder) -> None:
        """A rank alone has the sum."""

    monkeypatch.setenv("PYCOLL_CACHE", str(tmp_path))
    caplog.set_level(logging.INFO, "pycoll.proof")
    said = []
    for _ in range(2):
        caplog.clear()
        with pycoll.init() as comm:
            for _ in range(2):
                comm.allreduce(np.ones(3), algorithm=nothing)
        said += caplog.messages
    first, second = said
    assert re.fullmatch(
        r"allreduce: nothing is correct at 1 rank: \d+ instructions, proved in \S+ s, rank by rank",
        first,
    )
    assert second == f"allreduce: nothing at 1 rank: cache in {tmp_path}"


def test_hosts_and_ranks_are_named_in_few_words() -> None:
    def members(*hosts: str) -> SimpleNamespace:
        return SimpleNamespace(members=[SimpleNamespace(host=f"{host}/boot") for host in hosts])

    dealt = members(*["node7", "node8"] * 2, "node8")
    assert introduce._hosts(dealt) == "2 hosts: node7 (0, 2), node8 (1, 3-4)"
    many = introduce._hosts(members(*map(str, range(20))))
    assert many.startswith("20 hosts: 0 (0), 1 (1), ")
    assert many.endswith(" and 12 more")
    assert introduce._runs(range(0, 40, 2)) == "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"


def test_it_is_said_who_is_gone_and_who_forms_a_communicator() -> None:
    def rank() -> list[str]:
        said: list[str] = []
        handler = logging.Handler(logging.INFO)
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("pycoll").addHandler(handler)
        logging.getLogger("pycoll").setLevel("INFO")
        comm = pycoll.init(timeout=60)
        part = comm.split(0)
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(pycoll.PeerLostError):
            part.barrier()
        comm.shrink().close()
        return said

    said, _, _ = pycoll.spawn(rank, 3, timeout=100, check=False)
    assert [line for line in said if "gone" in line] == ["rank 0: rank 1 of the job is gone: died"]
    formed = [re.sub(r"#[0-9a-f]+", "#", line) for line in said if " of the job" in line]
    assert formed[0] == "split 1 #: 3 ranks, 0-2 of the job"
    assert re.fullmatch(r"shrink \d \d #: 2 ranks, 0, 2 of the job", formed[-1])
    assert "2 of 3 ranks go on, without rank 1 (died)" in said
