"""Ports that carry no data, or less than their cable could."""

from __future__ import annotations

import pytest


def down(patient, number: int, state: str, physical: str) -> None:
    patient.write(state, f"{patient.port(number)}/state")
    patient.write(physical, f"{patient.port(number)}/phys_state")


@pytest.mark.parametrize(
    ("layer", "state", "physical", "what", "cure"),
    [
        ("Ethernet", "1: DOWN", "2: Polling", "hears nothing", "ethtool -m eth2"),
        ("Ethernet", "1: DOWN", "3: Disabled", "eth2 is down", "ip link set dev eth2 up"),
        ("InfiniBand", "1: DOWN", "2: Polling", "hears nothing", "iblinkinfo"),
        ("InfiniBand", "1: DOWN", "3: Disabled", "disabled", "ibportstate -D 0 1 enable"),
        ("InfiniBand", "2: INIT", "5: LinkUp", "no subnet manager", "install opensm"),
        ("InfiniBand", "3: ARMED", "5: LinkUp", "no subnet manager", "install opensm"),
    ],
)
def test_a_port_that_is_not_active(healthy, layer, state, physical, what, cure):
    healthy.write(layer, f"{healthy.port(1)}/link_layer")
    down(healthy, 1, state, physical)
    found = healthy.ill("state", "warning")
    assert (found.where, found.got) == ("mlx5_1 port 1", f"{state} ({physical})")
    assert found.wanted == "4: ACTIVE"
    assert what in found.what
    assert cure in found.cure


def test_no_port_is_active(healthy):
    for i in range(2):
        down(healthy, i, "1: DOWN", "2: Polling")
    assert [f.level for f in healthy.examine("state")] == ["problem", "problem"]


def test_software_rdma_is_down_with_its_interface(healthy):
    healthy.write("1: DOWN", "sys/devices/virtual/infiniband/rxe0/ports/1/state")
    healthy.write("Ethernet", "sys/devices/virtual/infiniband/rxe0/ports/1/link_layer")
    healthy.write("eth0", "sys/devices/virtual/infiniband/rxe0/parent")
    healthy.link("sys/class/infiniband/rxe0", "sys/devices/virtual/infiniband/rxe0")
    assert healthy.ill("state", "warning").cure == "ip link set dev eth0 up"


def test_a_state_that_cannot_be_read(healthy):
    healthy.remove(f"{healthy.port(1)}/state")
    assert healthy.ill("state", "not known").where == "mlx5_1 port 1"


def test_a_single_lane(healthy):
    healthy.infiniband()
    healthy.write("50 Gb/sec (1X HDR)", f"{healthy.port(1)}/rate")
    found = healthy.ill("lanes", "warning")
    assert (found.where, found.got) == ("mlx5_1 port 1", "50 Gb/sec (1X HDR)")
    assert "cable" in found.cure
