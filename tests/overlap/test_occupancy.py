"""The arithmetic of blocks, registers and shared memory, against cases reckoned by hand."""

from __future__ import annotations

import itertools

import pytest

from pycoll.errors import UnavailableError, UsageError
from pycoll.overlap.advice import advise
from pycoll.overlap.limits import TABLE, Limits, limits
from pycoll.overlap.occupancy import Footprint, block_shared, lacking, padding_for, resident

HOPPER = limits((9, 0))
ELEMENTWISE = Footprint(256, 32)
GEMM = Footprint(256, 168, dynamic=64 << 10)
PERSISTENT = Footprint(384, 168, dynamic=200 << 10)
SMALL, LARGE = Footprint(256, 76), Footprint(512, 76)  #: blocks of a collective


@pytest.mark.parametrize(
    ("capability", "block", "expected"),
    [
        ((9, 0), ELEMENTWISE, 8),  # 2048 threads, and 65536 / (8 warps x 1024) = 8
        ((9, 0), GEMM, 1),  # 168 x 32 = 5376 a warp: 3 in each partition, 12 in all, 8 a block
        ((9, 0), PERSISTENT, 1),
        ((9, 0), Footprint(32, 16), 32),  # as many blocks as there may be
        ((9, 0), Footprint(1024, 64), 1),  # 2048 a warp: 8 in each partition, 32 in all
        ((9, 0), Footprint(1024, 33), 1),  # 1056 rounds up to 1280: 12 in each partition, 48 in all
        ((9, 0), Footprint(1024, 32), 2),
        ((9, 0), Footprint(128, 255), 2),  # 8160 rounds up to 8192: 2 in each partition
        ((9, 0), Footprint(1024, 80), 0),  # 2560 a warp: 24 warps in all, 32 wanted
        ((9, 0), Footprint(96, 168), 4),  # 12 warps in all, 3 a block
        ((9, 0), Footprint(100, 16), 16),  # a part of a warp takes a whole one
        ((9, 0), Footprint(64, 16, shared=48 << 10), 4),  # 228 KiB / 49 KiB
        ((9, 0), Footprint(64, 16, dynamic=227 << 10), 1),
        ((9, 0), Footprint(64, 16, dynamic=(227 << 10) + 1), 0),
        ((7, 5), ELEMENTWISE, 4),  # 1024 threads
        ((7, 5), Footprint(64, 16, shared=16 << 10), 4),  # nothing is reserved before 8.0
        ((8, 0), Footprint(64, 16, shared=16 << 10), 9),  # 164 KiB / 17 KiB
        ((8, 6), ELEMENTWISE, 6),  # 1536 threads
        ((8, 6), Footprint(32, 16), 16),
        ((8, 9), Footprint(32, 16), 24),
        ((12, 0), Footprint(128, 16, shared=24 << 10), 4),  # 100 KiB / 25 KiB
    ],
)
def test_how_many_blocks_an_sm_holds(
    capability: tuple[int, int], block: Footprint, expected: int
) -> None:
    assert resident(block, limits(capability)) == expected


def test_elementwise_leaves_room_at_five_blocks_or_at_three() -> None:
    advice = advise(ELEMENTWISE, SMALL, HOPPER)
    assert (advice.natural, advice.capped, advice.pad_bytes, advice.fits) == (8, 5, 38_016, True)
    advice = advise(ELEMENTWISE, LARGE, HOPPER)
    assert (advice.natural, advice.capped, advice.pad_bytes, advice.fits) == (8, 3, 57_472, True)
    assert "registers" in advice.reason
    assert str(advice).startswith("8 blocks per SM, capped at 3 by 57,472 B of padding: ")


def test_a_matrix_product_has_room_for_a_small_block_and_never_for_a_large_one() -> None:
    advice = advise(GEMM, SMALL, HOPPER)
    assert (advice.natural, advice.capped, advice.pad_bytes, advice.fits) == (1, 1, 0, True)
    advice = advise(GEMM, LARGE, HOPPER)
    assert (advice.capped, advice.pad_bytes, advice.fits) == (1, 0, False)
    assert "never fits" in advice.reason
    assert "registers" in advice.reason


