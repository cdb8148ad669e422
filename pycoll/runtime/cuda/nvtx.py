"""NVTX: ranges by which Nsight Systems shows what is a collective.

The functions of NVIDIA's libnvToolsExt cost nothing unless a tool is attached, and say whether one
is: a push returns the depth, or else a negative number. CUDA 13 has that library no more; there the
package ``nvtx`` serves, if it is installed. Where nobody can listen `ranges` is None.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

_LIBRARY, _PACKAGE = "libnvToolsExt.so.1", "nvtx"


class Ranges(NamedTuple):
    """A way to tell a tool of ranges."""

    push: Callable[[bytes], Any]  #: opens a range
    pop: Callable[[], Any]


def opened(library: str = _LIBRARY, package: str = _PACKAGE) -> Ranges | None:
    """Return how ranges are told, or None where nobody listens."""
    try:
        found = ctypes.CDLL(library)
    except OSError:
        return _of_package(package)
    push, pop = found.nvtxRangePushA, found.nvtxRangePop
    push.argtypes, push.restype, pop.restype = [ctypes.c_char_p], ctypes.c_int, ctypes.c_int
    if push(b"pycoll") < 0:
        return None
    pop()
    return Ranges(push, pop)


def _of_package(name: str) -> Ranges | None:
    if importlib.util.find_spec(name) is None:
        return None
    nvtx = importlib.import_module(name)
    if not nvtx.enabled():
        return None
    return Ranges(lambda text: nvtx.push_range(text.decode()), nvtx.pop_range)


@functools.cache
def ranges() -> Ranges | None:
    """Return how this process tells of ranges; found out once."""
    return opened()
