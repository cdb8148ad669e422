"""Kernels that are too old, and for what."""

from __future__ import annotations

RELEASE = "proc/sys/kernel/osrelease"


def test_too_old_for_shared_memory(healthy):
    healthy.write("3.10.0-1160.el7.x86_64", RELEASE)
    found = healthy.ill("kernel", "problem")
    assert (found.got, found.wanted) == ("3.10", "3.17 or later")


def test_too_old_to_keep_registrations(healthy):
    healthy.write("5.17.0-30-amd64", RELEASE)
    found = healthy.ill("kernel", "warning")
    assert (found.got, found.wanted) == ("5.17", "5.18 or later")
    assert "reboot" in found.cure
    healthy.remove("sys/class/infiniband")
    assert healthy.examine("kernel") == []


def test_a_version_that_cannot_be_read(healthy):
    healthy.write("none", RELEASE)
    assert healthy.ill("kernel", "not known").cure == "uname -r"
