"""The backend "pycoll" of torch.distributed: its registration, which `import torch` asks for.

An installed pycoll is found by the entry points ``torch.backends``, so no import is needed:
``torch.distributed.init_process_group("pycoll")``. Every process that imports torch runs
`register`, also those that never communicate: here nothing of the engine is loaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from pycoll.interop.torch_name import DEVICES, NAME

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
