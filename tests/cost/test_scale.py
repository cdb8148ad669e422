"""The choice among many ranks: what a few of them say, held against all of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pycoll.algorithms import BUILTIN, get, names
from pycoll.cost import Machine, Question, Tuning, choose, explain
from pycoll.cost.candidate import candidates
from pycoll.cost.extrapolation import longest_chain, smaller
from pycoll.cost.folding import folded
from pycoll.cost.offer import MOST_NEAR
from pycoll.cost.outline import LONGEST_TURN, _runs, outline
from pycoll.cost.prediction import estimate, least, predict
from pycoll.cost.timing import seconds_of
from pycoll.cost.work import Relation, whole_work_of
from pycoll.errors import ScheduleError
from pycoll.program.slots import SLOTS
from pycoll.schedule import (
    COLLECTIVES,
    FLAT,
    Algorithm,
    Level,
    Placement,
    ScheduleBuilder,
    allreduce,
)
from pycoll.topology import Topology, fabric
from pycoll.verify.certificates import Form
from pycoll.verify.gate import prove

MIB = 1 << 20


def hosts(size: int, crew: int) -> tuple[int, ...]:
    return tuple(rank // crew for rank in range(size))


def pods(nodes: int, pod: int) -> Topology:
    """Nodes of 8 ranks with 8 rails, on pods with a leaf for each rail."""
    return fabric(nodes, 8, rails=8, leaves=8 * (nodes // pod), spines=8, sockets=2)


@pytest.mark.parametrize("nbytes", [8, 1 << 16, 16 * MIB])
@pytest.mark.parametrize("name", ["ring", "bruck", "halving_doubling", "recursive_doubling"])
@pytest.mark.parametrize("crew", [0, 8])
def test_ranks_that_are_alike_take_as_long_as_all(name: str, nbytes: int, crew: int) -> None:
    machine = Machine(128, crew or 128, hosts(128, crew) if crew else ())
    placement = Placement.of(Level("node", machine.hosts)) if crew else FLAT
    found = estimate(get(name), nbytes, machine, placement=placement)
    assert found.how.startswith(f"simulated for {crew or 1} of 128 ranks")
    whole = seconds_of(whole_work_of(get(name), 128, placement), nbytes, machine)
    # Of Bruck's messages some ranks send two pieces, for which others wait.
    assert found.seconds == pytest.approx(whole, rel=0.25 if name == "bruck" else 0.01)


@pytest.mark.parametrize("nbytes", [1 << 16, 16 * MIB])
def test_a_ring_of_few_turns_takes_as_long_as_one_of_all(nbytes: int) -> None:
    """1,024 ranks: one stands for all, and 24 turns for 1,022; all turns can be simulated."""
    machine = Machine(1024, 1024)
    found = estimate(get("ring"), nbytes, machine)
    assert found.how == "simulated for 1 of 1024 ranks, extrapolated from 51 of 2047 steps"
    every = seconds_of(outline(get("ring"), 1024, FLAT, ()).work(), nbytes, machine)
    assert found.seconds == pytest.approx(every, rel=0.01)


@pytest.mark.parametrize("nbytes", [1 << 16, 16 * MIB])
@pytest.mark.parametrize(
    ("name", "off"),
    [
        *(("ring", 0.01), ("hierarchical", 0.03), ("recursive_doubling", 0.03)),
        *(("bruck", 0.2), ("halving_doubling", 0.2)),  # whose flows meet by the hash's chance
        *(("double_binary_tree", 0.1), ("hierarchical_tree", 0.2)),
    ],
)
def test_the_nodes_of_a_described_cluster_fold_into_one(name: str, off: float, nbytes: int) -> None:
    t = pods(16, 8)
    machine, placement = Machine.described(t), t.placement()
    found = predict(get(name), nbytes, machine, placement=placement)
    whole = seconds_of(whole_work_of(get(name), t.size, placement), nbytes, machine)
    assert found == pytest.approx(whole, rel=off)


@pytest.mark.parametrize("spread", [True, False])
def test_sights_of_one_kind_are_looked_at_once(
    spread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where leaves have equal links to the same spines; what messages cross is as of all pairs."""
    t = pods(16, 4)
    if not spread:  # a spine that is farther away: the hash says how long a way is
        far = (replace(x, latency=2e-6) if x.b == "spine0" else x for x in t.links)
        t = replace(t, links=tuple(far))
    machine = Machine.described(t)
    work = outline(get("bruck"), t.size, t.placement(), machine.hosts).work()
    few, seen = folded(work, machine), len(t._routes)
    monkeypatch.setattr("pycoll.topology.routing.Wiring.even", False)
    t = replace(t)
    assert folded(work, Machine.described(t)) == few
    assert (len(t._routes) > 2 * seen) == spread


