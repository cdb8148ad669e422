"""GPU planes, their proxies and the transports below them, under the sanitizers.

The GPU is the stand-in for libcuda, built with the same sanitizer: so the kernels' accesses are
seen beside those of the proxy and of the transport's threads.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import compiled
import fabric
import fakecuda
import fakecuda_library
import fakefabric
import fakeverbs_library
import planted
import pytest

import pycoll
from pycoll.algorithms import names
from pycoll.program.lower import compile_program

HERE = Path(__file__).parent


@pycoll.algorithm(pycoll.allreduce)
def quarters(b: pycoll.ScheduleBuilder) -> None:
    """Each of four channels exchanges its own quarter of the message."""
    b.chunks(4)
    for c in range(4):
        with b.channel(c):
            b.send(b.output[c], to=1 - b.rank)
            b.recv_reduce(b.output[c], frm=1 - b.rank)


@pytest.fixture(scope="module")
def quartered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quarters") / "quarters.0"
    path.write_bytes(compile_program(quarters, 2, 0).to_bytes())
    return path


def built(driver: str, sanitizer: str) -> Path:
    return compiled.driver(HERE / f"{driver}.c", sanitizer)


def gpus(sanitizer: str) -> Path:
    """Return the folder of the stand-in for libcuda."""
    if reason := fakecuda_library.lack():
        pytest.skip(reason)
    return fakecuda_library.built(sanitizer, dtypes=("int32",))


def run(
    *command: object, folders: tuple[Path, ...] = (), env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a driver that finds its libraries in these folders first."""
    env = os.environ | (env or {})
    path = [*map(str, folders), env.get("LD_LIBRARY_PATH", "")]
    env["LD_LIBRARY_PATH"] = ":".join(filter(None, path))
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, env=env
    )


def test_where_threads_meet() -> None:
    done = run(built("barriers", "asan"))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize("scenario", ["order", "late", "full", "lost", "gone", "idle", "abort"])
@pytest.mark.parametrize("kind", ["tsan", "asan"])
def test_the_proxy_beside_threads_that_push(quartered: Path, kind: str, scenario: str) -> None:
    done = run(built("proxy", kind), scenario, quartered, 20000)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{scenario}\n")


def test_a_weakened_ring_is_caught(quartered: Path) -> None:
    units = [
        replace(unit, flags=(*unit.flags, "-DPC_PROXY_FIFO_RELAXED"))
        if unit.source.stem == "proxy"
        else unit
        for unit in compiled.engine("tsan")
    ]
    done = run(compiled.driver(HERE / "proxy.c", "tsan", units), "order", quartered, 2000)
    assert "WARNING: ThreadSanitizer: data race" in done.stderr
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("kind", "path", "size"),
    [
        # under TSan all ranks have the same mapping of an arena, which cannot be registered twice
        *(("asan", "staged", size) for size in (2, 3)),
        *((kind, "direct", size) for kind in ("tsan", "asan") for size in (2, 3)),
        *((kind, "switch", size) for kind in ("tsan", "asan") for size in (2, 4)),
        *((kind, "remote", size) for kind in ("tsan", "asan") for size in (2, 3)),
        *((kind, "rails", size) for kind in ("tsan", "asan") for size in (2, 3)),
        *((kind, "gpudirect", size) for kind in ("tsan", "asan") for size in (2, 3)),
        *((kind, "hmem", size) for kind in ("tsan", "asan") for size in (2, 3)),
        ("tsan", "both", 4),
        ("asan", "both", 4),
    ],
)
def test_calls_on_gpus(programs: Path, tmp_path: Path, kind: str, path: str, size: int) -> None:
    env, folders = {}, (gpus(kind),)
    if path == "hmem":
        if reason := fakefabric.lack():
            pytest.skip(reason)
        folders += (fakefabric.built(kind),)
        env = {
            "FAKEFABRIC_MINOR": "18",
            "FAKEFABRIC_HMEM": "p2p",
            "FAKECUDA_CAPABILITY": "80",
            "FAKECUDA_FLUSH": str(size % 2),  # by the driver, or by an RDMA read
        }
    if path in ("rails", "gpudirect"):
        if reason := fakeverbs_library.lack():
            pytest.skip(reason)
        network = fabric.Fabric(tmp_path / "fabric", fakeverbs_library.built(kind))
        env = network.environment(devices=fabric.DEVICES) | {
            "FAKECUDA_CAPABILITY": "80",
            "FAKECUDA_FLUSH": str(size % 2),  # by the driver, or by an RDMA read
        }
    if path == "switch":
        env = {"FAKECUDA_DEVICES": str(size), "FAKECUDA_MULTICAST": "1"}
    command = (built("device_comms", kind), path, programs / str(size), size, 60)
    done = run(*command, *names("allreduce"), folders=folders, env=env)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"60 calls on {size} ranks\n"


