"""Paths whose other end is late, or never comes: who is waited for, how long, and what is said.

Two ranks live in this process, with the stand-in's network between them; a rank that a test does
not attend to does nothing, as one that a busy machine does not let run. Rank 0 offers the paths.
"""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import stand_in
from fabric import Fabric as Network
from joined import SECONDS, Opened, attend_until, rail_all, settle
from stream import Stream

from pycoll.runtime.native import bindings, codes

pytestmark = pytest.mark.stand_in

SLOT_BYTES = 4096
#: Longer than a rank that was reached before is missed (PC_RECONNECT_NS of native/verbs/events.c).
LONG = 11.0


@pytest.fixture
def network() -> Network:
    assert stand_in.network is not None
    return stand_in.network


def attend_for(comm: Any, seconds: float) -> None:
    """Let a rank see to its paths for so long, and no other rank."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        bindings.comm_handle_events(comm)
        time.sleep(0.001)


def streams(comms: list[Any]) -> list[Stream]:
    """A call in which rank 0 sends to rank 1."""
    return [Stream(comm, rank, 2, [SLOT_BYTES], SLOT_BYTES) for rank, comm in enumerate(comms)]


def call(comms: list[Any]) -> None:
    """Make that call, to its end."""
    both = streams(comms)
    ended = [stream.begin() for stream in both]
    while any(ended):
        for at, stream in enumerate(both):
            bindings.comm_handle_events(stream.comm)
            if ended[at] == codes.AGAIN:
                ended[at] = stream.resume()


def failure(comms: list[Any], rank: int, attend: list[Any]) -> str:
    """Begin that call on one rank, whose peer must be lost to it; return what it says."""
    comm, stream = comms[rank], streams(comms)[rank]
    (plan,) = stream.plans.values()
    address = stream.memory.ctypes.data
    code = bindings.run(comm, plan, address, address, SECONDS)
    while code == codes.AGAIN:
        for one in attend:
            bindings.comm_handle_events(one)
        code = bindings.resume(comm, 0.01)
    error = codes.comm_error(comm)
    assert (code, error.code, error.peer) == (codes.LOST, codes.LOST, 1 - rank), error.text
    return error.text


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_is_late_for_its_first_path_is_waited_for(opened: Opened, late: int) -> None:
    comms = opened(2, slot_bytes=SLOT_BYTES)
    rail_all(comms, settled=False, patience=SECONDS)
    attend_for(comms[1 - late], LONG)
    states = settle(comms)
    assert [state.failures for state in states] == [0, 0]
    call(comms)


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_stays_away_is_lost_when_patience_ends(opened: Opened, late: int) -> None:
    comms = opened(2, slot_bytes=SLOT_BYTES)
    rail_all(comms, settled=False, patience=0.3)
    text = failure(comms, 1 - late, [comms[1 - late]])
    assert text == f"rank {late} is lost: no connection to it came up within 1 s"


def test_ports_that_come_up_late_are_waited_for(opened: Opened, network: Network) -> None:
    comms = opened(2, slot_bytes=SLOT_BYTES)
    rail_all(comms, settled=False, patience=SECONDS)
    network.down("fake4")
    attend_until(comms, lambda states: states[0].queue_pairs > 0)
    network.up("fake4")
    settle(comms)
    call(comms)


def test_a_rank_that_is_busy_after_a_cut_is_waited_for(opened: Opened, network: Network) -> None:
    """Rank 1 waits for its offer, and rank 0 comes by only after it should have given up."""
    comms = opened(2, slot_bytes=SLOT_BYTES)
    rail_all(comms, settled=True, patience=SECONDS)
    call(comms)
    network.down("fake0")
    attend_until(comms, lambda states: all(state.queue_pairs == 0 for state in states))
    network.up("fake0")
    attend_for(comms[1], LONG)
    states = settle(comms)
    assert [state.revivals for state in states] == [1, 1]
    call(comms)


#: Of a port of the stand-in: RoCE v2 over IPv6, and over IPv4.
IPV6, IPV4 = 1, 3


@pytest.mark.parametrize(
    ("rank", "told"),
    [
        (1, r"fake4, connection 0: {}"),
        (0, r"fake0, connection 0: at the other end, fake4: {}"),
    ],
)
def test_why_no_path_comes_up_is_said_at_both_ends_and_in_full(
    opened: Opened, rank: int, told: str
) -> None:
    comms = opened(2, slot_bytes=SLOT_BYTES)
    rail_all(comms, settled=False, patience=5, gids=(IPV6, IPV4))
    why = (
        "fake4 port 1 speaks RoCE v2 over IPv4, the peer's port RoCE v2 over IPv6: "
        "name ports or GIDs that fit"
    )
    # The peer that gives up first hangs up.
    ends = r"(no connection to it came up within 5 s|it closed its connection)"
    want = rf"rank {1 - rank} is lost: {ends} \({told.format(re.escape(why))}\)"
    assert re.fullmatch(want, failure(comms, rank, comms))


def test_a_reason_is_not_told_back_to_who_gave_it(opened: Opened, network: Network) -> None:
    """Of two ends that fail at once each has its own reason, however often."""
    comms = opened(2, slot_bytes=SLOT_BYTES)
    rail_all(comms, settled=True, patience=SECONDS)
    for _ in range(3):
        network.down("fake0")
        network.down("fake4")
        attend_until(comms, lambda states: all(state.queue_pairs == 0 for state in states))
        network.up("fake0")
        network.up("fake4")
        settle(comms)
    network.down("fake0")
    network.down("fake4")
    text = failure(comms, 0, comms)
    why = "fake0, connection 0: the port is down"
    assert text == f"rank 1 is lost: no connection to it is left ({why})"
