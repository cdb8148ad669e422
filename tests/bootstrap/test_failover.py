"""Another rank carries the control plane when the process that did has died, or has left."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import logging
import math
import os
import queue
import resource
import select
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

import pytest
from waiting import wait_until

from pycoll.bootstrap import Bootstrap, control_loop, detect, spawn
from pycoll.bootstrap.connection import IncomingConnection, OutgoingConnection
from pycoll.bootstrap.control import Control
from pycoll.bootstrap.control_loop import ControlLoop
from pycoll.bootstrap.control_plane import ControlPlane
from pycoll.bootstrap.control_router import RANK
from pycoll.bootstrap.failover import Failover
from pycoll.bootstrap.framing import Frame, FrameType
from pycoll.bootstrap.handshake import PREFACE, Preface
from pycoll.bootstrap.reasons import GAVE_UP, HUNG_UP, UNREACHABLE
from pycoll.bootstrap.rendezvous import Star
from pycoll.errors import BootstrapError, BrokenError, PeerLostError

LONG = 60.0  #: seconds; generous: reached only by a hang
CALLBACKS = ("came", "reached", "preside", "ended", "unreachable", "hung_up")


def listen(bootstrap: Bootstrap) -> queue.Queue[tuple[int, str]]:
    """Collect who is gone, and how."""
    said: queue.Queue[tuple[int, str]] = queue.Queue()
    bootstrap.control.attach(
        lambda rank, reason: said.put((bootstrap.control.ranks[rank], reason)),
        lambda rank, kind, text: said.put((bootstrap.control.ranks[rank], kind)),
        lambda: b"status of %d" % bootstrap.rank,
    )
    return said


def end(how: str) -> None:
    """End this process: killed, or in good order by the exit handlers."""
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)


def one_after_another(how: str) -> object:
    """The lowest rank ends, then the next: the rest hear of each, and go on meeting."""
    world = detect()
    rank, size = world.rank, world.size
    groups = [world.group(range(first, size), f"{first}") for first in range(1, rank + 1)]
    logs = [listen(group) for group in groups]
    world.barrier()
    heard = []
    for first in range(size - 2):  # until two are left
        if rank == first:
            end(how)
            return heard
        group = groups[first] if first < len(groups) else None
        assert group is not None
        everyone = [b"%d" % other for other in range(first + 1, size)]
        for _ in range(3):
            assert group.allgather(b"%d" % rank) == everyone
        if first:  # of the groups that the one before was in
            heard.append(logs[first - 1].get(timeout=LONG))
        assert group.control.ask().wait(LONG)
    return heard


@pytest.mark.parametrize("how", ["killed", "left"])
def test_the_lowest_rank_that_lives_takes_the_place(how):
    outcomes = spawn(one_after_another, 5, how, timeout=2 * LONG, check=False)
    if how == "killed":
        assert all(isinstance(outcome, PeerLostError) for outcome in outcomes[:3])
    reason = "died" if how == "killed" else "exited"
    assert outcomes[3:] == [[(rank, reason) for rank in (1, 2)]] * 2


def two_at_once(gone: list[int]) -> object:
    world = detect()
    others = [rank for rank in range(world.size) if rank != 0]
    group = world.group(others, "g") if world.rank else None
    log = listen(group or world)
    rest = [rank for rank in range(world.size) if rank not in gone]
    survivors = world.group(rest, "s") if world.rank in rest else None
    world.barrier()
    if survivors is None:
        end("killed")
    assert survivors is not None
    heard = [log.get(timeout=LONG) for rank in gone if rank]
    survivors.barrier()  # who is late learns it from the new router, which must not be gone
    return heard


@pytest.mark.parametrize("gone", [[0, 1], [0, 3], [0, 1, 2]])
def test_several_die_at_once(gone):
    outcomes = spawn(two_at_once, 5, gone, timeout=2 * LONG, check=False)
    for rank, heard in enumerate(outcomes):
        if rank not in gone:
            assert sorted(heard) == [(r, "died") for r in gone if r], heard


def an_exchange_is_under_way() -> object:
    world = detect()
    group = world.group([1, 2, 3], "g") if world.rank else None
    log = listen(world)
    world.barrier()
    if group is None:
        end("killed")
    assert group is not None
    if world.rank == 1:  # the others have contributed, to a router that is no more
        assert log.get(timeout=LONG) == (0, "died")
    return group.allgather(b"%d" % world.rank)


def test_an_exchange_survives():
    outcomes = spawn(an_exchange_is_under_way, 4, timeout=2 * LONG, check=False)
    assert outcomes[1:] == [[b"1", b"2", b"3"]] * 3


def a_farewell_in_between() -> object:
    world = detect()
    group = world.group([1, 2, 3], "g") if world.rank else None
    pair = world.group([1, 3], "p") if world.rank in (1, 3) else None
    log = listen(group or world)
    worlds = listen(world) if group else None
    world.barrier()
    if group is None:
        end("killed")
    assert group is not None
    assert worlds is not None
    assert worlds.get(timeout=LONG) == (0, "died")
    if world.rank == 2:
        group.close(calls=7)
        world.close()
        return "left"
    assert pair is not None
    said = log.get(timeout=LONG)
    pair.barrier()  # rank 3 learns it from rank 1, which must not be gone
    return said, group.control.calls_of(1)


def test_a_farewell_reaches_the_group():
    outcomes = spawn(a_farewell_in_between, 4, timeout=2 * LONG, check=False)
    assert outcomes[1:] == [((2, "closed"), 7), "left", ((2, "closed"), 7)]


def last_words_in_between() -> object:
    """Ranks 1 to 3 are a group; rank 2 speaks there and leaves while nobody is the router."""
    world = detect()
    group = world.group([1, 2, 3], "g") if world.rank else None
    pair = world.group([1, 3], "p") if world.rank in (1, 3) else None
    log = listen(group) if group else None
    gone: queue.Queue[int] = queue.Queue()

    def news(rank: int, reason: str) -> None:
        if rank == 0 and world.rank == 2:  # on the control thread, before it seeks another router
            assert group is not None
            group.control.fail("error", "the reason")
            group.close()
        gone.put(rank)

    world.control.attach(news, lambda *_: None)
    world.barrier()
    if group is None:
        end("killed")
    assert group is not None
    assert log is not None
    assert gone.get(timeout=LONG) == 0
    if world.rank == 2:
        return "left"
    assert pair is not None
    said = log.get(timeout=LONG), log.get(timeout=LONG)
    pair.barrier()  # rank 3 learns it from rank 1, which must not be gone
    return said


def test_what_a_rank_said_before_it_left_reaches_the_group():
    outcomes = spawn(last_words_in_between, 4, timeout=2 * LONG, check=False)
    heard = (2, "error"), (2, "closed")
    assert outcomes[1:] == [heard, "left", heard]


def test_without_descriptors_a_rank_does_not_look_for_ever_who_comes():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        selectors.DefaultSelector() as selector,
        socket.create_connection(listener.getsockname()),
    ):
        star = Star(1, 2, (), secret=b"s", listener=listener)
        failover = Failover(star, selector, 3, **dict.fromkeys(CALLBACKS))
        (key, events) = selector.select(LONG)[0]
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (listener.fileno(), limit[1]))
        try:
            failover.handle(key.fileobj, events)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        assert selector.select(0) == []
        assert failover.due() < math.inf
        failover.expire(failover.due())
        (key, events) = selector.select(LONG)[0]
        failover.handle(key.fileobj, events)
        assert len(selector.get_map()) == 2  # the listener, and who came
        failover.close()


# In one process, where ranks 0 and perhaps more are no more than the sockets that they had


@pytest.fixture
def planes(no_leak: None):
    """Make the control planes of some ranks that have met; they are closed afterwards."""
    made: list[Control] = []

    def make(stars: list[Star], timeout: float = LONG) -> list[Control]:
        made.extend(Control(ControlPlane(star, timeout)) for star in stars)
        return made[-len(stars) :]

    yield make
    for control in made:
        control._plane.close()
    for control in made:
        control._plane.join()


def log_of(control: Control) -> Callable[[], tuple[int, str]]:
    """Return what waits for the next rank of the job that is gone, and how."""
    said: queue.Queue[tuple[int, str]] = queue.Queue()
    control.attach(
        lambda rank, reason: said.put((control.ranks[rank], reason)), lambda *_: None, lambda: b""
    )
    return lambda: said.get(timeout=LONG)


def test_a_router_that_is_lost_twice_is_replaced_once(stars, planes, together):
    """By the end of its connection and of its process; a new call would end the one under way."""
    met = stars(3)
    listener = met[1].listener
    (two,) = planes([met[2]])
    log = log_of(two)
    met[0].close()
    listener.settimeout(LONG)
    visitor, _ = listener.accept()
    with visitor:
        visitor.settimeout(LONG)
        assert len(visitor.recv(PREFACE.size, socket.MSG_WAITALL)) == PREFACE.size
        loop = two._plane._loop
        caller = loop._failover._caller
        loop._suspects[0] = 0.001
        loop.post()
        wait_until(lambda: not loop._suspects)
        loop.post(Frame(FrameType.ASK, 2))  # the thread comes to it in its next turn
        wait_until(lambda: not loop._outbox)
        assert loop._failover._caller is caller
        assert not select.select([listener], [], [], 0)[0]
    (one,) = planes([met[1]])
    groups = [control.group([1, 2], "g") for control in (one, two)]
    calls = [lambda c=c: c.exchange("k", b"x", LONG) for c in groups]
    assert together(*calls) == [[b"x", b"x"]] * 2
    assert log() == (0, "died")


def test_who_hangs_up_is_called_again(stars, planes, caplog):
    """A rank that was slow to answer is hung up on, and the other lives."""
    caplog.set_level(logging.INFO, "pycoll")
    met = stars(3)
    listener = met[1].listener
    (two,) = planes([met[2]])
    log = log_of(two)
    met[0].close()
    listener.settimeout(LONG)
    for _ in range(3):
        visitor, _ = listener.accept()
        visitor.close()
    (one,) = planes([met[1]])
    groups = [control.group([1, 2], "g") for control in (one, two)]
    exchange = groups[0].begin("k", b"one", LONG)
    assert groups[1].exchange("k", b"two", LONG) == [b"one", b"two"]
    assert groups[0].finish(exchange, "k", LONG) == [b"one", b"two"]
    assert log() == (0, "died")
    assert two.lost().keys() == {0}
    assert {
        "rank 1: carries the control plane from now on",
        "rank 2: rank 1 carries the control plane",
    } <= set(caplog.messages)
    assert any(
        text.startswith("rank 2: rank 1 does not take it into the control plane: ")
        for text in caplog.messages
    )


@pytest.mark.parametrize("stranger", ["liar", "other rank", "other job", "hangs up"])
def test_a_stranger_at_the_port_of_a_rank_that_died_is_passed_by(
    stars, planes, monkeypatch, stranger
):
    """Its port was free again: a server of something else, or a rank of this or another job."""
    monkeypatch.setattr("pycoll.bootstrap.failover.silence_seconds", lambda timeout: 3.0)
    met = stars(4)
    listener = met[1].listener.dup()
    secret = met[1].secret if stranger == "other rank" else b"of another job"
    secret = hmac.digest(secret, b"failover", hashlib.sha256)

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:  # shut down
                return
            with sock, contextlib.suppress(OSError, BootstrapError):
                visit = IncomingConnection(sock, secret, Preface.make(3, 4), math.inf)
                sock.setblocking(True)
                if stranger == "liar":
                    sock.sendall(b"220 a server of something else" + bytes(PREFACE.size))
                    sock.recv(PREFACE.size)
                elif stranger != "hangs up" and visit.greet() and visit.hear():
                    visit.accept()

    server = threading.Thread(target=serve)
    server.start()
    try:
        met[1].close()
        two, three = planes(met[2:])
        logs = [log_of(control) for control in (two, three)]
        met[0].close()
        groups = [control.group([2, 3], "g") for control in (two, three)]
        exchange = groups[0].begin("k", b"two", LONG)
        assert groups[1].exchange("k", b"three", LONG) == [b"two", b"three"]
        assert groups[0].finish(exchange, "k", LONG) == [b"two", b"three"]
        # It may live: who hangs up may be the rank itself, and its address that of another here.
        assert [[log(), log()] for log in logs] == [[(0, "died"), (1, HUNG_UP)]] * 2
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
        listener.close()


def test_a_port_that_takes_calls_and_ends_them_is_not_called_without_a_pause(stars, planes):
    """It may be that of a process that is ending, or of another that has come in its place."""
    met = stars(3)
    listener = met[1].listener.dup()
    listener.setblocking(True)
    visits = []

    def serve() -> None:
        with contextlib.suppress(OSError):  # shut down
            while True:
                sock, _ = listener.accept()
                sock.close()
                visits.append(sock)

    server = threading.Thread(target=serve)
    server.start()
    try:
        met[1].close()
        logs = [log_of(control) for control in planes([met[0], met[2]])]
        assert [log() for log in logs] == [(1, HUNG_UP)] * 2
        assert 1 < len(visits) < 200
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
        listener.close()


def test_without_descriptors_a_rank_calls_again(stars, planes, monkeypatch):
    met = stars(3)
    begin, failures = (
        OutgoingConnection.begin,
        iter([errno.EMFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL]),
    )

    def short(*args: object) -> socket.socket:
        if code := next(failures, 0):
            raise OSError(code, os.strerror(code))
        return begin(*args)

    monkeypatch.setattr(OutgoingConnection, "begin", short)
    one, two = planes(met[1:])
    met[0].close()
    groups = [control.group([1, 2], "g") for control in (one, two)]
    exchange = groups[0].begin("k", b"one", LONG)
    assert groups[1].exchange("k", b"two", LONG) == [b"one", b"two"]
    assert groups[0].finish(exchange, "k", LONG) == [b"one", b"two"]


def test_a_rank_where_nobody_listens_is_lost_to_the_router_itself(stars, planes):
    met = stars(3)
    (two,) = planes([met[2]])
    log = log_of(two)
    met[1].close()
    met[0].close()
    assert [log(), log()] == [(0, "died"), (1, "died")]


def test_a_rank_that_answers_is_not_dead_because_another_says_so(stars, planes, caplog):
    caplog.set_level(logging.INFO, "pycoll.control")
    controls = planes(stars(3))
    controls[1]._plane._loop.post(Frame(FrameType.DEAD, 1, "", RANK.pack(2)))
    wait_until(lambda: "rank 2 was said to have died, and lives" in caplog.messages)
    begun = [control.begin("k", b"%d" % rank, LONG) for rank, control in enumerate(controls)]
    found = [c.finish(b, "k", LONG) for c, b in zip(controls, begun, strict=True)]
    assert found == [[b"0", b"1", b"2"]] * 3


def another_says_so() -> list[bytes]:
    """Have rank 1 say that rank 2 has died, which rank 0 can see that it has not."""
    control_loop.PIDFD_SECONDS = 0.0
    world = detect()
    world.barrier()
    if world.rank == 1:
        world.control._plane._loop.post(Frame(FrameType.DEAD, 1, "", RANK.pack(2)))
    for _ in range(2):  # rank 0 has heeded it before the second
        found = world.allgather(b"%d" % world.rank)
    return found


def test_a_process_that_lives_is_not_dead_because_another_says_so():
    assert spawn(another_says_so, 3, timeout=LONG) == [[b"0", b"1", b"2"]] * 3


def test_who_is_lost_by_what_others_say_is_told(stars, planes):
    """It lives, and is connected; without a word it would wait for as long as it may."""
    controls = planes(stars(3))
    logs = [log_of(control) for control in controls]
    controls[1]._plane._loop.post(Frame(FrameType.HEARD, 1, UNREACHABLE, RANK.pack(2)))
    assert [logs[0](), logs[1](), logs[2]()] == [(2, UNREACHABLE)] * 2 + [(0, GAVE_UP)]


@pytest.mark.parametrize("early", [True, False])
def test_who_lost_only_its_own_way_to_the_router_is_turned_away(stars, planes, early):
    """Whether it comes to another rank before that rank hears that it is lost, or afterwards."""
    controls = planes(stars(4))
    pair = {rank: log_of(controls[rank].group([2, 3], "p")) for rank in (2, 3)}
    loops = [control._plane._loop for control in controls]
    held, go = threading.Event(), threading.Event()

    def hold() -> bytes:
        held.set()
        assert go.wait(LONG)
        return b""

    controls[0].attach(lambda *_: None, lambda *_: None, hold)
    if early:  # the router's thread is busy, and so it notices later
        controls[0].ask()
        assert held.wait(LONG)
    else:
        go.set()
    loops[3]._links[0].sock.shutdown(socket.SHUT_RDWR)
    until = time.monotonic() + LONG
    while early and 3 not in loops[1]._early and time.monotonic() < until:
        go.wait(0.01)
    go.set()
    assert pair[3]() == (2, GAVE_UP)
    assert pair[2]() == (3, HUNG_UP)
    with pytest.raises(PeerLostError, match=r"is gone: it has given this rank up$"):
        controls[3].group([1, 3], "later").exchange("k", b"", LONG)


@pytest.mark.parametrize("where", ["before", "behind"])
def test_who_comes_too_late_is_turned_away(stars, planes, monkeypatch, where):
    """Before it has called the new router, or when it has, and has not said a word."""
    met = stars(4)
    controls = planes(met[1:])
    go = threading.Event()
    told: queue.Queue[tuple[int, str]] = queue.Queue()

    def lost(rank: int, reason: str) -> None:
        told.put((rank, reason))
        assert where == "behind" or go.wait(LONG)

    loop = controls[2]._plane._loop
    recall = loop._recall
    monkeypatch.setattr(loop, "_recall", lambda: go.wait(LONG) and recall())
    controls[2].attach(lost, lambda *_: None)
    log = log_of(controls[1])
    met[0].close()
    new = controls[0]._plane._loop
    wait_until(lambda: new._router is not None and new._router._expected == {3})
    wait_until(lambda: where == "before" or 3 in new._links)
    new._router._until = 0.0  # the time is up, though rank 2 may have taken long to come
    new.post()
    assert [log(), log()] == [(0, "died"), (3, UNREACHABLE)]
    go.set()
    assert [told.get(timeout=LONG) for _ in range(3)] == [(0, "died"), (1, GAVE_UP), (2, GAVE_UP)]


def test_a_machine_that_does_not_answer_is_tried_once(stars, planes, monkeypatch):
    """However many ranks it has; a port whose queue is full drops SYNs, as such a machine does."""
    monkeypatch.setattr("pycoll.bootstrap.failover.silence_seconds", lambda timeout: 0.3)
    begin, begun = OutgoingConnection.begin, []
    monkeypatch.setattr(
        OutgoingConnection, "begin", lambda *args: begun.append(args[0].peer) or begin(*args)
    )
    met = stars(5)
    with contextlib.ExitStack() as stack:
        black = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            knock = stack.enter_context(socket.socket())
            knock.setblocking(False)
            knock.connect_ex(black.getsockname())
        there = {"host": "elsewhere", "port": black.getsockname()[1]}
        members = [m._replace(**there) if 0 < r < 4 else m for r, m in enumerate(met[4].members)]
        (four,) = planes([met[4]._replace(members=tuple(members))])
        log = log_of(four)
        for star in met[:4]:
            star.close()
        assert log() == (0, "died")
        assert sorted([log(), log(), log()]) == [(rank, UNREACHABLE) for rank in (1, 2, 3)]
    assert begun == [1]


class Interrupted(deque[Frame]):
    """An outbox whose user is interrupted behind each frame, while the control thread goes on."""

    def __init__(self, loop: ControlLoop) -> None:
        super().__init__()
        self.loop = loop

    def append(self, frame: Frame) -> None:
        super().append(frame)
        if not self.loop.current():
            self.loop.post()
            time.sleep(0.3)


def test_who_leaves_last_takes_no_place_that_nobody_needs(stars, planes):
    """The router ends once it has the last farewell, perhaps before the one who sent it goes on."""
    zero, one, two = planes(stars(3))
    loop = one._plane._loop
    loop._outbox = Interrupted(loop)
    for control in (zero, two, one):
        control.close()
    assert not loop._thread.is_alive()


def test_a_router_that_begins_before_its_first_communicator_knows_it(stars, planes, monkeypatch):
    shown: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_value))
    begin = threading.Thread.start

    def ahead(thread: threading.Thread) -> None:
        begin(thread)
        if thread.name == "pycoll-control":
            thread.join(0.2)  # as a busy machine may have it

    monkeypatch.setattr(threading.Thread, "start", ahead)
    met = stars(3)
    met[0].close()
    one, two = planes(met[1:])
    log = log_of(one)
    assert log() == (0, "died")
    groups = [control.group([1, 2], "g") for control in (one, two)]
    two.close()
    assert log() == (2, "closed")
    one.abort("error", "x")
    groups[0].abort("error", "x")  # behind the other one
    with pytest.raises(BrokenError, match=r"^rank 0 gave up \(error\): x$"):
        groups[1].exchange("k", b"", LONG)
    assert shown == []
