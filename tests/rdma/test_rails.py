"""Rails on real verbs: what they say of the ports, and messages over them."""

from __future__ import annotations

from pathlib import Path

import compiled
import pytest
from rack import Rack

ROOT = Path(__file__).parents[2]


def driver(name: str) -> str:
    """Return a driver of rails, which the guest sees too."""
    parts = compiled.parts("plain", compiled.RAIL)
    return str(compiled.driver(ROOT / "tests" / "native" / f"{name}.c", "plain", parts))


def said(rack: Rack, *arguments: str, before: tuple[str, ...] = ()) -> str:
    return rack.guest.run([*before, driver("rails"), *arguments]).stdout.rstrip("\n")


def test_ports(rack: Rack) -> None:
    lines = said(rack, "ports").splitlines()
    assert len(lines) == rack.nics.count
    for nic, line in enumerate(lines):
        device, address = rack.nics.device(nic), rack.nics.address(nic)
        assert line.startswith(f"{device} port 1 state 4 link 2 mtu 4096/4096 speed 10000000000 ")
        assert line.endswith(f" gid 1 ::ffff:{address} type 2 numa -1 driver rdma_rxe")


def test_ports_from_a_host_without_their_interfaces(rack: Rack) -> None:
    there = said(rack, "ports", before=(*rack.on(1),))
    assert there == said(rack, "ports")


def test_a_rail_opens(rack: Rack) -> None:
    want = "mtu 4096 inline 256 message 8388608 speed 1250000000 active 1"
    assert said(rack, "open", "rxe0", "1", "-1", "0") == f"OK gid 1 {want}"
    assert said(rack, "open", "rxe0", "1", "0", "0") == f"OK gid 0 {want}"


def test_a_partition(rack: Rack) -> None:
    assert said(rack, "pkey", "rxe0", "ffff") == "OK pkey 0"
    assert said(rack, "pkey", "rxe0", "8001") == (
        "SYSTEM 2 rxe0 port 1 is in no partition 0x8001; its partition keys are 0xffff"
    )


@pytest.mark.parametrize(("first", "second"), [(0, 1), (2, 2)])
def test_messages_both_ways(rack: Rack, first: int, second: int) -> None:
    devices = rack.nics.device(first), rack.nics.device(second)
    done = rack.guest.run([driver("rail_messages"), *devices, "1000"])
    assert done.stdout == "1000 messages each way\n"


def test_messages_over_a_bad_cable(rack: Rack) -> None:
    rack.nics.shape(1, loss=0.01, duplicate=0.02, delay=0.0002, reorder=0.05)
    done = rack.guest.run([driver("rail_messages"), "rxe0", "rxe1", "200"])
    assert done.stdout == "200 messages each way\n"


def test_pairs_are_made_again_and_again(rack: Rack) -> None:
    assert said(rack, "renew", "rxe0", "rxe1", "40") == "40 pairs, PSNs vary"


def test_ends_that_do_not_fit(rack: Rack) -> None:
    text = "speaks RoCE v2 over IPv6, the peer's port RoCE v2 over IPv4"
    assert text in said(rack, "misfit", "rxe0", "0", "rxe1", "1")


def test_nobody_answers(rack: Rack) -> None:
    network = rack.nics.address(0).rpartition(".")[0]
    assert said(rack, "nobody", "rxe0", f"{network}.200").startswith(
        f"SYSTEM 110 rxe0 port 1: ibv_modify_qp to RTR: no way from ::ffff:{network}.1 to "
        f"::ffff:{network}.200: Connection timed out"
    )


def test_a_port_that_is_down(rack: Rack) -> None:
    rack.nics.disable(0)
    assert said(rack, "ports").startswith("rxe0 port 1 state 1 ")
    assert said(rack, "open", "rxe0", "1", "-1", "0").startswith(
        "SYSTEM 100 rxe0 port 1 is DOWN, not ACTIVE: "
    )


@pytest.mark.parametrize("kib", ["64", "1000"])
def test_too_little_memory_may_be_locked(rack: Rack, kib: str) -> None:
    assert said(rack, "locked", "rxe0", kib) == (
        "rxe0 port 1: ibv_reg_mr of 1048576 bytes: Cannot allocate memory: this process may lock "
        f"{kib} KiB of memory: ulimit -l unlimited (or memlock in limits.conf, "
        "LimitMEMLOCK=infinity, docker run --ulimit memlock=-1)"
    )


def test_enough_memory_may_be_locked(rack: Rack) -> None:
    assert said(rack, "locked", "rxe0", "4096") == "registered, 1024 KiB less"


def test_a_user_without_permission(rack: Rack) -> None:
    rack.guest.run(["sh", "-c", "chmod 600 /dev/infiniband/uverbs*"])
    try:
        before = ("setpriv", "--reuid", "65534", "--clear-groups", "--")
        text = said(rack, "open", "rxe0", "1", "-1", "0", before=before)
    finally:
        rack.guest.run(["sh", "-c", "chmod 666 /dev/infiniband/uverbs*"])
    assert text.startswith("SYSTEM 0 rxe")
    assert text.endswith(
        ": Permission denied: give this user read and write access to /dev/infiniband/uverbs*"
    )
