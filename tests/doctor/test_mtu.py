"""Sizes of packets, against the interface and against the other end of the link."""

from __future__ import annotations

import pytest

from pycoll.doctor import Attributes
from pycoll.doctor.mtu import fitting


def told(mtu: int, maximum: int = 4096) -> tuple[Attributes, ...]:
    return Attributes("mlx5_0", 1, 4096, 4096), Attributes("mlx5_1", 1, mtu, maximum)


@pytest.mark.parametrize(
    ("mtu", "software", "fits"),
    [
        (9000, False, 4096),
        (4192, False, 4096),
        (4191, False, 2048),
        (4176, True, 4096),
        (4175, True, 2048),
        (1500, False, 1024),
        (300, False, 0),
    ],
)
def test_what_fits_an_interface(mtu, software, fits):
    assert fitting(mtu, software) == fits


def test_no_jumbo_frames(healthy):
    healthy.write("1500", "sys/class/net/eth2/mtu")
    found = healthy.ill("mtu", "warning", attributes=told(1024))
    assert (found.where, found.got) == ("mlx5_1 port 1", "eth2 has MTU 1500, so RoCE has 1024")
    assert found.cure == "ip link set dev eth2 mtu 9000, on all hosts and switches"
    assert healthy.ill("mtu", "warning", attributes=None) == found  # /sys alone tells that


def test_packets_that_the_interface_drops(healthy):
    healthy.write("1500", "sys/class/net/eth2/mtu")
    found = healthy.ill("mtu", "problem", attributes=told(4096))
    assert (found.got, found.wanted) == ("RoCE MTU 4096 over 1500 bytes", "at most RoCE MTU 1024")


def test_packets_that_are_smaller_than_they_need_be(healthy):
    found = healthy.ill("mtu", "warning", attributes=told(1024))
    assert (found.got, found.wanted) == ("RoCE MTU 1024 over 9000 bytes", "RoCE MTU 4096")
    assert found.cure == "ip link set dev eth2 down && ip link set dev eth2 up"


def test_a_device_with_small_packets_is_no_fault(healthy):
    assert healthy.examine("mtu", attributes=told(2048, 2048)) == []


def test_a_device_that_could_not_be_opened(healthy):
    assert healthy.examine("mtu", attributes=told(0, 0)) == []


def test_an_interface_that_cannot_be_read(healthy):
    healthy.remove("sys/class/net/eth2/mtu")
    assert healthy.ill("mtu", "not known").cure == "ip link show eth2"


def test_the_subnet_manager_gave_less(healthy):
    healthy.infiniband()
    found = healthy.ill("mtu", "warning", attributes=told(2048))
    assert (found.got, found.wanted) == ("2048", "4096")
    assert "/etc/opensm/partitions.conf" in found.cure


def test_infiniband_that_nobody_could_ask(healthy):
    healthy.infiniband()
    assert [f.level for f in healthy.examine("mtu", attributes=None)] == ["not known"] * 2
