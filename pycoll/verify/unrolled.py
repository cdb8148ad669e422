"""The runs that prove a network: its loop unrolled to 1, 2 and slots + 2 tiles.

The last tile of the longest one is empty. More tiles need no run of their own: after every tile
each edge is level (checked), tiles share no bytes, and so a run of n tiles has the runs of one tile
as its pieces.
"""

from __future__ import annotations

from pycoll.verify.ending import check_ending
from pycoll.verify.network import Network
from pycoll.verify.symbolic_run import SymbolicRun
from pycoll.verify.symmetry.values import SymmetricValues
from pycoll.verify.values import Values


def unrollings(slots: int) -> tuple[int, ...]:
    """Return how many tiles the runs have."""
    return (1, 2, slots + 2)


def run_all(
    network: Network, values: Values | SymmetricValues, slots: int, average: bool
) -> tuple[int, ...]:
    """Run every unrolling, raise what is wrong with any, and return how many tiles each had."""
    found = unrollings(slots)
    for tiles in found:
        run = SymbolicRun(network, values, slots=slots, tiles=tiles, empty_last=tiles == found[-1])
        run.complete()
        check_ending(run, average=average)
    return found
