"""The backend "pycoll" of torch.distributed: its registration, which `import torch` asks for.

An installed pycoll is found by the entry points ``torch.backends``, so no import is needed:
``torch.distributed.init_process_group("pycoll")``. Every process that imports torch runs
`register`, also those that never communicate: here nothing of the engine is loaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pycoll.interop.torch_name import DEVICES, NAME

if TYPE_CHECKING:
    from datetime import timedelta

    from torch.distributed import ProcessGroup

    from pycoll.communicator import Communicator

#: Yields a store, this process's rank and the number of ranks; torch's rendezvous handlers do.
_Handler = Callable[..., Iterator[tuple[Any, int, int]]]


def register() -> None:
    """Make the backend known to torch; more than once is as good as once."""
    import torch
    import torch.distributed as dist

    if not dist.is_available() or NAME in dist.Backend.backend_list:
        return
    # What torch was built without it must not choose: legacy sharded tensors gather on a device
    # that is not cpu, if the backend has one.
    built = [device for device in DEVICES if device == "cpu" or torch.backends.cuda.is_built()]
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=built)
    # By name: `torch.distributed.rendezvous` is also a function, which hides the module. Where a
    # later torch keeps its handlers elsewhere, torchrun's variables are still served.
    module = importlib.import_module("torch.distributed.rendezvous")
    handlers = getattr(module, "_rendezvous_handlers", {})
    if "env" in handlers:
        handlers["env"] = _with_launchers(handlers["env"])


def init_process_group(comm: Communicator) -> ProcessGroup:
    """Make a communicator torch's default process group; each of its ranks calls this.

    So a job that `pycoll.init` brought up, or that has shrunk or grown, comes to torch. The
    communicator is closed with the group. The default group that there is, and all other groups,
    are destroyed, once all ranks have come.

    Args:
        comm: Its timeout is that of the group.

    Returns:
        The group, ``torch.distributed.group.WORLD``.

    Raises:
        UsageError: ``comm`` is no communicator that is open, or that of the default group.
        PeerLostError: A rank has died meanwhile.
    """
    from pycoll.interop.torch_group import adopt

    return adopt(comm)


def shrink(group: ProcessGroup | None = None, timeout: timedelta | None = None) -> ProcessGroup:
    """Put a group of those who live in the place of a process group; each of them calls this.

    The others of the group have died, or do not come in time. torch's own
    `torch.distributed.shrink_group` does the same where the caller knows who they are.

    Args:
        group: A group of this backend; the default one by default. Its successor is the default
            group then, and all other groups are destroyed. Nobody uses ``group`` any more.
        timeout: How long a rank may take to come; that of the group by default.

    Returns:
        The new group. The ranks are numbered anew, in the same order.

    Raises:
        UsageError: ``group`` is none of this backend.
        LostError: The others went on without this rank, or too few have come.
        PeerLostError: One more has died meanwhile: call it again.
    """
    import torch.distributed as dist

    from pycoll.interop import torch_place
    from pycoll.interop.torch_group import shrunk

    old = dist.group.WORLD if group is None else group
    return torch_place.replace(old, shrunk(old, timeout))


def _create(options: Any, _: Any = None) -> Any:
    """Make the process group that torch asks for."""
    from pycoll.interop.torch_group import create

    return create(options)


def _with_launchers(environment: _Handler) -> _Handler:
    """Let ``env://`` know mpirun, srun and `pycoll.spawn`, where torch's variables are not set."""

    def handler(url: str, *arguments: Any, **options: Any) -> Iterator[tuple[Any, int, int]]:
        theirs = environment(url, *arguments, **options)
        try:
            found = next(theirs)
        except ValueError:  # a variable is missing
            from pycoll.interop.torch_env import launched, store

            if not launched():
                raise
            yield store(options.get("timeout"))
            raise RuntimeError("a job of this launcher meets once") from None
        yield found
        yield from theirs

    return handler
