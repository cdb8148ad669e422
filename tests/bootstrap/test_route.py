from __future__ import annotations

import socket

import pytest

from pycoll.bootstrap import route
from pycoll.bootstrap.base import Bootstrap
from pycoll.bootstrap.member import Member
from pycoll.errors import UsageError


def members(*spots: tuple[str, str]) -> list[Member]:
    return [Member(100 + i, 1, host, address) for i, (host, address) in enumerate(spots)]


def test_an_interface_or_an_address_of_this_machine():
    assert route.addresses()["lo"] == "127.0.0.1"
    for name, address in route.addresses().items():
        assert route.named(name) == route.named(address) == address


@pytest.mark.parametrize(
    "iface", ["eth99", "192.0.2.7", "2001:db8::7", "10.0.0", "1.2.3.4.5", "a b"]
)
def test_what_this_machine_has_not(iface):
    with pytest.raises(
        UsageError,
        match=rf"^PYCOLL_IFACE is '{iface}', which is neither an interface nor an address of "
        rf"{socket.gethostname()}; there are .*lo \(127\.0\.0\.1\)",
    ):
        route.named(iface)


@pytest.mark.parametrize(
    "spots",
    [
        [("a", ""), ("a", "127.0.0.1"), ("a", "127.0.0.1")],
        [("a", "192.0.2.1"), ("a", "192.0.2.1")],
        [("a", "")],
        [("a", "127.0.0.1"), ("b", "127.0.0.1")],  # what cannot be, but may be said
        [("a", "not an address"), ("b", "")],
    ],
)
def test_one_machine_needs_no_network(spots):
    assert route.found(members(*spots), 0) == "127.0.0.1"


def test_the_way_to_rank_0_or_to_whom_rank_0_saw(monkeypatch):
    monkeypatch.setattr(route, "_towards", lambda address: f"from {address}")
    # As a rank of another host sees it, as rank 0 does, and as a rank next to rank 0 does.
    assert route.found(members(("a", "10.0.0.1"), ("b", "10.0.0.2")), 1) == "from 10.0.0.1"
    assert route.found(members(("a", ""), ("a", "127.0.0.1"), ("b", "10.0.0.2")), 0) == (
        "from 10.0.0.2"
    )
    seen = members(("a", "127.0.0.1"), ("a", "127.0.0.1"), ("b", "10.0.0.2"))
    assert route.found(seen, 1) == "from 10.0.0.2"


def test_no_way_at_all(monkeypatch):
    monkeypatch.setattr(route, "_towards", lambda address: "")
    assert route.found(members(("a", "10.0.0.1"), ("b", "10.0.0.2")), 1) == "127.0.0.1"


def test_ranks_of_one_process_are_on_one_machine(stars, leave, no_leak):
    star, other = stars(2)
    assert [member.address for member in star.members] == ["", "127.0.0.1"]
    assert [member.address for member in other.members] == ["127.0.0.1", "127.0.0.1"]
    made = [Bootstrap("environment", s, 30.0) for s in (star, other)]
    assert made[1].address() == made[1].address("lo") == "127.0.0.1"
    leave(bootstrap.control for bootstrap in made)
