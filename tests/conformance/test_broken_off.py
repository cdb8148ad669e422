"""A transfer that was broken off leaves its memory alone: its user writes there next, or frees it.

Two ranks live in this process. Long messages are read by their receiver from where they lie. Over
RDMA the stand-in's network is between the two: rank 0, which offers the paths, has the device
fake0, and rank 1 has fake4.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import stand_in
from fabric import Fabric as Network
from fabric import Kind
from joined import SECONDS, Opened, attend_until, connect_all, rail_all

from pycoll.dtypes import UINT8
from pycoll.runtime.native import bindings, codes, verbs

DEVICES = ("fake0", "fake4")
NBYTES = 4 << 20
SENT, FRESH, REUSED = 1, 2, 3  #: what elements are
SLOW = 1 << 20  #: bytes per second
#: Longer than between two offers of a path (PC_LONGEST_PAUSE_NS of native/verbs/connection.c).
PAUSE = 1.5
#: Longer than rank 0 misses a rank without paths (PC_RECONNECT_NS of native/verbs/events.c).
LONG = 12.0


@pytest.fixture
def network() -> Network:
    assert stand_in.network is not None
    return stand_in.network


class Transfer:
    """A long message from one rank to the other."""

    def __init__(self, comms: list[Any], lender: int, seconds: float = SECONDS) -> None:
        self.comms = comms
        self.seconds = seconds
        self.lender = lender
        contents = [SENT if rank == lender else FRESH for rank in range(2)]
        self.arrays = [np.full(NBYTES, content, np.uint8) for content in contents]
        self.works = [bindings.work_place() for _ in comms]

    def post(self, *ranks: int) -> None:
        """Post the ends of these ranks."""
        for rank in ranks:
            at, sends = self.arrays[rank].ctypes.data, rank == self.lender
            message = bindings.P2POp(at, NBYTES, 1 - rank, sends, UINT8.code)
            bindings.post(self.comms[rank], [message], self.seconds, self.works[rank])

    def result(self, rank: int) -> int:
        """Go on with it at one rank; AGAIN while it is under way."""
        return bindings.work_wait(self.works[rank], 0.0)

    def end(self, rank: int) -> int:
        """Wait for its end at one rank, which the thread beside it may be about to bring."""
        return bindings.work_wait(self.works[rank], SECONDS)

    def go_on(self) -> list[int]:
        """Go on with it at both ranks."""
        return [self.result(rank) for rank in range(2)]

    def holds(self, rank: int, content: int) -> bool:
        return bool((self.arrays[rank] == content).all())

    def break_off(self, rank: int) -> None:
        """End it at one rank, as any failure does; then its memory is used for something else."""
        bindings.comm_abort(self.comms[rank], 0, -1, "a test broke it off")
        assert self.end(rank) == codes.ABORTED
        self.arrays[rank][:] = REUSED


# Over RDMA.


def waiting_for_a_path(
    comms: list[Any], lender: int, network: Network, seconds: float = SECONDS
) -> Transfer:
    """Begin a transfer of which nothing has been read: the requests wait for a path."""
    rail_all(comms)
    network.cut(DEVICES[1 - lender], DEVICES[lender], Kind.READ)
    transfer = Transfer(comms, lender, seconds)
    transfer.post(0, 1)
    attend_until(comms, lambda states: transfer.go_on() and any(s.failures for s in states))
    network.cut_both(*DEVICES)
    attend_until(comms, lambda states: all(s.queue_pairs == 0 for s in states))
    assert transfer.go_on() == [codes.AGAIN] * 2
    return transfer


def let_paths_be_made(transfer: Transfer, broken: int, network: Network) -> int:
    """Heal the network, and attend for longer than rank 0 pauses between two offers.

    It is over sooner if something is read, or the other rank's end of the transfer has ended.
    """
    until = time.monotonic() + PAUSE
    other = 1 - broken

    def over(_: list[verbs.NetState]) -> bool:
        done = transfer.go_on()[other] != codes.AGAIN or not transfer.holds(broken, REUSED)
        return done or time.monotonic() > until

    network.heal_both(*DEVICES)
    attend_until(transfer.comms, over)
    return transfer.result(other)


@pytest.mark.stand_in
@pytest.mark.parametrize("broken", [0, 1])
def test_nothing_more_is_read_into_it_by_a_later_path(
    opened: Opened, network: Network, broken: int
) -> None:
    transfer = waiting_for_a_path(opened(2), 1 - broken, network)
    transfer.break_off(broken)
    code = let_paths_be_made(transfer, broken, network)
    assert transfer.holds(broken, REUSED)
    assert code in (codes.AGAIN, codes.LOST)


@pytest.mark.stand_in
@pytest.mark.parametrize("broken", [0, 1])
def test_nothing_more_is_read_of_it_by_a_later_path(
    opened: Opened, network: Network, broken: int
) -> None:
    transfer = waiting_for_a_path(opened(2), broken, network)
    transfer.break_off(broken)
    code = let_paths_be_made(transfer, broken, network)
    assert transfer.holds(1 - broken, FRESH)
    assert code in (codes.AGAIN, codes.LOST)


@pytest.mark.stand_in
@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.parametrize("lender", [0, 1])
def test_what_was_being_read_has_stopped_when_the_call_ends(
    opened: Opened, network: Network, lender: int, broken: int
) -> None:
    """A device may write for a while by a queue pair that has failed, but not by none."""
    comms = opened(2)
    rail_all(comms)
    network.slow(DEVICES[lender], SLOW)
    transfer = Transfer(comms, lender)
    transfer.post(0, 1)
    attend_until(comms, lambda _: transfer.go_on() and transfer.arrays[1 - lender][0] == SENT)
    transfer.break_off(broken)
    assert verbs.comm_net_state(comms[broken]).queue_pairs == 0
    network.slow(DEVICES[lender], 0)
    attend_until(comms, lambda states: all(s.queue_pairs == 0 for s in states))
    assert transfer.holds(broken, REUSED)
    assert transfer.result(1 - broken) == codes.AGAIN


# Within a host.


def test_what_a_rank_offered_is_not_taken_after_another_failure_of_that_rank(
    opened: Opened,
) -> None:
    """Another call had failed, so that the transfer is not what broke the communicator."""
    comms = opened(2)
    connect_all(comms)
    first = Transfer(comms, 0)
    first.post(0, 1)
    while codes.AGAIN in first.go_on():
        pass
    transfer = Transfer(comms, 0)  # rank 1 has found out that it can read rank 0's memory
    transfer.post(0)
    bindings.comm_abort(comms[0], 0, -1, "a test broke it off")
    assert bindings.refuse(comms[0]) is None
    # Rank 0's own thread may have met the abort before the refusal ended its transfers.
    assert transfer.end(0) in (codes.BROKEN, codes.ABORTED)
    transfer.arrays[0][:] = REUSED
    transfer.post(1)
    assert [transfer.result(1) for _ in range(10)] == [codes.AGAIN] * 10
    assert transfer.holds(1, FRESH)


@pytest.mark.stand_in
@pytest.mark.parametrize("lender", [0, 1])
def test_who_broke_it_off_is_not_taken_for_one_that_is_gone(
    opened: Opened, network: Network, lender: int
) -> None:
    """Nobody tells the other end why, as the user is elsewhere: it has its own deadline."""
    comms = opened(2)
    transfer = waiting_for_a_path(comms, lender, network, LONG)
    transfer.break_off(1)
    network.heal_both(*DEVICES)
    attend_until(comms, lambda _: transfer.result(0) != codes.AGAIN)
    assert transfer.result(0) == codes.TIMEDOUT, codes.comm_error(comms[0]).text
    assert transfer.holds(1, REUSED)
