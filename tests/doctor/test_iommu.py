"""Cards behind an IOMMU that translates."""

from __future__ import annotations

import pytest

CARD = "sys/kernel/iommu_groups/5/type"


@pytest.mark.parametrize("kind", ["DMA", "DMA-FQ"])
def test_a_group_that_is_translated(healthy, kind):
    healthy.write(kind, CARD)
    found = healthy.ill("iommu", "warning")
    assert (found.where, found.got) == ("0000:85:00.0", f"group type {kind}")
    assert found.cure.startswith("iommu=pt in GRUB_CMDLINE_LINUX of /etc/default/grub")


def test_a_gpu_is_looked_at_too(healthy):
    healthy.write("DMA", "sys/kernel/iommu_groups/7/type")
    assert healthy.ill("iommu", "warning").where == "0000:83:00.0"


@pytest.mark.parametrize("word", ["intel_iommu=on", "amd_iommu=on", "iommu.passthrough=0"])
def test_older_kernels_are_judged_by_their_command_line(healthy, word):
    healthy.remove(CARD)
    assert healthy.examine("iommu") == []  # iommu=pt
    healthy.write(f"quiet {word}", "proc/cmdline")
    assert healthy.ill("iommu", "warning").got == word
    healthy.write("quiet", "proc/cmdline")
    assert "dmesg" in healthy.ill("iommu", "not known").cure


def test_without_an_iommu(healthy):
    healthy.write("DMA", CARD)
    healthy.remove("sys/cards/1/iommu_group")
    assert healthy.examine("iommu") == []
