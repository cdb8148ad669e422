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
STEP = 250e-9  #: α, ranks on cores of their own: a cache line there, and the wait for it
MESSAGE = 60e-9  #: cost at the sender and the receiver of each further message of one step
SWITCH = 3e-6  #: α, ranks that share cores: sleep, wake and a context switch
COPY_CACHED = 1 / 60e9  #: β, both sides of the copy lie in a cache
COPY_MEMORY = 1 / 12e9  #: β, they do not
FOLD_CACHED = 1 / 50e9  #: γ, operands in a cache
FOLD_MEMORY = 1 / 9e9  #: γ, operands in memory
CACHE_BYTES = 4 << 20  #: per core; above it a message is priced as memory


class Work(NamedTuple):
    """What one rank does in one call, per byte of the message and in steps."""

    steps: int  #: that wait for one another
    messages: int  #: sent, and as many received
    copied: float  #: bytes copied per byte of the message: into slots, and out of them
    folded: float  #: bytes folded per byte of the message


def _log2(size: int) -> int:
    return (size - 1).bit_length()


def _ring(p: int) -> Work:
    share = (p - 1) / p
    return Work(2 * (p - 1), 2 * (p - 1), 3 * share, share)


def _recursive_doubling(p: int) -> Work:
    extra = 0 if p & (p - 1) == 0 else 2  # ranks beyond the power of two fold in and copy out
    rounds = int(math.log2(p)) + extra
    return Work(rounds, rounds, rounds, int(math.log2(p)) + extra / 2)


def _halving_doubling(p: int) -> Work:
    extra = 0 if p & (p - 1) == 0 else 2
    rounds = 2 * int(math.log2(p)) + extra
    share = (p - 1) / p
    return Work(rounds, rounds, 3 * share + extra, share + extra / 2)


def _double_binary_tree(p: int) -> Work:
    # Each half of the message goes up one tree and down it; two children, one parent.
    return Work(2 * _log2(p), 4, 3.0, 1.0)


def _one_shot(p: int) -> Work:
    return Work(1, p - 1, (p - 1) / 2, p - 1)  # two destinations share one read


def _two_shot(p: int) -> Work:
    share = (p - 1) / p
    return Work(2, 2 * (p - 1), 3 * share, share)


WORK: dict[str, Callable[[int], Work]] = {
    "ring": _ring,
    "recursive_doubling": _recursive_doubling,
    "halving_doubling": _halving_doubling,
    "double_binary_tree": _double_binary_tree,
    "one_shot": _one_shot,
    "two_shot": _two_shot,
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
    cached = nbytes * 2 <= CACHE_BYTES
    copy, fold = (COPY_CACHED, FOLD_CACHED) if cached else (COPY_MEMORY, FOLD_MEMORY)
    moving = nbytes * (work.copied * copy + work.folded * fold) * machine.turns
    if machine.turns > 1:
        # A step is over when every rank has had its turn.
        return work.steps * SWITCH * machine.turns + work.messages * MESSAGE + moving
    return work.steps * STEP + (work.messages - work.steps) * MESSAGE + moving
