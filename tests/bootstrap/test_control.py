from __future__ import annotations

import ctypes
import inspect
import itertools
import os
import queue
import signal
import sys
import threading
import time
import types

import pytest
from waiting import wait_until, wait_until_stopped

from pycoll.bootstrap import detect, spawn
from pycoll.bootstrap.base import Bootstrap
from pycoll.bootstrap.control import Control
from pycoll.bootstrap.control_loop import ControlLoop
from pycoll.bootstrap.control_plane import ControlPlane, leave_all
from pycoll.bootstrap.control_router import SECONDS as TIMEOUT
from pycoll.bootstrap.framing import HEADER, MAX_BLOB, Decoder, Frame, FrameType, encode, sealed
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.rendezvous import Star
from pycoll.bootstrap.seal import digest_of
from pycoll.errors import (
    BootstrapError,
    BrokenError,
    ClosedError,
    CollectiveTimeout,
    PeerLostError,
    UsageError,
)

SECONDS = 30.0  #: generous: reached only by a hang


class Log:
    """Collects what a control thread says; `take` waits for the next of it."""

    def __init__(self, control: Control | Bootstrap) -> None:
        self._said: queue.Queue[tuple[object, ...]] = queue.Queue()
        attach = (control.control if isinstance(control, Bootstrap) else control).attach
        attach(
            lambda rank, reason: self._said.put((rank, reason)),
            lambda rank, kind, text: self._said.put((rank, kind, text)),
        )

    def take(self) -> tuple[object, ...]:
        return self._said.get(timeout=SECONDS)

    def take_about(self, rank: int) -> tuple[object, ...]:
        while (said := self.take())[0] != rank:  # survivors leave while others still wait
            pass
        return said

    def empty(self) -> bool:
        return self._said.empty()


def ignore(*_: object) -> None:
    pass


# In one process


def test_an_exchange_gives_everyone_everything(controls, together):
    made = controls(5)
    for turn in (b"once", b"again"):
        calls = [lambda c=c, t=turn: c.exchange("key", t * c.rank, SECONDS) for c in made]
        assert together(*calls) == [[turn * rank for rank in range(5)]] * 5


def test_exchanges_under_different_keys_run_side_by_side(controls, together):
    one, two = controls(2)
    assert together(
        lambda: one.exchange("a", b"1a", SECONDS),
        lambda: one.exchange("b", b"1b", SECONDS),
        lambda: two.exchange("b", b"2b", SECONDS),
        lambda: two.exchange("a", b"2a", SECONDS),
    ) == [[b"1a", b"2a"], [b"1b", b"2b"], [b"1b", b"2b"], [b"1a", b"2a"]]


def test_large_blobs_from_many_ranks(controls, together):
    made = controls(8)
    blobs = [bytes([c.rank]) * MAX_BLOB for c in made]
    calls = [lambda c=c: c.exchange("key", blobs[c.rank], SECONDS) for c in made]
    assert together(*calls) == [blobs] * 8


def test_64_ranks_in_one_process(controls, together):
    made = controls(64)
    calls = [lambda c=c: c.exchange("key", b"%d" % c.rank, SECONDS) for c in made]
    assert together(*calls) == [[b"%d" % rank for rank in range(64)]] * 64


def test_one_rank_alone_needs_no_thread(no_leak):
    before = threading.active_count()
    control = Control(ControlPlane(Star(0, 1, (Member.me(),))))
    assert threading.active_count() == before
    control.attach(ignore, ignore)
    control.abort("error", "to nobody")
    assert control.exchange("key", b"x", 0) == [b"x"]
    control.close()


def test_the_missing_are_named_to_all_who_came(controls, monkeypatch):
    monkeypatch.setattr("pycoll.bootstrap.control.GRACE_SECONDS", SECONDS)  # rank 0 may be late
    made = controls(4)
    message = r"^exchange 'verdict': ranks 1, 3 did not come within 2 s$"
    begun = made[0].begin("verdict", b"", SECONDS)  # before rank 2, with which the 2 s begin
    with pytest.raises(CollectiveTimeout, match=message):
        made[2].exchange("verdict", b"", 2)
    with pytest.raises(CollectiveTimeout, match=message):
        made[0].finish(begun, "verdict", SECONDS)
    with pytest.raises(CollectiveTimeout, match=r"ranks 1, 3 did not come within 2 s$"):
        made[1].exchange("verdict", b"", SECONDS)


