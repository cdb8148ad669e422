"""Statuses of remote ranks: asked for rarely, believed as far as they can be read."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.errors import ClosedError
from pycoll.runtime import status
from pycoll.runtime.native import bindings
from pycoll.runtime.native.bindings import RankStatus
from pycoll.runtime.status import Statuses, parse


class Control:
    """A control plane that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.said: dict[int, bytes] = {}

    def ask(self) -> threading.Event:
        self.asked += 1
        event = threading.Event()
        event.set()
        return event

    def statuses(self) -> dict[int, bytes]:
        return self.said


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(status.time, "monotonic", lambda: now[0])
    return now


OWN = RankStatus(7, 0xABC, 1, "allreduce(…) at train.py:3")


def of_two(control: Control, monkeypatch: pytest.MonkeyPatch, *, remote: bool) -> Statuses:
    monkeypatch.setattr(bindings, "status_look", lambda comm, rank: OWN._replace(sequence=rank))
    return Statuses(
        None, control, SimpleNamespace(rank=0, size=2, mapped=(True, not remote), lazy=False)
    )


def test_a_board_survives_its_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    control = Control()
    known = of_two(control, monkeypatch, remote=True)
    assert known.of(1) is None
    control.said[1] = known.said()
    assert known.of(1) == OWN._replace(sequence=0)
    assert of_two(control, monkeypatch, remote=False).of(1) == OWN._replace(sequence=1)


def test_a_board_that_utf_8_cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = OWN._replace(text="allreduce(…) at \udcff.py:3")
    monkeypatch.setattr(bindings, "status_look", lambda comm, rank: odd)
    said = parse(
        Statuses(
            None, Control(), SimpleNamespace(rank=0, size=1, mapped=(True,), lazy=False)
        ).said()
    )
    assert said == odd._replace(text="allreduce(…) at \\udcff.py:3")


def test_it_asks_only_in_trouble_and_more_and_more_rarely(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    control = Control()
    known = of_two(control, monkeypatch, remote=True)
    asked = []
    for number in (7, 8):
        for _ in range(600):  # a minute of slices
            known.ask_in_time(OWN._replace(sequence=number))
            clock[0] += 0.1
        asked.append(control.asked)
    # After 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 47.5 seconds; and again in the next call.
    assert asked == [7, 14]


def test_where_all_are_mapped_nobody_is_asked(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    control = Control()
    known = of_two(control, monkeypatch, remote=False)
    for _ in range(100):
        known.ask_in_time(OWN)
        clock[0] += 1
    assert control.asked == 0
    known.refresh(1.0)  # of a rank that is late it matters what it does elsewhere
    assert control.asked == 1


def test_a_closed_control_plane_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    class Closed(Control):
        def ask(self) -> threading.Event:
            super().ask()
            raise ClosedError("closed")

    control = Closed()
    known = of_two(control, monkeypatch, remote=True)
    known.refresh(1.0)
    known.ask_in_time(OWN)
    clock[0] += 10
    known.ask_in_time(OWN)
    assert control.asked == 2


@given(st.binary(max_size=60))
def test_any_bytes_are_a_board_or_none(said: bytes) -> None:
    status = parse(said)
    assert (status is None) == (len(said) < 20)
