"""torch's reduce operations by those that a Communicator has.

Sum, product, min, max and average of the dtypes that pycoll knows are its own. Of bools they are
min and max of bytes; sums and averages of complex numbers are those of their parts. A product with
a factor that goes before the sum is made here. The bitwise operations exist in no Program: the
ranks exchange parts, each combines its own, and all get all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pycoll.dtypes import OPS
from pycoll.errors import UsageError
from pycoll.interop.torch_tensor import CODES, Staged, Tensor, dense, detached, raw

if TYPE_CHECKING:
    from pycoll.communicator import Communicator

#: By the number that ``hash()`` of a torch.distributed.ReduceOp is: its fields cost much more.
NAMES = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum")
#: The same as pycoll's numbers of those that it has; -1: `reduction` knows what to do.
NUMBERS = tuple(int(OPS.get(name, -1)) for name in NAMES)

_BITWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
_OF_BOOLS = {"sum": "max", "prod": "min", "band": "min", "bor": "max", "bxor": "bxor"}


class Reduction(NamedTuple):
    """What is done with tensors of one dtype."""

    op: str  #: as a Communicator knows it
    view: Any = None  #: the dtype as which the elements are seen; None: their own
    factor: Any = None  #: what is multiplied with before
    fold: Any = None  #: a function of two arrays; then `op` means nothing

    def seen(self, held: Tensor) -> Tensor:
        """Return a dense tensor as an array that can be reduced: a view."""
        if self.view is None:
            return held
        return torch.view_as_real(held) if held.is_complex() else raw(held)

    def scaled(self, held: Tensor) -> Tensor:
        """Return what is brought to the sum, in memory of its own if that is not the tensor."""
        return held if self.factor is None else (held * self.factor).to(held.dtype)

    def both(self, tensor: Tensor) -> Staged:
        """Return what is brought for a tensor and takes its result."""
        tensor = detached(tensor)
        held = self.scaled(dense(tensor))
        return Staged(self.seen(held), None if held is tensor else lambda: tensor.copy_(held))

    def incoming(self, tensor: Tensor) -> Staged:
        """Return what takes a result for a tensor."""
        return self._replace(factor=None).both(tensor)

    def outgoing(self, tensor: Tensor) -> Tensor:
        """Return what is brought for a tensor."""
        return self.seen(self.scaled(dense(detached(tensor))))


def reduction(op: Any, dtype: Any) -> Reduction:
    """Find out how an operation of torch is done on a dtype.

    Raises:
        UsageError: It is not; torch's Gloo refuses the same ones, and those with a factor.
    """
    name = NAMES[hash(op)]
    if dtype is torch.bool:
        made = _OF_BOOLS.get(name, name)
        if made in ("min", "max", "bxor"):
            return Reduction(made, torch.uint8, None, _BITWISE.get(made))
    elif name in _BITWISE:
        if not (dtype.is_floating_point or dtype.is_complex):
            return Reduction(name, None, None, _BITWISE[name])
    elif dtype.is_complex:
        parts = torch.empty(0, dtype=dtype).real.dtype
        if parts in CODES and name in ("sum", "avg", "premul_sum"):
            factor = op.factor if name == "premul_sum" else None
            return Reduction(name.removeprefix("premul_"), parts, factor)
    elif dtype in CODES and (dtype.is_floating_point or name != "premul_sum"):
        factor = op.factor if name == "premul_sum" else None
        return Reduction(name.removeprefix("premul_"), None, factor)
    raise UsageError(f"ReduceOp.{_shown(name)} of {dtype} is not served; convert the tensor")


def folding(comm: Communicator, x: Tensor, fold: Any) -> Callable[[], Tensor]:
    """Prepare to combine arrays of all ranks by a function of two of them, in order of rank.

    Returns:
        What does so, waits for it and returns the result.
    """
    flat, size = x.reshape(-1), comm.size
    each = -(-flat.numel() // size)
    if each == 0:
        return lambda: x
    room = flat.new_zeros(size * each)
    room[: flat.numel()] = flat
    got = torch.empty_like(room)

    def run() -> Tensor:
        comm.alltoall(room.view(torch.uint8), got.view(torch.uint8))
        with comm._engine.order.entirely("a reduction that ranks make by themselves"):
            mine, *others = got.view(size, each)
            for other in others:
                mine = fold(mine, other)
            comm.allgather(mine.view(torch.uint8), room.view(torch.uint8))
        return room[: flat.numel()].view(x.shape)

    return run


def summing(comm: Communicator, tensor: Tensor) -> Callable[[], None]:
    """Prepare to replace a sparse tensor by the sum of those of all ranks.

    Returns:
        What does so, and waits for it.
    """
    mine = tensor.detach().coalesce()
    indices, values = mine.indices(), mine.values()
    ndim, each = indices.shape[0], values[:1].numel() or values.shape[1:].numel()
    lengths = torch.empty(comm.size, dtype=torch.int64)
    own = torch.tensor([indices.shape[1]])

    def run() -> None:
        comm.allgather(own, lengths)
        with comm._engine.order.entirely("a sum of sparse tensors"):
            counts = lengths.tolist()
            found = torch.empty(sum(counts) * ndim, dtype=torch.int64)
            comm.allgatherv(dense(indices.t()).reshape(-1), [n * ndim for n in counts], found)
            held = values.new_empty((sum(counts), *values.shape[1:]))
            comm.allgatherv(dense(values).reshape(-1), [n * each for n in counts], held.view(-1))
        total = torch.sparse_coo_tensor(found.view(-1, ndim).t(), held, mine.shape)
        with torch.no_grad():  # a detached sparse tensor has places of its own
            tensor.copy_(total.coalesce())

    return run


def _shown(name: str) -> str:
    return {"prod": "PRODUCT"}.get(name, name.upper())
