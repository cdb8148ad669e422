"""Images: the plans that a CPU would run, in the memory of a GPU."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

from pycoll.runtime.native import bindings, device_comm

if TYPE_CHECKING:
    import threading

    from pycoll.runtime.cuda.kernels import Kernels
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.cache import BoundPlan
    from pycoll.runtime.plan.call import Call, Wanted
    from pycoll.runtime.plan.selection import Selection


class Device(Protocol):
    """What is used here of a device communicator."""

    engine: Engine
    native: Any
    kernels: Kernels
    instances: int
    whole: bool
    reach: tuple[str, ...]
    turn: threading.RLock

    @property
    def selection(self) -> Selection:
        """Return how calls choose their algorithms."""


class Images:
    """Those of one device communicator. The target of its plans."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._images: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def direct(self) -> bool:
        """Tell whether arrays of `empty` may take the direct form."""
        return self._device.whole

    @property
    def selection(self) -> Selection:
        """Return how calls choose their algorithms."""
        return self._device.selection

    def free(self) -> None:
        """Free every image: the device communicator closes."""
        for image in list(self._images):
            bindings.release(image)

    def keep(self, call: Call, handle: Any) -> Any:
        """Return the image of a native plan."""
        device = self._device
        # The others may be about to launch it, or have: they are not to wait for this rank.
        with device.turn, device.engine.order.entirely(call.text(None)):
            image = device_comm.device_plan_create(
                device.native,
                device.engine.comm,
                handle,
                device.kernels.function(call.dtype.carrier, call.op),
                threads=device.kernels.threads,
                instances=device.instances,
            )
        self._images.add(image)
        return image

    def offer(self, call: Call, wanted: Wanted, made: BoundPlan) -> None:
        """Do nothing: nobody starts these without Python, as a stream has to be asked for."""

    def forget(self) -> None:
        """Do nothing: none was offered."""

    def transport(self, peers: set[int]) -> str:
        """Return what moves the data to these ranks."""
        return "+".join(sorted({self._device.reach[peer] for peer in peers})) or "cuda"
