"""Heat in a rod: every rank computes a piece of it and exchanges the ends with its neighbours.

Run: mpirun -n 2 python examples/heat.py   (or: python examples/heat.py 2)
"""

import sys

import numpy as np

import pycoll


def step(u):
    """Return the rod a moment later; the first and the last point are the neighbours'."""
    return u[1:-1] + 0.25 * (u[:-2] - 2 * u[1:-1] + u[2:])


def main(points=1000, steps=500):
    with pycoll.init() as comm:
        share = points // comm.size
        x = np.linspace(0, 1, share * comm.size)
        start = np.exp(-((x - 0.3) ** 2) / 0.01)  # a warm place; the ends are insulated
        u = np.empty(share + 2)
        u[1:-1] = start[comm.rank * share : (comm.rank + 1) * share]
        left, right = comm.rank - 1, comm.rank + 1
        for _ in range(steps):
            u[0], u[-1] = u[1], u[-2]
            sends, recvs = [], []
            if left >= 0:
                sends.append((u[1:2], left))
                recvs.append((u[0:1], left))
            if right < comm.size:
                sends.append((u[-2:-1], right))
                recvs.append((u[-1:], right))
            comm.exchange(sends, recvs)
            u[1:-1] = step(u)

        alone = np.pad(start, 1, "edge")
        for _ in range(steps):
            alone[0], alone[-1] = alone[1], alone[-2]
            alone[1:-1] = step(alone)
        mine = alone[1 + comm.rank * share : 1 + (comm.rank + 1) * share]
        warmth = comm.allreduce(np.array([u[1:-1].sum()]))[0]
        assert (u[1:-1] == mine).all()
        print(f"rank {comm.rank}: as computed alone; warmth of the rod {warmth:.3f}", flush=True)


if __name__ == "__main__":
    pycoll.spawn(main, int(sys.argv[1])) if sys.argv[1:] else main()
