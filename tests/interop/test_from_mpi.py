"""`pycoll.from_mpi`: the ranks of an mpi4py communicator, whichever it is, under each MPI."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

import pycoll
from pycoll.errors import BootstrapError, UsageError

BEGIN = """
import os, sys
import numpy as np
from mpi4py import MPI
import pycoll
world = MPI.COMM_WORLD

def check(comm, mpi):
    assert (comm.rank, comm.size, comm.launcher) == (mpi.rank, mpi.size, "mpi4py")
    x = np.arange(1000.0) + world.rank
    want = mpi.allreduce(x)
    assert np.array_equal(comm.allreduce(x), want)
    assert comm.gather_object(world.rank) == mpi.gather(world.rank)
"""

COMMUNICATORS = {
    "world": "mpi = world",
    "self": "mpi = MPI.COMM_SELF",
    "split, in another order": "mpi = world.Split(world.rank % 2, -world.rank)",
    "duplicate": "mpi = world.Dup()",
    "a grid": "mpi = world.Create_cart([2, 2], reorder=True)",
    "of a group": "mpi = world.Create(world.group.Incl([3, 0, 2]))",
    "merged": "mpi = world.Split(world.rank % 2).Create_intercomm(0, world, "
    "1 - world.rank % 2).Merge(bool(world.rank % 2))",
}

PROGRAM = """
if mpi:
    comm = pycoll.from_mpi(mpi)
    check(comm, mpi)
    again = pycoll.from_mpi(mpi)  # a second one, and calls of MPI between those of both
    check(again, mpi)
    comm.close()
    check(again, mpi)
    again.close()
else:
    try:
        pycoll.from_mpi(mpi)
    except pycoll.UsageError as error:
        assert str(error).startswith("from_mpi: comm is MPI.COMM_NULL: it was freed, or"), error
    else:
        assert False
world.Barrier()
"""


MIXED = """
row = world.Split(world.rank // 2)
with pycoll.init() as every, pycoll.from_mpi(row) as mine:
    check(every, world)
    check(mine, row)
    half = every.split(world.rank // 2)
    check(mine, row)
    x = np.full(10, 1.0)
    assert np.array_equal(half.allreduce(x), mine.allreduce(np.full(10, 1.0)))
    row.Free()  # which the other no longer needs
    assert mine.allgather_object(mine.rank) == [0, 1]
    try:
        pycoll.from_mpi(row)
    except pycoll.UsageError as error:
        assert str(error).startswith("from_mpi: comm is MPI.COMM_NULL: it was freed, or"), error
    else:
        assert False
"""


INTER = """
half = world.Split(world.rank % 2)
inter = half.Create_intercomm(0, world, 1 - world.rank % 2)
try:
    pycoll.from_mpi(inter)
except pycoll.UsageError as error:
    want = "from_mpi: comm is an inter-communicator (%d and %d ranks), which has two groups; pass"
    assert str(error).startswith(want % (half.size, world.size - half.size)), error
else:
    assert False
inter.Free()
"""


@pytest.mark.mpi
def test_any_intracommunicator_will_do_and_no_other(launcher, tmp_path: Path) -> None:
    program = tmp_path / "program.py"  # one: to start ranks takes longer than what they do
    parts = [f"{made}{PROGRAM}" for made in COMMUNICATORS.values()]
    program.write_text(BEGIN + "".join(parts) + MIXED + INTER)
    launcher.run(4, "-W", "error", str(program))


AFTER_MPI = """
comm = pycoll.from_mpi(world)
MPI.Finalize()
assert np.array_equal(comm.allreduce(np.ones(5)), np.full(5, 2.0))
try:
    pycoll.from_mpi(world)
except pycoll.BootstrapError as error:
    assert str(error).startswith("mpi4py: MPI is finalized: call pycoll.from_mpi() between"), error
else:
    assert False
comm.close()
"""


@pytest.mark.mpi
def test_it_outlives_mpi(launcher, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(BEGIN + AFTER_MPI)
    launcher.run(2, str(program))


LATE = """
if world.rank == 1:
    world.recv(source=0)  # never calls from_mpi
else:
    try:
        pycoll.from_mpi(world, timeout=0.3)
    except pycoll.BootstrapError as error:
        print(error, flush=True)
    world.send(None, dest=1)
os._exit(0)  # MPI_Finalize would wait for what is left open
"""


@pytest.mark.mpi
def test_a_rank_that_never_comes_ends_the_wait(launcher, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(BEGIN + LATE)
    done = launcher.run(2, str(program), check=False)
    assert "mpi4py: not all 2 ranks came to pycoll.from_mpi() before the deadline" in done.stdout


@pytest.mark.parametrize("loaded", [False, True])
def test_what_is_no_communicator_is_refused(monkeypatch: pytest.MonkeyPatch, loaded: bool) -> None:
    module = types.ModuleType("mpi4py.MPI")
    module.Comm = type("Comm", (), {})  # type: ignore[attr-defined]
    if loaded:
        monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    else:
        monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    with pytest.raises(UsageError, match=r"^from_mpi: comm is a int, want an mpi4py\.MPI\.Comm$"):
        pycoll.from_mpi(5)


def test_mpi_that_does_not_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("mpi4py.MPI")
    module.Comm = type("Comm", (), {})  # type: ignore[attr-defined]
    module.Is_initialized = lambda: False  # type: ignore[attr-defined]
    module.Is_finalized = lambda: False  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    want = r"^mpi4py: MPI is not initialized: call pycoll\.from_mpi\(\) between Init and Finalize$"
    with pytest.raises(BootstrapError, match=want):
        pycoll.from_mpi(module.Comm())
