"""What one rank makes for all: the router's side, and that of the ranks."""

from __future__ import annotations

import threading
import time

import pytest
from waiting import wait_until

from pycoll.bootstrap.control import Wanted
from pycoll.bootstrap.control_router import CALLS, ControlRouter
from pycoll.bootstrap.framing import Frame, FrameType
from pycoll.bootstrap.group import ONCES
from pycoll.errors import BrokenError, CollectiveTimeout, UsageError

SECONDS = 30.0  #: generous: reached only by a hang


def wants(rank: int, key: str = "k") -> Frame:
    return Frame(FrameType.ONCE, rank, key)


def made(rank: int, body: bytes, key: str = "k") -> Frame:
    return Frame(FrameType.MADE, rank, key, body)


def make(key: str = "k") -> Frame:
    return Frame(FrameType.MAKE, 0, key)


# The router


def test_the_first_makes_it_and_the_others_have_it_early_or_late():
    router = ControlRouter(3)
    assert router.receive(1, wants(1), 0) == [(1, make())]
    assert router.receive(2, wants(2), 0) == []
    given = Frame(FrameType.MADE, 0, "k", b"it")
    assert router.receive(1, made(1, b"\1it"), 0) == [(2, given)]
    assert router.receive(0, wants(0), 0) == [(0, given)]
    # All have it: it is forgotten.
    assert router.receive(0, wants(0), 0) == [(0, make())]


def test_different_things_have_makers_of_their_own():
    router = ControlRouter(2)
    assert router.receive(0, wants(0, "a"), 0) == [(0, make("a"))]
    assert router.receive(1, wants(1, "b"), 0) == [(1, make("b"))]
    assert router.receive(1, wants(1, "a"), 0) == []


@pytest.mark.parametrize("how", ["gives up", "dies", "leaves"])
def test_what_its_maker_does_not_make_the_next_one_makes(how: str) -> None:
    router = ControlRouter(4)
    for rank in (3, 1, 2):
        router.receive(rank, wants(rank), 0)
    if how == "gives up":
        out = router.receive(3, made(3, b""), 0)
    elif how == "dies":
        out = router.lost(3, "died")
    else:
        out = router.receive(3, Frame(FrameType.CLOSED, 3, "closed", CALLS.pack(0)), 0)
    assert [(rank, frame) for rank, frame in out if frame.kind is FrameType.MAKE] == [(1, make())]
    given = Frame(FrameType.MADE, 0, "k", b"x")
    out = router.receive(1, made(1, b"\1x"), 0)
    assert [one for one in out if one[1].kind is FrameType.MADE] == [(2, given)]


def test_who_waits_no_longer_is_not_asked_to_make_it():
    router = ControlRouter(3)
    for rank in (0, 1, 2):
        router.receive(rank, wants(rank), 0)
    router.lost(1, "died")
    assert (2, make()) in router.receive(0, made(0, b""), 0)
    assert router.receive(2, made(2, b""), 0) == []
    assert router.receive(0, wants(0), 0) == [(0, make())]


def test_only_its_maker_can_let_go_of_it_and_the_first_result_counts():
    router = ControlRouter(3)
    router.receive(0, wants(0), 0)
    router.receive(1, wants(1), 0)
    assert router.receive(1, made(1, b""), 0) == []
    given = Frame(FrameType.MADE, 0, "k", b"first")
    assert router.receive(0, made(0, b"\1first"), 0) == [(1, given)]
    assert router.receive(2, made(2, b"\1second"), 0) == []
    assert router.receive(2, wants(2), 0) == [(2, given)]


def test_a_router_that_took_another_s_place_hears_first_of_who_has_made_it():
    router = ControlRouter(2)
    assert router.receive(1, made(1, b"\1it"), 0) == []
    assert router.receive(0, wants(0), 0) == [(0, Frame(FrameType.MADE, 0, "k", b"it"))]


def test_a_maker_that_asks_again_is_asked_to_make_it_again():
    router = ControlRouter(2)
    router.receive(0, wants(0), 0)
    assert router.receive(0, wants(0), 0) == [(0, make())]


def test_of_what_some_ranks_never_ask_for_the_oldest_is_forgotten():
    router = ControlRouter(2)
    for number in range(ONCES + 5):
        router.receive(0, wants(0, str(number)), 0)
        router.receive(0, made(0, b"\1it", str(number)), 0)
    assert router.receive(1, wants(1, "0"), 0) == [(1, make("0"))]
    last = str(ONCES + 4)
    given = Frame(FrameType.MADE, 0, last, b"it")
    assert router.receive(1, wants(1, last), 0) == [(1, given)]


# The ranks


def test_one_rank_makes_it_and_all_have_it(controls, together):
    ranks, makers = controls(5), []

    def making(rank: int) -> bytes:
        makers.append(rank)
        time.sleep(0.05)  # the others come meanwhile
        return b"of rank %d" % rank

    calls = [lambda c=c: c.once("key", lambda: making(c.rank), SECONDS) for c in ranks]
    got = together(*calls)
    assert len(makers) == 1
    assert got == [b"of rank %d" % makers[0]] * 5


