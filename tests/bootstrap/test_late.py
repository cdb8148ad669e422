"""A process that is not run for a while: what had come to it by then came in time."""

from __future__ import annotations

import contextlib
import select
import threading
import time

import pytest
from waiting import wait_until

from pycoll.bootstrap import control, rendezvous
from pycoll.bootstrap.control import REFUSED
from pycoll.bootstrap.handshake import PROOF_BYTES
from pycoll.errors import BootstrapError, CollectiveTimeout

SECONDS = 30.0  #: generous: reached only by a hang


def test_a_part_that_had_come_to_the_router_came_in_time(controls, together):
    zero, one = controls(2)
    asleep = threading.Event()

    def sleep(*_: object) -> None:
        asleep.set()
        time.sleep(4)  # longer than the exchange may take

    def later() -> list[bytes]:
        asleep.wait(SECONDS)
        return one.exchange("k", b"1", 3)

    begun = zero.begin("k", b"0", 3)
    wait_until(lambda: bool(zero._plane._loop._router._groups[0].gatherings))
    zero.attach(lambda *_: None, sleep)
    one.abort(REFUSED, "1 barrier()")
    assert together(lambda: zero.finish(begun, "k", 3), later) == [[b"0", b"1"]] * 2


def test_a_guest_whose_introduction_lies_here_is_not_silent(secret, stars, together, monkeypatch):
    honest = rendezvous._Reception._advance

    def advance(reception, guest):
        honest(reception, guest)
        if guest.seals and not guest.member:
            select.select([guest.sock], [], [], SECONDS)
            guest.until = 0.0

    monkeypatch.setattr(rendezvous._Reception, "_advance", advance)
    met = stars(3)
    assert [star.rank for star in met] == [0, 1, 2]
    for star in met:
        star.close()


def test_what_the_deadline_cuts_short_hides_nothing_that_was_found_before(secret, together):
    over = threading.Event()

    def other() -> None:
        sock, _ = listener.accept()
        with sock, contextlib.suppress(ConnectionError):
            sock.sendall(b"220 smtp.example ESMTP ready" + bytes(48 + PROOF_BYTES))
            sock.recv(4096)
        over.wait(SECONDS)  # who calls again gets no answer

    def join() -> None:
        where = listener.getsockname()[:2]
        try:
            rendezvous.join([where], 1, 2, secret, time.monotonic() + 3)
        finally:
            over.set()

    with rendezvous.listen("127.0.0.1", 0, 4) as listener:
        _, outcome = together(other, join)
    with pytest.raises(BootstrapError, match="what answered is not pycoll"):
        raise outcome


def test_who_is_asked_to_make_it_as_it_gives_up_lets_another(controls, monkeypatch):
    class Late(threading.Event):
        """What comes just as the time is over."""

        def wait(self, timeout: float | None = None) -> bool:
            super().wait(SECONDS)
            return False

    class Wanted(control.Wanted):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            self.told = Late()

    zero, one = controls(2)
    with monkeypatch.context() as patch:
        patch.setattr(control, "Wanted", Wanted)
        with pytest.raises(CollectiveTimeout, match="waited 0 s"):
            zero.once("k", lambda: b"never made", 0)
    assert one.once("k", lambda: b"made", SECONDS) == b"made"
