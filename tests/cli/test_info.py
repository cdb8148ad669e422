"""``pycoll info`` tells what there is, what is missing and why."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import pycoll
from pycoll.algorithms import names
from pycoll.bootstrap import route
from pycoll.errors import UnavailableError
from pycoll.interop import pyverbs
from pycoll.schedule import COLLECTIVES

pytestmark = pytest.mark.own_process

WITHOUT_ENGINE = """
import sys
sys.modules["pycoll._native"] = None  # what an import of it finds
from pycoll.cli import main
sys.exit(main(["info"]))
"""


def test_info_works_without_the_engine_and_says_why(root):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"pycoll:       {pycoll.__version__}" in done.stdout
    engine = next(line for line in done.stdout.splitlines() if line.startswith("engine:"))
    assert "missing" in engine
    assert "install" in engine
    assert "shm             missing" in done.stdout
    assert "verbs           missing: it is part of the engine" in done.stdout
    assert "libfabric       missing: it is part of the engine" in done.stdout
    assert "tcp             missing: it is part of the engine" in done.stdout
    assert "  driver          missing: it is part of the engine" in done.stdout
    assert "PYCOLL_TIMEOUT" in done.stdout


def test_settings_come_with_their_origin(cli, monkeypatch):
    monkeypatch.setenv("PYCOLL_TIMEOUT", "12.5")
    lines = cli("info").out.splitlines()
    timeout = next(line for line in lines if "PYCOLL_TIMEOUT" in line)
    algorithm = next(line for line in lines if "PYCOLL_ALGORITHM" in line)
    assert timeout.split()[1:3] == ["12.5", "environment"]
    assert "default" in algorithm


def test_a_setting_that_cannot_be_is_one_line_and_code_2(cli, monkeypatch):
    monkeypatch.setenv("PYCOLL_TIMEOUT", "soon")
    done = cli("info")
    assert done.code == 2
    assert done.err.startswith("pycoll info: PYCOLL_TIMEOUT is 'soon', want seconds")
    assert done.err.count("\n") == 1


@pytest.mark.native
def test_info_names_the_engine_and_the_machine(cli):
    done = cli("info")
    assert done.code == 0
    assert "engine:       version" in done.out
    assert "CPU features:" in done.out
    assert f"{len(os.sched_getaffinity(0))} cores" in done.out
    assert "engine:       missing" not in done.out
    assert "shm             ranks of one host" in done.out


def test_info_lists_the_algorithms_of_every_collective(cli):
    lines = [line.split() for line in cli("info").out.splitlines()]
    for collective in COLLECTIVES:
        listed = next(line[1:] for line in lines if line[:1] == [collective])
        assert [name.rstrip(",") for name in listed] == list(names(collective))


@pytest.mark.native
def test_info_says_by_which_network_other_hosts_are_reached(cli, monkeypatch):
    monkeypatch.setattr(route, "addresses", lambda: {"lo": "127.0.0.1", "ib0": "10.1.2.3"})
    assert "tcp             ranks of several hosts, by ib0 (10.1.2.3)" in cli("info").out
    monkeypatch.setattr(route, "addresses", lambda: {"lo": "127.0.0.1"})
    assert "tcp             missing: no interface but loopback" in cli("info").out
    monkeypatch.setenv("PYCOLL_IFACE", "nosuch0")
    assert "tcp             missing: PYCOLL_IFACE is 'nosuch0'" in cli("info").out
    monkeypatch.setenv("PYCOLL_IFACE", "lo")
    assert "tcp             ranks of several hosts, at 127.0.0.1 (PYCOLL_IFACE)" in cli("info").out


@pytest.mark.native
def test_info_says_by_which_ports_rdma_goes(cli, monkeypatch):
    from pycoll.runtime.native import verbs
    from pycoll.runtime.native.verbs import Port
    from pycoll.runtime.net import rails

    def port(device: str, state: int) -> Port:
        more = (1, 4096, 4096, 7, 400_000_000_000, 0, 1000, 0, 0, bytes(16), False, -1, "mlx5_core")
        return Port(device, 1, state, *more)

    monkeypatch.setattr(verbs, "verbs_missing", lambda: "no libibverbs: apt-get install it")
    assert "  verbs           missing: no libibverbs: apt-get install it\n" in cli("info").out
    monkeypatch.setattr(verbs, "verbs_missing", lambda: "")
    monkeypatch.setattr(verbs, "verbs_ports", lambda: [port("mlx5_0", 4), port("mlx5_1", 1)])
    lines = cli("info").out.splitlines()
    at = lines.index("  verbs           ranks of several hosts, by mlx5_0:1")
    more = "400 Gb/s, InfiniBand, NUMA node unknown, mlx5_core"
    assert lines[at + 1 : at + 3] == [
        f"{'':18}mlx5_0:1: active, {more}",
        f"{'':18}mlx5_1:1: not active, {more}",
    ]
    monkeypatch.setenv("PYCOLL_RAILS", "mlx5_1")
    assert (
        "  verbs           missing: PYCOLL_RAILS names mlx5_1, but mlx5_1:1 is" in cli("info").out
    )
    monkeypatch.setenv("PYCOLL_RAILS", "mlx5_0")
    monkeypatch.setenv("PYCOLL_TRANSPORT", "tcp")
    assert "by mlx5_0:1; not used, as PYCOLL_TRANSPORT is tcp\n" in cli("info").out
    monkeypatch.delenv("PYCOLL_RAILS")
    monkeypatch.setattr(verbs, "verbs_ports", list)
    monkeypatch.setattr(rails, "seen", lambda: False)
    assert "  verbs           missing: there is no RDMA device" in cli("info").out


def test_the_provider_of_libfabric_is_told_or_what_is_missing(cli, monkeypatch):
    from pycoll.errors import TransportError
    from pycoll.runtime.native import libfabric
    from pycoll.runtime.native.libfabric import Provider

    def find(provider="", node="", nic=0):
        if provider == "cxi":
            raise TransportError("no endpoint of provider cxi: fi_info lists what there is")
        fast = provider != "tcp"
        return Provider(provider or "efa", "x", "/opt/libfabric.so.1", "1.22", "122.0", fast, 0)

    monkeypatch.setattr(libfabric, "fabric_missing", lambda: "no libfabric: apt-get install it")
    assert "  libfabric       missing: no libfabric: apt-get install it\n" in cli("info").out
    monkeypatch.setattr(libfabric, "fabric_missing", lambda: "")
    monkeypatch.setattr(libfabric, "fabric_find", find)
    what = "122.0 of libfabric 1.22 (/opt/libfabric.so.1)"
    assert f"  libfabric       efa {what}\n" in cli("info").out
    monkeypatch.setenv("PYCOLL_FABRIC", "tcp")
    assert f"missing: the best provider is tcp {what}, which is for no RDMA" in cli("info").out
    monkeypatch.setenv("PYCOLL_TRANSPORT", "libfabric")
    assert (
        "  libfabric       ranks of several hosts, by tcp 122.0 (libfabric 1.22, /opt/"
        in cli("info").out
    )
    monkeypatch.setenv("PYCOLL_FABRIC", "cxi")
    assert "  libfabric       missing: no endpoint of provider cxi" in cli("info").out


def gpus(out: str) -> list[str]:
    lines = out.splitlines()
    at = lines.index("GPUs:")
    return lines[at + 1 : lines.index("algorithms:")]


@pytest.mark.native
def test_info_says_what_is_missing_for_gpus(cli, monkeypatch):
    from pycoll.runtime.cuda import compile
    from pycoll.runtime.native import cuda as bindings_cuda

    monkeypatch.setattr(bindings_cuda, "missing", lambda: "libcuda.so.1 was not found: install it")
    monkeypatch.setattr(bindings_cuda, "devices", lambda: 0)
    monkeypatch.setattr(compile, "missing", lambda: "cupy is not installed: pip install it")
    assert gpus(cli("info").out) == [
        "  driver          missing: libcuda.so.1 was not found: install it",
        "  compiler        missing: cupy is not installed: pip install it",
        "  arrays          cupy, torch, the CUDA array interface, DLPack",
    ]


@pytest.mark.fake_cuda(devices=2)
def test_info_lists_gpus(cli, monkeypatch):
    from pycoll.runtime.cuda import compile

    monkeypatch.setattr(compile, "missing", lambda: "")
    monkeypatch.setattr(compile, "version", lambda: (12, 9))
    driver, first, to_hosts, second, _, compiler, _ = gpus(cli("info").out)
    assert driver.startswith("  driver          for CUDA 1")
    assert first.startswith("  cuda:0          Stand-in GPU at 0000:")
    assert "GiB" in first
    assert "compute capability 9.0, GPUDirect RDMA: yes, NVLink SHARP: no" in first
    assert to_hosts.startswith(f"{'':18}data for other hosts is staged in the host's memory: ")
    assert second.startswith("  cuda:1          Stand-in GPU at 0000:")
    assert compiler == "  compiler        NVRTC 12.9"


def test_rdma_devices_in_full(cli, monkeypatch):
    gid = pyverbs.Gid(1, "10.0.0.1", "RoCE v2")
    port = pyverbs.Port(1, "active", "Ethernet", 1024, 4096, 1 << 23, (gid,))
    device = pyverbs.Device(
        "rxe0", "1.2", 0xFFFFFF, 7, 11, 12, 13, 14, 15, 16, 2, "none", False, (port,)
    )
    monkeypatch.setattr(pyverbs, "devices", lambda: (device,))
    out = cli("info", "--verbose").out
    assert "  rxe0: firmware 1.2, vendor 0xffffff, part 7, 2 completion vectors\n" in out
    assert "at most 11 queue pairs of 12 requests and 15 reads, 13 regions of 14 bytes" in out
    assert "port 1: active, Ethernet, MTU 1024 of 4096, messages of 8388608 bytes" in out
    assert "GIDs 1 10.0.0.1 (RoCE v2)" in out
    assert "RDMA devices" not in cli("info").out


def test_what_keeps_from_rdma_devices_in_full(cli, monkeypatch):
    def devices():
        raise UnavailableError("pyverbs cannot be imported; apt-get install python3-pyverbs")

    monkeypatch.setattr(pyverbs, "devices", devices)
    assert "  missing: pyverbs cannot be imported; apt-get" in cli("info", "--verbose").out
    monkeypatch.setattr(pyverbs, "devices", lambda: ())
    assert "RDMA devices:\n  none\n" in cli("info", "--verbose").out
