"""Processes that are stopped by SIGSTOP."""

from __future__ import annotations

import time
from pathlib import Path


def until_stopped(pid: int) -> None:
    """Wait until a process is: a SIGCONT that came first would let it stop for good."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)
