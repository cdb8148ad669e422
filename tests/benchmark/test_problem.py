"""The benchmark's data: exact whatever the order of folding, and a check that misses nothing."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.problem import Problem
from pycoll.dtypes import BY_NAME, ReduceOp

ALLREDUCE = OPERATIONS["allreduce"]
DTYPES = [name for name in BY_NAME if name != "bfloat16"]
SIZED = [name for name, operation in OPERATIONS.items() if operation.sized]
FOLD = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", FOLD)
@pytest.mark.parametrize("size", [2, 5])
def test_all_ranks_expect_the_fold_of_all_inputs_in_any_order(dtype, op, size):
    problems = [Problem(ALLREDUCE, 1000, dtype, op, rank, size) for rank in range(size)]
    inputs = [problem.input for problem in problems]
    for order in (inputs, inputs[::-1]):
        result = functools.reduce(FOLD[op], order).astype(dtype)
        assert all(problem.wrong(result) == 0 for problem in problems)
    assert not np.array_equal(inputs[0], inputs[1]) or op is ReduceOp.PROD


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_average_divides_once_and_integers_towards_zero(dtype):
    problems = [Problem(ALLREDUCE, 500, dtype, ReduceOp.AVG, rank, 3) for rank in range(3)]
    total = sum(problem.input.astype(np.float64) for problem in problems)
    quotient = total / 3
    want = np.trunc(quotient) if np.dtype(dtype).kind in "iu" else quotient
    assert problems[0].wrong(want.astype(dtype)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_poisoned_output_is_wrong_everywhere(dtype):
    problem = Problem(ALLREDUCE, 777, dtype, ReduceOp.SUM, 0, 2)
    x, out = np.zeros(777, dtype), np.zeros(777, dtype)
    problem.reset(x, out)
    assert np.array_equal(x, problem.input)
    assert problem.wrong(out) == 777


def test_one_wrong_element_is_found():
    problem = Problem(ALLREDUCE, 1 << 16, "float32", ReduceOp.SUM, 1, 2)
    out = problem.expected.copy()
    out[-1] += 1
    assert problem.wrong(out) == 1
    out[0] = np.nan
    assert problem.wrong(out) == 2


def test_a_sum_at_rest_stays_itself():
    for op, want in ((ReduceOp.SUM, 0.0), (ReduceOp.PROD, 1.0)):
        x = np.full(4, 7.0)
        Problem(ALLREDUCE, 4, "float64", op, 0, 2).rest(x)
        assert (x == want).all()


def problems(name, size, count, op=ReduceOp.SUM):
    return [Problem(OPERATIONS[name], count, "int32", op, rank, size) for rank in range(size)]


def blocks(array, size, name=""):
    if not name.endswith("v"):
        return np.split(array, size)
    whole = size * (size + 1)  # in proportion to 1, 2, 3 ...
    return np.split(array, [array.size * r * (r + 1) // whole for r in range(1, size)])


def turned(array, size, by):
    """Split so that the last block, the longest, is rank ``by - 1``'s."""
    lengths = [len(block) for block in blocks(array, size, "v")]
    own = [lengths[(r - by) % size] for r in range(size)]
    return np.split(array, np.cumsum(own)[:-1])


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("name", SIZED)
def test_every_rank_expects_what_the_operation_promises(name, size):
    ranks = problems(name, size, 4 * size)
    given, wanted = [p.input for p in ranks], [p.expected for p in ranks]
    nothing = np.empty(0, "int32")
    if name == "allreduce":
        right = [sum(given)] * size
    elif name == "reduce":
        right = [sum(given)] + [nothing] * (size - 1)
    elif name in ("reduce_scatter", "reduce_scatterv"):
        right = blocks(sum(given), size, name)
    elif name == "broadcast":
        right = [given[0]] * size
    elif name in ("allgather", "allgatherv"):
        right = [np.concatenate(given)] * size
    elif name in ("gather", "gatherv"):
        right = [np.concatenate(given)] + [nothing] * (size - 1)
    elif name in ("scatter", "scatterv"):
        right = blocks(given[0], size, name)
    elif name == "alltoall":
        right = [np.concatenate([blocks(x, size)[r] for x in given]) for r in range(size)]
    elif name == "alltoallv":
        cut = [turned(x, size, i) for i, x in enumerate(given)]
        right = [np.concatenate([parts[r] for parts in cut]) for r in range(size)]
    elif name == "sendrecv":
        right = [given[r - 1] for r in range(size)]
    elif name == "bw":  # the first half sends to the second
        half = size // 2
        right = [nothing] * half + given[:half] + [nothing] * (size % 2)
    elif name == "bibw":
        half = size // 2
        right = given[half : 2 * half] + given[:half] + [nothing] * (size % 2)
    else:  # an odd rank holds what came, an even one what came back
        right = [given[r - r % 2] if r ^ 1 < size else nothing for r in range(size)]
    for found, want in zip(wanted, right, strict=True):
        assert np.array_equal(found, want)
    if name in ("broadcast", "scatter", "scatterv"):
        assert all(x.size == 0 for x in given[1:])


