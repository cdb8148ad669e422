"""Kinds: what the event ring knows of the calls of one signature, as a text of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

from pycoll.runtime.native import trace


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
        """Return what a label says; long ones are cut off."""
        call, algorithm, nbytes, dtype, op = (*text.split("\t"), "", "", "", "", "")[:5]
        return cls(call, algorithm, int(nbytes) if nbytes.isdigit() else 0, dtype, op)
