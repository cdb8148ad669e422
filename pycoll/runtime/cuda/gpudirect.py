"""GPUDirect RDMA: whether data for other hosts goes from GPU to GPU, or why it is staged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pycoll.errors import UnavailableError
from pycoll.runtime.native import device_comm, verbs

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Ways that a setting allows, of PC_MEM_WAYS.
_WAYS = {"auto": 6, "dmabuf": 2, "peermem": 4}
_MEMORY = {1: "dma-buf", 2: "peermem", 4: "FI_HMEM"}
_FLUSH = {0: "no flush", 1: "flushed by the driver", 2: "flushed by an RDMA read"}


class Said(NamedTuple):
    """What a rank says of itself to the others."""

    setting: str  #: PYCOLL_GPU_RDMA
    lack: str  #: why its remote edges' data does not lie on its GPU, or ""


def lack(native: Any, comm: Any, setting: str) -> str:
    """Have remote edges' data lie in memory of the GPU; return why it does not, or "".

    Each rank decides for itself: one may have its slots on the GPU and its peer in the host's
    memory.

    Args:
        native: A device communicator that is not sealed, none of whose remote ranks is connected.
        comm: Its communicator.
        setting: PYCOLL_GPU_RDMA.

    Raises:
        PycollError: The device or the engine failed.
    """
    if setting == "off":
        return "off, by PYCOLL_GPU_RDMA"
    return device_comm.device_comm_gpudirect(native, comm, _WAYS[setting])


def require(said: Sequence[Said]) -> None:
    """Raise, on all ranks alike, if one insists on what it does not have."""
    for rank, (setting, missing) in enumerate(said):
        if missing and setting in ("dmabuf", "peermem"):
            raise UnavailableError(
                f"PYCOLL_GPU_RDMA is {setting} on rank {rank}, whose GPU memory is not reached so: "
                f"{missing}"
            )


def how(comm: Any) -> str:
    """Say how NICs reach the GPU's memory, where nothing is lacking: "on: dma-buf, no flush"."""
    state = verbs.comm_net_state(comm)
    if not state.gpu_memory:
        return "no rank is on another host"
    return f"on: {_MEMORY[state.gpu_memory]}, {_FLUSH[state.gpu_flush]}"
