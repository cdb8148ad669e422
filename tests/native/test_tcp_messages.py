"""Messages over a socket: how many system calls one takes, and what its sender may change when."""

from __future__ import annotations

import subprocess
from pathlib import Path

import compiled
import pytest


def run(sanitizer: str, *arguments: str) -> str:
    driver = compiled.driver(Path(__file__).with_name("tcp_messages.c"), sanitizer)
    done = subprocess.run([driver, *arguments], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("nbytes", ["8", "64", "1024", "4095", "4096", "16384", "65536"])
def test_a_message_is_one_system_call_at_each_end(nbytes: str) -> None:
    # Credit travels with the messages the other way, and never by itself.
    assert run("plain", "counts", nbytes) == "200 messages, 200 sends, 200 receives\n"


def test_a_longer_message_is_received_in_two() -> None:
    assert run("plain", "counts", "131072") == "200 messages, 200 sends, 400 receives\n"


@pytest.mark.parametrize("sanitizer", ["plain", "asan"])
def test_what_was_lent_may_change_once_it_is_sent(sanitizer: str) -> None:
    assert run(sanitizer, "lent") == "lent\n"


@pytest.mark.parametrize("sanitizer", ["plain", "asan"])
def test_a_wrong_guess_harms_nothing(sanitizer: str) -> None:
    assert run(sanitizer, "guesses") == "guesses\n"


@pytest.mark.parametrize("sanitizer", ["plain", "asan"])
def test_a_message_comes_where_a_call_expects_it_by_as_many_system_calls(sanitizer: str) -> None:
    assert run(sanitizer, "expected") == "12 receives\n"


@pytest.mark.parametrize("what", ["withdrawn", "unlike", "doubled"])
@pytest.mark.parametrize("sanitizer", ["plain", "asan"])
def test_nothing_else_is_written_where_a_message_is_expected(sanitizer: str, what: str) -> None:
    assert run(sanitizer, what) == f"{what}\n"
