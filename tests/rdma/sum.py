"""A rank that sums arrays with the others, checks every sum, and says who is where."""

from __future__ import annotations

import numpy as np

import pycoll

with pycoll.init() as comm:
    for count in (1, 1000, 300_000):
        mine = np.arange(count) % 251 * float(comm.rank + 1)
        comm.allreduce(mine)
        assert np.array_equal(mine, np.arange(count) % 251 * float(sum(range(comm.size + 1))))
    world = comm._engine.world
    print(f"by {comm.transport}, hosts {world.hosts}, mapped {world.mapped}")
