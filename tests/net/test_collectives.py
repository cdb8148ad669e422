"""Every collective between hosts: some ranks share memory, the others are reached by sockets."""

from __future__ import annotations

import os
import sys

import pytest
from hosts import Hosts


@pytest.mark.parametrize("ranks", [(1, 1), (2, 1), (2, 2, 1)])
def test_all_checks_against_numpy(root, ranks: tuple[int, ...]) -> None:
    host_of = [host for host, n in enumerate(ranks) for _ in range(n)]
    with Hosts(len(ranks)) as hosts:
        running = [
            hosts.run(
                host,
                [sys.executable, str(root / "tests" / "collective_checks.py")],
                env={
                    **os.environ,
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
