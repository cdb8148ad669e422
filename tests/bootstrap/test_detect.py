from __future__ import annotations

import pytest

from pycoll.bootstrap import detect, job, launcher, spawn
from pycoll.config import Config
from pycoll.errors import UsageError

NOTHING = Config.load({})
PLAIN = Config.load({"PYCOLL_RANK": "0", "PYCOLL_SIZE": "1"})
TORCH = {"RANK": "0", "WORLD_SIZE": "2"}
ELASTIC = {**TORCH, "TORCHELASTIC_RUN_ID": "none"}
OPENMPI = {"OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("config", "environ", "name"),
    [
        (NOTHING, {}, "single"),
        (NOTHING, {"RANK": "0"}, "single"),
        (NOTHING, TORCH, "torchrun"),
        (NOTHING, OPENMPI, "mpi4py"),
        (NOTHING, {"PMI_SIZE": "2", "PMI_RANK": "0"}, "mpi4py"),
        (NOTHING, {"PMIX_RANK": "0", "PMIX_NAMESPACE": "job"}, "mpi4py"),
        (NOTHING, {"PMIX_RANK": "0"}, "single"),
        (NOTHING, {"OMPI_COMM_WORLD_SIZE": "1"}, "single"),
        (NOTHING, OPENMPI | TORCH, "mpi4py"),
        (NOTHING, OPENMPI | ELASTIC, "torchrun"),
        (PLAIN, OPENMPI | ELASTIC, "environment"),
    ],
)
def test_the_nearest_launcher_wins(config, environ, name):
    assert launcher(config, environ) == name


def test_spawn_is_nearer_than_everything():
    assert spawn(lambda: launcher(PLAIN, OPENMPI | ELASTIC), 1) == ["spawn"]
    assert job.current() is None


def test_a_process_of_its_own(no_leak):
    bootstrap = detect(NOTHING)
    assert (bootstrap.name, bootstrap.rank, bootstrap.size) == ("single", 0, 1)
    assert (bootstrap.local_rank, bootstrap.local_size) == (0, 1)
    assert bootstrap.allgather(b"x") == [b"x"]
    bootstrap.barrier()
    bootstrap.close()


def test_settings_are_read_from_the_environment_by_default(monkeypatch):
    monkeypatch.setenv("PYCOLL_TIMEOUT", "soon")
    with pytest.raises(UsageError, match=r"PYCOLL_TIMEOUT"):
        detect()


def test_an_address_without_a_rank_is_not_passed_over():
    config = Config.load({"PYCOLL_ADDRESS": "node7:29400"})
    with pytest.raises(
        UsageError, match=r"^PYCOLL_ADDRESS is set, but nothing says which rank this is: set PYCOL"
    ):
        launcher(config, {})


def test_a_newcomer_is_no_rank_of_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLL_NEWCOMER", "yes")
    assert launcher(Config.load(), {"RANK": "0", "WORLD_SIZE": "1"}) == "join"
    with pytest.raises(UsageError, match=r"PYCOLL_NEWCOMER is set, .*: call pycoll.init\(\)"):
        detect()
