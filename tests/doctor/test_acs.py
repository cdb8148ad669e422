"""Bridges that send what GPU and card tell each other the long way round."""

from __future__ import annotations

import pytest
from patient import acs, config

UP, ROOT = "0000:82:01.0", "0000:81:00.0"


def space(patient, bridge: str, *capabilities: tuple[int, bytes]) -> None:
    (patient.root / "sys/bus/pci/devices" / bridge / "config").write_bytes(config(*capabilities))


@pytest.mark.parametrize(
    ("control", "name"),
    [(0x04, "ReqRedir"), (0x08, "CmpltRedir"), (0x10, "UpstreamFwd"), (0x20, "EgressCtrl")],
)
def test_a_bridge_that_redirects(healthy, control, name):
    space(healthy, UP, (0x0001, b""), (0x0003, b"\xff" * 8), acs(control | 1))
    found = healthy.ill("acs", "problem")
    assert (found.where, found.got) == (UP, f"ACS control {control | 1:#06x}: {name}")
    assert found.cure.startswith(f"setpci -s {UP} ECAP_ACS+0x6.w=0000")


def test_what_is_no_redirect(healthy):
    space(healthy, UP, acs(0x0043))  # source validation, translation blocking, direct translated
    assert healthy.examine("acs") == []


def test_bridges_above_both_do_not_matter(healthy):
    space(healthy, ROOT, acs(0x1F))
    assert healthy.examine("acs") == []


def test_without_the_capability(healthy):
    space(healthy, UP, (0x0001, b""))
    assert healthy.examine("acs") == []


def test_a_list_that_goes_in_circles(healthy):
    damaged = bytearray(config((0x0001, b"")))
    damaged[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    (healthy.root / "sys/bus/pci/devices" / UP / "config").write_bytes(damaged)
    assert healthy.examine("acs") == []


def test_what_only_root_may_read(healthy):
    (healthy.root / "sys/bus/pci/devices" / UP / "config").write_bytes(bytes(64))
    assert healthy.ill("acs", "not known").cure == f"sudo lspci -vvv -s {UP} | grep ACSCtl"
    healthy.remove(f"sys/bus/pci/devices/{UP}/config")
    assert healthy.ill("acs", "not known").where == UP
