"""Paths that fail: what had landed is never sent again, what had not is sent once by another path.

Two ranks live in this process, and between them lies the stand-in's network, whose packets a test
drops one by one. Rank 0, which sends, has the devices fake0 to fake3; rank 1 has fake4 to fake7.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from typing import Any

import joined
import pytest
import stand_in
from fabric import Fabric as Network
from fabric import Kind
from joined import HASTY, Opened, attend_until, rail_all
from stream import Stream

from pycoll.fabric import Fabric
from pycoll.runtime.native import bindings, codes, verbs

pytestmark = pytest.mark.stand_in

SLOT_BYTES = 128 << 10  #: a message that long is cut over two rails
MESSAGES = 6  #: of a call, all of which can be on their way
SLOTS = 16  #: at least half are free: the receiver may hold back credit for the others
LINES = 32  #: messages after which a line is used again
NOTHING = Kind(0)


@pytest.fixture
def network() -> Network:
    assert stand_in.network is not None
    return stand_in.network


class Pair:
    """Rank 0 sends a row of messages to rank 1, `messages` of a slot's length in each call."""

    def __init__(
        self,
        opened: Opened,
        rails: Sequence[int] | int = 1,
        messages: int = MESSAGES,
        slot_bytes: int = 4096,
        slots: int = SLOTS,
        by: Fabric = HASTY,
    ) -> None:
        self.comms = opened(2, slots=slots, slot_bytes=slot_bytes)
        rail_all(self.comms, rails, by)
        self.slot_bytes = slot_bytes
        lengths = [messages * slot_bytes]
        self.sender, self.receiver = (
            Stream(comm, rank, 2, lengths, slot_bytes) for rank, comm in enumerate(self.comms)
        )
        self.codes: list[int | None] = [None, None]

    def begin(self) -> None:
        """Begin a call: what can be sent is posted, and nothing is received."""
        self.codes = [self.sender.begin(), None]

    def finish(self) -> None:
        """Carry the call to its end."""
        if self.codes[1] is None:
            self.codes[1] = self.receiver.begin()
        while any(self.codes):
            for at, stream in enumerate((self.sender, self.receiver)):
                bindings.comm_handle_events(stream.comm)  # also for the one that has finished
                if self.codes[at] == codes.AGAIN:
                    self.codes[at] = stream.resume()

    def call(self, times: int = 1) -> None:
        """Make calls from their beginning to their end."""
        for _ in range(times):
            self.begin()
            self.finish()

    def until(self, what: Callable[[Any, Any], bool]) -> list[verbs.NetState]:
        """Wait until the state of the two ranks is so; they make no call meanwhile."""
        return attend_until(self.comms, lambda states: what(*states))

    def down(self) -> list[verbs.NetState]:
        """Wait until both ranks have let go of every path."""
        return self.until(lambda a, b: a.queue_pairs == b.queue_pairs == 0)

    def settle(self) -> list[verbs.NetState]:
        """Wait until every path carries messages and all that was posted has ended.

        What is cut after a call is otherwise also its last credit and its acknowledgements.
        """
        network = stand_in.network
        assert network is not None

        def at_rest(*states: verbs.NetState) -> bool:
            return all(s.live == s.connections for s in states) and network.objects()["wrs"] == 0

        return self.until(at_rest)


def both(network: Network, change: str, *rails: int) -> None:
    """Cut or heal these rails, both ways."""
    for rail in rails:
        getattr(network, f"{change}_both")(f"fake{rail}", f"fake{4 + rail}")


def test_the_network_knows_what_has_not_ended(opened: Opened, network: Network) -> None:
    """On which `Pair.settle` relies."""
    pair = Pair(opened, by=Fabric())
    pair.settle()
    both(network, "cut", 0)
    pair.begin()
    held = network.objects()
    assert (held["contexts"], held["qps"]) == (2, 2)
    assert held["wrs"] >= MESSAGES  # a message is one request, or two
    both(network, "heal", 0)
    pair.finish()
    pair.settle()
    assert network.objects()["wrs"] == 0


