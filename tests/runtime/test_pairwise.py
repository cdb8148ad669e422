"""Pairwise: every size and order arrives, nothing deadlocks, and what goes wrong is said."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

import pycoll
from pycoll import BrokenError, CollectiveTimeout, Communicator, MismatchError, PeerLostError
from pycoll.dtypes import BY_NAME, UINT8
from pycoll.runtime.native.bindings import P2POp
from pycoll.runtime.p2p.pairwise import Pairwise
from pycoll.runtime.room import SLOT_BYTES, SLOTS
from pycoll.runtime.work import Work

RING = SLOTS * SLOT_BYTES
SIZES = [0, 1, 39, 40, 41, 63, 64, 65, 4095, 4096, 32767, 32768, 32769, SLOT_BYTES - 1, SLOT_BYTES,
         SLOT_BYTES + 1, RING - 1, RING, RING + 1, 5 * RING + 7, 300_001]  # fmt: skip
#: From here on readers fetch a message, if every rank has a core; a lower one is for shared cores.
FETCHED = 16 << 20


def native(engine: Any, receives: bool) -> Callable[[Any, int], Any]:
    """Return a send or a receive that native code serves, but for the end of a long one."""

    def otherwise(what: str, code: int | None, x: Any, peer: int, *more: Any) -> Any:
        assert code is not None, f"not served: {x} {peer}"
        engine.waits.finish_transfer(code, engine.timeout)
        return x if receives else None

    def refused(what: str, error: BaseException, *call: Any) -> None:
        engine.waits.interrupted(error)

    transfer = engine.dispatcher.message("it", receives, otherwise, refused)
    return lambda x, peer: transfer(x, peer, False, None)


class Ends:
    """A rank's send and receive on arrays of bytes."""

    def __init__(self, comm: Communicator) -> None:
        self.rank, self.size, self.engine = comm.rank, comm.size, comm._engine
        self.pairwise = Pairwise(comm._engine)
        self.send = native(comm._engine, receives=False)
        self.recv = native(comm._engine, receives=True)

    def message(self, x: Any, peer: int, sending: bool) -> P2POp:
        code = BY_NAME[x.dtype.name].code
        return P2POp(x.__array_interface__["data"][0], x.nbytes, peer, sending, code)

    def to(self, x: Any, peer: int) -> P2POp:
        return self.message(x, peer, True)

    def frm(self, x: Any, peer: int) -> P2POp:
        return self.message(x, peer, False)

    def exchange(self, *messages: P2POp, timeout: float | None = None) -> None:
        self.pairwise.transfer(messages, timeout)

    def post(self, *messages: P2POp, owner: Any = None, timeout: float | None = None) -> Work:
        return self.pairwise.post(messages, timeout, owner, "post", lambda: "value")


def data(nbytes: int, seed: int = 0) -> Any:
    """Return bytes of which no two positions nearby are alike."""
    return (np.arange(nbytes, dtype="uint64") * 2654435761 + seed * 97 >> 7).astype("uint8")


def ranks(size: int, function: Callable[[Ends], object], timeout: float = 120) -> list[Any]:
    def rank() -> object:
        with pycoll.init() as comm:
            ends = Ends(comm)
            found = function(ends)
            comm.barrier()
            return found

    return pycoll.spawn(rank, size, timeout=timeout)


def test_every_size_arrives_whatever_the_offset() -> None:
    def rank(e: Ends) -> None:
        for n, nbytes in enumerate([*SIZES, FETCHED - 1, FETCHED + 1]):
            want, got = data(nbytes + 1, n)[1:], np.full(nbytes + 2, 0xEE, "uint8")
            into = got[1:-1]
            if e.rank == 0:
                assert e.send(want, 1) is None
                assert e.recv(into, 1) is into
            else:
                e.recv(into, 0)
                e.send(into, 0)
            assert (into == want).all(), nbytes
            assert got[0] == got[-1] == 0xEE

    ranks(2, rank)


@pytest.mark.parametrize("dtype", [name for name in BY_NAME if name != "bfloat16"])
def test_every_dtype(dtype: str) -> None:
    def rank(e: Ends) -> None:
        x = np.arange(100).astype(dtype)
        y = np.zeros_like(x)
        e.exchange(e.to(x, 1 - e.rank), e.frm(y, 1 - e.rank))
        assert (x == y).all()

    ranks(2, rank)


