"""After a death torch's process groups shrink, and go on."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

JOB = Path(__file__).parent / "jobs" / "elastic_gpt.py"
LOSS = re.compile(r"^(?:\[\d\] )?step (\d+): loss ([\d.]+), rank \d of (\d)", re.MULTILINE)
SECONDS = 150
SIZE = 4


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize(
    "how",
    ["killed", "helper", "wrong", "twice", "living", "hung", "subgroup", "adopted", "garbage"],
)
def test_those_who_are_left_go_on(jobs: Any, how: str, victim: int) -> None:
    before = {name for name in os.listdir("/dev/shm") if "pycoll" in name}
    ranks = jobs.start(SIZE, "shrinking.py", how, str(victim))
    said = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    dead = {victim: 0 if how == "living" else -signal.SIGKILL}
    if how == "twice":
        dead[1 if victim == 0 else 0] = -signal.SIGKILL
    for rank, (process, text) in enumerate(zip(ranks, said, strict=True)):
        assert process.returncode == dead.get(rank, 0), f"rank {rank}: {text}"
        assert rank in dead or text.endswith("right\n"), text
    assert {name for name in os.listdir("/dev/shm") if "pycoll" in name} <= before


def losses(text: str, size: int) -> dict[int, str]:
    """Return those of the steps that so many ranks took."""
    return {int(step): loss for step, loss, of in LOSS.findall(text) if int(of) == size}


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_training_goes_on_as_if_begun_with_those_who_are_left(
    jobs: Any, how: str, victim: int, tmp_path: Path
) -> None:
    """The losses are the same to the last bit: the same ranks add in the same order."""
    state = tmp_path / "state"
    ranks = jobs.start(SIZE, "elastic_gpt.py", how, str(victim), str(state), "0")
    said = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    assert ranks[victim].returncode == -signal.SIGKILL, said[victim]
    begun = jobs.run(SIZE - 1, "elastic_gpt.py", how, "-1", str(state))[0]
    for rank in set(range(SIZE)) - {victim}:
        assert ranks[rank].returncode == 0, said[rank]
        assert list(losses(said[rank], SIZE)) == [0, 1, 2]
        assert list(found := losses(said[rank], SIZE - 1)) == [3, 4, 5, 6]
        assert found == losses(begun, SIZE - 1)


def test_a_replacement_comes_into_training(jobs: Any, tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "pycoll", "run", "--elastic", "2:3"]
    said = [
        jobs.command([*launch, str(JOB), "fsdp2", victim, str(tmp_path / "none"), "100"])
        for victim in ("0", "-1")  # and with nobody killed
    ]
    wanted = losses(said[1], 3)
    assert list(wanted) == list(range(7))
    taken = [(int(step), loss) for step, loss, size in LOSS.findall(said[0]) if size == "3"]
    assert sorted(taken) == sorted(3 * [*wanted.items()])
