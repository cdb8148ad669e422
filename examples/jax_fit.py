"""JAX on the CPU: a network fitted to a curve, each rank with its share of the points.

JAX's arrays are read-only, and the ranks read them where they lie; a result goes to an array that
can be written (`out=`), here of numpy. `jnp.array` then copies it: `jnp.asarray` may not, and what
JAX takes for constant would change at the next step.
Run: mpirun -n 2 python examples/jax_fit.py   (or: python examples/jax_fit.py 2)
"""

import itertools
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
import numpy as np

import pycoll


def start(widths=(1, 32, 32, 1)):
    random = np.random.default_rng(0)  # the same on all ranks
    pairs = itertools.pairwise(widths)
    return [(jnp.array(random.normal(0, m**-0.5, (m, n))), jnp.zeros(n)) for m, n in pairs]


@jax.value_and_grad
def loss(params, x, y):
    *hidden, (w, b) = params
    for wi, bi in hidden:
        x = jnp.tanh(x @ wi + bi)
    return jnp.mean((x @ w + b - y) ** 2)


def fit(x, y, comm=None, steps=300):
    params, gradient = start(), jax.jit(loss)
    room = [np.empty_like(leaf) for leaf in jax.tree.leaves(params)]
    for _ in range(steps):
        error, grads = gradient(params, x, y)
        if comm:
            leaves, tree = jax.tree.flatten(grads)
            comm.allreduce(leaves, out=room, op="avg")  # all of them in one call
            grads = jax.tree.unflatten(tree, [jnp.array(leaf) for leaf in room])
            error = comm.allreduce(error, np.empty_like(error), op="avg")
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
    return params, float(error)


def main(points=512):
    x = np.linspace(-3, 3, points, dtype=np.float32).reshape(-1, 1)
    y = np.sin(2 * x)
    with pycoll.init() as comm:
        _, error = fit(x[comm.rank :: comm.size], y[comm.rank :: comm.size], comm)
    _, alone = fit(x, y)
    assert abs(error - alone) < 1e-3, (error, alone)
    print(f"rank {comm.rank}: error {error:.4f}, as computed alone", flush=True)


if __name__ == "__main__":  # JAX has threads, which a fork would lose
    pycoll.spawn(main, int(sys.argv[1]), start="spawn") if sys.argv[1:] else main()
