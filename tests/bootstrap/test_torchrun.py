from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ports
import pytest

from pycoll.bootstrap import torchrun
from pycoll.config import MOST_RANKS, Config
from pycoll.errors import BootstrapError

SECONDS = 60.0  #: generous: reached only by a hang
ROOT = Path(__file__).parents[2]

ENVIRONMENT = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}

PROGRAM = """
from pycoll.bootstrap import detect
bootstrap = detect()
got = bootstrap.allgather(b"%d" % bootstrap.rank)
print(bootstrap.name, bootstrap.rank, bootstrap.size, b" ".join(got))
"""


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []
    yield made
    for process in made:
        process.kill()
        process.communicate()


def start(environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ranks_meet_though_torchs_store_listens_on_the_master_port(processes):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as store:
        master = {**ENVIRONMENT, "MASTER_PORT": str(store.getsockname()[1])}
        processes += [start({**master, "RANK": str(rank)}) for rank in range(2)]
        out = [process.communicate(timeout=SECONDS) for process in processes]
    assert out == [(f"torchrun {rank} 2 b'0 1'\n", "") for rank in range(2)]


def test_the_address_setting_overrides_the_ports(processes):
    address = f"127.0.0.1:{ports.free()}"
    for rank in range(2):
        processes.append(start({**ENVIRONMENT, "RANK": str(rank), "PYCOLL_ADDRESS": address}))
    out = [process.communicate(timeout=SECONDS) for process in processes]
    assert out == [(f"torchrun {rank} 2 b'0 1'\n", "") for rank in range(2)]


def test_a_job_of_one_meets_nobody(no_leak):
    star = torchrun.meet(Config.load({}), {"RANK": "0", "WORLD_SIZE": "1"})
    assert (star.rank, star.size, len(star.links)) == (0, 1, 0)


def test_the_ports_of_a_job_differ_and_lie_below_the_kernels():
    found = torchrun.ports(b"a job")
    assert len(set(found)) == len(found) == torchrun.PORTS
    assert all(torchrun.LOWEST <= port <= torchrun.HIGHEST < 32768 for port in found)
    assert found == torchrun.ports(b"a job") != torchrun.ports(b"another")


def test_what_is_torchrun():
    assert not torchrun.launched({})
    assert not torchrun.launched({"RANK": "0"})
    assert torchrun.launched(ENVIRONMENT)
    assert not torchrun.innermost(ENVIRONMENT)
    assert torchrun.innermost({**ENVIRONMENT, "TORCHELASTIC_RUN_ID": "none"})
    assert not torchrun.innermost({"TORCHELASTIC_RUN_ID": "none"})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "WORLD_SIZE",
            "0",
            rf"^torchrun: WORLD_SIZE is '0', want an integer from 1 to {MOST_RANKS}$",
        ),
        ("WORLD_SIZE", str(MOST_RANKS + 1), r"^torchrun: WORLD_SIZE is '1048577', want an integer"),
        ("WORLD_SIZE", "two", r"^torchrun: WORLD_SIZE is 'two', want an integer from 1"),
        ("RANK", "2", r"^torchrun: RANK is '2', want an integer from 0 to 1$"),
        ("MASTER_ADDR", "", r"^torchrun: MASTER_ADDR is not set, want the host of rank 0$"),
        ("MASTER_PORT", "", r"^torchrun: MASTER_PORT is '', want an integer from 1 to 65535$"),
    ],
)
def test_a_bad_variable(name, value, message):
    with pytest.raises(BootstrapError, match=message):
        torchrun.meet(Config.load({}), {**ENVIRONMENT, name: value})


def test_the_largest_job_is_met(monkeypatch):
    monkeypatch.setattr(torchrun.environment, "meet_at", lambda *met: met)
    environ = {**ENVIRONMENT, "WORLD_SIZE": str(MOST_RANKS), "RANK": str(MOST_RANKS - 1)}
    assert torchrun.meet(Config.load({}), environ)[2:4] == (MOST_RANKS - 1, MOST_RANKS)


def test_what_pycoll_run_starts_is_not_called_torchruns():
    own = torchrun.variables(0, 2, 1234, torchrun.OWN_RUN + "abc")
    assert torchrun.program(own) == "pycoll run"
    assert torchrun.program({**own, "TORCHELASTIC_RUN_ID": "none"}) == "torchrun"
    assert torchrun.program({}) == "torchrun"