def test_a_dtype_that_numpy_lacks() -> None:
    def rank(e: Ends) -> None:
        x, y = np.arange(100).astype("float16"), np.zeros(100, "float16")
        bits = BY_NAME["bfloat16"].code
        e.exchange(
            e.to(x, 1 - e.rank)._replace(dtype=bits), e.frm(y, 1 - e.rank)._replace(dtype=bits)
        )
        assert (x == y).all()

    ranks(2, rank)


def test_a_stream_of_random_sizes_between_all_ranks() -> None:
    def rank(e: Ends) -> None:
        draw = random.Random(7)
        for number in range(600):
            source, to = draw.sample(range(e.size), 2)
            nbytes = draw.choice(
                [draw.randrange(100), draw.randrange(9000), draw.randrange(3 * RING)]
            )
            x = data(nbytes, number)
            if e.rank == source:
                e.send(x, to)
            elif e.rank == to:
                y = np.empty(nbytes, "uint8")
                e.recv(y, source)
                assert (x == y).all()

    ranks(3, rank)


def test_any_order_among_peers_and_directions() -> None:
    """Both send far more than fits between them, and post in every order."""

    def rank(e: Ends) -> None:
        peers = [p for p in range(e.size) if p != e.rank]
        for seed in range(20):
            draw = random.Random(seed * e.size + e.rank)
            nbytes = [3 * RING + seed, 100, 0, 40, RING][seed % 5]
            got = {p: np.empty(nbytes, "uint8") for p in peers}
            messages = [e.frm(got[p], p) for p in peers]
            sent = {p: data(nbytes, e.rank * 10 + p) for p in peers}
            messages += [e.to(sent[p], p) for p in peers]
            draw.shuffle(messages)
            if seed % 2:
                e.exchange(*messages)
            else:
                works = [e.post(m) for m in messages]
                draw.shuffle(works)
                assert [w.wait() for w in works] == ["value"] * len(works)
            for p in peers:
                assert (got[p] == data(nbytes, p * 10 + e.rank)).all()

    ranks(3, rank)


def test_two_hundred_outstanding() -> None:
    def rank(e: Ends) -> None:
        other = 1 - e.rank
        sent = [data(i * i, i) for i in range(200)]
        got = [np.empty(i * i, "uint8") for i in range(200)]
        works = [e.post(e.frm(y, other)) for y in got]
        works += [e.post(e.to(x, other)) for x in sent]
        for work in reversed(works):
            work.wait()
        assert all((x == y).all() for x, y in zip(sent, got, strict=True))

    ranks(2, rank)


def test_transfers_move_while_nobody_waits_for_them() -> None:
    """Rank 1 receives what is far more than is on its way at once, while rank 0 does nothing."""

    def rank(e: Ends) -> None:
        x = data(8 * RING, 3)
        if e.rank == 0:
            work = e.post(e.to(x, 1))
            e.engine.bootstrap.barrier()  # until rank 1 has all: pycoll sees no call of this rank
            work.wait()
        else:
            y = np.empty(8 * RING, "uint8")
            e.recv(y, 0)
            e.engine.bootstrap.barrier()
            assert (x == y).all()

    ranks(2, rank)


def test_transfers_move_inside_blocking_and_queued_collectives() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            e = Ends(comm)
            left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
            for number in range(30):
                x, y = data(2 * RING + number, comm.rank), np.empty(2 * RING + number, "uint8")
                works = [e.post(e.frm(y, left)), e.post(e.to(x, right))]
                z = np.ones(1 + 1000 * number)
                if number % 3:
                    queued = comm.allreduce(z, async_op=True)
                    e.exchange(e.to(x[:7], right), e.frm(np.empty(7, "uint8"), left))
                    queued.wait()
                else:
                    comm.allreduce(z)
                assert (z == comm.size).all()
                for work in works:
                    work.wait()
                assert (y == data(2 * RING + number, left)).all()

    pycoll.spawn(rank, 3, timeout=120)


def test_to_itself() -> None:
    def rank(e: Ends) -> None:
        me, y = e.rank, np.empty(1000, "uint8")
        e.send(data(1000, 1), me)  # kept until it is received
        e.send(data(1000, 2), me)
        for seed in (1, 2):
            e.recv(y, me)
            assert (y == data(1000, seed)).all()
        work = e.post(e.frm(y, me))
        e.send(data(1000, 3), me)
        work.wait()
        assert (y == data(1000, 3)).all()
        e.exchange(e.frm(y, me), e.to(data(1000, 4), me))
        assert (y == data(1000, 4)).all()

    ranks(2, rank)


