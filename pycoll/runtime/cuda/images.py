"""Images: the plans that a CPU would run, in the memory of a GPU."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

from pycoll.algorithms import BUILTIN
from pycoll.program.isa import MAX_DESTINATIONS
from pycoll.program.lower import identity
from pycoll.runtime.native import bindings, device_comm
from pycoll.runtime.plan.once import found_once
from pycoll.schedule.trace import schedule

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from pycoll.runtime.cuda.kernels import Kernels
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.cache import BoundPlan
    from pycoll.runtime.plan.call import Call
    from pycoll.runtime.plan.options import Asked
    from pycoll.runtime.plan.proof import Form
    from pycoll.runtime.plan.selection import Selection


class Device(Protocol):
    """What is used here of a device communicator."""

    engine: Engine
    native: Any
    kernels: Kernels
    blocks: int  #: of a kernel, at most
    whole: bool
    reach: tuple[str, ...]
    turn: threading.RLock

    @property
    def selection(self) -> Selection:
        """Return how calls choose their algorithms."""


class Images:
    """Those of one device communicator. The target of its plans."""

    destinations = MAX_DESTINATIONS  #: of a REDUCE_COPY: all are stored to in the time of one

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

    def keep(self, call: Call, handle: Any, forms: Sequence[Form], timeout: float | None) -> Any:
        """Return the image of a native plan."""
        device = self._device
        channels = max(self._channels(form, timeout) for form in forms)
        # The others may be about to launch it, or have: they are not to wait for this rank.
        with device.turn, device.engine.order.entirely(call.text(None)):
            image = device_comm.device_plan_create(
                device.native,
                device.engine.comm,
                handle,
                device.kernels.function(call.dtype.carrier, call.op),
                threads=device.kernels.threads,
                blocks=device.blocks,
                channels=channels,
            )
        self._images.add(image)
        return image

    def _channels(self, form: Form, timeout: float | None) -> int:
        """Return how many channels the rank has that has most: so all cut a call alike.

        0: as many as this one. So it is with all built-in algorithms (tests/algorithms).
        """
        if form.algorithm in BUILTIN:
            return 0
        size = self._device.engine.world.size
        subject = "channels", identity(form.algorithm, size, form.placement)

        def find() -> int:
            return schedule(form.algorithm, size, form.placement).nchannels

        return int(found_once(self._device.engine.once, subject, find, timeout))

    def offer(self, call: Call, asked: Asked, made: BoundPlan) -> None:
        """Do nothing: nobody starts these without Python, as a stream has to be asked for."""

    def forget(self) -> None:
        """Do nothing: none was offered."""

    def transport(self, peers: set[int]) -> str:
        """Return what moves the data to these ranks."""
        return "+".join(sorted({self._device.reach[peer] for peer in peers})) or "cuda"
