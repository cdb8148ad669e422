"""What a backend that is missing or does not serve something says."""

from __future__ import annotations

import importlib.metadata
import sys

import numpy as np
import pytest

from pycoll.benchmark import backends
from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.problem import Problem
from pycoll.dtypes import ReduceOp
from pycoll.errors import UnavailableError, UsageError


def test_gloo_without_torch_names_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnavailableError, match=r"gloo needs torch, .*; pip install torch"):
        backends.open_backend("gloo", 0, 1, lambda text: text)


def test_mpi4py_that_is_missing_names_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UnavailableError, match=r"mpi4py does not load .*; pip install mpi4py"):
        backends.open_backend("mpi4py", 0, 1, lambda text: text)


def test_an_unknown_peer_is_refused():
    with pytest.raises(UsageError, match=r"--against names 'nccl', want some of mpi4py, gloo"):
        backends.open_backend("nccl", 0, 1, lambda text: text)


def problem(op, name="allreduce"):
    return Problem(OPERATIONS[name], 3, "float64", op, 0, 1)


class World:
    """Stands for an MPI whose launcher started one rank."""

    rank, size = 0, 1


@pytest.fixture
def alone(monkeypatch):
    """An mpi4py that runs without a launcher."""
    module = type(sys)("mpi4py")
    module.MPI = type("MPI", (), {"COMM_WORLD": World, "Get_library_version": lambda: "X 1"})
    monkeypatch.setitem(sys.modules, "mpi4py", module)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4")


@pytest.mark.usefixtures("alone")
def test_mpi4py_outside_of_mpirun_says_how_to_start():
    with pytest.raises(UsageError, match=r"sees rank 0 of 1, pycoll rank 1 of 2: start with"):
        backends.open_backend("mpi4py", 1, 2, lambda text: text)


@pytest.mark.usefixtures("alone")
def test_mpi4py_has_no_average():
    backend = backends.open_backend("mpi4py", 0, 1, lambda text: text)
    x = np.ones(3)
    with pytest.raises(UsageError, match=r"mpi4py has no op avg; leave mpi4py out of --against"):
        backend.bind(problem(ReduceOp.AVG), x, x, True)


def test_gloo_reduces_out_of_place_and_in_place():
    pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
    backend = backends.open_backend("gloo", 0, 1, lambda text: text)
    try:
        x, out = np.arange(3.0), np.zeros(3)
        backend.bind(problem(ReduceOp.SUM), x, out, False)()
        assert np.array_equal(out, np.arange(3.0))
        backend.bind(problem(ReduceOp.MAX), x, x, True)()
        assert np.array_equal(x, np.arange(3.0))
        with pytest.raises(UsageError, match=r"gloo has no op avg; leave gloo out of --against"):
            backend.bind(problem(ReduceOp.AVG), x, x, True)
    finally:
        backend.close()


@pytest.mark.usefixtures("alone")
def test_mpis_reduce_scatter_in_place_is_another_one(monkeypatch):
    backend = backends.open_backend("mpi4py", 0, 1, lambda text: text)
    monkeypatch.setattr(type(backend), "_op", lambda *_: None)
    monkeypatch.setattr(backend._mpi, "IN_PLACE", None, raising=False)
    x = np.ones(3)
    with pytest.raises(UsageError, match=r"leaves its result at the start of the input, not in"):
        backend.bind(problem(ReduceOp.SUM, "reduce_scatter"), x, x, True)


EVERYTHING = """
import functools
import sys
import numpy as np
from mpi4py import MPI
from pycoll.benchmark import backends
from pycoll.benchmark.barrier import BarrierProblem
from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.problem import Problem
from pycoll.dtypes import ReduceOp

world = MPI.COMM_WORLD
share = functools.partial(world.bcast, root=0)
backend = backends.open_backend(sys.argv[1], world.rank, world.size, share)
for name, operation in OPERATIONS.items():
    if backend.name == "gloo" and operation.counted and name != "alltoallv":
        continue  # which Gloo has not: see below
    places = (False, True)[: 1 + (operation.in_place and not name.startswith("reduce_scatter"))]
    for in_place in places:
        window = 3 if operation.windowed else 1
        more = dict(root=world.size - 1, window=window)
        problem = Problem(operation, 12 * world.size, "float32", ReduceOp.SUM, *RANK, **more)
        if not operation.sized:
            problem = BarrierProblem(*RANK)
        memory = np.empty(problem.whole, "float32")
        x, out = problem.arrays(memory, memory if in_place else memory.copy())
        calls = [backend.bind(problem, x, out, in_place)]
        if not operation.between_two:
            begin = backend.begin(problem, x, out, in_place)
            calls.append(lambda: begin()())
        for call in calls:
            for _ in range(2):
                wrong = problem.check(call, x, out, world.allgather)
                assert wrong == 0, (name, in_place, out, problem.expected)
backend.close()
""".replace("*RANK", "world.rank, world.size")


@pytest.mark.mpi
@pytest.mark.parametrize("name", backends.NAMES)
def test_peers_solve_every_problem(launcher, name):
    if name == "gloo":
        pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
    launcher.run(3, "-c", EVERYTHING, name)


def test_gloo_has_no_blocks_of_several_lengths_but_in_all_to_all():
    pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
    backend = backends.open_backend("gloo", 0, 1, lambda text: text)
    try:
        x = np.ones(3)
        with pytest.raises(UsageError, match=r"gloo has no allgatherv; leave gloo out of --agai"):
            backend.bind(problem(ReduceOp.SUM, "allgatherv"), x, x, False)
        whole = np.ones(3, "uint64")
        with pytest.raises(UsageError, match=r"gloo do not serve uint64 .*; leave gloo out of"):
            backend.bind(problem(ReduceOp.SUM), whole, whole, True)
    finally:
        backend.close()


BITS = """
import functools
import sys
import ml_dtypes
import numpy as np
from mpi4py import MPI
from pycoll.benchmark import backends
from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.problem import Problem
from pycoll.dtypes import ReduceOp

world = MPI.COMM_WORLD
share = functools.partial(world.bcast, root=0)
backend = backends.open_backend(sys.argv[1], world.rank, world.size, share)
for name in sys.argv[2].split(","):
    problem = Problem(OPERATIONS[name], 24, "bfloat16", ReduceOp.SUM, world.rank, world.size)
    x, out = problem.arrays(*(np.empty(24, problem.input.dtype) for _ in range(2)))
    call = backend.bind(problem, x, out, False)
    wrong = problem.check(call, x, out, world.allgather)
    assert wrong == 0, (name, out, problem.expected)
backend.close()
"""


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("name", "what"), [("mpi4py", "allgather,alltoallv,pingpong"), ("gloo", "allgather,allreduce")]
)
def test_peers_take_bfloat16_as_far_as_they_can(launcher, name, what):
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    if name == "gloo":
        pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
    launcher.run(2, "-c", BITS, name, what)
