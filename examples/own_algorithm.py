"""Write an all-reduce, prove it, see a wrong one refused, run it.

Run: mpirun -n 2 python examples/own_algorithm.py   (or: python examples/own_algorithm.py 2)
"""

import sys

import numpy as np

import pycoll


@pycoll.algorithm(pycoll.allreduce)
def star(b):
    """Everyone sends to rank 0, which folds in rank order and sends the result back."""
    b.chunks(1)
    x = b.output[:]  # in place: the input stands in the output
    others = range(1, b.size)
    if b.rank == 0:
        b.recv_reduce(x, frm=range(b.size))
        for peer in others:
            b.send(x, to=peer)
    else:
        b.send(x, to=0)
        b.recv(x, frm=0)


@pycoll.algorithm(pycoll.allreduce)
def forgetful(b):
    """The same with a mistake: rank 0 receives what the last rank sends, and does not add it."""
    b.chunks(1)
    x = b.output[:]
    if b.rank == 0:
        b.recv_reduce(x, frm=range(b.size - 1))
        b.recv(b.scratch[0], frm=b.size - 1)
        for peer in range(1, b.size):
            b.send(x, to=peer)
    else:
        b.send(x, to=0)
        b.recv(x, frm=0)


def main():
    with pycoll.init() as comm:
        if comm.rank == 0:
            print(pycoll.verify(star, comm.size))
            try:
                pycoll.verify(forgetful, comm.size)
            except pycoll.ScheduleError as error:
                print(f"{type(error).__name__}: {error}", flush=True)
        x = np.arange(1000.0) * (comm.rank + 1)
        comm.allreduce(x, algorithm=star)
        assert (x == np.arange(1000.0) * sum(range(1, comm.size + 1))).all()
        print(f"rank {comm.rank}: right", flush=True)


if __name__ == "__main__":
    pycoll.spawn(main, int(sys.argv[1])) if sys.argv[1:] else main()
