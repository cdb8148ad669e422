"""Clocks of ranks against that of whoever carries the control plane: how far off, at most."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from waiting import wait_until

from pycoll.bootstrap import clock, detect, spawn
from pycoll.bootstrap.clock import DRIFT, ROUNDS, Aligned, AlignedClock, answer
from pycoll.bootstrap.control import Control
from pycoll.bootstrap.control_plane import ControlPlane
from pycoll.bootstrap.framing import HEADER, Frame, FrameType, encode
from pycoll.bootstrap.rendezvous import Star
from pycoll.bootstrap.seal import digest_of
from pycoll.errors import BootstrapError

LONG = 60.0  #: seconds; generous: reached only by a hang
SECOND = 1_000_000_000
TOLD = struct.Struct("<QQ")


class Network:
    """Two clocks and the way between them; what stands in for the module `time` of one rank."""

    def __init__(self, offset: int, drift: float = 0.0, reference: int = 0) -> None:
        self.now = 10**12
        self.offset, self.drift, self.reference = offset, drift, reference
        self.delays: list[tuple[int, int]] = []
        self.clock = AlignedClock(1, self.post)

    def monotonic_ns(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / SECOND

    @property
    def true(self) -> int:
        """What to add to a time here, now."""
        return self.offset + round((self.now - 10**12) * self.drift)

    def post(self, frame: Frame) -> None:
        """Take a question there and an answer back, if there is a delay left for it."""
        if not self.delays:
            return
        assert (frame.kind, frame.rank) == (FrameType.TIME, 1)
        there, back = self.delays.pop(0)
        self.now += there
        body = frame.body + struct.pack("<Q", self.now + self.true)
        self.now += back
        self.clock.hear(Frame(FrameType.TIME, self.reference, body=body))


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[Network], Network]:
    """Have the module `clock` look at the clock of a network."""

    def use(network: Network) -> Network:
        monkeypatch.setattr(clock, "time", network)
        return network

    return use


DELAYS = st.integers(0, SECOND // 10)


@given(
    offset=st.integers(-(10**11), 10**15),
    drift=st.floats(-DRIFT, DRIFT),
    looks=st.lists(
        st.tuples(
            st.lists(st.tuples(DELAYS, DELAYS), max_size=ROUNDS), st.integers(0, 100 * SECOND)
        ),
        min_size=1,
        max_size=4,
    ),
)
@example(offset=0, drift=DRIFT, looks=[([(0, SECOND // 10)], 0)])
@example(offset=0, drift=-DRIFT, looks=[([(SECOND // 10, 0)], 100 * SECOND), ([], 0)])
def test_the_true_offset_is_never_further_away_than_told(offset, drift, looks):
    network = Network(offset, drift)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "time", network)
        patch.setattr(network.clock._heard, "wait", lambda seconds: network.clock._heard.is_set())
        for delays, pause in looks:
            network.delays = list(delays)
            found = network.clock.align(1.0)
            if found is not None:
                assert abs(found.offset_ns - network.true) <= found.error_ns
            network.now += pause


def test_the_quickest_answer_counts(at):
    network = at(Network(5 * SECOND))
    network.delays = [(900, 100), (30, 10), (500, 500)] + [(1000, 1000)] * (ROUNDS - 3)
    found = network.clock.align(1.0)
    assert (found.reference, found.offset_ns) == (0, 5 * SECOND + 10)
    assert 21 <= found.error_ns <= 30


def test_what_was_found_grows_old(at):
    network = at(Network(7))
    network.delays = [(10, 10)] * ROUNDS
    first = network.clock.align(1.0)
    network.now += 1000 * SECOND
    later = network.clock.align(0.0)  # nobody answers
    assert later.offset_ns == first.offset_ns
    assert later.error_ns >= first.error_ns + 1000 * SECOND * DRIFT
    network.now += SECOND
    network.delays = [(20, 20)] * ROUNDS  # worse than the first, but now
    assert network.clock.align(1.0).error_ns < 200


def test_an_answer_of_another_rank_takes_the_place_however_long_it_took(at):
    network = at(Network(7))
    network.delays = [(10, 10)] * ROUNDS
    network.clock.align(1.0)
    network.reference, network.offset = 2, 12345
    network.delays = [(1000, 0)]
    found = network.clock.align(0.0)
    assert found.reference == 2
    assert abs(found.offset_ns - 12345) <= found.error_ns < 600


def test_whoever_carries_the_control_plane_has_its_own_clock(at):
    network = at(Network(0, reference=1))
    network.delays = [(10, 10)] * ROUNDS
    assert network.clock.align(1.0) == Aligned(1, 0, 0)
    network.now += 1000 * SECOND
    assert network.clock.align(0.0) == Aligned(1, 0, 0)


def test_nobody_answers():
    asked = []
    assert AlignedClock(3, asked.append).align(0.01) is None
    assert [(frame.kind, frame.rank, len(frame.body)) for frame in asked] == [
        (FrameType.TIME, 3, 8)
    ]


@pytest.mark.parametrize("nbytes", [0, 1, 8, 15, 17, 1000])
def test_an_answer_of_another_length_is_refused(nbytes):
    with pytest.raises(BootstrapError, match=rf"^TIME has {nbytes} bytes, want 16$"):
        AlignedClock(1, lambda _: None).hear(Frame(FrameType.TIME, 0, body=bytes(nbytes)))


def test_an_answer_to_what_was_not_asked_is_refused():
    body = TOLD.pack(time.monotonic_ns() + 10**15, 5)
    with pytest.raises(BootstrapError, match=r"^TIME answers a question that was not asked yet$"):
        AlignedClock(1, lambda _: None).hear(Frame(FrameType.TIME, 0, body=body))


@pytest.mark.parametrize("nbytes", [0, 7, 9, 16])
def test_a_question_of_another_length_is_refused(nbytes):
    with pytest.raises(BootstrapError, match=rf"^rank 4 sent TIME with {nbytes} bytes, want 8$"):
        answer(Frame(FrameType.TIME, 4, body=bytes(nbytes)), 0)


def test_an_answer_says_whose_it_is_and_when():
    before = time.monotonic_ns()
    said = answer(Frame(FrameType.TIME, 4, body=b"12345678"), 2)
    assert (said.kind, said.rank, said.body[:8]) == (FrameType.TIME, 2, b"12345678")
    assert before <= int.from_bytes(said.body[8:], "little") <= time.monotonic_ns()


# In one process


def test_ranks_of_one_clock_find_no_difference(controls):
    made = controls(3)
    for rank, control in enumerate(made):
        found = control.align(LONG)
        assert found.reference == 0
        assert abs(found.offset_ns) <= found.error_ns
        assert rank != 0 or found == Aligned(0, 0, 0)


def test_threads_that_align_at_once(controls, together):
    one = controls(2)[1]
    for found in together(*[lambda: one.align(LONG)] * 8):
        assert abs(found.offset_ns) <= found.error_ns


def test_one_rank_alone_is_its_own_reference(controls):
    assert controls(1)[0].align(0.0) == Aligned(0, 0, 0)


def test_a_control_plane_that_has_ended_gives_what_it_knows(controls, leave):
    made = controls(2)
    first = made[1].align(LONG)
    leave(made)
    later = made[1].align(LONG)  # at once: nobody is there to ask
    assert later.reference == 0
    assert later.error_ns >= first.error_ns or abs(later.offset_ns) <= later.error_ns


def said_by(star: Star, data: bytes) -> bytes:
    """Return bytes as a rank that knows the keys sends them."""
    ((sending, _),) = star.seals.values()
    header, rest = data[: HEADER.size], data[HEADER.size :]
    return b"".join(piece + sending.tag(digest_of(piece)) for piece in (header, rest))


def questions() -> list[object]:
    return [
        pytest.param(encode(Frame(FrameType.TIME, 1)), id="nothing asked"),
        pytest.param(encode(Frame(FrameType.TIME, 1, body=b"short")), id="short"),
        pytest.param(encode(Frame(FrameType.TIME, 1, body=bytes(9))), id="long"),
        pytest.param(encode(Frame(FrameType.TIME, 1, body=bytes(100_000))), id="very long"),
        pytest.param(encode(Frame(FrameType.TIME, 2, body=bytes(8))), id="another's number"),
        pytest.param(encode(Frame(FrameType.TIME, 0, body=bytes(8))), id="the router's number"),
        pytest.param(encode(Frame(FrameType.TIME, 77, body=bytes(8))), id="nobody's number"),
    ]


@pytest.mark.parametrize("nonsense", questions())
def test_a_rank_that_asks_nonsense_is_lost_to_all(stars, leave, no_leak, nonsense):
    met = stars(3)
    zero, two = Control(ControlPlane(met[0])), Control(ControlPlane(met[2]))
    told = [[], []]
    for log, control in zip(told, (zero, two), strict=True):
        control.attach(lambda rank, reason, log=log: log.append((rank, reason)), lambda *_: None)
    met[1].links[0].sendall(said_by(met[1], nonsense))
    wait_until(lambda: all(told))
    assert told == [[(1, "garbled")]] * 2
    found = two.align(LONG)
    assert abs(found.offset_ns) <= found.error_ns
    leave([zero, two])
    met[1].close()


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(Frame(FrameType.TIME, 0, body=bytes(8)), id="a question"),
        pytest.param(Frame(FrameType.TIME, 0, body=bytes(17)), id="long"),
        pytest.param(Frame(FrameType.TIME, 7, body=bytes(16)), id="nobody's number"),
        pytest.param(Frame(FrameType.TIME, 0, body=b"\xff" * 16), id="of the future"),
    ],
)
def test_a_rank_0_that_answers_nonsense_is_lost(stars, no_leak, nonsense):
    met = stars(2)
    one = Control(ControlPlane(met[1]))
    told: list[tuple[int, str]] = []
    one.attach(lambda rank, reason: told.append((rank, reason)), lambda *_: None)
    met[0].links[1].sendall(said_by(met[0], encode(nonsense)))
    wait_until(lambda: bool(told))
    assert told == [(0, "garbled")]
    one.close()
    met[0].close()


# Processes


def another_reference() -> list[tuple[int, bool]]:
    """Align, lose rank 0, and align again."""
    world = detect()
    gone = threading.Event()
    world.control.attach(lambda *_: gone.set(), lambda *_: None, lambda: b"")
    found = [world.control.align(LONG)]
    world.barrier()
    if world.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    assert gone.wait(LONG)
    deadline = time.monotonic() + LONG
    while found[-1].reference == 0 and time.monotonic() < deadline:
        found.append(world.control.align(1.0))
    good = [abs(one.offset_ns) <= one.error_ns for one in found]
    group = world.group([1, 2], "rest")
    group.barrier()  # who has the control plane stays until all have asked
    return [(found[0].reference, all(good)), (found[-1].reference, all(good))]


def test_after_the_death_of_rank_0_another_is_the_reference():
    outcomes = spawn(another_reference, 3, timeout=2 * LONG, check=False)
    assert outcomes[1:] == [[(0, True), (1, True)]] * 2


def lack_of_time_namespaces() -> str:
    done = subprocess.run(
        ["unshare", "--time", "--monotonic", "5", "true"],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    ) if os.access("/proc/self/ns/time", os.R_OK) else None  # fmt: skip
    if done is None:
        return "no time namespaces in this kernel"
    return f"no time namespace can be made ({done.stderr.strip()})" if done.returncode else ""


JOB = """
import json, os, sys, time
import numpy as np, pycoll
comm = pycoll.init()
comm.barrier()
made = comm.record()
bare = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
events = made["comms"][0]["events"]
print(json.dumps([made["clock"], events[-1]["finished_ns"], bare]), flush=True)
comm.barrier()
"""


@pytest.mark.native
@pytest.mark.parametrize("away", [(0, 1000, 20_000), (100_000, 5, 0)], ids=["others", "rank 0"])
def test_hosts_that_were_started_at_other_times(tmp_path: Path, root: Path, away) -> None:
    if reason := lack_of_time_namespaces():
        pytest.skip(reason)
    import json

    import ports

    address = f"127.0.0.1:{ports.free()}"
    running = [
        subprocess.Popen(
            ["unshare", "--time", "--monotonic", str(seconds), "--fork", "--kill-child",
             sys.executable, "-c", JOB],
            env={
                **os.environ,
                "PYTHONPATH": str(root),
                "PYCOLL_RANK": str(rank),
                "PYCOLL_SIZE": str(len(away)),
                "PYCOLL_ADDRESS": address,
                "PYCOLL_SECRET": "ab" * 16,
                "PYCOLL_TRANSPORT": "tcp",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, seconds in enumerate(away)
    ]  # fmt: skip
    said = [json.loads(process.communicate(timeout=LONG)[0]) for process in running]
    assert [process.returncode for process in running] == [0] * len(away)
    for rank, (told, finished, bare) in enumerate(said):
        true = (away[0] - away[rank]) * SECOND
        assert told["reference"] == 0
        assert abs(told["offset_ns"] - true) <= told["error_ns"], rank
        assert told["error_ns"] < SECOND
        assert told["monotonic_ns"] <= bare < told["monotonic_ns"] + LONG * SECOND
        assert bare - LONG * SECOND < finished <= told["monotonic_ns"]
    finished = [finished + told["offset_ns"] for told, finished, _ in said]
    assert max(finished) - min(finished) < LONG * SECOND
