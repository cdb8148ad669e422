"""Whether what was measured is worth choosing by."""

from __future__ import annotations

from pycoll.benchmark import quality
from pycoll.benchmark.calibration import Cell


def test_a_collective_with_too_few_sizes_is_left_out_and_named():
    sizes = {"allreduce": [8, 64, 256, 1024, 4096], "gather": [8, 64, 256, 1024, 4096]}
    medians = {Cell("allreduce", n, "ring"): 1e-6 for n in sizes["allreduce"][:4]}
    medians |= {Cell("gather", n, name): 1e-6 for n in (8, 64, 256) for name in ("a", "b")}
    kept = quality.kept(medians, sizes)
    assert {cell.collective for cell in kept.medians} == {"allreduce"}
    assert kept.dropped == ("gather: 3 of 5 sizes, want 4",)


def test_so_few_sizes_were_asked_for_that_they_are_enough():
    medians = {Cell("allreduce", 8, "ring"): 1e-6, Cell("allreduce", 64, "ring"): 1e-6}
    assert quality.kept(medians, {"allreduce": [8, 64]}) == (medians, ())


def test_a_noisy_machine_is_noticed():
    calm = {Cell("allreduce", n, "ring"): [1.0, 1.1, 1.0, 1.05] for n in (8, 64, 256)}
    noisy = {cell: [1.0, 9.0, 1.0, 7.0] for cell in calm}
    assert quality.remarks(quality.spread(calm), 0.1) == []
    (said,) = quality.remarks(quality.spread(noisy), 0.1)
    assert said.startswith("this machine is noisy: ")
    (said,) = quality.remarks(quality.spread({cell: [1.0] for cell in calm}), 0.1)
    assert said.startswith("no call was sampled 3 times")


def test_a_model_that_cannot_be_fitted_is_noticed():
    off = quality.off([2.5, 1 / 2.5, 2.2])
    (said,) = quality.remarks(0.0, off)
    assert "it is off by 150% in the median" in said
