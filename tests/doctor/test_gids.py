"""Addresses of RoCE ports."""

from __future__ import annotations


def types(patient, kind: str) -> None:
    for i in range(4):
        patient.write(kind, f"{patient.port(1)}/gid_attrs/types/{i}")


def test_no_gid_at_all(healthy):
    healthy.remove(f"{healthy.port(1)}/gids")
    found = healthy.ill("gids", "problem")
    assert (found.where, found.got) == ("mlx5_1 port 1", "no GID")
    assert found.cure.startswith("ip link set dev eth2 up && ip addr add ")


def test_only_the_first_version_of_roce(healthy):
    types(healthy, "IB/RoCE v1")
    found = healthy.ill("gids", "problem")
    assert (found.got, found.wanted) == ("IB/RoCE v1", "RoCE v2")
    assert "firmware" in found.cure


def test_no_ipv4_address(healthy):
    healthy.remove(f"{healthy.port(1)}/gids/2", f"{healthy.port(1)}/gids/3")
    found = healthy.ill("gids", "warning")
    assert found.got == "fe80::ff:fe00:1"
    assert found.cure.startswith("ip addr add 192.168.100.1/24 dev eth2")


def test_an_ipv6_address_will_do(healthy):
    healthy.write("2001:0db8:0000:0000:0000:0000:0000:0007", f"{healthy.port(1)}/gids/3")
    assert healthy.examine("gids") == []
    assert healthy.all("gids")[1].what == "RoCE v2 at 2001:db8::7, GID 3"


def test_the_address_is_named(healthy):
    assert healthy.all("gids")[1].what == "RoCE v2 at 10.0.0.2, GID 3"


def test_types_that_cannot_be_read(healthy):
    healthy.remove(f"{healthy.port(1)}/gid_attrs/types")
    assert healthy.ill("gids", "not known").cure == "ibv_devinfo -v -d mlx5_1 | grep GID"


def test_infiniband_needs_none_of_this(healthy):
    healthy.infiniband()
    healthy.remove(f"{healthy.port(1)}/gids")
    assert healthy.examine("gids") == []
