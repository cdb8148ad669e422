"""RDMA devices for a test: the stand-in for libibverbs, loaded into the test's own process.

The engine finds libibverbs by its name when it first wants it, and so finds what is loaded already.
A process that has loaded the stand-in has RDMA devices for ever, and one that has loaded the
machine's own library cannot have the stand-in's; therefore a test that is marked `stand_in` runs in
a child of its own, and so does one that is marked `own_process`, for it loads the machine's. The
marker's arguments are the stand-in's options, as `Fabric.environment` has them. In the child
`network` is what lies between the devices.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import fabric
import fakeverbs_library
import pytest
from fabric import Fabric
from fakeverbs_library import SONAME

#: The network of this process's devices, in a child.
network: Fabric | None = None


def library() -> Path:
    """Build the stand-in, once."""
    return fakeverbs_library.built()


def load(path: Path, **options: object) -> None:
    """Give this process the devices of a network, which is made if it is not there."""
    global network
    network = Fabric(path, library())
    os.environ.update(network.environment(**options))
    # It opens the network when it is first asked for devices, and for ever: now, so that tests that
    # count descriptors do not count these.
    ctypes.CDLL(str(library() / SONAME)).ibv_get_device_list(None)


def loaded() -> str:
    """The libibverbs that this process has loaded; empty if it has none."""
    maps = Path("/proc/self/maps").read_text()
    return next((line.split()[-1] for line in maps.splitlines() if SONAME in line), "")


def prepare(item: pytest.Item, folder: Path) -> None:
    """Give the process of a marked test its devices."""
    options: dict[str, object] = {"devices": fabric.DEVICES}
    for marker in item.iter_markers("stand_in"):
        options |= marker.kwargs
    load(folder / "fabric", **options)
