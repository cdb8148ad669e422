"""What stands in /sys and /proc, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycoll.sysfs import HOST, Sysfs, boot_id, cpu_model, natural


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    (tmp_path / "meminfo").write_text("MemTotal:  16 kB\nMemFree: much kB\nSwapFree:0 kB\n")
    (tmp_path / "node").write_text("Node 0 MemTotal:       24 kB\nNode 0 MemFree:  8 kB\n")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A: processor \nflags\t:\n\n")
    (tmp_path / "bytes").write_bytes(b"\xff" * 5000)
    return Sysfs(tmp_path)


def test_fields_are_found_by_their_whole_name(sysfs: Sysfs) -> None:
    assert sysfs.field("cpuinfo", "model name") == "A: processor"
    assert sysfs.field("cpuinfo", "model") is None
    assert sysfs.field("cpuinfo", "flags") is None
    assert sysfs.field("missing", "flags") is None
    assert sysfs.field("bytes", "flags") is None


def test_bytes_are_read_where_they_are_told(sysfs: Sysfs) -> None:
    assert sysfs.nbytes("meminfo", "MemTotal") == 16 << 10
    assert sysfs.nbytes("meminfo", "SwapFree") == 0
    assert sysfs.nbytes("meminfo", "MemFree") is None
    assert sysfs.nbytes("node", "MemTotal") == 24 << 10  # the kernel names the node in each line
    assert sysfs.nbytes("missing", "MemTotal") is None


def test_a_text_may_be_cut(sysfs: Sysfs) -> None:
    assert len(sysfs.text("bytes", 10) or "") == 10


def test_this_machine_says_what_it_is() -> None:
    assert boot_id() == HOST.text("proc/sys/kernel/random/boot_id")
    assert cpu_model() == cpu_model()
    assert HOST.nbytes("proc/meminfo", "MemTotal")


def test_names_with_numbers_are_sorted_as_people_do() -> None:
    assert sorted(["eth10", "eth2", "bond"], key=natural) == ["bond", "eth2", "eth10"]
