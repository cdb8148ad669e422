"""A rank is killed in the middle of a training step: every other rank raises, and names it.

Arguments: how the others notice ("ddp": in backward; "wait": in a work's wait; "call": in a
blocking call; "tag": in a receive with a tag; "join": in backward, where ranks may have uneven
inputs; "exit": they do not look, and end).
Prints the error, and the seconds it took.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pycoll

VICTIM, STEP = 1, 3


def main() -> None:
    how, note = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("pycoll", timeout=datetime.timedelta(seconds=60))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.01)

    def die() -> None:
        if rank == VICTIM:
            note.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

    even = contextlib.nullcontext()
    try:
        with wrapped.join(divide_by_initial_world_size=False) if how == "join" else even:
            train(how, model, wrapped, die)
    except RuntimeError as error:
        report(how, error, time.time() - float(note.read_text()))
        dist.destroy_process_group()
        return
    raise AssertionError("nothing was raised")


def train(how: str, model: Any, wrapped: Any, die: Callable[[], None]) -> None:
    for step in range(20):
        loss = wrapped(torch.randn(4, 64)).square().mean()
        if step == STEP:
            if how in ("ddp", "join"):
                # The last layer's gradients are on their way when the second one's are ready.
                model[1].weight.register_hook(lambda grad: die())
            else:
                work = dist.all_reduce(torch.ones(1000), async_op=True)
                die()
                if how == "exit":
                    sys.exit()
                while how == "wait":
                    work.wait()
                    work = dist.all_reduce(torch.ones(1000), async_op=True)
                if how == "tag":
                    dist.recv(torch.ones(1000), VICTIM, tag=3)
                while how == "call":
                    dist.all_reduce(torch.ones(1000))
        loss.backward()


def report(how: str, error: RuntimeError, seconds: float) -> None:
    if how not in ("ddp", "join"):  # what C++ raises again has lost its class
        assert isinstance(error, pycoll.PeerLostError | pycoll.BrokenError), type(error)
        assert isinstance(error, dist.DistBackendError)
        assert isinstance(error.__cause__, pycoll.PycollError)
    print(f"{seconds:.3f} s: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
