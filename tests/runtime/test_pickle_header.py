from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.errors import MismatchError, TransportError
from pycoll.runtime.pickle_header import EVERYONE, FAILED, HEADER_BYTES, PickleHeaders

SECRET = b"s" * 32
WHAT = "broadcast_object(root 0)"
FORGED = r"^broadcast_object\(root 0\): what came for rank 0's pickle header is not that"

pickles = st.none() | st.binary(max_size=200)


def pair(secret: bytes = SECRET, leave: bool = True) -> tuple[PickleHeaders, PickleHeaders]:
    """Return those of rank 0 and of rank 1."""
    return PickleHeaders(secret, 0, leave), PickleHeaders(secret, 1, leave)


@given(pickles, st.sampled_from([EVERYONE, 1]))
def test_a_voucher_holds_for_its_pickle_and_for_no_other(pickle, receiver):
    zero, one = pair()
    data = zero.write(WHAT, 1, pickle, receiver)
    assert len(data) == HEADER_BYTES
    header = one.read(WHAT, 1, data, 0, receiver)
    if pickle is None:
        assert header.length == FAILED
        assert not header.holds(b"")
    else:
        assert header.holds(memoryview(pickle))
        assert not header.holds(pickle + b".")
        assert not header.holds(bytes(len(pickle) + 1)[1:] + b"x")


@given(pickles, st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_a_flipped_byte_is_noticed(pickle, place, flip):
    zero, one = pair()
    data = bytearray(zero.write(WHAT, 1, pickle))
    data[place] ^= flip
    with pytest.raises(TransportError, match=FORGED):
        one.read(WHAT, 1, bytes(data), 0)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_garbage_is_no_voucher(data):
    with pytest.raises(TransportError, match=FORGED):
        pair()[1].read(WHAT, 1, data, 0)


@pytest.mark.parametrize(
    ("what", "sender", "receiver"),
    [("gather_object(root 0)", 0, EVERYONE), (WHAT, 1, EVERYONE), (WHAT, 0, 1)],
    ids=["another call", "another sender", "another receiver"],
)
def test_a_voucher_is_good_in_one_place_only(what, sender, receiver):
    zero, one = pair()
    data = zero.write(WHAT, 1, b"pickle")
    with pytest.raises(
        TransportError, match=rf"^{re.escape(what)}: what came for rank {sender}'s pickle header"
    ):
        one.read(what, 1, data, sender, receiver)


def test_a_voucher_of_another_communicator_is_none():
    with pytest.raises(TransportError, match=FORGED):
        pair()[1].read(WHAT, 1, pair(b"another" * 5)[0].write(WHAT, 1, b"pickle"), 0)


def test_a_voucher_of_another_call_is_a_mismatch():
    zero, one = pair()
    replayed = zero.write(WHAT, 1, b"pickle")
    with pytest.raises(
        MismatchError, match=r"rank 0 is at its call 1, rank 1 at its call 2: one of them was left"
    ):
        one.read(WHAT, 2, replayed, 0)


def test_within_a_host_a_voucher_is_for_a_length():
    zero, one = pair(leave=False)
    header = one.read(WHAT, 1, zero.write(WHAT, 1, b"pickle"), 0)
    assert header.holds(b"xxxxxx")
    assert not header.holds(b"pickles")
