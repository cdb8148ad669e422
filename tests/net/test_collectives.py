"""Every collective between hosts: some ranks share memory, the others are reached by sockets."""

from __future__ import annotations

import os
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest
from hosts import Hosts


@pytest.mark.parametrize("ranks", [(1, 1), (2, 1), (2, 2, 1)])
def test_all_checks_against_numpy(root, ranks: tuple[int, ...]) -> None:
    run(root, ranks, "collective_checks.py")


@pytest.mark.skipif(not find_library("fabric"), reason="no libfabric: apt-get install libfabric1")
@pytest.mark.parametrize(
    ("provider", "ranks"),
    [("tcp", (1, 1)), ("tcp", (2, 2, 1)), ("tcp", (1,) * 8), ("udp;ofi_rxd", (1, 1, 1))],
)
def test_all_checks_by_libfabric(root, provider: str, ranks: tuple[int, ...]) -> None:
    settings = {"PYCOLL_TRANSPORT": "libfabric", "PYCOLL_FABRIC": provider}
    run(root, ranks, "collective_checks.py", **settings)


@pytest.mark.parametrize("ranks", [(1, 1), (2, 1)])
def test_ranks_that_are_refused_a_call_and_go_on(root, ranks: tuple[int, ...]) -> None:
    run(root, ranks, "faults/out_of_step.py", "--rank", "--programs", "25")


def run(root: Path, ranks: tuple[int, ...], script: str, *arguments: str, **settings: str) -> None:
    host_of = [host for host, n in enumerate(ranks) for _ in range(n)]
    with Hosts(len(ranks)) as hosts:
        running = [
            hosts.run(
                host,
                [sys.executable, str(root / "tests" / script), *arguments],
                env={
                    **os.environ,
                    **settings,
                    "PYTHONPATH": f"{root}:{root / 'tests'}",
                    "PYCOLL_RANK": str(rank),
                    "PYCOLL_SIZE": str(len(host_of)),
                    "PYCOLL_ADDRESS": f"{hosts.address(0)}:29400",
                    "PYCOLL_SECRET": "ab" * 16,
                },
            )
            for rank, host in enumerate(host_of)
        ]
        assert [process.wait(timeout=200) for process in running] == [0] * len(host_of)
