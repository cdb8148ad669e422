"""The span of the GPU's kernels, compiled for this machine, against the definition of a fold."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from pathlib import Path

import compiled
import numpy as np
import pytest
from fold_checks import AVG, LONGEST, MAX, SUM, Array, Bytes, Fold, check, operands, reference

from pycoll.dtypes import DTYPES, DType, ReduceOp

SEAL = 0xC0FFEE01
GAP = 24  #: bytes between two pieces of an operand that is not packets
FLAGS = ("-std=c++17", "-O0", "-fPIC", "-fwrapv", "-ffp-contract=off",
         "-Wall", "-Wextra", "-Werror", f"-I{compiled.NATIVE}")  # fmt: skip


class Call(ctypes.Structure):
    _fields_ = (
        ("dst", ctypes.c_void_p),
        ("src", ctypes.c_void_p),
        ("ndst", ctypes.c_uint32),
        ("nsrc", ctypes.c_uint32),
        ("divisor", ctypes.c_uint32),
        ("packets", ctypes.c_uint32),
        ("nbytes", ctypes.c_uint32),
        ("flag", ctypes.c_void_p),
        ("patience", ctypes.c_uint32),
        ("seal", ctypes.c_uint32),
        ("npieces", ctypes.c_uint32),
        ("pieces", ctypes.c_void_p),
        ("gap", ctypes.c_uint32),
    )


class Span:
    """Runs the span as a block of so many threads."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self.library, self.threads = library, threads

    def __call__(self, dtype, op, destinations, sources, count, divisor=0, stream=0) -> None:
        del stream  # a GPU has no such stores
        assert self.packets(dtype, op, destinations, sources, count, divisor) == 0

    def packets(self, dtype, op, destinations, sources, count, divisor=0,
                flags: dict[int, int] | None = None, patience: int = 0,
                pieces: Sequence[int] | None = None) -> int:  # fmt: skip
        """Fold where some operands are packets; the bits of those that were given up on."""
        to = (ctypes.c_void_p * len(destinations))(*destinations)
        from_ = (ctypes.c_void_p * len(sources))(*sources)
        flag = (ctypes.c_uint32 * 10)()
        mask = 0
        for operand, value in (flags or {}).items():
            flag[operand] = value
            mask |= 1 << operand
        lengths = (count,) if pieces is None else pieces
        nbytes = (ctypes.c_uint32 * len(lengths))(*(n * dtype.itemsize for n in lengths))
        call = Call(
            dst=ctypes.addressof(to), src=ctypes.addressof(from_), ndst=len(to), nsrc=len(from_),
            divisor=divisor, packets=mask, nbytes=count * dtype.itemsize,
            flag=ctypes.addressof(flag), patience=patience, seal=SEAL,
            npieces=len(lengths), pieces=ctypes.addressof(nbytes), gap=GAP,
        )  # fmt: skip
        dead = self.library.pc_span_test(dtype.code, op, self.threads, ctypes.byref(call))
        assert isinstance(dead, int)
        return dead


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    compiled.require(suffix=".cpp")
    unit = compiled.Unit(Path(__file__).with_name("span.cpp"), FLAGS)
    return ctypes.CDLL(str(compiled.linked("span.so", [unit], "-shared")))


@pytest.fixture(params=[1, 4], ids=lambda threads: f"{threads} threads")
def span(request: pytest.FixtureRequest, library: ctypes.CDLL) -> Fold:
    return Span(library, request.param)


@pytest.fixture(params=DTYPES, ids=lambda dtype: dtype.name)
def dtype(request: pytest.FixtureRequest) -> DType:
    return request.param


COUNTS = (*range(20), 31, 32, 33, 47, 63, 64, 65, 100, 127, 128, 129, 191, 200)


def test_spans_equal_the_definition_at_every_shape(span, dtype):
    random = np.random.default_rng(1)
    for op, nsrc in itertools.product(ReduceOp, range(1, 9)):
        divisor = int(random.integers(1, 9)) if op == AVG else 0
        want = reference(dtype, op, operands(dtype)[:nsrc], divisor)
        for ndst, count in itertools.product((1, 2), COUNTS):
            step = int(random.choice((1, dtype.itemsize, 4, 16)))
            offsets = random.integers(0, 64, 10) // step * step
            if random.random() < 0.5:  # unaligned, but all alike
                offsets[:] = offsets // 16 * 16 + offsets[0] % 16
            in_place = int(random.integers(0, nsrc)) if random.random() < 0.3 else None
            check(span, dtype, op, nsrc, count, ndst=ndst, offsets=offsets.tolist(),
                  divisor=divisor, in_place=in_place, want=want)  # fmt: skip


