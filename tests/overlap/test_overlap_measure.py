"""Timing a computation beside a collective, on a GPU that is only a clock."""

from __future__ import annotations

import random
from typing import Any

import pytest
from simulated import Simulated

from pycoll.benchmark.oob import gather
from pycoll.errors import UsageError
from pycoll.overlap.result import Measured
from pycoll.overlap.timing import run


def measured(gpu: Simulated, with_shaped: bool = True, repeats: int = 7) -> Measured:
    shaped = gpu.compute(105e-6, room=True) if with_shaped else None
    return run(gpu, gather(None), gpu.compute(100e-6), gpu.collective(40e-6), shaped, repeats)


def test_five_ways_and_both_alone() -> None:
    found = measured(Simulated())
    times = {way: found.seconds(way) for way in found.ways}
    assert times == pytest.approx(
        {
            "sequential": 140e-6,
            "concurrent": 140e-6,  # the computation holds all SMs
            "priority": 100e-6,
            "shaped": 105e-6,
            "both": 105e-6,
        }
    )
    assert found.compute == pytest.approx([100e-6] * 7)
    assert found.collective == pytest.approx([40e-6] * 7)
    assert found.best == "priority"
    assert found.gain == pytest.approx(40 / 140)
    assert found.hidden == pytest.approx(1)
    assert "priority saves 28.6% of sequential and hides 100% of the collective" in found.verdict
    assert "28.6% of plain concurrent" in found.verdict


def test_without_a_shaped_kernel_two_ways_are_absent() -> None:
    found = measured(Simulated(), with_shaped=False)
    assert list(found.ways) == ["sequential", "concurrent", "priority"]


def test_no_gain_is_said() -> None:
    gpu = Simulated()
    # Nothing overlaps: a collective of no length.
    found = run(gpu, gather(None), gpu.compute(100e-6), gpu.collective(0), None, 5)
    assert found.best == "sequential"
    assert (found.gain, found.hidden) == (0, 0)
    assert found.verdict == "no gain: no way is faster than sequential"
    assert str(found).endswith("no gain: no way is faster than sequential")


def test_noise_is_no_gain() -> None:
    noise = random.Random(7)
    gpu = Simulated(lambda: noise.uniform(0.5, 1.5))
    found = run(gpu, gather(None), gpu.compute(100e-6), gpu.collective(3e-6), None, 30)
    assert found.best == "sequential"


def test_a_gain_that_plain_concurrency_has_too_is_not_credited_to_shaping() -> None:
    times = {"sequential": (10.0,) * 4, "concurrent": (8.0,) * 4, "both": (7.99,) * 4}
    found = Measured((6.0,), (4.0,), times)
    assert found.best == "both"
    assert found.verdict.endswith("; no gain over plain concurrent")


def test_the_ways_take_turns_in_rotated_order() -> None:
    gpu = Simulated()
    measured(gpu, repeats=2)
    once = ["compute", "collective", "compute", "collective"]  # alone, alone, sequential
    once += ["compute", "collective", "compute", "collective high"]
    once += ["shaped", "collective", "shaped", "collective high"]
    # A first round loads and is not timed; the second timed round begins with the second way.
    assert gpu.log == once * 2 + once[1:] + once[:1]


def test_the_slowest_rank_counts() -> None:
    alone: list[float] = []

    def two(value: Any) -> list[Any]:
        """The other rank takes twice as long."""
        if isinstance(value, list):
            return [value, [2 * each for each in value]]
        alone.append(value)
        return [value, value]

    gpu = Simulated()
    found = run(gpu, two, gpu.compute(1e-3), gpu.collective(1e-3), None, 3)
    assert found.seconds("sequential") == pytest.approx(4e-3)
    assert len(alone) == 5 * 4  # the ranks meet before every turn, those that load included


def test_a_table() -> None:
    text = str(measured(Simulated()))
    lines = text.splitlines()
    assert lines[0].split() == ["median", "us", "low", "high", "saves"]
    assert [line.split()[0] for line in lines[1:8]] == [
        "compute",
        "collective",
        "sequential",
        "concurrent",
        "priority",
        "shaped",
        "both",
    ]
    assert "28.6%" in lines[5]


def test_json() -> None:
    found = measured(Simulated()).as_dict()
    assert found["best"] == "priority"
    ways = found["ways_us"]
    assert isinstance(ways, dict)
    assert ways["sequential"] == [140.0] * 7


def test_no_repeats_are_refused() -> None:
    gpu = Simulated()
    with pytest.raises(UsageError, match="repeats is 0, want at least 1"):
        run(gpu, gather(None), gpu.compute(1), gpu.collective(1), None, 0)


def test_what_is_timed_with_paced_kernels_says_so() -> None:
    from pycoll import overlap
    from pycoll.runtime.cuda import pace

    gpu = Simulated()
    compute, collective = gpu.compute(1e-3), gpu.collective(1e-3)
    pace.set_rate(450 * 10**9)
    try:
        found = overlap.measure(compute, collective, repeats=1, gpu=gpu)
    finally:
        pace.set_rate(0)
    assert "paced at 450 GB/s: no measurement of a link" in str(found)
    assert "paced at 450 GB/s: no measurement of a link" in str(found.as_dict()["note"])
    found = overlap.measure(compute, collective, repeats=1, gpu=gpu)
    assert "paced" not in str(found)
