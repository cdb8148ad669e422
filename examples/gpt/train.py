"""A small GPT learns Shakespeare's sonnets, by DDP or FSDP2, over whichever backend.

Run: pycoll run -n 2 examples/gpt/train.py --backend pycoll   (or gloo; or by torchrun, or srun)
"""

import argparse
import statistics
import time

import torch.distributed as dist
from learn import TEXT, begin, take_step


def train(how, steps, show):
    """Take steps of 16 pieces, which the ranks share; return the median of their seconds."""
    model, optimizer = begin(how)
    seconds = []
    for step in range(steps):
        x, y = TEXT.batch(step, 16, dist.get_rank(), dist.get_world_size())
        begun = time.perf_counter()
        loss = take_step(model, optimizer, x, y)
        seconds.append(time.perf_counter() - begun)
        if step % 10 == 0 or step == steps - 1:
            dist.all_reduce(mean := loss / dist.get_world_size())
            print(f"step {step}: loss {mean:.6f}\n" * show, end="", flush=True)
    return statistics.median(seconds[steps // 10 :])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="pycoll")
    parser.add_argument("--how", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()
    dist.init_process_group(asked.backend)
    took = train(asked.how, asked.steps, show=dist.get_rank() == 0)
    least = train("alone", asked.steps // 4 + 4, show=False)  # the same, and nothing is sent
    if dist.get_rank() == 0:
        print(f"{asked.how} over {asked.backend}: {took * 1e3:.1f} ms a step, of which", end=" ")
        print(f"{max(0, 1 - least / took):.0%} go to communication", flush=True)
    dist.destroy_process_group()
