"""What rails, spines and RDMA make of a message's time, by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest

from pycoll.algorithms import BUILTIN, get
from pycoll.cost import Question, explain, predict
from pycoll.cost.candidate import candidates
from pycoll.cost.machine import STRIPE_BYTES, Machine, Rates
from pycoll.cost.prediction import least
from pycoll.cost.select import winner
from pycoll.cost.store import key
from pycoll.cost.traffic import busiest, busiest_of, traffic
from pycoll.cost.work import whole_work_of
from pycoll.errors import ScheduleError
from pycoll.schedule import FLAT, Algorithm, Level, Placement, ScheduleBuilder, allreduce
from pycoll.topology import ETHERNET, HOP, MEMORY, NDR, PCIE, ROCE, Link, Topology, cluster, fabric

#: Ranks work for nothing: only what is between them takes time.
FREE = Rates()._replace(
    **dict.fromkeys(
        ("entry", "message", "latency", "copy", "fold", "store", "fused", "rdma_message"), 0.0
    )
)
NIC = NDR.bandwidth
LEAF = 2 * PCIE.latency + 2 * NDR.latency  # seconds of the first byte by one leaf
SPINE = LEAF + 2 * HOP
MIB = 1 << 20
LONG, SHORT = 4 * STRIPE_BYTES, STRIPE_BYTES // 2


def swaps(chunks: int = 1, apart: int = 1) -> Algorithm:
    """Return: ranks that far apart swap all they have, in so many messages."""

    def made(b: ScheduleBuilder) -> None:
        """Swap."""
        b.chunks(chunks)
        peer = (b.rank + apart) % b.size
        for chunk in range(chunks):
            b.send(b.output[chunk], to=peer)
        for chunk in range(chunks):
            b.recv_reduce(b.output[chunk], frm=(b.rank - apart) % b.size)

    return Algorithm(made, allreduce)


def seconds(t: Topology, nbytes: int, algorithm: Algorithm, flows: int = 1) -> float:
    return predict(algorithm, nbytes, Machine.described(t, FREE, flows))


def test_a_long_message_is_cut_over_all_rails() -> None:
    one, four = fabric(2), fabric(2, rails=4)
    assert seconds(one, LONG, swaps()) == pytest.approx(LONG / NIC + LEAF)
    assert seconds(four, LONG, swaps()) == pytest.approx(LONG / (4 * NIC) + LEAF)


def test_a_piece_of_every_rail_takes_the_same_time_whatever_its_speed() -> None:
    t = fabric(2, rails=2, speeds=[3 * NIC, NIC])
    assert seconds(t, LONG, swaps()) == pytest.approx(LONG / (4 * NIC) + LEAF)


def test_a_short_message_goes_by_one_rail_and_the_next_by_another() -> None:
    one, two, four = fabric(2), fabric(2, rails=2), fabric(2, rails=4)
    for t in (one, two, four):
        assert seconds(t, SHORT, swaps()) == pytest.approx(SHORT / NIC + LEAF)
    want = {1: one, 2: two, 4: four}
    for rails, t in want.items():
        assert seconds(t, 4 * SHORT, swaps(4)) == pytest.approx(4 / rails * SHORT / NIC + LEAF)


def test_a_short_message_takes_the_fastest_rail() -> None:
    t = fabric(2, rails=2, speeds=[NIC / 2, NIC])
    assert seconds(t, SHORT, swaps()) == pytest.approx(SHORT / NIC + LEAF)


def test_short_messages_are_received_in_the_order_in_which_they_were_sent() -> None:
    """The first of two goes by the fast rail, the second by the slow one, the third behind it."""
    t = fabric(2, rails=2, speeds=[NIC, NIC / 8])
    # Behind two others the fast one is still sooner than the slow one.
    assert seconds(t, 3 * SHORT, swaps(3)) == pytest.approx(3 * SHORT / NIC + LEAF)


def fullest(t: Topology, flows: int) -> float:
    """Return how many messages the fullest spine link carries if each node sends half way on."""
    half, loads = t.size // 2, defaultdict[Link, float](float)
    for rank in range(t.size):
        for route in t.routes(rank, (rank + half) % t.size, flows):
            for link in route.links:
                loads[link] += route.share
    return max(load for link, load in loads.items() if "spine" in link.a + link.b)


def test_flows_that_hash_to_one_spine_share_it() -> None:
    """8 nodes of a rack send to 8 of another by 4 spines, whose links are as wide as a NIC."""
    t = fabric(16, leaves=2, spines=4, rail_optimized=False, oversubscription=2)
    most = fullest(t, 1)
    assert most > 2  # which would be fair
    assert seconds(t, LONG, swaps(apart=8)) == pytest.approx(most * LONG / NIC + SPINE)
    fairer = fullest(t, 8)
    assert fairer < most
    spread = seconds(t, LONG, swaps(apart=8), flows=8)
    assert spread == pytest.approx(fairer * LONG / NIC + SPINE, rel=0.01)


def test_an_oversubscribed_spine_is_where_messages_wait() -> None:
    t = fabric(8, leaves=2, rail_optimized=False, oversubscription=4)
    near, far = seconds(t, LONG, swaps(apart=1)), seconds(t, LONG, swaps(apart=4))
    # Four nodes share one link that is as wide as a NIC.
    assert far == pytest.approx(4 * LONG / NIC + SPINE)
    # To the next node: one of four of a rack leaves it.
    assert near == pytest.approx(LONG / NIC + SPINE)


def pair(b: ScheduleBuilder) -> None:
    """Both ranks swap."""
    b.chunks(1)
    b.send(b.output[:], to=1 - b.rank)
    b.recv_reduce(b.output[:], frm=1 - b.rank)


def test_what_ranks_pay_for_a_message_depends_on_the_way() -> None:
    swap, n, r = Algorithm(pair, allreduce), 4096, Rates()
    work = r.entry + n * (2 * r.copy + r.fold)

    def took(t: Topology) -> float:
        return predict(swap, n, Machine.described(t)) - work - r.latency

    # Both messages cross the one memory.
    near = 2 * r.message + MEMORY.latency + 2 * n / MEMORY.bandwidth
    assert took(fabric(1, 2)) == pytest.approx(near)
    assert took(fabric(2)) == pytest.approx(2 * r.rdma_message + LEAF + n / NIC)
    roce = 2 * r.rdma_message + LEAF + n / ROCE.bandwidth
    assert took(fabric(2, network=ROCE)) == pytest.approx(roce)
    wire = 2 * (ETHERNET.latency + PCIE.latency) + n / ETHERNET.bandwidth
    both = r.network_message * (1 + r.network_receive)
    tcp = both + 2 * n * r.network_copy + wire
    assert took(cluster(2, network=ETHERNET)) == pytest.approx(tcp)


def test_a_job_with_rdma_is_predicted_by_its_ports_speeds() -> None:
    swap, n, r = Algorithm(pair, allreduce), 4096, Rates()
    asked = Question("allreduce", n, 2, 2, remote=True, rdma=True, wire=50e9)
    work = r.entry + n * (2 * r.copy + r.fold) + 2 * r.rdma_message + r.rdma_latency
    assert predict(swap, n, Machine.of(asked)) == pytest.approx(work + n / 50e9)
    unknown = Machine.of(asked._replace(wire=0.0))
    assert predict(swap, n, unknown) == pytest.approx(work + n / r.rdma_bandwidth)
    fitted = Machine.of(asked, Rates(rdma_bandwidth=40e9))  # what was measured comes first
    assert predict(swap, n, fitted) == pytest.approx(work + n / 40e9)
    assert predict(swap, n, Machine.of(asked._replace(rdma=False))) > 2 * r.network_message


def test_by_rdma_many_senders_do_not_slow_each_other_down() -> None:
    """15 ranks send to one: over TCP their bursts cost more than the link's time."""
    gather = next(a for a in BUILTIN if (a.name, a.collective.name) == ("direct", "gather"))
    asked = Question("gather", 1 << 24, 16, 1, remote=True, rdma=True, wire=2e9)
    lossless = predict(gather, 1 << 24, Machine.of(asked))
    assert lossless == pytest.approx(15 / 16 * (1 << 24) / 2e9, rel=0.1)
    assert predict(gather, 1 << 24, Machine.of(asked._replace(rdma=False))) > 2 * lossless