# Which messages had landed.

FAULTS = {
    "all is dropped behind a line": (
        lambda n: {"count": Kind.WRITE_IMM, "after": n},
        lambda n: n,
    ),
    "behind data whose line is not there": (
        lambda n: {"count": Kind.WRITE, "after": n},
        lambda n: n - 1,
    ),
    "in the middle of data": (
        lambda n: {"after": 5 * n - 3, "packets": True},  # four of data, one of the line
        lambda n: n - 1,
    ),
    "acknowledgements are dropped": (
        lambda n: {
            "count": Kind.WRITE_IMM,
            "after": n,
            "drop": NOTHING,
            "drop_back": Kind.RESPONSES,
        },
        lambda n: MESSAGES,
    ),
    "only requests are dropped": (
        lambda n: {"after": 2 * n, "drop": Kind.REQUESTS, "drop_back": NOTHING},
        lambda n: n,
    ),
}


@pytest.mark.parametrize(
    "like", [pytest.param(x, marks=pytest.mark.stand_in(like=x)) for x in ("mlx5", "rxe")]
)
@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("fault", FAULTS)
def test_only_what_had_not_landed_is_sent_again(
    opened: Opened, network: Network, fault: str, number: int, like: str
) -> None:
    pair = Pair(opened, by=HASTY._replace(mtu=1024))
    pair.call(7)  # the lines and slots are not as they were at first
    before, _ = pair.settle()
    fuse, landed = FAULTS[fault]
    network.fuse("fake0", "fake4", **fuse(number))
    pair.begin()
    sender, _ = pair.until(lambda a, b: a.failures == 1)
    assert network.blown("fake0", "fake4") == 1
    # On a busy machine the path may have failed before the last was posted.
    posted = (sender.bytes[0] - before.bytes[0]) // pair.slot_bytes
    both(network, "heal", 0)
    pair.finish()
    pair.call(12)
    sender, receiver = pair.settle()
    assert sender.replayed == posted - min(posted, landed(number))
    assert receiver.replayed == 0
    assert sender.failures == sender.revivals == receiver.failures == receiver.revivals == 1
    assert network.total("rnr") == 0


def test_what_was_consumed_before_the_path_was_given_up_is_not_sent_again(
    opened: Opened, network: Network
) -> None:
    """The receiver has gone on, and used the slots for nothing: a second copy would be seen."""
    # The path fails after a tenth of a second, by when the receiver's NIC has run.
    pair = Pair(opened, messages=4 * LINES, slots=SLOTS, by=HASTY._replace(timeout=12, retry=7))
    pair.call()
    pair.settle()
    network.fuse(
        "fake0", "fake4", after=3, count=Kind.WRITE_IMM, drop=NOTHING, drop_back=Kind.RESPONSES
    )
    pair.begin()
    pair.codes[1] = pair.receiver.begin()
    assert pair.codes[1] == codes.AGAIN  # but what had come is consumed
    pair.until(lambda a, b: a.failures == 1)
    both(network, "heal", 0)
    pair.finish()
    pair.call(2)
    sender, _ = pair.settle()
    assert sender.replayed == 0


@pytest.mark.parametrize("number", [1, 3])
def test_the_other_rail_takes_over(opened: Opened, network: Network, number: int) -> None:
    pair = Pair(opened, rails=2)
    pair.call(3)
    pair.settle()
    network.fuse("fake0", "fake4", after=number, count=Kind.WRITE_IMM)
    pair.begin()
    pair.finish()
    assert network.blown("fake0", "fake4") == 1
    sender, receiver = pair.until(lambda a, b: a.failures == b.failures == 1)
    assert (sender.live, receiver.live) == (1, 1)
    before = sender.bytes
    pair.call(3)
    sender, _ = pair.until(lambda a, b: True)
    assert sender.bytes[0] == before[0]
    both(network, "heal", 0)
    pair.settle()
    pair.call(3)
    sender, _ = pair.until(lambda a, b: True)
    assert sender.bytes[0] > before[0]


