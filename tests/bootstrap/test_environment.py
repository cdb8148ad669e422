from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import ports
import pytest

from pycoll.bootstrap import environment, rendezvous
from pycoll.config import Config
from pycoll.errors import BootstrapError, UsageError

SECONDS = 60.0  #: generous: reached only by a hang
ROOT = Path(__file__).parents[2]

PROGRAM = """
from pycoll.bootstrap import detect
bootstrap = detect()
got = bootstrap.allgather(b"%d" % bootstrap.rank)
print(bootstrap.name, bootstrap.rank, bootstrap.size, bootstrap.local_rank, b" ".join(got))
"""


@pytest.fixture
def port() -> int:
    return ports.free()


def start(**variables: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-X", "dev", "-c", PROGRAM],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
        | {name: str(value) for name, value in variables.items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes: subprocess.Popen[str]) -> list[tuple[str, str]]:
    try:
        return [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def variables(rank: int, size: int, port: int, host: str = "127.0.0.1") -> dict[str, object]:
    return {"PYCOLL_RANK": rank, "PYCOLL_SIZE": size, "PYCOLL_ADDRESS": f"{host}:{port}"}


def load(**given: object) -> Config:
    return Config.load({name: str(value) for name, value in given.items()})


def test_ranks_of_a_plain_environment_meet(port):
    # The last rank first: the others must wait for rank 0.
    out = finish(*(start(**variables(rank, 3, port)) for rank in (2, 1, 0)))
    assert out == [(f"environment {rank} 3 {rank} b'0 1 2'\n", "") for rank in (2, 1, 0)]


def test_ranks_meet_by_name_with_a_secret(port):
    secret = {"PYCOLL_SECRET": "ab" * 32}
    name = socket.gethostname()
    out = finish(*(start(**variables(rank, 2, port, name), **secret) for rank in range(2)))
    assert out == [(f"environment {rank} 2 {rank} b'0 1'\n", "") for rank in range(2)]


def test_a_job_of_one_needs_no_address():
    assert finish(start(PYCOLL_RANK=0, PYCOLL_SIZE=1)) == [("environment 0 1 0 b'0'\n", "")]


def test_a_rank_that_never_comes_is_named_by_all(port, no_leak, together):
    configs = [load(**variables(rank, 3, port), PYCOLL_TIMEOUT=3) for rank in (0, 2)]
    for outcome in together(*[lambda c=config: environment.meet(c) for config in configs]):
        with pytest.raises(
            BootstrapError,
            match=r"^rank 0 waited (3|2\.\d+) s for rank 1 of 3, and it never came$",
        ):
            raise outcome


def test_ranks_with_different_secrets(port, no_leak, together):
    configs = [
        load(**variables(rank, 2, port), PYCOLL_SECRET=secret * 16, PYCOLL_TIMEOUT=3)
        for rank, secret in enumerate(("ab", "cd"))
    ]
    zero, one = together(*[lambda c=config: environment.meet(c) for config in configs])
    with pytest.raises(BootstrapError, match=r"it does not know the job's secret\)$"):
        raise zero
    with pytest.raises(
        BootstrapError, match=r"is PYCOLL_SECRET the same on all ranks\? Without it they must"
    ):
        raise one


def test_an_address_that_is_not_rank_0s_own(port, no_leak):
    config = load(**variables(0, 2, port))
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(BootstrapError, match=rf"^rank 0 cannot listen at 127\.0\.0\.1:{port}: Addr"),
    ):
        environment.meet(config)


def test_another_port_is_taken_when_the_first_is(secret, no_leak, together, monkeypatch):
    monkeypatch.setattr(rendezvous, "ATTEMPT_SECONDS", 0.3)  # for the silent one
    with socket.create_server(("127.0.0.1", 0)) as taken:
        both = [taken.getsockname()[1], ports.free()]
        taken.listen(0)
        stars = together(
            lambda: environment.meet_at("127.0.0.1", both, 0, 2, secret, 30),
            lambda: environment.meet_at("127.0.0.1", both, 1, 2, secret, 30),
        )
    for star in stars:
        star.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"PYCOLL_RANK": "0"},
            r"^PYCOLL_RANK is set, PYCOLL_SIZE is not: set PYCOLL_RANK, PYCOLL_SIZE and PYCOLL_ADD",
        ),
        ({"PYCOLL_SIZE": "2"}, r"^PYCOLL_SIZE is set, PYCOLL_RANK is not: "),
        (
            {"PYCOLL_RANK": "2", "PYCOLL_SIZE": "2"},
            r"^PYCOLL_RANK is 2, want 0 to 1 \(PYCOLL_SIZE - 1\)$",
        ),
        (
            {"PYCOLL_RANK": "1", "PYCOLL_SIZE": "2"},
            r"^PYCOLL_ADDRESS is not set, want host:port of rank 0$",
        ),
    ],
)
def test_a_rank_that_is_named_by_half(given, message):
    with pytest.raises(UsageError, match=message):
        environment.launched(Config.load(given))


def test_a_job_across_machines_needs_a_secret():
    given = {"PYCOLL_RANK": "1", "PYCOLL_SIZE": "2", "PYCOLL_ADDRESS": "node7:29400"}
    with pytest.raises(
        UsageError, match=r"^PYCOLL_SECRET is not set, and node7:29400 can be reached from other m"
    ):
        environment.meet(Config.load(given))


def test_addresses_are_split():
    assert environment.split("node7:29400") == ("node7", 29400)
    assert environment.split("[::1]:29400") == ("::1", 29400)


def test_the_deadline_is_the_settings(secret, port, no_leak):
    with pytest.raises(
        BootstrapError, match=r"^rank 0 waited (3|2\.\d+) s for rank 1 of 2, and it"
    ):
        environment.meet_at("127.0.0.1", [port], 0, 2, secret, 3)
