"""Two studies of described fabrics: what rails are worth, and what stays below a narrow spine."""

from __future__ import annotations

from collections import Counter

import pytest

from pycoll.algorithms import get, hierarchical
from pycoll.cost import Choice, Explanation, Question, Rates, choose, explain, predict
from pycoll.cost.machine import Machine
from pycoll.cost.traffic import busiest, traffic
from pycoll.cost.work import whole_work_of
from pycoll.topology import HOP, NDR, PCIE, ROCE, Topology, fabric

#: Ranks work for nothing: only the network takes time.
FREE = Rates()._replace(
    **dict.fromkeys(
        ("entry", "message", "latency", "copy", "fold", "store", "fused", "rdma_message"), 0.0
    )
)
LEAF = 2 * PCIE.latency + 2 * ROCE.latency  # seconds of the first byte by one leaf
NODES = 16
MIB = 1 << 20


def question(t: Topology, nbytes: int) -> Question:
    cores = Machine.described(t).cores
    return Question("allreduce", nbytes, t.size, cores, t.placement(), remote=True)


def chosen(t: Topology, nbytes: int) -> Choice:
    return choose(question(t, nbytes), machine=Machine.described(t))


def explained(t: Topology, nbytes: int) -> Explanation:
    return explain(question(t, nbytes), machine=Machine.described(t))


def test_four_rails_against_one() -> None:
    """A ring of 16 nodes: 30 steps, in each of which all send a message and wait for another.

    A chunk of 4 MiB is 16 messages of 256 KiB. On one rail each takes its bytes and one latency;
    on four a quarter of its bytes and one latency.
    """
    ring, nbytes, messages, steps = get("ring"), 64 * MIB, 16, 30
    one, four = fabric(NODES, network=ROCE), fabric(NODES, rails=4, network=ROCE)
    took = {t: predict(ring, nbytes, Machine.described(t, FREE)) for t in (one, four)}
    piece = 256 * 1024 / ROCE.bandwidth
    assert took[one] == pytest.approx(steps * messages * (piece + LEAF))  # 10.55 ms
    assert took[four] == pytest.approx(steps * messages * (piece / 4 + LEAF))  # 3.00 ms
    assert took[one] / took[four] == pytest.approx((20.97 + 1) / (5.243 + 1), rel=1e-3)  # 3.52
    # With slower rails, latencies count less.
    slow = ROCE._replace(bandwidth=25e9 / 8)
    one, four = fabric(NODES, network=slow), fabric(NODES, rails=4, network=slow)
    gain = predict(ring, nbytes, Machine.described(one, FREE)) / predict(
        ring, nbytes, Machine.described(four, FREE)
    )
    assert gain == pytest.approx((83.89 + 1) / (20.97 + 1), rel=1e-3)  # 3.86


def test_four_rails_gain_less_where_ranks_work_for_their_bytes() -> None:
    """One core folds and copies some 12 GB/s: with fast rails it is what all wait for."""
    gains = []
    for wire in (25e9 / 8, 100e9 / 8, 400e9 / 8):
        network = NDR._replace(bandwidth=wire)
        one, four = fabric(NODES, network=network), fabric(NODES, rails=4, network=network)
        best = [min(seconds_of(explained(t, 64 * MIB))) for t in (one, four)]
        gains.append(best[0] / best[1])
    assert 4 > gains[0] > 2 > gains[1] > 1.2 > gains[2] > 1


def seconds_of(told: Explanation) -> list[float]:
    return [c.predicted for c in told.candidates if c.predicted is not None]


def test_a_rail_for_each_gpu() -> None:
    """8 nodes of 4 GPUs: between nodes each rank sends 2 * 7/8 of its quarter, by its own rail."""
    nbytes, algorithm = 64 * MIB, get("hierarchical")
    took = []
    for rails in (1, 4):
        t = fabric(8, 4, rails=rails, gpus=4, network=ROCE)
        assert t.placement().names == ("node",)
        # No message between GPUs of one number leaves its leaf.
        assert {t.hops(r, (r + 4) % 32) for r in range(32)} == {1}
        machine = Machine.described(t, FREE)
        work = whole_work_of(algorithm, t.size, t.placement())
        loads = {x.link.a: x for x in traffic(work, nbytes, machine) if "leaf" in x.link.b}
        assert len(loads) == 8 * rails
        each = 2 * 7 / 8 * nbytes / rails
        assert [x.nbytes for x in loads.values()] == [pytest.approx(each)] * len(loads)
        took.append(predict(algorithm, nbytes, machine, placement=t.placement()))
        assert took[-1] > loads["node0/nic0"].seconds
    # What passes between GPUs of a node takes as long as before.
    inside = 2 * 3 / 4 * nbytes / PCIE.bandwidth
    network = 2 * 7 / 8 * nbytes / ROCE.bandwidth
    assert took[0] == pytest.approx(network + inside, rel=0.05)
    assert took[1] == pytest.approx(network / 4 + inside, rel=0.3)


