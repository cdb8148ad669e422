"""A training loop that goes on after the death of any rank, and is brought back to its size.

Run: pycoll run --elastic 2:4 examples/elastic.py
then, from another shell, ``kill -9`` a process that it names. Who comes late gets the state of
rank 0, which is always one of those that were there before.
"""

import os
import sys
import time

import numpy as np

import pycoll

X = np.random.default_rng(0).standard_normal((840, 4))
WANTED = np.array([1.0, -2.0, 3.0, 0.5])
STEPS = int(sys.argv[1]) if sys.argv[1:] else 1000


def recover(comm, size):
    """Return a communicator of those who live and, if they come, of newcomers."""
    while True:
        comm = comm.shrink()  # LostError: the others went on without this rank
        try:
            return comm.grow(size - comm.size, timeout=60) if comm.size < size else comm
        except pycoll.CollectiveTimeout:  # no newcomer: go on with fewer
            return comm
        except pycoll.PycollError as error:  # another death, amid this
            print(f"again: {error}", flush=True)


comm = pycoll.init(timeout=60)  # in a replacement it waits for grow()
size, step, weights = comm.size, 0, np.zeros(4)
met = pycoll.joining()  # the others are amid it: what they have is told first
while True:
    try:
        if met:
            step, weights = comm.broadcast_object((step, weights))
            met = False
        if step == STEPS:
            comm.barrier()  # nobody leaves while another would do its last step again
            break
        if step % 10 == 0:
            who = f"rank {comm.rank} of {comm.size}, process {os.getpid()}"
            print(f"step {step}: {who}", flush=True)
        mine = X[comm.rank :: comm.size]
        weights = weights - 0.1 * comm.allreduce(mine.T @ (mine @ (weights - WANTED))) / len(X)
        step += 1
        time.sleep(0.01)
    except pycoll.PycollError as error:
        print(f"process {os.getpid()}: {error}", flush=True)
        comm, met = recover(comm, size), True
comm.close()
print(f"done: {weights.round(6).tolist()}", flush=True)
assert np.allclose(weights, WANTED)
