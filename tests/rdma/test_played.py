"""pycoll against a rank that is none: what it says, what it lets be written, whom it believes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from debian import PYVERBS, lack
from rack import Rack
from ranks import ROOT, Ranks

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(bool(lack()), reason=lack())


def run(
    rack: Rack, folder: Path, scene: str, size: int = 2, rails: int = 1, timeout: float = 300
) -> list[str]:
    """Play a scene; return what each rank wrote."""
    # Of the system's packages only this one: its numpy is not this Python's.
    (folder / "pyverbs").symlink_to(PYVERBS)
    env = {
        "PYTHONPATH": f"{ROOT}:{HERE}:{folder}",
        "PYCOLL_ALGORITHM": "recursive_doubling",
        "PYCOLL_TIMEOUT": "60",
        # By default a connection without an answer fails after two seconds, and a busy guest may
        # be as late; this leaves it 15 s.
        "PYCOLL_VERBS": "timeout=19",
    }
    argv = [sys.executable, str(HERE / "played.py"), scene, str(folder)]
    with Ranks(rack, argv, size, hosts=size, rails=rails, env=env) as ranks:
        return ranks.finish(timeout)


@pytest.mark.parametrize("rails", [1, 2])
def test_the_format_of_the_wire(rack: Rack, tmp_path: Path, rails: int) -> None:
    run(rack, tmp_path, "speak", rails=rails)


def test_nothing_else_can_be_written_or_read(rack: Rack, tmp_path: Path) -> None:
    said, tried = run(rack, tmp_path, "protect")
    assert tried.count("refused to let this rank") == 12
    assert "replayed 0" in said  # all that was sent had come before


def test_what_was_lost_with_its_connection_comes_once(rack: Rack, tmp_path: Path) -> None:
    said, _ = run(rack, tmp_path, "replay")
    assert "replayed 1 failures 1" in said


def test_only_what_is_lent_can_be_read(rack: Rack, tmp_path: Path) -> None:
    run(rack, tmp_path, "lend")


def test_another_ranks_key_is_of_no_use(rack: Rack, tmp_path: Path) -> None:
    run(rack, tmp_path, "foreign", size=3)


@pytest.mark.parametrize(
    ("scene", "error"),
    [
        *[
            (scene, r"PeerLostError: .*rank 1 is lost: its greeting is not one")
            for scene in ("greeting", "memory", "gpu_slots")
        ],
        ("babble", r"PeerLostError: .*rank 1 is lost: it sent what is no wireup message"),
        ("credit", r"PeerLostError: .*rank 1 is lost: it gave back more messages than were sent"),
        ("note_outside", r"PeerLostError: .*rank 1 is lost: a header at byte 335\d+ of channel 4"),
        (
            "note_of_another",
            r"PeerLostError: .*rank 1 is lost: message 7 of channel 4 came in line 0",
        ),
        ("loan", r"PeerLostError: .*rank 1 is lost: remote access error"),
    ],
)
def test_a_rank_that_lies_is_found_out(rack: Rack, tmp_path: Path, scene: str, error: str) -> None:
    said = run(rack, tmp_path, scene)[0]
    assert re.match(error, said), said
