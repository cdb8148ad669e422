"""Random partitions: the network of a job falls apart, for a while or for good.

partitions.py 50 1    # so many, from this seed on; prints what was seen
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from hosts import Hosts

ROOT = Path(__file__).parents[2]
SECONDS = 90  #: until something hangs
TIMEOUT = 6.0  #: of the job: a host counts as gone after two seconds of silence
SILENCE = 2.0


class Story(NamedTuple):
    """What one seed stands for."""

    hosts: int
    each: int  #: ranks of a host
    away: tuple[int, ...]  #: hosts on the other side
    heals: float | None  #: seconds until the network is whole again; None: never
    killed: int | None  #: rank that is killed as the network falls apart

    @classmethod
    def of(cls, seed: int) -> Story:
        """Return what a seed stands for."""
        draw = random.Random(seed)
        hosts = draw.randint(3, 5)
        away = tuple(sorted(draw.sample(range(hosts), draw.randint(1, hosts - 1))))
        each = draw.choice([1, 1, 2])
        heals = draw.choice([None, None, draw.random() * 1.5 * SILENCE, 2.5 * SILENCE])
        killed = draw.randrange(hosts * each) if draw.random() < 0.3 else None
        return cls(hosts, each, away, heals, killed)

    def goes_on(self) -> list[int]:
        """Return who goes on if nobody is killed, and the network is never whole again."""
        ranks = range(self.hosts * self.each)
        there = [rank for rank in ranks if rank // self.each in self.away]
        here = [rank for rank in ranks if rank not in there]
        return max(here, there, key=lambda side: (len(side), 0 in side))


class Rank:
    """A process that runs shrink_job.py, and what it says."""

    def __init__(self, hosts: Hosts, story: Story, rank: int) -> None:
        environment = os.environ | {
            "PYCOLL_RANK": str(rank),
            "PYCOLL_SIZE": str(story.hosts * story.each),
            "PYCOLL_ADDRESS": f"{hosts.address(0)}:29400",
            "PYCOLL_SECRET": "5eed" * 16,
            "PYCOLL_TIMEOUT": str(TIMEOUT),
            "PYTHONPATH": str(ROOT),
        }
        self.process = hosts.run(
            rank // story.each,
            [sys.executable, str(ROOT / "tests" / "net" / "shrink_job.py")],
            environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.said: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.strip())
            self._lines.put(line.strip())
        self._lines.put("")

    def next(self) -> str:
        """Return the next line that it says."""
        return self._lines.get(timeout=SECONDS)

    def stop(self) -> None:
        """Tell it that the job is over."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write("stop\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        for file in (self.process.stdin, self.process.stdout):
            assert file is not None
            with contextlib.suppress(BrokenPipeError):
                file.close()


def tell(seed: int) -> tuple[Story, Counter[str]]:
    """Run a seed; return it, and what became of its ranks."""
    story = Story.of(seed)
    with Hosts(story.hosts) as hosts:
        ranks = [Rank(hosts, story, rank) for rank in range(story.hosts * story.each)]
        try:
            for rank in ranks:
                assert rank.next() == "ready", rank.said
            time.sleep(0.2)
            hosts.split(story.away)
            if story.killed is not None:
                ranks[story.killed].process.kill()
            if story.heals is not None:
                time.sleep(story.heals)
                hosts.join()
            time.sleep(5 * SILENCE)
            for rank in ranks:
                rank.stop()
            return story, _outcome(seed, story, ranks)
        finally:
            for rank in ranks:
                rank.close()


def _outcome(seed: int, story: Story, ranks: list[Rank]) -> Counter[str]:
    seen: Counter[str] = Counter()
    views = set()
    for number, rank in enumerate(ranks):
        if number == story.killed:
            continue
        what = f"{seed}: {story}: rank {number}"
        word = rank.next()
        kind, _, rest = word.partition(" ")
        assert kind in ("done", "LostError"), f"{what}: {rank.said}"
        if kind == "done":
            views.add(rest)
            assert number in json.loads(rest), f"{what}: {rest}"
        seen[kind] += 1
        assert rank.next() == "left 0", f"{what}: {rank.said}"
        assert rank.process.wait(SECONDS) == 0, what
    assert len(views) <= 1, f"{seed}: {story}: {views}"
    if views:
        (view,) = views
        inside = set(json.loads(view)) - {story.killed}
        assert seen["done"] == len(inside), f"{seed}: {story}: {view}: {seen}"
    if story.killed is None and story.heals is None:
        assert views == {json.dumps(story.goes_on())}, f"{seed}: {story}: {views}"
    return seen


def main(count: int, seed: int) -> None:
    """Run so many seeds."""
    seen: Counter[str] = Counter()
    for number in range(seed, seed + count):
        story, became = tell(number)
        seen["partitions"] += 1
        seen["healed"] += story.heals is not None
        seen["with a kill"] += story.killed is not None
        seen["ranks that went on"] += became["done"]
        seen["ranks that were told to be out"] += became["LostError"]
        seen["nobody went on"] += not became["done"]
        print(number, story, dict(became), flush=True)
    print(json.dumps(seen, indent=1, sort_keys=True))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
