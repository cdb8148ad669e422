"""overlap.advise: what is reckoned of known kernels, each number by hand, and what cannot be."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kernels_known import COMPILED, KERNELS, MIB, ROWS, through

from pycoll import overlap
from pycoll.errors import UnavailableError, UsageError
from pycoll.overlap import machine
from pycoll.overlap.compare import SIMPLE, compare
from pycoll.overlap.limits import limits
from pycoll.overlap.occupancy import Footprint, beside, lacking, resident

HOPPER = (9, 0)
#: 2 * 7 / 8 of 256 MiB over 450 GB/s.
SUMS = overlap.Communication("allreduce", nbytes=256 * MIB, ranks=8)
TAKES = 1.75 * 256 * MIB / 450e9
MEMORY = 3.35e12
#: Bytes on their way that this rate wants of all SMs.
WANTED = MEMORY * 700e-9


class Found(NamedTuple):
    """What is expected of a kernel on an H100; times are parts of the computation's own."""

    bound: str
    natural: int
    waves: int
    concurrent: float  #: when the collective begins
    priority: float
    shaped: float | None  #: how much slower the computation is; None: never
    part: float  #: the same on 116 SMs
    best: str
    why: str


#: A wave is `natural` blocks of 132 SMs; the last one has what is left of the grid.
EXPECTED = {
    # 8448 = 8 * 1056, so the last wave is full. 7 of 8 blocks have 3.78 MB on their way: enough.
    "chain": Found("memory", 8, 8, 1, 1 / 8, 1, 1, "partition", "3,801 KB on their way, of 2,345"),
    # 8448 / (8 * 116) = 9.1: ten waves. 56 warps are more than arithmetic wants.
    "long chain": Found("compute", 8, 8, 1, 1 / 8, 1, 10 / 8, "priority", "first of 8 waves"),
    # 101 registers: 3328 a warp, 4 in a partition, 16 in all: two blocks of 8. 1024 = 3 * 264 +
    # 232, so 32 SMs have one block in the last wave. With one block 8 warps are left of 16.
    "product 4096": Found("compute", 2, 4, 3 / 4, 1 / 4, 2, 5 / 4, "priority", "first of 4 waves"),
    # 64 blocks leave 68 SMs empty, with three places each, and one beside each of 64 blocks.
    "product 1024": Found("compute", 2, 1, 0, 0, 2, 1, "concurrent", "room for 268 blocks"),
    # 16384 = 15 * 1056 + 544: 16 SMs have five blocks, 116 have four.
    "softmax": Found("memory", 8, 16, 15 / 16, 1 / 16, 1, 1, "priority", "first of 16 waves"),
    # One wave: nothing ends before all does. 3 of 4 blocks have 3.24 MB on their way.
    "total": Found("memory", 4, 1, 1, 1, 1, 1, "partition", "the computation has 116 of 132"),
    # 131072 = 62 * 2112 + 128: one block on most SMs. 11 of 16 blocks have 2.97 MB on their way.
    "torch elementwise": Found("memory", 16, 63, 62 / 63, 1 / 63, 1, 1, "priority", "of 63 waves"),
    # Two of four blocks of 512 threads: 264 * 512 * 16 B are too few bytes.
    "torch reduction": Found(
        "memory", 4, 2, 1, 1, WANTED / (264 * 512 * 16), 1, "partition", "16 SMs hold"
    ),
    # Two blocks by registers: 4096 a warp, 16 warps. 4096 = 15 * 264 + 136; on 116 SMs 17.7 waves.
    "cutlass 128x128": Found(
        "compute", 2, 16, 15 / 16, 1 / 16, 2, 18 / 16, "priority", "first of 16 waves"
    ),
    # One block, 7680 a warp: two warps in each partition leave 1024 registers, and none fits.
    "cutlass 256x128": Found(
        "compute", 1, 16, 15 / 16, 1 / 16, None, 18 / 16, "partition", "18 waves in place of 16"
    ),
    "cutlass persistent": Found(
        "compute", 1, 1, 1, 1, None, 132 / 116, "partition", "launch 116 blocks, not 132"
    ),
    # 1024 = 7 * 132 + 100: 32 SMs are empty in the last wave.
    "cublas": Found("unknown", 1, 8, 7 / 8, 1 / 8, None, 9 / 8, "priority", "first of 8 waves"),
    # 255 registers: 8192 a warp, two in each partition: two blocks of four warps.
    "flash attention 64": Found(
        "unknown", 2, 16, 15 / 16, 1 / 16, 2, 18 / 16, "priority", "first of 16 waves"
    ),
    "flash attention 256": Found(
        "unknown", 2, 8, 7 / 8, 1 / 8, 2, 9 / 8, "partition", "9 waves in place of 8"
    ),
    "triton product": Found(
        "compute", 1, 16, 15 / 16, 1 / 16, None, 18 / 16, "partition", "18 waves in place of 16"
    ),
    # 40 registers: 1280 a warp, 12 in a partition: six blocks. Four have 132 * 4 * 256 * 16 B.
    "triton softmax": Found(
        "memory", 6, 21, 20 / 21, 1 / 21, WANTED / (528 * 256 * 16), 1, "priority", "of 21 waves"
    ),
    "triton add": Found("memory", 16, 32, 31 / 32, 1 / 32, 1, 1, "priority", "of 32 waves"),
}


