"""All-reduce in five lines.

Run: mpirun -n 2 python examples/allreduce.py   (or: python examples/allreduce.py 2)
"""

import sys

import numpy as np

import pycoll


def main():
    with pycoll.init() as comm:
        x = np.full(4, comm.rank + 1.0)
        comm.allreduce(x)
        print(f"rank {comm.rank} of {comm.size} holds {x}", flush=True)


if __name__ == "__main__":
    pycoll.spawn(main, int(sys.argv[1])) if sys.argv[1:] else main()
