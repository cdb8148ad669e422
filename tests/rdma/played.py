"""A job in which one rank is pycoll and the others are not: these speak to it through pyverbs.

    played.py SCENE FOLDER

Every rank runs it, and PYCOLL_RANK says which part is whose: rank 0 is pycoll as it stands. In the
others pycoll meets the rest of the job and proves who it is; the authenticated connection then
goes to `peer.Peer`. A rank that ends with 0 saw what it should have seen.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from wireup import HELLO, IN_LINE, LINE, NO_PLACE, OFFERED, P2P, Hello, Kind, Loan, WireupSocket

import pycoll
from pycoll.errors import PycollError
from pycoll.runtime import room
from pycoll.runtime.native import bindings, verbs

PATIENCE = 60.0  #: seconds
GUARD = 4096  #: bytes around what may be written
STRAY = b"\xa5" * 8  #: what is written where nothing may be
MIDDLE = 256  #: elements of an array whose message lies in a small slot
SMALL, LARGE = 40, 4  #: calls; there are 32 lines and 2 slots
COUNT = 1 << 15  #: elements of the large ones: more than a line holds, for several connections
LENT = 1 << 22  #: elements of a message that is read from where it lies
AT_ONCE = 4 << 20  #: bytes of it


FOLDER = Path(sys.argv[2])


def subject(scene: str, folder: Path) -> None:
    """Be rank 0."""
    (folder / "pid").write_text(str(os.getpid()))
    with pycoll.init() as comm:
        assert comm.transport == "verbs", comm.transport
        SUBJECTS[scene](comm)


def large(number: int, count: int = COUNT) -> np.ndarray:
    """The array of a large call."""
    return np.arange(count, dtype=np.float32) % 1000 + number


def calls() -> list[tuple[int, int]]:
    """Return counts and numbers of calls beyond a line: of small slots, then of slots."""
    return [*((MIDDLE, number) for number in range(SMALL)), *((COUNT, n) for n in range(LARGE))]


def sum_all(comm: pycoll.Communicator) -> None:
    """Sum small arrays and large ones, and send and receive."""
    for number in range(SMALL):
        x = np.full(1, float(number))
        comm.allreduce(x)
        assert x[0] == 1000 + 2 * number, (number, x)
    for count, number in calls():
        y = large(number, count)
        comm.allreduce(y)
        assert np.array_equal(y, 3 * large(number, count)), (count, number)
    z = np.arange(4)
    comm.send(z, to=1)
    comm.recv(z, frm=1)
    assert np.array_equal(z, [3, 2, 1, 0]), z


def exchange_long(comm: pycoll.Communicator) -> None:
    """Send a message that its receiver reads from where it lies, and receive one."""
    first = np.zeros(1)
    comm.send(first, to=1)  # the first ones go before anything is known of the other rank
    comm.recv(first, frm=1)
    x = large(7, LENT)
    comm.send(x, to=1)
    comm.recv(x, frm=1)
    assert np.array_equal(x, large(9, LENT))


def sum_twice(comm: pycoll.Communicator, between: Callable[[], None] = lambda: None) -> None:
    """Sum, and sum again; what the other rank does in between takes nothing away."""
    for number in range(2):
        x = np.full(1, float(number))
        comm.allreduce(x)
        assert x[0] == 1000 + 2 * number, (number, x)
        between()
    state = verbs.comm_net_state(comm._engine.comm)
    assert state.live == state.connections == 1, state
    print(f"replayed {state.replayed} failures {state.failures}")


def receive_from_all(comm: pycoll.Communicator) -> None:
    """Exchange a message with each other rank, the last one first."""
    x = np.full(1, 5)
    for rank in range(1, comm.size):
        comm.send(x, to=rank)
    for rank in reversed(range(1, comm.size)):
        comm.recv(x, frm=rank)
        assert x[0] == rank, x


def fail(comm: pycoll.Communicator) -> None:
    """Find that the other rank lies, say what it did, and live."""
    x = np.zeros(1)
    try:
        for _ in range(3):
            comm.send(x, to=1)
            comm.recv(x, frm=1)
    except PycollError as error:
        print(f"{type(error).__name__}: {error}")
        return
    raise AssertionError("nothing was wrong")


SUBJECTS: dict[str, Callable[[pycoll.Communicator], None]] = {
    "speak": sum_all,
    "protect": sum_twice,
    "replay": lambda comm: sum_twice(comm, lambda: until(FOLDER / "gone")),
    "lend": exchange_long,
    "foreign": receive_from_all,
    "greeting": fail,
    "memory": fail,
    "gpu_slots": fail,
    "babble": fail,
    "credit": fail,
    "loan": fail,
    "note_outside": fail,
    "note_of_another": fail,
}


def connected(comm: pycoll.Communicator, sockets: queue.Queue[tuple[int, int]]):
    """Return the peer that this rank is, once rank 0 has connected to it."""
    from peer import Peer

    rank, fd = sockets.get(timeout=PATIENCE)
    assert rank == 0, rank
    devices = [part.split(":")[0] for part in os.environ["PYCOLL_RAILS"].split(",")]
    wireup = WireupSocket(socket.socket(fileno=fd), PATIENCE)
    world = comm._engine.world
    slot = room.with_trailer(world.slot_bytes)
    small = room.small_bytes(world.size, slot, 2, room.slots_room(), world.budget, pinned=True)
    return Peer(wireup, devices, world.slots, slot, small)


def play(scene: str, folder: Path) -> None:
    """Be a rank that is no pycoll."""
    sockets: queue.Queue[tuple[int, int]] = queue.Queue()
    verbs.comm_rails = lambda *_: None
    bindings.comm_adopt = lambda comm, peer, fd: sockets.put((peer, fd))
    with pycoll.init() as comm:
        peer = connected(comm, sockets)
        PLAYERS[scene](peer, folder)


def speak(peer, folder: Path) -> None:
    """Do what `sum_all` does, in the format of the wire."""
    peer.greet()
    for number in range(SMALL):
        message = peer.message()
        assert np.frombuffer(peer.data(message, 8)) == [number]
        peer.send(message, np.full(1, 1000.0 + number).tobytes())
    for count, number in calls():
        message = peer.message()
        data = np.frombuffer(peer.data(message, 4 * count), np.float32)
        assert np.array_equal(data, large(number, count)), (count, number)
        peer.send(message, (2 * data).tobytes(), pieces=len(peer.rails))
    message = peer.message()
    assert (message.channel, message.line.place, message.line.nbytes) == (P2P, IN_LINE, 32)
    assert np.array_equal(np.frombuffer(peer.data(message, 32), np.int64), range(4))
    peer.send(message, np.arange(3, -1, -1).tobytes())
    peer.leave()


class Memory:
    """The memory of rank 0 that this rank may write, and what lies around."""

    def __init__(self, folder: Path, hello: Hello) -> None:
        self._file = open(f"/proc/{(folder / 'pid').read_text()}/mem", "rb", 0)  # noqa: SIM115
        self._spans = [
            (hello.lines - GUARD, hello.lines_bytes + 2 * GUARD),
            (hello.slots - GUARD, hello.slots_bytes + GUARD),
        ]
        # Behind the last record a rank notes what it does itself: see native/core/trace.h.
        self._notes = hello.slots + hello.slots_bytes, GUARD

    def read(self, address: int, nbytes: int) -> bytes:
        """Return what stands at an address of rank 0."""
        self._file.seek(address)
        return self._file.read(nbytes)

    def all(self) -> list[object]:
        """Return all that only an intruder changes; of a rank's notes, whether one has written."""
        spans = [bytearray(self.read(*span)) for span in self._spans]
        for at in range(LINE - 1, len(spans[0]), LINE):
            spans[0][at] &= 0x7F  # of a count: set while its reader sleeps
        return [*map(bytes, spans), STRAY[:4] in self.read(*self._notes)]


