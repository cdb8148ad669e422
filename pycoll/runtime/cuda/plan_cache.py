"""Plans of a plane: the plan that a CPU would run, as an image in the memory of a GPU."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from pycoll.runtime.native import bindings, device_comm
from pycoll.runtime.plan.cache import BoundPlan, PlanCache
from pycoll.runtime.plan.call import Call, Wanted
from pycoll.runtime.plan.proof import Proofs

if TYPE_CHECKING:
    from pycoll.runtime.cuda.device_comm import DeviceComm


class DevicePlanCache(PlanCache):
    """The plans of one plane. What is proved for the communicator beside it is proved here."""

    def __init__(self, plane: DeviceComm, proofs: Proofs) -> None:
        super().__init__(plane, proofs)
        self._plane = plane
        self.direct = plane.whole
        self._images: weakref.WeakSet[Any] = weakref.WeakSet()

    def known(self, call: Call, wanted: Wanted) -> bool:
        """Tell whether `find` has only to look it up."""
        return (call, wanted) in self._plans

    def free(self) -> None:
        """Free every image: the plane closes."""
        for image in list(self._images):
            bindings.release(image)
        self._forget()

    def _keep(self, call: Call, handle: Any) -> Any:
        plane = self._plane
        # The others may be about to launch it, or have: they are not to wait for this rank.
        with plane.turn, plane.entirely(call.text(None)):
            image = device_comm.device_plan_create(
                plane.native,
                plane.comm,
                handle,
                plane.kernels.function(call.dtype.carrier, call.op),
                threads=plane.kernels.threads,
                instances=plane.instances,
            )
        self._images.add(image)
        return image

    def _offer(self, call: Call, wanted: Wanted, made: BoundPlan) -> None:
        """Nobody starts these without Python: a stream has to be asked for."""

    def _transport(self, peers: set[int]) -> str:
        return "+".join(sorted({self._plane.reach[peer] for peer in peers})) or "cuda"
