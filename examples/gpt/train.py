"""A small GPT learns Shakespeare's sonnets, by DDP or FSDP2, over whichever backend.

Run: pycoll run -n 2 examples/gpt/train.py --backend pycoll   (or gloo; or by torchrun, or srun)
"""

import argparse
import statistics
import time
from copy import deepcopy
from pathlib import Path

import torch
import torch.distributed as dist
from model import GPT, Text
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def distribute(model, how):
    if how == "ddp":
        return DistributedDataParallel(model)
    for part in (*model.blocks, model):
        fully_shard(part)
    return model


def train(model, text, steps, show):
    """Take steps of 16 pieces, which the ranks share; return the median of their seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seconds = []
    for step in range(steps):
        x, y = text.batch(step, 16, dist.get_rank(), dist.get_world_size())
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
        if step % 10 == 0 or step == steps - 1:
            dist.all_reduce(mean := loss.detach() / dist.get_world_size())
            print(f"step {step}: loss {mean:.6f}\n" * show, end="", flush=True)
    return statistics.median(seconds[steps // 10 :])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="pycoll")
    parser.add_argument("--how", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()
    dist.init_process_group(asked.backend)
    text = Text(Path(__file__).with_name("sonnets.txt").read_text())
    torch.manual_seed(0)  # the same weights on all ranks
    alone = deepcopy(model := GPT(len(text.characters)))
    took = train(distribute(model, asked.how), text, asked.steps, show=dist.get_rank() == 0)
    least = train(alone, text, asked.steps // 4 + 4, show=False)  # the same, and nothing is sent
    if dist.get_rank() == 0:
        print(f"{asked.how} over {asked.backend}: {took * 1e3:.1f} ms a step, of which", end=" ")
        print(f"{max(0, 1 - least / took):.0%} go to communication", flush=True)
    dist.destroy_process_group()
