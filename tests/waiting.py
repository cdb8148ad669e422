"""Waiting until something holds, which only a hang keeps from coming."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

SECONDS = 60.0  #: generous: reached only by a hang


def wait_until(true: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Wait until it holds; fail after that time."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def wait_until_stopped(pid: int) -> None:
    """Wait until a process is stopped: a SIGCONT that came first would let it stop for good."""

    def stopped() -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    wait_until(stopped)
