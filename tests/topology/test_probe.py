"""What /sys says becomes a Node; what it does not say becomes None, never a crash."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pycoll.topology import Link, Node, Place, Topology, probe


def only(parts, name):
    return next(part for part in parts if part.name == name)


def test_sockets_cores_and_memory(two_sockets: Path) -> None:
    node = probe(two_sockets)
    assert [(s.name, s.cores, s.threads, s.nbytes) for s in node.sockets] == [
        ("socket0", 2, 4, 16 << 30),
        ("socket1", 2, 4, 16 << 30),
    ]
    bridge = next(link for link in node.links if link.kind == "bridge")
    assert {bridge.a, bridge.b} == {"socket0", "socket1"}


def test_network_interfaces(two_sockets: Path) -> None:
    node = probe(two_sockets)
    eth0, ib0, mlx5_1 = node.nics  # no loopback, no spare interface
    assert (eth0.name, eth0.kind, eth0.speed, eth0.up) == ("eth0", "ethernet", 25e9 / 8, True)
    assert (eth0.socket, eth0.pci, eth0.rdma) == ("socket0", "0000:01:00.0", None)
    assert (ib0.kind, ib0.speed, ib0.up, ib0.rdma) == ("infiniband", 50e9, False, "mlx5_0")
    assert (mlx5_1.kind, mlx5_1.speed, mlx5_1.up) == ("infiniband", 50e9, True)
    assert (mlx5_1.socket, mlx5_1.rdma) == ("socket1", "mlx5_1")


def test_devices_and_their_links(two_sockets: Path) -> None:
    node = probe(two_sockets)
    assert [(d.name, d.vendor, d.model, d.socket, d.pci) for d in node.devices] == [
        ("gpu0", "NVIDIA", "0x2330", "socket1", "0000:81:00.0"),
        ("gpu1", "NVIDIA", "0x2330", "socket1", "0000:82:00.0"),
    ]
    idle = only(node.pci, "0000:81:00.0")
    assert (idle.width, idle.max_width, idle.speed, idle.max_speed) == (16, 16, 2.5, 32.0)
    assert idle.bandwidth == pytest.approx(4e9)
    silent = only(node.pci, "0000:82:00.0")
    assert (silent.width, silent.speed, silent.bandwidth) == (None, None, None)
    assert silent.parent == "0000:80:01.0"


def test_only_what_leads_to_a_nic_or_device_is_kept_of_the_bus(two_sockets: Path) -> None:
    names = [f.name for f in probe(two_sockets).pci]
    assert names == sorted(names)
    assert "0000:00:02.0" not in names
    assert "0000:00:01.0" in names


def test_devices_share_the_link_above_their_bridge(two_sockets: Path) -> None:
    node = probe(two_sockets, name="host")
    t = Topology((node,), ranks=tuple(Place("host", at) for at in ("gpu0", "gpu1", "socket0")))
    assert [link.b for link in t.path(0, 1)] == ["host/0000:80:01.0", "host/gpu1"]
    first, second = t.path(0, 2), t.path(1, 2)
    assert set(first) & set(second) == set(first[1:])
    assert [link.b for link in first[1:]] == ["host/socket1", "host/socket0", "host/socket0"]
    assert first[1].bandwidth == pytest.approx(32e9 * 16 / 8 * 128 / 130)


def test_a_machine_without_sys(tmp_path: Path) -> None:
    node = probe(tmp_path / "nothing", name="bare")
    assert [(s.name, s.cores, s.threads) for s in node.sockets] == [("socket0", None, None)]
    assert (node.devices, node.nics, node.pci) == ((), (), ())


def test_a_kernel_without_numa(two_sockets: Path) -> None:
    shutil.rmtree(two_sockets / "sys/devices/system/node")
    (socket,) = probe(two_sockets).sockets
    assert (socket.cores, socket.threads) == (4, 8)


def test_firmware_that_does_not_name_the_socket(two_sockets: Path) -> None:
    for file in (two_sockets / "sys/devices").rglob("numa_node"):
        file.write_text("-1\n")
    node = probe(two_sockets)
    assert {nic.socket for nic in node.nics} == {None}
    Topology((node,))  # every link still ends somewhere


def test_any_file_may_be_missing(two_sockets: Path) -> None:
    files = sorted(p for p in (two_sockets / "sys").rglob("*") if p.is_file())
    for file in files:
        kept = file.read_bytes()
        file.unlink()
        Topology((probe(two_sockets),))
        file.write_bytes(kept)


@pytest.mark.parametrize("text", ["", "\n", "\xff\xfe", "nan", "-5", "0x", "9" * 400, "0-"])
def test_any_file_may_be_nonsense(two_sockets: Path, text: str) -> None:
    for file in (two_sockets / "sys").rglob("*"):
        if file.is_file():
            file.write_bytes(text.encode("latin-1"))
    Topology((probe(two_sockets),))


def test_a_link_that_leads_nowhere(two_sockets: Path) -> None:
    shutil.rmtree(two_sockets / "sys/devices/pci0000:80")
    node = probe(two_sockets)
    assert node.devices == ()
    Topology((node,))


def test_software_rdma_belongs_to_its_interface(two_sockets: Path) -> None:
    folder = two_sockets / "sys/class/infiniband/rxe0"
    folder.mkdir()
    (folder / "parent").write_text("eth0\n")
    assert only(probe(two_sockets).nics, "eth0").rdma == "rxe0"


def test_this_machine() -> None:
    node = probe()
    assert isinstance(node, Node)
    assert all(isinstance(link, Link) for link in node.links)
    assert node.sockets
    Topology((node,))


def test_infiniband_is_up_when_its_port_is_whatever_its_ip_interface_says(
    two_sockets: Path,
) -> None:
    port = two_sockets / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "state").write_text("4: ACTIVE\n")
    assert only(probe(two_sockets).nics, "ib0").up is True
    (port / "state").write_text("1: DOWN\n")
    assert only(probe(two_sockets).nics, "ib0").up is False
