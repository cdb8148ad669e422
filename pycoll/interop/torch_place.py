"""The place of a process group in torch: one that is made already, as torch's own or another's.

torch makes process groups itself, by the backend's name, so a group that is there before is kept
here until torch asks for it. But for `hooked` only what torch has published is used.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from pycoll.interop.torch_calls import Calls
from pycoll.interop.torch_entry import torch_errors
from pycoll.interop.torch_env import serve
from pycoll.interop.torch_name import NAME

_kept: list[Any] = []  #: at most one group


def kept() -> Any:
    """Return the group that torch is to get in place of a new one, if there is one."""
    return _kept[0] if _kept else None


def hooked() -> bool:
    """Have `torch.distributed.shrink_group` take what a backend of Python made, if it is there.

    It asks the backend for a smaller one, and then makes a process group around that by a function
    that takes backends of C++ alone. Nothing published leads past it.
    """
    theirs = getattr(distributed_c10d, "_finalize_shrunk_group", None)
    if theirs is None:
        return False

    @functools.wraps(theirs)
    def finalize(group_info: Any, excluded: Any, made: Any) -> Any:
        if not isinstance(made, Calls):
            return theirs(group_info, excluded, made)
        return replace(group_info["process_group"], made)

    distributed_c10d._finalize_shrunk_group = finalize
    return True


@torch_errors
def install(made: Any) -> Any:
    """Make a group torch's default one; each of its ranks calls this.

    If this raises, because of a death, the default group that there was is still there.
    """
    store = serve(made._engine.bootstrap, made._engine.config, _timeout(made))
    if dist.is_initialized():
        dist.destroy_process_group()
    _forget_meshes()
    rank, size = made.getRank(), made.getSize()
    with _keeping(made):
        dist.init_process_group(
            NAME, store=store, rank=rank, world_size=size, timeout=_timeout(made)
        )
    return dist.group.WORLD


@torch_errors
def replace(old: Any, made: Any) -> Any:
    """Put a group in the place of another, of which it has some of the ranks; each calls this.

    Where ``old`` is the default group, torch destroys all others, too.
    """
    if old is dist.group.WORLD:
        return install(made)  # the store of the old one may have died with its rank 0
    ranks = made.options.global_ranks_in_group
    order = {} if ranks == sorted(ranks) else {"sort_ranks": False}
    dist.destroy_process_group(old)
    with _keeping(made):
        return dist.new_group(ranks, _timeout(made), NAME, use_local_synchronization=True, **order)


def _forget_meshes() -> None:
    """Have DTensor forget what it has found out for meshes, if this torch has it.

    It takes two for one that have the same ranks, though this process may now be another of them;
    a shard then gets the length that the earlier one had.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return
    for module, name in (
        ("torch.distributed.tensor.debug", "_clear_sharding_prop_cache"),
        ("torch.distributed.tensor._redistribute", "clear_redistribute_planner_cache"),
    ):
        with contextlib.suppress(ImportError, AttributeError):
            getattr(importlib.import_module(module), name)()


def _timeout(made: Any) -> timedelta:
    found: timedelta = made.options._timeout
    return found


@contextlib.contextmanager
def _keeping(made: Any) -> Iterator[None]:
    _kept.append(made)
    try:
        yield
    finally:
        _kept.clear()