@pytest.mark.parametrize(
    "name", ["double_binary_tree", "hierarchical_tree", "recursive_doubling", "halving_doubling"]
)
def test_what_differs_is_extrapolated_from_fewer_ranks(name: str) -> None:
    """384 ranks are no power of two."""
    machine = Machine(384, 8, hosts(384, 8))
    placement = Placement.of(Level("node", machine.hosts))
    found = estimate(get(name), 1 << 16, machine, placement=placement)
    assert found.how == "extrapolated from 96 of 384 ranks"
    whole = seconds_of(whole_work_of(get(name), 384, placement), 1 << 16, machine)
    assert found.seconds == pytest.approx(whole, rel=0.1)


def test_a_chain_grows_with_the_ranks_and_a_tree_with_their_logarithm() -> None:
    chain, tree = get("chain", "broadcast"), get("double_binary_tree")
    assert longest_chain(whole_work_of(chain, 32, FLAT)) == 31
    assert longest_chain(whole_work_of(tree, 32, FLAT)) <= 10
    for algorithm, off in ((chain, 0.02), (tree, 0.1)):
        machine = Machine(512, 512)
        found = estimate(algorithm, 4096, machine)
        assert found.how == "extrapolated from 64 of 512 ranks"
        whole = seconds_of(whole_work_of(algorithm, 512, FLAT), 4096, machine)
        assert found.seconds == pytest.approx(whole, rel=off)


@pytest.mark.parametrize("size", [1024, 16384])
def test_a_ring_grows_as_its_steps_do(size: int) -> None:
    """A chunk of 64 bytes costs the same at each step, so seconds are proportional to steps."""
    each = [predict(get("ring"), 64 * n, Machine(n, n)) / (2 * (n - 1)) for n in (64, size)]
    assert each[1] == pytest.approx(each[0], rel=0.05)


def test_nothing_is_left_out_in_silence() -> None:
    """At 1,024 ranks and 64 MiB a ring was left out as too long, and a slower tree ran."""
    where = Placement.of(Level("node", hosts(1024, 8)))
    question = Question("allreduce", 64 * MIB, 1024, 8, where, remote=True)
    told = explain(question)
    for c in told.candidates:
        assert c.note if c.predicted is None else c.how
        assert (c.predicted is None) == (c.operations == 0)
    by_name = {c.algorithm: c.predicted for c in told.candidates}
    assert by_name["ring"] is not None
    assert by_name["double_binary_tree"] is not None
    assert choose(question).algorithm == told.choice.algorithm
    assert "extrapolated from 51 of 2047 steps" in str(told)


@pytest.mark.parametrize("size", [257, 512, 1024])
@pytest.mark.parametrize("collective", [*COLLECTIVES, "barrier"])
def test_every_collective_has_a_candidate_with_few_peers(collective: str, size: int) -> None:
    question = Question(collective, 1 << 20, size, 8)
    found = {c.algorithm: c for c in candidates(question, None)}
    chosen = found[choose(question).algorithm]
    assert chosen.predicted is not None
    of = "allreduce" if collective == "barrier" else collective
    assert outline(get(chosen.algorithm, of), size, FLAT, ()).peers <= MOST_NEAR
    assert choose(question).direct is None  # it would map all of them
    for name in {"direct", "one_shot", "two_shot", "pairwise", "spread"} & set(names(of)):
        assert found[name].predicted is None
        assert found[name].note == f"touches {size - 1} peers, more than {MOST_NEAR}"


def test_up_to_256_ranks_all_may_be_peers() -> None:
    found = {c.algorithm: c for c in candidates(Question("allreduce", 64, 256, 256), None)}
    assert found["one_shot"].predicted is not None
    assert found["two_shot"].predicted is not None


def test_a_message_that_no_slot_holds_is_not_offered() -> None:
    question = Question("allreduce", MIB, 512, 8, slot_bytes=4096)
    found = {c.algorithm: c for c in candidates(question, None)}
    assert found["halving_doubling"].predicted is None
    assert found["halving_doubling"].note == (
        "sends 256 chunks at once, more than the 64 that a slot holds"
    )
    assert choose(question).algorithm != "halving_doubling"


def test_all_ranks_of_a_host_may_be_peers_of_a_hierarchical_algorithm() -> None:
    where = Placement.of(Level("node", hosts(512, 64)))
    found = candidates(Question("allreduce", MIB, 512, 64, where, remote=True), None, full=True)
    assert {c.algorithm: c for c in found}["hierarchical"].predicted is not None


def test_across_hosts_flat_algorithms_end_where_the_proof_of_all_ranks_does() -> None:
    for size, offered in ((256, True), (264, False)):
        where = Placement.of(Level("node", hosts(size, 8)))
        question = Question("allreduce", 64, size, 8, where, remote=True)
        found = {c.algorithm: c for c in candidates(question, None, full=True)}
        assert (found["one_shot"].predicted is not None) == offered
        assert found["hierarchical"].predicted is not None
    assert found["one_shot"].note == "touches 263 peers, more than 255"


