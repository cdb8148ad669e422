"""The function of ``native/pycoll.h`` that tries RDMA on a GPU's memory."""

from __future__ import annotations

from typing import NamedTuple

from pycoll.errors import TransportError
from pycoll.runtime.native.load import ffi, lib, text_of

#: What makes an RDMA write visible to the GPU, by its number in C.
FLUSHES = ("none", "by the driver", "by an RDMA READ")


class Tried(NamedTuple):
    """What came of registering a page of a GPU's memory; "" where that was done."""

    dmabuf: str  #: by dma-buf; what mends it stands behind the last ": "
    peermem: str  #: by its address, with nvidia_peermem; likewise
    flush: str  #: of FLUSHES


def gpu_probe(device: int, card: str) -> Tried:
    """Register a page of a GPU's memory with an RDMA device, and deregister it.

    Args:
        device: The GPU's ordinal.
        card: The RDMA device's name, such as mlx5_0.

    Raises:
        TransportError: Nothing could be tried, and why.
    """
    error, found = ffi.new("struct pc_error *"), ffi.new("struct pc_gpu_probe *")
    if lib.pc_verbs_gpu_probe(device, card.encode(), error, found) < 0:
        raise TransportError(text_of(error.text))
    return Tried(text_of(found.dmabuf), text_of(found.peermem), FLUSHES[found.flush])
