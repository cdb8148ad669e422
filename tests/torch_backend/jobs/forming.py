"""Rank 2 dies while rank 0 waits for rank 1 to form a group, who hears of it and does not come.

Arguments: what rank 0 does ("new_group", "split_group" or "tag", a message with one); a folder.
Rank 0 prints what it raises.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import both
import torch
import torch.distributed as dist

import pycoll
from pycoll.runtime import engine

LEFT = [0, 1]
TIMEOUT = datetime.timedelta(seconds=60)


def new_group() -> Any:
    return dist.new_group(LEFT, TIMEOUT, use_local_synchronization=True)


def split_group() -> Any:
    group: Any = dist.group.WORLD
    return group.split_group(LEFT)


def tag() -> None:
    dist.recv(torch.zeros(4), 1, tag=3)


def wait_for(note: Path) -> None:
    until = time.monotonic() + 120
    while not note.exists():
        assert time.monotonic() < until
        time.sleep(0.001)


def lost(function: Any) -> str:
    return both.refused(function, pycoll.PeerLostError)


def main() -> None:
    how, notes = globals()[sys.argv[1]], Path(sys.argv[2])
    dist.init_process_group("pycoll", timeout=TIMEOUT)
    rank = dist.get_rank()
    dist.barrier()
    if rank == 2:
        wait_for(notes / "forms")
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        join = engine.join

        def noted(*arguments: Any) -> Any:
            (notes / "forms").touch()
            return join(*arguments)

        engine.join = noted
        print(lost(how), flush=True)
    lost(dist.barrier)  # rank 0, too, is told of it by the group of all
    if rank == 0:
        (notes / "raised").touch()
    else:
        wait_for(notes / "raised")
        if how is not tag:
            lost(how)  # which is over
    # Now both know, and go on without rank 2.
    for form in (new_group, split_group):
        left, x = form(), torch.ones(4)
        left.allreduce([x]).wait()
        assert x.tolist() == [2.0] * 4
        message = left.recv([x], 1, 3) if rank == 0 else left.send([x + 5], 0, 3)
        message.wait()
        assert rank == 1 or x.tolist() == [7.0] * 4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