def uneven(b: ScheduleBuilder) -> None:
    """Serve 512 ranks and no other number; all send to rank 0."""
    if b.size != 512:
        raise ScheduleError(f"rank {b.rank}: {b.size} ranks, want 512")
    b.chunks(1)
    if b.rank:
        b.send(b.output[:], to=0)
    for peer in range(1, b.size) if b.rank == 0 else ():
        b.recv_reduce(b.output[:], frm=peer)


def test_what_serves_one_number_of_ranks_is_simulated_for_all() -> None:
    found = estimate(Algorithm(uneven, allreduce), 8, Machine(512, 512))
    assert found.how == "simulated"
    assert found.seconds > 0


@pytest.mark.parametrize("algorithm", BUILTIN, ids=lambda a: f"{a.collective.name}-{a.name}")
def test_the_bound_is_below_the_prediction(algorithm: Algorithm) -> None:
    machine = Machine(96, 8, hosts(96, 8))
    placement = Placement.of(Level("node", machine.hosts))
    for nbytes in (8, MIB):
        took = predict(algorithm, nbytes, machine, placement=placement)
        assert 0 < took < math.inf
        assert least(algorithm, nbytes, machine, placement) <= 1.01 * took


def test_relations_go_both_ways() -> None:
    for relation in (Relation(64), Relation(64, exclusive=True), Relation(64, widths=(4, 16))):
        for frm in range(64):
            apart = [relation.distance(to, frm) for to in range(64)]
            assert sorted(apart) == list(range(64))
            for to, distance in enumerate(apart):
                assert relation.receiver(frm, distance) == to
                assert relation.sender(to, distance) == frm


def test_runs_say_the_same_as_the_stream() -> None:
    stream = [7, 1, 1, 1, 2, 3, 2, 3, 2, 3, 4, *range(LONGEST_TURN), *range(LONGEST_TURN), 9]
    runs = list(_runs(stream))
    assert [o for turn, n in runs for o in turn * n] == stream
    assert ((2, 3), 3) in runs
    assert (tuple(range(LONGEST_TURN)), 2) in runs


def test_a_smaller_machine_shares_its_cores_alike() -> None:
    first, second = smaller(Machine(512, 256)) or (None, None)
    assert first is not None
    assert second is not None
    assert (first.size, second.size) == (32, 64)
    assert first.turns == second.turns == 2
    assert smaller(Machine(64, 64)) is None


@pytest.mark.parametrize("size", [1000, 1025])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_chosen_can_be_proved(collective: str, size: int) -> None:
    blocks = COLLECTIVES[collective].nblocks(size)
    asked = [Question(collective, n or 4 * blocks, size, 2) for n in (0, 1 << 16, MIB, 64 * MIB)]
    for name in {choose(one).algorithm for one in asked}:
        algorithm = get(name, collective)
        assert prove(algorithm, size, SLOTS, Form(False, False)).verdict.by


@pytest.mark.parametrize("size", [512, 1000])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter", "alltoall"])
@pytest.mark.parametrize("kind", ["uneven", "cyclic"])
def test_hosts_that_differ_keep_nothing_from_being_proved(
    kind: str, collective: str, size: int
) -> None:
    """There no rank stands for all in a simulation, but in a proof of a flat algorithm it does."""
    by_rank = [rank % 3 if kind == "cyclic" else 3 * rank // size for rank in range(size)]
    where = Placement.of(Level("node", tuple(by_rank)))
    found = candidates(Question(collective, MIB, size, 8, where, remote=True), None)
    notes = {c.algorithm: c.note for c in found}
    symmetric = "bruck" if collective == "alltoall" else "ring"
    assert "prove" not in notes[symmetric]
    assert any(c.predicted is not None for c in found)


def test_what_takes_too_long_to_prove_is_offered_where_it_may_run_unproved() -> None:
    asked = Question("allgather", 4096, 1025, 2)
    notes = {c.algorithm: c.note for c in candidates(asked, None)}
    assert notes["recursive_doubling"].startswith("takes too long to prove: its ranks do not all")
    free = candidates(asked._replace(unproved=True), None)
    assert next(c for c in free if c.algorithm == "recursive_doubling").predicted is not None
    without = asked._replace(unproved=True, without=("recursive_doubling",))
    (left,) = (c for c in candidates(without, None) if c.algorithm == "recursive_doubling")
    assert (left.predicted, left.note) == (None, "takes too long to prove")


def test_what_was_measured_and_takes_too_long_to_prove_is_not_chosen() -> None:
    asked = Question("allreduce", 64, 2, 2)
    took = {"ring": 1e-6, "one_shot": 2e-6}
    rows = Tuning(2, rows={("allreduce", name): ((64, s),) for name, s in took.items()})
    assert choose(asked, rows).algorithm == "ring"
    assert choose(asked._replace(without=("ring",)), rows).algorithm == "one_shot"
