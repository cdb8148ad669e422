"""Newcomers of another host, and a rank 0 that was on a host other than the next one's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Hosts

NET = Path(__file__).parent
PORT = 29500
SECONDS = 120.0


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as hosts:
        yield hosts


class Processes:
    """Those of grow_job.py."""

    def __init__(self, hosts: Hosts, address: str, *arguments: str) -> None:
        self._hosts = hosts
        self._argv = [sys.executable, str(NET / "grow_job.py")]
        self._rest = [address, *arguments]
        self._environ = os.environ | {
            "PYCOLL_SECRET": "5eed" * 16,
            "PYCOLL_TIMEOUT": "60",
            "PYTHONPATH": str(NET.parents[1]),
        }
        self.running: list[subprocess.Popen[str]] = []

    def member(self, host: int, rank: int, size: int, address: str) -> None:
        told = {"PYCOLL_RANK": str(rank), "PYCOLL_SIZE": str(size), "PYCOLL_ADDRESS": address}
        self._start(host, "member", told)

    def newcomer(self, host: int) -> None:
        self._start(host, "newcomer", {})

    def _start(self, host: int, how: str, told: dict[str, str]) -> None:
        argv = [*self._argv, how, *self._rest]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.running.append(self._hosts.run(host, argv, self._environ | told, **pipes))

    def end(self) -> list[list[str]]:
        try:
            return [one.communicate(timeout=SECONDS)[0].splitlines() for one in self.running]
        finally:
            for one in self.running:
                one.kill()
                one.communicate()


def test_a_job_of_one_host_takes_in_a_process_of_another(hosts) -> None:
    processes = Processes(hosts, f"{hosts.address(0)}:{PORT}", "")
    for rank in range(2):
        processes.member(0, rank, 2, "127.0.0.1:29400")
    processes.newcomer(1)
    assert processes.end() == [[f"rank {rank} of 3: right {{'tcp'}}"] for rank in range(3)]


def test_rank_0_dies_and_the_next_is_on_another_host(hosts) -> None:
    address = ",".join(f"{hosts.address(host)}:{PORT}" for host in range(2))
    processes = Processes(hosts, address, "fatal")
    processes.member(0, 0, 2, f"{hosts.address(0)}:29400")
    processes.member(1, 1, 2, f"{hosts.address(0)}:29400")
    processes.newcomer(0)
    processes.running[0].wait(SECONDS)
    for host in range(2):
        processes.newcomer(host)
    dead, *lived = processes.end()
    assert dead == ["rank 0 of 3: right {'tcp'}"]
    for rank, said in enumerate(lived[:2]):
        first, error, again = said
        assert first == f"rank {rank + 1} of 3: right {{'tcp'}}"
        assert error in ("PeerLostError", "BrokenError")
        assert again == f"rank {rank} of 4: right {{'tcp'}}"
    assert sorted(said[0][:11] for said in lived[2:]) == ["rank 2 of 4", "rank 3 of 4"]
    assert all(said[-1] == "last" for said in lived[2:])


def test_an_address_that_only_one_host_reaches(hosts) -> None:
    processes = Processes(hosts, f"127.0.0.1:{PORT}", "")
    for host in range(2):
        processes.member(host, host, 2, f"{hosts.address(0)}:29400")
    text = "UsageError: grow: the address is 127.0.0.1, which is reached only from the host of"
    assert all(text in said[-1] for said in processes.end())