# Long messages, which go in pieces by all rails.

LOST, UNHEARD = "lost", "landed, and its acknowledgement is lost"


@pytest.mark.parametrize(
    ("lost", "again"),
    [
        ({}, {0}),
        ({1: LOST}, {1}),
        ({0: LOST}, {1}),
        ({0: LOST, 1: LOST}, {2, 3}),  # what fails first gives its piece to the other
        ({1: UNHEARD}, {0}),
        ({0: UNHEARD}, {0}),
        ({0: UNHEARD, 1: LOST}, {1, 2}),
        ({0: LOST, 1: UNHEARD}, {1, 2}),
        ({0: UNHEARD, 1: UNHEARD}, {0}),
    ],
)
def test_a_piece_that_had_landed_is_not_sent_again(
    opened: Opened, network: Network, lost: dict[int, str], again: set[int]
) -> None:
    pair = Pair(opened, rails=2, messages=1, slot_bytes=SLOT_BYTES)
    pair.call(5)
    pair.settle()
    for rail, how in lost.items():
        if how == UNHEARD:
            network.cut(f"fake{4 + rail}", f"fake{rail}", Kind.RESPONSES)
        else:
            both(network, "cut", rail)
    pair.begin()
    pair.until(lambda a, b: a.failures == len(lost))
    both(network, "heal", 0, 1)
    pair.finish()
    pair.settle()
    pair.call(LINES + 3)  # the line is used again
    sender, _ = pair.settle()
    assert sender.replayed in again
    assert sender.bytes[0] == pytest.approx(sender.bytes[1], rel=0.2)


def test_pieces_of_many_messages_when_every_path_fails(opened: Opened, network: Network) -> None:
    pair = Pair(opened, 4, 32, slot_bytes=64 << 10, slots=32, by=HASTY._replace(qps=2, timeout=10))
    pair.call()
    pair.settle()
    both(network, "cut", 0, 1, 2, 3)
    pair.begin()
    pair.until(lambda a, b: a.failures == 8)
    both(network, "heal", 0, 1, 2, 3)
    pair.finish()
    pair.call()
    sender, _ = pair.settle()
    assert sender.replayed >= 16 * 8  # half of the credit may be held back


@pytest.mark.stand_in(gbps="100,100,100,10,100,100,100,10")
def test_a_line_that_is_used_again_before_its_last_message_is_acknowledged(
    opened: Opened, network: Network
) -> None:
    """By credit, which came by another path: the message on it then has pieces of its own."""
    # The slow rail gets pieces of one packet, of which many can be on their way unacknowledged.
    by = Fabric(timeout=15, retry=1)
    pair = Pair(opened, 4, messages=80, slot_bytes=64 << 10, slots=4, by=by)
    pair.call()
    pair.settle()
    network.cut("fake7", "fake3", Kind.RESPONSES)
    pair.begin()
    pair.finish()
    network.heal("fake7", "fake3", Kind.RESPONSES)
    pair.settle()
    pair.call(2)


# Rails that are not alike.


@pytest.mark.parametrize("rails", [(1, 2), (1, 4), (4, 1), (3, 2)])
def test_one_end_has_more_rails(opened: Opened, network: Network, rails: tuple[int, int]) -> None:
    pair = Pair(opened, rails, messages=3, slot_bytes=SLOT_BYTES)
    for state in pair.settle():
        assert state.connections == max(rails)
    pair.call(3)
    for rank, count in enumerate(rails):
        # All paths of these ports at once: everything posted comes back by one completion queue.
        for rail in range(count):
            network.down(f"fake{4 * rank + rail}")
        pair.down()
        for rail in range(count):
            network.up(f"fake{4 * rank + rail}")
        pair.settle()
        pair.call(3)


