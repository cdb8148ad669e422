"""Enough: whether what `pycoll tune` has measured is worth choosing by.

A machine that does something else gives few samples, and samples that disagree. Rows that were
taken there would rule later choices, so what is too little is not kept; what is doubtful is said.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pycoll.benchmark.calibration import Cell

#: Sizes of a collective that must have been measured, where so many were asked for.
LEAST_SIZES = 4
#: Samples of a cell from which on their spread says something.
SAMPLES = 3
#: Spread of the samples of half of all cells that makes the machine a noisy one.
NOISY = 0.5
#: The fitted model is off by this share (median) where it says nothing of this machine.
ASTRAY = 1.0


class Kept(NamedTuple):
    """What is stored of a calibration."""

    medians: dict[Cell, float]
    dropped: tuple[str, ...]  #: a text for each collective that has too little


def kept(medians: Mapping[Cell, float], sizes: Mapping[str, Sequence[int]]) -> Kept:
    """Leave out the collectives of which too few sizes were measured.

    Args:
        medians: Seconds of each cell.
        sizes: Bytes that were to be measured, of each collective.
    """
    found: dict[Cell, float] = {}
    dropped = []
    for collective, wanted in sizes.items():
        cells = {c: t for c, t in medians.items() if c.collective == collective}
        measured, least = len({cell.nbytes for cell in cells}), min(LEAST_SIZES, len(wanted))
        if measured >= least:
            found |= cells
        else:
            dropped.append(f"{collective}: {measured} of {len(wanted)} sizes, want {least}")
    return Kept(found, tuple(dropped))


def spread(samples: Mapping[Cell, Sequence[float]]) -> float | None:
    """Return how far the samples of a call differ: their quartiles' distance over their median.

    It is the median of all cells; None where no cell has enough samples to tell.
    """
    found = []
    for taken in samples.values():
        if len(taken) >= SAMPLES:
            low, middle, high = statistics.quantiles(taken, n=4, method="inclusive")
            found.append((high - low) / middle)
    return statistics.median(found) if found else None


def off(ratios: Sequence[float]) -> float | None:
    """Return by which share the model is off in the median, from its seconds over the measured."""
    errors = sorted(abs(math.log(ratio)) for ratio in ratios)
    return math.expm1(errors[len(errors) // 2]) if errors else None


def remarks(spread: float | None, off: float | None) -> list[str]:
    """Return what is to be said of samples that are kept all the same."""
    said = []
    if spread is None:
        said.append(
            f"no call was sampled {SAMPLES} times, so nobody can tell whether this machine is "
            "noisy; --seconds gives more time"
        )
    elif spread > NOISY:
        said.append(
            f"this machine is noisy: repeated samples of a call differ by {spread:.0%} in the "
            f"median, want at most {NOISY:.0%}; something else runs here, or ranks outnumber "
            "cores: tune again when it is quiet"
        )
    if off is not None and off > ASTRAY:
        said.append(
            f"the model cannot be fitted to this machine: it is off by {off:.0%} in the median, "
            f"want at most {ASTRAY:.0%}; its default rates stay, and only the measured rows count"
        )
    return said
