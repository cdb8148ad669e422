"""The benchmark's data: exact whatever the order of folding, and a check that misses nothing."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from pycoll.cli.data import OPERATIONS, Problem
from pycoll.dtypes import BY_NAME, ReduceOp

ALLREDUCE = OPERATIONS["allreduce"]
DTYPES = [name for name in BY_NAME if name != "bfloat16"]
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


def blocks(array, size):
    return np.split(array, size)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_rank_expects_what_the_operation_promises(name, size):
    ranks = problems(name, size, 4 * size)
    given, wanted = [p.input for p in ranks], [p.expected for p in ranks]
    nothing = np.empty(0, "int32")
    if name == "allreduce":
        right = [sum(given)] * size
    elif name == "reduce":
        right = [sum(given)] + [nothing] * (size - 1)
    elif name == "reduce_scatter":
        right = blocks(sum(given), size)
    elif name == "broadcast":
        right = [given[0]] * size
    elif name == "allgather":
        right = [np.concatenate(given)] * size
    elif name == "gather":
        right = [np.concatenate(given)] + [nothing] * (size - 1)
    elif name == "scatter":
        right = blocks(given[0], size)
    elif name == "alltoall":
        right = [np.concatenate([blocks(x, size)[r] for x in given]) for r in range(size)]
    elif name == "sendrecv":
        right = [given[r - 1] for r in range(size)]
    else:  # an odd rank holds what came, an even one what came back
        right = [given[r - r % 2] if r ^ 1 < size else nothing for r in range(size)]
    for found, want in zip(wanted, right, strict=True):
        assert np.array_equal(found, want)
    if name in ("broadcast", "scatter"):
        assert all(x.size == 0 for x in given[1:])


@pytest.mark.parametrize("name", [name for name in OPERATIONS if OPERATIONS[name].in_place])
def test_in_place_the_own_part_of_one_memory_is_input_or_output(name):
    for problem in problems(name, 3, 12):
        memory = np.zeros(12, "int32")
        x, out = problem.arrays(memory, memory)
        problem.reset(x, out)
        assert np.array_equal(x[: problem.input.size], problem.input)
        assert out.size in (problem.expected.size, 12)
        for part in (x, out):
            start = (part.ctypes.data - memory.ctypes.data) // 4
            assert start == (4 * problem.rank if part.size == 4 else 0)
        assert out.size == 0 or np.may_share_memory(memory, out)


def test_out_of_place_two_memories_hold_input_and_output():
    for problem in problems("allgather", 3, 12):
        memory, more = np.zeros(12, "int32"), np.zeros(12, "int32")
        x, out = problem.arrays(memory, more)
        assert (x.size, out.size) == (4, 12)
        assert not np.may_share_memory(x, out)
