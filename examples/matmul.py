"""Multiply matrices on a grid of ranks (SUMMA): broadcasts along rows and columns of the grid.

Run: mpirun -n 4 python examples/matmul.py   (or: python examples/matmul.py 4)
"""

import sys

import numpy as np

import pycoll


def grid(size):
    """Return the rows and columns of the squarest grid of so many ranks."""
    rows = max(r for r in range(1, int(size**0.5) + 1) if size % r == 0)
    return rows, size // rows


def main(n=240):
    with pycoll.init() as comm:
        rows, columns = grid(comm.size)
        i, j = divmod(comm.rank, columns)
        row, column = comm.split(color=i), comm.split(color=rows + j)

        # Every rank makes the same matrices and keeps the block that is its own.
        random = np.random.default_rng(1)
        a, b = random.standard_normal((2, n, n))
        steps = np.lcm(rows, columns)
        height, width, depth = n // rows, n // columns, n // steps
        c = np.zeros((height, width))
        for k in range(steps):
            left = np.empty((height, depth))
            if j == k * columns // steps:
                left[:] = a[i * height : (i + 1) * height, k * depth : (k + 1) * depth]
            above = np.empty((depth, width))
            if i == k * rows // steps:
                above[:] = b[k * depth : (k + 1) * depth, j * width : (j + 1) * width]
            row.broadcast(left, root=int(k * columns // steps))
            column.broadcast(above, root=int(k * rows // steps))
            c += left @ above

        whole = comm.gather(c.reshape(1, height, width))
        if comm.rank == 0:
            blocks = whole.reshape(rows, columns, height, width)
            product = np.block([[blocks[r, q] for q in range(columns)] for r in range(rows)])
            error = np.abs(product - a @ b).max()
            print(f"{rows} x {columns} ranks, largest error {error:.1e}", flush=True)
            assert error < 1e-10


if __name__ == "__main__":
    pycoll.spawn(main, int(sys.argv[1])) if sys.argv[1:] else main()
