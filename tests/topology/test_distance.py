"""How far GPUs and RDMA cards are, on made-up machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pycoll.sysfs import Sysfs
from pycoll.topology.distance import Distance, address, between, card, from_gpu

Make = Callable[[str], Path]  #: see conftest.py


class Machine:
    """Cards in slots: each row is an address and the folder of the bridge that it is below."""

    def __init__(self, made: Make, cards: dict[str, str], numa: dict[str, int] | None = None):
        rows = []
        for name, above in cards.items():
            folder = f"devices/{above}/{name}"
            rows += [f"{folder}/numa_node = {(numa or {}).get(name, -1)}"]
            rows += [f"bus/pci/devices/{name} -> {folder}"]
        self.made, self.root = made, made("\n".join(rows))
        self.sysfs = Sysfs(self.root)

    def nodes(self, **packages: int) -> None:
        """NUMA nodes, one processor each, and the package of each."""
        rows = []
        for name, package in packages.items():
            cpu = name.removeprefix("node")
            rows += [f"devices/system/node/{name}/cpulist = {cpu}"]
            rows += [f"devices/system/cpu/cpu{cpu}/topology/physical_package_id = {package}"]
        self.made("\n".join(rows))

    def rail(self, device: str, name: str) -> None:
        """An RDMA device of a card."""
        folder = (self.root / "sys/bus/pci/devices" / name).resolve().relative_to(self.root / "sys")
        rows = [f"{folder}/infiniband/{device}/node_type = 1"]
        rows += [f"{folder}/infiniband/{device}/device -> {folder}"]
        rows += [f"class/infiniband/{device} -> {folder}/infiniband/{device}"]
        self.made("\n".join(rows))

    def __call__(self, one: str, other: str) -> Distance:
        assert between(other, one, self.sysfs) == between(one, other, self.sysfs)
        return between(one, other, self.sysfs)


def test_a_server_with_switches(made: Make) -> None:
    """As in a DGX: a GPU and a card below each switch, two roots with switches at each socket."""
    gpus = {
        f"0000:{bus}5:00.0": f"pci0000:{bus}0/0000:{bus}0:01.0/0000:{bus}1:00.0/0000:{bus}2:01.0"
        for bus in "148c"
    }
    cards = {
        name.replace("5:00", "6:00"): above.replace("2:01", "2:02") for name, above in gpus.items()
    }
    numa = {name: int(name[5] in "8c") for name in (*gpus, *cards)}
    machine = Machine(made, gpus | cards, numa)
    machine.nodes(node0=0, node1=1)
    for name in gpus:
        assert machine(name, name.replace("5:00", "6:00")) is Distance.SWITCH
    assert machine("0000:15:00.0", "0000:46:00.0") is Distance.SOCKET
    assert machine("0000:15:00.0", "0000:86:00.0") is Distance.ACROSS
    assert machine("0000:c5:00.0", "0000:86:00.0") is Distance.SOCKET
    for number, name in enumerate(cards):
        machine.rail(f"mlx5_{number}", name)
    devices = [f"mlx5_{number}" for number in range(len(cards))]
    # As CUDA and as nvidia-smi have a bus id.
    for bus_id in ("0000:85:00.0", "00000000:85:00.0"):
        assert from_gpu(bus_id, devices, machine.sysfs) == [
            ("mlx5_2", Distance.SWITCH),
            ("mlx5_3", Distance.SOCKET),
            ("mlx5_0", Distance.ACROSS),
            ("mlx5_1", Distance.ACROSS),
        ]


def test_slots_of_one_root_without_a_switch(made: Make) -> None:
    cards = {
        "0000:41:00.0": "pci0000:40/0000:40:01.1",
        "0000:42:00.0": "pci0000:40/0000:40:03.1",
        "0000:42:00.1": "pci0000:40/0000:40:03.1",
    }
    machine = Machine(made, cards)
    machine.nodes(node0=0, node1=1)
    assert machine("0000:41:00.0", "0000:42:00.0") is Distance.ROOT
    assert machine("0000:42:00.1", "0000:42:00.0") is Distance.SWITCH  # one card


def test_a_socket_of_several_numa_nodes(made: Make) -> None:
    cards = {f"0000:{n}1:00.0": f"pci0000:{n}0/0000:{n}0:01.0" for n in (1, 2, 3)}
    numa = dict(zip(cards, (0, 1, 2), strict=True))
    machine = Machine(made, cards, numa)
    machine.nodes(node0=0, node1=0, node2=1)
    first, second, third = cards
    assert machine(first, second) is Distance.SOCKET
    assert machine(second, third) is Distance.ACROSS


def test_what_the_firmware_does_not_say(made: Make) -> None:
    cards = {f"0000:{n}1:00.0": f"pci0000:{n}0/0000:{n}0:01.0" for n in (1, 2)}
    machine = Machine(made, cards, {"0000:11:00.0": 1})
    machine.nodes(node0=0, node1=1)
    assert machine("0000:11:00.0", "0000:21:00.0") is Distance.UNKNOWN
    assert machine("0000:11:00.0", "0000:99:00.0") is Distance.UNKNOWN
    assert machine("0000:11:00.0", "nonsense") is Distance.UNKNOWN
    assert machine("", "../../etc") is Distance.UNKNOWN


def test_one_socket_says_it_all(made: Make) -> None:
    cards = {f"0000:{n}1:00.0": f"pci0000:{n}0/0000:{n}0:01.0" for n in (1, 2)}
    machine = Machine(made, cards)
    machine.nodes(node0=0)
    assert machine("0000:11:00.0", "0000:21:00.0") is Distance.SOCKET


def test_a_virtual_machine_with_domains_of_its_own(made: Make) -> None:
    """Each function has a bus of its own there, in a domain that may be larger than 16 bits."""
    cards = {"0001:00:00.0": "pci0001:00", "10000:00:00.0": "pci10000:00"}
    machine = Machine(made, cards, dict.fromkeys(cards, 0))
    machine.nodes(node0=0, node1=1)
    assert machine("0001:00:00.0", "10000:00:00.0") is Distance.SOCKET
    assert machine("00000001:00:00.0", "00010000:00:00.0") is Distance.SOCKET


def test_an_rdma_device_without_a_card(made: Make) -> None:
    machine = Machine(made, {"0000:11:00.0": "pci0000:10/0000:10:01.0"})
    machine.nodes(node0=0)
    machine.rail("mlx5_0", "0000:11:00.0")
    made(
        "devices/virtual/infiniband/rxe0/node_type = 1\n"
        "class/infiniband/rxe0 -> devices/virtual/infiniband/rxe0"
    )
    assert (card("rxe0", machine.sysfs), card("mlx5_0", machine.sysfs)) == ("", "0000:11:00.0")
    assert from_gpu("0000:11:00.0", ["rxe0", "mlx5_0"], machine.sysfs) == [
        ("mlx5_0", Distance.SWITCH),
        ("rxe0", Distance.UNKNOWN),
    ]


def test_the_machine_of_the_other_tests(two_sockets: Path) -> None:
    sysfs = Sysfs(two_sockets)
    assert between("0000:81:00.0", "0000:83:00.0", sysfs) is Distance.SWITCH
    assert between("0000:81:00.0", "0000:01:00.0", sysfs) is Distance.ACROSS


@pytest.mark.parametrize(
    ("bus_id", "wanted"),
    [
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00000000:3b:00.0\n", "0000:3b:00.0"),
        ("00010000:00:00.0", "10000:00:00.0"),
        ("3b:00.0", ""),
        ("", ""),
    ],
)
def test_bus_ids(bus_id: str, wanted: str) -> None:
    assert address(bus_id) == wanted
