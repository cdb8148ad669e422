"""Records of calls that come through torch."""

from __future__ import annotations

from typing import Any


def test_the_line_is_that_of_whoever_called_torch(jobs: Any) -> None:
    jobs.run(2, "recorded.py")
