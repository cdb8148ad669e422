"""The library of the stand-in for libibverbs: building it, and the driver of its own tests."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # where this is run as a program's part, and not by pytest

from compiled import SANITIZERS, C, Unit, linked  # noqa: E402
from compiled import lack as lack_of_compiler  # noqa: E402

SONAME = "libibverbs.so.1"
CONTROL = "fabric.so"  #: for this process, where nothing is to be found under the name above
SOURCES = (
    *("completion", "control", "device", "events", "fabric", "gpu", "memory", "nic", "options"),
    *("port", "post", "queue_pair", "requester", "responder", "ring", "shared_receives"),
)
DRIVER = ("driver", "requests", "endings", "sharing", "strict", "gpu_memory", "endpoint")


@functools.cache
def lack() -> str:
    """Say what this machine lacks for the stand-in; empty if nothing."""
    if reason := lack_of_compiler():
        return reason
    text = "#include <infiniband/verbs.h>\n"
    done = subprocess.run(["cc", "-E", "-"], input=text, capture_output=True, text=True)
    return "no infiniband/verbs.h: apt-get install libibverbs-dev" if done.returncode else ""


def built(sanitizer: str = "plain") -> Path:
    """Return the folder of the stand-in, which belongs on LD_LIBRARY_PATH."""
    versions = HERE / "libibverbs.map"
    flags = (f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={versions}")
    library = _shared(SONAME, SOURCES, sanitizer, *flags, reads=(versions,))
    control = _shared(CONTROL, ("control", "fabric"), "plain")
    with contextlib.suppress(FileExistsError):
        library.with_name(CONTROL).symlink_to(control)
    return library.parent


def driver(sanitizer: str = "plain") -> Path:
    """Return the program that says what verbs report; with the stand-in's library it finds any."""
    library = built(sanitizer) / SONAME
    flags = SANITIZERS[sanitizer]
    return linked("driver", _units(DRIVER, sanitizer), *flags, str(library))


def _shared(
    name: str, sources: tuple[str, ...], sanitizer: str, *flags: str, reads: tuple[Path, ...] = ()
) -> Path:
    units = _units(sources, sanitizer, "-fPIC")
    return linked(name, units, "-shared", *SANITIZERS[sanitizer], *flags, reads=reads)


def _units(sources: tuple[str, ...], sanitizer: str, *flags: str) -> list[Unit]:
    level = "-O2" if sanitizer == "plain" else "-O1"
    command = (*C, level, "-Wall", *SANITIZERS[sanitizer], *flags)
    return [Unit(HERE / f"{name}.c", command) for name in sources]
