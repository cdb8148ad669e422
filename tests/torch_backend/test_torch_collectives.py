"""Every collective of torch.distributed by pycoll: what gloo gives, and what gloo has not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("size", [2, 4])
def test_every_collective_gives_what_gloo_gives(jobs: Any, size: int) -> None:
    jobs.run(size, "collectives.py")


@pytest.mark.parametrize("size", [2, 4])
def test_groups_tags_refusals_futures_and_threads(jobs: Any, size: int, tmp_path: Path) -> None:
    jobs.run(size, "beyond.py", str(tmp_path / "store"))
