"""Random deaths: ranks are killed at any moment, and those who live shrink and go on.

    random_deaths.py 500 7    # until so many have died, from this seed on; prints what was seen

A seed says who dies and when: amid a call, in `shrink`, or in the first calls behind it.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

from fates import Story, live
from test_survivors import apart

import pycoll

SECONDS = 60.0  #: until a wait fails; reached only by a hang


def hosts_of(story: Story) -> str:
    """Return the host of each rank, a letter each."""
    letters = {"shm": "a" * 8, "tcp": "abcdefgh", "mixed": "aabbccdd"}
    return letters[story.transport]


def life(seed: int) -> tuple[list[int], int]:
    """Be one rank; return who is left in the end, and how many times it shrank."""
    story = Story.of(seed)
    apart(hosts_of(story))
    _, members, shrunk = live(pycoll.init(timeout=SECONDS), story)
    return members, shrunk


def tell(seed: int) -> tuple[Story, int]:
    """Run a seed; return it, and how many times its survivors shrank at most."""
    story = Story.of(seed)
    outcomes = pycoll.spawn(life, story.size, seed, timeout=3 * SECONDS, check=False)
    living = [rank for rank in range(story.size) if rank not in story.fates]
    if story.how == "split":
        living.reverse()
    shrinks = 0
    for rank, outcome in enumerate(outcomes):
        if rank in story.fates:
            assert isinstance(outcome, pycoll.PeerLostError), f"{seed}: {rank}: {outcome!r}"
            continue
        assert isinstance(outcome, list | tuple), f"{seed}: {story}: rank {rank}: {outcome!r}"
        assert outcome[0] == living, f"{seed}: {story}: rank {rank} is with {outcome[0]}"
        shrinks = max(shrinks, outcome[1])
    return story, shrinks


def main(deaths: int, seed: int) -> None:
    """Run seeds until so many ranks have died."""
    seen: Counter[str] = Counter()
    shm = set(os.listdir("/dev/shm"))
    while seen["deaths"] < deaths:
        story, shrinks = tell(seed)
        seed += 1
        seen["jobs"] += 1
        seen["deaths"] += len(story.fates)
        seen[f"deaths over {story.transport}"] += len(story.fates)
        seen[f"ranks {story.size}"] += 1
        seen[f"of {story.how}"] += 1
        seen["deaths of rank 0"] += 0 in story.fates
        seen["deaths in shrink"] += sum(fate.when == "shrink" for fate in story.fates.values())
        seen["shrinks"] += shrinks
        if seen["jobs"] % 20 == 0:
            print(dict(seen), flush=True)
    assert set(os.listdir("/dev/shm")) <= shm
    print(json.dumps(seen, indent=1, sort_keys=True))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
