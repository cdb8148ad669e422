"""One suite over all transports: messages come whole and in order, and a peer's lie is found.

Most ranks here live in one process, so that a test decides which of them moves.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import os
import random
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import joined
import numpy as np
import pytest
from joined import (
    HASTY,
    SECONDS,
    SLOT_BYTES,
    SLOTS,
    SMALL_BYTES,
    Opened,
    complete,
    connect_all,
    connect_some,
    fabric_all,
    finish,
    held,
    link_all,
    rail_all,
)
from stream import Stream, bind, content

import pycoll
from pycoll.algorithms import algorithm, get
from pycoll.bootstrap import detect
from pycoll.dtypes import INT64, UINT8
from pycoll.errors import InternalError
from pycoll.fabric import Rail
from pycoll.program.lower import compile_program
from pycoll.runtime.native import bindings, codes, libfabric, verbs
from pycoll.schedule import ScheduleBuilder, allreduce

Connect = Callable[[Sequence[Any]], None]

#: How the ranks of this process are connected, by transport.
TRANSPORTS: dict[str, Connect] = {
    "shm": connect_all,
    "tcp": link_all,
    "three sockets": partial(link_all, links=3),
    "shm and tcp": connect_some,
    "libfabric, tcp": partial(fabric_all, provider="tcp"),
    "verbs": rail_all,
    "verbs, two rails": partial(rail_all, rails=2),
    "verbs, shared receives": partial(rail_all, rails=2, by=HASTY._replace(srq=0)),
}


def with_devices(names: Iterable[str]) -> list[Any]:
    """As parameters; those for which the stand-in or libfabric is wanted are marked."""
    return [pytest.param(name, marks=joined.marks(name)) for name in names]


#: Providers that every libfabric has; the last two complete a packet only once the peer polls.
FABRICS = ("libfabric, tcp", "libfabric, udp;ofi_rxd", "libfabric, shm")
#: Bytes: none, one, around an inline message, odd ones, a whole slot.
LENGTHS = (0, 1, 7, 40, 41, 63, 64, 65, 1001, SLOT_BYTES - 1, SLOT_BYTES)


@pytest.fixture(params=with_devices(TRANSPORTS))
def connect(request: pytest.FixtureRequest) -> Connect:
    return TRANSPORTS[request.param]


REMOTE = ("tcp", "libfabric, tcp", "verbs", "verbs, two rails", "verbs, shared receives")


@pytest.fixture(params=with_devices(REMOTE))
def connect_remote(request: pytest.FixtureRequest) -> Connect:
    """For what differs from mapped memory."""
    return TRANSPORTS[request.param]


@pytest.fixture
def pair(opened: Opened, connect: Connect) -> list[Any]:
    comms = opened(2)
    connect(comms)
    return comms


# Messages.


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_connect_and_every_length_comes_whole(
    opened: Opened, connect: Connect, size: int
) -> None:
    comms = opened(size)
    connect(comms)
    ends = [Stream(comm, rank, size, LENGTHS) for rank, comm in enumerate(comms)]
    for _ in LENGTHS * 3:
        # All are in the call before any waits: what they hold back of credit is told then.
        for end in [end for end in ends if end.begin() == codes.AGAIN]:
            end.rest()  # in order of rank: what each waits for is there


def test_connecting_again_changes_nothing(pair: list[Any]) -> None:
    before = held()
    blob = bindings.comm_address(pair[1])
    assert [bindings.comm_connect(pair[0], 1, blob) for _ in range(3)] == [0, 0, 0]
    assert held() <= before


#: Messages that may be on their way when all fit beside their counts: PC_LINES of layout.h.
LINES = 32


@pytest.mark.parametrize(
    ("slots", "nbytes", "ahead"),
    [(2, 41, 2), (4, 1001, 4), (32, SLOT_BYTES, 32), (2, 40, LINES), (4, 0, LINES)],
)
def test_a_sender_is_ahead_by_its_slots_and_no_further(
    opened: Opened, connect: Connect, slots: int, nbytes: int, ahead: int
) -> None:
    comms = opened(2, slots=slots, small_bytes=0)
    connect(comms)
    ahead_by(comms, nbytes, ahead)


@pytest.mark.parametrize(
    ("small", "nbytes", "ahead"),
    [(64, 64, LINES), (64, 65, SLOTS), (SMALL_BYTES, SMALL_BYTES, LINES),
     (SMALL_BYTES, SMALL_BYTES + 1, SLOTS), (SLOT_BYTES, SLOT_BYTES, LINES)],
)  # fmt: skip
def test_between_hosts_a_sender_of_small_messages_is_far_ahead(
    opened: Opened, connect_remote: Connect, small: int, nbytes: int, ahead: int
) -> None:
    comms = opened(2, small_bytes=small)
    connect_remote(comms)
    ahead_by(comms, nbytes, ahead)


def ahead_by(comms: list[Any], nbytes: int, ahead: int) -> None:
    """Send as many messages as may be in flight, and look that it is so many, again and again.

    A receiver that is in no call may hold back the credit for less than half of them.
    """
    sender, receiver = (Stream(comm, rank, 2, [nbytes]) for rank, comm in enumerate(comms))
    for _ in range(ahead):
        sender.whole()
    assert sender.begin() == codes.AGAIN
    assert sender.resume() == codes.AGAIN
    stuck = bindings.comm_stuck(comms[0])
    assert stuck is not None
    assert (stuck.peer, stuck.sending) == (1, True)
    sent = ahead  # and one begun
    for received in range(1, 3 * ahead + 1):
        receiver.whole()
        while sent < received + ahead - (ahead - 1) // 2:
            sender.rest()
            sent += 1
            while sender.begin() == 0:
                sent += 1
        assert sent <= received + ahead
    for _ in range(3 * ahead, sent):
        receiver.whole()
    sender.rest()
    receiver.whole()
    assert receiver.begin() == codes.AGAIN
    stuck = bindings.comm_stuck(comms[1])
    assert stuck is not None
    assert (stuck.peer, stuck.sending) == (0, False)


def test_a_long_message_behind_small_ones_waits_for_its_slot(
    opened: Opened, connect_remote: Connect
) -> None:
    """And small ones behind that long one do not overtake it, nor overwrite what is unread."""
    comms = opened(2)
    connect_remote(comms)
    lengths = [*[SMALL_BYTES] * LINES, SLOT_BYTES, *[64] * LINES]
    sender, receiver = (Stream(comm, rank, 2, lengths) for rank, comm in enumerate(comms))
    for _ in range(LINES):
        sender.whole()
    assert sender.begin() == codes.AGAIN
    for _ in range(LINES - SLOTS):  # and the credit for the half that may be held back
        receiver.whole()
        assert sender.resume() == codes.AGAIN
    for _ in range(SLOTS):
        receiver.whole()
    receiver.begin()  # its plan has few slots, so that it tells what it has held back
    sender.rest()
    receiver.rest()
    for _ in lengths[LINES + 1 :]:
        sender.whole()
    assert sender.begin() == codes.AGAIN
    for _ in range(len(lengths) - 1 - LINES):
        receiver.whole()
    sender.rest()
    receiver.whole()


@pytest.mark.parametrize("small", [0, 64, SMALL_BYTES, SLOT_BYTES])
def test_slots_wrap_around_in_any_interleaving(
    opened: Opened, connect: Connect, small: int
) -> None:
    pair = opened(2, small_bytes=small)
    connect(pair)
    drawn = random.Random(5)
    lengths = [drawn.choice(LENGTHS) for _ in range(997)]
    sender, receiver = (Stream(comm, rank, 2, lengths) for rank, comm in enumerate(pair))
    while receiver.number < 5000:
        room = SLOTS - (sender.number - receiver.number)
        for _ in range(drawn.randint(0, room)):
            if sender.begin() != codes.AGAIN:
                continue
            # A long message behind small ones: the receiver tells what it holds back once it is in
            # that call, too.
            while receiver.number < sender.number:
                receiver.whole()
            code = receiver.begin()
            sender.rest()
            if code == codes.AGAIN:
                receiver.rest()
        for _ in range(drawn.randint(0, sender.number - receiver.number)):
            receiver.whole()


@pytest.mark.parametrize("way", with_devices(("shm", "tcp", *FABRICS, "verbs")))
@pytest.mark.parametrize("size", [2, 3])
def test_thousands_of_messages_between_processes(size: int, way: str) -> None:
    def rank() -> int:
        met = detect()
        before = held()
        comm = joined.join(met, way, spin=20 if size == 2 else 0)
        end = Stream(comm, met.rank, size, LENGTHS)
        while end.number < 4000:
            code = end.begin()
            while code == codes.AGAIN:
                code = end.end(bindings.resume(comm, 0.1))
        end.plans.clear()
        bindings.comm_close(comm)
        assert held() <= before
        met.barrier(60)  # who is behind would look for another router, by another descriptor
        met.close()
        return end.number

    assert pycoll.spawn(rank, size, timeout=120) == [4000] * size


@pytest.mark.parametrize("size", [2, 3, 4])
def test_both_ways_at_once(opened: Opened, connect: Connect, size: int) -> None:
    comms = opened(size)
    connect(comms)
    for count, offset in itertools.product((0, 1, 5, 6, 8, 1000), (0, 1)):
        plans = [
            bind(comm, rank, size, get("ring"), count * 8, INT64, tile=512)
            for rank, comm in enumerate(comms)
        ]
        xs = [np.arange(count + offset, dtype=np.int64) * (rank + 1) for rank in range(size)]
        want = np.arange(count + offset) * sum(range(1, size + 1))
        at = [x.ctypes.data + 8 * offset for x in xs]
        for _ in range(3):
            outs = [np.full(count, -1, np.int64) for _ in xs]
            complete(comms, plans, at, [out.ctypes.data for out in outs])
            assert all(np.array_equal(out, want[offset:]) for out in outs)


# Ends.


def test_a_closed_peer_leaves_the_memory_that_others_see(opened: Opened) -> None:
    comms = opened(3)
    connect_all(comms)
    ends = [Stream(comm, rank, 3, LENGTHS) for rank, comm in enumerate(comms)]
    assert ends[0].begin() == 0
    ends[0].plans.clear()
    joined.close(comms.pop(0), comms)
    assert [end.begin() for end in ends[1:]] == [0, 0]  # sent before it closed
    assert bindings.status_read(comms[0], 0).state == bindings.CLOSED
    assert ends[1].begin() == codes.AGAIN
    joined.close(comms.pop(0), comms)  # inside a call, for ever
    assert bindings.status_read(comms[0], 1).state == bindings.CLOSED


def test_a_remote_peer_that_closed_is_lost_once_all_it_sent_was_received(
    opened: Opened, connect_remote: Connect
) -> None:
    comms = opened(3)
    connect_remote(comms)
    ends = [Stream(comm, rank, 3, LENGTHS) for rank, comm in enumerate(comms)]
    for _ in range(2):
        ends[0].whole()
    ends[0].plans.clear()
    joined.close(comms.pop(0), comms)
    for _ in range(2):
        ends[1].whole()
        ends[2].whole()
    lost = ends[1]
    code = finish(
        lost.comm, bindings.run(lost.comm, lost.plans[0], lost.memory.ctypes.data, 0, SECONDS)
    )
    assert code == codes.LOST
    error = codes.comm_error(lost.comm)
    assert (error.code, error.peer) == (code, 0)
    assert bindings.comm_connections(lost.comm, 0) == 0, error.text
    with pytest.raises(
        pycoll.PeerLostError,
        match=r"call: rank 0 is lost: (it closed its connection|receive: |send: )",
    ):
        codes.raise_for(code, lost.comm, "call")
    with pytest.raises(pycoll.UnavailableError, match="status of rank 0"):
        bindings.status_read(lost.comm, 0)
    assert ends[2].begin() == codes.AGAIN  # it waits for rank 1, who is there


@pytest.mark.parametrize("way", with_devices(("tcp", "libfabric, tcp", "verbs")))
def test_a_call_waits_for_its_first_socket(opened: Opened, way: str) -> None:
    comms = opened(2)
    for rank, comm in enumerate(comms):
        if way == "libfabric, tcp":
            libfabric.comm_fabric(comm, "tcp", "127.0.0.1")
        if way == "verbs":
            verbs.comm_rails(comm, joined.HASTY, [Rail(joined.devices(rank, 2, 1)[0], 1)])
        bindings.comm_remote(comm, 1 - comms.index(comm))
        bindings.comm_sealed(comm)
    ends = [Stream(comm, rank, 2, [1000]) for rank, comm in enumerate(comms)]
    assert [end.begin() for end in ends] == [codes.AGAIN] * 2
    assert [bindings.comm_connections(comm, 1 - rank) for rank, comm in enumerate(comms)] == [0, 0]
    adopter = threading.Thread(target=joined.adopt, args=(comms, 0, 1))
    adopter.start()
    adopter.join()
    while any(ended := [end.resume() if end.number == 0 else 0 for end in ends]):
        assert set(ended) <= {0, codes.AGAIN}


def test_what_cannot_be_remote(opened: Opened) -> None:
    comms = opened(2)
    link_all(comms)
    direct = compile_program(get("two_shot"), 2, 0, direct=True).to_bytes()
    with pytest.raises(InternalError, match="edge 0: kind 2"):
        bindings.program_load(comms[0], direct)
    for peer in (0, 2):
        with pytest.raises(InternalError, match=f"rank {peer} cannot be remote to rank 0 of 2"):
            bindings.comm_remote(opened(2)[0], peer)
    mapped = opened(2)
    connect_all(mapped)
    with pytest.raises(InternalError, match="which has been told all peers"):
        bindings.comm_remote(mapped[0], 1)
    with pytest.raises(InternalError, match="socket to rank 1: INVALID"):
        bindings.comm_adopt(mapped[0], 1, 0)
    with pytest.raises(InternalError, match="sockets to rank 1: INVALID"):
        bindings.comm_connections(mapped[0], 1)


@pytest.mark.parametrize("way", with_devices(("told", "deadline", "tcp", *FABRICS, "verbs")))
def test_a_peer_that_dies_under_load_leaves_a_survivor_that_can_close(way: str) -> None:
    def rank() -> str:
        met = detect()
        before = held()
        comm = joined.join(met, "shm" if way in ("told", "deadline") else way)
        pids = [int(blob) for blob in met.allgather(str(os.getpid()).encode(), SECONDS)]
        plan = bind(comm, met.rank, 2, get("ring"), 1000)
        x = np.ones(1000, np.uint8)
        call = (comm, plan, x.ctypes.data, x.ctypes.data)
        watch = threading.Thread(target=tell, args=(comm, pids[1]))
        if met.rank == 0 and way == "told":
            watch.start()
        code, calls = 0, 0
        while code == 0:
            if met.rank == 1 and calls == 1000:
                os.kill(os.getpid(), signal.SIGKILL)
            seconds = 0.5 if way == "deadline" and calls == 1000 else SECONDS
            code, calls = finish(comm, bindings.run(*call, seconds)), calls + 1
        assert calls > 999
        error = codes.comm_error(comm)
        assert error.code == code
        assert bindings.comm_broken(comm) == code
        assert bindings.run(*call, SECONDS) == codes.BROKEN
        if way == "told":
            watch.join()
        bindings.release(plan)
        bindings.comm_close(comm)
        assert held() <= before
        return f"{codes.code_name(code)} {error.cause} {error.text[:14]}"

    def tell(comm: Any, pid: int) -> None:
        died = os.pidfd_open(pid)
        select.select([died], [], [], SECONDS)
        os.close(died)
        bindings.comm_abort(comm, 77, 1, "rank 1 is gone")

    found, lost = pycoll.spawn(rank, 2, timeout=120, check=False)
    assert isinstance(lost, pycoll.PeerLostError)
    if way == "told":
        assert found == "ABORTED 77 rank 1 is gone"
    elif way == "deadline":
        assert found == "TIMEDOUT 0 no progress fo"
    else:
        assert found == "LOST 0 rank 1 is lost"


# Lies, in the words of shm. An address is: magic, version, rank, user, host, token, name, what
# finds the memory in /proc, and a number for tests.

FIELDS = struct.Struct("<IIII16s16s32sQQQIIQ")
NAMES = ("magic", "version", "rank", "uid", "host", "token", "name", "processes", "network")
NAMES += ("inode", "pid", "memfd", "base")


def forged(blob: bytes, **changed: Any) -> bytes:
    """Change an address, and have its reader ask the socket: /proc would show the truth."""
    fields = dict(zip(NAMES, FIELDS.unpack(blob), strict=True)) | {"processes": 0} | changed
    return FIELDS.pack(*fields.values())


def refused(comm: Any, peer: int, blob: bytes, serving: Callable[[], object]) -> tuple[int, str]:
    """Connect until there is an answer other than AGAIN."""
    ready = select.poll()
    ready.register(bindings.comm_connect_fd(comm), select.POLLIN)
    while (code := bindings.comm_connect(comm, peer, blob)) == codes.AGAIN:
        serving()
        ready.poll(100)
    error = codes.comm_error(comm)
    assert (error.code, error.peer) == (code, peer)
    return code, error.text


@pytest.mark.parametrize(
    ("changed", "code", "text"),
    [
        ({"magic": 1}, "INVALID", "address of rank 1 has magic 0x1 version"),
        ({"version": 99}, "INVALID", "version 99 rank 1"),
        ({"rank": 0}, "INVALID", r"rank 0, want 0x[0-9a-f]+ version \d+"),
        ({"rank": 2**32 - 1}, "INVALID", "rank 4294967295, want"),
        ({"host": b"\1" * 16}, "UNMAPPABLE", "rank 1 is on another host or another user's"),
        ({"uid": 2**32 - 2}, "UNMAPPABLE", "rank 1 is on another host or another user's"),
        ({"name": b"pycoll-nobody"}, "UNMAPPABLE", "rank 1 does not listen here"),
        ({"name": b"x" * 32}, "UNMAPPABLE", "rank 1 does not listen here"),
        ({"name": b""}, "UNMAPPABLE", "rank 1 does not listen here"),
        (
            {"token": b"guessed guessed "},
            "INVALID",
            "rank 1 closed the connection without handing over its memory",
        ),
    ],
)
def test_a_forged_address(opened: Opened, changed: dict[str, Any], code: str, text: str) -> None:
    comms = opened(2)
    blob = forged(bindings.comm_address(comms[1]), **changed)
    found, said = refused(comms[0], 1, blob, lambda: bindings.comm_accept(comms[1]))
    assert codes.code_name(found) == code
    with pytest.raises(pycoll.PycollError, match=text):
        codes.raise_for(found, comms[0], said)
    connect_all(comms)  # a lie does no harm to the truth
    end = Stream(comms[0], 0, 2, LENGTHS)
    assert end.begin() == 0


@pytest.mark.parametrize("length", [0, 1, FIELDS.size - 1, FIELDS.size + 1, 1000])
def test_an_address_of_the_wrong_length(opened: Opened, length: int) -> None:
    comms = opened(2)
    blob = (bindings.comm_address(comms[1]) * 12)[:length]
    code, text = refused(comms[0], 1, blob, lambda: None)
    assert code == codes.INVALID
    assert text == f"address of rank 1 has {length} bytes, want {FIELDS.size}"


def test_garbage_for_an_address(opened: Opened) -> None:
    comms = opened(2)
    truth, drawn = bindings.comm_address(comms[1]), random.Random(3)
    for _ in range(500):
        blob = bytearray(drawn.randbytes(FIELDS.size))
        keep = drawn.choice((0, 4, 8, 12, 16, 32))
        blob[:keep] = truth[:keep]
        code, _ = refused(comms[0], 1, bytes(blob), lambda: bindings.comm_accept(comms[1]))
        assert code in (codes.INVALID, codes.UNMAPPABLE)
    connect_all(comms)


@pytest.mark.parametrize(
    "lie", [{}, {"inode": 1}, {"pid": 2**22 + 1}, {"memfd": 0}, {"memfd": 2**31}, {"network": 1}]
)
def test_memory_that_is_not_where_the_address_says_comes_by_the_socket(
    opened: Opened, lie: dict[str, int]
) -> None:
    comms = opened(2)
    blob = bindings.comm_address(comms[1])
    truth = dict(zip(NAMES, FIELDS.unpack(blob), strict=True))
    if lie:
        blob = forged(blob, processes=truth["processes"], **lie)
        assert bindings.comm_connect(comms[0], 1, blob) == codes.AGAIN
        bindings.comm_accept(comms[1])
    assert bindings.comm_connect(comms[0], 1, blob) == 0


def test_an_address_of_the_other_peer(opened: Opened) -> None:
    comms = opened(3)
    blob = forged(bindings.comm_address(comms[2]), rank=1)
    code, text = refused(comms[0], 1, blob, lambda: bindings.comm_accept(comms[2]))
    assert code == codes.INVALID
    assert text.startswith(f"rank 2 of 3 has {SLOTS} slots of {SLOT_BYTES} bytes (")
    assert f", want rank 1 of 3 with {SLOTS} of {SLOT_BYTES} (" in text


def test_a_peer_that_lies_about_its_rank_is_refused_every_time(opened: Opened) -> None:
    comms = opened(3)
    blob = forged(bindings.comm_address(comms[2]), rank=1)
    for _ in range(5):
        refused(comms[0], 1, blob, lambda: bindings.comm_accept(comms[2]))
    # The fixture finds any mapping of these attempts that closing leaves behind.


def test_there_is_no_such_peer(opened: Opened) -> None:
    comms = opened(2)
    assert refused(comms[0], 2, bindings.comm_address(comms[1]), lambda: None) == (
        codes.INVALID,
        "rank 2 of 2",
    )


@pytest.mark.parametrize(
    "options", [{"slots": 4}, {"slot_bytes": 8192}, {"small_bytes": 1088}, {"heap_bytes": 1 << 21}]
)
def test_a_peer_with_other_options(opened: Opened, options: dict[str, int]) -> None:
    mine, other = opened(2)[0], opened(2, **options)[1]
    blob = bindings.comm_address(other)
    code, text = refused(mine, 1, blob, lambda: bindings.comm_accept(other))
    assert code == codes.INVALID
    assert "rank 1" in text
    assert "want" in text


def test_a_peer_of_the_same_length_with_other_slots(opened: Opened) -> None:
    mine = opened(2, slots=2, slot_bytes=8192)[0]
    other = opened(2, slots=4, slot_bytes=4096)[1]
    code, text = refused(mine, 1, bindings.comm_address(other), lambda: bindings.comm_accept(other))
    assert code == codes.INVALID
    assert text.startswith("rank 1 of 2 has 4 slots of 4096 bytes (small ones: 1024; ring: ")
    assert ", want rank 1 of 2 with 2 of 8192 (1024; " in text


class Liar:
    """Listens in place of a rank and answers with what it likes."""

    def __init__(self, comm: Any) -> None:
        name = f"liar-{os.getpid()}".encode()
        self.blob = forged(bindings.comm_address(comm), name=name)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(b"\0" + name)
        self.socket.listen()
        self.socket.setblocking(False)

    def answer(self, data: bytes, fds: Sequence[int]) -> None:
        try:
            client, _ = self.socket.accept()
        except BlockingIOError:
            return
        client.setblocking(True)
        client.recv(100)  # else closing would undo the sending
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        client.sendmsg([data], rights)
        client.close()


MAGIC = struct.pack("<I", 0x53434350)


@pytest.mark.parametrize(
    ("lie", "text"),
    [
        ("nothing", "without handing over"),
        ("no magic", "without handing over"),
        ("two", "rank 1"),
        ("many", "rank 1"),
        ("short", r"memory of rank 1 has 4096 bytes, seals 0x7; want \d+ bytes"),
        ("unsealed", r"memory of rank 1 has \d+ bytes, seals 0; want"),
        ("file", r"memory of rank 1 has \d+ bytes, seals 0xffffffff; want"),
        ("pipe", r"memory of rank 1 has 0 bytes, seals 0xffffffff; want"),
        ("empty", r"memory of rank 1 has magic 0 version 0, want"),
    ],
)
def test_a_peer_that_hands_over_something_else(opened: Opened, lie: str, text: str) -> None:
    comms = opened(2)
    liar = Liar(comms[1])
    memory = os.memfd_create("lie", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    reader, writer = os.pipe()
    with open(bindings.__file__, "rb") as file:
        real = length_of_memory()
        os.ftruncate(memory, 4096 if lie == "short" else real)
        if lie != "unsealed":
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
        fds = {
            "nothing": [],
            "two": [memory, reader],
            "many": [memory, reader, writer, memory],
            "file": [file.fileno()],
            "pipe": [reader],
        }.get(lie, [memory])
        data = b"what" if lie == "no magic" else MAGIC
        code, said = refused(comms[0], 1, liar.blob, lambda: liar.answer(data, fds))
    for fd in (memory, reader, writer):
        os.close(fd)
    liar.socket.close()
    assert code == codes.INVALID
    with pytest.raises(InternalError, match=text):
        codes.raise_for(code, comms[0], said)


def length_of_memory() -> int:
    """Bytes of the rank's memory that this process created last."""
    ours = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed
            if "memfd:pycoll" in os.readlink(f"/proc/self/fd/{fd}"):
                ours.append(int(fd))
    return os.fstat(max(ours)).st_size


