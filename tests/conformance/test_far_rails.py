"""Rails that are far from the data: they carry parts of long messages, and all when no other is up.

Two ranks live in this process, each with one rail near its data and one far from it; of equal
speed, and in either order, so that nothing else tells them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import stand_in
from fabric import Fabric as Network
from joined import Opened, attend_until, rail_all, settle
from stream import Stream

from pycoll.runtime.native import bindings, codes, verbs

pytestmark = pytest.mark.stand_in

STRIPED = 64 << 10  #: from so many bytes on a message is cut over all rails
SLOT_BYTES = 2 * STRIPED
SHORT = (0, 1, 40, 41, 4096, STRIPED - 1)


@pytest.fixture
def network() -> Network:
    assert stand_in.network is not None
    return stand_in.network


def call(comms: list[Any], lengths: Sequence[int]) -> None:
    """Send messages of these lengths, one after the other, and look at every byte."""
    ends = [Stream(comm, rank, 2, lengths, SLOT_BYTES) for rank, comm in enumerate(comms)]
    for _ in lengths:
        ended = [end.begin() for end in ends]
        while any(ended):
            for at, end in enumerate(ends):
                bindings.comm_handle_events(end.comm)  # also for the one that has finished
                if ended[at] == codes.AGAIN:
                    ended[at] = end.resume()


def at_rest(network: Network, comms: list[Any]) -> list[verbs.NetState]:
    """Wait until all that was posted, credit too, has ended."""
    return attend_until(comms, lambda _: network.objects()["wrs"] == 0)


def packets(network: Network, rail: int) -> tuple[int, ...]:
    """How many packets each rank has sent by a rail."""
    return tuple(network.counts(f"fake{4 * rank + rail}")["tx_packets"] for rank in (0, 1))


@pytest.mark.parametrize("far", [0, 1])
def test_a_far_rail_carries_parts_of_long_messages_alone(
    opened: Opened, network: Network, far: int
) -> None:
    near = 1 - far
    comms = opened(2, slots=4, slot_bytes=SLOT_BYTES)
    rail_all(comms, rails=2, far=[rail == far for rail in range(2)])
    at_rest(network, comms)
    probes = packets(network, far)
    call(comms, SHORT * 20)  # so many that credit is due
    states = at_rest(network, comms)
    assert packets(network, far) == probes
    assert states[0].bytes[near] == 20 * sum(SHORT)

    call(comms, (STRIPED, SLOT_BYTES))
    states = at_rest(network, comms)
    assert states[0].bytes[far] == states[0].bytes[near] - 20 * sum(SHORT) == (STRIPED * 3) / 2


@pytest.mark.parametrize("far", [0, 1])
def test_a_far_rail_carries_all_while_no_other_is_up(
    opened: Opened, network: Network, far: int
) -> None:
    near = 1 - far
    comms = opened(2, slots=4, slot_bytes=SLOT_BYTES)
    rail_all(comms, rails=2, far=[rail == far for rail in range(2)])
    network.down(f"fake{near}")
    attend_until(comms, lambda states: all(state.live == 1 for state in states))
    call(comms, (*SHORT, SLOT_BYTES))
    states = at_rest(network, comms)
    assert states[0].bytes[far] == sum(SHORT) + SLOT_BYTES
    assert states[0].bytes[near] == 0

    network.up(f"fake{near}")
    settle(comms)
    at_rest(network, comms)
    before = packets(network, far)
    call(comms, SHORT)
    states = at_rest(network, comms)
    assert packets(network, far) == before
    assert states[0].bytes[near] == sum(SHORT)


def test_where_all_rails_are_far_none_is(opened: Opened, network: Network) -> None:
    comms = opened(2, slots=4, slot_bytes=SLOT_BYTES)
    rail_all(comms, rails=2, far=(True, True))
    call(comms, SHORT)
    states = at_rest(network, comms)
    assert sum(states[0].bytes) == sum(SHORT)
