"""Call: what all ranks must ask for alike, and how it is said in words."""

from __future__ import annotations

from dataclasses import dataclass

from pycoll.algorithms import BUILTIN
from pycoll.dtypes import UINT8, DType, ReduceOp
from pycoll.schedule import COLLECTIVES, Algorithm

#: Blocks whose lengths a text lists; of more it says the sum.
_LISTED = 8

#: What a user may ask for: nothing, a built-in by name, or an algorithm of one's own.
Wanted = Algorithm | str | None


@dataclass(frozen=True, slots=True)
class Call:
    """What all ranks must ask for alike: the key of a plan."""

    collective: str
    op: ReduceOp  #: SUM where the collective does not reduce
    dtype: DType
    count: int  #: elements of all blocks together
    root: int = 0
    counts: tuple[int, ...] = ()  #: elements of each rank's block, where they are not alike
    pieces: tuple[int, ...] = ()  #: elements of each array of a coalesced call
    purpose: str = ""  #: text of what the collective is done for, if not for itself
    fixed: bool = False  #: contributions are folded in the order of the ranks

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks together."""
        return self.count * self.dtype.itemsize

    def blocks(self, size: int) -> tuple[int, ...]:
        """Return the bytes of each block, in order of real ranks."""
        nblocks = COLLECTIVES[self.collective].nblocks(size)
        counts = self.counts or (self.count // nblocks,) * nblocks
        return tuple(count * self.dtype.itemsize for count in counts)

    def text(self, algorithm: Algorithm | None) -> str:
        """Return the call as errors show it; the algorithm only where the user chose one."""
        if self.purpose:
            return self.purpose
        collective = COLLECTIVES[self.collective]
        what = [self.op.name.lower()] if collective.reduces else []
        what += [self.dtype.name, self._amount()]
        if collective.rooted:
            what.append(f"root {self.root}")
        if self.fixed:
            what.append("fixed order")
        if algorithm is not None:
            what.append(named(algorithm))
        return f"{self.collective}{'v' if self.counts else ''}({', '.join(what)})"

    def _amount(self) -> str:
        amount = f"{self.count} element{'' if self.count == 1 else 's'}"
        if self.pieces:
            return f"{len(self.pieces)} arrays of {amount} in all"
        if 0 < len(self.counts) <= _LISTED:
            return f"{amount} as {list(self.counts)}"
        return amount


BARRIER = Call("allreduce", ReduceOp.MAX, UINT8, 1, purpose="barrier()")


def named(algorithm: Algorithm) -> str:
    """Name an algorithm so that two of one name can be told apart."""
    if algorithm in BUILTIN:
        return algorithm.name
    return f"{algorithm.name} {algorithm.digest()[:8]}"
