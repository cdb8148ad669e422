"""All collectives on real verbs, and nothing left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rack import Rack
from ranks import Ranks

EVERY = str(Path(__file__).with_name("every.py"))
#: A receiver that was not ready: credit ran past what it had posted.
NOT_READY = "cat /sys/class/infiniband/rxe*/ports/1/hw_counters/*rnr*"


def not_ready(rack: Rack) -> int:
    return sum(map(int, rack.guest.run(["sh", "-c", NOT_READY]).stdout.split()))


@pytest.mark.parametrize(
    ("size", "hosts", "rails", "own"),
    [
        *[(2, 2, 1, 16), (2, 2, 2, 16), (3, 3, 2, 16), (4, 4, 1, 16), (4, 2, 2, 16), (8, 4, 2, 16)],
        # All connections share receives, or all but one of each rail.
        *[(4, 4, 1, 0), (3, 3, 2, 1)],
    ],
)
def test_every_collective(rack: Rack, size: int, hosts: int, rails: int, own: int) -> None:
    before = not_ready(rack)
    # No path may fail, and by default one does that has no answer for two seconds. A guest whose
    # kernel shares two cores with other work may well be as late; this leaves it 15 s.
    settings = {"PYCOLL_TRANSPORT": "verbs", "PYCOLL_VERBS": f"timeout=19,srq={own}"}
    with Ranks(rack, [sys.executable, EVERY], size, hosts=hosts, rails=rails,
               env=settings) as ranks:  # fmt: skip
        said = ranks.finish(280)
    assert [text.splitlines()[-1] for text in said] == [f"done by {rails} rails"] * size
    assert not_ready(rack) == before
    assert rack.nics.objects() == []


def test_memory_that_is_used_again_is_lent_as_it_is_then(rack: Rack) -> None:
    # Not about receivers: Soft-RoCE answers so, too, when it has no room for what is read.
    settings = {"PYCOLL_TRANSPORT": "verbs", "PYCOLL_VERBS": "timeout=19"}
    with Ranks(rack, [sys.executable, EVERY, "lend"], 2, rails=2, env=settings) as ranks:
        ranks.finish(200)
    assert rack.nics.objects() == []
