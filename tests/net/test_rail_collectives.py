"""Every collective over RDMA, by one rail and by several.

The ranks are in network namespaces, over the stand-in for libibverbs; some of them share memory.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fakeverbs_library
import pytest
from hosts import Hosts

SECONDS = 250.0  #: generous: reached only by a hang


@pytest.fixture(scope="module")
def library() -> Path:
    if reason := fakeverbs_library.lack():
        pytest.skip(reason)
    return fakeverbs_library.built()


@pytest.mark.parametrize(
    ("ranks", "rails"), [((1, 1), 1), ((1, 1, 1), 2), ((2, 2), 2), ((2, 2, 2, 2), 1)]
)
def test_all_checks_against_numpy(
    root: Path, library: Path, tmp_path: Path, ranks: tuple[int, ...], rails: int
) -> None:
    from fabric import Fabric

    host_of = [host for host, n in enumerate(ranks) for _ in range(n)]
    with Fabric(tmp_path / "fabric", library) as network, Hosts(len(ranks)) as hosts:
        running = [
            hosts.run(
                host,
                [sys.executable, str(root / "tests" / "collective_checks.py")],
                env={
                    **os.environ,
                    **network.environment(devices=rails, host=host, jitter=50, seed=rank),
                    "PYTHONPATH": f"{root}:{root / 'tests'}",
                    "PYCOLL_TRANSPORT": "verbs",
                    "PYCOLL_RANK": str(rank),
                    "PYCOLL_SIZE": str(len(host_of)),
                    "PYCOLL_ADDRESS": f"{hosts.address(0)}:29400",
                    "PYCOLL_SECRET": "ab" * 16,
                },
            )
            for rank, host in enumerate(host_of)
        ]
        assert [process.wait(timeout=SECONDS) for process in running] == [0] * len(host_of)
        assert network.total("rnr") == 0
        assert set(network.objects().values()) <= {0}
