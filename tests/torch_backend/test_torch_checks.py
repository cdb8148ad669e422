"""Checks for silent corruption of a process group's calls."""

from __future__ import annotations

from typing import Any


def test_calls_that_wait_are_checked(jobs: Any) -> None:
    jobs.run(2, "checked.py", PYCOLL_CHECK="1")
