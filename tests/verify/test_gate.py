from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pycoll.algorithms import algorithm, get
from pycoll.errors import DeadlockError, PostconditionError, ScheduleError
from pycoll.program.lower import compile_all, compile_own
from pycoll.program.program import Program
from pycoll.schedule import (
    Algorithm,
    Collective,
    Level,
    NotDirect,
    Placement,
    ScheduleBuilder,
    allreduce,
)
from pycoll.verify import Record, certificates, gate
from pycoll.verify.certificates import digest
from pycoll.verify.sources import files_of


@algorithm(allreduce)
def mine(b: ScheduleBuilder) -> None:
    get("ring")(b)


@algorithm(allreduce)
def wrong(b: ScheduleBuilder) -> None:
    b.chunks(1)


def admitted(record: Record, a: Algorithm, program: Program) -> bool:
    """Whether its rank may run it, which can lower any rank by itself."""

    def lower(rank: int) -> Program:
        return compile_own(a, program.size, rank, record.facts)

    return record.admits(program, a.collective, lower)


def entry(a: Algorithm, asks: bool = False, **changes: object) -> dict[str, object]:
    """A certificate of the staged form at 2 to 64 ranks."""
    facts = [[2, 64, 1, True, 1]]
    known: dict[str, object] = {
        "slots": 2,
        "asks": asks,
        "forms": {"staged": [[2, 64]]},
        "facts": facts,
    }
    known["beyond"] = {"slots": 4, "sum": {}, "average": {}}
    files = list(files_of(a))
    return {"digest": digest(a, tuple(files)), "files": files, **known, **changes}


