from __future__ import annotations

import contextlib
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.bootstrap.control_router import SECONDS, ControlRouter, rank_list
from pycoll.bootstrap.framing import (
    CALLS,
    Frame,
    FrameType,
    pack_farewells,
    unpack_blobs,
    unpack_farewells,
)
from pycoll.errors import BootstrapError


def contribution(rank: int, key: str = "k", seconds: float = 5, blob: bytes = b"") -> Frame:
    return Frame(FrameType.CONTRIBUTE, rank, key, SECONDS.pack(seconds) + blob)


def test_an_exchange_is_complete_when_the_last_rank_has_come():
    router = ControlRouter(3)
    assert router.receive(2, contribution(2, blob=b"two"), 0) == []
    assert router.receive(0, contribution(0, blob=b"zero"), 0) == []
    out = router.receive(1, contribution(1, blob=b"one"), 0)
    assert [rank for rank, _ in out] == [0, 1, 2]
    assert {frame.kind for _, frame in out} == {FrameType.GATHERED}
    assert unpack_blobs(out[0][1].body, 3) == [b"zero", b"one", b"two"]
    assert router.next_deadline() == math.inf


def test_exchanges_of_different_names_do_not_mix():
    router = ControlRouter(2)
    assert router.receive(0, contribution(0, "a"), 0) == []
    assert router.receive(1, contribution(1, "b"), 0) == []
    assert len(router.receive(1, contribution(1, "a"), 0)) == 2


def test_the_earliest_deadline_fails_an_exchange_and_names_the_missing():
    router = ControlRouter(4)
    router.receive(0, contribution(0, seconds=9), 100)
    router.receive(2, contribution(2, seconds=3), 101)
    assert router.next_deadline() == 104
    assert router.expire(103.9) == []
    out = router.expire(104)
    assert [rank for rank, _ in out] == [0, 2]
    assert out[0][1] == Frame(FrameType.MISSING, 0, "k", b"ranks 1, 3 did not come within 3 s")
    assert router.next_deadline() == math.inf


def test_who_comes_after_the_deadline_is_told_at_once():
    router = ControlRouter(2)
    router.receive(0, contribution(0, seconds=1), 0)
    router.expire(1)
    missing = Frame(FrameType.MISSING, 0, "k", b"rank 1 did not come within 1 s")
    assert router.receive(1, contribution(1), 2) == [(1, missing)]


def test_a_rank_that_tries_again_replaces_what_it_said():
    router = ControlRouter(2)
    router.receive(1, contribution(1, blob=b"old"), 0)
    router.receive(1, contribution(1, blob=b"new"), 0)
    out = router.receive(0, contribution(0), 0)
    assert unpack_blobs(out[0][1].body, 2) == [b"", b"new"]


def test_an_abort_goes_to_everyone_else():
    frame = Frame(FrameType.ABORT, 1, "error", b"text")
    assert ControlRouter(3).receive(1, frame, 0) == [(0, frame), (2, frame)]


def test_a_router_that_is_alone_when_it_begins_is_needed_by_nobody():
    router = ControlRouter(3, 2, ())
    router.receive(2, Frame(FrameType.JOIN, 2, "", struct.pack("<3I", 0, 1, 2)), 0)
    assert not router.needed()
    router = ControlRouter(3, 1, (2,), until=5)
    assert router.needed()
    assert (router.absent(4), router.absent(5), router.next_deadline()) == ([], [2], 5)
    router.receive(2, Frame(FrameType.JOIN, 2, "", struct.pack("<3I", 0, 1, 2)), 0)
    assert router.needed()
    assert router.absent(5) == []


def test_a_successor_is_told_twice_of_a_group_that_it_has_forgotten():
    router = ControlRouter(3, 1, {2}, until=10)
    join = Frame(FrameType.JOIN, 2, body=struct.pack("<2I", 0, 2), group=7)
    farewell = Frame(FrameType.CLOSED, 2, "closed", CALLS.pack(0), group=7)
    for frame in (join, farewell, Frame(FrameType.HEARD, 2, "died", struct.pack("<I", 0))):
        router.receive(2, frame, 0)
    assert router.receive(2, Frame(FrameType.ABORT, 2, "lost", b"rank 0 died", group=7), 0) == []
    assert router.receive(2, farewell, 0) == []
    assert not router.needed()


def test_refused_calls_displace_nothing_of_what_latecomers_hear():
    """A new router is told of them first, by each rank of up to 64."""
    router = ControlRouter(4, 1, {2, 3}, until=10)
    ranks = struct.pack("<4I", 0, 1, 2, 3)
    router.receive(1, Frame(FrameType.JOIN, 1, body=ranks), 0)
    left = struct.pack("<I", 0) + CALLS.pack(5)
    for call in range(64):
        router.receive(1, Frame(FrameType.ABORT, 1, "refused", b"%d a call" % call), 0)
    gave_up = Frame(FrameType.ABORT, 1, "timeout", b"rank 1 gave up")
    router.receive(1, gave_up, 0)
    router.receive(1, Frame(FrameType.HEARD, 1, "closed", left), 0)
    for rank in (2, 3):
        heard = [
            frame for _, frame in router.receive(rank, Frame(FrameType.JOIN, rank, body=ranks), 0)
        ]
        assert gave_up in heard
        assert Frame(FrameType.CLOSED, 0, "closed", CALLS.pack(5)) in heard
        refused = [frame.body for frame in heard if frame.key == "refused"]
        assert refused[-1] == b"63 a call"
        assert len(refused) < 64