def racks(oversubscription: float) -> Topology:
    """16 nodes in 4 racks, 4 spines."""
    return fabric(
        NODES,
        leaves=4,
        spines=4,
        rail_optimized=False,
        oversubscription=oversubscription,
        network=ROCE,
    )


def test_below_a_narrow_spine_what_stays_in_the_rack_is_chosen() -> None:
    nbytes = 16 * MIB
    assert "hierarchical" not in chosen(racks(1), nbytes).algorithm
    narrow = racks(8)
    up = 4 * ROCE.bandwidth / 8 / 4  # 1.5625 GB/s from a leaf to a spine
    told = explained(narrow, nbytes)
    assert told.choice == chosen(narrow, nbytes)
    assert told.choice.algorithm == "hierarchical"
    by_name = {c.algorithm: c for c in told.candidates}
    # The last node of a rack sends all of the ring's 15/8 over one spine: 30 MiB, 20.1 ms.
    ring = by_name["ring"].busiest
    assert ring is not None
    assert ring.nbytes == pytest.approx(15 / 8 * nbytes)
    assert by_name["ring"].predicted == pytest.approx(15 / 8 * nbytes / up, rel=0.01)
    # Each node of a rack sends 2 * 3/4 of its quarter; so many of them met on one spine.
    most = lanes_on_one_spine(narrow)
    own = by_name["hierarchical"].busiest
    assert own is not None
    assert own.nbytes == pytest.approx(most * 3 / 8 * nbytes)
    assert by_name["hierarchical"].predicted == pytest.approx(
        most * 3 / 8 * nbytes / up + 3 / 2 * nbytes / ROCE.bandwidth, rel=0.15
    )


def lanes_on_one_spine(t: Topology) -> int:
    """Return how many flows of one rack to the next share a link of a spine, at most."""
    loads = Counter(
        (link.a, link.b)
        for rank in range(NODES)
        for link in t.path(rank, (rank + 4) % NODES)
        if "spine" in link.a + link.b
    )
    return max(loads.values())


def test_the_explanation_names_the_narrow_link_and_the_distances() -> None:
    told = explained(racks(8), 16 * MIB)
    assert ", 1.18 times faster than ring. Its busiest link is leaf" in told.why
    assert "; ring's leaf" in told.why
    assert ": 30 MiB in 20132.7 us." in told.why
    assert told.where == (
        "rank 0 to 3 ranks: 1 hop, RDMA by 1 route, 12.5 GB/s, 1 us",
        "rank 0 to 12 ranks: 3 hops, RDMA by 1 route, 1.562 GB/s, 1.48 us",
    )
    text = str(told)
    assert all(line in text.splitlines() for line in told.where)
    assert "busiest is leaf" in text


def test_a_level_by_leaf_serves_an_algorithm_of_ones_own() -> None:
    """Two rails, four pods of four nodes: nodes of a pod have the same leaves."""
    t = fabric(NODES, 2, rails=2, leaves=8, spines=2, oversubscription=8, network=ROCE, cores=8)
    placement, nbytes = t.placement(), 16 * MIB
    assert placement.names == ("node", "leaf")
    scatter, gather = get("direct", "reduce_scatter"), get("direct", "allgather")
    by_leaf = hierarchical(get("ring"), scatter, gather, level="leaf")
    by_node = hierarchical(get("ring"), scatter, gather, level="node")
    machine = Machine.described(t, FREE)
    sent = {}
    for algorithm in (by_leaf, by_node):
        load = busiest(whole_work_of(algorithm, t.size, placement), nbytes, machine)
        assert load is not None
        sent[algorithm] = load.seconds
        took = predict(algorithm, nbytes, machine, placement=placement)
        assert took >= load.seconds
    assert sent[by_leaf] < sent[by_node]


def test_what_the_spine_costs_a_small_message() -> None:
    t = racks(1)
    assert t.latency(0, 4) - t.latency(0, 1) == pytest.approx(2 * HOP)
