"""What a peer that is missing or does not serve something says."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from pycoll.cli import peers
from pycoll.dtypes import ReduceOp
from pycoll.errors import UnavailableError, UsageError


def test_gloo_without_torch_names_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnavailableError, match=r"gloo needs torch, .*; pip install torch"):
        peers.open_peer("gloo", 0, 1, lambda text: text)


def test_mpi4py_that_is_missing_names_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UnavailableError, match=r"mpi4py does not load .*; pip install mpi4py"):
        peers.open_peer("mpi4py", 0, 1, lambda text: text)


def test_an_unknown_peer_is_refused():
    with pytest.raises(UsageError, match=r"--against names 'nccl', want some of mpi4py, gloo"):
        peers.open_peer("nccl", 0, 1, lambda text: text)


class World:
    """Stands for an MPI whose launcher started one rank."""

    rank, size = 0, 1


@pytest.fixture
def alone(monkeypatch):
    """An mpi4py that runs without a launcher."""
    module = type(sys)("mpi4py")
    module.MPI = type("MPI", (), {"COMM_WORLD": World, "Get_library_version": lambda: "X 1"})
    monkeypatch.setitem(sys.modules, "mpi4py", module)
    monkeypatch.setattr(peers.importlib.metadata, "version", lambda name: "4")


@pytest.mark.usefixtures("alone")
def test_mpi4py_outside_of_mpirun_says_how_to_start():
    with pytest.raises(UsageError, match=r"sees rank 0 of 1, pycoll rank 1 of 2: start with"):
        peers.open_peer("mpi4py", 1, 2, lambda text: text)


@pytest.mark.usefixtures("alone")
def test_mpi4py_has_no_average():
    peer = peers.open_peer("mpi4py", 0, 1, lambda text: text)
    x = np.ones(3)
    with pytest.raises(UsageError, match=r"mpi4py has no op avg; leave mpi4py out of --against"):
        peer.bind(x, x, ReduceOp.AVG)


def test_gloo_reduces_out_of_place_and_in_place():
    pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
    peer = peers.open_peer("gloo", 0, 1, lambda text: text)
    try:
        x, out = np.arange(5.0), np.zeros(5)
        peer.bind(x, out, ReduceOp.SUM)()
        assert np.array_equal(out, np.arange(5.0))
        peer.bind(x, x, ReduceOp.MAX)()
        assert np.array_equal(x, np.arange(5.0))
        with pytest.raises(UsageError, match=r"gloo has no op avg; leave gloo out of --against"):
            peer.bind(x, x, ReduceOp.AVG)
    finally:
        peer.close()