def test_a_slow_rail_gets_what_it_can_carry(opened: Opened, network: Network) -> None:
    pair = Pair(opened, rails=2, messages=400, by=Fabric())
    network.slow("fake1", 1_000_000)
    pair.call()
    sender, _ = pair.settle()
    assert sender.failures == 0
    assert sender.bytes[0] > sender.bytes[1]


@pytest.mark.stand_in(gbps="400,10,400,400,400,10,400,400")
def test_long_messages_leave_out_a_rail_that_would_hold_them_up(opened: Opened) -> None:
    pair = Pair(opened, rails=2, messages=4, slot_bytes=SLOT_BYTES)
    pair.call(3)
    sender, _ = pair.settle()
    assert sender.bytes[1] == 0


@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=pytest.mark.stand_in(jitter=300, seed=n)) for n in range(3)],
)
def test_paths_that_overtake_one_another(opened: Opened, seed: int) -> None:
    pair = Pair(opened, rails=3, messages=12, slot_bytes=SLOT_BYTES, slots=4)
    pair.call(10)
    assert all(state.failures == 0 for state in pair.settle())


# Ports, and whoever sees to them.


@pytest.mark.parametrize("device", ["fake0", "fake4"])
def test_a_port_that_goes_down_and_comes_up(opened: Opened, network: Network, device: str) -> None:
    pair = Pair(opened, rails=2, by=Fabric())  # retries would last longer than this test
    pair.call(3)
    pair.settle()
    network.down(device)
    states = pair.until(lambda a, b: a.failures == b.failures == 1)
    assert [state.live for state in states] == [1, 1]
    pair.call(3)
    network.up(device)
    states = pair.settle()
    assert [state.revivals for state in states] == [1, 1]
    pair.call(3)


def test_a_cable_that_is_out_for_less_than_all_retries(opened: Opened, network: Network) -> None:
    pair = Pair(opened, by=Fabric(timeout=14, retry=7))
    for number in range(5):
        network.cut("fake0", "fake4")
        if number % 2:
            network.cut("fake4", "fake0")
        dropped = network.total("dropped")
        pair.begin()
        while network.total("dropped") == dropped:
            pass
        both(network, "heal", 0)
        pair.finish()
        states = pair.settle()
    assert [(state.failures, state.replayed) for state in states] == [(0, 0)] * 2


def test_a_rank_that_makes_no_call_lets_its_peer_fail_over(
    opened: Opened, network: Network
) -> None:
    """It is told by its descriptor what to see to, and when."""
    pair = Pair(opened, messages=3)
    pair.call(2)
    pair.settle()
    idle = pair.comms[1]
    told = select.poll()
    told.register(bindings.comm_event_fd(idle), select.POLLIN)
    network.fuse("fake0", "fake4", after=1, count=Kind.WRITE_IMM)
    pair.begin()
    while pair.codes[0] == codes.AGAIN:
        if told.poll(0):
            bindings.comm_handle_events(idle)
        if network.blown("fake0", "fake4") and verbs.comm_net_state(idle).failures:
            both(network, "heal", 0)
        pair.codes[0] = pair.sender.resume()
    pair.receiver.whole()
    pair.call(2)
    assert [state.revivals for state in pair.settle()] == [1, 1]


