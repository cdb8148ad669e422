"""Process groups shrink, and what torch has of them goes on.

Arguments: how (a function below); the rank that dies, or is left out.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
from typing import Any

import both
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import SHRINK_ABORT
from torch.nn.parallel import DistributedDataParallel

import pycoll
from pycoll.interop import torch_backend

TIMEOUT = datetime.timedelta(seconds=60)
EVERYONE = list(range(4))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lost(group: Any = None) -> None:
    """Call until a death is noticed."""

    def call() -> None:
        while True:
            dist.all_reduce(torch.ones(1000), group=group)

    both.refused(call, dist.DistBackendError)
    both.refused(call, pycoll.BrokenError)


def right(left: list[int], group: Any = None) -> None:
    """Check that a group is of these, as they were numbered at first, and works."""
    me = int(os.environ["RANK"])
    assert dist.get_world_size(group) == len(left)
    assert dist.get_rank(group) == left.index(me)
    for dtype in (torch.float32, torch.int64):
        dist.all_reduce(x := torch.full((1000,), me, dtype=dtype), group=group)
        assert x.tolist() == [sum(left)] * 1000
    works = [dist.all_reduce(torch.ones(5), group=group, async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    dist.all_gather_object(said := [None] * len(left), me, group=group)
    assert said == left


def trains() -> None:
    """Check what torch makes of the default group: DDP, and groups of some ranks."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 8))
    model(torch.full((1, 8), float(dist.get_rank()))).sum().backward()
    want = sum(range(dist.get_world_size())) / dist.get_world_size()
    assert torch.allclose(model.module.weight.grad, torch.tensor(want))
    ends = dist.new_group([0, dist.get_world_size() - 1])
    if dist.get_rank(ends) >= 0:
        dist.all_reduce(x := torch.ones(3), group=ends)
        assert x.tolist() == [2.0] * 3
    other = dist.new_group(backend="gloo")  # by the store of the new default group
    dist.all_reduce(x := torch.ones(3), group=other)
    assert x.tolist() == [float(dist.get_world_size())] * 3


def killed(victim: int, left: list[int]) -> None:
    old = dist.group.WORLD
    lost()
    made = dist.shrink_group([victim], shrink_flags=SHRINK_ABORT)
    assert made is dist.group.WORLD is not old
    assert made.options._timeout == TIMEOUT
    right(left)
    trains()


def helper(victim: int, left: list[int]) -> None:
    lost()
    assert torch_backend.shrink() is dist.group.WORLD
    right(left)
    trains()


def wrong(victim: int, left: list[int]) -> None:
    """Those who know of no death, or of another, are told who is out, and may go on."""
    lost()
    other = left[-1] if dist.get_rank() != left[-1] else left[0]
    for asked in ([other], [victim, other]):
        text = both.refused(
            lambda asked=asked: dist.shrink_group(asked, shrink_flags=SHRINK_ABORT),
            pycoll.UsageError,
        )
        assert f"ranks_to_exclude is {sorted(asked)}" in text, text
        assert f"that [{victim}] are out: call it again, with [{victim}]" in text, text
    dist.shrink_group([victim])
    right(left)


def twice(victim: int, left: list[int]) -> None:
    """Another dies behind the first shrink."""
    killed(victim, left)
    if dist.get_rank() == 0:
        die()
    lost()
    dist.shrink_group([0], shrink_flags=SHRINK_ABORT)
    right(left[1:])


def living(victim: int, left: list[int]) -> None:
    dist.shrink_group([victim])
    right(left)
    trains()


def hung(victim: int, left: list[int]) -> None:
    """A rank that lives, and does not come in time, is out."""
    everyone: list[Any] = [None] * len(EVERYONE)
    dist.all_gather_object(everyone, os.getpid())
    if dist.get_rank() == victim:
        signal.pause()
    # Who shrinks first takes the others out of a call that they are still in.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"called {dist.get_rank()}", "")
    store.wait([f"called {rank}" for rank in left])
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=3))
    dist.shrink_group([victim], shrink_flags=SHRINK_ABORT)
    dist.group.WORLD.set_timeout(TIMEOUT)
    right(left)
    if dist.get_rank() == 0:
        os.kill(everyone[victim], signal.SIGKILL)


def subgroup(victim: int, left: list[int]) -> None:
    """A group of the others' own shrinks; the default one stays as it is, and shrinks behind."""
    group = dist.new_group(EVERYONE[::-1], sort_ranks=False)
    if dist.get_rank() == victim:
        die()
    lost(group)
    order = dist.get_process_group_ranks(group)
    assert order == EVERYONE[::-1]
    group = dist.shrink_group([order.index(victim)], group, SHRINK_ABORT)
    right([rank for rank in order if rank != victim], group)
    lost()
    torch_backend.shrink()
    right(left)


def adopted(victim: int, left: list[int]) -> None:
    """The default group comes of a communicator that has shrunk."""
    lost()
    comm = dist.group.WORLD.communicator.shrink()
    old = dist.group.WORLD
    assert torch_backend.init_process_group(comm) is dist.group.WORLD is not old
    right(left)
    trains()


def garbage(victim: int, left: list[int]) -> None:
    """What is no group, communicator or time is refused, and nothing happens to the group."""
    other = dist.ProcessGroup(dist.HashStore(), 0, 1)
    for function, given in (
        (torch_backend.shrink, (5,)),
        (torch_backend.shrink, (other,)),
        (torch_backend.shrink, (None, 5)),
        (torch_backend.init_process_group, (None,)),
        (torch_backend.init_process_group, (dist.group.WORLD,)),
        (torch_backend.init_process_group, (dist.group.WORLD.communicator,)),
    ):
        text = both.refused(lambda f=function, given=given: f(*given), pycoll.UsageError)
        assert f"{function.__name__}: " in text, text
    lost()
    torch_backend.shrink(None, TIMEOUT)
    right(left)


def main() -> None:
    how, victim = globals()[sys.argv[1]], int(sys.argv[2])
    dist.init_process_group("pycoll", timeout=TIMEOUT)
    right(EVERYONE)
    if dist.get_rank() == victim and how not in (hung, subgroup):
        if how is living:
            lost()  # the others have left
            dist.destroy_process_group()
            return
        die()
    how(victim, [rank for rank in EVERYONE if rank != victim])
    dist.destroy_process_group()
    print("right", flush=True)


if __name__ == "__main__":
    main()
