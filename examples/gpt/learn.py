"""How the GPT learns: a model for all ranks, by DDP or FSDP2, and one step."""

from pathlib import Path

import torch
from model import GPT, Text
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

TEXT = Text(Path(__file__).with_name("sonnets.txt").read_text())


def begin(how):
    """Return a model, whose weights are those of all ranks, and its optimizer."""
    torch.manual_seed(0)
    model = GPT(len(TEXT.characters))
    if how == "ddp":
        model = DistributedDataParallel(model)
    elif how == "fsdp2":
        for part in (*model.blocks, model):
            fully_shard(part)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def take_step(model, optimizer, x, y):
    """Take a step; return the loss of this rank's part of the batch."""
    optimizer.zero_grad()
    loss = model(x, y)
    loss.backward()
    optimizer.step()
    return loss.detach()