def test_an_abort_reaches_every_other_rank_once(controls):
    made = controls(4)
    logs = [Log(control) for control in made]
    made[2].abort("mismatch", "rank 2 called allreduce with int8")
    made[1].abort("error", "x" * 100000)
    said = (2, "mismatch", "rank 2 called allreduce with int8")
    also = (1, "error", "x" * 16384)
    assert {logs[0].take(), logs[0].take()} == {said, also}
    assert {logs[3].take(), logs[3].take()} == {said, also}
    assert logs[1].take() == said
    assert logs[2].take() == also
    assert all(log.empty() for log in logs)


def test_an_abort_ends_exchanges(controls, together):
    one, two, three = controls(3)
    outcomes = together(
        lambda: one.exchange("key", b"", SECONDS),
        lambda: two.exchange("key", b"", SECONDS),
        lambda: three.abort("error", "ValueError: no"),
    )
    for outcome in outcomes[:2]:
        with pytest.raises(BrokenError, match=r"^rank 2 gave up \(error\): ValueError: no$"):
            raise outcome
    with pytest.raises(BrokenError, match=r"^rank 2 gave up"):
        one.exchange("another", b"", SECONDS)


def test_of_refused_calls_the_last_are_told_anew(controls):
    _, two = controls(2)
    for number in range(1000):
        two.abort("refused", f"{number} allreduce")
    two.abort("error", "why")
    again = [frame for frame in two.recall() if frame.kind is FrameType.ABORT]
    assert [frame.key for frame in again] == ["refused"] * 64 + ["error"]
    assert again[-2].body == b"999 allreduce"


def test_an_abort_because_of_a_lost_rank_is_that_loss(controls):
    one, two = controls(2)
    log = Log(one)
    two.abort("lost", "rank 7 (process 1 on b) died")
    assert log.take() == (1, "lost", "rank 7 (process 1 on b) died")
    with pytest.raises(PeerLostError, match=r"^rank 7 \(process 1 on b\) died$"):
        one.exchange("key", b"", SECONDS)


def test_callbacks_come_before_the_exchange_fails(controls):
    for _ in range(20):
        one, two = controls(2)
        told: list[object] = []
        one.attach(ignore, lambda *said, log=told: log.append(said))
        two.abort("error", "now")
        with pytest.raises(BrokenError, match=r"^rank 1 gave up \(error\): now$"):
            one.exchange("key", b"", SECONDS)
        assert told == [(1, "error", "now")]


def test_a_rank_0_that_is_gone_before_the_control_plane_begins(stars, leave, no_leak, monkeypatch):
    """What comes first comes at once, even before whoever starts the thread goes on."""
    shown: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_value))
    zero, one, two = stars(3)
    zero.close()
    begin = threading.Thread.start

    def ahead(thread: threading.Thread) -> None:
        begin(thread)
        if thread.name == "pycoll-control":
            thread.join(0.2)  # as a busy machine may have it

    monkeypatch.setattr(threading.Thread, "start", ahead)
    made = []
    for star in (one, two):
        control = Control(ControlPlane(star, SECONDS))
        made.append(control)
        with pytest.raises(PeerLostError, match=r"^rank 0 \(process \d+ on .*\) is gone: it died$"):
            control.exchange("key", b"", SECONDS)
        control.close()
    leave(made)
    assert shown == []


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_a_close_is_told_with_the_calls_that_were_finished(controls, leaver):
    made = controls(3)
    logs = {control.rank: Log(control) for control in made}
    made[leaver].close(calls=7)
    for rank in {0, 1, 2} - {leaver}:
        assert logs[rank].take() == (leaver, "closed")
        assert made[rank].calls_of(leaver) == 7
        assert made[rank].lost() == {leaver: "closed"}
        with pytest.raises(
            PeerLostError, match=rf"^rank {leaver} \(process \d+ on .*\) is gone: it closed$"
        ):
            made[rank].exchange("key", b"", SECONDS)
    assert logs[leaver].empty()
    assert made[1 - leaver if leaver < 2 else 0].calls_of(2 if leaver != 2 else 1) is None


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_farewell_arrives_although_the_other_side_still_talks(
    stars, no_leak, monkeypatch, leaver
):
    """A closed socket answers with a reset, which destroys what is on its way from there."""
    monkeypatch.setattr("pycoll.bootstrap.control_loop.FLUSH_SECONDS", SECONDS)
    made = stars(2)
    other = 1 - leaver
    left = Control(ControlPlane(made[leaver]))

    def leave() -> None:
        left.close()
        left._plane.join()  # where the router is, as a process that ends does

    with made[other].links[leaver] as sock, made[other].listener or sock:
        # More than the other side's kernel takes while nobody reads: the farewell stays behind it.
        part = TIMEOUT.pack(SECONDS) + bytes(1 << 18)
        seals = made[other].seals[leaver]
        contribution = Frame(FrameType.CONTRIBUTE, other, "key", part)
        sock.sendall(sealed(contribution, seals.sending) if other else b"")
        exchange = left.begin("key", part, SECONDS)
        assert leaver or exchange.done.wait(SECONDS)
        leaving = threading.Thread(target=leave)
        leaving.start()
        if leaver == 0:  # its router would answer what follows if that came before the farewell
            everyone = left._plane._loop._router._groups[0]
            wait_until(lambda: 0 in everyone.left)
        leaving.join(0.2)  # it cannot be over yet; where it is, what follows meets a closed socket
        sock.sendall(sealed(Frame(FrameType.ASK, other), seals.sending))
        frames = []
        decoder = Decoder(1 << 20, seals.receiving)
        while data := sock.recv(65536):
            frames += decoder.feed(data)
    assert [frame.kind for frame in frames][1:2] == [FrameType.CLOSED]
    leaving.join(SECONDS)
    assert not leaving.is_alive()


