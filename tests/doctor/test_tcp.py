"""The interface that TCP goes by."""

from __future__ import annotations


def slow(patient) -> None:
    """Let the default route go by the network of the management."""
    patient.edit("proc/net/route", "eth1\t00000000", "eth0\t00000000")


def test_a_faster_interface(healthy):
    slow(healthy)
    found = healthy.ill("tcp", "warning")
    assert (found.where, found.got, found.wanted) == ("eth0", "1 Gb/s", "eth1, 200 Gb/s")
    assert found.cure == "PYCOLL_IFACE=eth1"


def test_a_setting_is_left_alone(healthy):
    slow(healthy)
    assert healthy.examine("tcp", iface="eth0") == []
    assert healthy.all("tcp", iface="eth1")[0].where == "eth1"


def test_speeds_that_nobody_knows_are_not_compared(healthy):
    slow(healthy)
    healthy.write("-1", "sys/class/net/eth0/speed")
    assert healthy.examine("tcp") == []


def test_no_network(healthy):
    healthy.write("Iface\tDestination\nlo\t0000007F\t00000000\t0001", "proc/net/route")
    found = healthy.ill("tcp", "warning")
    assert found.got == "no IPv4 route but loopback's"
    assert "ip addr add" in found.cure


def test_a_route_that_is_down(healthy):
    healthy.write("Iface\tDestination\neth1\t00000000\t00000000\t0002", "proc/net/route")
    healthy.ill("tcp", "warning")


def test_routes_that_cannot_be_read(healthy):
    healthy.remove("proc/net/route")
    assert healthy.ill("tcp", "not known").cure == "ip route"
