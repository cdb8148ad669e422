"""Sort numbers that lie on all ranks: agree on splitters, then send everybody what is theirs.

Run: mpirun -n 2 python examples/sort.py   (or: python examples/sort.py 2)
"""

import sys

import numpy as np

import pycoll


def main(count=100_000):
    with pycoll.init() as comm:
        mine = np.sort(np.random.default_rng(comm.rank).standard_normal(count))

        # Samples of all ranks tell where to cut, so that the shares are nearly equal.
        samples = np.sort(comm.allgather(mine[:: max(1, count // 100)].copy()))
        splitters = samples[np.arange(1, comm.size) * len(samples) // comm.size]
        cuts = np.concatenate([[0], np.searchsorted(mine, splitters), [count]])
        send_counts = np.diff(cuts)
        recv_counts = comm.alltoall(send_counts.copy())

        share = np.empty(recv_counts.sum())
        comm.alltoallv(mine, send_counts, share, recv_counts)
        share.sort()

        ends = comm.allgather(share[[0, -1]]).reshape(comm.size, 2)
        assert (ends[:-1, 1] <= ends[1:, 0]).all()
        total = comm.allreduce(np.array([len(share)]))[0]
        assert total == count * comm.size
        print(f"rank {comm.rank}: {len(share)} of {total} numbers, in order", flush=True)


if __name__ == "__main__":
    pycoll.spawn(main, int(sys.argv[1])) if sys.argv[1:] else main()
