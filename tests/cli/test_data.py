"""The benchmark's data: exact whatever the order of folding, and a check that misses nothing."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from pycoll.cli.data import Problem
from pycoll.dtypes import BY_NAME, ReduceOp

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
    problems = [Problem(1000, dtype, op, rank, size) for rank in range(size)]
    inputs = [problem.input for problem in problems]
    for order in (inputs, inputs[::-1]):
        result = functools.reduce(FOLD[op], order).astype(dtype)
        assert all(problem.wrong(result) == 0 for problem in problems)
    assert not np.array_equal(inputs[0], inputs[1]) or op is ReduceOp.PROD


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_average_divides_once_and_integers_towards_zero(dtype):
    problems = [Problem(500, dtype, ReduceOp.AVG, rank, 3) for rank in range(3)]
    total = sum(problem.input.astype(np.float64) for problem in problems)
    quotient = total / 3
    want = np.trunc(quotient) if np.dtype(dtype).kind in "iu" else quotient
    assert problems[0].wrong(want.astype(dtype)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_poisoned_output_is_wrong_everywhere(dtype):
    problem = Problem(777, dtype, ReduceOp.SUM, 0, 2)
    x, out = np.zeros(777, dtype), np.zeros(777, dtype)
    problem.reset(x, out)
    assert np.array_equal(x, problem.input)
    assert problem.wrong(out) == 777


def test_one_wrong_element_is_found():
    problem = Problem(1 << 16, "float32", ReduceOp.SUM, 1, 2)
    out = problem.expected.copy()
    out[-1] += 1
    assert problem.wrong(out) == 1
    out[0] = np.nan
    assert problem.wrong(out) == 2


def test_a_sum_at_rest_stays_itself():
    for op, want in ((ReduceOp.SUM, 0.0), (ReduceOp.PROD, 1.0)):
        x = np.full(4, 7.0)
        Problem(4, "float64", op, 0, 2).rest(x)
        assert (x == want).all()