@pytest.fixture(params=KERNELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def advised(name: str, collective: overlap.Communication = SUMS) -> overlap.Comparison:
    return overlap.advise(KERNELS[name], collective, capability=HOPPER)


def test_every_kernel_has_a_row() -> None:
    assert list(KERNELS) == list(EXPECTED)
    assert len(KERNELS) >= 12


def test_what_is_reckoned(name: str) -> None:
    found, wanted = advised(name), EXPECTED[name]
    assert (found.bound, found.natural, found.waves) == wanted[:3]
    assert found.collective == pytest.approx(TAKES)
    ways, alone = found.ways, found.compute
    assert ways["sequential"].seconds == pytest.approx(alone + TAKES)
    assert ways["concurrent"].begins == pytest.approx(wanted.concurrent * alone)
    assert ways["priority"].begins == pytest.approx(wanted.priority * alone)
    assert ways["partition"].slowdown == pytest.approx(wanted.part)
    assert ways["partition"].begins == 0
    assert ways["shaped"].possible == (wanted.shaped is not None)
    if wanted.shaped is not None:
        assert ways["shaped"].slowdown == pytest.approx(wanted.shaped)
        assert ways["shaped"].begins == 0
        assert ways["both"].seconds == ways["shaped"].seconds
    assert found.best == wanted.best
    assert wanted.why in ways[found.best].reason
    assert f"{found.best} should win, saving {found.gain:.1%} of sequential: " in found.verdict
    assert str(found).endswith(found.verdict)
    assert "reckoned, not measured" in str(found)


def test_both_end_after_each_alone_and_after_what_memory_takes(name: str) -> None:
    found, work = advised(name), KERNELS[name]
    for way in found.ways.values():
        if not way.possible:
            assert way.seconds == math.inf
            continue
        assert way.seconds >= max(found.compute, found.collective) * (1 - 1e-12)
        assert way.seconds >= (work.nbytes + 2 * SUMS.sent) / MEMORY
        assert way.seconds >= way.begins + found.collective - 1e-12
    best = found.ways[found.best].seconds
    assert best <= min(way.seconds for way in found.ways.values()) * 1.01


def test_reasons_hold_by_the_limits(name: str) -> None:
    """What is said to fit does, on an SM with those limits; what is said not to does not."""
    found, work, sm = advised(name), KERNELS[name], limits(HOPPER)
    assert resident(work.block, sm) == found.natural
    if found.ways["concurrent"].begins > 0:
        full = min(work.grid // 132, found.natural)
        assert lacking(SUMS.block, work.block, max(full, 1), sm)
    shaped = found.ways["shaped"]
    if shaped.possible:
        advice = found.advice
        assert resident(work.block, sm, advice.pad_bytes) == advice.capped < found.natural
        assert not lacking(SUMS.block, work.block, advice.capped, sm, advice.pad_bytes)
        assert f"{advice.pad_bytes:,} B of padding" in shaped.reason
    elif work.padded:
        assert lacking(SUMS.block, work.block, 1, sm)
    # The part holds all blocks of the collective at once, is a multiple of 8, and the least.
    assert found.sms % 8 == 0
    assert (found.sms - 8) * resident(SUMS.block, sm) < SUMS.blocks
    assert found.sms * resident(SUMS.block, sm) >= SUMS.blocks


def test_what_nvrtc_makes_of_them() -> None:
    root = Path(__file__).parents[1]
    sys.path[:0] = [str(root / "gpu"), str(root / "sass")]
    import kernels
    import listing

    from pycoll.runtime.cuda import compile

    if listing.lack():
        pytest.skip(listing.lack())
    try:
        image = compile.compile_text(kernels.SOURCE + ROWS, "--gpu-architecture=sm_90")
    except UnavailableError as error:
        pytest.skip(str(error))
    assert image is not None
    used = listing.usage(image)
    # cuobjdump counts what the system reserves where a kernel has shared memory of its own.
    found = {name: (used[name].registers, max(used[name].shared - 1024, 0)) for name in COMPILED}
    for name, (registers, shared) in COMPILED.items():
        assert found[name][1] == shared
        # Another NVRTC may need some more or fewer; that changes nothing of the blocks per SM.
        threads = KERNELS[{"product": "product 4096"}.get(name, name)].block.threads
        held = [resident(Footprint(threads, r, shared), limits(HOPPER)) for r, _ in (found[name],)]
        assert held == [resident(Footprint(threads, registers, shared), limits(HOPPER))], name


# ---- the ways


def test_a_short_collective_gains_nothing() -> None:
    found = advised("long chain", overlap.Communication(nbytes=MIB, ranks=8))
    assert found.best == "sequential"
    assert found.verdict == "sequential, as no way is reckoned to gain 1%"
    assert found.gain == 0
    assert repr(found) == "<overlap.Comparison sequential, reckoned; print it for all>"


def test_copy_engines_fold_nothing_and_must_be_there() -> None:
    work = KERNELS["cutlass persistent"]
    gathered = overlap.Communication("allgather", nbytes=256 * MIB, ranks=8)
    assert gathered.sent == 256 * MIB * 7 / 8
    reasons = [
        overlap.advise(work, of, copies=there, capability=HOPPER).ways["copies"]
        for of, there in ((SUMS, True), (gathered, False), (gathered, True))
    ]
    assert [way.possible for way in reasons] == [False, False, True]
    assert reasons[0].reason == "a copy engine folds nothing, as allreduce wants"
    assert "no form by copy engines was said to be there" in reasons[1].reason
    found = overlap.advise(work, gathered, copies=True, capability=HOPPER)
    assert found.best == "copies"
    assert found.ways["copies"].slowdown == 1


def test_two_that_move_much_memory_share_it() -> None:
    work = overlap.Computation(Footprint(256, 32), 8448, **through(4 << 30, 1e6))
    sums = overlap.Communication(nbytes=2 << 30, ranks=8)
    found = overlap.advise(work, sums, capability=HOPPER)
    assert found.compute == pytest.approx((4 << 30) / MEMORY)
    together = ((4 << 30) + 2 * 1.75 * (2 << 30)) / MEMORY
    assert found.ways["partition"].seconds == pytest.approx(max(together, found.collective))


def test_what_was_measured_comes_before_what_is_reckoned() -> None:
    work = overlap.Computation(Footprint(256, 32), 8448, seconds=5e-3, **through(MIB, 1e6))
    found = overlap.advise(work, overlap.Communication(seconds=1e-3), capability=HOPPER)
    assert (found.compute, found.collective) == (5e-3, 1e-3)


def test_a_gpu_of_another_kind() -> None:
    found = overlap.advise(KERNELS["chain"], SUMS, capability=(8, 0))
    assert found.sms == 12  # three blocks on each SM: 11, and a multiple of 2
    assert found.ways["partition"].slowdown == 1
    assert "12 SMs hold the collective's 32 blocks, 3 each; the computation has 96 of 108" in str(
        found
    )


def test_more_blocks_of_the_collective_want_more_sms() -> None:
    found = advised("chain", overlap.Communication(nbytes=MIB, ranks=2, blocks=64))
    assert found.sms == 24  # 22, and a multiple of 8
    parts = machine.machine(HOPPER)._replace(least=0, unit=0)
    never = compare(KERNELS["chain"], SUMS, parts, copies=False)
    assert (never.sms, never.ways["partition"].possible) == (0, False)
    assert "132 SMs cannot be parted" in never.ways["partition"].reason


@pytest.mark.parametrize("count", range(9))
def test_places_are_those_that_are_lacking_nothing(count: int) -> None:
    sm = limits(HOPPER)
    for name, work in KERNELS.items():
        if count > resident(work.block, sm):
            continue
        found = beside(SUMS.block, work.block, count, sm)
        assert (found > 0) == (not lacking(SUMS.block, work.block, count, sm)), name
    assert beside(SUMS.block, KERNELS["chain"].block, 0, sm) == resident(SUMS.block, sm) == 3


def test_without_a_data_sheet_seconds_are_wanted() -> None:
    newer = machine.machine(HOPPER)._replace(rates=None)
    known = overlap.Computation(Footprint(256, 32), 8448, seconds=1e-3)
    found = compare(known, overlap.Communication(seconds=1e-3), newer, copies=False)
    assert found.bound == "unknown"
    assert found.ways["shaped"].slowdown == pytest.approx(8 / 5)  # so many blocks: the worst case
    with pytest.raises(UnavailableError, match=r"no data sheet of this GPU .* computation's time"):
        compare(KERNELS["chain"], overlap.Communication(seconds=1e-3), newer, copies=False)
    with pytest.raises(UnavailableError, match=r"no data sheet of this GPU .* collective's time"):
        compare(known, SUMS, newer, copies=False)
    with pytest.raises(UnavailableError, match=r"capability 7\.5; known are 8\.0, 9\.0"):
        overlap.advise(known, SUMS, capability=(7, 5))


def test_what_cannot_be_compared() -> None:
    known: dict[str, Any] = {"grid": 1, "seconds": 1e-3}
    with pytest.raises(UsageError, match="want one that an SM has room for"):
        overlap.advise(overlap.Computation(Footprint(1024, 80), **known), SUMS, capability=HOPPER)
    with pytest.raises(UsageError, match="132 SMs hold 396 blocks of the collective, want all 400"):
        advised("chain", overlap.Communication(seconds=1e-3, blocks=400))
    with pytest.raises(UsageError, match="neither seconds nor flops nor nbytes is given"):
        overlap.Computation(Footprint(32, 32), 1)
    with pytest.raises(UsageError, match="neither seconds nor nbytes is given"):
        overlap.Communication()
    with pytest.raises(UsageError, match="kind is 'reduce_all', want one of allreduce, allgather"):
        overlap.Communication("reduce_all", seconds=1e-3)


def test_ways_are_known_by_the_same_names() -> None:
    from pycoll.overlap.result import WAYS

    assert sorted(SIMPLE) == sorted(WAYS)
    assert list(advised("chain").ways) == list(WAYS)


@pytest.mark.native
@pytest.mark.fake_cuda
def test_the_gpu_that_is_there_is_asked() -> None:
    found = overlap.advise(KERNELS["chain"], SUMS)
    assert found == advised("chain")


@pytest.mark.native
@pytest.mark.fake_cuda(fail="cuDeviceGetDevResource:1=801")
def test_a_gpu_that_cannot_be_parted() -> None:
    found = overlap.advise(KERNELS["chain"], SUMS)
    assert (found.sms, found.ways["partition"].possible) == (0, False)
    assert found.best == "shaped"
