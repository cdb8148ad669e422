"""Real verbs say what the stand-in for libibverbs says (see tests/fakeverbs)."""

from __future__ import annotations

import os
from pathlib import Path

import fabric
import fakeverbs_library
import pytest
from rack import Rack

pytestmark = pytest.mark.skipif(bool(fakeverbs_library.lack()), reason=fakeverbs_library.lack())

RXE = (Path(fabric.__file__).parent / "rxe.txt").read_text()
SCENARIOS = [line for line in RXE.splitlines() if not line.startswith(" ")]
#: To the port of the second NIC.
COMMANDS = {
    "CUT": "ip link set p1 down",
    "HEAL": "ip link set p1 up",
    "DOWN": "ip link set p1 down",
    "UP": "ip link set p1 up",
}


@pytest.fixture(scope="module")
def driver() -> str:
    """The driver, which finds the guest's own libibverbs: it is linked by name and version."""
    return str(fakeverbs_library.driver())


def test_same_as_the_stand_in(rack: Rack, driver: str) -> None:
    argv = [driver, rack.nics.device(0), rack.nics.device(1), "1", *SCENARIOS]
    # In some 24 ms, the default, a guest may not even answer; this gives it 1.6 s.
    env = os.environ | COMMANDS | {"HASTY": "17"}
    assert rack.guest.run(argv, env=env).stdout == RXE


def test_stream_over_a_network_that_loses(rack: Rack, driver: str) -> None:
    rack.nics.shape(1, loss=0.01)
    argv = [driver, rack.nics.device(0), rack.nics.device(1), "1", "stream"]
    assert rack.guest.run(argv).stdout == "stream\n  receiver: 0 more\n  3000 messages\n"
