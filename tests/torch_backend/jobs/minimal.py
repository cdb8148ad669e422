"""What a user writes first; nothing of pycoll is imported."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

dist.init_process_group("pycoll")
x = torch.full((1000,), float(dist.get_rank()))
dist.all_reduce(x)
size = dist.get_world_size()
assert x.eq(size * (size - 1) / 2).all()
if dist.get_rank() == 0:
    print(f"{size} ranks, launched by {dist.group.WORLD.communicator.launcher}", flush=True)
if sys.argv[1:] != ["leave"]:
    dist.destroy_process_group()
