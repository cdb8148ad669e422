"""Arrays of other frameworks: what DLPack hands over, which may be read-only, and JAX's."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pycoll

pytestmark = pytest.mark.native
needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="jax is not installed"
)


class Producer:
    """Has DLPack and nothing else."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


class Elder(Producer):
    """As before version 1 of DLPack: nothing says whether it may be written to."""

    def __dlpack__(self, *, stream: None = None) -> Any:
        return self.x.__dlpack__()


def read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


def ranks(size: int, function: Any) -> None:
    pycoll.spawn(function, size, timeout=100)


def test_a_producer_is_read_and_written_where_it_lies() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            for _ in range(2):  # by the slow path, then from the cache
                x, out = Producer(np.full(1000, comm.rank + 1.0)), Producer(np.empty(1000))
                assert comm.allreduce(x, out) is out
                assert (out.x == 3).all()
                assert (x.x == comm.rank + 1).all()
                assert comm.allreduce(x) is x
                assert (x.x == 3).all()
            x = Producer(np.full(10, float(comm.rank)))
            assert comm.broadcast(x, root=1) is x
            assert (x.x == 1).all()
            assert comm.allgather(Producer(np.full(2, comm.rank))).tolist() == [0, 0, 1, 1]
            if comm.rank:
                comm.send(Producer(np.arange(5.0)), 0)
            else:
                got = Producer(np.empty(5))
                comm.recv(got, 1)
                assert (got.x == np.arange(5.0)).all()

    ranks(2, rank)


@pytest.mark.parametrize("kind", ["read-only", "elder"])
def test_what_cannot_be_written_is_an_input_only(kind: str) -> None:
    def rank() -> None:
        def fresh() -> Producer:
            x = np.full(1000, comm.rank + 1.0)
            return Producer(read_only(x)) if kind == "read-only" else Elder(x)

        with pycoll.init() as comm:
            for _ in range(2):  # by the slow path, then from the cache
                x, out = fresh(), np.empty(1000)
                assert (comm.allreduce(x, out) == 3).all()
                want = "allreduce: x is read-only; pass an array to write the result to as out="
                with pytest.raises(pycoll.UsageError, match=f"^{want}$"):
                    comm.allreduce(x)
                with pytest.raises(pycoll.UsageError, match=r"^allreduce: out is read-only; pass"):
                    comm.allreduce(np.ones(1000), fresh())
                assert (x.x == comm.rank + 1).all()
            assert comm.allgather(fresh()).sum() == 3000

    ranks(2, rank)


JAX = r"""
import os
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, jax.numpy as jnp, numpy as np, pytest
import pycoll

def rank():
    with pycoll.init() as comm:
        for dtype in ("float32", "int32", "uint8", "float16"):
            for _ in range(2):  # by the slow path, then from the cache
                x = (jnp.arange(1000) % 13 + comm.rank).astype(dtype)
                out = np.empty(1000, dtype)
                assert comm.allreduce(x, out) is out
                assert np.array_equal(out, np.arange(1000) % 13 * 2 + 1)
                assert np.array_equal(x, np.arange(1000) % 13 + comm.rank)
        for _ in range(3):  # not ready yet: JAX computes behind the caller's back
            x = jnp.ones((500, 500)) * (comm.rank + 1)
            work = comm.allreduce(x @ x, np.empty((500, 500), "float32"), async_op=True)
            assert (work.wait() == 2500).all()
        x = jnp.ones((3, 2)) * comm.rank
        assert comm.allgather(x).tolist() == [[0, 0]] * 3 + [[1, 1]] * 3
        with pytest.raises(pycoll.UsageError, match="^allreduce: x is read-only; pass an array to"):
            comm.allreduce(x)
        with pytest.raises(pycoll.UsageError, match="^allreduce: out is read-only; pass an array"):
            comm.allreduce(np.ones((3, 2), "float32"), x)
        with pytest.raises(pycoll.UsageError, match=r"^broadcast: x .* a copy, numpy.array.x.$"):
            comm.broadcast(x)
        with pytest.raises(pycoll.UsageError, match=r"^broadcast: x.0. is .* numpy.array.x.0..$"):
            comm.broadcast([x])
        for traced in (jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())):
            with pytest.raises(pycoll.UsageError, match="^allreduce: x is a .*Tracer: ") as refused:
                traced(lambda x: comm.allreduce(x))(x)
            assert "jax.pure_callback" in str(refused.value)
            assert "\n" not in str(refused.value)
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)  # and that cure works
        total = jax.jit(lambda x: jax.pure_callback(
            lambda x: comm.allreduce(x, np.empty_like(x)), like, x))(x)
        assert (np.asarray(total) == 1).all()
        received = np.empty((3, 2), "float32")
        comm.exchange([(x, 1 - comm.rank)], [(received, 1 - comm.rank)])
        assert (received == 1 - comm.rank).all()
        both = comm.allreduce([x, x + 1], out=[np.empty((3, 2), "float32") for _ in range(2)])
        assert [part.sum() for part in both] == [6, 18]
        x = np.asarray(jnp.full(100, comm.rank + 0.5, "bfloat16"))
        total = jnp.asarray(comm.allreduce(x, np.empty_like(x)))
        assert total.dtype == "bfloat16" and (total == 2).all()

if __name__ == "__main__":
    pycoll.spawn(rank, 2, start="spawn")
"""


@needs_jax
def test_jax_arrays_are_read_where_they_lie(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(JAX)
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