def test_nobody_waits_for_a_rank_that_does_not_want_it(controls):
    one, *_ = controls(3)
    assert one.once("key", lambda: b"it", SECONDS) == b"it"
    assert one.once("other", lambda: b"", SECONDS) == b""


def test_what_a_make_raises_is_its_own_and_the_next_rank_makes_it(controls, together):
    one, two = controls(2)
    entered, asked = threading.Event(), threading.Event()

    def fails() -> bytes:
        entered.set()
        asked.wait(SECONDS)
        time.sleep(0.05)  # the other's wish is on its way
        raise ZeroDivisionError

    def first() -> None:
        with pytest.raises(ZeroDivisionError):
            one.once("key", fails, SECONDS)

    def second() -> bytes:
        entered.wait(SECONDS)
        asked.set()
        return two.once("key", lambda: b"second", SECONDS)

    assert together(first, second) == [None, b"second"]


def test_who_waits_in_vain_raises_at_its_deadline_and_is_not_asked_later(controls, together):
    one, two, three = controls(3)
    entered, over = threading.Event(), threading.Event()

    def slow() -> bytes:
        entered.set()
        over.wait(SECONDS)
        raise ZeroDivisionError

    def first() -> None:
        with pytest.raises(ZeroDivisionError):
            one.once("key", slow, SECONDS)

    def second() -> None:
        entered.wait(SECONDS)
        with pytest.raises(CollectiveTimeout, match=r"^rank 1 waited 0\.05 s for another to make"):
            two.once("key", lambda: b"never", 0.05)
        over.set()

    def third() -> bytes:
        entered.wait(SECONDS)
        time.sleep(0.02)
        return three.once("key", lambda: b"third", SECONDS)

    assert together(first, second, third) == [None, None, b"third"]


def test_two_threads_of_a_rank_that_want_the_same_make_it_once(controls, together):
    one, _ = controls(2)
    makers = []

    def making() -> bytes:
        makers.append(1)
        time.sleep(0.05)
        return b"it"

    assert together(*[lambda: one.once("key", making, SECONDS)] * 2) == [b"it"] * 2
    assert len(makers) == 1


def test_who_is_to_make_it_but_has_just_failed_lets_another(controls, together):
    """It is asked after it was told why it cannot, and before the thread that waited has raised."""
    one, two = controls(2)
    wanted = Wanted(wants(1))
    wanted.error = BrokenError("it broke meanwhile")
    wanted.told.set()
    two._wanted["k"] = wanted
    two._post(wanted.frame)  # the router takes it for the maker
    together(*[lambda c=c: c.exchange("behind it", b"", SECONDS) for c in (one, two)])
    try:
        assert one.once("k", lambda: b"of rank 0", SECONDS) == b"of rank 0"
    finally:
        del two._wanted["k"]


def test_a_rank_that_gives_up_ends_the_wait(controls, together):
    one, two, three = controls(3)
    entered, waits = threading.Event(), threading.Event()

    def making() -> bytes:
        entered.set()
        waits.wait(SECONDS)
        time.sleep(0.05)
        three.abort("error", "it cannot go on")
        wait_until(lambda: two._fatal is not None)  # else what is made here may come before that
        return b"it"

    def second() -> None:
        entered.wait(SECONDS)
        waits.set()
        with pytest.raises(BrokenError, match="rank 2 gave up"):
            two.once("key", lambda: b"", SECONDS)

    assert together(lambda: one.once("key", making, SECONDS), second) == [b"it", None]
    with pytest.raises(BrokenError, match="rank 2 gave up"):
        two.once("another", lambda: b"", SECONDS)


def test_ranks_that_leave_in_good_order_stop_nobody(controls, together):
    one, two, three = controls(3)
    entered, waits = threading.Event(), threading.Event()

    def making() -> bytes:
        entered.set()
        waits.wait(SECONDS)
        time.sleep(0.05)
        three.close()
        time.sleep(0.1)
        return b"it"

    def second() -> bytes:
        entered.wait(SECONDS)
        waits.set()
        return two.once("key", lambda: b"", SECONDS)

    assert together(lambda: one.once("key", making, SECONDS), second) == [b"it"] * 2
    assert two.once("another", lambda: b"more", SECONDS) == b"more"


def test_who_is_left_alone_makes_it_itself(controls, together):
    one, two, three = controls(3)
    entered = threading.Event()

    def never() -> bytes:
        entered.set()
        time.sleep(0.2)
        two.close()
        raise ZeroDivisionError

    def maker() -> None:
        with pytest.raises(ZeroDivisionError):
            two.once("key", never, SECONDS)

    def waiter() -> bytes:
        entered.wait(SECONDS)
        one.close()
        return three.once("key", lambda: b"by itself", SECONDS)

    assert together(maker, waiter) == [None, b"by itself"]
    assert three.once("another", lambda: b"more", SECONDS) == b"more"


def test_what_is_too_long_is_refused(controls):
    one, _ = controls(2)
    with pytest.raises(UsageError, match="1048576 bytes, less than 1048576 wanted"):
        one.once("key", lambda: bytes(1 << 20), SECONDS)
