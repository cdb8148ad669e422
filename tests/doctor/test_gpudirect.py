"""GPUDirect RDMA: each GPU with each card, and what is said where nothing was tried."""

from __future__ import annotations

import pytest
from patient import acs, config

from pycoll.doctor import Level, Registration
from pycoll.errors import TransportError

GPU = "sys/bus/pci/devices/0000:83:00.0"
PAIRS = ["0000:83:00.0 (GPU) and mlx5_0", "0000:83:00.0 (GPU) and mlx5_1"]
CLOSED = "the GPU's driver exports no dma-buf: install NVIDIA's open kernel modules"
UNLOADED = "nvidia_peermem is not loaded: modprobe nvidia_peermem"
ALL_IS_WELL = (
    "the same PCI switch; no ACS redirect; no IOMMU translation; BAR1 128 GiB; Linux 6.1; "
    "NVIDIA's driver 550.54.15, proprietary"
)


def registers(*found: str):
    return {"registers": lambda gpu, device: Registration(*found)}


def test_each_gpu_with_each_card(healthy):
    asked = []

    def registers(gpu: str, device: str) -> Registration:
        asked.append((gpu, device))
        return Registration("", UNLOADED, "by the driver")

    found = healthy.all("gpudirect", registers=registers)
    assert asked == [("0000:83:00.0", "mlx5_0"), ("0000:83:00.0", "mlx5_1")]
    assert [finding.where for finding in found] == PAIRS
    assert {finding.what for finding in found} == {
        f"a page of its memory was registered by dma-buf, not by nvidia_peermem ({UNLOADED}); "
        f"flush: by the driver; {ALL_IS_WELL}"
    }
    assert {finding.level for finding in found} == {Level.OK}


def test_by_either_way(healthy):
    found = healthy.all("gpudirect", **registers(CLOSED, "", "by an RDMA READ"))
    assert found[0].what.startswith("a page of its memory was registered by nvidia_peermem, not by")
    found = healthy.all("gpudirect", **registers("", "", "none"))
    assert found[0].what.startswith(
        "a page of its memory was registered by dma-buf and by nvidia_peermem; flush: none; "
    )


def test_by_no_way(healthy):
    found = healthy.examine("gpudirect", **registers(CLOSED, UNLOADED, "none"))
    assert [finding.where for finding in found] == PAIRS
    assert found[0].level is Level.WARNING
    assert found[0].got == (
        "dma-buf: the GPU's driver exports no dma-buf; nvidia_peermem: nvidia_peermem is not loaded"
    )
    assert found[0].cure == (
        "install NVIDIA's open kernel modules, or modprobe nvidia_peermem; see docs/gpudirect.md"
    )


def test_what_was_not_tried_is_not_known(healthy):
    found = healthy.examine("gpudirect", registers=None)
    assert {finding.level for finding in found} == {Level.UNKNOWN}
    assert found[0].what.startswith("nothing was registered (pycoll's engine is not there to try")

    def refuses(gpu: str, device: str) -> Registration:
        raise TransportError("libcuda.so.1 was not found: install NVIDIA's driver")

    found = healthy.examine("gpudirect", registers=refuses)
    assert {finding.level for finding in found} == {Level.UNKNOWN}
    assert found[0].what == f"nothing was registered (libcuda.so.1 was not found); {ALL_IS_WELL}"
    assert found[0].cure == "install NVIDIA's driver; see docs/gpudirect.md"


def test_what_lies_between_is_said(healthy):
    bridge = healthy.root / "sys/bus/pci/devices/0000:82:01.0/config"
    bridge.write_bytes(config(acs(0x001D)))
    healthy.write("DMA", "sys/kernel/iommu_groups/7/type")
    healthy.write(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build",
        "proc/driver/nvidia/version",
    )
    first, second = (finding.what for finding in healthy.all("gpudirect"))
    assert "ACS redirects; IOMMU translates; " in first
    assert "no ACS redirect; IOMMU translates; " in second
    assert first.endswith("NVIDIA's driver 570.86.10, open")
    bridge.write_bytes(bytes(64))  # all that who is not root may read
    healthy.remove(
        "sys/kernel/iommu_groups/7/type", "proc/driver/nvidia/version", f"{GPU}/resource"
    )
    healthy.remove("proc/cmdline", "proc/sys/kernel/osrelease")
    assert healthy.all("gpudirect")[0].what.endswith(
        "ACS not known; IOMMU not known; BAR1 not known; Linux not known; NVIDIA's driver not known"
    )


def test_other_gpus_are_not_tried(healthy):
    healthy.write("0x1002", f"{GPU}/vendor")
    healthy.write("0x120000", f"{GPU}/class")
    assert healthy.all("gpudirect") == healthy.all("bar1") == []


def rows(*sizes: int) -> str:
    ends = [f"{1 << 40:#018x} {(1 << 40) + n - 1:#018x} 0x000000000014220c" for n in sizes]
    return "\n".join(ends)


@pytest.mark.parametrize("size", [64 << 20, 256 << 20])
def test_a_small_window_onto_the_memory(healthy, size: int):
    healthy.write(rows(16 << 20, size, 32 << 20), f"{GPU}/resource")
    found = healthy.ill("bar1", "warning")
    assert found.got == f"BAR1 of {size >> 20} MiB"
    assert "Resizable BAR" in found.cure


def test_a_window_of_all_of_it(healthy):
    healthy.write(rows(16 << 20, 16 << 30), f"{GPU}/resource")
    assert [finding.what for finding in healthy.all("bar1")] == ["BAR1 of 16 GiB"]


def test_a_window_that_nothing_tells_of(healthy):
    healthy.remove(f"{GPU}/resource")
    assert healthy.ill("bar1", "not known").cure.startswith("nvidia-smi")