def test_a_long_reason_is_cut_between_characters(controls):
    one, two = controls(2)
    log = Log(one)
    two.close(reason="é" * 500)
    assert log.take() == (1, "é" * 128)


def test_what_happened_before_the_callbacks_is_told_afterwards(controls):
    one, two, three = controls(3)
    two.abort("error", "early")
    three.close()
    log = Log(one)
    assert {log.take(), log.take()} == {(1, "error", "early"), (2, "closed")}


def test_a_result_is_not_lost_when_everyone_leaves_at_once(controls, together):
    def work(control: Control) -> list[bytes]:
        got = control.exchange("last", b"%d" % control.rank, SECONDS)
        control.close()
        return got

    for _ in range(10):
        made = controls(6)
        want = [[b"%d" % rank for rank in range(6)]] * 6
        assert together(*[lambda c=c: work(c) for c in made]) == want


def test_a_callback_that_raises_silences_nothing(controls, monkeypatch):
    one, two, three = controls(3)
    shown: queue.Queue[object] = queue.Queue()
    told: queue.Queue[object] = queue.Queue()
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.put(args.exc_value))

    def on_lost(rank: int, reason: str) -> None:
        told.put(rank)
        raise ValueError(f"callback {rank}")

    one.attach(on_lost, ignore)
    two.close()
    three.close()
    assert {told.get(timeout=SECONDS), told.get(timeout=SECONDS)} == {1, 2}
    texts = {str(shown.get(timeout=SECONDS)), str(shown.get(timeout=SECONDS))}
    assert texts == {"callback 1", "callback 2"}


def test_closing_from_a_callback(controls):
    one, two = controls(2)
    closed = threading.Event()

    def on_lost(rank: int, reason: str) -> None:
        one.close()
        closed.set()

    one.attach(on_lost, ignore)
    two.close()
    assert closed.wait(SECONDS)
    deadline = time.monotonic() + SECONDS  # the thread cannot join itself; wait for its end
    while any(thread.name == "pycoll-control" for thread in threading.enumerate()):
        assert time.monotonic() < deadline


def test_a_closed_control_says_so(controls):
    one, _ = controls(2)
    one.close()
    one.close()
    for call in (
        lambda: one.exchange("key", b"", 1),
        lambda: one.abort("error", ""),
        lambda: one.attach(ignore, ignore),
    ):
        with pytest.raises(ClosedError, match=r"^\w+: rank 0 has closed its control plane$"):
            call()


@pytest.mark.parametrize("parent", ["stays", "has left"])
@pytest.mark.parametrize("inner", ["another", "the same"])
def test_closing_amid_a_close_wherever_that_is(controls, inner, parent):
    """As a signal handler or a finalizer may; where the parent has left, one is the last."""
    for line in itertools.count(1):
        zero, one = controls(2)
        outer, other = zero.group([0, 1], "outer"), zero.group([0, 1], "other")
        theirs = [one.group([0, 1], "outer"), one.group([0, 1], "other")]
        logs = [Log(control) for control in theirs]
        if parent == "has left":
            zero.close()
        amid = closed_amid(outer, other if inner == "another" else outer, line)
        if inner == "the same" or not amid:
            other.close()
        assert [log.take() for log in logs] == [(0, "closed")] * 2
        for left in (zero, one, *theirs):
            left.close()
        if not amid:
            break
    assert line > 20