def test_rows_over_tcp_are_not_those_over_rdma() -> None:
    tcp = Question("allreduce", 8, 4, 4, remote=True)
    rdma = tcp._replace(rdma=True, wire=25e9)
    names = {key("1", q, "cpu") for q in (tcp, rdma, rdma._replace(wire=50e9))}
    assert len(names) == 3
    assert key("1", tcp._replace(wire=1.0), "cpu") == key("1", tcp, "cpu")


@pytest.mark.parametrize("name", ["ring", "hierarchical"])
def test_the_work_of_all_ranks_knows_whether_the_placement_was_asked_for(name: str) -> None:
    (found,) = (a for a in BUILTIN if a.name == name and a.collective is allreduce)
    pairs = Placement.of(Level("node", (0, 0, 1, 1)))
    assert whole_work_of(found, 4, pairs).asked_placement == (name == "hierarchical")


def test_what_each_link_carries() -> None:
    """A ring over four nodes of two racks: each NIC sends 2 * 3/4 of the message."""
    ring, n = BUILTIN[0], 1 << 20
    t = fabric(4, leaves=2, rail_optimized=False, oversubscription=8)
    assert ring.name == "ring"
    work = whole_work_of(ring, 4, FLAT)
    loads = {(x.link.a, x.link.b): x for x in traffic(work, n, Machine.described(t))}
    assert loads["node0/nic0", "leaf0"].nbytes == pytest.approx(1.5 * n)
    assert loads["leaf0", "spine0"].nbytes == pytest.approx(1.5 * n)  # node 1's alone
    most = busiest(work, n, Machine.described(t))
    assert most is not None
    assert {most.link.a, most.link.b} <= {"leaf0", "leaf1", "spine0"}
    assert most.seconds == pytest.approx(1.5 * n / (2 * NIC / 8))
    assert traffic(work, n, Machine(4, 4)) == []


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, 64) for name in ("ring", "recursive_doubling", "bruck", "hierarchical")),
        *((name, 1024) for name in ("recursive_doubling", "halving_doubling")),
    ],
)
@pytest.mark.parametrize("oversubscription", [1, 8])
def test_what_one_node_sends_says_which_link_is_the_busiest(
    name: str, size: int, oversubscription: float
) -> None:
    """Of a node's own links exactly; a hash deals the others, and some link has bad luck."""
    t = fabric(
        size // 8, 8, rails=8, leaves=size // 4, oversubscription=oversubscription, sockets=2
    )
    machine, placement = Machine.described(t), t.placement()
    found = busiest_of(get(name), MIB, machine, placement)
    assert found is not None
    work = whole_work_of(get(name), size, placement)
    loads = {(x.link.a, x.link.b): x for x in traffic(work, MIB, machine)}
    most = max(load.seconds for load in loads.values())
    assert found.seconds == pytest.approx(most, rel=0.4 if found.about else 1e-6)
    if not found.about:
        assert loads[found.link.a, found.link.b].nbytes == pytest.approx(found.nbytes)


