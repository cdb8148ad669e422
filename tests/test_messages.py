"""Messages between two ranks as users send them: what arrives, and what is refused."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

import pycoll

pytestmark = pytest.mark.native


def ranks(size: int, function: Any) -> list[Any]:
    return pycoll.spawn(function, size, timeout=100)


@pytest.mark.parametrize("dtype", ["float64", "uint8"])
def test_messages_round_a_ring(dtype: str) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            right, left = (comm.rank + 1) % 3, (comm.rank - 1) % 3
            for count in (0, 1, 5, 100, 70_001):
                x = (np.arange(count + 1) + comm.rank).astype(dtype)[1:]
                y = np.empty_like(x)
                want = (np.arange(count + 1) + left).astype(dtype)[1:]
                if comm.rank == 0:
                    assert comm.send(x, right) is None
                    assert comm.recv(y, left) is y
                else:
                    assert comm.recv(y, left) is y
                    assert comm.send(x, right) is None
                assert np.array_equal(y, want)
                y[...] = 0
                works = [
                    comm.recv(y, left, async_op=True),
                    comm.send(x, right, async_op=True, timeout=60),
                ]
                assert works[0].wait() is y
                assert works[1].wait() is None
                assert np.array_equal(y, want)
                y[...] = 0
                assert comm.exchange([(x, right)], [(y, left)])[0] is y
                assert np.array_equal(y, want)

    ranks(3, rank)


def test_a_batch_with_every_rank_in_any_order() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            r = comm.rank
            for turn in range(5):
                sends = [(np.full(100 * to + turn, 10 * r + to), to) for to in range(4)]
                recvs = [(np.empty(100 * r + turn, int), frm) for frm in reversed(range(4))]
                if turn % 2:
                    done = comm.exchange(sends, recvs, async_op=True).wait()
                else:
                    done = comm.exchange(sends, recvs, timeout=60)
                for got, (want, frm) in zip(done, recvs, strict=True):
                    assert got is want
                    assert (got == 10 * frm + r).all()
            assert comm.exchange() == []
            assert comm.exchange(async_op=True).wait() == []

    ranks(4, rank)


def test_whatever_is_an_array() -> None:
    torch = pytest.importorskip("torch")

    def rank() -> None:
        with pycoll.init() as comm:
            for _ in range(2):
                if comm.rank == 0:
                    comm.send(torch.arange(5).bfloat16(), 1)
                    comm.send(b"hello", to=1)
                    comm.send(array.array("d", [1, 2]), 1)
                else:
                    x = torch.zeros(5, dtype=torch.bfloat16)
                    assert comm.recv(x, 0) is x
                    assert x.tolist() == [0, 1, 2, 3, 4]
                    assert comm.recv(bytearray(5), frm=0) == b"hello"
                    assert comm.recv(np.empty((2, 1)), 0).tolist() == [[1], [2]]

    ranks(2, rank)


def test_messages_move_beside_collectives() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            other = 1 - comm.rank
            x, y = np.full(1 << 20, comm.rank), np.empty(1 << 20, int)
            work = comm.exchange([(x, other)], [(y, other)], async_op=True)
            for _ in range(20):
                assert comm.allreduce(np.ones(10))[0] == 2
            work.wait()
            assert (y == other).all()

    ranks(2, rank)


def test_lengths_that_differ() -> None:
    def rank() -> None:
        comm = pycoll.init(timeout=60)

        def transfer() -> None:
            comm.recv(np.ones(2), 0) if comm.rank else comm.send(np.ones(3), 1)
            comm.barrier()

        with pytest.raises(
            (pycoll.MismatchError, pycoll.BrokenError), match=r"2 elements.* 3 elements"
        ):
            transfer()

    ranks(2, rank)


def test_what_is_refused() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            x, fixed = np.ones(6), np.ones(6)
            fixed.flags.writeable = False
            for call, message in (
                (lambda: comm.send(x, 1), "send: to is 1, want a rank, 0 to 0"),
                (lambda: comm.recv(x, -1), "recv: frm is -1, want a rank"),
                (lambda: comm.recv(fixed, 0), "recv: x is read-only"),
                (lambda: comm.send(x[::2], 0), "send: x is not contiguous"),
                (lambda: comm.send(None, 0), "send: x is None, want an array"),
                (lambda: comm.send(x, 0, timeout=0), "send: timeout is 0, want seconds"),
                (lambda: comm.exchange([x]), r"exchange: sends\[0\] is array.*want an array and a"),
                (lambda: comm.exchange(iter([(x, 7)])), r"rank of sends\[0\] is 7, want a rank"),
                (
                    lambda: comm.exchange([(x[:3], 0)], [(x[2:], 0)]),
                    r"recvs\[0\] shares memory with another array",
                ),
                (
                    lambda: comm.exchange([], [(x[:3], 0), (x[2:], 0)]),
                    r"recvs\[1\] shares memory with another array",
                ),
            ):
                with pytest.raises(pycoll.UsageError, match=message):
                    call()
            with comm.dup() as other:  # here refused messages stand where these would go
                other.exchange(((x, 0) for _ in "ab"), [(y := np.empty(6), 0), (np.empty(6), 0)])
                assert (y == 1).all()
        for call in (lambda: comm.send(x, 0), lambda: comm.recv(x, 0), lambda: comm.exchange()):
            with pytest.raises(pycoll.ClosedError, match="the communicator is closed"):
                call()

    ranks(1, rank)