def closed_amid(outer: Control, inner: Control, line: int) -> bool:
    """Close one control, and another at some line of that; False if it has no such line."""
    lines = itertools.count(1)
    files = {inspect.getfile(part) for part in (Control, ControlPlane, ControlLoop)}
    reached = False

    def trace(frame: types.FrameType, event: str, arg: object) -> object:
        nonlocal reached
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and next(lines) == line:
            reached = True
            inner.close()
        return trace

    def work() -> None:
        sys.settrace(trace)
        outer.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), f"it hangs where another is closed at line {line} of what it runs"
    return reached


def test_closing_ends_an_exchange_of_another_thread(controls, together):
    one, _ = controls(2)
    log: list[object] = []

    def exchange() -> None:
        with pytest.raises(ClosedError, match=r"^rank 0 has closed its control plane$"):
            one.exchange("key", b"", SECONDS)
        log.append("ended")

    def close() -> None:
        while not one._exchanges:
            os.sched_yield()
        one.close()

    together(exchange, close)
    assert log == ["ended"]


def test_bad_arguments(controls):
    one, _ = controls(2)
    with pytest.raises(UsageError, match=r"^exchange 'k': blob has 1048577 bytes, at most 1048576"):
        one.exchange("k", bytes(MAX_BLOB + 1), 1)
    with pytest.raises(UsageError, match=r"^exchange 'k': timeout is -1, want 0 to 86400 seconds$"):
        one.exchange("k", b"", -1)
    with pytest.raises(BootstrapError, match=r"^control frame: the key has 257 bytes, at most 256"):
        one.exchange("k" * 257, b"", 1)
    one.attach(ignore, ignore)
    with pytest.raises(UsageError, match=r"^attach: the control plane has its callbacks already$"):
        one.attach(ignore, ignore)

    begun = one.begin("k", b"", 2)
    with pytest.raises(UsageError, match=r"^exchange 'k' is already under way in this process$"):
        one.exchange("k", b"", 1)
    with pytest.raises(CollectiveTimeout, match=r"^exchange 'k': rank"):
        one.finish(begun, "k", 2)


def said_by(star: Star, data: bytes) -> bytes:
    """Return bytes as a rank that knows the keys sends them."""
    ((sending, _),) = star.seals.values()
    header, rest = data[: HEADER.size], data[HEADER.size :]
    return b"".join(piece + sending.tag(digest_of(piece)) for piece in (header, rest))


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\xff" * 20,
        encode(Frame(FrameType.LOST, 1, "died")),
        encode(Frame(FrameType.ABORT, 2, "error")),
        encode(Frame(FrameType.CONTRIBUTE, 1, "k", TIMEOUT.pack(float("nan")))),
    ],
    ids=["garbage", "rank 0's frame", "another's frame", "timeout"],
)
def test_a_rank_that_sends_nonsense_is_lost_to_all(stars, leave, no_leak, nonsense):
    met = stars(3)
    zero, two = Control(ControlPlane(met[0])), Control(ControlPlane(met[2]))
    logs = Log(zero), Log(two)
    met[1].links[0].sendall(said_by(met[1], nonsense))
    assert [log.take() for log in logs] == [(1, "garbled")] * 2
    leave([zero, two])
    met[1].close()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\xff" * 20,
        encode(Frame(FrameType.HELLO, 0)),
        encode(Frame(FrameType.LOST, 7, "died")),
        encode(Frame(FrameType.CLOSED, 0, "closed", b"short")),
        encode(Frame(FrameType.GATHERED, 0, "k", b"\xff" * 8)),
    ],
    ids=["garbage", "hello", "no such rank", "short", "blobs"],
)
def test_a_rank_0_that_sends_nonsense_is_lost(stars, no_leak, nonsense):
    met = stars(2)
    one = Control(ControlPlane(met[1]))
    log = Log(one)
    met[0].links[1].sendall(said_by(met[0], nonsense))
    assert log.take() == (0, "garbled")
    one.close()
    met[0].close()


def test_rank_0_may_not_answer_at_all(stars, no_leak, monkeypatch):
    monkeypatch.setattr("pycoll.bootstrap.control.GRACE_SECONDS", 0.0)
    met = stars(2)
    one = Control(ControlPlane(met[1]))
    with pytest.raises(
        CollectiveTimeout,
        match=r"^exchange 'k': rank 1 waited 0\.1 s, and the control plane does not answer$",
    ):
        one.exchange("k", b"", 0.1)
    one.close()
    met[0].close()


def test_an_idle_control_thread_sleeps_until_it_is_woken(controls):
    for control in controls(3):
        assert control._plane._loop._pause() is None


# In processes


