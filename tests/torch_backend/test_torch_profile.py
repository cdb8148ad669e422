"""What torch's profiler shows of a process group's calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_the_profiler_shows_calls_with_shapes_and_dtypes(jobs: Any, tmp_path: Path) -> None:
    jobs.run(2, "profiled.py", str(tmp_path / "trace"))


def test_pycolls_own_profilers_see_the_calls_and_leave_no_trace(jobs: Any) -> None:
    jobs.run(2, "told.py")
