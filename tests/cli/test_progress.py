"""The line that says what takes long: on a terminal only, and gone when it is done."""

from __future__ import annotations

import io
import re
import sys

import pytest
from waiting import wait_until

from pycoll.cli.progress import status, working


class Terminal(io.StringIO):
    """Standard error as a terminal, which is seen to be written to."""

    def isatty(self) -> bool:
        return True


def until_said(stream: io.StringIO, pattern: str) -> None:
    wait_until(lambda: re.search(pattern, stream.getvalue()) is not None)


def test_a_terminal_is_told_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with working("proving ring at 256 ranks", quiet=0.01):
        until_said(sys.stderr, r"proving ring at 256 ranks: \d+ s so far; Ctrl-C ends it")
    assert sys.stderr.getvalue().endswith("\r\033[K")


def test_the_line_says_at_which_stage_the_work_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with working("proving ring", quiet=0.01) as stage:
        stage("comparing rank 5")
        until_said(sys.stderr, "proving ring: comparing rank 5: ")


def test_what_is_quick_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with working("proving", quiet=3600):
        pass
    assert sys.stderr.getvalue() == ""


def test_a_pipe_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with working("proving", quiet=0.0):
        pass
    assert sys.stderr.getvalue() == ""


def test_a_status_takes_the_place_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    status("repeat 1 of 7")
    status("")
    assert sys.stderr.getvalue() == "\r\033[Krepeat 1 of 7\r\033[K"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    status("repeat 1 of 7")
    assert sys.stderr.getvalue() == ""


def test_an_error_ends_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())

    def prove() -> None:
        with working("proving", quiet=0.01):
            until_said(sys.stderr, "proving")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prove()
    assert sys.stderr.getvalue().endswith("\r\033[K")


@pytest.mark.parametrize(
    "command",
    [
        ("verify", "ring", "--size", "3"),
        ("explain", "allreduce", "--nbytes", "8", "--size", "3"),
    ],
)
def test_the_commands_that_take_long_say_so(cli, command, monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(f"pycoll.cli.{command[0]}.working", lambda what: _note(said, what))
    assert cli(*command).code == 0
    (what,) = said
    assert "3 ranks" in what


def _note(said: list[str], what: str):
    said.append(what)
    return working(what)
