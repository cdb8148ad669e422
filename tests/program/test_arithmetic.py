import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.dtypes import BFLOAT16, BY_NAME, FLOAT16, FLOAT32, FLOAT64, INT8, UINT8, ReduceOp
from pycoll.program.arithmetic import combine, divide, narrow, storage, widen

INF, NAN = float("inf"), float("nan")


def bf16(*values: float) -> np.ndarray:
    return narrow(np.array(values, np.float32), BFLOAT16)


def test_bfloat16_rounds_to_nearest_even() -> None:
    one = 0x3F80
    for bits, want in (
        (one << 16, one),
        ((one << 16) + 0x8000, one),  # half way: to even
        ((one << 16) + 0x8001, one + 1),
        ((one << 16) + 0x18000, one + 2),  # half way: to even
        (0x7F7FFFFF, 0x7F80),  # the largest float32 rounds to infinity
        (0x7F800001, 0x7FC0),  # a NaN stays one
        (0xFFFFFFFF, 0xFFFF),
        (0x00000001, 0x0000),
        (0x00018000, 0x0002),  # denormals are kept
    ):
        value = np.array([bits], np.uint32).view(np.float32)
        assert int(narrow(value, BFLOAT16)[0]) == want, hex(bits)


@given(st.integers(0, 0xFFFF))
def test_bfloat16_round_trips(bits: int) -> None:
    x = np.array([bits], np.uint16)
    value = widen(x, BFLOAT16)
    again = int(narrow(value, BFLOAT16)[0])
    assert again == (bits | 0x40 if np.isnan(value[0]) else bits)


@given(st.floats(width=32), st.floats(width=32))
def test_bfloat16_sum_is_off_by_half_a_unit_at_most(a: float, b: float) -> None:
    x, y = bf16(a), bf16(b)
    exact = float(widen(x, BFLOAT16)[0]) + float(widen(y, BFLOAT16)[0])
    got = float(widen(combine(x, y, BFLOAT16, ReduceOp.SUM), BFLOAT16)[0])
    if np.isfinite(got):
        # Half a unit of 8 bits, a little more for rounding twice, half the smallest denormal.
        assert abs(got - exact) <= abs(exact) * (2**-8 + 2**-23) + 2**-134


def test_float16_is_computed_in_float32_and_rounded_each_time() -> None:
    big, small = np.array([2048], np.float16), np.array([1], np.float16)
    once = combine(big, small, FLOAT16, ReduceOp.SUM)
    assert once.dtype == np.float16
    assert combine(once, small, FLOAT16, ReduceOp.SUM)[0] == 2048  # 2050 without rounding between
    assert combine(np.array([6e-8], np.float16), small * 0, FLOAT16, ReduceOp.SUM)[0] > 0


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_extremes_propagate_nan_and_order_zeros(name: str) -> None:
    dtype = BY_NAME[name]

    def make(value: float) -> np.ndarray:
        wide = np.array([value], np.float64 if dtype is FLOAT64 else np.float32)
        return narrow(wide, dtype)

    for op, zero in ((ReduceOp.MIN, -0.0), (ReduceOp.MAX, 0.0)):
        for a, b in ((-0.0, 0.0), (0.0, -0.0)):
            got = widen(combine(make(a), make(b), dtype, op), dtype)[0]
            assert struct.pack("d", got) == struct.pack("d", zero)
        for a, b in ((NAN, 1.0), (1.0, NAN), (NAN, INF), (NAN, NAN)):
            assert np.isnan(widen(combine(make(a), make(b), dtype, op), dtype)[0])
        picked = widen(combine(make(-3.0), make(INF), dtype, op), dtype)[0]
        assert picked == (-3.0 if op is ReduceOp.MIN else INF)


def test_integers_wrap() -> None:
    a, b = np.array([127], np.int8), np.array([2], np.int8)
    assert combine(a, b, INT8, ReduceOp.SUM)[0] == -127
    assert combine(a, b, INT8, ReduceOp.PROD)[0] == -2
    u = np.array([200], np.uint8)
    assert combine(u, u, UINT8, ReduceOp.AVG)[0] == 144


@pytest.mark.parametrize("name", ["int8", "int32", "int64"])
def test_integers_are_divided_as_in_c(name: str) -> None:
    x = np.array([-128, -7, -1, 0, 1, 7, 127], name)
    assert divide(x, 2, BY_NAME[name]).tolist() == [-64, -3, 0, 0, 0, 3, 63]
    assert divide(x, 300, BY_NAME[name]).tolist() == [0] * 7
    lowest = np.array([np.iinfo(name).min], name)
    assert divide(lowest, 3, BY_NAME[name])[0] == -(-int(np.iinfo(name).min) // 3)


def test_unsigned_64_bit_division_is_exact() -> None:
    x = np.array([2**64 - 1], np.uint64)
    assert int(divide(x, 3, BY_NAME["uint64"])[0]) == (2**64 - 1) // 3


def test_floats_are_divided_truly() -> None:
    x = np.array([1, 2, 10], np.float32)
    assert divide(x, 3, FLOAT32).tolist() == (x / np.float32(3)).tolist()
    assert widen(divide(bf16(10.0), 4, BFLOAT16), BFLOAT16)[0] == 2.5
    assert divide(np.array([10], np.float16), 3, FLOAT16)[0] == np.float16(np.float32(10) / 3)


def test_storage() -> None:
    assert storage(BFLOAT16) == np.uint16
    assert storage(FLOAT16) == np.float16