def test_a_stranger_gets_nothing_and_is_not_counted(opened: Opened) -> None:
    comms = opened(2)
    fields = dict(zip(NAMES, FIELDS.unpack(bindings.comm_address(comms[1])), strict=True))
    at = b"\0" + fields["name"].rstrip(b"\0")
    hello = struct.Struct("<II16s")
    lies = (
        b"",
        b"hello",
        hello.pack(fields["magic"], 0, b"guessed guessed "),
        hello.pack(fields["magic"] + 1, 0, fields["token"]),
        hello.pack(fields["magic"], 2, fields["token"]),
        hello.pack(fields["magic"], 0, fields["token"]) + b"more",
    )
    for lie in lies:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(at)
            if lie:
                stranger.send(lie)
            else:
                stranger.shutdown(socket.SHUT_WR)
            assert bindings.comm_accept(comms[1]) == 0, lie
            stranger.settimeout(SECONDS)
            data, fds, _, _ = socket.recv_fds(stranger, 64, 4)
            assert (data, fds) == (b"", [])
    connect_all(comms)


# Lies over a socket. A frame is: magic, kind, channel, zero, nbytes, count, credit, signature,
# place, piece; then its bytes.

FRAME = struct.Struct("<IBBHQQQQII")
FRAME_NAMES = ("magic", "kind", "channel", "zero", "nbytes", "count", "credit", "signature",
               "place", "piece")  # fmt: skip