def test_what_is_sent_stays_when_the_sender_goes_on_or_leaves() -> None:
    def rank() -> None:
        comm = pycoll.init()
        e = Ends(comm)
        if comm.rank == 0:
            x = data(5000, 5)
            e.send(x, 1)
            x[:] = 0
            comm.close()
        else:
            y = np.empty(5000, "uint8")
            while not comm._engine.failure._departed:
                pass
            e.recv(y, 0)
            assert (y == data(5000, 5)).all()
            with pytest.raises(
                PeerLostError, match=r"^rank 0 .* closed its communicator.* recv\(1 el"
            ):
                e.recv(np.empty(1, "uint8"), 0)
            with pytest.raises(BrokenError, match="an earlier failure"):
                e.send(y, 0)

    pycoll.spawn(rank, 2, timeout=60)


def counts(size: int) -> list[list[int]]:
    return [[(3 * i + 5 * j) % 7 * 9000 * (i != 1) for j in range(size)] for i in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("queued", [False, True])
def test_a_pairwise_batch_among_collectives(size: int, queued: bool) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            e, table = Ends(comm), counts(comm.size)
            for _ in range(5):
                before = comm.allreduce(np.ones(3), async_op=True)
                sent = [data(n, j + comm.rank * 8) for j, n in enumerate(table[comm.rank])]
                got = [np.empty(table[i][comm.rank], "uint8") for i in range(comm.size)]
                messages = [e.to(x, p) for p, x in enumerate(sent)]
                messages += [e.frm(y, p) for p, y in enumerate(got)]
                if queued:
                    work = e.pairwise.submit(
                        "alltoallv", UINT8, None, messages, None, (sent, got), lambda: 7
                    )
                    after = comm.allreduce(np.ones(3), async_op=True)
                    assert work.wait() == 7
                    after.wait()
                else:
                    e.pairwise.call("alltoallv", UINT8, None, messages, None)
                before.wait()
                for p, y in enumerate(got):
                    assert (y == data(len(y), comm.rank + p * 8)).all()

    pycoll.spawn(rank, size, timeout=120)


def test_ends_that_differ() -> None:
    def rank() -> None:
        comm = pycoll.init()
        e = Ends(comm)
        if comm.rank == 0:
            e.send(np.zeros(3, "float32"), 1)
            with pytest.raises(MismatchError, match="rank 0 sent 3 elements float32"):
                e.recv(np.zeros(1), 1)
        else:
            with pytest.raises(
                MismatchError,
                match=r"^recv\(4 elements int32\) from rank 0: rank 0 sent 3 elements float32 "
                r"\(at .*test_pairwise\.py:\d+\)$",
            ):
                e.recv(np.zeros(4, "int32"), 0)
            with pytest.raises(BrokenError, match=r"an earlier failure .* rank 0 sent 3 elements"):
                comm.barrier()

    pycoll.spawn(rank, 2, timeout=60)


@pytest.mark.usefixtures("patient")
def test_batches_of_different_calls() -> None:
    def rank() -> None:
        comm = pycoll.init()
        e = Ends(comm)
        x = np.zeros(1, "uint8")
        what = "gatherv" if comm.rank else "scatterv"
        with pytest.raises(
            MismatchError, match=r"rank 0: scatterv\(uint8, root 0\) at .*gatherv\("
        ):
            e.pairwise.call(what, UINT8, 0, [e.frm(x, 1 - comm.rank)], 60)

    pycoll.spawn(rank, 2, timeout=60)


def test_the_deadline_of_a_transfer() -> None:
    def rank() -> None:
        comm = pycoll.init()
        e = Ends(comm)
        if comm.rank == 0:
            with pytest.raises(
                CollectiveTimeout,
                match=r"^recv\(2 elements float32\) from rank 1 did not finish within 0.2 s "
                r"\(at .*test_pairwise\.py:\d+\); rank 1 has made no call yet$",
            ):
                e.exchange(e.frm(np.zeros(2, "float32"), 1), timeout=0.2)
        else:
            work = e.post(e.frm(np.zeros(3, "float32"), 0))
            with pytest.raises(
                CollectiveTimeout, match=r"^recv\(2 elements float32\) from rank 1 did"
            ):
                work.wait()

    pycoll.spawn(rank, 2, timeout=60)


def test_the_deadline_passes_while_nobody_waits_or_another_call_does() -> None:
    def rank() -> None:
        comm = pycoll.init()
        e = Ends(comm)
        if comm.rank == 0:
            work = e.post(e.frm(np.zeros(2, "float32"), 1), timeout=0.3)
            with pytest.raises(CollectiveTimeout, match=r"from rank 1 did not finish with"):
                comm.barrier()
            assert isinstance(work.exception(), BrokenError | CollectiveTimeout)
        else:
            with pytest.raises(CollectiveTimeout, match=r"from rank 1 did not finish with"):
                e.recv(np.zeros(1), 0)

    pycoll.spawn(rank, 2, timeout=60)


@pytest.mark.parametrize("how", ["recv", "send", "post", "batch"])
def test_a_rank_that_is_killed(how: str) -> None:
    def rank() -> str:
        comm = pycoll.init()
        e = Ends(comm)
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        x = np.zeros(4 * RING, "uint8")
        calls: dict[str, Callable[[], object]] = {
            "recv": lambda: e.recv(x, 1),
            "send": lambda: e.send(x, 1),
            "post": lambda: e.post(e.to(x, 1)).wait(),
            "batch": lambda: e.pairwise.call("alltoallv", UINT8, None, [e.to(x, 1)], 60),
        }
        with pytest.raises(PeerLostError) as lost:
            calls[how]()
        return str(lost.value)

    found = pycoll.spawn(rank, 2, timeout=60, check=False)
    assert isinstance(found[1], PeerLostError)
    assert found[0].startswith("rank 1 (process ")
    # Of a batch, the call status and the transfer itself tell; whichever is first.
    status = how == "batch" and "takes no part in call 2, alltoallv(uint8)" in found[0]
    assert status or "(4194304 elements uint8)" in found[0]


def test_interrupted_inside_a_transfer() -> None:
    def strike(comm: Communicator) -> None:
        wait_until(lambda: comm._engine.waits.waiter != 0)
        os.kill(os.getpid(), signal.SIGALRM)

    def rank() -> None:
        comm = pycoll.init()
        e = Ends(comm)
        if comm.rank == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            threading.Thread(target=strike, args=[comm]).start()
            with pytest.raises(KeyboardInterrupt):
                e.recv(np.zeros(5), 1)
            with pytest.raises(BrokenError, match="KeyboardInterrupt inside a transfer at"):
                e.send(np.zeros(5), 1)
        else:
            with pytest.raises(BrokenError, match="gave up: KeyboardInterrupt inside a transfer"):
                e.recv(np.zeros(5), 0)

    pycoll.spawn(rank, 2, timeout=60)


def test_what_native_code_does_not_serve_goes_on_untouched() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            dispatcher = comm._engine.dispatcher
            seen: list[Any] = []
            told: list[Any] = []

            def otherwise(*call: Any) -> str:
                seen.append(call)
                return "served"

            def fails(*call: Any) -> None:
                raise ValueError(call)

            def refused(*call: Any) -> None:
                told.append(call)

            send = dispatcher.message("a send", False, otherwise, refused)
            recv = dispatcher.message("a recv", True, otherwise, refused)
            x, read_only = np.zeros(4), np.zeros(4)
            read_only.flags.writeable = False
            assert send(x, 1, False, 3) == "served"
            send(x, 0, True, None)
            send(x, -1, False, None)
            send(x, 2**70, False, None)
            send(x, comm.size, False, None)
            send(x[::2], 0, False, None)
            send("text", 0, False, None)
            send(x.astype(">f8"), 0, False, None)
            recv(read_only, 0, False, None)
            recv(x, "0", False, None)
            recv(x, 0, np.ones(2), None)  # which has no truth value
            assert len(seen) == 11
            assert seen[0] == ("a send", None, x, 1, False, 3)
            assert told == []
            with pytest.raises(ValueError, match="None, 'text', 0") as raised:
                dispatcher.message("it", False, fails, refused)("text", 0, False, None)
            assert told == [("it", raised.value, "text", 0, False, None)]
            with pytest.raises(TypeError, match="takes 4 arguments"):
                send(x, 0)
        send(x, 0, False, None)
        assert len(seen) == 12  # closed: whoever serves it says so

    pycoll.spawn(rank, 1, timeout=60)
