"""Predictions: they grow with what they count, and few ranks stand for all where all are alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pycoll.algorithms import BUILTIN
from pycoll.cost.explanation import explain
from pycoll.cost.kernel import Kernel
from pycoll.cost.machine import GPU, Machine, Rates
from pycoll.cost.prediction import predict
from pycoll.cost.question import Question
from pycoll.cost.work import work_of
from pycoll.errors import ScheduleError
from pycoll.schedule import FLAT, Algorithm, Level, Placement, ScheduleBuilder, allreduce, schedule
from pycoll.topology import Wire, cluster

IDS = [f"{a.collective.name}-{a.name}" for a in BUILTIN]
every = pytest.mark.parametrize("algorithm", BUILTIN, ids=IDS)


def predicted(algorithm: Algorithm, nbytes: int, machine: Machine) -> float:
    hosts = Placement.of(Level("node", machine.hosts)) if machine.hosts else FLAT
    try:
        return predict(algorithm, nbytes, machine, placement=hosts)
    except ScheduleError as error:
        pytest.skip(str(error))


@every
def test_more_bytes_or_more_ranks_per_core_cost_more(algorithm: Algorithm) -> None:
    roomy = [predicted(algorithm, n, Machine(8, 8)) for n in (8, 1 << 12, 1 << 20, 1 << 28)]
    assert roomy == sorted(roomy)
    assert 0 < roomy[0] < 1e-3
    if not algorithm.collective.rooted:  # else perhaps only one rank has work
        assert predicted(algorithm, 1 << 20, Machine(8, 2)) > roomy[2]


@every
@pytest.mark.parametrize("size", [1, 2, 3, 7, 16])
def test_every_size_has_a_prediction(algorithm: Algorithm, size: int) -> None:
    assert 0 < predicted(algorithm, 4096, Machine(size, 4)) < 1


@every
@pytest.mark.parametrize("hosts", [(), (0, 0, 1, 1, 2, 2, 3, 3)], ids=["one", "four"])
def test_ranks_that_stand_for_all_take_as_long_as_all(
    algorithm: Algorithm, hosts: tuple[int, ...]
) -> None:
    placement = Placement.of(Level("node", hosts)) if hosts else FLAT
    machine = Machine(8, 8, hosts)
    short = predict(algorithm, 1 << 16, machine, placement=placement)
    whole = predict(schedule(algorithm, 8, placement), 1 << 16, machine, placement=placement)
    assert short == pytest.approx(whole, rel=0.02)


def test_a_ring_is_simulated_for_one_rank_and_a_tree_for_all() -> None:
    ranks = {a.name: work_of(a, 16, FLAT, ()).ranks for a in BUILTIN if a.collective is allreduce}
    assert ranks["ring"] == ranks["two_shot"] == ranks["recursive_doubling"] == 1
    assert ranks["double_binary_tree"] == 16


def test_what_follows_the_simulated_tiles_costs_the_same_again() -> None:
    ring = next(a for a in BUILTIN if (a.name, a.collective) == ("ring", allreduce))
    sizes = (1 << 26, 1 << 27, 1 << 28)
    first, second, third = (predict(ring, n, Machine(4, 4)) for n in sizes)
    assert third - second == pytest.approx(2 * (second - first), rel=0.01)


def exchange(b: ScheduleBuilder) -> None:
    """Rank 0 and rank 1 swap all they have."""
    b.chunks(1)
    peer = 1 - b.rank
    b.send(b.output[:], to=peer)
    b.recv_reduce(b.output[:], frm=peer)


def test_one_exchange_costs_what_it_is_made_of() -> None:
    r = Rates()
    swap = Algorithm(exchange, allreduce)
    want = r.entry + 2 * r.message + r.latency + 4096 * (2 * r.copy + r.fold)
    assert predict(swap, 4096, Machine(2, 2)) == pytest.approx(want)
    # On one core each waits for the other's turn, too.
    assert predict(swap, 8, Machine(2, 1)) > r.switch


def test_between_hosts_the_network_counts() -> None:
    swap = Algorithm(exchange, allreduce)
    far = Machine(2, 2, (0, 1))
    slow = replace(far, rates=Rates(network_bandwidth=1e8))
    assert predict(swap, 8, far) > Rates().network_latency
    assert predict(swap, 1 << 24, slow) > (1 << 24) / 1e8
    assert predict(swap, 1 << 24, slow) > predict(swap, 1 << 24, far)


def pairs(b: ScheduleBuilder) -> None:
    """Rank r of the first half swaps with rank r of the second."""
    b.chunks(1)
    peer = (b.rank + b.size // 2) % b.size
    b.send(b.output[:], to=peer)
    b.recv_reduce(b.output[:], frm=peer)


def test_messages_that_share_an_interface_take_turns() -> None:
    """Four pairs cross the same two interfaces, or each its own."""
    swap, n = Algorithm(pairs, allreduce), 1 << 18
    shared = predict(swap, n, Machine(8, 8, (0, 0, 0, 0, 1, 1, 1, 1)))
    apart = predict(swap, n, Machine(8, 8, tuple(range(8))))
    assert shared > 4 * n / Rates().network_bandwidth > apart


def test_a_described_topology_decides_by_its_links() -> None:
    swap = Algorithm(pairs, allreduce)

    def seconds(uplink: float) -> float:
        wire = Wire(1e-6, 1e10, "infiniband")
        described = cluster(4, 2, racks=2, network=wire, uplink=wire._replace(bandwidth=uplink))
        return predict(swap, 1 << 20, Machine.described(described))

    assert seconds(1e9) > seconds(1e10)
    # Four ranks of a rack send through its uplink.
    assert seconds(1e9) > 4 * (1 << 20) / 1e9


def test_blocks_of_different_lengths() -> None:
    gather = next(a for a in BUILTIN if (a.name, a.collective.name) == ("direct", "allgather"))
    even = predict(gather, 1 << 20, Machine(4, 4), blocks=[1 << 18] * 4)
    odd = predict(gather, 1 << 20, Machine(4, 4), blocks=[1 << 20, 0, 0, 0])
    assert even == pytest.approx(predict(gather, 1 << 20, Machine(4, 4)), rel=0.01)
    assert odd > even


def test_ranks_on_gpus_are_asked_about_with_rates_of_their_own() -> None:
    here = Question("allreduce", 1 << 20, 4, cores=1)
    there = here._replace(device="cuda")
    assert Machine.of(there).turns == 1 < Machine.of(here).turns  # they share no core
    assert Machine.of(there).rates == GPU
    rdma = Machine.of(there._replace(rdma=True, wire=5e9)).rates
    assert rdma == GPU._replace(rdma_bandwidth=5e9)
    assert Machine.of(here).kernel is None
    assert Machine.of(there).kernel == Kernel()
    assert "not measured here" in str(explain(there))
    assert "not measured here" not in str(explain(here))


def stream(b: ScheduleBuilder) -> None:
    """Send eight messages from rank 0 to rank 1, which folds each with its own."""
    b.chunks(8)
    for chunk in range(8):
        if b.rank == 0:
            b.send(b.output[chunk], to=1)
        else:
            b.recv_reduce(b.output[chunk], frm=0)


@pytest.mark.parametrize(
    ("hosts", "small_bytes", "nbytes", "latencies"),
    [
        ((), 1 << 15, 40, 1),
        ((), 1 << 15, 48, 3),  # the last four wait for the credit of the first
        ((0, 1), 1 << 15, 40, 1),
        ((0, 1), 1 << 15, 8 << 15, 1),  # the length of a message counts, not of all together
        ((0, 1), 1 << 15, (8 << 15) + 8, 3),  # one is longer than its share
        ((0, 1), 1 << 10, 8 << 11, 3),
        ((0, 1), 0, 40, 1),
        ((0, 1), 0, 48, 3),
    ],
)
def test_short_messages_find_more_slots(
    hosts: tuple[int, ...], small_bytes: int, nbytes: int, latencies: int
) -> None:
    free = dict.fromkeys(Rates._fields, 0.0)
    rates = Rates.of(free | {"latency": 1.0, "network_latency": 1.0, "network_bandwidth": 1e30})
    machine = Machine(2, 2, hosts, rates, small_bytes=small_bytes)
    assert predict(Algorithm(stream, allreduce), nbytes, machine) == pytest.approx(latencies)


def test_a_question_says_how_long_a_message_in_a_small_slot_may_be() -> None:
    asked = Question("broadcast", 64, 4, 2, remote=True, small_bytes=512)
    assert Machine.of(asked).small_bytes == 512
