"""The proof by representatives: what it accepts is right for all ranks, and covers only those."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest
from assemble import (
    data_from,
    data_to,
    inp,
    local,
    loop,
    move,
    out,
    program,
    scratch,
    signal,
    slot,
    wait,
)
from mutants import PROGRAM_FAULTS, channels_of, relink

from pycoll.algorithms import BUILTIN, Algorithm, algorithm, get
from pycoll.errors import DeadlockError, PostconditionError, RaceError, ScheduleError
from pycoll.program.isa import EdgeKind, Flag, Op, ProgramFlag, Space
from pycoll.program.lower import compile_all, compile_program, facts_of
from pycoll.program.program import Edge, Instruction, Program
from pycoll.schedule import (
    Collective,
    Placement,
    ScheduleBuilder,
    allgather,
    allreduce,
    reduce_scatter,
    schedule,
)
from pycoll.schedule.placement import Level
from pycoll.verify import Record, verify_programs
from pycoll.verify.representatives import by_symmetry
from pycoll.verify.symmetry.canonical import NotSymmetricError, canonical_digest, moved
from pycoll.verify.symmetry.cut import is_cut
from pycoll.verify.symmetry.group import Group, Rotation, Xor
from pycoll.verify.symmetry.proof import SymmetricProof, covers, find_group, prove_representatives

ROTATED = (
    *(("ring", c) for c in ("allreduce", "allgather", "reduce_scatter")),
    *(("pat", c) for c in ("allgather", "reduce_scatter")),
    ("direct", "allgather"),
    ("pairwise", "reduce_scatter"),
    *((name, "alltoall") for name in ("pairwise", "spread", "bruck")),
)
XORED = (
    ("recursive_doubling", "allreduce"),
    ("halving_doubling", "allreduce"),
    ("hierarchical_doubling", "allreduce"),
    ("recursive_doubling", "allgather"),
)


def nodes(size: int, width: int) -> Placement:
    return Placement.of(Level("node", tuple(rank // width for rank in range(size))))


def expanded(bases: list[Program], group: Group) -> tuple[Program, ...]:
    """Return what all ranks have if the first ones represent them."""
    return tuple(
        moved(bases[rank % group.step], group, group.element(rank)) for rank in range(group.size)
    )


def record_of(
    made: Algorithm,
    size: int,
    *,
    slots: int = 2,
    average: bool = False,
    placement: Placement | None = None,
) -> Record | None:
    return by_symmetry(made, size, slots, average, placement)


def admits_all(
    record: Record | None,
    made: Algorithm,
    size: int,
    average: bool = False,
    placement: Placement | None = None,
) -> bool:
    """Tell whether each rank may run its Program, and runs what all ranks' steps lower to.

    It does also where it takes it from its representative's.
    """
    sums = compile_all(made, size, placement=placement)
    whole = compile_all(made, size, average=average, placement=placement)
    if record is None:
        return False
    for own, final in zip(sums, whole, strict=True):
        if not record.admits(own, made.collective, sums.__getitem__):
            return False
        assert record.finished(own) == final
        if record.alike:
            base = sums[record.representative(own.rank)]
            image = record.image(base.to_bytes(), own.rank)
            assert image is not None
            assert image.to_bytes() == final.to_bytes()
            assert image.digest == final.digest
            assert image.peers() == {e.peer for e in final.edges if e.kind is not EdgeKind.LOCAL}
    return True


def covered(
    proof: SymmetricProof, program: Program, kind: Collective, group: Group, *bases: Program
) -> bool:
    """Tell whether a proof is of this Program; with the representatives, but for cuts."""
    number = program.rank % group.step
    base = bases[number] if bases else None
    return covers(program, proof.digests[number], kind, group, bool(bases), base)


def test_a_program_that_was_not_proved_is_moved_to_nobody() -> None:
    made = get("ring")
    record = record_of(made, 6)
    assert record is not None
    good = compile_program(made, 6, 0)
    assert record.image(good.to_bytes(), 3) is not None
    other = replace(good, instructions=(*good.instructions[:-1], Instruction(Op.SIGNAL)))
    for wrong in (other, compile_program(made, 6, 1), compile_program(made, 5, 0)):
        assert record.image(wrong.to_bytes(), 3) is None
    with pytest.raises(ScheduleError, match="by its header"):
        record.image(good.to_bytes()[:-1], 3)


@algorithm(allgather)
def ring_with_an_aside(b: ScheduleBuilder) -> None:
    """A ring that also takes two blocks aside, and back; of some ranks these wrap round the end."""
    get("ring", "allgather")(b)
    first = (b.rank + 3) % b.size
    whole = first + 1 < b.size
    for source, place in [(first, 0)] if whole else [(first, 0), (0, 1)]:
        n = 1 + whole
        b.copy(b.output[source : source + n], b.scratch[place : place + n])
        b.copy(b.scratch[place : place + n], b.output[source : source + n])


def test_a_rank_without_an_image_lowers_its_own() -> None:
    """A proof looks at the first and the last rank; what is between them each sees itself."""
    record = record_of(ring_with_an_aside, 9)
    assert record is not None
    assert record.alike
    sums = compile_all(ring_with_an_aside, 9)
    images = [record.image(sums[0].to_bytes(), rank) for rank in range(9)]
    assert [rank for rank, image in enumerate(images) if image is None] == [5]
    for rank, image in enumerate(images):
        admitted = record.admits(sums[rank], ring_with_an_aside.collective, sums.__getitem__)
        assert admitted == (image is not None)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 12])
@pytest.mark.parametrize(("name", "collective"), ROTATED)
def test_by_rotation(name: str, collective: str, size: int) -> None:
    made = get(name, collective)
    for average in (False, True) if made.collective.reduces else (False,):
        record = record_of(made, size, average=average)
        assert admits_all(record, made, size, average)
        assert record is not None
        assert isinstance(record.group, Rotation)
        assert record.verdict.name == name
        assert record.facts == facts_of(schedule(made, size))
        programs = compile_all(made, size)
        assert record.verdict.instructions == sum(len(p.instructions) for p in programs)


@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize(("name", "collective"), XORED)
def test_by_xor(name: str, collective: str, size: int) -> None:
    made = get(name, collective)
    for average in (False, True) if made.collective.reduces else (False,):
        record = record_of(made, size, average=average)
        assert admits_all(record, made, size, average)
        assert record is not None
        assert isinstance(record.group, Xor if size > 2 else Rotation)


# In nodes of nine and more folds of a node's shares pass through scratch.
@pytest.mark.parametrize(
    ("size", "width"), [(6, 3), (8, 2), (12, 4), (16, 4), (24, 8), (27, 9), (64, 16)]
)
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter"])
def test_by_rotation_of_nodes(collective: str, size: int, width: int) -> None:
    made, placement = get("hierarchical", collective), nodes(size, width)
    for average in {False, made.collective.reduces}:
        record = record_of(made, size, average=average, placement=placement)
        assert admits_all(record, made, size, average, placement)
        assert record is not None
        assert record.group is not None
        assert record.group.step == width


def test_by_xor_of_nodes() -> None:
    made, placement = get("hierarchical_doubling"), nodes(24, 3)
    record = record_of(made, 24, placement=placement)
    assert admits_all(record, made, 24, placement=placement)
    assert record is not None
    assert record.group is not None
    assert (type(record.group), record.group.step) == (Xor, 3)


BRUCK = ("allreduce", "allgather", "reduce_scatter")


@pytest.mark.parametrize("size", [4, 5, 6, 8, 12, 13, 16])
@pytest.mark.parametrize("collective", BRUCK)
def test_by_rotation_with_cuts(collective: str, size: int) -> None:
    made = get("bruck", collective)
    record, programs = record_of(made, size), compile_all(made, size)
    assert record is not None
    assert record.cut
    assert admits_all(record, made, size)
    assert verify_programs(programs, made.collective)
    assert record.facts == facts_of(schedule(made, size))
    of_another = programs[1:].__getitem__  # which is no representative
    assert not record.admits(programs[0], made.collective, of_another)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_by_xor_with_scratch_in_another_order(size: int) -> None:
    made = get("recursive_halving", "reduce_scatter")
    record = record_of(made, size)
    assert record is not None
    assert (type(record.group), record.cut) == (Xor, True)
    assert admits_all(record, made, size)


def test_ranks_that_cut_differently_divide_in_instructions_of_their_own() -> None:
    assert record_of(get("bruck"), 5, average=True) is None
    assert record_of(get("recursive_halving", "reduce_scatter"), 8, average=True) is None


def test_a_message_in_two_pieces_takes_two_slots() -> None:
    assert record_of(get("bruck"), 5, slots=2) is not None
    assert record_of(get("bruck"), 5, slots=1) is None
    base = compile_program(get("bruck"), 5, 0)
    with pytest.raises(ScheduleError, match="one channel and 2 slots, got 1"):
        prove_representatives([base], allreduce, Rotation(5, 1, 1), cut=True, slots=1)

    @algorithm(allgather)
    def two_ahead(b: ScheduleBuilder) -> None:
        """Send twice what wraps round on one of the ranks, and only then receive it."""
        b.chunks(2 * b.size)
        left, right, own = (b.rank - 1) % b.size, (b.rank + 1) % b.size, 2 * b.rank
        b.send(b.output[own], to=left)
        b.recv(b.output[own + 2], frm=right)
        for _ in range(2):
            for chunks in b.output.around(own + 1, 2):
                b.send(chunks, to=left)
        for _ in range(2):
            for chunks in b.output.around(own + 3, 2):
                b.recv(chunks, frm=right)
        b.send(b.output[own + 3], to=left)
        b.recv(b.output[own + 5], frm=right)

    programs = compile_all(two_ahead, 3)
    group = Rotation(3, 1, 2)
    assert len({len(p.instructions) for p in programs}) > 1
    with pytest.raises(DeadlockError, match="waits in a circle with 1 slots"):
        prove_representatives([programs[0]], allgather, group, cut=True, slots=3)
    proof = prove_representatives([programs[0]], allgather, group, cut=True, slots=4)
    assert all(covered(proof, p, allgather, group, programs[0]) for p in programs)


def test_sender_and_receiver_cut_alike() -> None:
    """All chunks as a set are the same from wherever they begin; cut they are not."""

    # Both ends as rank 0 would have them if it did not cut: [0:2] to the next, [0:2] from the last.
    whole = program(
        0,
        2,
        loop(
            wait(0),
            move(inp(0, 2), to=slot(0, 0, 2)),
            signal(0),
            wait(1),
            move(inp(0, 2), slot(1, 0, 2), to=out(0, 2)),
            signal(1),
        ),
        edges=(data_to(1), data_from(1)),
        nchunks=2,
        widest=2,
    )
    group = Rotation(2, 1, 1)
    assert prove_representatives([whole], allreduce, group)
    with pytest.raises(PostconditionError, match="reads chunks 0 to 1 from a slot"):
        prove_representatives([whole], allreduce, group, cut=True)


def test_a_rank_that_waits_before_its_block_is_not_covered() -> None:
    """What it computes is the same, but ranks that all receive first wait for ever."""

    def receives_first(code: list[Instruction]) -> None:
        code[1:7] = code[4:7] + code[1:4]

    def waits_for_both(code: list[Instruction]) -> None:
        code[1:1] = [code.pop(4)]

    made = get("bruck", "allgather")
    programs = compile_all(made, 5)
    record = record_of(made, 5)
    assert record is not None
    assert record.cut
    for edit in (receives_first, waits_for_both):
        late = [edited(p, edit) for p in programs]
        assert not any(record.admits(p, allgather, programs.__getitem__) for p in late)
        with pytest.raises(DeadlockError, match="waits in a circle"):
            verify_programs(late, allgather)


def test_a_message_in_more_than_two_pieces_is_not_covered() -> None:
    group = Rotation(4, 1, 1)  # within windows of 4 chunks

    def exchange(rank: int, nchunks: int, *pieces: tuple[int, int]) -> Program:
        code = []
        for first, n in pieces:
            code += [wait(0), move(inp(first, n), to=slot(0, first, n)), signal(0)]
        for first, n in pieces:
            got = move(inp(first, n), slot(1, first, n), to=out(first, n))
            code += [wait(1), got, signal(1)]
        edges = (data_to((rank + 1) % 4), data_from((rank - 1) % 4))
        return program(rank, 4, loop(*code), edges=edges, nchunks=nchunks, widest=nchunks)

    one = exchange(0, 4, (0, 4))
    assert is_cut(exchange(1, 4, (1, 3), (0, 1)), one, allreduce, group)
    assert not is_cut(exchange(1, 4, (0, 4)), one, allreduce, group)
    two = exchange(0, 8, (0, 8))
    four = exchange(1, 8, (1, 3), (0, 1), (5, 3), (4, 1))
    assert not is_cut(four, two, allreduce, group)


def test_scratch_in_whole_windows_is_moved_as_chunks_are() -> None:
    group = Rotation(4, 1, 1)

    def kept(place: int, chunk: int, n: int, then: int) -> Program:
        code = move(inp(chunk, n), to=scratch(place, chunk, n)), move(scratch(then, 0), to=out(0))
        return program(0, 4, loop(*code), nchunks=8, nscratch=8)

    whole = move(inp(0, 4), to=scratch(4, 0, 4)), move(scratch(4, 0, 4), to=out(0, 4))
    aside = program(0, 4, loop(*whole), nchunks=8, nscratch=8)
    assert moved(aside, group, 1).instructions == aside.instructions
    # One that begins inside a window, that is half of one, or of which a part is read.
    for wrong in (kept(2, 0, 4, 2), kept(0, 2, 2, 0), kept(4, 0, 4, 4), kept(0, 2, 4, 0)):
        with pytest.raises(
            NotSymmetricError, match="or in another order, after rotation of 4 by 1"
        ):
            moved(wrong, group, 1)


def test_what_lies_by_position_keeps_its_order_or_has_no_image() -> None:
    group = Xor(4, 1, 1)
    out_of = program(0, 4, loop(move(inp(0, 2), to=out(0, 2))), nchunks=4)
    assert moved(out_of, group, 1).instructions == out_of.instructions  # chunk by chunk
    aside = program(0, 4, loop(move(inp(0, 2), to=scratch(0, 0, 2))), nchunks=4, nscratch=2)
    assert moved(aside, group, 2).instructions[1].sources == (inp(2, 2),)
    for wrong, kind in ((aside, group), (out_of, replace(group, equal_blocks=True))):
        with pytest.raises(NotSymmetricError, match="or in another order, after XOR below 4 by 1"):
            moved(wrong, kind, 1)


@pytest.mark.parametrize(
    ("name", "collective", "sizes"),
    [
        *(("bruck", collective, range(4, 10)) for collective in BRUCK),
        ("recursive_halving", "reduce_scatter", (4, 8)),
    ],
)
def test_what_covers_a_mutant_with_cuts_is_right_as_a_whole(
    name: str, collective: str, sizes: Sequence[int]
) -> None:
    r, counts = random.Random(collective), Counter[str]()
    made = get(name, collective)
    for _ in range(60):
        size, slots = r.choice(sizes), r.choice((2, 2, 4))
        programs = list(compile_all(made, size))
        record = record_of(made, size, slots=slots)
        assert record is not None
        for _ in range(r.choice((1, 1, 2))):
            victim, fault = r.randrange(size), r.choice(sorted(PROGRAM_FAULTS))
            mutant = PROGRAM_FAULTS[fault](programs[victim], random.Random(r.random()))
            counts["same"] += mutant == programs[victim]
            programs[victim] = mutant
        first = compile_all(made, size)
        all_right = all(record.admits(p, made.collective, first.__getitem__) for p in programs)
        counts["covered" if all_right else "not covered"] += 1
        if all_right:
            assert verify_programs(programs, made.collective, slots=slots)
    assert counts["covered"] > counts["same"] // 2
    assert counts["not covered"] > 20


def test_where_no_group_fits_there_is_no_proof() -> None:
    assert record_of(get("double_binary_tree"), 8) is None
    assert record_of(get("recursive_doubling"), 6) is None
    assert record_of(get("binomial", "broadcast"), 8) is None
    assert record_of(get("ring"), 1) is None
    # Nodes that do not lie side by side are not moved as blocks.
    alternating = Placement.of(Level("node", tuple(rank % 2 for rank in range(8))))
    assert record_of(get("hierarchical"), 8, placement=alternating) is None


# Wrong, and alike on all ranks.


@algorithm(allreduce)
def own_first(b: ScheduleBuilder) -> None:
    b.chunks(1)
    for k in range(1, b.size):
        b.send(b.input[:], to=(b.rank + k) % b.size)
    b.recv_reduce(b.output[:], frm=[(b.rank + k) % b.size for k in range(b.size)])


@algorithm(allreduce)
def forgets_one(b: ScheduleBuilder) -> None:
    b.chunks(1)
    for k in range(1, b.size - 1):
        b.send(b.input[:], to=(b.rank + k) % b.size)
    b.recv_reduce(b.output[:], frm=[(b.rank - k) % b.size for k in range(b.size - 1)])


@algorithm(allreduce)
def waits_first(b: ScheduleBuilder) -> None:
    b.chunks(1)
    b.recv_reduce(b.output[:], frm=(b.rank - 1) % b.size)
    b.send(b.output[:], to=(b.rank + 1) % b.size)


@algorithm(allgather)
def next_but_one(b: ScheduleBuilder) -> None:
    b.send(b.output[b.rank], to=(b.rank + 1) % b.size)
    b.recv(b.output[b.rank - 2], frm=(b.rank - 1) % b.size)


def test_symmetric_and_wrong() -> None:
    with pytest.raises(PostconditionError, match="not the same bits"):
        record_of(own_first, 5)
    assert record_of(own_first, 2)  # a fold of two has one order
    with pytest.raises(PostconditionError, match="lacks the contribution of rank 1"):
        record_of(forgets_one, 5)


def ring(size: int, name: str = "ring", collective: str = "allreduce") -> list[Program]:
    return [compile_program(get(name, collective), size, 0)]


def edited(program: Program, edit: Callable[[list[Instruction]], None]) -> Program:
    code = channels_of(program)
    edit(code[0])
    return relink(program, code)


def at(code: list[Instruction], op: Op, n: int) -> int:
    return [k for k, i in enumerate(code) if i.op == op][n]


def refused(
    kind: type[ScheduleError], match: str, program: Program, group: Group, slots: int = 2
) -> None:
    """Check that both proofs refuse the program on all ranks, this one with the text."""
    with pytest.raises(kind, match=match):
        prove_representatives([program], allreduce, group, slots=slots)
    with pytest.raises(ScheduleError):
        verify_programs(expanded([program], group), allreduce, slots=slots)


def test_a_message_too_many_on_all_ranks() -> None:
    def one_more(code: list[Instruction]) -> None:
        k = at(code, Op.END_LOOP, 0)
        wait, copy, signal = code[1], code[2], code[3]
        code[k:k] = [wait, copy._replace(sources=code[k - 2].destinations[:1]), signal]

    (base,) = ring(5)
    assert base.instructions[2].destinations[0].space == Space.SLOT
    wrong = edited(base, one_more)
    refused(ScheduleError, "mixes chunks|messages to|writes a slot", wrong, Rotation(5, 1, 1))

    def doubled(code: list[Instruction]) -> None:
        code[1:1] = code[1:4]

    wrong = edited(base, doubled)
    refused(ScheduleError, "waits in a circle", wrong, Rotation(5, 1, 1))


def test_a_credit_that_is_never_given_back_on_all_ranks() -> None:
    (base,) = ring(5)

    def kept(code: list[Instruction]) -> None:
        recv = next(k for k, e in enumerate(base.edges) if e.direction == 1)
        del code[max(k for k, i in enumerate(code) if i.op == Op.SIGNAL and i.edge == recv)]

    wrong = edited(base, kept)
    refused(ScheduleError, "a slot is never given back", wrong, Rotation(5, 1, 1))


def test_a_cyclic_wait_on_all_ranks() -> None:
    with pytest.raises(DeadlockError, match="waits in a circle"):
        record_of(waits_first, 3)

    # Three messages on their way need three slots.
    @algorithm(allgather)
    def ahead(b: ScheduleBuilder) -> None:
        b.chunks(3 * b.size)
        right, left, mine = (b.rank + 1) % b.size, (b.rank - 1) % b.size, 3 * b.rank
        for k in range(3):
            b.send(b.output[mine + k], to=right)
        for k in range(3):
            b.recv(b.output[mine - 3 + k], frm=left)

    assert record_of(ahead, 2, slots=3)
    with pytest.raises(DeadlockError, match="with 2 slots per edge"):
        record_of(ahead, 2, slots=2)


def test_a_swapped_chunk_and_swapped_sends_on_all_ranks() -> None:
    with pytest.raises(ScheduleError):
        compile_all(next_but_one, 4)
    (base,) = ring(5)

    def other_chunk(code: list[Instruction]) -> None:
        first = code[2]
        code[2] = first._replace(
            sources=tuple(o._replace(chunk=1, place=1) for o in first.sources),
            destinations=tuple(o._replace(chunk=1) for o in first.destinations),
        )

    wrong = edited(base, other_chunk)
    refused(PostconditionError, "reads chunks 4 to 4 from a slot", wrong, Rotation(5, 1, 1))

    (base,) = ring(4, "spread", "alltoall")
    group = Rotation(4, 1, 1, equal_blocks=True)
    sends = [
        k
        for k, i in enumerate(base.instructions)
        if i.destinations[:1] and i.destinations[0].space == Space.SLOT
    ]

    def swapped(code: list[Instruction]) -> None:
        a, b = sends[:2]
        code[a], code[b] = (
            code[a]._replace(sources=code[b].sources),
            code[b]._replace(sources=code[a].sources),
        )
        for k in (a, b):
            chunk = code[k].sources[0].chunk
            into = tuple(o._replace(chunk=chunk) for o in code[k].destinations)
            code[k] = code[k]._replace(destinations=into)

    wrong = edited(base, swapped)
    kind = get("spread", "alltoall").collective
    assert prove_representatives([base], kind, group)
    with pytest.raises(PostconditionError, match=r"chunk \d of OUT holds chunk"):
        prove_representatives([wrong], kind, group)
    with pytest.raises(PostconditionError, match=r"chunk \d of OUT holds chunk"):
        verify_programs(expanded([wrong], group), kind)


def test_scratch_that_is_read_unwritten_on_all_ranks() -> None:
    (base,) = ring(4, "ring", "reduce_scatter")
    assert base.nscratch == 0

    def unwritten(code: list[Instruction]) -> None:
        k = at(code, Op.REDUCE_COPY, 1)
        own = code[k].sources[0]
        held = own._replace(space=Space.SCRATCH, place=0)
        code[k] = code[k]._replace(sources=(held, *code[k].sources[1:]))

    wrong = replace(edited(base, unwritten), nscratch=1)
    group = Rotation(4, 1, 1)
    with pytest.raises(PostconditionError, match=r"scratch place 0 of rank \d, which was never"):
        prove_representatives([wrong], reduce_scatter, group)
    with pytest.raises(PostconditionError, match=r"scratch place 0 of rank \d, which was never"):
        verify_programs(expanded([wrong], group), reduce_scatter)


def test_a_group_that_changes_what_is_promised_is_refused() -> None:
    with pytest.raises(ScheduleError, match="does not leave what allgather promises as it is"):
        prove_representatives(ring(4, "ring", "allgather"), allgather, Rotation(4, 1, 0))
    (base,) = ring(4)
    with pytest.raises(ScheduleError, match="direct Programs"):
        prove_representatives(
            [replace(base, flags=ProgramFlag.DIRECT)], allreduce, Rotation(4, 1, 1)
        )


def by_way_of_another(target: int) -> list[Program]:
    """Channel 1 of rank 1 tells channel 1 of ``target`` what channel 0 of rank 0 has done."""
    back = (1 - target) % 4
    first = [wait(0), move(inp(0), to=(out(0), slot(0, 0))), signal(0)]
    second = [wait(1), move(slot(1, 0), to=out(0)), signal(1)]
    edges = (data_to(1), data_from(back, 1))
    zero = program(0, 4, loop(*first), loop(*second), edges=edges)
    first = [wait(0), move(slot(0, 0), to=out(0)), signal(0), signal(2)]
    second = [wait(3), wait(1), move(out(0), to=slot(1, 0)), signal(1)]
    edges = (data_from(0), data_to(target, 1), *local(1, 0, 1))
    return [zero, program(1, 4, loop(*first), loop(*second), edges=edges)]


def test_an_order_that_leads_to_another_rank_orders_nothing() -> None:
    group = Rotation(2, 2, 0)
    for target, kind in ((0, PostconditionError), (2, RaceError)):
        programs = by_way_of_another(target)
        text = "no order between the two" if kind is RaceError else "lacks the contribution"
        with pytest.raises(kind, match=text):
            prove_representatives(programs, allreduce, group)
        with pytest.raises(kind, match=text):
            verify_programs(expanded(programs, group), allreduce)


# What a rank's check of its own Program sees.


def changes(program: Program) -> Iterator[tuple[str, Program]]:
    """Yield the program with one field changed, for every field that there is."""
    for name in ("rank", "size", "digest", "nchunks", "nscratch", "widest"):
        yield name, replace(program, **{name: getattr(program, name) + 1})
    yield "flags", replace(program, flags=ProgramFlag.DIRECT)
    yield "channel_starts", replace(program, channel_starts=(*program.channel_starts, 0))
    yield "edges", replace(program, edges=program.edges[::-1])
    edge = program.edges[0]
    for field in Edge._fields:
        value = getattr(edge, field)
        other = type(value)(1 - value) if field in ("kind", "direction") else value + 1
        new = (edge._replace(**{field: other}), *program.edges[1:])
        yield f"edge {field}", replace(program, edges=new)
    for k in {i.op: k for k, i in enumerate(program.instructions)}.values():
        yield from instruction_changes(program, k)


def instruction_changes(program: Program, k: int) -> Iterator[tuple[str, Program]]:
    i = program.instructions[k]
    changed: list[Instruction] = [
        i._replace(op=Op((i.op + 1) % len(Op))),
        i._replace(edge=i.edge + 1),
        i._replace(flags=i.flags ^ Flag.SCALE),
        i._replace(target=i.target + 1),
    ]
    for side in ("sources", "destinations"):
        operands = getattr(i, side)
        if operands:
            o = operands[0]
            others = [
                o._replace(space=Space.SCRATCH if o.space != Space.SCRATCH else Space.OUT),
                *(o._replace(**{f: getattr(o, f) + 1}) for f in ("edge", "place", "chunk")),
                o._replace(nchunks=o.nchunks + 1),
            ]
            changed += [i._replace(**{side: (other, *operands[1:])}) for other in others]
            changed += [i._replace(**{side: operands[1:]}), i._replace(**{side: operands * 2})]
        if len(operands) > 1:
            changed.append(i._replace(**{side: operands[::-1]}))
    for new in changed:
        code = (*program.instructions[:k], new, *program.instructions[k + 1 :])
        yield f"instruction {k}: {new}", replace(program, instructions=code)
    swapped = list(program.instructions)
    swapped[k - 1 : k + 1] = swapped[k - 1 : k + 1][::-1]
    if tuple(swapped) != program.instructions:
        yield f"instruction {k} swapped", replace(program, instructions=tuple(swapped))


@pytest.mark.parametrize(
    ("made", "size"),
    [
        (get("ring"), 5),
        (get("ring", "reduce_scatter"), 4),
        (get("halving_doubling"), 8),
        (get("bruck", "alltoall"), 5),
    ],
    ids=str,
)
def test_a_rank_sees_any_field_that_differs_in_its_own_program(made: Algorithm, size: int) -> None:
    record, programs = record_of(made, size), compile_all(made, size)
    assert record is not None
    may = partial(record.admits, collective=made.collective, lower=programs.__getitem__)
    count = 0
    for rank in (0, 1, size - 1):
        assert may(programs[rank])
        for what, other in changes(programs[rank]):
            assert not may(other), f"rank {rank}: {what}"
            count += 1
    assert count > 90


def test_a_programs_digest_is_of_its_place_in_the_group() -> None:
    programs = compile_all(get("ring"), 6)
    group = Rotation(6, 1, 1)
    assert len({canonical_digest(p, group, p.rank) for p in programs}) == 1
    assert len({canonical_digest(p, group, 0) for p in programs}) == 6
    wide = compile_program(get("bruck", "allgather"), 6, 0)
    with pytest.raises(NotSymmetricError, match="are no range"):
        moved(wide, group, 5)


# Both proofs say the same.


def bases(r: random.Random) -> Iterator[tuple[Algorithm, list[Program], Group, bool]]:
    """Yield representatives without end: right ones of built-ins, mostly in sizes from 2 to 16."""
    open_ = [a for a in BUILTIN if not a.collective.rooted]
    while True:
        made, size = r.choice(open_), r.randint(2, 16)
        placement = None
        by_nodes = made.name.startswith("hierarchical")
        if by_nodes and r.random() < 0.2:
            size = r.choice((18, 20, 27))  # of nine and more ranks, whose folds use scratch
        widths = [w for w in range(2, size) if size % w == 0]
        if by_nodes and widths and r.random() < 0.8:
            placement = nodes(size, r.choice(widths))
        average = made.collective.reduces and r.random() < 0.3

        one = partial(compile_program, made, size, average=average, placement=placement)
        found = find_group(one, size, made.collective, placement, cuts=False)
        if found is not None:
            group = found[0]
            yield made, [one(rank) for rank in range(group.step)], group, average


def says(proof: Callable[[], object]) -> str:
    try:
        proof()
    except ScheduleError as error:
        return type(error).__name__
    return ""


def compare(rounds: int, seed: int) -> Counter[str]:
    r, counts = random.Random(seed), Counter[str]()
    for made, reps, group, average in bases(r):
        of_group = f"{type(group).__name__} {'of nodes' if group.step > 1 else ''}"
        if counts[of_group] >= rounds // 2:  # the commonest leaves room for the others
            continue
        kind: Collective = made.collective
        slots = r.choice((1, 2, 2, 2, 3))
        variants = [("right", reps)]
        for _ in range(5):
            name, changed = r.choice(sorted(PROGRAM_FAULTS)), list(reps)
            victim = r.randrange(group.step)
            changed[victim] = PROGRAM_FAULTS[name](changed[victim], random.Random(r.random()))
            variants.append((name, changed))
        for name, variant in variants:
            try:
                whole = expanded(variant, group)
            except NotSymmetricError:
                counts["no image"] += 1
                continue
            form = {"slots": slots, "average": average}
            full = says(partial(verify_programs, whole, kind, **form))
            quotient = says(partial(prove_representatives, variant, kind, group, **form))
            assert bool(full) == bool(quotient), (made, group, name, slots, full, quotient)
            counts["refused" if full else "accepted"] += 1
            counts[of_group] += 1
            counts["same kind of error"] += bool(full) and full == quotient
            if not full and variant != reps:
                counts["accepted mutants"] += 1
            if counts["accepted"] + counts["refused"] >= rounds:
                return counts
        # One rank alone that differs is covered by nothing.
        if slots > 1:
            good = prove_representatives(reps, kind, group, slots=slots, average=average)
            whole = expanded(reps, group)
            victim = r.randrange(group.size)
            name = r.choice(sorted(PROGRAM_FAULTS))
            other = PROGRAM_FAULTS[name](whole[victim], random.Random(r.random()))
            assert all(covered(good, p, kind, group) for p in whole)
            assert covered(good, other, kind, group) == (other == whole[victim])
            counts["one rank"] += other != whole[victim]
    raise AssertionError


def test_both_proofs_say_the_same() -> None:
    counts = compare(150, seed=1)
    assert min(counts["accepted"], counts["refused"], counts["one rank"]) > 10


def test_both_proofs_say_the_same_of_thousands() -> None:
    counts = compare(2000, seed=2)
    print(dict(counts))
    assert min(counts["accepted"], counts["refused"]) > 400
    assert min(counts["accepted mutants"], counts["one rank"]) > 20
    assert all(counts[kind] > 100 for kind in ("Rotation ", "Rotation of nodes", "Xor "))
