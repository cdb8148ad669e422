"""Every built-in against numpy, through the reference interpreter, and proved."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from promises import block_counts, messages, promised, provided

from pycoll.algorithms import BUILTIN, get, names
from pycoll.dtypes import FLOAT32, INT32, INT64, ReduceOp
from pycoll.program.lower import compile_all
from pycoll.program.reference import run
from pycoll.schedule import COLLECTIVES, Algorithm, NotDirect
from pycoll.verify import verify_programs

TILE = 64


def identity(a: Algorithm) -> str:
    return f"{a.collective.name}-{a.name}"


#: hierarchical ones, which on a flat placement are one of these, have tests of their own
PLAIN = [a for a in BUILTIN if "hierarchical" not in a.name]
every_algorithm = pytest.mark.parametrize("a", PLAIN, ids=identity)
folding = pytest.mark.parametrize("a", [a for a in PLAIN if a.collective.reduces], ids=identity)
SIZES = [*range(2, 18), 32]
#: elements (int32) of a block, or of the message: nothing, one, a tail, several tiles and chunks
COUNTS = [0, 1, 3, 16, 17, 257, 700]


def check(a: Algorithm, programs: Sequence[Any], count: int) -> None:
    c, size = a.collective, len(programs)
    counts = block_counts(c, size, count)
    data = [x.astype(np.int32) for x in messages(size, sum(counts))]
    for in_place in (False, True) if c.in_place else (False,):
        inputs = [provided(c, rank, data, counts).copy() for rank in range(size)]
        found = run(
            programs, inputs, INT32, tile=TILE, in_place=in_place, collective=c, counts=counts
        )
        for rank, out in enumerate(found):
            np.testing.assert_array_equal(out, promised(c, rank, data, counts), f"rank {rank}")


def forms(a: Algorithm, size: int) -> list[bool]:
    """Return the forms that an algorithm has: staged, and perhaps direct."""
    try:
        compile_all(a, size, direct=True)
    except NotDirect:
        return [False]
    return [False, True]


@every_algorithm
def test_few_ranks_and_every_count(a: Algorithm) -> None:
    for size in (1, 2, 3, 4):
        for direct in forms(a, size):
            programs = compile_all(a, size, direct=direct)
            for count in COUNTS:
                check(a, programs, count)


@every_algorithm
def test_every_size_gives_the_result_and_is_proved(a: Algorithm) -> None:
    for size in SIZES:
        for direct in forms(a, size):
            programs = compile_all(a, size, direct=direct)
            check(a, programs, 21 if size < 20 else 5)
            assert verify_programs(programs, a.collective)


def test_which_have_a_direct_form() -> None:
    found: dict[tuple[str, str], list[int]] = {}
    for a in PLAIN:
        sizes = [size for size in (2, 3, 4, 7) if True in forms(a, size)]
        found[a.collective.name, a.name] = sizes
    always = {key for key, sizes in found.items() if sizes == [2, 3, 4, 7]}
    assert always == {
        ("allreduce", "flat_tree"),
        ("allreduce", "two_shot"),
        ("broadcast", "direct"),
        ("reduce", "direct"),
        ("reduce", "two_shot"),
        ("allgather", "direct"),
        ("reduce_scatter", "direct"),
        ("reduce_scatter", "pairwise"),
        ("alltoall", "direct"),
        ("alltoall", "pairwise"),
        ("alltoall", "spread"),
        ("gather", "direct"),
        ("scatter", "direct"),
    }
    assert all(found[c, n][:1] == [2] for c, n in found if n in ("ring", "chain", "binomial"))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_two_ranks_need_one_message_each_way_and_no_scratch(collective: str) -> None:
    least = []
    for name in names(collective):
        programs = compile_all(get(name, collective), 2)
        moved = sum(len(p.instructions) for p in programs)
        least.append((moved, max(p.nscratch for p in programs)))
    # Two waits and two signals for each message, its two copies and those of the own data.
    messages = 1 if COLLECTIVES[collective].rooted else 2
    own = {"broadcast": 1, "gather": 1, "scatter": 1, "allgather": 2, "alltoall": 2}
    own["allreduce"] = -1  # one rank folds and sends by one instruction
    loops = 2 * 3
    assert min(least) == (loops + 6 * messages + own.get(collective, 0), 0)


@folding
def test_averages(a: Algorithm) -> None:
    c = a.collective
    for size in (1, 2, 3, 6, 9):
        counts = block_counts(c, size, 100 if c.blocks == "one" else 9)
        data = [x - 40000 for x in messages(size, sum(counts))]
        for direct in forms(a, size):
            programs = compile_all(a, size, direct=direct, average=True)
            inputs = [provided(c, rank, data, counts) for rank in range(size)]
            found = run(
                programs, inputs, INT64, ReduceOp.AVG, tile=TILE, collective=c, counts=counts
            )
            for rank, out in enumerate(found):
                total = promised(c, rank, data, counts)
                want = np.sign(total) * (np.abs(total) // size)  # truncates as C does
                np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("name", names("allreduce"))
def test_all_ranks_hold_the_same_bits(name: str) -> None:
    rng = np.random.default_rng(3)
    for size in (3, 6, 11):
        data = [rng.standard_normal(300).astype(np.float32) for _ in range(size)]
        for op in (ReduceOp.SUM, ReduceOp.PROD):
            first, *others = run(compile_all(get(name), size), data, FLOAT32, op, tile=TILE)
            for other in others:
                np.testing.assert_array_equal(other.view(np.uint32), first.view(np.uint32))


@folding
def test_bits_do_not_depend_on_the_tile_or_the_slots(a: Algorithm) -> None:
    c, size = a.collective, 5
    rng = np.random.default_rng(4)
    data = [rng.standard_normal(700).astype(np.float32) for _ in range(size)]
    counts = [700] if c.blocks == "one" else [140] * size
    inputs = [provided(c, rank, data, counts) for rank in range(size)]
    programs = compile_all(a, size)
    first = run(programs, inputs, FLOAT32, tile=64, collective=c)
    for tile, slots in ((128, 3), (4096, 2)):
        again = run(programs, inputs, FLOAT32, tile=tile, slots=slots, collective=c)
        for x, y in zip(first, again, strict=True):
            np.testing.assert_array_equal(x, y)
