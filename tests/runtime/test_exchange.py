"""Exchanges: what native code serves, in what order it moves, and that Python says all else."""

from __future__ import annotations

import array
import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

import pycoll
from pycoll import BrokenError, CollectiveTimeout, Communicator, MismatchError, PeerLostError
from pycoll.arrays import families
from pycoll.dtypes import DTYPES
from pycoll.errors import BusyError
from pycoll.runtime.native import bindings, codes
from pycoll.runtime.room import SLOT_BYTES, SLOTS

pytestmark = pytest.mark.native

RING = SLOTS * SLOT_BYTES
SIZES = (0, 1, 40, 41, 4096, 32768, 65_537, RING + 1, 3 * RING + 7)
#: So many messages native code takes at once: PC_FEW_TRANSFERS.
FEW = 16


def ranks(size: int, function: Callable[[Communicator], object], timeout: float = 100) -> list[Any]:
    def rank() -> object:
        comm = pycoll.init(timeout=60)
        found = function(comm)
        comm.close()
        return found

    return pycoll.spawn(rank, size, timeout=timeout)


@pytest.fixture(params=["shm", "tcp"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the ranks of a test reach each other: in these no rank can map another, or all can."""
    if request.param == "tcp":
        unmappable = codes.UNMAPPABLE
        monkeypatch.setattr(bindings, "comm_connect", lambda comm, peer, blob: unmappable)
        monkeypatch.setenv("PYCOLL_TRANSPORT", "tcp")
    name: str = request.param
    return name


class Asked:
    """Counts what native code leaves to Python."""

    def __init__(self, comm: Communicator) -> None:
        self.codes: list[int | None] = []
        self._messages = comm._messages
        self.exchange = comm._engine.dispatcher.exchange("it", self._serve, self._refused)

    def _serve(self, what: str, code: int | None, *call: Any) -> Any:
        self.codes.append(code)
        return self._messages._serve_all(what, code, *call)

    def _refused(self, *call: Any) -> None:
        self._messages._refused_all(*call)

    def __call__(self, sends: Any, recvs: Any, async_op: Any = False, timeout: Any = None) -> Any:
        return self.exchange(sends, recvs, async_op, timeout)

    def unserved(self) -> int:
        """How many calls Python made all of: those that only took long do not count."""
        return sum(code is None for code in self.codes)


def data(count: int, dtype: str, seed: int) -> Any:
    return ((np.arange(count) + 7 * seed) % 101).astype(dtype)


def test_every_size_dtype_and_peer_is_one_native_call(transport: str) -> None:
    names = [d.name for d in DTYPES if d.name != "bfloat16"]

    def rank(comm: Communicator) -> tuple[str, int]:
        everybody = range(comm.size)
        comm.exchange(  # every connection is there
            [(np.zeros(1), p) for p in everybody], [(np.zeros(1), p) for p in everybody]
        )
        native = Asked(comm)
        for shift in everybody:  # 0: to itself
            to, frm = (comm.rank + shift) % comm.size, (comm.rank - shift) % comm.size
            for name in names:
                x, y = data(5, name, comm.rank), np.zeros(5, name)
                assert native([(x, to)], [(y, frm)])[0] is y
                assert (y == data(5, name, frm)).all(), name
            for size in SIZES:
                x, y = data(size + 1, "uint8", comm.rank)[1:], np.zeros(size + 2, "uint8")
                native(((x, to),), [[y[1:-1], frm]])
                assert (y[1:-1] == data(size + 1, "uint8", frm)[1:]).all(), size
                assert y[0] == y[-1] == 0
        return comm.transport, native.unserved()

    assert ranks(3, rank) == [(transport, 0)] * 3


def test_an_exchange_that_repeats_runs_one_function_of_python() -> None:
    def rank(comm: Communicator) -> list[list[str]]:
        x, y, peer = np.ones(1), np.zeros(1), 1 - comm.rank
        through: list[list[str]] = []
        sends, recvs = [(x, peer)], [(y, peer)]
        called: list[str] = []

        def look(frame: Any, event: str, _: Any) -> None:
            if event == "call":
                called.append(frame.f_code.co_name)

        comm.barrier()
        for _ in range(20):
            comm.send(x, peer) if comm.rank else comm.recv(y, peer)
            comm.recv(y, peer) if comm.rank else comm.send(x, peer)
            del called[:]
            sys.setprofile(look)
            comm.exchange(sends, recvs)
            sys.setprofile(None)
            # Where a rank waits for the other for long, Python carries the call on.
            if "_serve_all" not in called:
                through.append(called[:])
        return through

    for through in ranks(2, rank):
        assert through
        assert all(called == ["exchange"] for called in through)


def test_several_messages_to_several_ranks_keep_their_order() -> None:
    def rank(comm: Communicator) -> int:
        native = Asked(comm)
        others = [p for p in range(comm.size) if p != comm.rank]
        for turn in range(20):
            sends = [(np.full(4, 100 * turn + i), p) for i in range(4) for p in others]
            recvs = [(np.zeros(4, int), p) for i in range(4) for p in reversed(others)]
            for n, got in enumerate(native(sends, recvs)):
                assert (got == 100 * turn + n // len(others)).all()
        assert len(sends) + len(recvs) == FEW
        assert native.unserved() == 0
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        native([*sends, (np.ones(1), right)], [*recvs, (np.ones(1), left)])
        return native.unserved()

    assert ranks(3, rank) == [1] * 3  # one more than native code takes


def test_in_order_with_sends_receives_and_works_on_the_same_edge(transport: str) -> None:
    def rank(comm: Communicator) -> None:
        peer, number, want = 1 - comm.rank, 0, 0

        def out(count: int = 3) -> Any:
            nonlocal number
            number += 1
            return np.full(count, number)

        def check(y: Any) -> None:
            nonlocal want
            want += 1
            assert (y == want).all(), (y, want)

        room = [np.zeros(3, int) for _ in range(5)]
        for _ in range(10):
            works = [comm.send(out(), peer, async_op=True)]
            works.append(comm.recv(room[0], peer, async_op=True))
            works.append(comm.exchange([(out(), peer)], [(room[1], peer)], async_op=True))
            comm.exchange([(out(), peer)], [(room[2], peer)])  # behind those that are posted
            if comm.rank:
                comm.send(out(), peer)
                comm.recv(room[3], peer)
            else:
                comm.recv(room[3], peer)
                comm.send(out(), peer)
            large = np.zeros(1 << 17, int)
            comm.exchange([(out(1 << 17), peer), (out(), peer)], [(large, peer), (room[4], peer)])
            for work in works:
                work.wait()
            for y in (*room[:4], large, room[4]):
                check(y)
            assert comm.allreduce(np.ones(2))[0] == 2

    ranks(2, rank)


def test_other_threads_wait_for_works_meanwhile(transport: str) -> None:
    def rank(comm: Communicator) -> None:
        peer = 1 - comm.rank
        y = np.zeros(1 << 18)
        ends: list[Any] = []
        for turn in range(20):
            work = comm.exchange(
                [(np.full(1 << 18, float(turn)), peer)], [(y, peer)], async_op=True
            )
            thread = threading.Thread(target=lambda work=work: ends.append(work.wait()))
            thread.start()
            for n in range(20):
                x, z = np.full(2, float(n)), np.zeros(2)
                comm.exchange([(x, peer)], [(z, peer)])
                assert z[0] == n
            thread.join()
            assert (y == turn).all()
        assert len(ends) == 20

    ranks(2, rank)


UNSERVED: dict[str, Callable[[Communicator], tuple[Any, ...]]] = {
    "no pairs": lambda c: ([np.ones(2)], []),
    "no list": lambda c: (5, []),
    "three of a kind": lambda c: ([(np.ones(2), 0, 0)], []),
    "no rank": lambda c: ([(np.ones(2), "0")], []),
    "beyond the last rank": lambda c: ([], [(np.ones(2), c.size)]),
    "negative": lambda c: ([], [(np.ones(2), -1)]),
    "huge": lambda c: ([(np.ones(2), 2**70)], []),
    "half": lambda c: ([(np.ones(2), 0.5)], []),
    "no array": lambda c: ([("text", 0)], []),
    "none": lambda c: ([(None, 0)], [(np.ones(1), 0)]),
    "strided": lambda c: ([(np.ones(6)[::2], 0)], []),
    "read only": lambda c: ([], [(b"four", 0)]),
    "objects": lambda c: ([(np.array([c]), 0)], []),
    "send in receive": lambda c: ([((x := np.ones(6))[:3], 0)], [(x[2:], 0)]),
    "received twice": lambda c: ([], [((x := np.ones(6))[:3], 0), (x[2:], 0)]),
    "the same": lambda c: ([((x := np.ones(6)), 0)], [(x, 0)]),
    "timeout": lambda c: ([], [], False, 0),
    "truth": lambda c: ([], [], np.ones(2), None),
}


@pytest.mark.parametrize("name", UNSERVED)
def test_what_is_refused_is_refused_as_by_python(name: str) -> None:
    def rank(comm: Communicator) -> tuple[Any, Any]:
        def said(exchange: Any) -> str:
            call = (*UNSERVED[name](comm), False, None)[:4]
            with pytest.raises((pycoll.UsageError, ValueError)) as error:
                exchange(*call)
            return f"{type(error.value).__name__}: {error.value}"

        before = bindings.comm_op_count(comm._engine.comm)
        with comm.dup() as other:
            texts = said(comm.exchange), said(other._messages.transfers.exchange)
        # What could not be made has its place all the same.
        assert bindings.comm_op_count(comm._engine.comm) > before
        return texts

    for fast, slow in ranks(1, rank):
        assert fast == slow


def test_what_python_serves_alike() -> None:
    torch = pytest.importorskip("torch")

    def rank(comm: Communicator) -> None:
        native, y = Asked(comm), np.zeros(3)
        x = np.arange(3.0)

        class Rows(list):  # type: ignore[type-arg]
            pass

        for sends, recvs in (
            (iter([(x, 0)]), ((y, 0) for _ in "a")),
            (Rows([(x, 0)]), [(y, 0)]),
            ([(x, np.int64(0))], [(y, True - 1)]),
            ([(torch.arange(3.0).double(), 0)], [(torch.from_numpy(y), 0)]),
            ([(x.astype(">f8"), 0)], [(y.view(">f8"), 0)]),
        ):
            y[:] = 0
            native(sends, recvs)
        assert native.unserved() == 5
        assert native([(x, 0)], [(y, 0)], False, 30.0)[0] is y
        assert native([(x, 0)], [(y, 0)], True, None).wait()[0] is y
        assert native([], []) == []
        assert native.unserved() == 7
        native([(array.array("d", x), 0)], [(memoryview(y), 0)])
        native([(b"abc", 0)], [(bytearray(3), 0)])
        assert native.unserved() == 7

    ranks(1, rank)


def test_the_arrays_are_let_go_however_it_ends() -> None:
    def rank(comm: Communicator) -> None:
        x, y = bytearray(b"12345678"), bytearray(8)
        seen = []

        def free(pairs: Callable[[Any, Any], tuple[Any, Any]]) -> None:
            arrays = [np.arange(4.0), np.zeros(4)]
            seen.extend(weakref.ref(array) for array in arrays)
            # A message that is refused leaves an empty one, on a communicator of its own here.
            with comm.dup() as other, contextlib.suppress(pycoll.UsageError):
                other.exchange(*pairs(*arrays))

        for _ in range(3):
            comm.exchange([(x, 0)], [(y, 0)])
            x += b"can be resized"
            y += b"can be resized"
            free(lambda a, b: ([(a, 0)], [(b, 0)]))
            free(lambda a, b: ([(a, 0)], [(b, "0")]))
            free(lambda a, b: ([(a, 0)], [(a, 0)]))
            free(lambda a, b: ([(a, 0), (b, 7)], []))
        assert len(seen) == 24
        assert all(reference() is None for reference in seen)

    ranks(1, rank)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_list_that_changes_meanwhile(library: str) -> None:
    made = pytest.importorskip(library)

    def rank(comm: Communicator) -> None:
        peer, large = 1 - comm.rank, 1 << 20
        sends = [(made.full((large,), float(comm.rank)), peer)]
        recvs = [(made.zeros((large,)), peer)]

        def clear() -> None:
            wait_until(lambda: comm._engine.waits.waiter != 0)
            sends.clear()
            recvs.clear()
            os.write(held[1], b"x")

        comm.barrier()
        if comm.rank == 0:
            thread = threading.Thread(target=clear)
            thread.start()
            got = comm.exchange(sends, recvs)
            thread.join()
        else:
            os.read(held[0], 1)
            got = comm.exchange(sends, recvs)
        assert (got[0] == peer).all()

    held = os.pipe()
    try:
        ranks(2, rank)
    finally:
        for end in held:
            os.close(end)


def test_ends_that_differ(transport: str) -> None:
    def rank() -> None:
        comm = pycoll.init(timeout=60)
        peer = 1 - comm.rank
        for _ in range(2):
            comm.exchange([(np.ones(2), peer)], [(np.ones(2), peer)])
        with pytest.raises(MismatchError, match=r"recv\([23] elements.* sent [23] elements"):
            comm.exchange([(np.ones(2 + comm.rank), peer)], [(np.ones(2 + comm.rank), peer)])
        with pytest.raises((BrokenError, MismatchError)):
            comm.exchange([(np.ones(2), peer)], [(np.ones(2), peer)])

    pycoll.spawn(rank, 2, timeout=60)


def test_the_deadline_of_an_exchange_names_the_users_line(transport: str) -> None:
    def rank() -> None:
        comm = pycoll.init(timeout=6)  # the ranks meet within it, too
        peer = 1 - comm.rank
        comm.exchange([(np.ones(2), peer)], [(np.ones(2), peer)])
        if comm.rank == 0:
            with pytest.raises(
                CollectiveTimeout,
                match=r"^recv\(2 elements float64\) from rank 1 did not finish within 6 s "
                r"\(at .*test_exchange\.py:\d+\)",
            ):
                comm.exchange([(np.ones(2), peer)], [(np.ones(2), peer)])
        else:
            comm.recv(np.ones(2), 0)  # what rank 0 sends; it is answered by nothing
            with pytest.raises(CollectiveTimeout, match=r"from rank 1 did not finish within 6 s"):
                comm.recv(np.ones(2), 0, timeout=40)

    pycoll.spawn(rank, 2, timeout=60)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("count", [1, 4 * RING])
def test_a_rank_that_is_killed_inside(count: int, victim: int, transport: str) -> None:
    def rank() -> str:
        comm = pycoll.init(timeout=60)
        peer = 1 - comm.rank
        x, y = np.ones(count, "uint8"), np.ones(count, "uint8")
        comm.exchange([(x, peer)], [(y, peer)])
        comm.barrier()
        if comm.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerLostError) as lost:
            comm.exchange([(x, peer)], [(y, peer)])
        with pytest.raises(BrokenError, match="an earlier failure"):
            comm.exchange([(x, peer)], [(y, peer)])
        return str(lost.value)

    found = pycoll.spawn(rank, 2, timeout=60, check=False)
    assert isinstance(found.pop(victim), PeerLostError)
    assert found[0].startswith(f"rank {victim} (process ")
    lost = "is lost: " if transport == "tcp" else f"({count} element{'s' * (count > 1)} uint8)"
    assert lost in found[0]


def test_interrupted_inside() -> None:
    def strike(comm: Communicator) -> None:
        wait_until(lambda: comm._engine.waits.waiter != 0)
        os.kill(os.getpid(), signal.SIGALRM)

    def rank() -> None:
        comm = pycoll.init(timeout=60)
        peer = 1 - comm.rank
        pairs = [(np.zeros(5), peer)], [(np.zeros(5), peer)]
        comm.exchange(*pairs)
        if comm.rank == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            threading.Thread(target=strike, args=[comm]).start()
            with pytest.raises(KeyboardInterrupt):
                comm.exchange(*pairs)
            with pytest.raises(BrokenError, match="KeyboardInterrupt inside a transfer at"):
                comm.exchange(*pairs)
        else:
            with pytest.raises(BrokenError, match="gave up: KeyboardInterrupt inside a transfer"):
                comm.exchange([], [(np.zeros(5), peer), (np.zeros(5), peer)])

    pycoll.spawn(rank, 2, timeout=60)


def test_inside_another_call_and_after_the_end() -> None:
    def rank() -> None:
        comm = pycoll.init(timeout=60)
        peer = 1 - comm.rank
        x, y = np.ones(3), np.zeros(3)
        comm.exchange([(x, peer)], [(y, peer)])
        if comm.rank == 0:

            def handler(*_: Any) -> None:
                with pytest.raises(
                    BusyError, match="is inside a call on this communicator already"
                ):
                    comm.exchange([(x, peer)], [(y, peer)])
                os.write(ends[1], b"x")

            signal.signal(signal.SIGALRM, handler)
            waits = comm._engine.waits
            pid = os.getpid()
            threading.Thread(
                target=lambda: (wait_until(lambda: waits.waiter != 0), os.kill(pid, signal.SIGALRM))
            ).start()
        else:
            os.read(ends[0], 1)
        assert comm.exchange([(x, peer)], [(y, peer)])[0] is y
        comm.barrier()
        comm.close()
        for pairs in (([(x, peer)], [(y, peer)]), ([], [])):
            with pytest.raises(pycoll.ClosedError, match="exchange: the communicator is closed"):
                comm.exchange(*pairs)

    ends = os.pipe()
    try:
        pycoll.spawn(rank, 2, timeout=60)
    finally:
        for end in ends:
            os.close(end)


def test_what_is_looked_at_in_python() -> None:
    """Native code and Python agree about what an array is: the same is sent by either."""

    def rank(comm: Communicator) -> None:
        native = Asked(comm)
        for x in (np.ones((2, 3)), np.float32(3), np.zeros(0), np.ones(3).view("complex64")[:1]):
            want = families.look(x, "x")
            y = np.empty(want.shape, x.dtype)
            native([(x, 0)], [(y, 0)])
            assert (y == x).all()
            comm.send(x, 0)  # and one end by either
            native([], [(y, 0)])

    ranks(1, rank)


def test_tensors_go_by_address() -> None:
    torch = pytest.importorskip("torch")

    def rank(comm: Communicator) -> list[str]:
        peer, called = 1 - comm.rank, set()
        comm.exchange([(np.ones(1), peer)], [(np.ones(1), peer)])

        def look(frame: Any, event: str, _: Any) -> None:
            if event == "call":
                called.add(frame.f_code.co_name)

        sys.setprofile(look)
        for kind in (torch.float64, torch.bfloat16, torch.bool, torch.complex64):
            for count in (0, 1, 100, 100_000):
                x = torch.full((count,), comm.rank, dtype=kind)
                y = torch.full((count,), 5, dtype=kind)
                assert comm.exchange([(x, peer)], [(y, peer)])[0] is y
                assert bool((y == peer).all())
                y.fill_(5)
                if comm.rank:
                    assert comm.send(x, peer) is None
                    assert comm.recv(y, peer) is y
                else:
                    assert comm.recv(y, peer) is y
                    assert comm.send(x, peer) is None
                assert bool((y == peer).all())
        sys.setprofile(None)
        return sorted(called & {"again", "look", "_transfer"})

    assert ranks(2, rank) == [["again"]] * 2


def test_tensors_that_are_refused() -> None:
    torch = pytest.importorskip("torch")
    calls: dict[str, Any] = {
        "shares memory": lambda x: ([(x[:3], 0)], [(x[2:], 0)]),
        "is not contiguous": lambda x: ([(x[::2], 0)], []),
        "the conjugate": lambda x: ([(x.to(torch.complex64).conj(), 0)], []),
        "want a rank": lambda x: ([(x, 7)], []),
        "want an array and a rank": lambda x: ([(x, 0, 0)], []),
        "want a sequence of pairs": lambda x: (x[0], []),
    }

    def rank(comm: Communicator) -> None:
        for text, pairs in calls.items():
            with comm.dup() as other, pytest.raises(pycoll.UsageError, match=text):
                other.exchange(*pairs(torch.arange(6.0)))
        x, y = torch.arange(6.0), torch.zeros(6)
        assert comm.exchange([(x, 0)], [(y, 0)])[0] is y
        assert y.tolist() == x.tolist()
        comm.close()
        for call in (lambda: comm.send(x, 0), lambda: comm.exchange([(x, 0)], [(y, 0)])):
            with pytest.raises(pycoll.ClosedError, match="the communicator is closed"):
                call()

    ranks(1, rank)