MESSAGE, CREDIT = 1, 2
IN_LINE = 2**32 - 1


def frame(**fields: int) -> bytes:
    message: dict[str, int] = {"magic": 0x31464350, "kind": MESSAGE, "nbytes": 8, "count": 1}
    values = message | fields
    return FRAME.pack(*(values.get(name, 0) for name in FRAME_NAMES)) + bytes(
        min(values["nbytes"], 1 << 20)
    )


def credit(**fields: int) -> bytes:
    return frame(kind=CREDIT, **({"nbytes": 0, "count": 0} | fields))


@pytest.mark.parametrize(
    ("lies", "text"),
    [
        ([frame(magic=0x50434631)], "begins with 0x50434631, kind 1; want 0x31464350"),
        ([frame(kind=0)], "begins with 0x31464350, kind 0"),
        ([frame(kind=3)], "begins with 0x31464350, kind 3"),
        ([frame(zero=1)], "begins with"),
        ([b"GET / HTTP/1.1" + bytes(100)], "begins with 0x20544547"),
        ([frame(channel=6)], "is for channel 6 of 6"),
        ([frame(channel=255)], "is for channel 255 of 6"),
        ([frame(credit=1)], "gives back 1 messages; 0 have been sent"),
        ([credit(credit=2**64 - 1)], "gives back 18446744073709551615 messages; 0 have"),
        ([credit(count=1)], "holds a message besides its credit"),
        ([credit(nbytes=1)], "holds a message besides its credit"),
        ([credit(signature=1)], "holds a message besides its credit"),
        ([credit(place=1)], "holds a message besides its credit"),
        ([frame(nbytes=SLOT_BYTES + 1)], "holds 4097 bytes, which do not fit"),
        ([frame(nbytes=2**32)], "holds 4294967296 bytes, which do not fit"),
        ([frame(nbytes=2**64 - 1)], "holds 18446744073709551615 bytes, which do not fit"),
        ([frame(channel=4, nbytes=41, place=IN_LINE)], "holds 41 bytes, which do not fit"),
        ([frame(channel=4, place=IN_LINE - 1)], "holds 8 bytes, which do not fit"),
        ([frame(channel=5, nbytes=65, place=SLOTS * SLOT_BYTES // 64 - 1)], "holds 65 bytes"),
        ([frame(count=0)], "holds message 0 of channel 0; 0 have been consumed"),
        ([frame(count=33)], "holds message 33 of channel 0; 0 have been consumed"),
        ([frame(count=2**63 + 1)], "holds message 9223372036854775809 of channel 0"),
        ([frame(count=2**64 - 1)], "holds message 18446744073709551615 of channel 0"),
        ([frame(nbytes=41, count=SLOTS + 1)], f"holds message {SLOTS + 1} of channel 0"),
        ([frame(channel=1)] * 2, "holds message 1 of channel 1"),
        ([frame(channel=1, count=n) for n in (2, 1, 2)], "holds message 2 of channel 1"),
        ([frame()[:-1]], "rank 0 is lost: it closed its connection within a message"),
        ([frame()[:47]], "rank 0 is lost: it closed its connection within a message"),
        (
            [frame(nbytes=SLOT_BYTES)[:-1]],
            "rank 0 is lost: it closed its connection within a message",
        ),
        ([credit(), credit()], "rank 0 is lost: it closed its connection"),
        ([], "rank 0 is lost: it closed its connection"),
    ],
)
def test_a_remote_peer_that_lies(opened: Opened, lies: list[bytes], text: str) -> None:
    comm = opened(2, small_bytes=0)[1]
    bindings.comm_remote(comm, 0)
    bindings.comm_sealed(comm)
    ours, liar = joined.sockets()
    bindings.comm_adopt(comm, 0, ours.detach())
    end = Stream(comm, 1, 2, [1000])
    liar.sendall(b"".join(lies))
    liar.close()
    memory = end.memory.ctypes.data
    code = finish(comm, bindings.run(comm, end.plans[1000], memory, memory, SECONDS))
    error = codes.comm_error(comm)
    assert code == (codes.LOST if "lost" in text else codes.INVALID)
    assert (error.code, error.peer) == (code, 0)
    assert text in error.text
    assert bindings.comm_connections(comm, 0) == 0


def test_messages_that_were_refused_need_nobody_who_left(
    opened: Opened, connect_remote: Connect
) -> None:
    comms = opened(3)
    connect_remote(comms)
    joined.close(comms.pop(2), comms)
    sent, got = content(0, 100), np.zeros(100, np.uint8)
    to, frm, gone = (
        (array.ctypes.data, 100, peer, array is sent, UINT8.code)
        for array, peer in ((sent, 1), (got, 0), (sent, 2))
    )
    for number in range(40):  # more than stand on their way at once
        for sending in (True, False):
            assert bindings.refuse_message(comms[0], 2, sending)
        sent[:], work = content(number, 100), bindings.work_place()
        if number % 2:
            assert bindings.post(comms[0], [to], SECONDS, work) == 0
            code = bindings.exchange(comms[1], [frm], SECONDS)
        else:  # the same as a call
            assert bindings.pairwise_submit(comms[0], 7, [to], SECONDS, "call", work) == 0
            code = bindings.pairwise(comms[1], 7, [frm], SECONDS)
        assert finish(comms[1], code) == 0
        assert bindings.work_wait(work, SECONDS) == 0
        assert np.array_equal(got, sent)
    code = finish(comms[0], bindings.exchange(comms[0], [gone], SECONDS))
    assert (code, codes.comm_error(comms[0]).peer) == (codes.LOST, 2)


@algorithm(allreduce)
def past_rank_2(b: ScheduleBuilder) -> None:
    """Rank 0 sends to rank 1; rank 2 is in no call's way."""
    b.chunks(1)
    if b.rank == 0:
        b.send(b.output[:], to=1)
    if b.rank == 1:
        b.recv(b.output[:], frm=0)


def test_a_liar_and_a_dead_peer_do_no_harm_to_calls_without_them(opened: Opened) -> None:
    comms = opened(4)
    link_all(comms)
    plans = [bind(comm, rank, 4, past_rank_2, 1000) for rank, comm in enumerate(comms)]
    joined.close(comms.pop(3), comms)
    liar, theirs = joined.sockets()
    bindings.comm_adopt(comms[1], 2, theirs.detach())
    for number in range(100):
        if number == 10:
            liar.sendall(frame(nbytes=2**40))
        x, out = content(number, 1000), np.zeros(1000, np.uint8)
        at = [x.ctypes.data, out.ctypes.data, x.ctypes.data]
        complete(comms, plans[:3], at, at)
        assert np.array_equal(x, out)
    liar.close()
    assert [bindings.comm_connections(comms[1], peer) for peer in (0, 2, 3)] == [1, 0, 0]
    late = bind(comms[1], 1, 4, get("ring"), 1000)
    code = finish(comms[1], bindings.run(comms[1], late, out.ctypes.data, 0, SECONDS))
    assert code == codes.INVALID
    assert "a frame of rank 2 holds 1099511627776 bytes" in codes.comm_error(comms[1]).text


def test_closing_waits_until_what_was_sent_has_arrived(
    opened: Opened, connect_remote: Connect
) -> None:
    comms = opened(2, slots=16, slot_bytes=1 << 20)
    connect_remote(comms)
    ends = [Stream(comm, rank, 2, [SLOT_BYTES]) for rank, comm in enumerate(comms)]
    for _ in range(100):
        for _ in range(8):
            ends[0].whole()
        for _ in range(8):
            ends[1].whole()
    for _ in range(8):
        ends[0].whole()
    ends[0].plans.clear()
    joined.close(comms.pop(0), comms)
    for _ in range(8):  # and gives credit to one who is gone
        ends[1].whole()
