"""Hosts and NICs in the guest: what RDMA and TCP do between them, healthy and not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import probe
import pytest
from command import Command
from rack import Rack
from ranks import Ranks

HERE = Path(__file__).parent
SYSTEM_PYTHON = "/usr/bin/python3"  #: the one that has Debian's pyverbs


def without(*commands: str) -> pytest.MarkDecorator:
    """Skip a test where commands are missing."""
    missing = probe.tools(*commands)
    return pytest.mark.skipif(bool(missing), reason=missing)


def without_pyverbs() -> pytest.MarkDecorator:
    """Skip a test where Debian's pyverbs is missing."""
    found = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import pyverbs"], capture_output=True, check=False
    )
    return pytest.mark.skipif(
        bool(found.returncode), reason="no pyverbs: apt-get install python3-pyverbs"
    )


@without("ibv_devinfo")
def test_every_nic_is_active_on_every_host(rack: Rack) -> None:
    said = rack.guest.run([*rack.on(1), "ibv_devinfo", "-v"]).stdout
    for nic in range(rack.nics.count):
        info = said.split(f"hca_id:\t{rack.nics.device(nic)}\n")[1].split("hca_id:")[0]
        assert "PORT_ACTIVE" in info
        assert "active_mtu:\t\t4096" in info
        assert f"::ffff:{rack.nics.address(nic)}, RoCE v2" in info


def test_a_host_has_its_own_name_and_network(rack: Rack) -> None:
    for host in range(rack.count):
        script = "hostname; ls /sys/class/net; hostname -I"
        said = rack.guest.run([*rack.on(host), "sh", "-c", script]).stdout
        assert said.split()[:4] == [f"host{host}", "eth0", "lo", rack.address(host)]
    assert rack.guest.run(["hostname"]).stdout == "guest\n"


@without("ib_write_lat")
def test_rdma_between_two_hosts(rack: Rack) -> None:
    def test(host: int, *more: str) -> Command:
        argv = [
            "stdbuf",
            "-oL",
            "ib_write_lat",
            "-d",
            rack.nics.device(host),
            "-x",
            "1",
            "-n",
            "50",
        ]
        return rack.guest.start([*rack.on(host), *argv, *more])

    first = test(0)
    first.until("Waiting for client to connect")
    second = test(1, rack.address(0))
    assert second.wait() == 0, second.describe()
    assert first.wait() == 0, first.describe()
    assert "remote address" in second.stdout


class Pair:
    """pair.py in the guest."""

    def __init__(self, rack: Rack) -> None:
        argv = [SYSTEM_PYTHON, str(HERE / "pair.py")]
        self.command = rack.guest.start(argv, stdin=True)
        self.lines = 0

    def ask(self, what: str) -> str:
        """Have it do something and return the line it says."""
        self.command.send(f"{what}\n")
        self.lines += 1
        return self.command.line(self.lines - 1)


@without_pyverbs()
def test_faults_as_the_verbs_report_them(rack: Rack) -> None:
    nics, pair = rack.nics, Pair(rack)

    def works() -> None:
        assert pair.ask("connect") == "connected"
        assert pair.ask("write") == "ended SUCCESS SUCCESS"
        assert pair.ask("states") == "states ACTIVE RTS, ACTIVE RTS"

    works()
    nics.cut(0)
    assert pair.ask("write") == "ended RETRY_EXC_ERR WR_FLUSH_ERR"
    assert pair.ask("states") == "states 1 RTS, ACTIVE ERR"
    nics.mend(0)
    works()
    nics.shape(0, loss=1.0)
    assert pair.ask("write") == "ended RETRY_EXC_ERR WR_FLUSH_ERR"
    assert pair.ask("states") == "states ACTIVE RTS, ACTIVE ERR"
    nics.shape(0)
    works()
    nics.disable(1)
    assert pair.ask("write").startswith("ended LOC_QP_OP_ERR")
    nics.enable(1)
    works()
    nics.shape(1, delay=0.001, loss=0.02, duplicate=0.02, corrupt=0.02, reorder=0.02)
    assert pair.ask("write") == "ended SUCCESS SUCCESS"
    rack.heal()
    works()


@pytest.mark.parametrize("apart", [False, True])
def test_pycoll_between_hosts_by_tcp(rack: Rack, apart: bool) -> None:
    env = {"PYCOLL_TRANSPORT": "tcp"}
    argv = [sys.executable, str(HERE / "sum.py")]
    with Ranks(rack, argv, 3, hosts=2, env=env, apart=apart) as ranks:
        said = ranks.finish()
    # One kernel, and yet ranks in different networks do not map each other's memory.
    mapped = [(True, True, False), (True, True, False), (False, False, True)]
    hosts = (0, 0, int(apart))
    assert said == [f"by tcp, hosts {hosts}, mapped {rank}\n" for rank in mapped]


def test_a_cut_cable_of_a_host_is_noticed(rack: Rack) -> None:
    asking = ["bash", "-c", f"echo >/dev/tcp/{rack.address(0)}/1"]
    assert "refused" in rack.guest.run([*rack.on(1), *asking], check=False).stderr
    rack.cut(0)
    silence = rack.guest.run([*rack.on(1), "timeout", "2", *asking], check=False)
    assert silence.returncode
    assert "refused" not in silence.stderr


def test_too_few_hosts_or_nics_for_a_job(rack: Rack) -> None:
    with pytest.raises(
        ValueError, match="on 4 hosts with 3 NICs each; there are 4 hosts and 8 NICs"
    ):
        Ranks(rack, ["true"], 4, hosts=4, rails=3)
