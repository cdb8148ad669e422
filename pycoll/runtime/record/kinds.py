"""Kinds: what the event ring knows of the calls of one signature, as a text of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

from pycoll.runtime.native import trace
from pycoll.runtime.record.stats import CallStats

#: No size of memory has so many.
_DIGITS = 20


class Kind(NamedTuple):
    """What calls of one signature are."""

    call: str  #: such as allreduce
    algorithm: str = ""
    nbytes: int = 0  #: of all blocks together
    dtype: str = ""
    op: str = ""  #: of a reduction

    def name(self, comm: Any, signature: int) -> None:
        """Have the event ring of a communicator know it."""
        trace.label(comm, signature, "\t".join(map(str, self)))

    @classmethod
    def read(cls, text: str) -> Kind:
        """Return what a label says; long ones are cut off, and anybody may have written it."""
        call, algorithm, nbytes, dtype, op = (*text.split("\t"), "", "", "", "", "")[:5]
        number = nbytes.isascii() and nbytes.isdigit() and len(nbytes) < _DIGITS
        return cls(call, algorithm, int(nbytes) if number else 0, dtype, op)


def by_call(totals: trace.Totals) -> dict[str, CallStats]:
    """Return what a ring has counted by the calls' names, such as allreduce."""
    found: dict[str, CallStats] = {}
    for calls, text in totals.calls.values():
        if not calls:
            continue
        kind = Kind.read(text)
        one = found.setdefault(kind.call, CallStats())
        by = one.algorithms | {kind.algorithm: one.algorithms.get(kind.algorithm, 0) + calls}
        found[kind.call] = CallStats(one.calls + calls, one.nbytes + calls * kind.nbytes, by)
    return found
