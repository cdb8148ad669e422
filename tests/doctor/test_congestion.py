"""Lossless priorities, congestion marks, and the traffic class that both go by."""

from __future__ import annotations

from pycoll.fabric import Fabric

ECN = "sys/class/net/eth2/ecn"


def test_no_priority_is_lossless(healthy):
    found = healthy.examine("pfc", lossless=lambda interface: 0)
    assert [f.level for f in found] == ["warning", "warning"]
    assert found[1].where == "mlx5_1 port 1"
    assert "dcb pfc set dev eth2 prio-pfc 3:on" in found[1].cure
    assert "--pfc 0,0,0,1,0,0,0,0" in found[1].cure


def test_another_priority_is_lossless(healthy):
    found = healthy.ill("pfc", "warning", lossless=lambda name: 1 << (5 if name == "eth2" else 3))
    assert (found.wanted, found.cure) == ("priority 5", "PYCOLL_VERBS=tc=162")
    assert Fabric.parse("tc=162").tc >> 5 == 5


def test_a_driver_that_does_not_say(healthy):
    found = healthy.examine("pfc", lossless=lambda interface: None)
    assert [f.level for f in found] == ["not known", "not known"]
    assert "dcb pfc show dev eth1" in found[0].cure


def test_a_card_that_ignores_marks(healthy):
    healthy.write("0", f"{ECN}/roce_rp/enable/3")
    found = healthy.ill("ecn", "warning")
    assert found.got == f"0 in /{ECN}/roce_rp/enable/3"
    assert found.cure == f"echo 1 > /{ECN}/roce_rp/enable/3"
    healthy.write("0", f"{ECN}/roce_np/enable/3")
    assert healthy.ill("ecn", "warning").cure.count("echo 1") == 2


def test_a_driver_that_does_not_say_whether_it_answers_marks(healthy):
    healthy.remove(ECN)
    found = healthy.ill("ecn", "not known")
    assert "mlxconfig -d 0000:85:00.0 query" in found.cure


def test_packets_that_may_not_be_marked(healthy):
    found = healthy.examine("ecn", fabric=Fabric(tc=104))
    assert [f.cure for f in found] == ["PYCOLL_VERBS=tc=106"] * 2


def test_other_programs_use_another_class(healthy):
    healthy.write("162", "sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos")
    found = healthy.ill("mark", "warning")
    assert (found.where, found.got) == ("mlx5_0 port 1", "traffic class 106")
    assert found.wanted == "162, as in /sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos"
    assert found.cure == "PYCOLL_VERBS=tc=162"


def test_a_class_that_the_driver_gives_to_all(healthy):
    file = "sys/class/infiniband/mlx5_1/tc/1/traffic_class"
    healthy.write("Global tclass=96", file)
    found = healthy.ill("mark", "warning")
    assert found.wanted == f"96, as in /{file}"


def test_software_has_no_priorities(healthy):
    for i in range(2):
        healthy.remove(f"sys/class/infiniband/mlx5_{i}")
        healthy.write("4: ACTIVE", f"sys/devices/virtual/infiniband/rxe{i}/ports/1/state")
        healthy.write("Ethernet", f"sys/devices/virtual/infiniband/rxe{i}/ports/1/link_layer")
        healthy.link(f"sys/class/infiniband/rxe{i}", f"sys/devices/virtual/infiniband/rxe{i}")
    for check in ("pfc", "ecn", "mark"):
        assert healthy.examine(check, lossless=lambda interface: 0) == []
