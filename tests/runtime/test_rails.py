"""Which ports of RDMA devices a rank uses, of ports that are made up."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from pycoll import fabric
from pycoll.errors import UnavailableError
from pycoll.fabric import Rail, Rails
from pycoll.runtime.native import verbs
from pycoll.runtime.native.verbs import Port
from pycoll.runtime.net import rails
from pycoll.sysfs import RDMA, Sysfs
from pycoll.topology.distance import Distance

INFINIBAND, ETHERNET = 1, 2
PRIVATE = bytes(10) + b"\xff\xff" + socket.inet_aton("10.1.2.3")


def port(device: str, number: int = 1, **more: object) -> Port:
    """An active port of 100 Gb/s Ethernet with an address, but for what is given."""
    says = {
        "state": rails.ACTIVE,
        "link_layer": ETHERNET,
        "mtu": 4096,
        "max_mtu": 4096,
        "lid": 0,
        "speed": 100_000_000_000,
        "max_inline": 0,
        "max_queue_pairs": 1000,
        "gid_index": 3,
        "gid_type": 2,
        "gid": PRIVATE,
        "other_family": False,
        "numa_node": 0,
        "driver": "mlx5_core",
    }
    return Port(device, number, **(says | more))


def names(chosen: tuple[Rail, ...]) -> list[str]:
    return [str(rail) for rail in chosen]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Have these ports, or none because of what is missing; `devices` are what the kernel knows."""

    def have(*ports: Port, missing: str = "", devices: tuple[str, ...] = ()) -> None:
        for device in devices:
            (tmp_path / RDMA / device).mkdir(parents=True)
        monkeypatch.setattr(rails, "HOST", Sysfs(tmp_path))
        monkeypatch.setattr(verbs, "verbs_missing", lambda: missing)
        monkeypatch.setattr(verbs, "verbs_ports", lambda: list(ports))

    return have


def test_a_rank_has_as_many_rails_as_the_engine_serves() -> None:
    assert fabric.MAX_RAILS == verbs.MAX_RAILS


