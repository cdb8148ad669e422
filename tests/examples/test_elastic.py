"""The elastic example reaches its goal, whichever ranks are killed, and whenever."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import wait_until

ROOT = Path(__file__).parents[2]
SECONDS = 120.0  #: generous: reached only by a hang
SIZE, LEAST = 4, 2


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Training:
    """The example as `pycoll run --elastic` runs it; what it prints is read by a thread."""

    def __init__(self, steps: int) -> None:
        self.lines: list[str] = []
        argv = ["run", "--elastic", f"{LEAST}:{SIZE}", "--max-restarts", "50"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pycoll", *argv, "examples/elastic.py", str(steps)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def end(self) -> int:
        code = self.process.wait(SECONDS)
        self._reader.join()
        return code

    def whole(self, killed: int) -> list[int]:
        """Return the processes of all ranks once so many have been replaced."""
        found: dict[int, int] = {}

        def all_there() -> bool:
            found.clear()
            for line in self.lines:  # the last that each has said counts
                said = re.search(rf"step \d+: rank (\d) of {SIZE}, process (\d+)", line)
                if said:
                    found[int(said[1])] = int(said[2])
            dead = sum("was ended by SIGKILL" in line for line in self.lines)
            there = dead == killed and len({*found.values()}) == SIZE
            return (there and all(map(alive, found.values()))) or self.process.poll() is not None

        wait_until(all_there, SECONDS)
        assert self.process.poll() is None, "\n".join(self.lines)
        return sorted(found.values())

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize("seed", range(3))
def test_ranks_are_killed_at_random(seed: int) -> None:
    drawn = random.Random(seed)
    before = {name for name in os.listdir("/dev/shm") if "pycoll" in name}
    training = Training(600)
    try:
        killed: list[int] = []
        for _ in range(4):
            first, second = drawn.sample(training.whole(len(killed)), 2)
            lines = len(training.lines)
            os.kill(first, signal.SIGKILL)
            killed.append(first)
            if drawn.random() < 0.5:  # and another, amid what the first one's death brings about
                more = lines + drawn.randrange(12)
                wait_until(
                    lambda more=more: (
                        len(training.lines) > more  # type: ignore[misc]
                        or training.process.poll() is not None
                    ),
                    SECONDS,
                )
                os.kill(second, signal.SIGKILL)
                killed.append(second)
        assert training.end() == 0, "\n".join(training.lines)
    finally:
        training.close()
    done = [line for line in training.lines if "done: [1.0, -2.0, 3.0, 0.5]" in line]
    assert len(done) == SIZE, "\n".join(training.lines)
    assert not any(map(alive, killed))
    assert {name for name in os.listdir("/dev/shm") if "pycoll" in name} == before