@pytest.mark.parametrize("rails", [1, 2])
@pytest.mark.parametrize(("before", "srq"), [(0, 16), (3, 16), (3, 0)])
def test_a_device_that_tries_for_ever_and_tells_nobody(
    opened: Opened, network: Network, rails: int, before: int, srq: int
) -> None:
    """Soft-RoCE does, once its interface has become too small for a packet. The peer only waits."""
    pair = Pair(opened, rails, slot_bytes=SLOT_BYTES, by=HASTY._replace(srq=srq))
    pair.call(before)
    pair.settle()
    for rail in range(rails):
        network.narrow(f"fake{rail}", 1024)
    pair.call(2)
    states = pair.settle()
    assert [(state.revivals, state.live) for state in states] == [(rails, rails)] * 2


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(verb, marks=pytest.mark.stand_in(fail=f"{verb}:{n}"))
        for verb, n in (("create_qp", 5), ("create_qp", 6), ("modify_qp", 7), ("modify_qp", 12))
    ],
)
def test_a_device_that_refuses_once_while_a_path_is_revived(
    opened: Opened, network: Network, verb: str
) -> None:
    pair = Pair(opened)
    for _ in range(3):
        pair.call()
        network.down("fake0")
        pair.down()
        network.up("fake0")
        pair.settle()
    pair.call()


# The end.


@pytest.mark.parametrize("way", ["ports", "cables"])
def test_without_any_rail_for_long_the_peer_is_lost_on_both_sides(
    opened: Opened, network: Network, way: str
) -> None:
    pair = Pair(opened, rails=2)
    pair.call()
    if way == "ports":
        network.down("fake0")
        network.down("fake1")
    else:
        both(network, "cut", 0, 1)
    pair.begin()
    assert pair.receiver.begin() == codes.AGAIN
    texts = []
    for rank, comm in enumerate(pair.comms):
        while (code := bindings.resume(comm, 0.01)) == codes.AGAIN:
            for other in pair.comms:
                bindings.comm_handle_events(other)
        error = codes.comm_error(comm)
        assert (code, error.code, error.peer) == (codes.LOST, codes.LOST, 1 - rank)
        texts.append(error.text)
    assert texts[0].startswith("rank 1 is lost: no connection to it is left (fake")
    assert texts[1].startswith("rank 0 is lost: ")
    assert ("port" if way == "ports" else "retry counter") in texts[0]
    states = pair.until(lambda a, b: True)
    assert [(state.queue_pairs, state.live) for state in states] == [(0, 0)] * 2


def test_rails_that_come_back_before_hope_is_lost(opened: Opened, network: Network) -> None:
    pair = Pair(opened, rails=2)
    for _ in range(3):
        both(network, "cut", 0, 1)
        pair.begin()
        pair.down()
        both(network, "heal", 1)
        pair.finish()
        both(network, "heal", 0)
        pair.settle()


@pytest.mark.parametrize("rails", [1, 2, 3])
def test_a_peer_that_has_closed_while_the_paths_to_it_failed(
    opened: Opened, network: Network, rails: int
) -> None:
    """All had landed: its last letter says so, and nothing is missed. With two paths, the letter
    on the second one finds that nobody takes letters any more."""
    pair = Pair(opened, rails)
    pair.call()
    pair.settle()
    for rail in range(rails):
        network.fuse(
            f"fake{rail}",
            f"fake{4 + rail}",
            after=MESSAGES // rails,
            count=Kind.WRITE_IMM,
            drop=NOTHING,
            drop_back=Kind.RESPONSES,
        )
    pair.begin()
    pair.receiver.whole()
    pair.receiver.plans.clear()
    bindings.comm_close(pair.comms.pop())
    time.sleep(0.2)  # by now all paths have failed; the sender has not looked
    assert pair.sender.end(joined.finish(pair.sender.comm, pair.codes[0])) == 0
    code = joined.finish(pair.sender.comm, run(pair.sender))
    assert code == codes.LOST
    assert "rank 1 is lost: it closed its connection" in codes.comm_error(pair.sender.comm).text
    assert bindings.comm_connections(pair.sender.comm, 1) == 0


def run(end: Stream) -> int:
    """Begin a call, which may fail."""
    (plan,) = end.plans.values()
    address = end.memory.ctypes.data
    return bindings.run(end.comm, plan, address, address, joined.SECONDS)
