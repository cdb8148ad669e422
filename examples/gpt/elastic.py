"""The GPT learns on, by DDP or FSDP2, whichever rank is killed.

Run: pycoll run --elastic 2:4 examples/gpt/elastic.py fsdp2 200; kill -9 any process that it names.
Each rank keeps the whole state after its last step: a dead rank's shard would be lost, and this is
the simplest that is right. If a model is too large for it, keep a neighbour's shard besides.
"""

import os
import sys
from contextlib import suppress
from copy import deepcopy

import torch.distributed as dist
from learn import TEXT, begin, take_step
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

import pycoll
from pycoll.interop.torch_backend import init_process_group

WHOLE = StateDictOptions(full_state_dict=True)


def train(comm, how, steps, kept):
    """Go on from what the rank that is furthest kept; yield what to keep: next step, and state."""
    init_process_group(comm)
    model, optimizer = begin(how)
    reached = comm.allgather_object(kept[0])
    step, state = comm.broadcast_object(kept, reached.index(max(reached)))
    if state:
        parts = zip(("model_state_dict", "optim_state_dict"), deepcopy(state), strict=True)
        set_state_dict(model, optimizer, **dict(parts), options=WHOLE)
    while step < steps:
        yield step, state
        batch = TEXT.batch(step, 12, comm.rank, comm.size)
        dist.all_reduce(mean := take_step(model, optimizer, *batch) / comm.size)
        who = f"rank {comm.rank} of {comm.size}, process {os.getpid()}"
        print(f"step {step}: loss {mean:.9f}, {who}", flush=True)
        step, state = step + 1, deepcopy(get_state_dict(model, optimizer, options=WHOLE))
    comm.barrier()  # nobody leaves while another would take the last step again


def outlive(comm, how, steps, wait):
    """Train; after a death with fewer ranks, or with others that come within so many seconds."""
    size, kept = comm.size, (-pycoll.joining(), None)  # a newcomer is not furthest
    while comm:
        try:
            for now in train(comm, how, steps, kept):
                kept = now
            comm = None
        except (pycoll.PycollError, RuntimeError):  # DDP raises the latter
            before, comm = comm.size, comm.shrink()
            if comm.size == before:
                raise  # nobody has died
            with suppress(pycoll.CollectiveTimeout, pycoll.PeerLostError, pycoll.BrokenError):
                comm = comm.grow(size - comm.size, timeout=wait) if wait else comm


if __name__ == "__main__":
    outlive(pycoll.init(timeout=60), sys.argv[1], int(sys.argv[2]), wait=20)
