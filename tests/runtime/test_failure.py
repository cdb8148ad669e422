"""How a call is described, and where it was made."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

from pycoll.bootstrap.reasons import CLOSED, EXITED, UNREACHABLE
from pycoll.errors import BrokenError, MismatchError, PeerLostError
from pycoll.runtime import failure, refusal
from pycoll.runtime.call_site import user_line
from pycoll.runtime.failure import Failure
from pycoll.runtime.native import bindings, codes
from pycoll.runtime.native.bindings import RankStatus


def within(module: str, code: str) -> str:
    """What `user_line` says when it is called below a function of a module of that name."""
    namespace = types.ModuleType(module).__dict__ | {"user_line": user_line}
    exec(compile(code, f"/elsewhere/{module}.py", "exec"), namespace)
    return str(namespace["call"]())


def test_the_frame_outside_of_pycoll_is_named() -> None:
    code = "\n\ndef call():\n    return user_line()\n"
    assert within("train", code) == "/elsewhere/train.py:4"
    assert within("pycolladder", code) == "/elsewhere/pycolladder.py:4"
    ours = within("pycoll.runtime.dispatch", code)
    assert ours.startswith("tests/runtime/test_failure.py:"), ours
    assert within("pycoll.communicator", code) == ours


def test_a_script_that_is_all_pycoll() -> None:
    line = within("pycoll.cli.bench", "def call(): return user_line()")
    assert line == "/elsewhere/pycoll.cli.bench.py:1"


class Control:
    """A control plane of which a test knows everything."""

    def __init__(self) -> None:
        self.aborts: list[tuple[str, str]] = []
        self.calls: dict[int, int] = {}

    def abort(self, kind: str, text: str) -> None:
        self.aborts.append((kind, text))

    def calls_of(self, rank: int) -> int | None:
        return self.calls.get(rank)

    def ask(self) -> threading.Event:
        answered = threading.Event()
        answered.set()
        return answered

    def statuses(self) -> dict[int, bytes]:
        return {}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[Failure, Control]]:
    """Be rank 0 in its first call, whose peers 1 and 2 are remote, without an engine."""
    monkeypatch.setattr(failure, "_SAY_SECONDS", 0.0)
    for name in ("comm_abort", "comm_gone"):
        monkeypatch.setattr(bindings, name, lambda *arguments: None, raising=False)

    def make(state: int = bindings.CALLING) -> tuple[Failure, Control]:
        status = RankStatus(1, 5, state, "barrier() at x.py:1")
        monkeypatch.setattr(bindings, "status_look", lambda comm, rank: status)
        world: Any = types.SimpleNamespace(rank=0, size=3, mapped=(True, False, False), lazy=False)
        control: Any = Control()
        made = Failure(None, control, world, lambda r: f"rank {r} (process {r} on node{r})")
        return made, control

    return make


def test_a_broken_connection_is_told_to_all(alone: Any) -> None:
    made, control = alone()
    told = (
        r"^rank 2 \(process 2 on node2\) is lost to rank 0: connection reset; "
        r"the control plane has not lost it$"
    )
    with pytest.raises(PeerLostError, match=told):
        made.lose_link(2, "connection reset")
    ((kind, text),) = control.aborts
    assert kind == "lost"
    other, _ = alone()
    other.on_abort(0, kind, text)
    assert isinstance(other.error, PeerLostError)
    assert str(other.error) == text


def test_a_connection_to_a_rank_that_is_known_to_be_gone(alone: Any) -> None:
    made, control = alone(bindings.IDLE)
    made.on_lost(2, UNREACHABLE)
    assert made.error is None  # this rank is in no call
    with pytest.raises(
        PeerLostError,
        match=r"^rank 2 \(.*\) cannot be reached any more; no connection yet$",
    ):
        made.lose_link(2, "no connection yet")
    assert [kind for kind, _ in control.aborts] == ["lost"]


def test_a_remote_rank_that_dies_ends_the_call(alone: Any) -> None:
    made, _ = alone()
    made.on_lost(1, "died")
    assert str(made.error).startswith(
        "rank 1 (process 1 on node1) died and takes no part in call 1, barrier()"
    )


def test_of_a_remote_rank_that_died_only_what_was_heard_is_told(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = alone(bindings.IDLE)
    heard = {2: RankStatus(7, 5, bindings.CALLING, "barrier()")}
    monkeypatch.setattr(made.statuses, "of", lambda rank: heard.get(rank))
    made.on_lost(2, "died")
    with pytest.raises(PeerLostError, match=r"^rank 2 \(.*\) died after at least 6 calls; reset$"):
        made.lose_link(2, "reset")


def test_a_remote_rank_that_closed_after_its_part_does_not(alone: Any) -> None:
    made, control = alone()
    control.calls[1] = 1
    made.on_lost(1, CLOSED)
    assert made.error is None


@pytest.fixture
def at(alone: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Say in which call rank 0 is, and whether it is inside."""

    def be(sequence: int, state: int) -> None:
        status = RankStatus(sequence, 5, state, "barrier() at x.py:1")
        monkeypatch.setattr(bindings, "status_look", lambda comm, rank: status)

    return be