def test_those_at_the_own_memory_are_taken_if_there_are_any() -> None:
    ports = [port(f"mlx5_{i}", numa_node=i // 2) for i in range(4)]
    assert names(rails.choose(ports, 1)) == ["mlx5_2:1", "mlx5_3:1"]
    assert names(rails.choose(ports, 0)) == ["mlx5_0:1", "mlx5_1:1"]
    assert len(rails.choose(ports, 7)) == 4
    assert len(rails.choose(ports, -1)) == 4  # a rank that may run anywhere
    unknown = [port("rxe0", numa_node=-1), port("rxe1", numa_node=-1)]
    assert len(rails.choose(unknown, 0)) == len(rails.choose(unknown, -1)) == 2


def test_the_order_does_not_depend_on_that_in_which_they_are_found() -> None:
    ports = [port("mlx5_10"), port("mlx5_2", 2), port("mlx5_2", 1), port("bnxt_re0")]
    want = ["bnxt_re0:1", "mlx5_2:1", "mlx5_2:2", "mlx5_10:1"]
    assert names(rails.choose(ports, 0)) == names(rails.choose(ports[::-1], 0)) == want


def test_of_many_the_fastest_are_taken() -> None:
    slow = [port(f"a{i}", speed=25_000_000_000) for i in range(3)]
    fast = [port(f"b{i}", speed=400_000_000_000) for i in range(7)]
    assert names(rails.choose([*slow, *fast], 0)) == ["a0:1"] + [f"b{i}:1" for i in range(7)]


def test_one_link_layer_is_used_that_with_more_bandwidth() -> None:
    infiniband = [port(f"ib{i}", link_layer=INFINIBAND, numa_node=i) for i in range(2)]
    ethernet = [port("eth0", speed=150_000_000_000)]
    # Alike on all ranks of a host: what is near comes after.
    for memory in (0, 1):
        assert names(rails.choose([*ethernet, *infiniband], memory)) == [f"ib{memory}:1"]
    assert names(rails.choose([port("e", speed=0), port("f", speed=0), infiniband[0]], -1)) == [
        "ib0:1"
    ]
    alike = [port("e"), port("i", link_layer=INFINIBAND)]
    assert names(rails.choose(alike, -1)) == names(rails.choose(alike[::-1], -1)) == ["e:1"]


def test_ports_of_one_kind_of_address_are_used() -> None:
    local = bytes.fromhex("fe80") + bytes(14)
    ports = [port("a", gid=local), port("b"), port("c", gid_type=1)]
    kinds = [rails.kinds(one) for one in ports]
    assert kinds == [(f"Ethernet, {kind}",) for kind in ("RoCE v2 over IPv6", "RoCE v2 over IPv4",
                                                         "RoCE v1 over IPv4")]  # fmt: skip
    assert names(rails.choose([*ports, port("d")], -1)) == ["b:1", "d:1"]


def test_a_port_with_both_families_goes_with_ports_of_either(machine) -> None:
    local = bytes.fromhex("fd00") + bytes(14)
    both, four, six = port("a", other_family=True), port("b"), port("c", gid=local)
    over = "Ethernet, RoCE v2 over IPv"
    assert rails.kinds(both) == (f"{over}4", f"{over}6")
    assert rails.kinds(port("d", gid=local, other_family=True)) == (f"{over}6", f"{over}4")
    assert names(rails.choose([both, four], -1)) == ["a:1", "b:1"]
    assert names(rails.choose([both, six], -1)) == ["a:1", "c:1"]
    assert names(rails.choose([four, six], -1)) == ["b:1"]
    machine(both, four)
    found = rails.find(None, 0)
    assert found.kinds == (f"{over}4",)  # what all of them can
    assert found.layer == f"{over}4 and {over}4, or {over}6"


def test_a_port_with_nothing_but_a_link_local_address_is_the_last_resort() -> None:
    local = bytes.fromhex("fe80") + bytes(14)
    both, bare = port("a", other_family=True), port("b", gid=local)
    assert names(rails.choose([both, bare], -1)) == ["a:1"]  # with it, IPv6 would be the wider
    assert names(rails.choose([bare, port("c", gid=local)], -1)) == ["b:1", "c:1"]


def test_a_named_address_says_its_own_kind(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rails, "HOST", Sysfs(tmp_path))
    folder = tmp_path / RDMA / "mlx5_0" / "ports" / "1"
    for name, text in (
        ("gids/0", "fe80:0000:0000:0000:0000:00ff:fe00:0001"),
        ("gids/1", "0000:0000:0000:0000:0000:ffff:0a01:0203"),
        ("gids/2", "0000:0000:0000:0000:0000:0000:0000:0000"),
        ("gid_attrs/types/0", "RoCE v2"),
        ("gid_attrs/types/1", "IB/RoCE v1"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    nic = port("mlx5_0")
    assert rails.kinds(nic, 0) == ("Ethernet, RoCE v2 over IPv6",)
    assert rails.kinds(nic, 1) == ("Ethernet, RoCE v1 over IPv4",)
    assert rails.flaw(nic, 1) == ""
    for missing in (2, 7):
        assert rails.flaw(nic, missing).startswith(
            f"has no address with the number {missing} (GID)"
        )


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({}, ""),
        ({"state": 1}, "is down: plug in its cable, or ip link set its interface up"),
        ({"state": 2}, "waits for a subnet manager, which a switch runs, or a host: apt-get inst"),
        ({"state": 3}, "waits for the subnet manager"),
        ({"state": 5}, "has lost its link"),
        ({"state": 0}, "cannot be opened"),
        ({"state": 9}, "is in state 9"),
        ({"link_layer": 0}, "is neither InfiniBand nor Ethernet"),
        ({"gid_index": -1}, "has no address: ip addr add gives its interface one"),
        ({"gid_index": -1, "link_layer": INFINIBAND}, ""),
    ],
)
def test_what_keeps_a_port_from_use(machine, says: dict[str, int], why: str) -> None:
    there = port("mlx5_0", **says)
    machine(there)
    found = rails.find(None, 0)
    assert why in rails.flaw(there)
    assert bool(rails.flaw(there)) == bool(why)
    assert (found.rails == ()) == bool(why)
    assert found.lack == (f"mlx5_0:1 {rails.flaw(there)}" if why else "")
    assert found.device


def test_what_is_found_comes_with_its_speed_and_layer(machine) -> None:
    machine(port("mlx5_0"), port("mlx5_1", speed=1), port("mlx5_2", state=1))
    assert rails.find(None, 0) == (
        (Rail("mlx5_0", 1), Rail("mlx5_1", 1)),
        (100_000_000_000, 1),
        "Ethernet, RoCE v2 over IPv4",
        ("Ethernet, RoCE v2 over IPv4",),
        "",
        True,
        False,
        (),
        ("mlx5_2:1 is down: plug in its cable, or ip link set its interface up",),
    )


@pytest.fixture
def distances(monkeypatch: pytest.MonkeyPatch) -> dict[str, Distance]:
    """How far each device is from the GPU 0000:1a:00.0; what is not there, nobody knows."""
    known: dict[str, Distance] = {}

    def between(gpu: str, card: str) -> Distance:
        assert gpu == "0000:1a:00.0"
        return known.get(card, Distance.UNKNOWN)

    monkeypatch.setattr(rails, "card", lambda device: device)
    monkeypatch.setattr(rails, "between", between)
    return known


GPU = "0000:1a:00.0"


def test_data_of_a_gpu_goes_by_the_nearest_rails(distances) -> None:
    ports = [port(f"mlx5_{n}", numa_node=n % 2) for n in range(4)]
    distances |= {"mlx5_0": Distance.ROOT, "mlx5_1": Distance.SWITCH, "mlx5_3": Distance.SWITCH}
    assert names(rails.choose(ports, 0, GPU)) == ["mlx5_1:1", "mlx5_3:1"]
    del distances["mlx5_1"], distances["mlx5_3"]
    assert names(rails.choose(ports, 1, GPU)) == ["mlx5_0:1"]  # whatever is not known is far
    del distances["mlx5_0"]
    assert names(rails.choose(ports, 1, GPU)) == ["mlx5_1:1", "mlx5_3:1"]  # by the NUMA node


def test_it_is_said_why_a_port_is_no_rail(machine, distances) -> None:
    local = b"\xfe\x80" + bytes(14)
    ports = [port(f"mlx5_{n}", numa_node=n % 2) for n in range(2)]
    slow = port("ib0", link_layer=INFINIBAND, speed=1)
    machine(*ports, port("mlx5_9", state=1), port("bare", gid=local), slow)
    assert rails.find(None, 0).others == (
        "mlx5_1:1 is farther from the memory of this rank",
        "mlx5_9:1 is down: plug in its cable, or ip link set its interface up",
        "bare:1 has only a link-local address",
        "ib0:1 is InfiniBand, of which there is less bandwidth",
    )
    machine(*(port("a", n) for n in range(1, 10)))
    assert rails.find(None, 0).others == ("a:9 is one more than 8",)
    machine(*ports)
    assert rails.find(Rails.parse("mlx5_1"), 0).others == ("mlx5_0:1 is not named",)
    machine(port("mlx5_0"), port("mlx5_1"))
    distances |= {"mlx5_0": Distance.ROOT, "mlx5_1": Distance.SWITCH}
    assert rails.find(None, 0, GPU).others == ("mlx5_0:1 is farther from the GPU",)


def test_of_named_rails_the_farther_ones_are_told(machine, distances) -> None:
    machine(*(port(f"mlx5_{n}") for n in range(3)))
    distances |= {"mlx5_0": Distance.ACROSS, "mlx5_1": Distance.ROOT}
    named = Rails.parse("mlx5_0,mlx5_1,mlx5_2")
    assert rails.find(named, 0, GPU).far == (True, False, True)
    assert rails.find(named, 0).far == ()  # of the host's memory
    assert rails.find(Rails.parse("mlx5_1"), 0, GPU).far == ()
    assert rails.find(None, 0, GPU)[0] == (Rail("mlx5_1", 1),)


def test_soft_roce_is_told_from_adapters(machine) -> None:
    machine(port("mlx5_0"), port("rxe0", driver="rdma_rxe"))
    assert rails.find(None, 0).software
    assert not rails.find(Rails.parse("mlx5_0"), 0).software


def test_without_verbs_the_reason_is_passed_on(machine) -> None:
    machine(missing="libibverbs is not installed: apt-get install libibverbs1")
    found = rails.find(None, 0)
    assert found.lack == "libibverbs is not installed: apt-get install libibverbs1"
    assert not found.device


def test_a_device_that_only_the_kernel_sees_is_one(machine) -> None:
    machine(missing="no /dev/infiniband", devices=("mlx5_0",))
    assert rails.find(None, 0).device


def test_without_a_device_that_is_said(machine) -> None:
    machine()
    assert rails.find(None, 0) == ((), (), "", (), "there is no RDMA device", False, False, (), ())


def test_named_rails_are_taken_as_they_are_named(machine) -> None:
    machine(port("a"), port("b", 1), port("b", 2), port("b", 3, state=1), port("c", gid_index=-1))
    assert names(rails.find(Rails.parse("b,a"), 0).rails) == ["b:1", "b:2", "a:1"]
    assert names(rails.find(Rails.parse("b:2"), 0).rails) == ["b:2"]
    assert names(rails.find(Rails.parse("c:1:0,a:1"), 0).rails) == ["c:1:0", "a:1"]


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("x", "names x, which is not a port of an RDMA device here; there are a:1, b:1, c:1"),
        ("a:2", "names a:2, which is not a port of an RDMA device here; there are a:1, b:1, c:1"),
        ("a,b", "names b, but b:1 is down: plug in its cable"),
        ("c", "names c, but c:1 has no address"),
    ],
)
def test_a_named_rail_that_cannot_be_used(machine, named: str, why: str) -> None:
    machine(port("a"), port("b", state=1), port("c", gid_index=-1))
    with pytest.raises(UnavailableError, match=rf"^PYCOLL_RAILS {re.escape(why)}"):
        rails.find(Rails.parse(named), 0)


