"""GPUDirect RDMA: whether data for other hosts goes from GPU to GPU, or why it is staged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pycoll.bootstrap.control_router import rank_list
from pycoll.errors import UnavailableError
from pycoll.runtime.native import device_comm, verbs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Ways that a setting allows, of PC_MEM_WAYS.
_WAYS = {"auto": 6, "dmabuf": 2, "peermem": 4}
_MEMORY = {1: "dma-buf", 2: "peermem", 4: "FI_HMEM"}
_FLUSH = {0: "no flush", 1: "flushed by the driver", 2: "flushed by an RDMA read"}


class Said(NamedTuple):
    """What a rank says of itself to the others."""

    setting: str  #: PYCOLL_GPU_RDMA
    lack: str  #: why its remote edges' data does not lie on its GPU, or ""
    staged: Mapping[int, str]  #: ranks whose edges' data alone does not, as others' does; and why

    def why(self, peer: int) -> str:
        """Return why the data of the edges to a remote rank does not lie on its GPU, or ""."""
        return self.lack or self.staged.get(peer, "")

    def told(self) -> list[Any]:
        """Return it for JSON, whose keys are no numbers."""
        return [self.setting, self.lack, list(self.staged.items())]

    @classmethod
    def of(cls, told: Sequence[Any]) -> Said:
        """Return what a rank has told."""
        setting, lack, staged = told
        return cls(setting, lack, dict(staged))


def register(native: Any, comm: Any, setting: str, size: int) -> Said:
    """Have remote edges' data lie in memory of the GPU; return what came of it.

    Each rank decides for itself, and for each peer: one may have its slots on the GPU and its peer
    in the host's memory.

    Args:
        native: A device communicator that is not sealed, none of whose remote ranks is connected.
        comm: Its communicator.
        setting: PYCOLL_GPU_RDMA.
        size: Number of ranks.

    Raises:
        PycollError: The device or the engine failed.
    """
    if setting == "off":
        return Said(setting, "off, by PYCOLL_GPU_RDMA", {})
    if missing := device_comm.device_comm_gpudirect(native, comm, _WAYS[setting]):
        return Said(setting, missing, {})
    whys = {peer: device_comm.device_comm_staged(native, comm, peer) for peer in range(size)}
    return Said(setting, "", {peer: why for peer, why in whys.items() if why})


def require(said: Sequence[Said]) -> None:
    """Raise, on all ranks alike, if one insists on what it does not have."""
    for rank, one in enumerate(said):
        missing = one.lack or _told(one.staged)
        if missing and one.setting in ("dmabuf", "peermem"):
            raise UnavailableError(
                f"PYCOLL_GPU_RDMA is {one.setting} on rank {rank}, whose GPU memory is not reached "
                f"so: {missing}"
            )


def how(comm: Any, said: Said) -> str:
    """Say how NICs reach the GPU's memory, "on: dma-buf, no flush", or why they do not."""
    state = verbs.comm_net_state(comm)
    if said.lack:
        return said.lack
    if not state.gpu_memory:
        return "no rank is on another host"
    memory = " and ".join(name for kind, name in _MEMORY.items() if state.gpu_memory >> kind & 1)
    rest = said.staged and f"; staged for {_told(said.staged)}"
    return f"on: {memory}, {_FLUSH[state.gpu_flush]}{rest or ''}"


def _told(staged: Mapping[int, str]) -> str:
    """Say it, ranks together that are staged for the same reason: "rank 3: ..."."""
    alike: dict[str, list[int]] = {}
    for peer, why in staged.items():
        alike.setdefault(why, []).append(peer)
    return "; ".join(f"{rank_list(peers)}: {why}" for why, peers in alike.items())
