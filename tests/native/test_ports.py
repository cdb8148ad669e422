"""What is said of RDMA devices, and how a rail is opened, on machines that have none.

A stand-in for libibverbs.so.1, compiled here, has the devices that a test wants.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import compiled
import fakeverbs_library
import pytest

HERE = Path(__file__).parent
INSTALL = "apt-get install libibverbs1 ibverbs-providers (or dnf install libibverbs)"
ASK = """
from pycoll._native import ffi, lib
print(ffi.string(lib.pc_verbs_missing()).decode())
print(lib.pc_verbs_ports(ffi.NULL, 0))
"""


@pytest.fixture(scope="module")
def headers() -> None:
    """Skip without the headers, as the module is then built without RDMA."""
    if reason := fakeverbs_library.lack():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def standin(headers: None) -> Path:
    """A folder whose libibverbs.so.1 is the stand-in."""
    return library(HERE / "ports_standin.c")


def library(source: Path) -> Path:
    """Return a folder whose libibverbs.so.1 is made of a source."""
    unit = compiled.Unit(source, (*compiled.C, "-Wall", "-fPIC"))
    return compiled.linked("libibverbs.so.1", [unit], "-shared").parent


@pytest.fixture(scope="module")
def rails(standin: Path) -> Callable[..., str]:
    """Run the driver over the stand-in, under the sanitizers where the compiler has them."""
    sanitizer = "plain" if compiled.lack("asan") else "asan"
    parts = compiled.parts(sanitizer, compiled.RAIL)
    driver = compiled.driver(HERE / "rails.c", sanitizer, parts)

    def run(*arguments: str, devices: str = "rxe0 0 1 2", **settings: str) -> str:
        env = {"LD_LIBRARY_PATH": str(standin), "STANDIN_DEVICES": devices, **settings}
        done = subprocess.run(
            [driver, *arguments], env=env, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.rstrip("\n")

    return run


def asked(folder: Path, **settings: str) -> list[str]:
    """Ask the module that is installed, with another library, what is missing."""
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), **settings},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.usefixtures("headers")
def test_without_the_library_the_text_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "libibverbs.so.1").touch()  # found before the system's
    missing, ports = asked(tmp_path)
    assert missing.startswith("libibverbs cannot be loaded (")
    assert "libibverbs.so.1" in missing
    assert missing.endswith(INSTALL)
    assert ports == "0"


@pytest.mark.usefixtures("headers")
def test_an_old_library_is_named_with_the_function_that_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "empty.c").write_text("int nothing;\n")
    missing, ports = asked(library(tmp_path / "empty.c"))
    assert missing.startswith("libibverbs.so.1 has no ibv_get_device_list (IBVERBS_1.1): ")
    assert missing.endswith(INSTALL)
    assert ports == "0"


def test_no_device_is_no_error(standin: Path) -> None:
    for settings in ({}, {"STANDIN_DEVICES": ""}):  # the library fails; it finds none
        missing, ports = asked(standin, **settings)
        assert "device" in missing
        assert ports == "0"


def test_only_other_protocols_are_no_device(standin: Path) -> None:
    missing, ports = asked(standin, STANDIN_DEVICES="siw0 1 1 2")
    assert missing == "no RDMA device speaks InfiniBand or RoCE; siw0 speaks another protocol"
    assert ports == "0"


def test_memory_registered_before_is_refused(standin: Path) -> None:
    missing, ports = asked(standin, STANDIN_DEVICES="a 0 1 1", STANDIN_FAILS="ibv_fork_init")
    assert missing.startswith("ibv_fork_init: Invalid argument: ")
    assert missing.endswith("set RDMAV_FORK_SAFE=1")
    assert ports == "0"


def test_built_without_the_headers(tmp_path: Path) -> None:
    program = tmp_path / "without.c"
    program.write_text(
        '#include <stdio.h>\n#include "verbs/device.h"\n'
        'int main(void) { printf("%s\\n%d\\n", pc_verbs_missing(), pc_verbs_ports(NULL, 0)); }\n'
    )
    flags = (*compiled.C, "-DPC_NO_VERBS", "-Wall", "-Wextra", "-Werror")
    sources = [unit.source for unit in compiled.parts("plain", compiled.RAIL)]
    units = [compiled.Unit(path, flags) for path in (*sources, program)]
    without = compiled.linked("without", units)
    done = subprocess.run([without], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "pycoll was built without libibverbs-dev: apt-get install libibverbs-dev "
        "(or dnf install rdma-core-devel), then build again",
        "0",
    ]


def test_ports_of_all_devices_in_their_order(rails: Callable[..., str]) -> None:
    said = rails("ports", devices="mlx5_1 0 2 1;siw0 1 1 2;mlx5_0 0 1 2;efa0 4 1 0").splitlines()
    assert [line.split(" state")[0] for line in said] == [
        "mlx5_1 port 1",
        "mlx5_1 port 2",
        "mlx5_0 port 1",
    ]
    assert said[2] == (
        "mlx5_0 port 1 state 4 link 2 mtu 2048/4096 speed 10000000000 pairs 1000 "
        "gid 0 ::ffff:10.0.0.1 type 2 numa -1 driver "
    )
    assert "gid -1 - type 0" in said[1]  # the table is that of port 1


def test_a_link_layer_older_than_roce_is_infiniband(rails: Callable[..., str]) -> None:
    assert "link 1 " in rails("ports", devices="mthca0 0 1 0")


def test_a_device_that_cannot_be_opened_is_listed(rails: Callable[..., str]) -> None:
    said = rails("ports", STANDIN_FAILS="ibv_open_device")
    assert said.startswith("rxe0 port 1 state 0 link 0 mtu 0/0 speed 0 pairs 0 gid -1 ")


@pytest.mark.parametrize(
    ("reported", "speed"),
    [
        ("1 1", 2_500_000_000),  # 1X SDR
        ("2 4", 40_000_000_000),  # 4X QDR
        ("2 16", 56_000_000_000),  # 4X FDR
        ("2 32", 100_000_000_000),  # 4X EDR
        ("16 64", 100_000_000_000),  # 2X HDR
        ("8 2", 60_000_000_000),  # 12X DDR
        ("2 128", 400_000_000_000),  # 4X NDR
        ("2 128 256", 800_000_000_000),  # 4X XDR, which 8 bits cannot say
        ("2 64 0", 200_000_000_000),  # a later library, a slower port
        ("0 0", 0),
        ("3 32", 0),
        ("2 33", 0),
    ],
)
def test_speed(rails: Callable[..., str], reported: str, speed: int) -> None:
    assert f" speed {speed} " in rails("ports", STANDIN_SPEED=reported)


@pytest.mark.parametrize(
    ("gids", "chosen"),
    [
        ("1 0 1 fe80::1;1 1 2 fe80::1", "1 fe80::1 type 2"),  # RoCE v2 before v1
        ("1 0 2 fe80::1;1 1 2 2001:db8::1", "1 2001:db8::1 type 2"),  # global before link-local
        ("1 0 2 2001:db8::1;1 3 2 ::ffff:10.1.2.3", "3 ::ffff:10.1.2.3 type 2"),  # IPv4 first
        ("1 0 2 ::ffff:169.254.1.1;1 1 2 fd00::1", "1 fd00::1 type 2"),
        ("1 0 2 ::ffff:127.0.0.1;1 1 2 fe80::1", "1 fe80::1 type 2"),
        ("1 2 1 ::ffff:10.0.0.1;1 7 2 fe80::1", "7 fe80::1 type 2"),
        ("1 5 2 ::ffff:10.0.0.9;1 4 2 ::ffff:10.0.0.8", "4 ::ffff:10.0.0.8 type 2"),  # the lowest
        ("2 0 2 ::ffff:10.0.0.1;1 1 1 fe80::1", "1 fe80::1 type 1"),  # of this port
        ("1 900 2 ::ffff:10.0.0.1;1 1 1 fe80::1", "1 fe80::1 type 1"),  # that 8 bits can name
        ("1 0 2 ::", "-1 - type 0"),
    ],
)
def test_choice_of_a_gid(rails: Callable[..., str], gids: str, chosen: str) -> None:
    assert f" gid {chosen} numa" in rails("ports", STANDIN_GIDS=gids)


def test_infiniband_takes_gid_0(rails: Callable[..., str]) -> None:
    gids = "1 1 0 2001:db8::1;1 0 0 fe80::5"
    assert " gid 0 fe80::5 type 0 " in rails("ports", devices="ib0 0 1 1", STANDIN_GIDS=gids)


def test_gids_one_by_one(rails: Callable[..., str]) -> None:
    # sysfs knows nothing of this device either: it is as before RoCE v2
    said = rails("ports", STANDIN_NO_TABLE="1", STANDIN_GIDS="1 1 2 fe80::1;1 3 2 ::ffff:10.0.0.1")
    assert " gid 3 ::ffff:10.0.0.1 type 1 " in said


def test_a_rail_opens(rails: Callable[..., str]) -> None:
    said = rails("open", "rxe0", "1", "-1", "0", STANDIN_SPEED="2 32")
    want = "mtu 2048 inline 256 message 1073741824 speed 12500000000 active 1"
    assert said == f"OK gid 0 {want}"


@pytest.mark.parametrize(("wanted", "mtu"), [("1500", 1024), ("256", 256), ("9000", 2048)])
def test_mtu_is_at_most_what_is_wanted(rails: Callable[..., str], wanted: str, mtu: int) -> None:
    assert f" mtu {mtu} " in rails("open", "rxe0", "1", "0", wanted)


@pytest.mark.parametrize(("limit", "got"), [("1000", 256), ("220", 220), ("100", 92), ("64", 64)])
def test_inline_is_probed(rails: Callable[..., str], limit: str, got: int) -> None:
    assert f" inline {got} " in rails("open", "rxe0", "1", "-1", "0", STANDIN_INLINE=limit)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("8001", "OK pkey 2"),  # as a full member, although it is listed as a limited one before
        ("1", "OK pkey 2"),
        ("8002", "OK pkey 3"),  # there is nothing but limited membership
        ("ffff", "OK pkey 0"),
        ("8003", "SYSTEM 2 rxe0 port 1 is in no partition 0x8003; its partition keys are "
         "0xffff, 0x1, 0x8001, 0x2"),
        ("10000", "INVALID 0 RDMA partition key: got 65536, want 0 to 65535"),
    ],
)  # fmt: skip
def test_a_partition_is_found_by_its_key(rails: Callable[..., str], wanted: str, said: str) -> None:
    assert rails("pkey", "rxe0", wanted, STANDIN_PKEYS="ffff 1 8001 2") == said


@pytest.mark.parametrize(
    ("arguments", "settings", "text"),
    [
        ("rxe7 1 -1 0", {}, "SYSTEM 19 there is no RDMA device rxe7; there is rxe0"),
        ("rxe0 2 -1 0", {}, "SYSTEM 19 rxe0 has no port 2; it has 1"),
        ("rxe0 0 -1 0", {}, "INVALID 0 RDMA port: got 0, want 1 to 255"),
        ("rxe0 1 -1 100", {}, "INVALID 0 RDMA MTU: got 100, want 256 to 4294967295"),
        ("rxe0 1 5 0", {}, "SYSTEM 99 rxe0 port 1 has no GID number 5 ("),
        ("rxe0 1 -1 0", {"STANDIN_GIDS": ""}, "SYSTEM 99 rxe0 port 1 has no GID: "),
        ("rxe0 1 -1 0", {"STANDIN_STATE": "1"}, "SYSTEM 100 rxe0 port 1 is DOWN, not ACTIVE: "),
        ("rxe0 1 -1 0", {"STANDIN_STATE": "2"}, "SYSTEM 100 rxe0 port 1 is INIT, not ACTIVE: "),
        (
            "rxe0 1 -1 0",
            {"STANDIN_INLINE": "63"},
            "SYSTEM 22 rxe0 port 1: ibv_create_qp with 64 bytes inline: Invalid argument",
        ),
        *(
            ("rxe0 1 -1 0", {"STANDIN_FAILS": f}, f"SYSTEM 12 rxe0 port 1: {f}: Cannot allocate")
            for f in (
                "ibv_open_device",
                "ibv_alloc_pd",
                "ibv_create_comp_channel",
                "ibv_create_cq",
                "ibv_create_qp",
            )
        ),
        ("siw0 1 -1 0", {"devices": "rxe0 0 1 2;siw0 1 1 2"}, "SYSTEM 93 siw0 speaks neither"),
        ("a 1 -1 0", {"devices": ""}, "SYSTEM 0 "),
    ],
)
def test_a_rail_that_does_not_open(
    rails: Callable[..., str], arguments: str, settings: dict[str, str], text: str
) -> None:
    assert rails("open", *arguments.split(), **settings).startswith(text)


def test_queues_longer_than_the_device_has(rails: Callable[..., str]) -> None:
    assert rails("deep", "rxe0", "4000", "500") == "OK "
    assert rails("deep", "rxe0", "4001", "500") == (
        "SYSTEM rxe0 port 1: ibv_create_cq: Invalid argument (max 4000)"
    )
    assert rails("deep", "rxe0", "4000", "501") == (
        "SYSTEM rxe0 port 1: ibv_create_qp: Invalid argument (max 500)"
    )


@pytest.mark.parametrize(
    ("devices", "ends", "text"),
    [
        ("rxe0 0 1 2", "rxe0 0 rxe0 2", "OK "),
        (
            "rxe0 0 1 2",
            "rxe0 0 rxe0 1",
            "INVALID rxe0 port 1 speaks RoCE v2 over IPv4, the peer's port RoCE v2 over IPv6: ",
        ),
        (
            "rxe0 0 1 2",
            "rxe0 3 rxe0 1",
            "INVALID rxe0 port 1 speaks RoCE v1, the peer's port RoCE v2 over IPv6: ",
        ),
        (
            "ib0 0 1 1;rxe0 0 1 2",
            "ib0 0 rxe0 0",
            "INVALID ib0 port 1 speaks InfiniBand, the peer's port RoCE v2 over IPv4: ",
        ),
    ],
)
def test_ends_that_do_not_fit(
    rails: Callable[..., str], devices: str, ends: str, text: str
) -> None:
    gids = "1 0 2 ::ffff:10.0.0.1;1 1 2 fe80::1;1 2 2 ::ffff:10.0.0.2;1 3 1 fe80::1"
    first, second = rails("misfit", *ends.split(), devices=devices, STANDIN_GIDS=gids).splitlines()
    assert first.startswith(text)
    assert second.endswith(": the peer's end of a queue pair is nonsense")


def test_packets_are_numbered_at_random(rails: Callable[..., str]) -> None:
    assert rails("renew", "rxe0", "rxe0", "20") == "20 pairs, PSNs vary"


def test_too_little_memory_may_be_locked(rails: Callable[..., str]) -> None:
    cure = "ulimit -l unlimited (or memlock in limits.conf, LimitMEMLOCK=infinity, docker run "
    assert rails("locked", "rxe0", "16") == (
        f"missing this process may lock 16 KiB of memory: {cure}--ulimit memlock=-1)"
    )
