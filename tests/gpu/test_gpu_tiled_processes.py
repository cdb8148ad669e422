"""Computations by tiles between processes, one of which dies in the middle."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import fakecuda
import pytest

sys.path.append(str(Path(__file__).parent))

import kernels
from tiled_cases import drawn

import pycoll
from pycoll import overlap
from pycoll.errors import PycollError
from pycoll.runtime.native import cuda

pytestmark = [
    pytest.mark.native,
    pytest.mark.own_process,
    pytest.mark.skipif(bool(fakecuda.lack()), reason=fakecuda.lack() or "-"),
]


def bereaved(folder: str, kind: str) -> None:
    """Rank 1 goes before its second tile; rank 0 must hear of it, and its streams must go on."""
    fakecuda.load()
    kernels.take_any()
    from device import Pool

    comm: Any = pycoll.init(timeout=60)
    pool = Pool(0, 1 << 20)
    comm.cuda(0)
    computed: list[int] = []

    def die() -> None:
        cuda.stream_wait(0, pool.stream)  # behind the first tile of rank 0
        os.kill(os.getpid(), signal.SIGKILL)

    if kind == "gather":
        copies = overlap.copy_engine(comm, 1 << 16)
        out = copies.empty((8, 3))
        x = pool.array(drawn(comm.rank, shape=(4, 3)))
        copies.allgather(x, out, pool.stream)
        copies.synchronize()
        whole = cuda.copy

        def held(*what: Any) -> None:
            """Copy one tile to the other rank, and no more."""
            held.left -= 1
            if held.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            whole(*what)

        if comm.rank == 1:
            held.left = 3  # two for itself
            cuda.copy = held

        def part(rank: int, tile: int, rows: slice) -> None:
            computed.append(tile)

        overlap.all_gather_matmul(copies, x, out, part, tiles=2, stream=pool.stream)
        end = copies.synchronize
    else:
        out = pool.empty((4, 3))
        parts = [pool.empty((4, 3)) for _ in range(2)]

        def tile_of(tile: int, part: Any) -> None:
            computed.append(tile)
            if (comm.rank, tile) == (1, 1):
                die()
            cuda.fill(0, part.address, 0, part.nbytes, pool.stream)

        def end() -> None:
            with comm.on_stream(pool.stream):
                overlap.matmul_reduce_scatter(
                    comm, tile_of, out, tiles=2, parts=parts, stream=pool.stream
                )
                cuda.stream_wait(0, pool.stream)
                comm.reduce_scatter(parts[0], out[:2])
                cuda.stream_wait(0, pool.stream)
                comm.reduce_scatter(parts[0], out[:2])

    try:
        end()
    except PycollError as error:
        cuda.stream_wait(0, pool.stream)
        said = f"{type(error).__name__}: {error}; {len(computed)} computed"
        Path(folder, "heard").write_text(said)
    os._exit(0)


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_a_rank_that_dies_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    with contextlib.suppress(Exception):  # of the rank that died, and of the one that ends so
        pycoll.spawn(bereaved, 2, str(tmp_path), kind, timeout=60, check=False)
    heard = (tmp_path / "heard").read_text()
    assert heard.startswith("PeerLostError: "), heard
    if kind == "gather":
        assert heard.endswith("; 4 computed")
        assert "CopyEngine.allgather of 48 B in 2 tiles" in heard
