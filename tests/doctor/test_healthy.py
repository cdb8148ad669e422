"""On a machine where all is well there is nothing to say; on one that says nothing, no guess."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pycoll.doctor import CHECKS, Level, Machine, examine


def test_a_healthy_machine_has_no_finding(healthy):
    assert healthy.examine() == []


def test_every_check_says_something(healthy):
    silent = {"lanes", "libfabric"}  # for InfiniBand; for what is neither that nor RoCE
    assert {finding.check for finding in healthy.all()} == {c.name for c in CHECKS} - silent
    healthy.infiniband()
    assert {finding.check for finding in healthy.all("lanes")} == {"lanes"}


def test_a_healthy_infiniband_machine_has_no_finding(healthy):
    healthy.infiniband()
    assert healthy.examine() == []


def test_a_machine_without_rdma_has_no_finding(healthy):
    healthy.remove("sys/class/infiniband", "sys/class/infiniband_verbs", "dev/infiniband")
    for card in ("0000:84:00.0", "0000:85:00.0"):
        healthy.remove(f"sys/bus/pci/devices/{card}")
    assert healthy.examine(attributes=(), missing="no device") == []


def test_a_machine_that_says_nothing_has_no_problem(tmp_path):
    found = list(examine(Machine(tmp_path)))
    assert {finding.level for finding in found} <= {Level.OK, Level.UNKNOWN}
    assert {finding.check for finding in found if finding.level is Level.UNKNOWN} == {
        "kernel",
        "space",
        "files",
        "tcp",
    }


def test_this_machine_can_be_examined():
    assert {"kernel", "driver", "tcp"} <= {finding.check for finding in examine(Machine())}


def test_any_file_may_be_missing(healthy):
    for file in sorted(p for p in healthy.root.rglob("*") if p.is_file()):
        kept = file.read_bytes()
        file.unlink()
        healthy.all()
        file.write_bytes(kept)


@pytest.mark.parametrize(
    "text",
    ["", "\n", "\xff\xfe", "nan", "-5", "0x", "9" * 400, "0-", ": : :", "a=b c hca_object=x"],
)
def test_any_file_may_be_nonsense(healthy, text):
    for file in healthy.root.rglob("*"):
        if file.is_file():
            file.write_bytes(text.encode("latin-1"))
    healthy.all()


def test_every_check_is_in_the_documentation(root: Path):
    text = (root / "docs" / "doctor.md").read_text()
    assert [*re.findall(r"^\| `(\w+)` \|", text, re.M)] == [*(c.name for c in CHECKS), "bandwidth"]
