"""What is said of decisions, by `logging` and on standard error."""

from __future__ import annotations

import logging
import re
import subprocess
import sys

import numpy as np
import pytest

import pycoll

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
    assert said[:2] == [
        "bootstrap: rank 0 of 1, by launcher single",
        "transport: shm: every rank maps the memory of all 1",
    ]
    (chosen,) = said[2:]  # of two calls that are alike
    assert re.fullmatch(r"selection: allreduce of 8000 bytes on 1 rank: \w+, .+ predicted", chosen)


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
    assert caplog.messages[-1] == f"allreduce of 24 bytes on 1 rank: {rule}"


def test_without_a_handler_of_the_users_warnings_are_not_shown() -> None:
    code = "import logging; from pycoll import log; log.warning('net', 'a connection failed')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
