"""Hosts as namespaces: what they share and what not, bent and cut wires, and no trace behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Hosts

ECHO = """
import socket, sys
with socket.create_server(("", 5000)) as listener:
    print("listening", flush=True)
    peer, _ = listener.accept()
    while data := peer.recv(65536):
        peer.sendall(data)
"""
#: Sends argv[2] bytes there and back, argv[3] times; prints the least seconds that took.
ASK = """
import socket, sys, time
data = bytes(range(256)) * (int(sys.argv[2]) // 256 + 1)
data, times = data[: int(sys.argv[2])], []
with socket.create_connection((sys.argv[1], 5000), 60) as peer:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(int(sys.argv[3])):
        start, came = time.monotonic(), b""
        peer.sendall(data)
        while len(came) < len(data):
            came += peer.recv(65536)
        assert came == data
        times.append(time.monotonic() - start)
print(min(times))
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(3) as hosts:
        yield hosts


@contextlib.contextmanager
def echo(hosts: Hosts) -> Iterator[None]:
    """Host 1 listens, and serves one connection."""
    with hosts.run(1, [sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        yield
        assert process.wait(60) == 0


def said(hosts: Hosts, host: int, *argv: str) -> str:
    process = hosts.run(host, argv, stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out


def there_and_back(hosts: Hosts, nbytes: int, times: int) -> float:
    """Seconds from host 0 to host 1 and back."""
    with echo(hosts):
        asked = (hosts.address(1), str(nbytes), str(times))
        return float(said(hosts, 0, sys.executable, "-c", ASK, *asked))


def test_a_host_has_its_own_name_network_processes_and_shared_memory(hosts: Hosts) -> None:
    names = [said(hosts, host, "hostname").strip() for host in range(3)]
    assert names == ["host0", "host1", "host2"]
    assert said(hosts, 0, "ls", "/sys/class/net").split() == ["eth0", "lo"]
    said(hosts, 0, "touch", "/dev/shm/mine")
    assert said(hosts, 1, "ls", "/dev/shm") == ""
    processes = said(hosts, 2, "sh", "-c", "echo /proc/[0-9]*").split()
    assert "/proc/1" in processes
    assert len(processes) < 10
    assert said(hosts, 0, "pwd").strip() == os.getcwd()


@pytest.mark.parametrize(
    ("bend", "least"),
    [
        ({"delay": 0.02}, 0.04),
        ({"loss": 0.05}, 0.0),
        ({"reorder": 0.3}, 0.0),
        ({"rate": 1e6}, 0.1),
        ({"delay": 0.001, "loss": 0.01, "reorder": 0.05}, 0.002),
        ({}, 0.0),
    ],
    ids=lambda value: "-".join(value) or "straight" if isinstance(value, dict) else "",
)
def test_a_bent_wire_keeps_what_tcp_promises(hosts: Hosts, bend: dict, least: float) -> None:
    hosts.shape(1, **bend)
    # A lower bound is what shape() promises; how long it takes beyond that is nobody's concern.
    assert there_and_back(hosts, 100_000, 3) >= least
    hosts.shape(1)


def test_a_cut_wire_carries_nothing_until_it_is_mended(hosts: Hosts) -> None:
    asking = f"import socket; socket.create_connection(('{hosts.address(1)}', 5000), 0.5)"
    with echo(hosts):
        hosts.cut(1)
        with hosts.run(0, [sys.executable, "-c", asking], stderr=subprocess.PIPE) as process:
            assert "TimeoutError" in process.communicate(timeout=60)[1]
        hosts.mend(1)
        said(hosts, 0, sys.executable, "-c", ASK, hosts.address(1), "1000", "2")


def test_a_program_ends_with_its_popen(hosts: Hosts) -> None:
    argv = ["sh", "-c", "echo $$ && exec cat"]
    with hosts.run(0, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = process.stdout.readline().strip()
        process.kill()
        process.stdout.read()  # ends when the last process that holds the other end has
    # A process that has ended but is not buried yet has no command any more.
    assert said(hosts, 0, "sh", "-c", f"cat /proc/{pid}/cmdline 2>&- || true") == ""


def test_nothing_is_left_when_the_process_that_made_them_is_killed() -> None:
    code = (
        "import sys; from hosts import Hosts\n"
        "with Hosts(2) as hosts:\n"
        "    hosts.shape(0)\n"
        "    for host in range(2): hosts.run(host, ['sh', '-c', 'echo up; exec cat'], stdin=-1)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["up\n"] * 2
        process.send_signal(signal.SIGKILL)
        assert process.stdout.read() == ""  # the programs on the hosts held it open
