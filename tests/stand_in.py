"""Tests whose process has RDMA devices: each runs in a child that has loaded the stand-in.

The engine finds libibverbs by its name when it first wants it, and so finds what is loaded already.
A process that has loaded the stand-in has RDMA devices for ever; therefore a test that is marked
`stand_in` runs in a child of its own. The marker's arguments are the stand-in's options, as
`Fabric.environment` has them. In the child `network` is what lies between the devices.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import fabric
import pytest
from _pytest.runner import runtestprotocol
from fabric import SONAME, Fabric

SECONDS = 240  #: until a test that hangs shows where, and ends

#: The network of this process's devices, in a child.
network: Fabric | None = None

_kept: list[tempfile.TemporaryDirectory[str]] = []  #: until this process ends


@functools.cache
def library() -> Path:
    """Build the stand-in, once."""
    _kept.append(tempfile.TemporaryDirectory(prefix="fakeverbs-"))
    return fabric.build(Path(_kept[-1].name))


def load(path: Path, **options: object) -> None:
    """Give this process the devices of a network, which is made if it is not there."""
    global network
    network = Fabric(path, library())
    os.environ.update(network.environment(**options))
    # It opens the network when it is first asked for devices, and for ever: now, so that tests that
    # count descriptors do not count these.
    ctypes.CDLL(str(library() / SONAME)).ibv_get_device_list(None)


def run(item: pytest.Item) -> Sequence[pytest.TestReport]:
    """Run a test in a child; returns its reports."""
    library()
    with tempfile.TemporaryDirectory(prefix="fakeverbs-network-") as name:
        folder = Path(name)
        sys.stdout.flush()
        sys.stderr.flush()
        faulthandler.cancel_dump_traceback_later()  # a thread, for which the child would wait
        child = os.fork()
        if child == 0:
            _run(item, folder)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            told = pickle.loads((folder / "reports").read_bytes())
            read = item.config.hook.pytest_report_from_serializable
            return [read(config=item.config, data=data) for data in told]
        said = (folder / "crash").read_text()
    text = f"the test's process ended with {code}\n{said}"
    call = pytest.CallInfo.from_call(lambda: pytest.fail(text, pytrace=False), "call")
    return [pytest.TestReport.from_item_and_call(item, call)]


def _run(item: pytest.Item, folder: Path) -> NoReturn:
    """Run a test in this process, and end it."""
    code = 1
    with (folder / "crash").open("w") as crash:
        try:
            faulthandler.enable(crash)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, crash, chain=True)
            signal.alarm(SECONDS)
            options: dict[str, object] = {"devices": fabric.DEVICES}
            for marker in item.iter_markers("stand_in"):
                options |= marker.kwargs
            load(folder / "fabric", **options)
            # What is torn down is this test's own; all else belongs to the parent.
            reports = runtestprotocol(item, log=False, nextitem=item.parent)  # type: ignore
            write = item.config.hook.pytest_report_to_serializable
            told = [write(config=item.config, report=report) for report in reports]
            (folder / "reports").write_bytes(pickle.dumps(told))
            code = 0
        except BaseException:
            traceback.print_exc(file=crash)
        finally:
            crash.flush()
            os._exit(code)
