import subprocess
import sys

import pytest

from pycoll.algorithms import BUILTIN, algorithm, get
from pycoll.errors import ScheduleError, UsageError
from pycoll.program.disassemble import disassemble
from pycoll.program.isa import HOST_DESTINATIONS, MAX_SOURCES, Flag, Op, ProgramFlag
from pycoll.program.lower import compile_all, compile_program
from pycoll.program.program import Program
from pycoll.schedule import Algorithm, ScheduleBuilder, allreduce

every_algorithm = pytest.mark.parametrize("a", BUILTIN, ids=lambda a: a.name)


def code(program: Program) -> list[str]:
    return [" ".join(line.split()[1:]) for line in disassemble(program).splitlines()[2:]]


def test_one_shot_of_two_has_no_superfluous_instruction() -> None:
    for rank, fold in ((0, "in[0] . (slot from 1)[0]"), (1, "(slot from 0)[0] . in[0]")):
        peer = 1 - rank
        assert code(compile_program(get("one_shot"), 2, rank)) == [
            "LOOP over tiles up to 7",
            f"WAIT slot to {peer}",
            f"REDUCE_COPY (slot to {peer})[0] = in[0]",
            f"SIGNAL slot to {peer}",
            f"WAIT slot from {peer}",
            f"REDUCE_COPY out[0] = {fold}",
            f"SIGNAL slot from {peer}",
            "END_LOOP from 0",
            "END",
        ]


def test_one_shot_of_five_sends_in_pairs_then_folds_once() -> None:
    ops = [i.op for i in compile_program(get("one_shot"), 5, 0).instructions]
    pair = [Op.WAIT] * 2 + [Op.REDUCE_COPY] + [Op.SIGNAL] * 2
    fold = [Op.WAIT] * 4 + [Op.REDUCE_COPY] + [Op.SIGNAL] * 4
    assert ops == [Op.LOOP, *pair, *pair, *fold, Op.END_LOOP, Op.END]


def test_the_ring_moves_every_message_once() -> None:
    for size in (2, 3, 8):
        moves = [
            i for i in compile_program(get("ring"), size, 1).instructions if i.op is Op.REDUCE_COPY
        ]
        # Partial sums go from slot to slot: only the last fold and what is received are stored.
        assert len(moves) == 2 * (size - 1) + 1
        stores = [m for m in moves if any(o.space == 1 for o in m.destinations)]
        assert len(stores) == size


def test_one_rank_copies_its_input() -> None:
    for direct in (False, True):
        text = code(compile_program(get("ring"), 1, 0, direct=direct))
        assert text == [
            "LOOP over tiles up to 2",
            "REDUCE_COPY out[0] = in[0]",
            "END_LOOP from 0",
            "END",
        ]


def test_direct_reads_and_writes_the_peer_and_ends_with_done() -> None:
    program = compile_program(get("two_shot"), 2, 0, direct=True)
    assert program.flags == ProgramFlag.DIRECT
    assert code(program) == [
        "LOOP over tiles up to 2",
        "REDUCE_COPY out[0], peer_out 1[0] = in[0] . peer_in 1[0]",
        "END_LOOP from 0",
        "SIGNAL done to 1",
        "WAIT done from 1",
        "END",
    ]


@every_algorithm
@pytest.mark.parametrize("size", [1, 2, 3, 8, 13, 32])
def test_programs_keep_the_limits_and_agree(a: Algorithm, size: int) -> None:
    programs = compile_all(a, size)
    assert len({(p.digest, p.nchunks, p.widest, p.size) for p in programs}) == 1
    for rank, p in enumerate(programs):
        assert p.rank == rank
        assert Program.from_bytes(p.to_bytes()) == p
        assert compile_program(a, size, rank) == p
        for i in p.instructions:
            if i.op is Op.REDUCE_COPY:
                assert 1 <= len(i.sources) <= MAX_SOURCES
                assert 1 <= len(i.destinations) <= HOST_DESTINATIONS
                for o in i.sources + i.destinations:
                    assert o.nchunks <= p.nchunks
        ends = [n for n, i in enumerate(p.instructions) if i.op is Op.END]
        assert len(ends) == len(p.channel_starts)


@pytest.mark.parametrize(
    "a", [a for a in BUILTIN if a.collective.reduces], ids=lambda a: f"{a.collective.name}-{a.name}"
)
def test_an_average_scales_where_the_sum_is_whole(a: Algorithm) -> None:
    for size in (2, 5, 12):
        plain, average = compile_all(a, size), compile_all(a, size, average=True)
        for p, q in zip(plain, average, strict=True):
            assert p.digest != q.digest
            assert all(not i.flags for i in p.instructions)
            assert [i._replace(flags=Flag(0)) for i in q.instructions] == list(p.instructions)
        assert any(i.flags & Flag.SCALE for q in average for i in q.instructions)


def test_digests_differ_by_form() -> None:
    two_shot = get("two_shot")
    digests = {
        compile_program(two_shot, 4, 0, direct=d, average=m).digest
        for d in (False, True)
        for m in (False, True)
    }
    assert len(digests) == 4


def test_an_average_needs_folds_that_complete_all_their_chunks() -> None:
    @algorithm(allreduce)
    def half_done(b: ScheduleBuilder) -> None:
        peer = 1 - b.rank
        for chunks in (b.output[0], b.output[:]):
            b.send(chunks, to=peer)
            b.recv_reduce(chunks, frm=peer)

    assert len(compile_all(half_done, 2)) == 2
    with pytest.raises(ScheduleError, match=r"^half_done: rank \d step 3: .*needs one fold for"):
        compile_all(half_done, 2, average=True)


def test_scratch_of_folds_lies_behind_the_algorithm_s() -> None:
    @algorithm(allreduce)
    def through_scratch(b: ScheduleBuilder) -> None:
        b.chunks(1)
        for k in range(1, b.size):
            b.send(b.input[0], to=(b.rank + k) % b.size)
        b.copy(b.input[0], b.scratch[0])
        b.recv_reduce(b.scratch[0], frm=range(b.size))
        b.copy(b.scratch[0], b.output[0])

    assert [p.nscratch for p in compile_all(through_scratch, 9)] == [2] * 9


def test_what_does_not_fold_has_no_average() -> None:
    @algorithm("broadcast")
    def star(b: ScheduleBuilder) -> None:
        for peer in range(1, b.size):
            if b.rank == 0:
                b.send(b.input[:], to=peer)
            elif b.rank == peer:
                b.recv(b.output[:], frm=0)

    assert len(compile_all(star, 3)) == 3
    with pytest.raises(UsageError, match=r"^star: broadcast folds nothing, so it has no average$"):
        compile_all(star, 3, average=True)


def test_no_numpy_is_needed_to_compile() -> None:
    script = (
        "import sys; from pycoll.program.lower import compile_all; "
        "from pycoll.algorithms import get; compile_all(get('ring'), 4); "
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