@pytest.fixture
def certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate for the ring at 2 to 64 ranks, whatever the file in the tree says."""
    table = {"allreduce/ring": entry(get("ring"))}
    monkeypatch.setattr(certificates, "certificates", lambda: table)


@pytest.fixture
def uncertified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "certificates", dict)


@pytest.mark.usefixtures("certified")
def test_a_certificate_opens_for_what_it_covers() -> None:
    ring = get("ring")
    assert gate(ring, 64).verdict.origin == "certificate"
    assert gate(ring, 8, slots=4).verdict.origin == "certificate"
    with pytest.raises(DeadlockError, match="1 of 1 filled"):
        gate(ring, 8, slots=1)
    assert gate(ring, 8, average=True).verdict.origin == "proof"
    assert gate(ring, 65).verdict.origin == "proof"
    assert gate(get("one_shot"), 4).verdict.origin == "proof"


@pytest.mark.usefixtures("certified")
def test_a_users_algorithm_has_no_certificate_even_by_the_name_of_a_builtin() -> None:
    @algorithm(allreduce)
    def ring(b: ScheduleBuilder) -> None:
        get("ring")(b)

    assert gate(ring, 4).verdict.origin == "proof"


def test_an_edit_voids_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    void = entry(get("ring"), digest="of another text")
    monkeypatch.setattr(certificates, "certificates", lambda: {"allreduce/ring": void})
    assert gate(get("ring"), 4).verdict.origin == "proof"


def test_a_proof_is_kept_and_found_again(tmp_path: Path) -> None:
    first = gate(mine, 4, cache=tmp_path / "new")
    again = gate(mine, 4, cache=tmp_path / "new")
    assert (first.verdict.origin, again.verdict.origin) == ("proof", "cache")
    assert again == replace(first, verdict=replace(first.verdict, origin="cache"))
    assert (again.verdict.name, again.verdict.tiles) == ("mine", (1, 2, 4))
    assert gate(mine, 5, cache=tmp_path / "new").verdict.origin == "proof"
    assert gate(mine, 4, slots=3, cache=tmp_path / "new").verdict.origin == "proof"
    assert gate(mine, 4, average=True, cache=tmp_path / "new").verdict.origin == "proof"
    assert not list(tmp_path.glob("**/*.part"))


def test_a_change_that_the_source_does_not_show_is_proved_again(tmp_path: Path) -> None:
    roots = [0]

    @algorithm(allreduce)
    def star(b: ScheduleBuilder) -> None:
        b.chunks(1)
        root = roots[0]
        for peer in range(b.size):
            if b.rank == root != peer:
                b.recv_reduce(b.output[0], frm=peer)
        if b.rank == root:
            for peer in range(b.size):
                if peer != root:
                    b.send(b.output[0], to=peer)
        else:
            b.send(b.output[0], to=root)
            b.recv(b.output[0], frm=root)

    def proved() -> str:
        # A process has one Algorithm per function; a later process has another.
        return gate(algorithm(allreduce)(star.function), 3, cache=tmp_path).verdict.origin

    assert [proved(), proved()] == ["proof", "cache"]
    roots[0] = 1
    assert [proved(), proved()] == ["proof", "cache"]


def test_two_algorithms_of_one_schedule_have_records_of_their_own(tmp_path: Path) -> None:
    @algorithm(allreduce)
    def namesake(b: ScheduleBuilder) -> None:
        get("ring")(b)  # as `mine`, in another source

    for a in (mine, namesake):
        assert gate(a, 4, cache=tmp_path).verdict.origin == "proof"
    for a in (mine, namesake):
        record = gate(a, 4, cache=tmp_path)
        assert record.verdict.origin == "cache"
        assert admitted(record, a, compile_own(a, 4, 1, record.facts))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"key": 1, "verdict": 2}'])
def test_a_corrupt_entry_is_proved_again(tmp_path: Path, text: str) -> None:
    gate(mine, 3, cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    entry.write_text(text)
    assert gate(mine, 3, cache=tmp_path).verdict.origin == "proof"
    assert gate(mine, 3, cache=tmp_path).verdict.origin == "cache"


def test_an_entry_that_was_altered_or_moved_is_proved_again(tmp_path: Path) -> None:
    gate(mine, 3, cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    text = json.loads(entry.read_text())
    text["record"]["verdict"]["size"] = 4
    entry.write_text(json.dumps(text))
    assert gate(mine, 3, cache=tmp_path).verdict.origin == "proof"
    gate(mine, 4, cache=tmp_path)
    (other,) = set(tmp_path.iterdir()) - {entry}
    entry.write_text(other.read_text())
    assert gate(mine, 3, cache=tmp_path).verdict.origin == "proof"


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert gate(mine, 3, cache=tmp_path / "file").verdict.origin == "proof"
    # The entry's own name is taken by a folder: the temporary file goes again.
    gate(mine, 3, cache=tmp_path)
    (entry,) = set(tmp_path.glob("*.json"))
    entry.unlink()
    entry.mkdir()
    assert gate(mine, 3, cache=tmp_path).verdict.origin == "proof"
    assert not list(tmp_path.glob("*.part"))


def test_nothing_wrong_is_kept(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(PostconditionError, match="lacks the contribution"):
            gate(wrong, 2, cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_above_the_limit_only_who_asks_for_it_runs_unproved() -> None:
    message = "mine at 9 ranks takes too long .* more than 300 chunks; .*unproved=True"
    with pytest.raises(ScheduleError, match=message):
        gate(mine, 9, limit=300)
    assert gate(mine, 9, limit=300, unproved=True).verdict.origin == "unproved"
    assert gate(mine, 8, limit=300, unproved=True).verdict.origin == "proof"


def test_what_was_not_proved_is_not_kept(tmp_path: Path) -> None:
    assert gate(mine, 9, limit=9, unproved=True, cache=tmp_path).verdict.origin == "unproved"
    assert not list(tmp_path.iterdir())


@algorithm(allreduce)
def one_differs(b: ScheduleBuilder) -> None:
    """A ring, but for one rank in the middle, which copies to scratch and back first."""
    b.chunks(b.size)
    if b.rank == 30:
        b.copy(b.output[5], b.scratch[0])
        b.copy(b.scratch[0], b.output[5])
    get("ring")(b)


@algorithm(allreduce)
def own_first(b: ScheduleBuilder) -> None:
    """Symmetric and wrong: everyone folds its own contribution first."""
    b.chunks(1)
    for k in range(1, b.size):
        b.send(b.input[0], to=(b.rank + k) % b.size)
    b.recv_reduce(b.output[0], frm=[(b.rank + k) % b.size for k in range(b.size)])


def test_many_ranks_are_proved_by_those_that_represent_them(tmp_path: Path) -> None:
    for average in (False, True):
        record = gate(mine, 100, average=average, cache=tmp_path, slots=4)
        again = gate(mine, 100, average=average, cache=tmp_path, slots=4)
        assert (record.verdict.origin, again.verdict.origin) == ("proof", "cache")
        assert record.group is not None
        assert again == replace(record, verdict=again.verdict)
        whole = compile_all(mine, 100, average=average)
        for rank in range(0, 100, 9):
            own = compile_own(mine, 100, rank, record.facts)
            assert admitted(record, mine, own)
            assert again.finished(own) == whole[rank]
            code = list(own.instructions)
            code[7], code[8] = code[8], code[7]
            assert not admitted(record, mine, replace(own, instructions=tuple(code)))
            assert not admitted(record, mine, replace(own, rank=(rank + 1) % 100))


def test_of_many_ranks_of_a_users_algorithm_only_a_few_are_traced(tmp_path: Path) -> None:
    traced = set()

    @algorithm(allreduce)
    def noted(b: ScheduleBuilder) -> None:
        traced.add(b.rank)
        get("ring")(b)

    assert gate(noted, 300, cache=tmp_path, slots=4, limit=1000).group is not None
    assert len(traced) < 10  # so no record is kept, which the schedule of all would tell
    assert not list(tmp_path.iterdir())


def test_a_rank_that_is_not_like_its_representative_is_not_let_through() -> None:
    record = gate(one_differs, 70, slots=4)
    assert record.group is not None
    own = [compile_own(one_differs, 70, rank, record.facts) for rank in range(70)]
    assert [p.rank for p in own if not admitted(record, one_differs, p)] == [30]
    whole = gate(one_differs, 70, slots=4, whole=True)
    assert whole.group is None
    own = [compile_own(one_differs, 70, rank, whole.facts) for rank in range(70)]
    assert all(admitted(whole, one_differs, p) for p in own)


@pytest.mark.usefixtures("uncertified")
def test_ranks_that_cut_their_ranges_differently_are_proved_by_one() -> None:
    bruck = get("bruck")
    record = gate(bruck, 72, slots=4)
    assert (record.verdict.origin, record.cut) == ("proof", True)
    for rank in (0, 1, 35, 71):
        own = compile_own(bruck, 72, rank, record.facts)
        assert admitted(record, bruck, own)
        narrow = replace(record, facts=record.facts._replace(widest=1))
        assert not admitted(narrow, bruck, own)
    assert Record.from_json(json.loads(json.dumps(record.to_json()))) == record
    # An average is divided by instructions that differ: it is proved rank by rank.
    assert gate(bruck, 72, slots=4, average=True).group is None


def test_what_is_symmetric_and_wrong_is_refused_alike() -> None:
    with pytest.raises(PostconditionError, match="not the same bits"):
        gate(own_first, 66, slots=4)


@pytest.mark.usefixtures("uncertified")
def test_a_form_that_does_not_exist_is_not_let_through() -> None:
    with pytest.raises(NotDirect, match="one_shot"):
        gate(get("one_shot"), 4, direct=True)


PAIRS = Placement.of(Level("node", (0, 0, 1, 1)))


@algorithm(allreduce)
def placed(b: ScheduleBuilder) -> None:
    get("ring" if b.placement.flat else "two_shot")(b)


@pytest.mark.usefixtures("certified")
def test_a_certificate_covers_other_placements_if_none_was_asked_for() -> None:
    assert gate(get("ring"), 4, placement=PAIRS).verdict.origin == "certificate"


def test_a_certificate_does_not_cover_a_placement_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = {"allreduce/placed": entry(placed, asks=True)}
    monkeypatch.setattr(certificates, "certificates", lambda: table)
    monkeypatch.setattr(certificates, "BUILTIN", (placed,))
    assert gate(placed, 4).verdict.origin == "certificate"
    assert gate(placed, 4, placement=Placement()).verdict.origin == "certificate"
    assert gate(placed, 4, placement=PAIRS).verdict.origin == "proof"


def test_proofs_are_kept_by_placement(tmp_path: Path) -> None:
    assert gate(placed, 4, cache=tmp_path).verdict.origin == "proof"
    assert gate(placed, 4, cache=tmp_path, placement=PAIRS).verdict.origin == "proof"
    assert gate(placed, 4, cache=tmp_path, placement=PAIRS).verdict.origin == "cache"


def test_a_proof_for_a_collective_of_ones_own_is_not_kept_for_its_namesake(tmp_path: Path) -> None:
    def own_part(rank: int, block: int, size: int) -> frozenset[int]:
        return frozenset((rank,))

    nothing = Collective("allreduce", own_part, own_part)
    idle = Algorithm(lambda b: b.chunks(1), nothing)
    assert gate(idle, 3, cache=tmp_path).verdict.origin == "proof"
    with pytest.raises(PostconditionError, match="lacks the contribution"):
        gate(Algorithm(idle.function, allreduce), 3, cache=tmp_path)
