"""Messages on GPUs that do not fit each other, that never come, or that one rank was refused."""

from __future__ import annotations

import functools
import itertools
import os
import re
import select
import signal
from collections.abc import Callable
from typing import Any

import fakecuda
import gpus
import numpy as np
import pytest
from test_device_transfers import WAYS, check, opened

import pycoll
from pycoll import (
    BrokenError,
    CollectiveTimeout,
    Communicator,
    MismatchError,
    PeerLostError,
    PycollError,
    UsageError,
)

pytestmark = gpus.MARKS


def array(count: int, dtype: str = "f4", value: float = 0) -> gpus.Seen:
    return gpus.of(np.full(count, value, dtype))


def sent(comm: Communicator, x: gpus.Seen, peer: int, **more: Any) -> None:
    """Send, to the end."""
    comm.send(x, peer, async_op=True, **more).synchronize()


def received(comm: Communicator, x: gpus.Seen, peer: int, **more: Any) -> np.ndarray[Any, Any]:
    """Receive, to the end."""
    comm.recv(x, peer, async_op=True, **more).synchronize()
    return x.host


def listen(comm: Communicator) -> None:
    """Look for bad news until there is some."""
    while True:
        check(comm)


def heard(
    comm: Communicator, kind: type[PycollError], match: str | None, *steps: Callable[[], Any]
) -> str:
    """Do what goes wrong, and then look for bad news; return what this rank hears."""

    def run() -> None:
        for step in steps:
            step()
        listen(comm)

    with pytest.raises(kind, match=match) as raised:
        run()
    return str(raised.value)


def gone_on(comm: Communicator) -> None:
    """What a program that has caught the error and goes on is told: that it is broken, and why."""
    with pytest.raises(BrokenError, match="an earlier failure broke the communicator"):
        comm.send(array(3), 1 - comm.rank)
    with pytest.raises(BrokenError, match="an earlier failure broke the communicator"):
        comm.allreduce(array(3))
    assert comm.allreduce(np.ones(3)).tolist() == [2.0] * 3  # the host's calls go on


