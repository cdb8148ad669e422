"""The choice of algorithm: a pure function that answers for every size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycoll.algorithms import get, names
from pycoll.cost import Choice, Question, Tuning, choose, explain
from pycoll.cost.candidate import candidates
from pycoll.cost.machine import Machine
from pycoll.cost.select import LONG_FROM_BYTES, LONG_TILE_BYTES, TILE_BYTES, winner
from pycoll.errors import UsageError
from pycoll.program.isa import CHUNK_UNIT
from pycoll.schedule import COLLECTIVES, Algorithm, Level, Placement, ScheduleBuilder

TWO_HOSTS = Placement.of(Level("node", (0, 0, 0, 0, 1, 1, 1, 1)))


@given(
    st.sampled_from([*COLLECTIVES, "barrier"]),
    st.integers(0, 1 << 34),
    st.integers(1, 20),
    st.integers(1, 32),
)
def test_every_question_has_a_choice(collective: str, nbytes: int, size: int, cores: int) -> None:
    question = Question(collective, nbytes, size, cores)
    choice = choose(question)
    known = names("allreduce" if collective == "barrier" else collective)
    assert choice.algorithm in known
    assert choice.direct in (None, *known)
    assert choice.tile > 0
    assert choice.tile % CHUNK_UNIT == 0
    assert choice == choose(question)
    assert choice.reason


def test_small_messages_take_few_steps_and_large_ones_little_work() -> None:
    assert choose(Question("allreduce", 8, 8, 8)).algorithm == "one_shot"
    assert choose(Question("allreduce", 1 << 28, 8, 8)).algorithm == "ring"


def test_where_rdma_is_the_kernels_work_what_sends_fewer_messages_is_taken() -> None:
    adapters = Question("allreduce", 8, 4, 2, remote=True, rdma=True, wire=1.25e9)
    # 3 messages at once against 2 rounds of one, whose latency is longer than to post two more.
    assert choose(adapters).algorithm == "one_shot"
    for nbytes in (8, 512, 4096):
        soft = adapters._replace(nbytes=nbytes, software=True)
        assert choose(soft).algorithm == "recursive_doubling"


def test_what_was_measured_beats_the_model() -> None:
    question = Question("allreduce", 4096, 4, 4)
    rows = {("allreduce", "double_binary_tree"): ((1024, 1e-9), (1 << 20, 2e-9))}
    assert choose(question).algorithm != "double_binary_tree"
    assert choose(question, Tuning(4, rows=rows)).algorithm == "double_binary_tree"
    assert choose(question, Tuning(4, rows=rows)).reason == "0.0 us interpolated"


def test_beyond_the_rows_the_model_goes_on_from_the_last() -> None:
    rows = {
        ("allreduce", name): ((64, 1e-6 * (name != "ring") + 1e-9), (1024, 1e-6))
        for name in names("allreduce")
    }
    rows["allreduce", "ring"] = ((64, 1e-9), (1024, 2e-9))
    assert choose(Question("allreduce", 1 << 20, 4, 4), Tuning(4, rows=rows)).algorithm == "ring"


def test_rows_of_other_ranks_do_not_count() -> None:
    rows = {("allreduce", "double_binary_tree"): ((8, 1e-9), (1 << 20, 1e-9))}
    question = Question("allreduce", 4096, 4, 4)
    assert choose(question, Tuning(8, rows=rows)) == choose(question)
    assert choose(question, Tuning(4, hosts=(0, 0, 1, 1), rows=rows)) == choose(question)


def test_what_the_user_asks_for_wins() -> None:
    asked = Question("allreduce", 8, 4, 4, wanted="mine")
    choice = choose(asked)
    assert (choice.algorithm, choice.direct, choice.reason) == ("mine", None, "asked for")
    assert choose(asked._replace(nbytes=1 << 24)).direct == "mine"


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_direct_form_serves_large_messages_of_ranks_that_share_memory(collective: str) -> None:
    question = Question(collective, 1 << 24, 8, 8)
    assert choose(question).direct == ("two_shot" if collective == "allreduce" else "direct")
    assert choose(question._replace(nbytes=1024)).direct is None
    assert choose(question._replace(size=1)).direct is None
    assert choose(question._replace(placement=TWO_HOSTS, remote=True)).direct is None
    # Where ranks share cores a round among all of them costs more.
    assert choose(question._replace(nbytes=64 << 10)).direct is not None
    assert choose(question._replace(nbytes=64 << 10, cores=2)).direct is None


def test_a_barrier_needs_no_levels_and_has_no_direct_form() -> None:
    choice = choose(Question("barrier", 1 << 20, 8, 8, placement=TWO_HOSTS, remote=True))
    assert choice.direct is None
    assert "hierarchical" not in choice.algorithm


def test_only_results_that_leave_the_cache_are_streamed() -> None:
    big = Question("allreduce", 1 << 26, 8, 8)
    assert choose(big).stream
    assert choose(big._replace(nbytes=1 << 24)).stream
    assert not choose(big._replace(nbytes=(1 << 24) - 64)).stream
    assert not choose(big._replace(collective="reduce_scatter")).stream


def test_a_selector_is_asked_first_and_may_pass() -> None:
    def mine(question: Question) -> Choice | None:
        if question.nbytes > 100:
            return None
        return Choice("ring", 4096, False, "two_shot", "mine")

    small = Question("allreduce", 8, 4, 4)
    assert choose(small, selector=mine) == Choice("ring", 4096, False, "two_shot", "mine")
    assert choose(small._replace(remote=True), selector=mine).direct is None
    large = small._replace(nbytes=1 << 20)
    assert choose(large, selector=mine) == choose(large)


@pytest.mark.parametrize("answer", ["ring", ("ring", 64, 0, None, "")])
def test_a_selector_that_returns_something_else(answer: object) -> None:
    with pytest.raises(UsageError, match=r"the selector returned .*ring.*, want a pycoll.cost.Ch"):
        choose(Question("allreduce", 8, 4, 4), selector=lambda question: answer)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("tile", [0, 100, -64])
def test_a_selector_with_a_bad_tile(tile: int) -> None:
    bad = Choice("ring", tile, False, None, "")
    with pytest.raises(UsageError, match=rf"the selector's tile is {tile}, want a multiple of 64"):
        choose(Question("allreduce", 8, 4, 4), selector=lambda q: bad)


def test_unknown_collective() -> None:
    with pytest.raises(UsageError, match="collective is 'sum', want 'barrier' or one of allreduce"):
        choose(Question("sum", 8, 2, 2))


def test_no_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycoll.cost.candidate.names", lambda collective: ())
    with pytest.raises(UsageError, match="gather: no algorithm serves 2 ranks"):
        choose(Question("gather", 8, 2, 2))


def test_over_rdma_what_was_measured_about_alike_is_told_apart_by_the_model() -> None:
    hosts = Placement.of(Level("node", (0, 1, 2, 3)))
    asked = Question("allreduce", 64, 4, 2, hosts, remote=True, rdma=True, wire=1e9, software=True)
    default = Machine.of(asked).rates
    fitted = default._replace(copy=default.copy * 1.5)
    for slower, wanted in ((1.08, "recursive_doubling"), (1.12, "one_shot")):
        rows = {("allreduce", "one_shot"): ((64, 1e-3),),
                ("allreduce", "recursive_doubling"): ((64, slower * 1e-3),)}  # fmt: skip
        tuning = Tuning(4, (0, 1, 2, 3), fitted, rows)
        assert choose(asked, tuning).algorithm == wanted
        told = explain(asked, tuning)
        assert told.choice.algorithm == wanted
        assert ("one_shot, measured, is no faster for certain" in told.why) == (slower < 1.1)


def test_what_was_measured_about_alike_is_no_matter_for_an_unfitted_model() -> None:
    hosts = Placement.of(Level("node", (0, 1, 2, 3)))
    asked = Question("allreduce", 64, 4, 2, hosts, remote=True, rdma=True, wire=1e9, software=True)
    rows = {("allreduce", "one_shot"): ((64, 1e-3),),
            ("allreduce", "recursive_doubling"): ((64, 1.08e-3),)}  # fmt: skip
    default = Machine.of(asked).rates
    fitted = default._replace(copy=default.copy * 1.5)
    tuning = Tuning(4, (0, 1, 2, 3), fitted, rows)
    assert choose(asked, tuning).algorithm == "recursive_doubling"  # as the test above says
    assert choose(asked, replace(tuning, rates=default)).algorithm == "one_shot"
    over_tcp = asked._replace(rdma=False)
    told = explain(over_tcp, replace(tuning, rows={}))
    by_model = {c.algorithm: c.predicted or 0.0 for c in told.candidates}
    assert by_model["recursive_doubling"] < by_model["one_shot"]
    assert choose(over_tcp, tuning).algorithm == "one_shot"


def test_many_ranks_that_are_not_alike() -> None:
    # Hosts of one and two ranks in turn: no rank stands for others.
    hosts = tuple(r - r // 3 for r in range(300))
    placement = Placement.of(Level("node", hosts))
    choice = choose(Question("alltoall", 1 << 20, 300, 2, placement, remote=True))
    assert choice.algorithm in names("alltoall")
    assert "predicted" in choice.reason


@given(
    st.sampled_from(sorted(COLLECTIVES)),
    st.integers(0, 26).map(lambda k: 1 << k),
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.sampled_from([1, 2, 32]),
)
@settings(deadline=None)
def test_what_is_not_simulated_to_its_end_would_not_have_been_chosen(
    collective: str, nbytes: int, hosts: list[int], cores: int
) -> None:
    placement = Placement.of(Level("node", tuple(hosts)))
    size, remote = len(hosts), len(set(hosts)) > 1
    question = Question(collective, nbytes, size, cores, placement, remote)
    assert winner(candidates(question, None)) == winner(candidates(question, None, full=True))


def test_little_is_spent_on_what_is_far_behind() -> None:
    found = {c.algorithm: c for c in candidates(Question("allreduce", 1 << 24, 16, 16), None)}
    assert found["one_shot"].predicted == float("inf")


def test_a_plug_in_that_raises_does_not_take_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def picky(b: ScheduleBuilder) -> None:
        raise ValueError("a power of two only")

    broken = Algorithm(picky, COLLECTIVES["gather"])
    monkeypatch.setattr("pycoll.cost.candidate.names", lambda of: ("picky", *names(of)))
    monkeypatch.setattr(
        "pycoll.cost.candidate.get", lambda name, of: broken if name == "picky" else get(name, of)
    )
    question = Question("gather", 8, 3, 4)
    assert choose(question).algorithm in names("gather")
    note = candidates(question, None)[0].note
    assert note == "ValueError: a power of two only"


@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
def test_long_blocks_that_nobody_folds_have_long_tiles(collective: str) -> None:
    kind = COLLECTIVES[collective]
    for block, tile in (
        (LONG_FROM_BYTES - 4, TILE_BYTES),
        (LONG_FROM_BYTES, LONG_TILE_BYTES // 2),  # eight, as a reader waits for the first
        (2 * LONG_FROM_BYTES - 4, LONG_TILE_BYTES // 2),
        (2 * LONG_FROM_BYTES, LONG_TILE_BYTES),
        (1 << 30, LONG_TILE_BYTES),
    ):
        choice = choose(Question(collective, block * kind.nblocks(2), 2, 2))
        assert choice.tile == (TILE_BYTES if kind.reduces else tile)