LEFT = "rank 1 (process 1 on node1) closed its communicator after 3 calls and takes no part in it"


def test_who_misses_a_rank_that_left_says_in_which_call(alone: Any, at: Any) -> None:
    made, control = alone()
    at(4, bindings.CALLING)
    control.calls[1] = 3
    made.on_lost(1, CLOSED)
    ((kind, text),) = control.aborts
    assert kind == "missed"
    assert text == f"4 {made.error}"


@pytest.mark.parametrize("state", [bindings.CALLING, bindings.IDLE])
def test_a_rank_that_left_is_missed_from_the_call_on_that_others_say(
    alone: Any, at: Any, state: int
) -> None:
    made, control = alone()
    calling = state == bindings.CALLING
    at(2 + calling, state)  # the third call is its present or its next one
    made.on_abort(2, "missed", f"5 {LEFT}")
    made.on_abort(2, "missed", f"4 {LEFT}, which came first")
    made.on_abort(2, "missed", f"5 {LEFT}")
    assert made.error is None
    at(3 + calling, state)
    made.heed_missed()
    assert isinstance(made.error, PeerLostError)
    assert str(made.error) == f"{LEFT}, which came first"
    assert control.aborts == []


def test_who_waits_for_something_else_than_a_call_gives_up_and_says_so(alone: Any, at: Any) -> None:
    made, control = alone()
    at(2, bindings.IDLE)
    made.on_abort(2, "missed", f"5 {LEFT}")
    made.heed_missed(waiting=True)
    assert str(made.error) == LEFT
    assert control.aborts == [("missed", f"3 {LEFT}")]  # who is in the third call waits for it