def test_a_persistent_kernel_never_has_room() -> None:
    advice = advise(PERSISTENT, SMALL, HOPPER)
    assert (advice.natural, advice.capped, advice.pad_bytes, advice.fits) == (1, 1, 0, False)
    assert "green context" in advice.reason
    assert str(advice).startswith("1 blocks per SM: never fits")


def test_a_kernel_that_no_sm_holds() -> None:
    advice = advise(Footprint(1024, 80), SMALL, HOPPER)
    assert (advice.natural, advice.fits) == (0, False)
    assert "cannot be launched" in advice.reason


@pytest.mark.parametrize("capability", TABLE)
@pytest.mark.parametrize("threads", [32, 96, 256, 1024])
def test_the_padding_is_enough_and_a_unit_less_is_not(
    capability: tuple[int, int], threads: int
) -> None:
    sm = limits(capability)
    for registers, shared in itertools.product((16, 40, 128), (0, 100, 8 << 10, 48 << 10)):
        check_padding(Footprint(threads, registers, shared), sm)


def check_padding(block: Footprint, sm: Limits) -> None:
    natural = resident(block, sm)
    for count in range(1, natural):
        padding = padding_for(block, count, sm)
        if padding is None:
            continue
        assert 0 < resident(block, sm, padding) <= count
        assert resident(block, sm, max(0, padding - sm.shared_unit)) > count
    assert padding_for(block, natural, sm) == 0


@pytest.mark.parametrize("capability", TABLE)
@pytest.mark.parametrize("registers", [16, 32, 64, 128])
@pytest.mark.parametrize("other", [SMALL, LARGE, Footprint(256, 80, shared=4 << 10)])
def test_advice_leaves_the_room_that_it_promises_and_caps_no_lower_than_it_must(
    capability: tuple[int, int], registers: int, other: Footprint
) -> None:
    sm, block = limits(capability), Footprint(256, registers)
    advice = advise(block, other, sm)
    assert resident(block, sm, advice.pad_bytes) == advice.capped
    assert bool(lacking(other, block, advice.capped, sm, advice.pad_bytes)) != advice.fits
    if advice.capped < advice.natural:
        more = padding_for(block, advice.capped + 1, sm)
        assert more is not None
        assert lacking(other, block, advice.capped + 1, sm, more)


def test_what_is_short_is_named() -> None:
    assert lacking(SMALL, ELEMENTWISE, 8, HOPPER) == ["registers", "threads"]
    assert lacking(SMALL, ELEMENTWISE, 5, HOPPER) == []
    assert lacking(SMALL, Footprint(32, 16), 32, HOPPER) == ["blocks"]
    assert lacking(Footprint(32, 16, 1024), PERSISTENT, 1, limits((8, 0))) == [
        "registers",
        "shared memory",
    ]


def test_shared_memory_is_reserved_and_rounded() -> None:
    assert block_shared(Footprint(32, 16), HOPPER) == 1024
    assert block_shared(Footprint(32, 16, 1, 1), HOPPER) == 1152
    assert block_shared(Footprint(32, 16, 1), limits((7, 0))) == 256


def test_a_block_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="1025 threads"):
        Footprint(1025, 32)
    with pytest.raises(UsageError, match="0 registers"):
        Footprint(32, 0)
    with pytest.raises(UsageError, match="shared is -1"):
        Footprint(32, 32, -1)


def test_an_unknown_gpu_is_named() -> None:
    with pytest.raises(UnavailableError, match=r"capability 6\.0; known are 7\.0, 7\.5"):
        limits((6, 0))


def told(sm: Limits) -> dict[str, int]:
    names = ("threads", "blocks", "shared", "shared_per_block", "reserved", "registers")
    return {name: getattr(sm, name) for name in names}


@pytest.mark.parametrize("capability", TABLE)
def test_a_gpu_tells_the_limits_that_the_table_has(capability: tuple[int, int]) -> None:
    sm = TABLE[capability]
    assert Limits.of(capability, **told(sm)) == sm


def test_a_gpu_newer_than_the_table_tells_its_own() -> None:
    newer = Limits(2048, 32, 256 << 10, 255 << 10)
    assert Limits.of((14, 0), **told(newer)) == newer