@pytest.mark.parametrize(
    "scenario",
    [
        "absent",
        "mismatch",
        "abort",
        "lost",
        "close",
        "fault",
        "threads",
        "graph",
        "lies",
        "refused",
    ],
)
def test_what_goes_wrong(programs: Path, scenario: str) -> None:
    done = run(
        built("device_comm_faults", "asan"), scenario, programs / "2", folders=(gpus("asan"),)
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{scenario}\n")


def test_a_captured_call_has_no_race(programs: Path) -> None:
    done = run(
        built("device_comm_faults", "tsan"), "graph", programs / "2", folders=(gpus("tsan"),)
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "graph\n")


#: Threads of the host may touch memory of this stand-in while kernels run: tests/rdma finds that.
UNSEEN = ("staged by the host",)

#: Microseconds that a card's READ of a GPU waits for what comes behind it: who counts that with the
#: READ, and not with the next one, has read what was there before in one of the first calls.
OVERTAKE = 5_000


def gpudirect_calls(
    programs: Path, folder: Path, by: str, wrong: planted.Fault | None = None
) -> subprocess.CompletedProcess[str]:
    """Run calls of three ranks that flush by the driver or by reads, which others overtake."""
    if reason := fakeverbs_library.lack():
        pytest.skip(reason)
    units = compiled.engine("plain")
    if wrong is not None:
        units = planted.planted(wrong, units, folder)
    network = fabric.Fabric(folder / "fabric", fakeverbs_library.built())
    env = network.environment(devices=fabric.DEVICES, peermem=1, jitter=60, overtake=OVERTAKE) | {
        "FAKECUDA_CAPABILITY": "80",
        "FAKECUDA_FLUSH": "1" if by == "driver" else "0",
        "FAKECUDA_LOG": str(folder / "log"),
        "CALL_SECONDS": "15" if wrong else "100",
    }
    command = (
        compiled.driver(HERE / "device_comms.c", "plain", units),
        *("gpudirect", programs / "3", 3, 60),
    )
    return run(*command, *names("allreduce"), folders=(gpus("plain"),), env=env)


@pytest.mark.parametrize("fault", [name for name in planted.GPUDIRECT if name not in UNSEEN])
def test_a_planted_fault_of_gpudirect_is_found(programs: Path, tmp_path: Path, fault: str) -> None:
    wrong = planted.GPUDIRECT[fault]
    done = gpudirect_calls(programs, tmp_path, wrong.by, wrong)
    said = fakecuda.remarks(tmp_path / "log")
    assert done.returncode != 0 or any(remark.startswith("undefined") for remark in said)


@pytest.mark.parametrize("by", ["read", "driver"])
def test_gpudirect_without_a_fault(programs: Path, tmp_path: Path, by: str) -> None:
    done = gpudirect_calls(programs, tmp_path, by)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == "60 calls on 3 ranks\n"
    said = fakecuda.remarks(tmp_path / "log")
    assert not any(remark.startswith("undefined") for remark in said)


@pytest.mark.parametrize("scenario", ["twice", "late", "freed", "kept", "placed"])
def test_memory_of_a_gpu_that_a_network_has(tmp_path: Path, scenario: str) -> None:
    if reason := fakeverbs_library.lack():
        pytest.skip(reason)
    network = fabric.Fabric(tmp_path / "fabric", fakeverbs_library.built("asan"))
    env = network.environment(devices=fabric.DEVICES) | {
        "FAKECUDA_CAPABILITY": "80",
        "FAKECUDA_FLUSH": "0",
    }
    done = run(built("gpu_memory", "asan"), scenario, folders=(gpus("asan"),), env=env)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{scenario}\n")


@pytest.mark.parametrize("fails", range(1, 7))
def test_memory_that_cannot_be_registered_leaves_nothing(tmp_path: Path, fails: int) -> None:
    """By either of two cards: for the flush, of the peer's slots, or of what it is sent from."""
    if reason := fakeverbs_library.lack():
        pytest.skip(reason)
    network = fabric.Fabric(tmp_path / "fabric", fakeverbs_library.built("asan"))
    env = network.environment(devices=fabric.DEVICES, fail=f"reg_dmabuf_mr:{fails}") | {
        "FAKECUDA_CAPABILITY": "80",
        "FAKECUDA_FLUSH": "0",
    }
    done = run(built("gpu_memory", "asan"), "again", folders=(gpus("asan"),), env=env)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "again\n")
