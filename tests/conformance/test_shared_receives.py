"""Receives that a port's connections share: nobody starves, and what fails takes nothing along.

The ranks live in this process; between them lies the stand-in's network.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable

import numpy as np
import pytest
import stand_in
import wireup
from fabric import Fabric as Network
from fabric import Kind
from joined import HASTY, SECONDS, Opened, attend_until, devices, open_rank, rail_all
from stream import Stream, bind

from pycoll.algorithms import algorithm
from pycoll.fabric import Fabric, Rail
from pycoll.runtime.native import bindings, codes, verbs
from pycoll.schedule import ScheduleBuilder, allreduce

pytestmark = pytest.mark.stand_in

OWN, SHARED = 512, 8191  #: receives of a queue pair, and of a shared queue
FEW = 63  #: of a device whose shared queues are short
BATCH = 16  #: fewer than that many may wait to be posted again
RANKS = 8
SLOTS = 16
SLOT_BYTES = 4096
ALL_SHARE = HASTY._replace(srq=0)


@pytest.fixture
def network() -> Network:
    assert stand_in.network is not None
    return stand_in.network


def received_by(network: Network, device: str) -> int:
    """Receives that the rank of this device has posted, and that are not consumed."""
    return sum(one.receives for one in network.opened() if one.device == device)


# Which connections share.


@pytest.mark.parametrize("own", [0, 1, 2, 3])
def test_connections_after_the_first_share(opened: Opened, network: Network, own: int) -> None:
    comms = opened(4)
    rail_all(comms, by=HASTY._replace(srq=own))
    states = [verbs.comm_net_state(comm) for comm in comms]
    assert [(s.sharing, s.unshared) for s in states] == [(3 - own, "")] * 4
    assert network.objects()["srqs"] == (4 if own < 3 else 0)
    full = own * OWN + (SHARED if own < 3 else 0)
    for rank in range(4):
        posted = received_by(network, devices(rank, 4, 1)[0])
        assert full - 4 * BATCH < posted <= full  # probes were consumed


LACKS = {
    "fake0 has no shared receive queue of 32 work requests: its max_srq_wr is 0": {"srq": 0},
    "fake0 has no shared receive queue of 32 work requests: its max_srq_wr is 31": {"srq": 31},
    "fake0 port 1: ibv_create_srq: Cannot allocate memory (max 32767)": {"fail": "create_srq:1"},
    "fake0 port 1: ibv_modify_srq: Cannot allocate memory": {"fail": "modify_srq:1"},
    "fake0 port 1: ibv_post_srq_recv: Input/output error": {"fail": "post_srq_recv:3"},
    "fake0 port 1: ibv_create_qp with a shared receive queue: Cannot allocate memory": {
        # Each of the two ports has tried how much can be inline.
        "fail": "create_qp:3"
    },
}


@pytest.mark.parametrize(
    "why", [pytest.param(why, marks=pytest.mark.stand_in(**how)) for why, how in LACKS.items()]
)
def test_where_they_cannot_be_shared_each_has_its_own(
    opened: Opened, network: Network, why: str
) -> None:
    comms = opened(2)
    rail_all(comms, by=ALL_SHARE)
    state = verbs.comm_net_state(comms[0])
    assert (state.sharing, state.unshared) == (0, why)
    assert OWN - BATCH < received_by(network, "fake0") <= OWN
    for stream in [Stream(comm, rank, 2, [9, 4000]) for rank, comm in enumerate(comms)]:
        stream.whole()
        stream.whole()


class Hub:
    """The last rank of many, of which each other one has asked it for a connection."""

    def __init__(self, size: int, by: Fabric) -> None:
        self.comm = open_rank(size - 1, size)
        self.peers: list[wireup.WireupSocket] = []
        verbs.comm_rails(self.comm, by, [Rail("fake0", 1, -1)])
        for peer in range(size - 1):
            bindings.comm_remote(self.comm, peer)
        bindings.comm_sealed(self.comm)
        for peer in range(size - 1):
            self._ask(peer)
        attend_until([self.comm], lambda states: states[0].queue_pairs == size - 1)
        for sock in self.peers:  # it has connected its end, and posted receives
            reply = sock.receive()
            assert reply is not None
            assert reply.kind is wireup.Kind.REPLY

    def _ask(self, peer: int) -> None:
        near, far = socket.socketpair()
        bindings.comm_adopt(self.comm, peer, near.detach())
        sock = wireup.WireupSocket(far, SECONDS)
        self.peers.append(sock)
        hello = sock.receive()
        assert hello is not None
        sock.send(wireup.Kind.HELLO, hello.body)
        gid = bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 2])
        end = wireup.End(
            *(17 + peer, 0),
            lid=0,
            mtu=5,
            layer=2,
            ipv4=gid,
            ipv6=bytes(16),
            gid_type=2,
            reads=16,
            pkey=0xFFFF,
            pkey_index=0,
        )
        sock.send(wireup.Kind.REQUEST, end.pack(), turn=1)
        bindings.comm_handle_events(self.comm)

    def close(self) -> None:
        bindings.comm_close(self.comm)
        for sock in self.peers:
            sock.close()


@pytest.mark.parametrize(("own", "receives"), [(1023, 1023 * OWN), (16, 16 * OWN + SHARED)])
def test_receives_of_a_rank_with_many_peers(network: Network, own: int, receives: int) -> None:
    with contextlib.closing(Hub(1024, Fabric(srq=own))):
        held = network.objects()
        assert (held["qps"], held["receives"]) == (1023, receives)
    assert set(network.objects().values()) == {0}
    assert network.total("unclosed") == 0


@pytest.mark.stand_in(cqe=32767)
def test_a_short_completion_queue_suffices_for_more_peers(network: Network) -> None:
    # As Soft-RoCE has it: 31 connections with receives of their own would fill it.
    with contextlib.closing(Hub(81, Fabric())):
        held = network.objects()
        assert (held["qps"], held["receives"]) == (80, 16 * OWN + 4095)


# Starving.


@algorithm(allreduce)
def to_first(b: ScheduleBuilder) -> None:
    """Send a chunk from each other rank to rank 0, whose output alone is whole."""
    b.chunks(b.size)
    if b.rank > 0:
        b.send(b.output[b.rank], to=0)
    else:
        for rank in range(1, b.size):
            b.recv(b.output[rank], frm=rank)


class Rush:
    """All ranks but the first send it as many messages as it has slots, before it has come."""

    def __init__(self, opened: Opened, by: Fabric | list[Fabric], messages: int = SLOTS) -> None:
        self.comms = opened(RANKS, slots=SLOTS, slot_bytes=SLOT_BYTES)
        rail_all(self.comms, by=by)
        nbytes = RANKS * messages * SLOT_BYTES
        self.arrays = [np.full(nbytes, rank + 1, np.uint8) for rank in range(RANKS)]
        self.plans = [
            bind(comm, rank, RANKS, to_first, nbytes, slot_bytes=SLOT_BYTES)
            for rank, comm in enumerate(self.comms)
        ]
        self.codes: list[int | None] = [None] * RANKS

    def begin(self, rank: int) -> None:
        at = self.arrays[rank].ctypes.data
        self.codes[rank] = bindings.run(self.comms[rank], self.plans[rank], at, at, SECONDS)

    def begin_sending(self) -> None:
        for rank in range(1, RANKS):
            self.begin(rank)

    def go_on(self) -> bool:
        """Move every rank that is in the call; true when all of those have ended theirs."""
        for rank, code in enumerate(self.codes):
            if code == codes.AGAIN:
                code = self.codes[rank] = bindings.resume(self.comms[rank], 0.0)
                assert code in (0, codes.AGAIN), codes.comm_error(self.comms[rank])
        return codes.AGAIN not in self.codes

    def send_until(self, what: Callable[[list[verbs.NetState]], bool]) -> None:
        """Go on while rank 0 makes no call, until the state of the paths is so.

        Seeing to the paths is not enough: rank 0 may have freed slots of the call before so late
        that a rank has begun this one with few.
        """

        def reached(states: list[verbs.NetState]) -> bool:
            self.go_on()
            return what(states)

        attend_until(self.comms, reached)

    def finish(self) -> None:
        self.begin(0)
        deadline = time.monotonic() + SECONDS
        while not self.go_on():
            assert time.monotonic() < deadline, self.codes
        each = np.split(self.arrays[0], RANKS)
        assert all((chunk == rank + 1).all() for rank, chunk in enumerate(each))
        self.codes = [None] * RANKS
        self.arrays[0][:] = 1


@pytest.mark.stand_in(srq=FEW)
def test_who_sends_to_an_empty_queue_waits_and_loses_nothing(
    opened: Opened, network: Network
) -> None:
    rush = Rush(opened, Fabric(srq=0))
    assert (RANKS - 1) * SLOTS > FEW
    for _ in range(3):
        told = network.total("rnr")
        rush.begin_sending()
        deadline = time.monotonic() + SECONDS
        while network.total("rnr") == told or received_by(network, "fake0"):
            rush.go_on()
            assert time.monotonic() < deadline
        assert codes.AGAIN in rush.codes
        rush.finish()
    states = [verbs.comm_net_state(comm) for comm in rush.comms]
    assert [(s.failures, s.replayed) for s in states] == [(0, 0)] * RANKS


@pytest.mark.stand_in(srq=FEW)
def test_who_waits_for_long_before_an_empty_queue_is_not_stuck(
    opened: Opened, network: Network
) -> None:
    """Elsewhere a send that neither ends nor fails is one that the device tries for ever."""
    rush = Rush(opened, [Fabric(srq=0), *(RANKS - 1) * [Fabric()]])  # those who send share none
    rush.begin_sending()
    told = network.total("rnr")
    end = time.monotonic() + 8  # the patience is 5 s, and 100 ns for each byte
    while time.monotonic() < end or network.total("rnr") == told:
        rush.go_on()
        for comm in rush.comms[1:]:
            bindings.comm_handle_events(comm)
        time.sleep(0.001)
    assert codes.AGAIN in rush.codes
    rush.finish()
    states = [verbs.comm_net_state(comm) for comm in rush.comms]
    assert [(s.failures, s.replayed) for s in states] == [(0, 0)] * RANKS


@pytest.mark.stand_in(srq=FEW)
def test_a_rank_that_computes_starves_nobody(opened: Opened, network: Network) -> None:
    # As the event thread does: it moves only when the device has told that receives are few.
    rush = Rush(opened, Fabric(srq=0))
    ready = select.poll()
    ready.register(bindings.comm_event_fd(rush.comms[0]), select.POLLIN)
    for _ in range(3):
        rush.begin_sending()
        deadline = time.monotonic() + SECONDS
        while not rush.go_on():
            if ready.poll(0):
                bindings.comm_handle_events(rush.comms[0])
            assert time.monotonic() < deadline, rush.codes
        assert rush.codes == [None] + [0] * (RANKS - 1)
        rush.finish()
    assert sum(verbs.comm_net_state(comm).failures for comm in rush.comms) == 0


# Failures.


@pytest.mark.stand_in(srq=FEW)
def test_a_connection_that_fails_takes_no_receives_along(opened: Opened, network: Network) -> None:
    rush = Rush(opened, ALL_SHARE)
    for turn in range(1, RANKS):
        network.fuse(f"fake{turn}", "fake0", after=SLOTS // 2, count=Kind.WRITE_IMM)
        rush.begin_sending()
        rush.send_until(lambda states, turn=turn: states[turn].failures > 0)
        network.heal_both("fake0", f"fake{turn}")
        rush.finish()
        states = attend_until(
            rush.comms, lambda states: all(s.live == s.connections for s in states)
        )
        assert states[0].sharing == RANKS - 1
        attend_until(rush.comms, lambda _: received_by(network, "fake0") > FEW - BATCH)


@pytest.mark.stand_in(srq=FEW, fail="post_srq_recv:60")
def test_a_queue_that_fails_is_made_anew(opened: Opened, network: Network) -> None:
    rush = Rush(opened, ALL_SHARE)
    for _ in range(5):
        rush.begin_sending()
        rush.finish()
    states = attend_until(rush.comms, lambda states: all(s.live == s.connections for s in states))
    assert sum(s.failures for s in states) > 0
    assert [s.sharing for s in states] == [RANKS - 1] * RANKS
    assert network.objects()["srqs"] == RANKS


# What it costs.


def sends_of(opened: Opened, network: Network, by: Fabric) -> int:
    comms = opened(2)
    rail_all(comms, by=by)
    before = network.total("sends")
    ends = [Stream(comm, rank, 2, [40, 4000]) for rank, comm in enumerate(comms)]
    for _ in range(200):
        for end in ends:
            end.whole()
    return network.total("sends") - before


def test_a_message_is_as_many_work_requests(opened: Opened, network: Network) -> None:
    own, shared = (sends_of(opened, network, HASTY._replace(srq=srq)) for srq in (32, 0))
    assert own == shared
