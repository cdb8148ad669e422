"""The library of the stand-in for libcuda: building it, its options, and reading its log.

Options, as keyword arguments; variables of the environment with ``FAKECUDA_`` before them:

==========  =================================================================================
DEVICES     how many GPUs there are, 1; CUDA_VISIBLE_DEVICES chooses of them
THREADS     of a block, at most: 4
MEMORY_MIB  of each GPU: 4096
POISON      bytes of new memory that are filled with 0xa5: the first MiB
STRICT      1: the host dies if it touches GPU memory itself while no stream works
PEERS       0: GPUs do not reach each other's memory
PATIENCE    seconds that a call waits for kernels that run, as the driver may where memory or code
            comes or goes: 30; then they are taken to wait for its caller, which is noted
FAIL        cuMemAlloc:2,kernel:1=719 makes the second cuMemAlloc fail, with OUT_OF_MEMORY, and
            the first kernel that runs, with 719
LOG         where each call is written down: `calls` reads it
==========  =================================================================================
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
SONAME = "libcuda.so.1"
SOURCES = (
    *("library", "errors", "memory", "copy", "stream", "graph"),
    *("module", "kernels"),
)
DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "int8"),
    *("uint8", "int32", "uint32", "int64", "uint64"),
)  #: in the order of enum pc_dtype
#: As the engine is compiled, where that decides bits: see native/build.py.
FLAGS = (
    *("-std=c++17", "-g1", "-fPIC", "-pthread", "-D_GNU_SOURCE", "-fvisibility=hidden"),
    *("-D_Static_assert=static_assert", "-fwrapv", "-ffp-contract=off"),
    *("-Wall", "-Wextra", "-Wno-format-zero-length"),
)
#: Compiling all kernels well takes a minute: these are for tests of more than a few bytes.
FAST = ("float32",)
_INCLUDE = re.compile(rb'^#include "(\S+)"', re.M)


@functools.cache
def lack() -> str:
    """Say what this machine lacks for the stand-in; empty if nothing."""
    return "" if shutil.which("g++") else "no C++ compiler: apt-get install g++"


def _units(dtypes: Sequence[str] = DTYPES) -> dict[str, list[str]]:
    """Name what is compiled, each with its part of the command line; the source comes last."""
    units = {name: ["-O1", str(HERE / f"{name}.cpp")] for name in SOURCES}
    for dtype in dtypes:
        fast = "-O1" if dtype in FAST else "-O0"
        which = [f"-DPC_KERNEL_DTYPE={DTYPES.index(dtype)}", f"-DPC_KERNEL_NAME={dtype}"]
        units[dtype] = [fast, *which, str(HERE / "collectives.cpp")]
    return units


def _read(source: Path, seen: dict[Path, bytes]) -> None:
    """Read a source and all of this project that it includes."""
    if source in seen:
        return
    seen[source] = source.read_bytes()
    for name in _INCLUDE.findall(seen[source]):
        here = HERE / name.decode()
        _read(here if here.exists() else NATIVE / name.decode(), seen)


def _digest(unit: list[str]) -> str:
    seen: dict[Path, bytes] = {}
    _read(Path(unit[-1]), seen)
    digest = hashlib.sha256(repr((FLAGS, unit[:-1])).encode())
    for text in seen.values():
        digest.update(text)
    return digest.hexdigest()[:16]


def _settle(path: Path, make: Callable[[Path], None]) -> Path:
    """Make a file unless it is there; whoever makes it at the same time makes the same."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as name:
            make(Path(name) / path.name)
            (Path(name) / path.name).replace(path)
    return path


def _compile(unit: list[str], output: Path, *flags: str) -> None:
    _run("g++", *FLAGS, *unit[:-1], *flags, f"-I{NATIVE}", "-c", unit[-1], "-o", str(output))


def _link(objects: Sequence[Path], output: Path, *flags: str) -> None:
    soname = f"-Wl,-soname,{SONAME}"
    _run("g++", "-shared", "-pthread", *flags, *map(str, objects), soname, "-o", str(output))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


@functools.cache
def library() -> Path:
    """Build the stand-in, once for all sessions with these sources; its folder.

    What is built stays in the folder for temporary files, each part under its sources' digest.
    """
    cache = Path(tempfile.gettempdir()) / f"pycoll-fakecuda-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    units = _units()
    digests = {name: _digest(unit) for name, unit in units.items()}

    def part(name: str) -> Path:
        path = cache / "parts" / f"{name}-{digests[name]}.o"
        return _settle(path, lambda output: _compile(units[name], output))

    whole = hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:16]
    folder = cache / whole
    if not (folder / SONAME).exists():
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(part, units))
        _settle(folder / SONAME, lambda output: _link(objects, output))
    return folder


def build(folder: Path, *flags: str, dtypes: Sequence[str] = DTYPES) -> Path:
    """Build the stand-in into `folder`, with more compiler flags such as ``-fsanitize=thread``.

    Args:
        folder: Where; it is made.
        flags: They come last.
        dtypes: Whose kernels: all take a minute.

    Returns:
        `folder`, which belongs on LD_LIBRARY_PATH.
    """
    folder.mkdir(parents=True, exist_ok=True)
    units = _units(dtypes)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        objects = [Path(name) / f"{part}.o" for part in units]
        commands = zip(units.values(), objects, strict=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda one: _compile(*one, *flags), commands))
        _link(objects, folder / SONAME, *flags)
    return folder


def environment(log: Path | None = None, **options: object) -> dict[str, str]:
    """Return the variables by which a process finds the stand-in instead of a driver."""
    path = os.environ.get("LD_LIBRARY_PATH", "")
    given = {f"FAKECUDA_{name.upper()}": str(value) for name, value in options.items()}
    if log is not None:
        given["FAKECUDA_LOG"] = str(log)
    return {"LD_LIBRARY_PATH": f"{library()}:{path}".rstrip(":"), **given}


@dataclass(frozen=True)
class Logged:
    """A line of the log."""

    pid: int
    thread: int
    name: str
    arguments: str
    result: int


_LINE = re.compile(r"(\d+) (\d+) (\w+)\((.*)\) = (\d+)")


def calls(log: Path | None = None) -> list[Logged]:
    """Read the log of what was called, of this process unless it is given."""
    text = (log or Path(os.environ["FAKECUDA_LOG"])).read_text()
    found = [match.groups() for match in map(_LINE.fullmatch, text.splitlines()) if match]
    return [Logged(int(a), int(b), name, given, int(c)) for a, b, name, given, c in found]


def remarks(log: Path | None = None) -> list[str]:
    """Read what the log says beside calls: where something was done that is undefined."""
    lines = (log or Path(os.environ["FAKECUDA_LOG"])).read_text().splitlines()
    return [line.split(" ", 2)[2] for line in lines if not _LINE.fullmatch(line)]