def farewell(rank: int, calls: int = 0, group: int = 0) -> Frame:
    return Frame(FrameType.CLOSED, rank, f"closed {rank}", CALLS.pack(calls), group)


def test_those_who_leave_together_are_told_of_in_one_frame():
    router = ControlRouter(5)
    said = [farewell(rank, 10 + rank) for rank in (3, 1, 4)]
    for frame in said:
        assert router.receive(frame.rank, frame, 0) == []
    (zero, left), (two, same) = router.flush()
    assert (zero, two) == (0, 2)
    assert left is same
    assert unpack_farewells(left) == said
    assert router.flush() == []


def test_whatever_comes_behind_a_farewell_is_heard_behind_it():
    router = ControlRouter(4)
    router.receive(3, farewell(3), 0)
    gave_up = Frame(FrameType.ABORT, 1, "lost", b"without rank 3")
    assert router.receive(1, gave_up, 0) == [
        *((rank, farewell(3)) for rank in (0, 1, 2)),
        *((rank, gave_up) for rank in (0, 2)),
    ]
    router.receive(2, farewell(2), 0)
    assert router.lost(1, "died") == [(0, farewell(2)), (1, farewell(2)), *lost_to(0)]


def lost_to(*ranks: int) -> list[tuple[int, Frame]]:
    return [(rank, Frame(FrameType.LOST, 1, "died")) for rank in ranks]


def test_a_group_that_all_leave_at_once_is_forgotten_without_a_word():
    router = ControlRouter(3)
    for rank in range(3):
        router.receive(rank, farewell(rank), 0)
    assert router.flush() == []
    assert not router.needed()
    assert router._groups == {}


@pytest.mark.parametrize("cut", [0, 1, 13, 14, 21, 23, 43])
def test_farewells_that_are_cut_off_are_refused(cut):
    body = pack_farewells([farewell(1), farewell(2)])[:cut]
    with pytest.raises(BootstrapError, match=rf"^control frame: LEFT has {cut} bytes, of which "):
        unpack_farewells(Frame(FrameType.LEFT, 0, "", body))


def test_a_loss_is_told_once_and_not_after_a_clean_close():
    router = ControlRouter(4)
    closed = Frame(FrameType.CLOSED, 2, "closed", CALLS.pack(7))
    assert router.receive(2, closed, 0) == []
    assert router.flush() == [(0, closed), (1, closed), (3, closed)]
    assert router.lost(2, "died") == []
    lost = Frame(FrameType.LOST, 3, "died")
    assert router.lost(3, "died") == [(0, lost), (1, lost)]
    assert router.lost(3, "died") == []


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (Frame(FrameType.ABORT, 2, "error"), r"^rank 1 sent a frame of rank 2$"),
        (Frame(FrameType.GATHERED, 1, "k"), r"^rank 1 sent GATHERED, which only the control"),
        (Frame(FrameType.CLOSED, 1, "closed", b""), r"^rank 1 sent CLOSED with 0 bytes, want 8$"),
        (Frame(FrameType.CONTRIBUTE, 1, "k", b"1234"), r"^rank 1 sent a contribution of 4 bytes$"),
        (contribution(1, seconds=math.nan), r"^rank 1 sent a timeout of nan s$"),
        (contribution(1, seconds=-1), r"^rank 1 sent a timeout of -1\.0 s$"),
    ],
)
def test_a_frame_that_no_rank_sends(frame, message):
    with pytest.raises(BootstrapError, match=message):
        ControlRouter(3).receive(1, frame, 0)


def test_long_lists_of_ranks_are_cut():
    assert rank_list([4]) == "rank 4"
    assert rank_list([1, 2]) == "ranks 1, 2"
    assert rank_list(list(range(20))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more"


def test_the_layouts_on_the_wire_do_not_depend_on_the_machine():
    assert SECONDS.pack(1.5) == struct.pack("<d", 1.5)
    assert CALLS.pack(258) == b"\x02\x01" + bytes(6)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.builds(
                Frame,
                st.sampled_from(FrameType),
                st.integers(0, 3),
                st.sampled_from(["", "k", "other"]),
                st.one_of(st.binary(max_size=20), st.just(SECONDS.pack(1.0) + b"blob")),
            ),
        ),
        max_size=12,
    )
)
def test_any_frames_from_any_ranks_are_served_or_refused(received):
    router = ControlRouter(3)
    for now, (rank, frame) in enumerate(received):
        with contextlib.suppress(BootstrapError):
            assert {to for to, _ in router.receive(rank, frame, now)} <= {0, 1, 2}
        assert {to for to, _ in router.expire(now)} <= {0, 1, 2}
