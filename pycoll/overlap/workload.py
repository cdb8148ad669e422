"""What runs beside what: a computation and a collective, by what is known of them."""

from __future__ import annotations

from dataclasses import dataclass

from pycoll.arguments import flag, instance, integer, number
from pycoll.errors import UsageError, quoted
from pycoll.overlap.occupancy import Footprint

#: How often a rank sends nbytes, the longer of input and output, but for its own part of them:
#: what a ring moves, and no algorithm over links alone moves less. A broadcast sends all.
_SENT = {"allreduce": 2, "allgather": 1, "reduce_scatter": 1, "alltoall": 1, "broadcast": 1}
#: Those that fold nothing: copies alone can do them.
COPIED = ("allgather", "alltoall", "broadcast")

#: A block of pycoll's own kernels at most: what tests of the compiled kernels hold them to.
COLLECTIVE = Footprint(256, 80, 2048)
#: So many of them a launch has at most, unless PYCOLL_CUDA_BLOCKS says less.
COLLECTIVE_BLOCKS = 32


@dataclass(frozen=True)
class Computation:
    """A computation: what a block takes, how many there are, and what the whole does.

    Of ``seconds``, ``flops`` and ``nbytes`` at least one is to be known.
    """

    block: Footprint
    grid: int  #: blocks of the launch
    seconds: float = 0.0  #: alone on the GPU, as it was measured
    flops: float = 0.0  #: operations on floats, a multiply-add is two
    nbytes: float = 0.0  #: that it reads and writes of the GPU's memory
    tensor: bool = False  #: by tensor cores, in 16-bit floats
    persistent: bool = False  #: its blocks are as many as find place, and share what there is to do
    padded: bool = True  #: its launches can be given padding, which a library's cannot

    def __post_init__(self) -> None:
        instance("overlap.Computation: block", self.block, Footprint)
        integer("overlap.Computation: grid", self.grid, 1)
        for name in ("seconds", "flops", "nbytes"):
            number(f"overlap.Computation: {name}", getattr(self, name))
        for name in ("tensor", "persistent", "padded"):
            flag(f"overlap.Computation: {name}", getattr(self, name))
        if not (self.seconds or self.flops or self.nbytes):
            raise UsageError(
                "overlap.Computation: neither seconds nor flops nor nbytes is given; want "
                "one of them at least"
            )


@dataclass(frozen=True)
class Communication:
    """A collective: what its blocks take, and how long it lasts alone, or of how many bytes it is.

    Its blocks wait for one another, so all of a launch must have a place at once.
    """

    kind: str = "allreduce"
    seconds: float = 0.0  #: alone, as it was measured
    nbytes: float = 0.0  #: of a rank's input or output, the longer one
    ranks: int = 2
    block: Footprint = COLLECTIVE
    blocks: int = COLLECTIVE_BLOCKS  #: of the launch

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in _SENT:
            raise UsageError(
                f"overlap.Communication: kind is {quoted(self.kind)}, want one of "
                f"{', '.join(_SENT)}"
            )
        for name in ("seconds", "nbytes"):
            number(f"overlap.Communication: {name}", getattr(self, name))
        integer("overlap.Communication: ranks", self.ranks, 2, 2**31 - 1)
        instance("overlap.Communication: block", self.block, Footprint)
        integer("overlap.Communication: blocks", self.blocks, 1, 2**31 - 1)
        if not (self.seconds or self.nbytes):
            raise UsageError(
                "overlap.Communication: neither seconds nor nbytes is given; want one "
                "of them at least"
            )

    @property
    def sent(self) -> float:
        """Bytes that a rank sends."""
        own = 0 if self.kind == "broadcast" else 1
        return float(self.nbytes * _SENT[self.kind] * (self.ranks - own) / self.ranks)
