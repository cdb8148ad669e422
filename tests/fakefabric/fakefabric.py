"""Builds the stand-in for libfabric (fakefabric.c): a process loads it in place of the library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from compiled import SANITIZERS, C, Unit, linked

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HEADERS = (Path("/usr/include/rdma/fi_cm.h"), Path("/usr/local/include/rdma/fi_cm.h"))
SONAME = "libfabric.so.1"
SECONDS = 200  #: generous: reached only by a hang


def lack() -> str:
    """Say what this machine lacks for the stand-in; empty if nothing."""
    if any(header.exists() for header in HEADERS):
        return ""
    return "no headers of libfabric: apt-get install libfabric-dev"


def built(sanitizer: str) -> Path:
    """Return the folder of the stand-in under a sanitizer, which belongs on LD_LIBRARY_PATH."""
    versions = HERE / "libfabric.map"
    command = (*C, "-O1", "-Wall", "-fPIC", "-fvisibility=hidden", *SANITIZERS[sanitizer])
    units = [Unit(HERE / f"{name}.c", command) for name in ("fakefabric", "gpu")]
    flags = ("-shared", *SANITIZERS[sanitizer], f"-Wl,-soname,{SONAME}")
    script = f"-Wl,--version-script={versions}"
    return linked(SONAME, units, *flags, script, reads=(versions,)).parent


def build(folder: Path) -> Path:
    """Compile it; return the folder that LD_LIBRARY_PATH is to name."""
    subprocess.run(
        [
            *("gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"),
            "-pthread",
            *("-shared", "-fPIC", "-fvisibility=hidden", f"-Wl,-soname,{SONAME}"),
            f"-Wl,--version-script={HERE / 'libfabric.map'}",
            *("-o", str(folder / SONAME), str(HERE / "fakefabric.c"), str(HERE / "gpu.c")),
        ],
        check=True,
    )
    return folder


def run(
    library: Path, script: Path, *arguments: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a program of the tests whose libfabric is the stand-in."""
    tests = ROOT / "tests"
    path = [ROOT, tests, tests / "faults"]
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "PYTHONPATH": ":".join(map(str, path)),
            "PYCOLL_TRANSPORT": "libfabric",
            **settings,
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
