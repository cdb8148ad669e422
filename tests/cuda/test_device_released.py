"""What a communicator takes from the driver of a GPU it gives back when it is closed."""

from __future__ import annotations

import collections
import os
from pathlib import Path

import fakecuda
import gpus
import numpy as np

import pycoll

pytestmark = gpus.MARKS

#: What takes something, and what gives it back.
PAIRS = {
    "cuStreamCreateWithPriority": "cuStreamDestroy",
    "cuEventCreate": "cuEventDestroy",
    "cuMemAlloc": "cuMemFree",
    "cuMemHostAlloc": "cuMemFreeHost",
    "cuMemHostRegister": "cuMemHostUnregister",
    "cuIpcOpenMemHandle": "cuIpcCloseMemHandle",
    "cuModuleLoadData": "cuModuleUnload",
}
HIGHEST = -5  #: of the stand-in's priorities


def used(log: Path) -> list[fakecuda.Logged]:
    """Use a communicator, close it, and return what it asked of the driver."""
    gpus.use(log / f"{os.getpid()}.log")
    comm = pycoll.init(timeout=60)
    few, many = gpus.of(np.ones(2, "f4")), gpus.of(np.ones(1000, "f4"))
    before = len(fakecuda.calls())
    own = comm.empty(100, "f4", device="cuda")
    for x in (few, many, own):
        comm.allreduce(x)
        comm.allreduce(x, async_op=True).synchronize()
    del own, x
    comm.close()
    return fakecuda.calls()[before:]


def test_all_that_was_taken_is_given_back(tmp_path: Path) -> None:
    fakecuda.library()  # built by the parent, for both
    for calls in pycoll.spawn(used, 2, tmp_path, timeout=100):
        counts = collections.Counter(call.name for call in calls if call.result == 0)
        assert {"cuStreamCreateWithPriority", "cuMemAlloc", "cuModuleLoadData"} <= set(counts)
        for taken, given in PAIRS.items():
            assert counts[taken] == counts[given], taken


def test_its_streams_go_before_those_of_the_user(tmp_path: Path) -> None:
    fakecuda.library()
    for calls in pycoll.spawn(used, 2, tmp_path, timeout=100):
        asked = [c.arguments for c in calls if c.name == "cuStreamCreateWithPriority"]
        assert len(asked) == 2  # what copies in its own time, and what computes
        assert {int(text.rpartition(",")[2]) for text in asked} == {HIGHEST}
