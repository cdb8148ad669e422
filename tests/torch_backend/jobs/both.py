"""What jobs share: the same thing done by gloo and by pycoll, and what came of it compared."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def begin() -> tuple[Any, Any]:
    """Meet; the groups of pycoll and of gloo, of all ranks."""
    dist.init_process_group("pycoll", timeout=datetime.timedelta(seconds=100))
    return dist.group.WORLD, dist.new_group(backend="gloo")


def end() -> None:
    dist.destroy_process_group()


def tensors(value: Any) -> list[Any]:
    """All tensors in what a case returned."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors(part)]
    return [] if value is None else [torch.tensor(value)]


def bits(tensor: Any) -> Any:
    flat = tensor.detach().contiguous()
    found = flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)
    return found != 0 if tensor.dtype is torch.bool else found  # of gloo, some trues are 2


def compare(name: str, got: Any, want: Any, rounding: float = 0.0) -> None:
    """Fail unless the tensors are the same: the same bits, or within so many epsilons."""
    got, want = tensors(got), tensors(want)
    assert len(got) == len(want), f"{name}: {len(got)} tensors, want {len(want)}"
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype, f"{name}: {mine.dtype}, want {theirs.dtype}"
        assert mine.shape == theirs.shape, f"{name}: {mine.shape}, want {theirs.shape}"
        if rounding and (mine.is_floating_point() or mine.is_complex()):
            close = rounding * torch.finfo(mine.dtype).eps
            torch.testing.assert_close(
                mine, theirs, rtol=close, atol=close, msg=lambda m: f"{name}: {m}"
            )
        else:
            assert torch.equal(bits(mine), bits(theirs)), f"{name}: {mine}, want {theirs}"


def refused(function: Callable[[], Any], kind: type[Exception] = RuntimeError) -> str:
    """The message with which something is refused; fails if it is not, or not as torch does."""
    try:
        function()
    except kind as error:
        return str(error)
    raise AssertionError("it was served")
