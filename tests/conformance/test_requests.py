"""A message by RDMA is one work request, and its completion alone says that it is here.

Two ranks live in this process; the stand-in counts what is posted, and keeps what has come from
memory for as long as a device may.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import stand_in
from joined import Opened, complete, rail_all
from stream import Stream, bind

from pycoll.algorithms import get
from pycoll.runtime.native import bindings, codes, verbs

SLOT_BYTES = 16 << 10
SLOTS = 8
HEADER = 64  #: what a message takes behind its bytes, in whole lines
MESSAGES = 3 * SLOTS


def pair(opened: Opened, lengths: list[int], rails: int = 1) -> tuple[Stream, Stream]:
    """Return the two ends of a row of messages."""
    comms = opened(2, slots=SLOTS, slot_bytes=SLOT_BYTES)
    rail_all(comms, rails)
    sender, receiver = (Stream(comm, r, 2, lengths, SLOT_BYTES) for r, comm in enumerate(comms))
    return sender, receiver


def posted(comm: Any) -> tuple[int, int]:
    """Return how many work requests a rank has posted, and how many of them were credit."""
    state = verbs.comm_net_state(comm)
    return state.requests, state.credits


def send_all(sender: Stream, receiver: Stream, messages: int = MESSAGES) -> None:
    """Send messages, each of which is received before the next one is sent."""
    for _ in range(messages):
        sender.whole()
        receiver.whole()
        bindings.comm_handle_events(sender.comm)


@pytest.mark.stand_in
@pytest.mark.parametrize("nbytes", [0, 1, 40, 41, 64, 512, 4096, 5001, SLOT_BYTES - HEADER])
def test_a_message_is_one_work_request(opened: Opened, nbytes: int) -> None:
    sender, receiver = pair(opened, [nbytes])
    before = posted(sender.comm), posted(receiver.comm)
    send_all(sender, receiver)
    after = posted(sender.comm), posted(receiver.comm)
    assert after[0] == (before[0][0] + MESSAGES, before[0][1])
    requests, credits = (now - then for now, then in zip(after[1], before[1], strict=True))
    assert requests == credits  # it has no message to send, and so no other way to say it
    assert credits <= MESSAGES // (SLOTS // 2)


@pytest.mark.stand_in
@pytest.mark.parametrize("nbytes", [SLOT_BYTES - HEADER + 1, SLOT_BYTES])
def test_a_message_that_fills_its_slot_is_two(opened: Opened, nbytes: int) -> None:
    sender, receiver = pair(opened, [nbytes])
    before = posted(sender.comm)
    send_all(sender, receiver)
    assert posted(sender.comm) == (before[0] + 2 * MESSAGES, before[1])


@pytest.mark.stand_in
@pytest.mark.parametrize("nbytes", [8, 64, 4096, SLOT_BYTES - HEADER])
def test_credit_goes_with_messages_where_there_are_any(opened: Opened, nbytes: int) -> None:
    comms = opened(2, slots=SLOTS, slot_bytes=SLOT_BYTES)
    rail_all(comms)
    what = get("recursive_doubling")
    plans = [bind(comm, r, 2, what, nbytes, slot_bytes=SLOT_BYTES) for r, comm in enumerate(comms)]
    arrays = [np.full(nbytes, rank + 1, np.uint8) for rank in range(2)]
    places = [array.ctypes.data for array in arrays]
    before = [posted(comm) for comm in comms]
    for turn in range(5):
        complete(comms, plans, places, places)
        assert all((array == 3 << turn & 0xFF).all() for array in arrays)
    assert [posted(comm) for comm in comms] == [(n + 5, credits) for n, credits in before]


#: Shorter than a packet, in two packets, in many, with and without room behind the message.
LATE_LENGTHS = [48, 4097, 12000, SLOT_BYTES, 41, SLOT_BYTES - HEADER]


@pytest.mark.stand_in(late=2000)
@pytest.mark.parametrize("rails", [1, 2])
def test_what_is_not_in_memory_yet_is_not_read(opened: Opened, rails: int) -> None:
    sender, receiver = pair(opened, LATE_LENGTHS, rails)
    for _ in range(2 * len(LATE_LENGTHS)):
        sent = sender.begin()
        came = receiver.begin()
        while came == codes.AGAIN:
            came = receiver.resume()  # which looks at every byte of what has come
        if sent == codes.AGAIN:
            sender.rest()


@pytest.mark.stand_in
def test_only_what_a_completion_tells_may_be_written_in_any_order(opened: Opened) -> None:
    assert stand_in.network is not None
    pair(opened, [4096])
    assert stand_in.network.objects()["relaxed"] == 2 * len(("slots", "bounce"))
    assert stand_in.network.objects()["mrs"] == 2 * len(("lines", "slots", "shadow", "bounce"))
