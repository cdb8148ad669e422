from __future__ import annotations

import sys
import types

import pytest

from pycoll.bootstrap import mpi
from pycoll.config import Config
from pycoll.errors import BootstrapError, UnavailableError

PROGRAM = """
import os, sys
from pycoll.bootstrap import detect
if sys.argv[1] == "before":
    from mpi4py import MPI
    MPI.COMM_WORLD.Barrier()
bootstrap = detect()
got = bootstrap.allgather(b"%d" % bootstrap.rank)
again = detect()
again.barrier()
again.close()
from mpi4py import MPI
assert bootstrap.rank == MPI.COMM_WORLD.rank
assert MPI.COMM_WORLD.allreduce(1) == bootstrap.size
line = f"{bootstrap.name} {bootstrap.size} {bootstrap.local_size} {b' '.join(got).decode()}\\n"
os.write(1, line.encode())  # in one piece: a launcher mixes the pieces of its ranks
bootstrap.close()
"""


@pytest.mark.mpi
@pytest.mark.parametrize("when", ["before", "after"])
def test_ranks_of_mpirun_meet(launcher, when, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = launcher.run(3, "-W", "error", str(program), when)
    assert sorted(done.stdout.splitlines()) == ["mpi4py 3 3 0 1 2"] * 3


LATE = """
import os, sys
from mpi4py import MPI
from pycoll.bootstrap import detect
from pycoll.config import Config
if MPI.COMM_WORLD.rank == 1:
    MPI.COMM_WORLD.recv(source=0)  # never calls detect
else:
    try:
        detect(Config.load(timeout=0.3))
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    MPI.COMM_WORLD.send(None, dest=1)
os._exit(0)  # MPI_Finalize would wait for what is left open
"""


@pytest.mark.mpi
def test_a_rank_that_never_comes_ends_the_wait(launcher, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(LATE)
    done = launcher.run(2, str(program), check=False)
    assert "BootstrapError mpi4py: not all 2 ranks came to pycoll.init() before the" in done.stdout


class World:
    """An MPI of one process."""

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def Get_size(self) -> int:
        return self.size

    def Get_rank(self) -> int:
        return 0


def library(
    monkeypatch: pytest.MonkeyPatch, *, initialized: bool = True, finalized: bool = False, size=1
) -> None:
    """Put an MPI of our making in the place of mpi4py."""
    module = types.ModuleType("mpi4py.MPI")
    module.Is_initialized = lambda: initialized
    module.Is_finalized = lambda: finalized
    module.COMM_WORLD = World(size)
    module.Get_library_version = lambda: "Toy MPI v1.2, package: toy"
    package = types.ModuleType("mpi4py")
    package.MPI = module
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)


def test_an_mpi_that_runs_without_a_known_launcher_counts(monkeypatch):
    library(monkeypatch, size=2)
    assert mpi.launched({})
    library(monkeypatch, size=1)
    assert not mpi.launched({})
    library(monkeypatch, size=2, initialized=False)
    assert not mpi.launched({})
    library(monkeypatch, size=2, finalized=True)
    assert not mpi.launched({})


def test_one_rank_meets_nobody(monkeypatch, no_leak):
    library(monkeypatch)
    star = mpi.meet(Config.load({}), {"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"})
    assert (star.rank, star.size, len(star.links)) == (0, 1, 0)


def test_a_launcher_of_another_mpi_is_named(monkeypatch):
    library(monkeypatch)
    with pytest.raises(
        BootstrapError,
        match=r"^the MPI launcher started 4 ranks, but mpi4py's MPI \(Toy MPI v1\.2\) sees 1: use",
    ):
        mpi.meet(Config.load({}), {"PMI_SIZE": "4"})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"initialized": False}, r"^mpi4py: MPI is not initialized: call pycoll.init\(\) between"),
        ({"finalized": True}, r"^mpi4py: MPI is finalized: call pycoll.init\(\) between Init and "),
    ],
)
def test_an_mpi_that_does_not_run(monkeypatch, state, message):
    library(monkeypatch, **state)
    with pytest.raises(BootstrapError, match=message):
        mpi.meet(Config.load({}), {})


def test_mpirun_without_mpi4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(
        UnavailableError, match=r"^started by an MPI launcher, but mpi4py cannot be imported .*: pi"
    ):
        mpi.meet(Config.load({}), {"PMI_SIZE": "2"})


def test_the_names_of_this_machine():
    names = mpi._names()
    assert len(names) == len(set(names)) <= 16
    assert not [name for name in names if name.startswith("127.") or name == "localhost"]


def test_a_host_with_an_endless_name_is_refused():
    with pytest.raises(BootstrapError, match=r"^mpi4py: a blob has 2000 bytes, at most 1022$"):
        mpi._allgather(World(), bytes(2000), 0.0, "pycoll.init()")
