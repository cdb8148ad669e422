"""Ranges for profilers: told where a tool listens, and never asked for again where none does."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import fakecuda
import gpus
import numpy as np
import pytest

import pycoll
from pycoll.runtime.cuda import nvtx

pytestmark = gpus.MARKS

#: NVIDIA's library with a tool attached, as far as pycoll calls it: it writes down what it is told.
RECORDER = r"""
#include <string.h>
static char told[4096];
static int depth, listening = %d;
int nvtxRangePushA(const char *text)
{
    if (!listening)
        return -2; /* NVTX_NO_PUSH_POP_TRACKING */
    strcat(strcat(told, text), "\n");
    return depth++;
}
int nvtxRangePop(void) { strcat(told, "end\n"); return --depth; }
const char *recorded(void) { return told; }
"""


def library(folder: Path, listening: bool) -> str:
    source, out = folder / "recorder.c", folder / "libnvToolsExt.so.1"
    source.write_text(RECORDER % listening)
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", out], check=True)
    return str(out)


def test_nobody_listens(tmp_path) -> None:
    assert nvtx.opened("libno-such-tool.so.1", "no_such_package") is None
    assert nvtx.opened(library(tmp_path, listening=False)) is None


def test_the_package_serves_where_the_library_is_not(monkeypatch) -> None:
    told: list[str] = []
    played = ModuleType("played_nvtx")
    played.__spec__ = ModuleSpec("played_nvtx", None)
    played.enabled = lambda: True  # type: ignore[attr-defined]
    played.push_range, played.pop_range = told.append, lambda: told.append("end")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "played_nvtx", played)
    ranges = nvtx.opened("libno-such-tool.so.1", "played_nvtx")
    assert ranges is not None
    ranges.push(b"a call")
    ranges.pop()
    assert told == ["a call", "end"]
    played.enabled = lambda: False  # type: ignore[attr-defined]
    assert nvtx.opened("libno-such-tool.so.1", "played_nvtx") is None


def test_every_collective_has_a_range(tmp_path) -> None:
    path = library(tmp_path, listening=True)

    def rank() -> str:
        with pycoll.init() as comm:
            nvtx.ranges = functools.cache(lambda: nvtx.opened(path))  # type: ignore[assignment]
            recorder = ctypes.CDLL(path)
            recorder.recorded.restype = ctypes.c_char_p
            stream, x = fakecuda.Stream(), gpus.of(np.ones(100, "f4"))
            with comm.on_stream(stream):
                comm.allreduce(x, op="max", algorithm="ring")
                comm.broadcast(x, root=1, async_op=True).synchronize()
                with pytest.raises(pycoll.UsageError):
                    comm.allreduce(x, op="nonsense")
                comm.alltoallv(x, [50, 50], gpus.of(np.ones(100, "f4")), [50, 50])
                comm.exchange([(x, 1 - comm.rank)], [(gpus.of(np.ones(100, "f4")), 1 - comm.rank)])
            stream.synchronize()
            return recorder.recorded().decode()

    for told in gpus.ranks(2, rank):
        first, *rest = told.splitlines()
        assert (first, rest[0]) == ("pycoll", "end")  # whether anybody listens
        assert rest[1] == "pycoll allreduce(max, float32, 100 elements, ring), 400 B by ring"
        assert rest[2] == "end"
        assert rest[3].startswith("pycoll broadcast(float32, 100 elements, root 1), 400 B by ")
        assert rest[4:] == [
            *("end", "pycoll alltoallv(float32), 800 B"),
            *("end", "pycoll exchange(1 sent, 1 received), 800 B", "end"),
        ]
