"""What a parent of ranks imports for them: enough for their first calls."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import pycoll
from pycoll.bootstrap.local_child import limit_malloc
from pycoll.bootstrap.preload import MANY_COPIES, preload


def imported() -> set[str]:
    """Be a rank; return the modules of pycoll that its first calls had to import."""
    before = set(sys.modules)
    with pycoll.init() as comm, comm.split(0) as half:
        comm.barrier()
        half.allreduce(np.ones(4))
        comm.allgather_object(comm.rank)
    return {name for name in set(sys.modules) - before if name.startswith("pycoll.")}


def fresh() -> list[set[str]]:
    """Be a parent of ranks that has imported little itself."""
    return pycoll.spawn(imported, 2, timeout=60)


@pytest.mark.native
def test_the_first_calls_of_a_rank_import_nothing_of_pycoll() -> None:
    (found,) = pycoll.spawn(fresh, 1, start="spawn", timeout=60)
    assert found == [set(), set()]


def held() -> tuple[object, ...]:
    """Return this process's threads, descriptors, and mappings of pycoll's memory."""
    maps = Path("/proc/self/maps").read_text()
    return (
        threading.active_count(),
        sorted(os.listdir("/proc/self/task")),
        sorted(os.listdir("/proc/self/fd")),
        maps.count("memfd:pycoll"),
    )


def rehearsed() -> list[tuple[object, ...]]:
    preload(1)
    before = held()
    preload(MANY_COPIES + 1)
    return [before, held()]


@pytest.mark.native
def test_a_rehearsal_leaves_nothing_behind() -> None:
    ((before, after),) = pycoll.spawn(rehearsed, 1, start="spawn", timeout=60)
    assert before == after


@pytest.mark.native
def test_a_rehearsal_is_of_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for others, by what the process that makes it was told."""
    monkeypatch.setenv("PYCOLL_RANK", "1")
    monkeypatch.setenv("PYCOLL_SIZE", "2")
    monkeypatch.setenv("PYCOLL_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("PYCOLL_ALGORITHM", "none such")
    code = (
        f"from pycoll.bootstrap.preload import preload; preload({MANY_COPIES + 1}); print('ready')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("ready\n", "")


@pytest.mark.native
def test_a_rehearsal_says_nothing_and_leaves_the_settings_unread(tmp_path: Path) -> None:
    code = f"""
import logging, os
logging.basicConfig(level=logging.INFO)
from pycoll.bootstrap.preload import preload
preload({MANY_COPIES + 1})
print("before")
os.environ["PYCOLL_LOG"] = "info"
import numpy as np, pycoll
with pycoll.init() as comm:
    comm.allreduce(np.ones(1))
"""
    where = os.environ | {"PYCOLL_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=where
    )
    assert done.stdout == "before\n"
    said = done.stderr.splitlines()
    # By the caller's handler and by PYCOLL_LOG's, of one call each.
    assert len([line for line in said if "selection" in line]) == 2, said
    assert not (tmp_path / "cache").exists()


@pytest.mark.native
@pytest.mark.parametrize("error", [OSError("too many open files"), MemoryError(), UserWarning("w")])
def test_ranks_do_without_a_rehearsal_that_fails(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr("pycoll.rehearsal.rehearse", fails)
    preload(MANY_COPIES + 1)


def arenas() -> int:
    """Return how many arenas malloc has once a few threads have allocated at the same time."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    there, found = threading.Barrier(4), set[int]()

    def allocate() -> None:
        there.wait()
        found.add(libc.malloc(1000) >> 26)  # arenas of threads begin at multiples of 64 MiB
        there.wait()

    threads = [threading.Thread(target=allocate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(found)


def few() -> int:
    limit_malloc(MANY_COPIES)
    return arenas()


def many() -> int:
    limit_malloc(MANY_COPIES + 1)
    return arenas()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="a libc without arenas")
def test_among_many_ranks_all_threads_of_one_share_an_arena() -> None:
    assert pycoll.spawn(few, 1, start="spawn", timeout=60)[0] > 1
    assert pycoll.spawn(many, 1, start="spawn", timeout=60) == [1]
