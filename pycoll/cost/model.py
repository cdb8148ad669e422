"""An α–β–γ model of one host's ranks: seconds as a pure function of agreed numbers.

α is the price of one dependent step, β of a copied byte and γ of a folded byte. Ranks that
outnumber cores take turns, so a step then costs a context switch and the work of all ranks
shares the cores. Placement and links come with the full model; here memory is the only link.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

#: One table of measured constants; medians on a 2-core AMD EPYC (Zen 5) virtual machine.
STEP = 400e-9  #: α, ranks on cores of their own: a cache line there, the wait, and a cold start
MESSAGE = 30e-9  #: cost at the sender and the receiver of each further message of one step
SWITCH = 1.5e-6  #: α, ranks that share cores: sleep, wake and a context switch
COPY = 1 / 32e9  #: β, a byte into a slot and out of it
FOLD = 1 / 57e9  #: γ
#: From here on, on one core, the slots of a rank's edges evict each other: a copy then costs
#: SPREAD more for each edge beyond the first.
CACHE_BYTES = 1 << 20
SPREAD = 0.3
#: From here on a byte that is folded straight into a slot costs this much more than one that is
#: copied there: a copy need not fetch the lines that it overwrites.
MEMORY_BYTES = 8 << 20
FUSED = 1 / 25e9


class Work(NamedTuple):
    """What one rank does in one call, per byte of the message and in steps."""

    steps: int  #: that wait for one another
    messages: int  #: sent, and as many received
    copied: float  #: bytes copied per byte of the message: into slots, and out of them
    folded: float  #: bytes folded per byte of the message
    edges: int  #: peers that send to one rank
    fused: float  #: bytes folded straight into a slot, per byte of the message


def _log2(size: int) -> int:
    return (size - 1).bit_length()


def _ring(p: int) -> Work:
    share = (p - 1) / p
    return Work(2 * (p - 1), 2 * (p - 1), 3 * share, share, 1, share)


def _recursive_doubling(p: int) -> Work:
    extra = 0 if p & (p - 1) == 0 else 2  # ranks beyond the power of two fold in and copy out
    rounds = int(math.log2(p)) + extra
    return Work(rounds, rounds, rounds, int(math.log2(p)) + extra / 2, rounds, max(0, rounds - 1))


def _halving_doubling(p: int) -> Work:
    extra = 0 if p & (p - 1) == 0 else 2
    rounds = 2 * int(math.log2(p)) + extra
    share = (p - 1) / p
    return Work(rounds, rounds, 3 * share + extra, share + extra / 2, rounds, share)


def _double_binary_tree(p: int) -> Work:
    # Each half of the message goes up one tree and down it; two children, one parent.
    return Work(2 * _log2(p), 4, 3.0, 1.0, 3, 1.0)


def _one_shot(p: int) -> Work:
    return Work(1, p - 1, p - 1, p - 1, p - 1, 0.0)


def _two_shot(p: int) -> Work:
    share = (p - 1) / p
    return Work(2, 2 * (p - 1), 2 * share, share, p - 1, 1 / p)


#: In the order of preference where predictions are equal: the simplest first.
WORK: dict[str, Callable[[int], Work]] = {
    "one_shot": _one_shot,
    "two_shot": _two_shot,
    "ring": _ring,
    "recursive_doubling": _recursive_doubling,
    "halving_doubling": _halving_doubling,
    "double_binary_tree": _double_binary_tree,
}


@dataclass(frozen=True)
class Machine:
    """What the ranks of one job share."""

    size: int  #: ranks
    cores: int  #: that they may run on

    @property
    def turns(self) -> float:
        """How many ranks share a core; 1 when each has its own."""
        return max(1.0, self.size / max(1, self.cores))


def seconds(algorithm: str, nbytes: int, machine: Machine) -> float:
    """Predict one all-reduce of ``nbytes`` bytes by a built-in algorithm."""
    work = WORK[algorithm](machine.size)
    crowded = nbytes * machine.turns > CACHE_BYTES
    spread = 1 + SPREAD * (work.edges - 1) * crowded
    fused = work.fused * FUSED * (nbytes * machine.turns >= MEMORY_BYTES)
    moving = nbytes * (work.copied * COPY * spread + work.folded * FOLD + fused) * machine.turns
    # A step is over when every rank that shares the core has had its turn.
    step = STEP if machine.turns == 1 else SWITCH * machine.turns
    return work.steps * step + (work.messages - 1) * MESSAGE * machine.turns + moving
