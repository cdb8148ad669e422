"""Tensors as arrays that a Communicator serves: contiguous, and of a dtype that it knows.

What is staged (a copy travels instead of the tensor) has something to be done when it has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from pycoll.arrays.torch import codes, plain
from pycoll.dtypes import DTYPES
from pycoll.errors import UsageError

Tensor = Any  #: torch.Tensor; the checker does not look into torch

#: torch.dtype → the number that native code knows it by.
CODES = codes(DTYPES)


class Staged(NamedTuple):
    """An array that travels for a tensor."""

    array: Tensor
    arrive: Callable[[], object] | None = None  #: to be done with a result; None: it is there


def detached(tensor: Tensor) -> Tensor:
    """Return a tensor whose history is nobody's business."""
    return tensor.detach() if tensor.requires_grad else tensor


def require_memory(tensor: Tensor) -> None:
    """Raise UsageError if a tensor has no memory: a shape alone cannot travel."""
    if tensor.is_meta:
        raise UsageError(
            f"a tensor of shape {list(tensor.shape)} is on the device meta, which has no memory; "
            f"want cpu or cuda: torch.empty_like(t, device='cpu')"
        )


def dense(tensor: Tensor) -> Tensor:
    """Return a tensor's elements one behind the other: itself, or a copy if need be."""
    require_memory(tensor)
    if plain(tensor):
        return tensor
    if tensor.layout is not torch.strided:
        raise UsageError(f"a tensor has layout {tensor.layout}, want torch.strided: t.to_dense()")
    return tensor.resolve_conj().resolve_neg().contiguous()


def raw(tensor: Tensor) -> Tensor:
    """Return a plain tensor as an array to be moved: of its own dtype, or as bytes."""
    if tensor.dtype in CODES:
        return tensor
    # Of one element the stride may be anything, and a view of bytes wants 1.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def outgoing(tensor: Tensor) -> Tensor:
    """Return what is sent for a tensor."""
    return raw(dense(detached(tensor)))


def incoming(tensor: Tensor) -> Staged:
    """Return what is received for a tensor."""
    require_memory(tensor)
    tensor = detached(tensor)
    if plain(tensor):
        return Staged(raw(tensor))
    held = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return Staged(raw(held), lambda: tensor.copy_(held))


def both(tensor: Tensor) -> Staged:
    """Return what is sent for a tensor and receives its result."""
    tensor = detached(tensor)
    held = dense(tensor)
    return Staged(raw(held), None if held is tensor else lambda: tensor.copy_(held))


def joined(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return one flat array over tensors that lie one behind the other, or None if they do not."""
    for tensor in tensors:
        require_memory(tensor)
    first = tensors[0]
    storage, at = first.untyped_storage().data_ptr(), first.data_ptr()
    for tensor in tensors:
        if (
            tensor.dtype is not first.dtype
            or tensor.data_ptr() != at
            or tensor.untyped_storage().data_ptr() != storage
            or not plain(tensor)
        ):
            return None
        at += tensor.nbytes
    total = sum(tensor.numel() for tensor in tensors)
    return raw(detached(first).as_strided((total,), (1,)))


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Return one flat array of what tensors hold, one behind the other."""
    flat = joined(tensors)
    return torch.cat([outgoing(t).reshape(-1) for t in tensors]) if flat is None else flat


def spread(tensors: Sequence[Tensor]) -> Staged:
    """Return one flat array for what tensors are to hold, one behind the other."""
    flat = joined(tensors)
    if flat is not None:
        return Staged(flat)
    whole = torch.empty(
        sum(t.numel() for t in tensors), dtype=tensors[0].dtype, device=tensors[0].device
    )

    def arrive() -> None:
        parts = whole.split([t.numel() for t in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.detach().copy_(part.view(tensor.shape))

    return Staged(raw(whole), arrive)


def counts(tensors: Sequence[Tensor]) -> list[int]:
    """Return the elements of each tensor, as of the arrays that travel."""
    wide = 1 if tensors[0].dtype in CODES else tensors[0].itemsize
    return [tensor.numel() * wide for tensor in tensors]


def strided(tensor: Tensor) -> bool:
    """Tell whether a tensor is dense: it has an element at every place."""
    return bool(tensor.layout is torch.strided)