#: What rank 0 sends, and what rank 1 receives: elements, dtype; texts.
DIFFERENT = {
    "longer": ((5, "f4"), (3, "f4"), "3 elements float32", "5 elements float32"),
    "shorter": ((3, "f4"), (5, "f4"), "5 elements float32", "3 elements float32"),
    "dtype": ((3, "f4"), (3, "i4"), "3 elements int32", "3 elements float32"),
    "none": ((0, "f4"), (1, "f4"), "1 element float32", "0 elements float32"),
    "some": ((1, "f4"), (0, "f4"), "0 elements float32", "1 element float32"),
    "lanes": ((900_000, "f4"), (7, "f4"), "7 elements float32", "900000 elements float32"),
    "fewer lanes": ((7, "f4"), (900_000, "f4"), "900000 elements float32", "7 elements float32"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", DIFFERENT)
def test_ends_that_differ(how: str, way: str) -> None:
    give, take, mine, theirs = DIFFERENT[how]

    def rank() -> None:
        comm = opened(way)
        text = rf"recv\({mine}\) from rank 0: rank 0 sent {theirs} \(at .*\.py:\d+\)"
        if comm.rank == 0:
            heard(comm, MismatchError, text, lambda: sent(comm, array(*give), 1))
        else:
            heard(comm, MismatchError, text, lambda: received(comm, array(*take), 0))
        gone_on(comm)
        comm.close()

    gpus.ranks(2, rank)


def test_the_line_of_a_later_call_is_not_taken_for_that_of_the_message() -> None:
    """A kernel fails behind the call that launched it; whose line is said is said, too."""

    def rank() -> str:
        comm = opened()
        x = array(3 + 2 * comm.rank)

        def step() -> None:
            comm.send(x, 1) if comm.rank == 0 else comm.recv(x, 0)

        text = heard(comm, MismatchError, None, step)
        comm.close()
        return text

    for text in gpus.ranks(2, rank):
        assert "recv(5 elements float32) from rank 0: rank 0 sent 3 elements float32" in text
        assert "(found by the call at " in text


def test_parts_of_a_call_that_differ() -> None:
    def rank() -> str:
        comm = opened()
        expected = [3, 3] if comm.rank else [3, 4]
        call = functools.partial(comm.alltoallv, array(6), [3, 3], array(sum(expected)), expected)
        text = heard(comm, MismatchError, None, lambda: call(async_op=True).wait())
        comm.close()
        return text

    for text in gpus.ranks(2, rank):
        assert "recv(4 elements float32) from rank 1: rank 1 sent 3 elements float32" in text


#: Calls of one rank while the other sends and receives, and how long they are: of each form.
ELSEWHERE: dict[str, Callable[[Communicator], Any]] = {
    "packets": lambda comm: comm.allreduce(array(700), async_op=True),
    "plain": lambda comm: comm.allreduce(array(200_000), async_op=True),
    "pairwise": lambda comm: comm.alltoallv(array(6), [3, 3], array(6), [3, 3], async_op=True),
    "direct": lambda comm: comm.allreduce(comm.empty(5000, "f4", device="cuda"), async_op=True),
}


@pytest.mark.parametrize("what", ["send", "recv", "exchange"])
@pytest.mark.parametrize("how", ELSEWHERE)
def test_one_is_in_a_collective(how: str, what: str) -> None:
    """Found out at once, and not when the time is up."""

    def rank() -> str:
        comm = opened(timeout=150, blocks=1)
        ELSEWHERE[how](comm).synchronize()  # its plan is there

        def step() -> None:
            if comm.rank == 1:
                ELSEWHERE[how](comm).synchronize()
            elif what == "send":  # more than there are slots for: else it waits there
                sent(comm, array(2_000_000), 1)
            elif what == "recv":
                received(comm, array(5), 1)
            else:
                comm.exchange([(array(3), 1)], [(array(3), 1)], async_op=True).synchronize()

        text = heard(comm, MismatchError, None, step)
        comm.close()
        return text

    for text in gpus.ranks(2, rank, timeout=100):
        assert re.search(
            r"ranks called different things|rank 1 sent something else|belongs to another", text
        ), text


@pytest.mark.parametrize("what", ["send", "recv"])
def test_one_waits_for_packets(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no direct form, before which ranks tell each other where their arrays are."""
    monkeypatch.setenv("PYCOLL_CUDA_HEAP", "0")

    def rank() -> str:
        comm = opened(timeout=150)
        comm.allreduce(array(700), async_op=True).synchronize()

        def step() -> None:
            if comm.rank == 1:
                comm.allreduce(array(700), async_op=True).synchronize()
            elif what == "send":
                sent(comm, array(3), 1)
            else:
                received(comm, array(3), 1)

        text = heard(comm, MismatchError, None, step)
        comm.close()
        return text

    for text in gpus.ranks(2, rank, timeout=100):
        if what == "recv":
            assert "recv(3 elements float32) from rank 1: rank 1 sent something else" in text
        else:
            assert "rank 1: allreduce(sum, float32, 700 elements); rank 0 sent the" in text


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["send", "recv"])
def test_killed_while_a_message_is_waited_for(what: str, way: str) -> None:
    def rank() -> None:
        comm = opened(way, timeout=150, blocks=1)
        comm.barrier()
        if comm.rank == 1:
            work = comm.recv(array(3), 2, async_op=True)  # which never comes
            assert not work.done()
            comm.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        if comm.rank == 2:
            comm.barrier()
            with pytest.raises(PycollError, match="rank 1"):
                received(comm, array(3), 1)
        else:
            x = array(3_000_000)
            begin = comm.send if what == "send" else comm.recv
            work = begin(x, 1, async_op=True)
            comm.barrier()
            with pytest.raises(PycollError, match=r"rank 1 "):
                work.synchronize()
        with pytest.raises(BrokenError):
            comm.send(array(3), 1)
        comm.close()

    found = gpus.ranks(3, rank, check=False, timeout=100)
    assert isinstance(found.pop(1), PeerLostError)
    assert found == [None, None], found


def test_a_rank_that_does_not_come() -> None:
    def rank() -> None:
        comm = opened()
        comm.barrier()
        text = r"recv\(3 elements float32\) from rank 1 did not finish within 0\.5 s on the GPU"
        if comm.rank == 0:
            with pytest.raises(CollectiveTimeout, match=text + r" \(at .*\.py:\d+\)"):
                received(comm, array(3), 1, timeout=0.5)
        else:
            with pytest.raises(CollectiveTimeout, match=text):
                listen(comm)
        gone_on(comm)
        comm.close()

    gpus.ranks(2, rank)


def test_ranks_that_do_not_take_part_may_leave() -> None:
    """Who left is missed by nobody but those that wait for its messages, and what it sent counts.

    A call of all ranks is another matter.
    """

    def rank() -> None:
        comm = opened(timeout=100)
        x = array(9, value=comm.rank)
        if comm.rank == 2:
            sent(comm, x, 0)
            comm.close()
            return
        if comm.rank == 3:
            comm.close()
            return
        for _ in range(20):
            if comm.rank == 0:
                received(comm, x, 1)
            else:
                sent(comm, x, 0)
        while comm._collectives.launch.cuda.streams.dc.engine.failure.departed() < 1:
            pass
        if comm.rank == 0:
            assert received(comm, x, 2).tolist() == [2.0] * 9
            with pytest.raises(PeerLostError, match=r"rank 2 .* closed .*recv\(9 elements float32"):
                received(comm, x, 2)
        else:
            with pytest.raises(PeerLostError, match="rank 2"):
                listen(comm)
        comm.close()

    gpus.ranks(4, rank)


def test_a_message_to_a_rank_that_has_left() -> None:
    def rank() -> None:
        comm = opened()
        end = os.pidfd_open(int(comm.allgather(np.array([os.getpid()]))[1]))
        comm.barrier()
        if comm.rank == 0:
            select.select([end], [], [])
            text = r"rank 1 .*send\(3 elements float32\) to rank"
            again = itertools.repeat(lambda: sent(comm, array(3), 1))
            heard(comm, PeerLostError, text, *itertools.islice(again, 1000))
        comm.close()

    gpus.ranks(2, rank)


def test_a_launch_that_fails() -> None:
    def rank() -> None:
        comm = opened()
        other = 1 - comm.rank
        comm.barrier()
        if comm.rank == 0:
            fakecuda.fail("cuLaunchKernelEx:1=701")

        def repeat() -> None:
            while True:
                work = comm.exchange([(array(3), other)], [(array(3), other)], async_op=True)
                work.synchronize()

        with pytest.raises(PycollError, match="cuLaunchKernelEx") as failed:
            repeat()
        assert (comm.rank == 0) == (not isinstance(failed.value, BrokenError))
        comm.close()

    gpus.ranks(2, rank)


# Refused on one rank, which goes on.


def refused(comm: Communicator, x: Any, peer: int, sending: bool) -> None:
    """Send or receive a message that is refused."""
    with pytest.raises(UsageError, match="timeout is -1"):
        (comm.send if sending else comm.recv)(x, peer, timeout=-1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("who", [0, 1])
def test_what_one_rank_was_refused_is_not_taken_for_what_follows(who: int, way: str) -> None:
    def rank() -> str:
        comm = opened(way)
        other, x = 1 - comm.rank, array(3)
        if comm.rank == who:
            refused(comm, x, other, comm.rank == 0)

        def steps() -> None:
            for turn in range(20):
                if comm.rank == 0:
                    sent(comm, array(3, value=turn), 1)
                else:
                    assert received(comm, x, 0).tolist() == [float(turn)] * 3

        text = heard(comm, MismatchError, None, steps)
        comm.close()
        return text

    for text in gpus.ranks(2, rank):
        assert (
            "recv(3 elements float32) from rank 0: rank 0 sent a message that was refused" in text
        )
        name = "recv" if who else "send"
        assert re.search(
            rf"rank {who} had called {name} at \S+\.py:\d+, refused with UsageError: {name}: timeo",
            text,
        ), text


@pytest.mark.parametrize("way", WAYS)
def test_ranks_that_are_both_refused_stay_in_step(way: str) -> None:
    def rank() -> None:
        with opened(way) as comm:
            other, x = 1 - comm.rank, array(3)
            for turn in range(12):
                if turn % 3 == 0:
                    refused(comm, x, other, comm.rank == 0)
                if comm.rank == 0:
                    sent(comm, array(3, value=turn), 1)
                else:
                    assert received(comm, x, 0).tolist() == [float(turn)] * 3
                if turn == 6:  # of no rank, and so maybe of any
                    with pytest.raises(UsageError, match="exchange"):
                        comm.exchange([(x, 7)], [(x, 7)])

    gpus.ranks(2, rank)


def test_a_refusal_before_the_gpu_is_open() -> None:
    def rank(alone: bool) -> None:
        comm = pycoll.init(timeout=60)
        other, x = 1 - comm.rank, array(3)
        if comm.rank == 0 or not alone:
            refused(comm, x, other, comm.rank == 0)
        comm.cuda()
        if alone:
            step = functools.partial(sent, comm, x, 1)
            if comm.rank == 1:
                step = functools.partial(received, comm, x, 0)
            text = r"a message that was refused .*; rank 0 had called send at "
            heard(comm, MismatchError, text, step)
        elif comm.rank == 0:
            sent(comm, array(3, value=7), 1)
        else:
            assert received(comm, x, 0).tolist() == [7.0] * 3
        comm.close()

    gpus.ranks(2, rank, False)
    gpus.ranks(2, rank, True)


@pytest.mark.parametrize("what", ["message", "call"])
def test_a_graph_is_replayed_behind_a_refusal(what: str) -> None:
    def rank() -> None:
        comm = opened()
        stream, other = fakecuda.Stream(), 1 - comm.rank
        x, y = array(50), array(50)

        make = functools.partial(comm.exchange, [(x, other)], [(y, other)])
        if what == "call":
            make = functools.partial(comm.alltoallv, x, [25, 25], y, [25, 25])

        def refuse() -> None:
            with pytest.raises(UsageError, match="timeout is -1"):
                make(timeout=-1)

        def replay(turn: int) -> None:
            x.host[...] = 100 * turn + comm.rank
            graphs[0].launch(stream)
            stream.synchronize()
            got = y.host.copy()
            check(comm)
            assert got[25 * other] == 100 * turn + other

        with comm.on_stream(stream), fakecuda.capture(stream) as graphs:
            make()
        for turn in range(6):
            if turn % 2:
                refuse()
            replay(turn)
            with comm.on_stream(stream):
                make()
            stream.synchronize()
            check(comm)
        if comm.rank == 1:
            refuse()
        heard(comm, MismatchError, None, *(functools.partial(replay, turn) for turn in range(20)))
        comm.close()
        graphs[0].close()

    gpus.ranks(2, rank)


def test_counts_of_the_host_and_of_the_gpu_are_refused_together() -> None:
    def rank() -> None:
        comm = opened()
        other, host = 1 - comm.rank, np.zeros(3)
        if comm.rank == 0:
            refused(comm, array(3), other, True)
        if comm.rank == 0:
            with pytest.raises(MismatchError):
                comm.exchange([(host, other)], [(np.zeros(3), other)])
        else:
            with pytest.raises(MismatchError):
                comm.recv(host, other)
        comm.close()

    gpus.ranks(2, rank)