def test_a_call_that_had_not_said_its_line_when_a_rank_died_says_it(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = alone()
    status = RankStatus(1, 5, bindings.CALLING, "")  # it waits too short a time to have said it
    monkeypatch.setattr(bindings, "status_look", lambda comm, rank: status)
    monkeypatch.setattr(bindings, "status_describe", lambda comm, text: None)
    aborted = codes.Error(codes.ABORTED, 1, 1, 0, "")
    monkeypatch.setattr(codes, "comm_error", lambda comm: aborted)
    made.on_lost(1, "failed with a call")
    want = r"failed with a call and .* call 1, a call at tests/runtime/test_failure\.py:\d+$"
    with pytest.raises(PeerLostError, match=want):
        made.raise_for(codes.ABORTED, 10)
    with pytest.raises(BrokenError, match=want):
        made.raise_for(codes.BROKEN, 10)


def test_a_call_that_ended_well_when_a_rank_died_is_not_given_the_line_of_the_next(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = alone()
    status = RankStatus(1, 5, bindings.CALLING, "")
    monkeypatch.setattr(bindings, "status_look", lambda comm, rank: status)
    made.on_lost(1, "died")
    status = RankStatus(1, 5, bindings.IDLE, "")
    aborted = codes.Error(codes.ABORTED, 1, 1, 0, "")
    monkeypatch.setattr(codes, "comm_error", lambda comm: aborted)
    with pytest.raises(PeerLostError, match=r"call 1, a call$"):
        made.raise_for(codes.ABORTED, 10)


@pytest.mark.parametrize("when", ["before", "later"])
def test_who_comes_late_to_different_calls_hears_of_them_though_the_others_have_left(
    alone: Any, at: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    made, control = alone()
    monkeypatch.setattr(bindings, "status_differs", lambda comm: False)
    at(3, bindings.IDLE)
    made.on_abort(2, "mismatch", "4 broadcast() at y.py:1")
    control.calls.update({1: 3, 2: 3})
    if when == "before":
        at(4, bindings.CALLING)
    made.on_lost(1, EXITED)
    made.on_lost(2, EXITED)
    if when == "later":
        at(4, bindings.CALLING)
        made.look()
    assert isinstance(made.error, MismatchError)


def test_of_two_that_died_the_first_is_blamed_for_a_link(alone: Any) -> None:
    made, _ = alone(bindings.IDLE)
    made.on_lost(2, "died")
    made.on_lost(1, "died")  # because rank 2 had, for all that is known
    with pytest.raises(PeerLostError, match=r"^rank 2 \(.*\) died; the connection to rank 1 "):
        made.lose_link(1, "reset")


def test_the_link_that_broke_a_call_is_named(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = alone()
    error = codes.Error(codes.LOST, 0, 1, 110, "Connection timed out")
    monkeypatch.setattr(codes, "comm_error", lambda comm: error)
    told = r"^rank 1 \(.*\) is lost to rank 0: the connection to it broke \(Connection timed out\);"
    with pytest.raises(PeerLostError, match=told):
        made.raise_for(codes.LOST, 10)
    with pytest.raises(BrokenError, match=r"^an earlier failure broke the communicator: rank 1"):
        made.raise_for(codes.BROKEN, 10)


@pytest.mark.parametrize(
    ("made", "refused", "want"),
    [
        (0, {}, False),  # not there yet
        (77, {}, True),
        (bindings.REFUSED, {}, False),
        (bindings.FORGOTTEN, {0: "send"}, True),
        (bindings.FORGOTTEN, {2: "here, too"}, False),
        (bindings.FORGOTTEN, {n: "later" for n in range(1, 66) if n != 2}, True),
        (bindings.FORGOTTEN, dict.fromkeys(range(3, 67), "maybe this, too"), False),
    ],
)
def test_a_call_that_another_rank_was_refused(
    alone: Any, monkeypatch: pytest.MonkeyPatch, made: int, refused: dict[int, str], want: bool
) -> None:
    found, _ = alone()
    status = RankStatus(200, 5, bindings.CALLING, "barrier() at x.py:1")
    monkeypatch.setattr(bindings, "status_look", lambda comm, rank: status)
    monkeypatch.setattr(bindings, "status_call", lambda comm, rank, number: made)
    for number, text in refused.items():
        found._refusals.note(0, number, text)
    found.on_abort(1, "refused", "2 allreduce at y.py:1, refused with UsageError")
    assert isinstance(found.error, MismatchError) is want


def test_a_death_is_named_before_a_mismatch_that_follows_from_it(alone: Any) -> None:
    made, _ = alone(bindings.IDLE)
    made.on_lost(2, "died")
    made._break(MismatchError("ranks called different things"), failure.Cause.MISMATCH, 1)
    assert isinstance(made.error, PeerLostError)
    assert str(made.error) == "rank 2 (process 2 on node2) died"


def test_what_a_rank_was_refused_is_waited_for_though_it_is_slow_to_say_it(alone: Any) -> None:
    made, _ = alone(bindings.IDLE)
    told = "0 recv at y.py:1, refused with UsageError"
    saying = threading.Timer(1.0, made.on_abort, (1, "refused", told))
    saying.start()
    assert made._refusals.messages((0, 1), lambda: False) == [(1, told[2:])]
    saying.join()


def test_who_is_gone_is_not_waited_for_to_say_what_it_was_refused(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = alone(bindings.IDLE)
    monkeypatch.setattr(refusal, "_SURE_SECONDS", 60.0)
    said: list[object] = []

    def ask() -> None:
        said.append(made._refusals.messages((0, 1), lambda: 1 in made._departed))

    asking = threading.Thread(target=ask)
    asking.start()
    made.on_lost(1, "died")
    asking.join(30)
    assert said == [[]]
