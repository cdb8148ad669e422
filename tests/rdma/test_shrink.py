"""Ranks that reach each other by real verbs die at any moment; those who live shrink and go on.

Of those who died nothing is left: no queue pair, no region, no shared memory. How long it takes
from the last death to the first right sum of all who live is printed: in a guest it says little.
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import signal
import sys
from pathlib import Path

import pytest
from fates import CALLS, Fate, Story
from rack import Rack
from ranks import Ranks

SURVIVOR = str(Path(__file__).with_name("survivor.py"))
JOIN_PORT = 29401
#: No path may fail but for a death: see test_verbs.py.
SETTINGS = {"PYCOLL_TRANSPORT": "verbs", "PYCOLL_VERBS": "timeout=19", "PYCOLL_TIMEOUT": "60"}


def drawn(seed: int) -> tuple[Story, int, bool]:
    """Return what a seed stands for: a story, over how many hosts, and whether they boot apart."""
    draw = random.Random(seed)
    size = draw.randint(3, 5)
    victims = draw.sample(range(size), draw.randint(1, min(3, size - 1)))
    together, call = draw.random() < 0.5, draw.randrange(CALLS)
    fates = {}
    for victim in victims:
        when = "call" if victim == victims[0] else draw.choice(["call", "shrink", "behind"])
        nth = call if together else draw.randrange(CALLS)
        fates[victim] = Fate(when, nth, draw.random() ** 3 * 0.3)
    how = draw.choice(["init", "dup", "split"])
    story = Story(size, "verbs", how, draw.choice([1, 1000, 300_000]), fates)
    return story, draw.choice([2, 2, min(size, 4)]), draw.random() < 0.5


def shared(rack: Rack) -> set[str]:
    return set(rack.guest.run(["ls", "-A", "/dev/shm"]).stdout.split())


def run(rack: Rack, story: Story, hosts: int = 2, apart: bool = False, newcomers: int = 0) -> None:
    """Live a story, and look at what came of it."""
    before = shared(rack)
    argv = [sys.executable, SURVIVOR, json.dumps(story), *["grow"] * bool(newcomers)]
    addresses = ",".join(f"{rack.address(host)}:{JOIN_PORT}" for host in range(hosts))
    env = {
        **SETTINGS,
        "PYCOLL_JOIN_ADDRESS": addresses,
        "PYCOLL_SECRET": secrets.token_hex(16),
    }
    with contextlib.ExitStack() as stack:
        ranks = stack.enter_context(
            Ranks(rack, argv, story.size, hosts=hosts, env=env, apart=apart)
        )
        if newcomers:
            join = [sys.executable, SURVIVOR, "join"]
            came = stack.enter_context(
                Ranks(rack, join, newcomers, hosts=newcomers, env=env, apart=apart)
            )
            came.finish()
        statuses = ranks.wait()
    want = [-signal.SIGKILL if rank in story.fates else 0 for rank in range(story.size)]
    assert statuses == want, ranks.describe()
    said = [rank.stdout.splitlines() for rank in ranks]
    living = [rank for rank in range(story.size) if rank not in story.fates]
    order = living[::-1] if story.how == "split" else living
    for rank in living:
        members, shrunk = json.loads(said[rank][-1])
        assert members == order
        assert shrunk > 0
    died = max(float(said[rank][-1].split()[-1]) for rank in story.fates)
    went_on = max(float(said[rank][-2].split()[-1]) for rank in living)
    print(f"{hosts} hosts, {story}: {went_on - died:.2f} s")
    assert rack.nics.objects() == []
    assert shared(rack) == before


#: How many ranks, elements, and who dies when.
CASES = {
    "rank 0": (3, 300_000, {0: Fate("call", 3, 0.01)}),
    "the last": (4, 1000, {3: Fate("call", 5, 0.0)}),
    "two at once": (5, 300_000, {0: Fate("call", 4, 0.0), 3: Fate("call", 4, 0.0)}),
    "a whole host": (4, 300_000, {2: Fate("call", 2, 0.0), 3: Fate("call", 2, 0.01)}),
    "one amid shrink": (4, 300_000, {3: Fate("call", 2, 0.0), 1: Fate("shrink", 0, 0.02)}),
    "rank 0 amid shrink": (5, 1000, {2: Fate("call", 2, 0.0), 0: Fate("shrink", 0, 0.05)}),
    "all but one": (3, 1000, {0: Fate("call", 2, 0.0), 1: Fate("behind", 2, 0.01)}),
}


@pytest.mark.parametrize("case", CASES)
def test_whoever_dies_the_others_go_on(rack: Rack, case: str) -> None:
    size, elements, fates = CASES[case]
    run(rack, Story(size, "verbs", "init", elements, fates))


@pytest.mark.parametrize("seed", range(6))
def test_random_deaths(rack: Rack, seed: int) -> None:
    story, hosts, apart = drawn(seed)
    run(rack, story, hosts, apart)


def test_a_newcomer_takes_the_place_of_the_dead(rack: Rack) -> None:
    story = Story(3, "verbs", "init", 1000, {0: Fate("call", 2, 0.0)})
    run(rack, story, newcomers=1)


@pytest.mark.parametrize("away", [0, 2])
def test_of_a_host_that_is_cut_off_the_others_go_on(rack: Rack, away: int) -> None:
    """Those who are more do; who is alone is told."""
    env = {**SETTINGS, "PYCOLL_TIMEOUT": "12"}
    with Ranks(rack, [sys.executable, SURVIVOR, "cut"], 3, hosts=3, env=env) as ranks:
        for rank in ranks:
            rank.until("runs")
        rack.cut(away)
        rack.nics.cut(away)
        said = [text.splitlines()[-1] for text in ranks.finish()]
    assert said.pop(away).startswith(f"LostError: shrink: rank {away} is out: ")
    assert said == ["goes on as 0 of 2", "goes on as 1 of 2"]
    assert rack.nics.objects() == []


@pytest.mark.parametrize("away", [0, 2])
def test_of_a_rank_whose_rdma_port_alone_is_down_the_others_go_on(rack: Rack, away: int) -> None:
    """It lives, and reaches all by TCP, but the settings ask for RDMA."""
    # To give up a peer takes up to 5 s, until a send that is never acknowledged is taken for lost,
    # and 10 to 20 s in which no connection comes up: less than a call may take.
    env = {**SETTINGS, "PYCOLL_VERBS": "timeout=14"}
    with Ranks(rack, [sys.executable, SURVIVOR, "cut"], 3, hosts=3, env=env) as ranks:
        for rank in ranks:
            rank.until("runs")
        rack.nics.cut(away)
        said = [text.splitlines()[-1] for text in ranks.finish()]
    out = said.pop(away)
    assert out.startswith(f"UnavailableError: rank {away} (process "), out
    assert f"{rack.nics.device(away)}:1 is down: plug in its cable" in out, out
    assert said == ["goes on as 0 of 2", "goes on as 1 of 2"]
    assert rack.nics.objects() == []
