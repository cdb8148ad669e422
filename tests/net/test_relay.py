"""Two hosts, something between them that changes pickles, and launchers that hand out no secret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import Hosts

SECONDS = 100  #: generous: reached only by a hang


def said(root: Path, evidence: Path, settings: list[dict[str, str]]) -> list[list[str]]:
    """Run a rank on each of two hosts under torchrun's variables; return the lines of each."""
    with Hosts(2) as hosts:
        running = [
            hosts.run(
                host,
                [sys.executable, str(root / "tests" / "net" / "relay_job.py"), str(evidence)],
                env={
                    **os.environ,
                    "PYTHONPATH": str(root),
                    "RANK": str(host),
                    "WORLD_SIZE": "2",
                    "MASTER_ADDR": hosts.address(0),
                    "MASTER_PORT": "29500",
                    **settings[host],
                },
                stdout=subprocess.PIPE,
            )
            for host in range(2)
        ]
        return [process.communicate(timeout=SECONDS)[0].splitlines() for process in running]


@pytest.mark.parametrize("secret", ["given", "the owner's"])
def test_a_pickle_that_was_replaced_on_its_way_does_not_run(root, tmp_path, secret):
    evidence, folder = tmp_path / "evidence", {"PYCOLL_CACHE": str(tmp_path / "home")}
    given = {"PYCOLL_SECRET": "5a" * 32} if secret == "given" else {}
    zero, one = said(root, evidence, [{**folder, **given}] * 2)
    assert one == [
        "sum 2.0",
        "TransportError broadcast_object(root 0): what came for rank 0's object is not what it "
        "sent: somebody between the ranks changed it; it was not loaded",
        "end",
    ]
    assert [line.partition(" rank 1 (")[0] for line in zero] == [
        "sum 2.0",
        "got True",
        "BrokenError",
        "end",
    ]
    assert "gave up: TransportError inside broadcast_object(root 0)" in zero[2]
    assert not evidence.exists()


def test_hosts_without_a_common_key_compute_and_send_no_objects(root, tmp_path):
    evidence = tmp_path / "evidence"
    homes = [{"PYCOLL_CACHE": str(tmp_path / name)} for name in ("home", "another")]
    zero, one = said(root, evidence, homes)
    refused = "UsageError broadcast_object: anybody who reaches rank 0 over the network could have"
    assert zero[0].startswith("warned torchrun hands out no secret, and some host lacks this one's")
    assert one[0].startswith("warned rank 1: what answered as rank 0 at ")
    for lines in (zero[1:], one[1:]):
        assert [lines[0], lines[1][: len(refused)], *lines[2:]] == ["sum 2.0", refused, "end"]
    assert not evidence.exists()