def protect(peer, folder: Path) -> None:
    """Write where this rank may, and try to read and to write where it may not."""
    from pyverbs import enums

    write, read = enums.IBV_WR_RDMA_WRITE, enums.IBV_WR_RDMA_READ
    add = enums.IBV_WR_ATOMIC_FETCH_AND_ADD
    peer.greet()
    peer.send(peer.message(), np.full(1, 1000.0).tobytes())
    second = peer.message()  # it waits for an answer to this, and does nothing else
    there, (key,) = peer.theirs, peer.theirs.rails
    lines_end, slots_end = there.lines + there.lines_bytes, there.slots + there.slots_bytes
    memory = Memory(folder, there)

    inside = slots_end - 64  # of the last channel, which nobody uses
    assert peer.attempt(write, inside, key.slots, b"written!") == "SUCCESS"
    assert memory.read(inside, 8) == b"written!"
    before = memory.all()
    for what, opcode, address, by in (
        ("read its slots", read, inside, key.slots),
        ("read its lines", read, there.lines, key.lines),
        ("add to its slots", add, inside, key.slots),
        ("write before its lines", write, there.lines - 8, key.lines),
        ("write over the end of its lines", write, lines_end - 4, key.lines),
        ("write before its slots", write, there.slots - 8, key.slots),
        ("write over the end of its slots", write, slots_end - 4, key.slots),
        ("write far behind its slots", write, slots_end + (1 << 20), key.slots),
        ("write its slots by the key of its lines", write, inside, key.lines),
        ("write its lines by the key of its slots", write, there.lines, key.slots),
        ("write by a key that was changed", write, inside, key.slots ^ 1),
        ("write by a key of nothing", write, inside, 0x7FFFFF00),
    ):
        status = peer.attempt(opcode, address, by, STRAY)
        refusals = {"REM_ACCESS_ERR", *(["REM_INV_REQ_ERR"] if opcode == add else [])}
        assert status in refusals, f"it let this rank {what}: {status}"
        assert memory.all() == before, f"this rank could {what}"
        print(f"refused to let this rank {what}")
    peer.send(second, np.full(1, 1001.0).tobytes())
    peer.leave()


