"""What a machine lacks is said with the line that mends it."""

from __future__ import annotations

from pathlib import Path

import kernel
import probe
import pytest

pytestmark = pytest.mark.pure


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that has everything; returns its busybox."""
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"\x7fELF")
    qemu = tmp_path / "qemu-system-x86_64"
    qemu.write_text("#!/bin/sh\necho virtio-9p-pci\n")
    qemu.chmod(0o755)
    found = {"busybox": str(busybox), "qemu-system-x86_64": str(qemu)}
    monkeypatch.setattr(kernel, "program", lambda name: found.get(name, "/bin/true"))
    monkeypatch.setattr(kernel, "ready", lambda: None)
    monkeypatch.setattr(probe, "FILES", {})
    return busybox


def lack() -> str:
    return probe.lack.__wrapped__()


def test_nothing_is_missing(complete: Path) -> None:
    assert lack() == ""


def test_missing_programs_are_named_with_their_packages(
    complete: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        kernel, "program", lambda name: None if name in {"rdma", "tc", "modprobe"} else name
    )
    assert lack() == (
        "no modprobe, rdma, tc: apt-get install --no-install-recommends kmod iproute2 "
        "(or make rdma-packages)"
    )
    assert probe.tools("ibv_devinfo", "rdma").startswith("no rdma: apt-get install")


def test_a_missing_library_is_named_with_its_package(
    complete: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "FILES", {"*/nowhere/libibverbs.so.1": "ibverbs-providers"})
    assert lack().startswith("no libibverbs.so.1: apt-get install --no-install-recommends ibverbs-")


def test_programs_that_will_not_do(complete: Path) -> None:
    complete.write_bytes(b"/lib64/ld-linux-x86-64.so.2")
    assert lack().endswith("want one that does not: apt-get install busybox-static")
    complete.write_bytes(b"")
    complete.with_name("qemu-system-x86_64").write_text("#!/bin/sh\n")
    assert lack() == (
        "qemu-system-x86_64 cannot share files by 9p: apt-get install qemu-system-x86"
    )


def test_no_kernel(complete: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise kernel.KernelError("no network")

    monkeypatch.setattr(kernel, "ready", fail)
    assert lack() == "no kernel for the guest: no network"


def test_every_package_that_is_named_is_among_those_installed() -> None:
    packages = set(probe.PACKAGES.read_text().split())
    assert packages >= {*probe.COMMANDS.values(), *probe.FILES.values(), *probe.EXTRA.values()}
