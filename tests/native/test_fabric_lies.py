"""A peer over libfabric that lies, or breaks off: fabric_lies.c, under AddressSanitizer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import compiled
import fakefabric
import pytest

pytestmark = pytest.mark.skipif(bool(fakefabric.lack()), reason=fakefabric.lack() or "-")

#: What rank 0 says of each. "none": the write named nobody who may write, and was dropped.
LIES = {
    **dict.fromkeys(
        (
            f"{kind} of {whom}"
            for kind in ("written", "joined")
            for whom in (
                *("no rank", "rank 0", "a rank not met", "no line"),
                "a rank without regions",
            )
        ),
        "none",
    ),
    "joined without header": "a frame of rank 1 begins with 0, kind 0; want 0x31464350, kind 1",
    "joined of other magic": "a frame of rank 1 begins with 0x31464351, kind 1; want 0x31464350",
    "joined credit": "rank 1 has written message 0 of channel 0, and tells of line 31 of channel",
    "joined of another line": "rank 1 has written message 2 of channel 0, and tells of line 0 of",
    "joined of another channel": "rank 1 has written message 1 of channel 1, and tells of line 0",
    "joined of no channel": "a frame of rank 1 is for channel 6 of 6",
    "joined that came": "a frame of rank 1 holds message 1 of channel 0; 1 have been consumed",
    "joined too long": "a frame of rank 1 holds 65537 bytes, which do not fit where they belong",
    "joined too much credit": "a frame of rank 1 gives back 1 messages; 0 have been sent",
    "joined too many arrived": "a packet of rank 1 says that 1000 packets arrived; 0 were sent",
    "joined amid packets": "rank 1 has written message 1 of channel 0, of which a part had come",
    "joined after bytes": "rank 1 has written message 1 of channel 0, of which a part had come",
    "joined beyond the window": (
        "rank 1 has written a message after 2 packets that it was told nothing about"
    ),
    "joined to no place": (
        "rank 1 has written a message of channel 0 with its header, which has no place here"
    ),
    "packets beyond the window": "a packet of rank 1 comes after 2 that it was told nothing about",
    "bytes twice": "rank 1 has written a message of channel 0 twice",
    "header twice": "a packet of rank 1 says that message 1 of channel 0 is written, which cannot",
    "header of one packet": "a packet of rank 1 says that message 1 of channel 0 is written, which",
    "joins without slots": "rank 1 is lost: its greeting is not one",
    "joins twice": "rank 1 is lost: its greeting is not one",
}

#: When rank 0, which reads from a peer, hears that the peer has broken off, and what it says then.
NEWS = {
    "offer before greeting": "none",
    "news before": "none",
    "news amid": "none",
    "news unread": "none",
    "news after failure": "none",
    "news when due": "none",
    "failure after news": "none",
    "news after end": "none",
    "news after release": "none",
    "no news": "rank 1 is lost: read: Input/output error (provider efa)",
    "news of a peer that takes nothing": "rank 1 is lost: send: Connection refused (provider efa",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fakefabric.build(tmp_path_factory.mktemp("fakefabric"))


def said(library: Path, what: str) -> str:
    """Return what rank 0 says in the end."""
    binary = compiled.driver(Path(__file__).parent / "fabric_lies.c", "asan")
    env = {**os.environ, "LD_LIBRARY_PATH": str(library)}
    done = subprocess.run([binary, what], capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_dropped_or_its_teller_is_blamed(library: Path, lie: str) -> None:
    assert said(library, lie).startswith(LIES[lie])


@pytest.mark.parametrize("when", NEWS)
def test_a_peer_that_has_only_broken_off_is_not_lost(library: Path, when: str) -> None:
    assert said(library, when).startswith(NEWS[when])


def test_nothing_goes_to_a_peer_that_is_about_to_close(library: Path) -> None:
    assert said(library, "stop") == "none\n"
