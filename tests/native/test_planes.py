"""GPU planes, their proxies and the transports below them, under the sanitizers.

The GPU is the stand-in for libcuda, built with the same sanitizer: so the kernels' accesses are
seen beside those of the proxy and of the transport's threads.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import fabric
import fakecuda_library
import pytest
from sanitized import ASAN, NATIVE, TSAN, build, engine_of

import pycoll
from pycoll.algorithms import get, names
from pycoll.program.lower import compile_program
from pycoll.schedule import NotDirect

FLAGS = {"tsan": TSAN, "asan": ASAN}


@pycoll.algorithm(pycoll.allreduce)
def quarters(b: pycoll.ScheduleBuilder) -> None:
    """Each of four channels exchanges its own quarter of the message."""
    b.chunks(4)
    for c in range(4):
        with b.channel(c):
            b.send(b.output[c], to=1 - b.rank)
            b.recv_reduce(b.output[c], frm=1 - b.rank)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder SIZE/ALGORITHM.RANK of every all-reduce for 2, 3 and 4 ranks."""
    root = tmp_path_factory.mktemp("programs")
    for size in (2, 3, 4):
        (root / str(size)).mkdir()
        for name in names("allreduce"):
            for rank in range(size):
                blob = compile_program(get(name), size, rank).to_bytes()
                (root / str(size) / f"{name}.{rank}").write_bytes(blob)
                with contextlib.suppress(NotDirect):
                    blob = compile_program(get(name), size, rank, direct=True).to_bytes()
                    (root / str(size) / f"{name}.{rank}.direct").write_bytes(blob)
    (root / "quarters.0").write_bytes(compile_program(quarters, 2, 0).to_bytes())
    return root


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A driver, by the sanitizer that it is built with."""

    @functools.cache
    def binary(kind: str, driver: str) -> Path:
        return build(tmp_path_factory.mktemp(f"{driver}-{kind}"), driver, FLAGS[kind])

    return binary


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the stand-in for libcuda, by its sanitizer."""

    @functools.cache
    def gpus(kind: str) -> Path:
        if reason := fakecuda_library.lack():
            pytest.skip(reason)
        folder = tmp_path_factory.mktemp("cuda") / kind
        return fakecuda_library.build(folder, *FLAGS[kind], dtypes=("int32",))

    return gpus


@pytest.fixture(scope="module")
def rails(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The stand-in for libibverbs, by its sanitizer."""

    @functools.cache
    def rails(kind: str) -> Path:
        if reason := fabric.lack():
            pytest.skip(reason)
        return fabric.build(tmp_path_factory.mktemp(f"verbs-{kind}"), "-O1", *FLAGS[kind])

    return rails


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


def test_where_threads_meet(binary: Callable[[str, str], Path]) -> None:
    done = run(binary("asan", "barriers"))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize("scenario", ["order", "late", "full", "lost", "gone", "idle", "abort"])
@pytest.mark.parametrize("kind", ["tsan", "asan"])
def test_the_proxy_beside_threads_that_push(
    binary: Callable[[str, str], Path], programs: Path, kind: str, scenario: str
) -> None:
    done = run(binary(kind, "proxy"), scenario, programs / "quarters.0", 20000)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{scenario}\n")


def test_a_weakened_ring_is_caught(
    binary: Callable[[str, str], Path], programs: Path, tmp_path: Path
) -> None:
    whole = binary("tsan", "proxy").parent / "proxy.driver.o"
    engine = engine_of(TSAN)
    weak = tmp_path / "proxy.o"
    flags = ("-std=gnu11", "-O1", "-g", "-pthread", "-D_GNU_SOURCE", *TSAN, f"-I{NATIVE}")
    command = ("cc", *flags, "-DPC_RING_RELAXED", "-c", NATIVE / "proxy.c", "-o", weak)
    subprocess.run(command, check=True)
    others = [path for path in engine.glob("*.o") if path.name != "proxy.o"]
    objects = [weak, whole, *(path for path in others if not path.name.endswith(".driver.o"))]
    subprocess.run(["cc", *flags, *objects, "-ldl", "-o", tmp_path / "proxy"], check=True)
    done = run(tmp_path / "proxy", "order", programs / "quarters.0", 2000)
    assert "WARNING: ThreadSanitizer: data race" in done.stderr
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("kind", "path", "size"),
    [
        # under TSan all ranks have the same mapping of an arena, which cannot be registered twice
        *(("asan", "staged", size) for size in (2, 3)),
        *((kind, "direct", size) for kind in ("tsan", "asan") for size in (2, 3)),
        *((kind, "remote", size) for kind in ("tsan", "asan") for size in (2, 3)),
        *((kind, "rails", size) for kind in ("tsan", "asan") for size in (2, 3)),
        ("tsan", "both", 4),
        ("asan", "both", 4),
    ],
)
def test_calls_on_gpus(
    binary: Callable[[str, str], Path],
    gpus: Callable[[str], Path],
    rails: Callable[[str], Path],
    programs: Path,
    tmp_path: Path,
    kind: str,
    path: str,
    size: int,
) -> None:
    env = {}
    if path == "rails":
        env = fabric.Fabric(tmp_path / "fabric", rails(kind)).environment(devices=fabric.DEVICES)
    command = (binary(kind, "planes"), path, programs / str(size), size, 60)
    done = run(*command, *names("allreduce"), folders=(gpus(kind),), env=env)
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
def test_what_goes_wrong(
    binary: Callable[[str, str], Path], gpus: Callable[[str], Path], programs: Path, scenario: str
) -> None:
    done = run(binary("asan", "plane_faults"), scenario, programs / "2", folders=(gpus("asan"),))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{scenario}\n")


def test_a_captured_call_has_no_race(
    binary: Callable[[str, str], Path], gpus: Callable[[str], Path], programs: Path
) -> None:
    done = run(binary("tsan", "plane_faults"), "graph", programs / "2", folders=(gpus("tsan"),))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "graph\n")
