"""A rank that is killed amid a training step: every other rank of torch is told which."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

SECONDS = 150


@pytest.mark.parametrize(("how", "size"), [("ddp", 4), ("join", 3), ("wait", 2), ("call", 2)])
def test_a_killed_rank_is_named_by_all_others(
    jobs: Any, how: str, size: int, tmp_path: Path
) -> None:
    ranks = jobs.start(size, "death.py", how, str(tmp_path / "killed"))
    said = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    assert ranks.pop(1).returncode == -signal.SIGKILL
    for rank, text in zip(ranks, said[:1] + said[2:], strict=True):
        assert rank.returncode == 0, text
        assert re.search(r"rank 1 \(process \d+ on .*\) died after \d+ calls", text), text
        # The line is the user's, not one inside of torch.
        assert how == "call" or re.search(r"allreduce\(sum, float32, .* at \S*death.py:\d+", text)


def test_who_waits_for_a_tag_is_told_whose_message_will_not_come(jobs: Any, tmp_path: Path) -> None:
    ranks = jobs.start(3, "death.py", "tag", str(tmp_path / "killed"))
    said = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    for rank in (0, 2):  # to the two of a message the sender is rank 0, who is another to the user
        assert ranks[rank].returncode == 0, said[rank]
        named = (
            r"recv\(rank 1, with a tag\): of the two, the sender being rank 0: "
            r"rank 0 \((?:rank 1 of the job, )?process"
        )
        assert re.search(named, said[rank]), said[rank]


@pytest.mark.parametrize("how", ["new_group", "split_group", "tag"])
def test_a_death_while_a_group_forms_ends_that_and_those_left_form_another(
    jobs: Any, how: str, tmp_path: Path
) -> None:
    ranks = jobs.start(3, "forming.py", how, str(tmp_path))
    said = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    for rank in (0, 1):
        assert ranks[rank].returncode == 0, said[rank]
    assert re.search(r"broke: rank 2 \(process \d+ on .*\) died", said[0]), said[0]


def test_ranks_that_do_not_destroy_the_group_end(jobs: Any, tmp_path: Path) -> None:
    ranks = jobs.start(2, "death.py", "exit", str(tmp_path / "killed"))
    text = ranks[0].communicate(timeout=SECONDS)[0]
    assert ranks[0].returncode == 0, text
    ranks[1].communicate(timeout=SECONDS)
