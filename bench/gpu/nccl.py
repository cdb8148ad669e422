"""NCCL through ctypes: the library that a machine has, or the one that is named.

Not through nccl4py: it wants cuda-core and CUDA's bindings besides, and loads the libnccl of the
package nvidia-nccl, which is found here as well. What it adds are objects for arrays and streams.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pycoll.errors import TransportError, UnavailableError

SONAME = "libnccl.so.2"
#: From here on several ranks of a communicator may share a GPU, and need be asked for.
SHARING = 23007
SHARING_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
MEND = "pip install 'nvidia-nccl-cu13>=2.30.7', or name one: --nccl /path/to/libnccl.so.2"

DTYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("bytes", ctypes.c_char * 128),)


def find() -> str:
    """Return the newest NCCL among this Python's packages; else what the loader finds by name."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec else []
    found = [path for place in places for path in Path(place).glob(f"nccl/lib/{SONAME}")]
    return str(found[0]) if found else SONAME


class Nccl:
    """The library.

    Args:
        path: Where it lies; found by default.

    Raises:
        UnavailableError: There is none.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = path or find()
        try:
            self._c = ctypes.CDLL(self.path)
        except OSError as error:
            raise UnavailableError(f"NCCL does not load ({error}); {MEND}") from error
        number = ctypes.c_int()
        self._call("ncclGetVersion", ctypes.byref(number))
        self.number = number.value

    @property
    def version(self) -> str:
        """Its version, such as 2.30.7."""
        major, rest = divmod(self.number, 10_000)
        return f"{major}.{rest // 100}.{rest % 100}"

    def require_sharing(self) -> None:
        """Refuse a version in which ranks cannot share a GPU.

        Raises:
            UnavailableError: It is older than 2.30.7.
        """
        if self.number < SHARING:
            raise UnavailableError(
                f"NCCL {self.version} ({self.path}) has no ranks that share a GPU, "
                f"want 2.30.7 or later: {MEND}"
            )

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._c, name, None)
        if function is None:
            raise UnavailableError(f"NCCL {self.version} ({self.path}) has no {name}: {MEND}")
        code = function(*arguments)
        if code:
            self._c.ncclGetErrorString.restype = ctypes.c_char_p
            text = self._c.ncclGetErrorString(code) or b"?"
            raise TransportError(f"{name}: {code}: {text.decode()}")

    def all(self, devices: Sequence[int]) -> list[Comm]:
        """Return the communicators of all ranks, each on its device, in this process."""
        comms = (ctypes.c_void_p * len(devices))()
        self._call("ncclCommInitAll", comms, len(devices), (ctypes.c_int * len(devices))(*devices))
        return [Comm(self, comm or 0, rank, len(devices)) for rank, comm in enumerate(comms)]

    def unique_id(self) -> bytes:
        """Return what rank 0 gives to all others."""
        made = UniqueId()
        self._call("ncclGetUniqueId", ctypes.byref(made))
        return bytes(memoryview(made))

    def join(self, rank: int, size: int, unique_id: bytes) -> Comm:
        """Return this process's communicator, on the current device."""
        comm = ctypes.c_void_p()
        given = UniqueId.from_buffer_copy(unique_id)
        self._call("ncclCommInitRank", ctypes.byref(comm), size, given, rank)
        return Comm(self, comm.value or 0, rank, size)


class Comm:
    """One rank's communicator."""

    def __init__(self, nccl: Nccl, handle: int, rank: int, size: int) -> None:
        self._nccl, self._handle = nccl, ctypes.c_void_p(handle)
        self.rank, self.size = rank, size

    def enqueue(
        self, collective: str, x: Any, out: Any, stream: int, op: str = "sum", root: int = 0
    ) -> None:
        """Enqueue a collective on arrays with an address, a size and a dtype.

        Raises:
            KeyError: The collective is none of NCCL's.
        """
        kind = DTYPES[str(x.dtype)]
        end = self._handle, ctypes.c_void_p(stream)
        given = ctypes.c_void_p(x.address), ctypes.c_void_p(out.address)
        count = ctypes.c_size_t
        if collective == "allreduce":
            self._nccl._call("ncclAllReduce", *given, count(x.size), kind, OPS[op], *end)
        elif collective == "reduce":
            self._nccl._call("ncclReduce", *given, count(x.size), kind, OPS[op], root, *end)
        elif collective == "broadcast":
            self._nccl._call("ncclBroadcast", *given, count(out.size), kind, root, *end)
        elif collective == "allgather":
            self._nccl._call("ncclAllGather", *given, count(x.size), kind, *end)
        elif collective == "reduce_scatter":
            self._nccl._call("ncclReduceScatter", *given, count(out.size), kind, OPS[op], *end)
        elif collective == "alltoall":  # this and what follows: from NCCL 2.28 on
            self._nccl._call("ncclAlltoAll", *given, count(x.size // self.size), kind, *end)
        elif collective == "gather":
            self._nccl._call("ncclGather", *given, count(x.size), kind, root, *end)
        elif collective == "scatter":
            self._nccl._call("ncclScatter", *given, count(out.size), kind, root, *end)
        else:
            raise KeyError(collective)

    def close(self) -> None:
        """Give it back."""
        if self._handle:
            self._nccl._call("ncclCommDestroy", self._handle)
            self._handle = ctypes.c_void_p()