def test_named_rails_need_verbs(machine) -> None:
    machine(missing="libibverbs is not installed")
    with pytest.raises(UnavailableError, match=r"^PYCOLL_RAILS is a:1,b, but libibverbs is not in"):
        rails.find(Rails.parse("a:1,b"), 0)


def test_a_device_without_a_port_number_may_mean_too_many(machine) -> None:
    machine(*(port("a", n) for n in range(1, 10)))
    with pytest.raises(UnavailableError, match=r"^PYCOLL_RAILS names 9 ports \(a:1,.*at most 8$"):
        rails.find(Rails.parse("a"), 0)


def test_a_port_is_described() -> None:
    assert rails.describe(port("a")) == (
        "active, 100 Gb/s, Ethernet, RoCE v2 at 10.1.2.3 (GID 3), NUMA node 0, mlx5_core"
    )
    down = port("b", state=1, link_layer=INFINIBAND, speed=0, numa_node=-1, driver="")
    assert rails.describe(down) == ("not active, speed unknown, InfiniBand, NUMA node unknown")
    link_local = bytes.fromhex("fe80") + bytes(13) + b"\x01"
    assert "RoCE v1 at fe80::1 (GID 0)" in rails.describe(
        port("c", gid=link_local, gid_index=0, gid_type=1)
    )