@pytest.mark.parametrize("offset", [0, 4, 8])
def test_spans_fold_every_pair_of_special_values(library, dtype, offset):
    offsets = [0, offset] * 5
    for op, nsrc in itertools.product(ReduceOp, (2, 3, 8)):
        check(Span(library, 4), dtype, op, nsrc, LONGEST, ndst=2, offsets=offsets)


def test_spans_average_by_any_number_of_ranks(library, dtype):
    for nsrc, divisor in itertools.product((1, 2, 5), (1, 2, 3, 7, 127, 128, 255, 1000, 65535)):
        check(Span(library, 4), dtype, AVG, nsrc, LONGEST, divisor=divisor)


def test_a_copy_by_span_keeps_every_bit(library, dtype):
    for op, offset in itertools.product(ReduceOp, (0, 1, 4)):
        offsets = [offset] + [0] * 9
        check(Span(library, 4), dtype, op, 1, LONGEST, ndst=2, offsets=offsets,
              want=operands(dtype)[0])  # fmt: skip


class Packets:
    """A message in LL packets: 12 bytes of data and 4 of flag; the first one has 8 and the seal.

    Each piece begins at a packet. Words of 8 bytes have packets in twos.
    """

    def __init__(self, pieces: Sequence[int], itemsize: int) -> None:
        self.nbytes = [n * itemsize for n in pieces]
        unit = 24 if itemsize == 8 else 12
        self.begins = []
        end = 12  # of which the seal has the last 4
        for k, nbytes in enumerate(self.nbytes):
            self.begins.append(0 if k == 0 else end)
            end += -(-(nbytes if k else max(0, nbytes - 8)) // unit) * unit
        self.count = end // 12
        stream = np.arange(16 * self.count).reshape(-1, 16)[:, :12].ravel()
        data = np.delete(stream, np.s_[8:12])  # in which the first piece goes on behind the seal
        self.places = np.concatenate(
            [data[:nbytes] if k == 0 else stream[begin : begin + nbytes]
             for k, (begin, nbytes) in enumerate(zip(self.begins, self.nbytes, strict=True))]
        )  # fmt: skip

    def of(self, content: Bytes, flag: int) -> Bytes:
        packets = np.full((self.count, 16), 0x3B, np.uint8)
        packets.ravel()[self.places] = content
        packets[:, 12:].view("u4")[:] = flag
        packets[0, 8:12].view("u4")[:] = SEAL
        return packets.ravel()

    def flags(self, packets: Bytes) -> list[int]:
        """The flags, and the seal."""
        words = packets.view("u4")
        return [*words[3::4].tolist(), int(words[2])]


def apart(content: Bytes, pieces: Sequence[int], itemsize: int) -> Bytes:
    """An operand's pieces, with gaps in between."""
    parts = np.split(content, np.cumsum(pieces)[:-1] * itemsize)
    gap = np.full(GAP, 0x77, np.uint8)
    return np.concatenate([x for part in parts for x in (part, gap)][:-1])


def check_packets(span: Span, dtype: DType, op: ReduceOp, nsrc: int, ndst: int,
                  pieces: Sequence[int], mask: int, offsets: Sequence[int], divisor: int
                  ) -> None:  # fmt: skip
    """Fold with the operands of `mask` as packets, and compare data, flags and seals."""
    count, size = sum(pieces), dtype.itemsize
    nbytes = count * size
    packets = Packets(pieces, size)
    whole = operands(dtype)[:nsrc]
    want = reference(dtype, op, [x[:nbytes] for x in whole], divisor)
    flags = {j: (0xFFFFFFFE, 1, 77)[j % 3] for j in range(nsrc + ndst) if mask >> j & 1}
    sources = [
        Array(packets.of(x[:nbytes], flags[s]), 0)
        if s in flags
        else Array(apart(x[:nbytes], pieces, size), offsets[s])
        for s, x in enumerate(whole)
    ]
    poison = np.full(nbytes, 0x5C, np.uint8)
    destinations = [
        Array(np.full(16 * packets.count, 0x5C, np.uint8), 0)
        if nsrc + d in flags
        else Array(apart(poison, pieces, size), offsets[8 + d])
        for d in range(ndst)
    ]
    dead = span.packets(dtype, op, [d.address for d in destinations], [s.address for s in sources],
                        count, divisor, flags, pieces=pieces)  # fmt: skip
    case = f"{dtype.name} {op.name} {nsrc=} {ndst=} {pieces=} {mask=:#b} {offsets=} {divisor=}"
    assert dead == 0, case
    for d, destination in enumerate(destinations):
        got = destination.content
        if nsrc + d in flags:
            said = packets.flags(got)
            assert said == [flags[nsrc + d]] * packets.count + [SEAL], f"{case}: destination {d}"
            assert (got[packets.places] == want).all(), f"{case}: destination {d}"
        else:
            assert (got == apart(want, pieces, size)).all(), f"{case}: destination {d}"
    for array in (*sources, *destinations):
        assert array.guarded(), f"{case}: wrote outside its destination"


def test_packets_give_the_same_bits(span, dtype):
    random = np.random.default_rng(2)
    for op, nsrc in itertools.product(ReduceOp, range(1, 9)):
        divisor = int(random.integers(1, 9)) if op == AVG else 0
        for ndst, count in itertools.product((1, 2), (0, 1, 2, 3, 5, 8, 9, 31, 64, 101)):
            mask = int(random.integers(1, 1 << (nsrc + ndst)))
            if random.random() < 0.3:  # as in one_shot: all but one come as packets
                mask = (1 << nsrc) - 1 & ~(1 << int(random.integers(0, nsrc))) or mask
            step = int(random.choice((1, dtype.itemsize, 8)))
            offsets = random.integers(0, 64, 10) // step * step
            check_packets(span, dtype, op, nsrc, ndst, (count,), mask, offsets.tolist(), divisor)


def test_packets_of_pieces_give_the_same_bits(span, dtype):
    random = np.random.default_rng(5)
    for nsrc, ndst, _ in itertools.product((1, 2, 3, 8), (1, 2), range(12)):
        pieces = random.choice((0, 1, 2, 3, 4, 7, 13, 24), int(random.integers(2, 6))).tolist()
        mask = int(random.integers(1, 1 << (nsrc + ndst)))
        offsets = (random.integers(0, 8, 10) * dtype.itemsize).tolist()
        check_packets(span, dtype, SUM, nsrc, ndst, pieces, mask, offsets, 0)


def test_packets_of_every_length(library, dtype):
    for nsrc, count in itertools.product((1, 2, 3), range(100 // dtype.itemsize + 1)):
        for mask in (1, 1 << nsrc, 1 | 1 << nsrc):  # received, sent, passed on
            check_packets(Span(library, 4), dtype, SUM, nsrc, 1, (count,), mask, (0,) * 10, 0)


@pytest.mark.parametrize(("what", "missing"), [("flag", 0), ("flag", 5), ("flag", 8), ("seal", 0)])
def test_gives_up_when_told_to(library, dtype, missing, what):
    """One packet has not come, or is of another call: whoever wants it is told when to give up."""
    content = operands(dtype)[0][:100 // dtype.itemsize * dtype.itemsize]  # fmt: skip
    count = len(content) // dtype.itemsize
    message = Packets((count,), dtype.itemsize).of(content, 3)
    source, plain = Array(message, 0), Array(content, 0)
    destination = Array(np.full(len(content), 0x5C, np.uint8), 0)
    word = source.content.view("u4")[4 * missing + (3 if what == "flag" else 2) :][:1]
    right = int(word[0])
    word[:] = 2  # of the message before, or of another call
    addresses = [destination.address], [plain.address, source.address]
    assert Span(library, 4).packets(dtype, MAX, *addresses, count, 0, {1: 3}, patience=9) == 1 << 1
    word[:] = right
    assert Span(library, 4).packets(dtype, MAX, *addresses, count, 0, {1: 3}) == 0
    want = reference(dtype, MAX, [content, content], 0)
    assert (destination.content == want).all()


def to_bfloat16(x):
    """From float64 by one rounding, to nearest even; of what does not overflow."""
    _, exponent = np.frexp(x)
    ulp = np.ldexp(1.0, np.maximum(exponent - 8, -133))  # 8 digits, or the least denormal
    return np.rint(x / ulp) * ulp


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_one_rounding_of_a_sum_is_as_good_as_two(name):
    """So a GPU may add 16-bit floats, and multiply float16, without going through float32."""
    random = np.random.default_rng(3)
    bits = random.integers(0, 1 << 16, (2, 4_000_000), np.uint16)
    if name == "float16":
        a, b = bits.view(np.float16).astype(np.float64)  # which holds every sum exactly
        with np.errstate(all="ignore"):
            for exact in (a + b, a * b):
                two = exact.astype(np.float32).astype(np.float16)
                one = exact.astype(np.float16)
                assert np.array_equal(two, one, equal_nan=True)
        return
    # Exponents so near each other that float64 holds the sum, and none overflows.
    exponents = random.integers(0, 240, bits.shape[1])
    exponents = np.stack([exponents, (exponents + random.integers(-30, 31, len(exponents)))])
    bits = (bits & 0x807F) | (exponents.clip(0, 240) << 7).astype(np.uint16)
    a, b = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    two = to_bfloat16((a + b).astype(np.float32).astype(np.float64))
    assert np.array_equal(to_bfloat16(a + b), two)


def test_a_wrong_fold_would_be_seen(library):
    """The comparison can fail: a product is no sum."""
    span = Span(library, 1)

    def wrong(dtype, op, *rest):
        span(dtype, ReduceOp.PROD, *rest)

    with pytest.raises(AssertionError, match="wrong, first"):
        check(wrong, DTYPES[1], SUM, 2, 64)
