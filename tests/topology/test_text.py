"""The tree that people read."""

from __future__ import annotations

from pathlib import Path

from pycoll.topology import Topology, cluster, probe, tree


def test_the_probed_machine(two_sockets: Path) -> None:
    assert tree(Topology((probe(two_sockets, name="host"),))).splitlines() == [
        "node host",
        "  socket0: 2 cores, 4 threads, 16.0 GiB",
        "    eth0: ethernet, 25 Gb/s, up, PCI 0000:01:00.0: x8 at 8 GT/s of x16 at 16",
        "  socket1: 2 cores, 4 threads, 16.0 GiB",
        "    ib0: infiniband, 400 Gb/s, down, RDMA by mlx5_0, PCI 0000:83:00.0: x16 at 32 GT/s",
        "    mlx5_1: infiniband, 400 Gb/s, up, RDMA by mlx5_1, PCI 0000:83:00.1: x16 at 32 GT/s",
        "    gpu0: NVIDIA 0x2330, PCI 0000:81:00.0: x16 at 2.5 GT/s of x16 at 32",
        "    gpu1: NVIDIA 0x2330, PCI 0000:82:00.0",
        "  socket0 to socket1: bridge, 0.1575 us, 40 GB/s",
    ]


def test_a_bare_machine(tmp_path: Path) -> None:
    assert tree(Topology((probe(tmp_path, name="bare"),))).splitlines() == [
        "node bare",
        "  socket0: unknown cores",
    ]


def test_a_cluster_with_ranks() -> None:
    lines = tree(cluster(2, [2, 9], racks=2)).splitlines()
    assert lines[:3] == [
        "node node0 in rack0: 2 ranks",
        "  socket0: 9 cores, ranks 0, 1",
        "    nic0: ethernet, 25 Gb/s, up",
    ]
    assert lines[4] == "  socket0: 9 cores: 9 ranks"
    assert "switch core" in lines
    assert "link node0/nic0 to switch0: ethernet, 5 us, 3.125 GB/s" in lines


def test_parts_of_no_known_socket_are_shown(two_sockets: Path) -> None:
    for file in (two_sockets / "sys/devices").rglob("numa_node"):
        file.write_text("-1\n")
    assert "  eth0: ethernet" in tree(Topology((probe(two_sockets),)))