def test_the_busiest_link_is_told_of_every_candidate_or_said_to_be_unknown() -> None:
    t = fabric(128, 8, rails=8, leaves=32, spines=8, sockets=2)
    machine = Machine.described(t)
    asked = Question("allreduce", MIB, t.size, machine.cores, t.placement(), remote=True)
    told = explain(asked, machine=machine)
    lines = {line[2:].split()[0]: line for line in str(told).splitlines()}
    for candidate in told.candidates:
        line, load = lines[candidate.algorithm], candidate.busiest
        if candidate.predicted is None:
            assert candidate.note in line
            assert "busiest" not in line
            continue
        assert candidate.how in line
        if candidate.how.startswith("extrapolated"):
            assert load is None
            assert line.endswith("; its busiest link is not known")
        else:
            assert load is not None
            assert f"; busiest is {load.link.a} to {load.link.b}: " in line
    assert any(candidate.busiest for candidate in told.candidates)


def spined(rails: int, gpus: int) -> Topology:
    return fabric(4, 2, rails=rails, leaves=2 * rails, gpus=gpus, oversubscription=8, cores=1)


@pytest.mark.parametrize("make", [lambda: spined(1, 0), lambda: spined(2, 2)], ids=["1", "2"])
@pytest.mark.parametrize("nbytes", [8, 1 << 16, 1 << 20, 1 << 26])
def test_a_call_takes_no_less_than_its_ranks_and_its_busiest_link_need(
    make: Callable[[], Topology], nbytes: int
) -> None:
    t = make()
    machine = Machine.described(t)
    for algorithm in BUILTIN:
        try:
            took = predict(algorithm, nbytes, machine, placement=t.placement())
        except ScheduleError:
            continue
        load = busiest(whole_work_of(algorithm, t.size, t.placement()), nbytes, machine)
        assert load is not None
        assert took >= 0.99 * load.seconds, algorithm
        assert took >= 0.99 * least(algorithm, nbytes, machine, t.placement()), algorithm


@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "allgather", "reduce_scatter"])
@pytest.mark.parametrize("sizes", [(8, 1 << 14, 1 << 20, 1 << 26)])
def test_a_described_cluster_chooses_as_it_would_if_all_were_simulated(
    collective: str, sizes: Sequence[int]
) -> None:
    t = spined(2, 2)
    machine = Machine.described(t)
    for nbytes in sizes:
        asked = Question(collective, nbytes, t.size, machine.cores, t.placement(), remote=True)
        quick, whole = (
            winner(candidates(asked, None, full=full, machine=machine)) for full in (False, True)
        )
        assert quick is not None
        assert whole is not None
        assert quick.algorithm == whole.algorithm