def replay(peer, folder: Path) -> None:
    """Lose a message with its connection, and get it once by the next one."""
    peer.greet()
    peer.send(peer.message(), np.full(1, 1000.0).tobytes())
    peer.silence(0)
    (folder / "gone").touch()  # only now the other rank sends the next one
    second = peer.message()
    assert peer.fences == 1
    peer.send(second, np.full(1, 1001.0).tobytes())
    peer.leave()


def lend(peer, folder: Path) -> None:
    """Read a message from where it lies, and nothing else; then lend one."""
    from pyverbs import enums

    peer.greet()
    peer.send(peer.message(), bytes(8))
    message = peer.message()
    assert message.line.place == OFFERED, message
    theirs = Loan.unpack(message.line.inline)
    key, nbytes = theirs.keys[0], 4 * LENT
    for what, opcode, address in (
        ("write what was lent", enums.IBV_WR_RDMA_WRITE, theirs.address),
        ("read before it", enums.IBV_WR_RDMA_READ, theirs.address - (1 << 20)),
        ("read behind it", enums.IBV_WR_RDMA_READ, theirs.address + nbytes + (1 << 20)),
    ):
        status = peer.attempt(opcode, address, key, b"\xa5" * 8)
        assert status == "REM_ACCESS_ERR", f"it let this rank {what}: {status}"
    parts = range(0, nbytes, AT_ONCE)
    data = b"".join(peer.read(theirs.address + at, AT_ONCE, key) for at in parts)
    assert np.array_equal(np.frombuffer(data, np.float32), large(7, LENT))
    peer.send(message, peer.lend(large(9, LENT).tobytes()).pack(), place=OFFERED)
    peer.until_credit(message.channel)
    peer.leave()


def foreign(peer, folder: Path) -> None:
    """As rank 1, write where only rank 2 may; rank 2 tells it where."""
    from pyverbs import enums

    secrets, done = folder / "secrets", folder / "done"
    peer.greet()
    message = peer.message()
    if os.environ["PYCOLL_RANK"] == "2":
        (folder / "new").write_bytes(peer.theirs.pack())
        (folder / "new").rename(secrets)
        until(done)
        peer.send(message, np.full(1, 2).tobytes())
    else:
        until(secrets)
        others = Hello.unpack(secrets.read_bytes()[: HELLO.size])
        (key,) = others.rails
        memory = Memory(folder, others)
        before = memory.all()
        for at, by in ((others.lines, key.lines), (others.slots, key.slots)):
            status = peer.attempt(enums.IBV_WR_RDMA_WRITE, at, by, b"\xa5" * 8)
            assert memory.all() == before, "rank 1 wrote what only rank 2 may"
            assert status == "REM_ACCESS_ERR", status
        done.touch()
        peer.send(message, np.full(1, 1).tobytes())
    peer.leave()


def until(file: Path) -> None:
    """Wait for a file."""
    deadline = time.monotonic() + PATIENCE
    while not file.exists():
        assert time.monotonic() < deadline, f"no {file}"
        time.sleep(0.01)


def greeting(peer, folder: Path) -> None:
    """Greet with nonsense."""
    peer.wireup.send(Kind.HELLO, peer.theirs._replace(lines_bytes=64).pack())
    peer.leave()


def memory(peer, folder: Path) -> None:
    """Greet with slots in memory of a kind that there is not."""
    peer.wireup.send(Kind.HELLO, peer.theirs._replace(slots_gpu=2).pack())
    peer.leave()


def gpu_slots(peer, folder: Path) -> None:
    """Greet with slots in memory of a GPU which are as long as those of a CPU."""
    peer.wireup.send(Kind.HELLO, peer.theirs._replace(slots_gpu=1).pack())
    peer.leave()


def babble(peer, folder: Path) -> None:
    """Say what is no message."""
    peer.wireup.send(Kind.HELLO, b"too short")
    peer.leave()


def credit(peer, folder: Path) -> None:
    """Give back messages that never were."""
    peer.greet()
    message = peer.message()
    peer.give_back(message.channel, 1000)
    peer.leave()


def note_outside(peer, folder: Path) -> None:
    """Say that a note lies behind all slots."""
    peer.greet()
    message = peer.message()
    peer.claim(message.channel, NO_PLACE - 1, 1)
    peer.leave()


def note_of_another(peer, folder: Path) -> None:
    """Say that the seventh message has come as the first."""
    peer.greet()
    message = peer.message()
    peer.claim(message.channel, NO_PLACE, 7)
    peer.leave()


def loan(peer, folder: Path) -> None:
    """Lend what this rank has not got."""
    peer.greet()
    peer.send(peer.message(), Loan(1 << 40, (0x7FFFFF00,)).pack(), place=OFFERED)
    peer.leave()


PLAYERS = {
    "speak": speak,
    "protect": protect,
    "replay": replay,
    "lend": lend,
    "foreign": foreign,
    "greeting": greeting,
    "memory": memory,
    "gpu_slots": gpu_slots,
    "babble": babble,
    "credit": credit,
    "loan": loan,
    "note_outside": note_outside,
    "note_of_another": note_of_another,
}


if __name__ == "__main__":
    part = subject if os.environ["PYCOLL_RANK"] == "0" else play
    part(sys.argv[1], Path(sys.argv[2]))