@pytest.mark.parametrize("name", [name for name in OPERATIONS if OPERATIONS[name].in_place])
def test_in_place_the_own_part_of_one_memory_is_input_or_output(name):
    for problem in problems(name, 3, 12):
        memory = np.zeros(12, "int32")
        x, out = problem.arrays(memory, memory)
        problem.reset(x, out)
        assert np.array_equal(x[: problem.input.size], problem.input)
        assert out.size in (problem.expected.size, 12)
        own = problem.lengths.counts[problem.rank]
        for part in (x, out):
            start = (part.ctypes.data - memory.ctypes.data) // 4
            assert start == (problem.lengths.starts[problem.rank] if part.size == own else 0)
        assert out.size == 0 or np.may_share_memory(memory, out)


def test_out_of_place_two_memories_hold_input_and_output():
    for problem in problems("allgather", 3, 12):
        memory, more = np.zeros(12, "int32"), np.zeros(12, "int32")
        x, out = problem.arrays(memory, more)
        assert (x.size, out.size) == (4, 12)
        assert not np.may_share_memory(x, out)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if OPERATIONS[name].rooted])
def test_any_rank_is_the_root(name):
    operation = OPERATIONS[name]
    ranks = [Problem(operation, 12, "int32", ReduceOp.SUM, r, 3, root=2) for r in range(3)]
    if operation.takes == "root":
        assert [p.input.size for p in ranks] == [0, 0, 12]
    if operation.gives == "root":
        assert [p.expected.size for p in ranks] == [0, 0, 12]


@pytest.mark.parametrize("size", [2, 3, 7])
def test_counted_blocks_differ_and_are_the_whole_message(size):
    for problem in problems("allgatherv", size, 10 * size):
        assert sum(problem.lengths.counts) == 10 * size
        assert len(set(problem.lengths.counts)) > 1
    ranks = problems("alltoallv", size, 10 * size)
    for p in ranks:  # what one sends to another is what that one receives
        assert p.received().counts == tuple(q.sent_by(q.rank).counts[p.rank] for q in ranks)
        assert p.received().counts == tuple(p.sent_by(r).counts[p.rank] for r in range(size))
        assert sum(p.received().counts) == p.expected.size == p.count


def test_a_window_is_as_many_messages_of_data_of_their_own():
    first, second = (
        Problem(OPERATIONS["bw"], 5, "int32", ReduceOp.SUM, r, 2, window=3) for r in range(2)
    )
    assert first.nbytes == 20
    assert (first.input.size, first.expected.size) == (15, 0)
    assert np.array_equal(second.expected, first.input)
    messages = second.messages(second.expected)
    assert [m.size for m in messages] == [5, 5, 5]
    assert np.array_equal(np.concatenate(messages), first.input)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_extension_types_move_exactly_and_poison_is_seen(dtype):
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    problem = Problem(OPERATIONS["broadcast"], 99, dtype, ReduceOp.SUM, 1, 2)
    out = problem.expected.copy()
    assert problem.wrong(out) == 0
    problem.reset(out, out)
    assert problem.wrong(out) == 99


@pytest.mark.parametrize("dtype", ["bool", "int16", "complex64", "complex128"])
def test_poison_is_seen_in_every_type_that_is_moved(dtype):
    problem = Problem(OPERATIONS["broadcast"], 99, dtype, ReduceOp.SUM, 1, 2)
    out = np.zeros(99, dtype)
    problem.reset(out, out)
    assert problem.wrong(out) == 99
    np.copyto(out, problem.expected)
    assert problem.wrong(out) == 0


@pytest.mark.parametrize("op", FOLD)
@pytest.mark.parametrize("size", [2, 40])
def test_bfloat16_is_exact_in_any_order_however_many_ranks(op, size):
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    ranks = [Problem(ALLREDUCE, 300, "bfloat16", op, rank, size) for rank in range(size)]
    exact = functools.reduce(FOLD[op], [p.input.astype("float64") for p in ranks])
    assert np.array_equal(ranks[0].expected.astype("float64"), exact)
