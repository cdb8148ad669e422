"""RDMA between hosts: by which ports, when it falls back to TCP, and who mends it meanwhile.

The hosts are network namespaces, and their RDMA devices those of the stand-in for libibverbs.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fakeverbs_library
import pytest
from hosts import Hosts

SECONDS = 60.0  #: generous: reached only by a hang
JOB = Path(__file__).with_name("rail_job.py")
REQUESTS = Path(__file__).with_name("requests_job.py")

#: Environment of a host's ranks; None: the host has no RDMA.
Settings = dict[str, str] | None


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as made:
        yield made


@pytest.fixture(scope="module")
def library() -> Path:
    if reason := fakeverbs_library.lack():
        pytest.skip(reason)
    return fakeverbs_library.built()


@pytest.fixture
def network(library: Path, tmp_path: Path) -> Iterator[Any]:
    """The devices of all hosts, and what lies between them."""
    from fabric import Fabric

    with Fabric(tmp_path / "fabric", library) as made:
        yield made


class Rank:
    """A rank that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hear(self) -> dict[str, Any]:
        """Return what it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait(SECONDS)}"
        said: dict[str, Any] = json.loads(line)
        return said

    def state(self) -> dict[str, Any]:
        """Ask for the state of its paths; it makes no call for that."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.hear()

    def until(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask until it says so."""
        deadline = time.monotonic() + SECONDS
        while not what(said := self.state()):
            assert time.monotonic() < deadline, said
        return said


def end(ranks: list[Rank]) -> list[int]:
    """Have them make a last call, and leave; return their exit codes."""
    for rank in ranks:
        assert rank.process.stdin is not None
        rank.process.stdin.close()
    return [rank.process.wait(SECONDS) for rank in ranks]


@pytest.fixture
def start(hosts: Hosts, network: Any, root: Path) -> Iterator[Callable[..., list[Rank]]]:
    """Start so many ranks on each of two hosts with these settings; on the second by `poor`."""
    with ExitStack() as stack:

        def run(
            first: Settings,
            second: Settings,
            each: int = 1,
            devices: int = 2,
            poor: Sequence[str] = (),
            script: Sequence[str | Path] = (JOB,),
        ) -> list[Rank]:
            job = {
                "PYTHONPATH": str(root),
                "PYTHONFAULTHANDLER": "1",
                "PYCOLL_SIZE": str(2 * each),
                "PYCOLL_ADDRESS": f"{hosts.address(0)}:29400",
                "PYCOLL_SECRET": secrets.token_hex(16),
            }
            ranks = []
            for number in range(2 * each):
                host = number // each
                env = os.environ | job | {"PYCOLL_RANK": str(number)}
                if (settings := (first, second)[host]) is not None:
                    env |= network.environment(host=host, devices=devices) | settings
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
                argv = [*(poor if host else ()), sys.executable, *map(str, script)]
                process = hosts.run(host, argv, env, **pipes)
                stack.enter_context(process)
                stack.callback(process.kill)
                ranks.append(Rank(process))
            return ranks

        yield run


def agreed(said: list[dict[str, Any]], name: str) -> Any:
    """Return what all ranks say alike."""
    first, *others = [one[name] for one in said]
    assert others == [first] * len(others)
    return first


def test_ranks_of_two_hosts_use_rdma_and_leave_nothing(start, network) -> None:
    ranks = start({}, {}, each=2)
    said = [rank.hear() for rank in ranks]
    assert agreed(said, "transport") == agreed(said, "group") == "verbs"
    assert agreed(said, "plan") == "shm+verbs"
    assert agreed(said, "heard") == []
    for rank in ranks:
        state = rank.until(lambda state: state["live"] == state["connections"])
        assert state["connections"] == 2 * 2  # remote peers, rails
        assert sum(state["bytes"]) > 0
    assert end(ranks) == [0] * 4
    assert set(network.objects().values()) == {0}
    assert network.total("unclosed") == 0


def test_a_host_without_rdma_makes_all_use_tcp_and_one_warning(start, network) -> None:
    ranks = start({}, None, each=2)
    said = [rank.hear() for rank in ranks]
    assert agreed(said, "transport") == agreed(said, "group") == "tcp"
    assert agreed(said, "plan") == "shm+tcp"
    assert set(network.objects().values()) == {0}  # what was opened has been let go
    (warning,) = said[0]["heard"]
    assert warning.startswith("ranks of other hosts are reached by TCP and not by RDMA: rank 2 (")
    assert "on host1): " in warning
    assert "(so on 1 ranks more)" in warning
    assert said[0]["where"] == [str(JOB)]
    assert [one["heard"] for one in said[1:]] == [[]] * 3
    assert end(ranks) == [0] * 4


def test_rdma_that_is_asked_for_is_missed_by_name(start) -> None:
    ranks = start({"PYCOLL_TRANSPORT": "verbs"}, None)
    said = [rank.hear() for rank in ranks]
    assert agreed(said, "error") == "UnavailableError"
    assert agreed(said, "text").startswith(
        "PYCOLL_TRANSPORT=verbs wants RDMA between hosts: rank 1 (process "
    )


def test_tcp_that_is_asked_for_opens_no_device(start, network) -> None:
    ranks = start({"PYCOLL_TRANSPORT": "tcp"}, {"PYCOLL_TRANSPORT": "verbs"})
    said = [rank.hear() for rank in ranks]
    assert agreed(said, "transport") == "tcp"
    assert agreed(said, "heard") == []
    assert network.opened() == []


def test_only_named_ports_carry_data(start, network) -> None:
    ranks = start({"PYCOLL_RAILS": "fake1"}, {"PYCOLL_RAILS": "fake0:1"})
    for rank in ranks:
        assert rank.hear()["transport"] == "verbs"
        assert rank.until(lambda state: state["live"] == 1)["connections"] == 1
    for device, carries in {"0/fake0": 0, "0/fake1": 1, "1/fake0": 1, "1/fake1": 0}.items():
        assert (network.counts(device)["tx_packets"] > 0) == carries


def test_a_named_port_that_is_missing_ends_every_rank(start) -> None:
    said = [rank.hear() for rank in start({}, {"PYCOLL_RAILS": "fake9"})]
    assert agreed(said, "error") == "UnavailableError"
    assert agreed(said, "text").endswith(
        "on host1): PYCOLL_RAILS names fake9, which is not a port of an RDMA device here; there "
        "are fake0:1, fake1:1"
    )


def test_what_rank_0_says_of_queue_pairs_holds_for_all(start) -> None:
    ranks = start({"PYCOLL_VERBS": "qps=3,mtu=1024"}, {"PYCOLL_VERBS": "qps=2"}, devices=1)
    for rank in ranks:
        rank.hear()
        assert rank.until(lambda state: state["live"] == state["connections"])["queue_pairs"] == 3
    assert end(ranks) == [0, 0]


def test_networks_of_two_kinds_are_not_mixed(start) -> None:
    said = [rank.hear() for rank in start({}, {"FAKEVERBS_LINK": "infiniband"})]
    assert agreed(said, "transport") == "tcp"
    assert (
        "its RDMA ports are InfiniBand and cannot reach those of rank 0, which are Ethernet"
        in (said[0]["heard"][0])
    )


def test_paths_are_mended_while_nobody_calls(start, network) -> None:
    ranks = start({}, {}, devices=1)
    before = []
    for rank in ranks:
        rank.hear()
        before.append(rank.until(lambda state: state["live"] == state["connections"] == 1))
    network.down("1/fake0")
    for rank, then in zip(ranks, before, strict=True):
        assert rank.until(lambda state: state["live"] == 0)["failures"] == then["failures"] + 1
    network.up("1/fake0")
    for rank, then in zip(ranks, before, strict=True):
        assert rank.until(lambda state: state["live"] == 1)["revivals"] == then["revivals"] + 1
    assert end(ranks) == [0, 0]


@pytest.mark.parametrize("link", ["ethernet", "infiniband"])
def test_a_path_is_made_anew_as_soon_as_its_port_has_another_address(start, network, link) -> None:
    settings = {"FAKEVERBS_LINK": link}
    ranks = start(settings, settings, devices=1)
    before = []
    for rank in ranks:
        rank.hear()
        before.append(rank.until(lambda state: state["live"] == state["connections"] == 1))
    network.move("1/fake0")  # nothing that is sent would fail, and nobody calls
    for rank, then in zip(ranks, before, strict=True):
        now = rank.until(lambda state, then=then: state["revivals"] > then["revivals"])
        assert now["failures"] == then["failures"] + 1
    assert end(ranks) == [0, 0]


def test_a_path_is_made_anew_once_its_port_is_in_its_partition_again(start, network) -> None:
    devices = ("fake0", "1/fake0")
    for device in devices:
        network.partition(device, 0x8001)
    settings = {"FAKEVERBS_LINK": "infiniband"}
    ranks = start(settings | {"PYCOLL_VERBS": "pkey=0x8001"}, settings, devices=1)
    before = []
    for rank in ranks:
        rank.hear()
        before.append(rank.until(lambda state: state["live"] == state["connections"] == 1))
    network.partition("1/fake0", 0)  # nobody calls
    for rank in ranks:
        rank.until(lambda state: state["live"] == 0)
    network.partition("1/fake0", 0x0001)  # as a limited member, which reaches full ones
    for rank, then in zip(ranks, before, strict=True):
        now = rank.until(lambda state: state["live"] == 1)
        assert now["failures"] == then["failures"] + 1
        assert now["revivals"] == then["revivals"] + 1
    assert end(ranks) == [0, 0]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"1/fake0": 0x8002}, "fake0 port 1 is in no partition 0x8001; its partition keys are "),
        ({"fake0": 0x0001, "1/fake0": 0x0001}, "has partition key 0x1, the peer's port 0x1: "),
    ],
)
def test_a_peer_in_no_common_partition_any_more_is_lost_by_that_name(
    start, network, keys: dict[str, int], says: str
) -> None:
    for device in ("fake0", "1/fake0"):
        network.partition(device, 0x8001)
    settings = {"FAKEVERBS_LINK": "infiniband", "PYCOLL_VERBS": "pkey=0x8001"}
    ranks = start(settings, settings, devices=1)
    for rank in ranks:
        rank.hear()
        rank.until(lambda state: state["live"] == state["connections"] == 1)
    for device, key in keys.items():
        network.partition(device, key)
    for rank in ranks:
        rank.until(lambda state: state["live"] == 0)
    end(ranks)  # a last call, for which both ports would have to be in it again
    said = [rank.hear() for rank in ranks]
    assert agreed(said, "error") == "PeerLostError"
    assert any(says in one["text"] for one in said), said


def test_a_port_is_asked_once_for_all_its_paths(start, network) -> None:
    ranks = start({"PYCOLL_VERBS": "qps=8"}, {}, devices=1)
    before = []
    for rank in ranks:
        rank.hear()
        before.append(rank.until(lambda state: state["live"] == state["connections"] == 8))
    wanted = network.counts("1/fake0")["queries"] + 2  # by each of its communicators
    network.partition("1/fake0", 0x8001)  # by which no path goes
    deadline = time.monotonic() + SECONDS
    while network.counts("1/fake0")["queries"] < wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    for rank, then in zip(ranks, before, strict=True):
        assert rank.state()["failures"] == then["failures"]
    assert end(ranks) == [0, 0]
    assert network.counts("1/fake0")["queries"] == wanted


def test_a_port_with_addresses_of_two_families_reaches_one_with_the_second(start) -> None:
    ranks = start({"FAKEVERBS_FAMILY": "both"}, {"FAKEVERBS_FAMILY": "6"})
    said = [rank.hear() for rank in ranks]
    assert agreed(said, "transport") == "verbs"
    assert agreed(said, "heard") == []
    for rank in ranks:
        rank.until(lambda state: state["live"] == state["connections"] == 2)
    assert end(ranks) == [0, 0]


def test_ports_with_addresses_of_different_families_are_not_mixed(start) -> None:
    said = [rank.hear() for rank in start({"FAKEVERBS_FAMILY": "4"}, {"FAKEVERBS_FAMILY": "6"})]
    assert agreed(said, "transport") == "tcp"
    assert (
        "are Ethernet, RoCE v2 over IPv6 and cannot reach those of rank 0" in (said[0]["heard"][0])
    )


def test_who_may_lock_too_little_memory_is_told_how_to_have_more(start) -> None:
    # 8 MiB: what systemd gives a user. It serves for queue pairs, and not for all slots.
    poor = ("setpriv", "--bounding-set=-ipc_lock", "prlimit", f"--memlock={8 << 20}")
    ranks = start({}, {}, poor=poor)
    said = [rank.hear() for rank in ranks]
    assert agreed(said, "transport") == "tcp"
    (warning,) = said[0]["heard"]
    assert "rank 1 (process " in warning
    assert "ulimit -l" in warning
    assert end(ranks) == [0, 0]


def test_memory_that_cannot_be_registered_later_is_told_on_every_rank(start) -> None:
    said = [rank.hear() for rank in start({}, {"FAKEVERBS_MEMLOCK": "4000000"})]
    assert agreed(said, "error") == "PeerLostError"
    assert "is lost to rank 1: its connection cannot be used here (" in agreed(said, "text")


def test_a_message_is_one_work_request_and_takes_the_credit_along(start) -> None:
    settings = {"PYCOLL_TRANSPORT": "verbs"}  # without it slots are as long as for one machine
    times = 10
    ranks = start(settings, settings, devices=1, script=[REQUESTS, str(times)])
    said = [rank.hear() for rank in ranks]
    lengths = ("8", "40", "64", "512", "4096", "65536", "262144")
    reduced = {f"reduce {n}": [times, 0] for n in lengths}
    (sent, _), (nothing, credits) = (one.pop("stream 8") for one in said)
    assert (sent, nothing) == (64, 0)
    assert credits <= 64 // 8  # for 16 of 32 lines at once; more where the other was ahead by all
    for one in said:
        assert {name: found for name, found in one.items() if name in reduced} == reduced
        # A transfer is cut into fragments of 32 KiB, and its credit waits for no message.
        sent = {name: found[0] / times for name, found in one.items() if name not in reduced}
        assert list(sent.values()) == [1, 1, 1, 1, 1, 2, 8], sent
    assert end(ranks) == [0, 0]
