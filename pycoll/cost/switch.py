"""Switch: what a direct form costs a GPU whose data an NVSwitch folds or stores (NVLink SHARP).

Counted as `kernel` is, from `native/gpu/kernel/` and from what crosses a GPU's link to the switch.
To fold a byte for one rank the switch takes that byte from every GPU, the reader's own as well, and
gives it one. A byte that is stored to all goes to the switch once, and from there to every GPU, the
sender's as well. What the switch does not fold, a rank reads of every other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from pycoll.cost.kernel import BARRIER, FENCE, MOVE, Kernel, seconds_of
from pycoll.cost.machine import Machine
from pycoll.cost.question import Question, Switch
from pycoll.program.isa import MAX_DESTINATIONS

#: Threads of the first warp tell and hear the peers' READY, one each.
_WARP = 32
#: READY: where the arrays are. A line is written and released to each peer; then theirs is acquired
#: and read, and offsets are compared, behind a fence between the two addresses of the heaps.
_TELL = seconds_of(40) + FENCE
_HEAR = seconds_of(80, l2=2)
_ALIAS = FENCE
#: DONE, by the leader: to each peer a count, one fence before all of them, and one between the
#: addresses; then the count of each peer.
_SIGNAL = seconds_of(30, shared=1)
_AWAIT = seconds_of(20, shared=1, l2=1)
#: A further REDUCE_COPY of a store to all, which finds that nothing is left to do.
_FOLLOW = seconds_of(30, shared=2)
#: Of what is folded a block has 4 times 16 bytes of each thread on their way, of what ranks read of
#: each other twice as much (8 sources).
_FOLD_WINDOW, _READ_WINDOW = 16 << 10, 32 << 10


class Crossing(NamedTuple):
    """What a call has cross the links, and what the busiest rank does."""

    out: float  #: bytes from the busiest GPU to the switch
    into: float  #: bytes from the switch to the busiest GPU
    read: float  #: bytes that the busiest rank loads from others, or folded
    stored: bool  #: the switch stores to all
    waits: bool  #: every rank waits for every other at the end; else one for all, or all for one

    def text(self, nbytes: int) -> str:
        """Say how often a call of so many bytes crosses the busiest link."""
        parts = (f"{each / max(1, nbytes):.3g} times its bytes" for each in (self.out, self.into))
        return f"{next(parts)} to the switch and {next(parts)} from it"


def _allreduce(n: int, nbytes: float, folds: bool) -> Crossing:
    share = nbytes / n
    read = share if folds else (n - 1) * share
    return Crossing((nbytes if folds else read) + share, read + nbytes, read, True, True)


def _allreduce_by_one(n: int, nbytes: float, folds: bool) -> Crossing:
    read = nbytes if folds else (n - 1) * nbytes
    return Crossing(2 * nbytes if folds else nbytes, read + nbytes, read, True, False)


def _broadcast(n: int, nbytes: float, folds: bool) -> Crossing:
    return Crossing(nbytes, nbytes, 0.0, True, False)


def _allgather(n: int, nbytes: float, folds: bool) -> Crossing:
    return Crossing(nbytes / n, nbytes, 0.0, True, True)


def _reduce(n: int, nbytes: float, folds: bool) -> Crossing | None:
    return Crossing(nbytes, nbytes, nbytes, False, False) if folds else None


def _reduce_by_all(n: int, nbytes: float, folds: bool) -> Crossing | None:
    share = nbytes / n
    return Crossing(nbytes + share, nbytes, share, False, True) if folds else None


def _reduce_scatter(n: int, nbytes: float, folds: bool) -> Crossing | None:
    share = nbytes / n
    return Crossing(nbytes, share, share, False, True) if folds else None


#: The direct forms that native/gpu/multimem_marks.c marks; None where the switch has no part.
_FORMS: dict[str, dict[str, Callable[[int, float, bool], Crossing | None]]] = {
    "allreduce": {"two_shot": _allreduce, "flat_tree": _allreduce_by_one},
    "broadcast": {"direct": _broadcast},
    "allgather": {"direct": _allgather},
    "reduce": {"direct": _reduce, "two_shot": _reduce_by_all},
    "reduce_scatter": {"direct": _reduce_scatter},
}


class Served(NamedTuple):
    """A direct form that the switch serves."""

    algorithm: str
    seconds: float
    crossing: Crossing


def served(question: Question) -> list[Served]:
    """Return the direct forms of a call that the switch serves, the fastest first."""
    machine = Machine.of(question)
    if question.switch is Switch.NONE or machine.kernel is None:
        return []
    folds = question.switch is Switch.FOLDS
    found = []
    for name, crossing_of in _FORMS.get(question.collective, {}).items():
        crossing = crossing_of(question.size, question.nbytes, folds)
        if crossing is not None:
            seconds = _seconds(question, crossing, folds, machine.kernel, machine)
            found.append(Served(name, seconds, crossing))
    return sorted(found, key=lambda one: one.seconds)


def _seconds(
    question: Question, crossing: Crossing, folds: bool, kernel: Kernel, machine: Machine
) -> float:
    peers, hop = question.size - 1, machine.rates.latency
    ready = math.ceil(peers / _WARP) * (_TELL + _HEAR) + hop + _ALIAS + 2 * BARRIER
    follows = math.ceil(question.size / MAX_DESTINATIONS) - 1 if crossing.stored else 0
    done = BARRIER + FENCE + _ALIAS + peers * _SIGNAL + hop
    done += (peers if crossing.waits else 1) * _AWAIT
    _, blocks = kernel.shape(question.nbytes, 1, True)
    window = blocks * (_FOLD_WINDOW if folds else _READ_WINDOW)
    # A load goes to the switch and back; further ones follow when those before have come.
    loads = math.ceil(crossing.read / window) * hop
    data = max(loads, max(crossing.out, crossing.into) / kernel.link)
    return machine.rates.entry + ready + MOVE + follows * _FOLLOW + data + done
