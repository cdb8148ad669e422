"""Rails of one model that differ."""

from __future__ import annotations


def test_different_speeds(healthy):
    healthy.write("100 Gb/sec (2X HDR)", f"{healthy.port(1)}/rate")
    found = healthy.ill("alike", "warning")
    assert found.where == "mlx5_0 port 1, mlx5_1 port 1"
    assert found.got == "mlx5_0 port 1 200 Gb/s, mlx5_1 port 1 100 Gb/s"
    assert found.cure == "ethtool eth2; look at the cable and the switch's port of mlx5_1 port 1"


def test_different_speeds_of_infiniband(healthy):
    healthy.infiniband()
    healthy.write("100 Gb/sec (2X HDR)", f"{healthy.port(0)}/rate")
    assert healthy.ill("alike", "warning").cure.endswith("the switch's port of mlx5_0 port 1")


def test_different_mtus(healthy):
    healthy.write("4200", "sys/class/net/eth1/mtu")
    found = healthy.ill("alike", "warning")
    assert found.got == "mlx5_0 port 1 4200, mlx5_1 port 1 9000"
    assert found.cure == "ip link set dev eth1 mtu 9000"


def test_different_firmware(healthy):
    healthy.write("20.31.1014", "sys/class/infiniband/mlx5_1/fw_ver")
    found = healthy.ill("alike", "warning")
    assert found.got == "mlx5_0 port 1 20.39.3004, mlx5_1 port 1 20.31.1014"
    assert "mlxfwmanager" in found.cure


def test_cards_of_two_models_may_differ(healthy):
    healthy.write("100 Gb/sec (2X HDR)", f"{healthy.port(1)}/rate")
    healthy.write("0x1019", "sys/cards/1/device")
    assert healthy.examine("alike") == []
