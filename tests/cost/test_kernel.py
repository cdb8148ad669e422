"""What is chosen for arrays on GPUs, and what the model of a kernel says of a call."""

from __future__ import annotations

import math

import pytest

from pycoll.algorithms import get
from pycoll.cost import Question, choose, explain, predict
from pycoll.cost.kernel import FENCE, LL, SIMPLE, Kernel
from pycoll.cost.machine import Machine
from pycoll.schedule import COLLECTIVES, Level, Placement


def question(collective: str, nbytes: int, size: int) -> Question:
    return Question(collective, nbytes, size, cores=1, device="cuda")


def chosen(collective: str, nbytes: int, size: int) -> str:
    return choose(question(collective, nbytes, size)).algorithm


def seconds(name: str, nbytes: int, size: int, collective: str = "allreduce") -> float:
    return predict(get(name, collective), nbytes, Machine.of(question(collective, nbytes, size)))


@pytest.mark.parametrize("size", range(2, 9))
def test_a_short_allreduce_takes_one_hop(size: int) -> None:
    for nbytes in (4, 8, 64, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10):
        assert chosen("allreduce", nbytes, size) == "one_shot", nbytes
    assert chosen("allreduce", 64 << 10, size) == "one_shot" or size == 8


def test_where_one_hop_means_many_messages_there_are_more_hops() -> None:
    # Of 7 messages of 128 KiB in packets the link alone has 2.3 us to do, of 3 one.
    names = ("one_shot", "recursive_doubling")
    ahead = [seconds(names[1], n, 8) - seconds(names[0], n, 8) for n in (8, 64 << 10, 128 << 10)]
    assert ahead[0] > 2e-6 > ahead[1] > 0 > ahead[2]
    assert {chosen("allreduce", 8, size) for size in (32, 64)} == {"recursive_doubling"}
    # Each message has two fences from here on, and two_shot 14 of them.
    assert chosen("allreduce", 1 << 20, 8) == "recursive_doubling"


@pytest.mark.parametrize("size", range(2, 17))
def test_a_long_allreduce_sends_little(size: int) -> None:
    for nbytes in (64 << 20, 256 << 20, 1 << 30):
        few = ("double_binary_tree",) if size == 2 else ()  # whose channels overlap their fences
        assert chosen("allreduce", nbytes, size) in ("two_shot", "ring", *few)


@pytest.mark.parametrize("collective", [*COLLECTIVES, "barrier"])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 16, 64])
def test_every_collective_has_a_choice_at_every_length(collective: str, size: int) -> None:
    before = 0.0
    for nbytes in (0, 1, 8, 1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 30):
        told = explain(question(collective, nbytes, size))
        able = [c for c in told.candidates if c.seconds is not None]
        best = min(c.seconds or 0.0 for c in able)
        assert all(c.seconds is not None and math.isfinite(c.seconds) for c in able)
        assert best >= 0.98 * before, "a longer message takes no less time"
        before = best
        mine = next(c for c in able if c.algorithm == told.choice.algorithm)
        assert mine.seconds is not None
        assert mine.seconds <= 1.1 * best


@pytest.mark.parametrize(
    ("collective", "short", "long"),
    [
        ("broadcast", {"direct"}, {"chain"}),
        ("allgather", {"direct"}, {"ring", "direct"}),
        ("reduce_scatter", {"direct"}, {"ring", "direct"}),
        ("alltoall", {"direct"}, {"direct", "spread", "pairwise"}),
    ],
)
def test_other_collectives_of_eight_ranks(collective: str, short: set[str], long: set[str]) -> None:
    assert chosen(collective, 64, 8) in short
    assert chosen(collective, 256 << 20, 8) in long


def test_between_hosts_few_messages_are_sent() -> None:
    hosts = Placement.of(Level("node", (0,) * 8 + (1,) * 8))
    asked = question("allreduce", 8, 16)._replace(
        placement=hosts, remote=True, rdma=True, wire=50e9
    )
    assert choose(asked).algorithm in ("recursive_doubling", "hierarchical_doubling")
    long = choose(asked._replace(nbytes=256 << 20)).algorithm
    assert long not in ("one_shot", "flat_tree", "recursive_doubling")


def test_no_algorithm_beats_the_link() -> None:
    nbytes, link = 1 << 30, Kernel().link
    for size in (2, 8):
        least = 2 * (size - 1) / size * nbytes / link
        for name in ("two_shot", "ring"):
            assert least < seconds(name, nbytes, size) < 1.6 * least
    # The root of a gather takes in what all others send.
    assert seconds("direct", nbytes, 8, "gather") > 7 / 8 * nbytes / link


def test_a_message_in_packets_costs_no_fence_and_no_more_data_than_a_window_takes() -> None:
    assert max(LL.send, LL.receive, SIMPLE.send) < SIMPLE.receive < FENCE == SIMPLE.depart
    short, window = (seconds("one_shot", n, 2) for n in (8, 3072))
    assert window == short
    hop, packets = 1e-6, seconds("one_shot", 64 << 10, 2)
    slots = seconds("one_shot", (64 << 10) + 8, 2)
    assert packets + 2 * FENCE < slots < packets + 4 * hop


def test_how_a_call_is_divided() -> None:
    shape = Kernel().shape
    assert shape(8, 1, True) == (LL, 1)
    assert shape(64 << 10, 1, True) == (LL, 22)
    assert shape(64 << 10, 4, True) == (LL, 6)
    assert shape((64 << 10) + 8, 1, True) == (SIMPLE, 5)
    assert shape(1 << 30, 1, True) == (SIMPLE, 32)
    assert shape(1 << 30, 4, True) == (SIMPLE, 8)
    assert shape(8, 1, False) == (SIMPLE, 1)  # some rank is on another host
