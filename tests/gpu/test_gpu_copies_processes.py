"""Copy engines between processes: windows by IPC, words in shared memory, and ranks that die."""

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
from copies_cases import given, several

import pycoll
from pycoll import overlap
from pycoll.errors import BrokenError, PeerLostError
from pycoll.runtime.native import cuda

pytestmark = [
    pytest.mark.native,
    pytest.mark.own_process,
    pytest.mark.skipif(bool(fakecuda.lack()), reason=fakecuda.lack() or "-"),
]


def good() -> str:
    fakecuda.load()
    kernels.take_any()
    from device import Pool

    with pycoll.init(timeout=60) as comm:
        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        several(comm, pool, pool.stream)
    return "done"


def test_data() -> None:
    assert pycoll.spawn(good, 2, timeout=120) == ["done"] * 2


def bereaved(folder: str, leave: bool) -> None:
    """Rank 1 goes before its second call; rank 0 must hear of it, and its stream must go on."""
    log = Path(folder, f"log.{os.getpid()}")
    fakecuda.load(log)
    kernels.take_any()
    from device import Pool, close_all

    comm: Any = pycoll.init(timeout=60)
    pool = Pool(0, 1 << 20)
    comm.cuda(0)
    copies = overlap.copy_engine(comm, 1 << 16)
    out = copies.empty(comm.size * 10)
    x = pool.array(given(comm.rank, 0, 10, "float32"))
    copies.allgather(x, out, pool.stream)
    copies.synchronize()
    comm.barrier()  # rank 0 has seen its first call end, however slow the machine
    if comm.rank == 1:
        if leave:
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    copies.allgather(x, out, pool.stream)
    try:
        copies.synchronize()
    except (PeerLostError, BrokenError) as error:
        cuda.stream_wait(0, pool.stream)
        comm.close()
        close_all()
        names = [call.name for call in fakecuda.calls(log) if call.result == 0]
        left = names.count("cuMemAlloc") - names.count("cuMemFree")
        opened = names.count("cuIpcOpenMemHandle") - names.count("cuIpcCloseMemHandle")
        said = f"{type(error).__name__}: {error}; {left} allocations and {opened} of others left"
        Path(folder, "heard").write_text(said)
    os._exit(0)


@pytest.mark.parametrize("leave", [False, True], ids=["killed", "left"])
def test_a_rank_that_dies_is_not_waited_for(tmp_path: Path, leave: bool) -> None:
    with contextlib.suppress(Exception):  # of the rank that died, and of the one that ends so
        pycoll.spawn(bereaved, 2, str(tmp_path), leave, timeout=60, check=False)
    heard = (tmp_path / "heard").read_text()
    assert heard.endswith("; 0 allocations and 0 of others left")
    assert heard.startswith("PeerLostError: a rank is gone that takes no part in CopyEngine.allga")
