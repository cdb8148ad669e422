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


@pytest.mark.parametrize("size", [2, 3])
def test_a_call_that_is_refused_takes_its_place(jobs: Any, size: int) -> None:
    jobs.run(size, "refused.py")


def test_a_refused_message_with_a_tag_takes_no_other_without_a_word(jobs: Any) -> None:
    jobs.run(3, "refused_tags.py")