def survive(victim: int, how: str) -> object:
    """Be a rank: the victim goes in its way, the others report what they are told."""
    bootstrap = detect()
    log = Log(bootstrap)
    bootstrap.barrier()
    if bootstrap.rank == victim:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "leave":
            return "left"  # without close
        elif how == "raise":
            raise ValueError("a user's error")
        elif how == "exit":
            os._exit(3)
    said = log.take_about(victim)
    assert bootstrap.control.lost()[victim] == said[1]
    bootstrap.close()
    return said


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize(
    ("how", "reason"),
    [("kill", "died"), ("exit", "died"), ("leave", "exited"), ("raise", "exited")],
)
def test_every_survivor_learns_of_an_end(victim, how, reason):
    outcomes = spawn(survive, 4, victim, how, timeout=SECONDS, check=False)
    assert [o for rank, o in enumerate(outcomes) if rank != victim] == [(victim, reason)] * 3


def die_hidden(victim: int) -> object:
    """Die while a child that C code forked, without Python's hooks, holds the same sockets."""
    bootstrap = detect()
    log = Log(bootstrap)
    bootstrap.barrier()
    if bootstrap.rank == victim:
        child = ctypes.PyDLL(None).fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # in case no survivor ends it
            while True:
                signal.pause()
        bootstrap.allgather(b"%d" % child)
        os.kill(os.getpid(), signal.SIGKILL)
    child = int(bootstrap.allgather(b"")[victim])
    try:
        return log.take_about(victim)
    finally:
        if bootstrap.rank == 1 - victim:
            os.kill(child, signal.SIGKILL)
        bootstrap.close()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_is_seen_though_a_child_holds_the_socket(victim):
    outcomes = spawn(die_hidden, 3, victim, timeout=SECONDS, check=False)
    assert [o for rank, o in enumerate(outcomes) if rank != victim] == [(victim, "died")] * 2


def stop_one() -> object:
    bootstrap = detect()
    pids = [int(blob) for blob in bootstrap.allgather(b"%d" % os.getpid())]
    if bootstrap.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        bootstrap.close()
        return "went on"
    both = bootstrap.group([0, 2], "both")
    both.barrier()  # the deadline begins with the first one's barrier, whenever the other comes
    both.close()
    try:
        bootstrap.barrier(timeout=3)
    except CollectiveTimeout as error:
        outcome = str(error)
    if bootstrap.rank == 0:
        wait_until_stopped(pids[1])
        os.kill(pids[1], signal.SIGCONT)
    bootstrap.close()
    return outcome


def test_a_stopped_rank_is_named_at_the_deadline(monkeypatch):
    monkeypatch.setattr("pycoll.bootstrap.control.GRACE_SECONDS", SECONDS)  # the ranks are forks
    outcomes = spawn(stop_one, 3, timeout=SECONDS)
    message = "exchange 'bootstrap 1': rank 1 did not come within 3 s"
    assert outcomes == [message, "went on", message]


def fork_in_python() -> object:
    bootstrap = detect()
    control = bootstrap.control
    control.attach(ignore, ignore)
    before = len(os.listdir("/proc/self/fd"))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"nothing"
        try:
            control.lost()  # takes the lock, which must not be the parent's
            control.exchange("key", b"", 1)
        except UsageError as error:
            said = str(error).encode()
        control.close()
        held = len(os.listdir("/proc/self/fd")) - 2  # the pipe
        os.write(writer, b"%d %s" % (held, said))
        leave_all()
        os._exit(0)
    os.waitpid(child, 0)
    held, _, said = os.read(reader, 1000).decode().partition(" ")
    os.close(reader)
    os.close(writer)
    bootstrap.barrier()  # the child has not harmed its parent's
    bootstrap.close()
    control._plane.join()
    after = len(os.listdir("/proc/self/fd"))
    return before, after, int(held), said


def test_a_forked_child_holds_nothing_and_is_told_so():
    for before, after, held, said in spawn(fork_in_python, 3, timeout=SECONDS):
        assert held == after < before
        assert said.startswith("exchange: this communicator belongs to process ")
        assert said.endswith("call pycoll.init() in the process that uses it")


def init_twice() -> object:
    first = detect()
    second = detect()
    got = [first.allgather(b"a%d" % first.rank), second.allgather(b"b%d" % second.rank)]
    second.close()
    first.close()
    third = detect()
    got.append(third.allgather(b"c"))
    third.close()
    return got


def test_a_process_may_have_several_and_another_after_closing():
    assert (
        spawn(init_twice, 2, timeout=SECONDS) == [[[b"a0", b"a1"], [b"b0", b"b1"], [b"c"] * 2]] * 2
    )
