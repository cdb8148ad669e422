"""The question that the ranks of a communicator ask of `cost` about a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycoll.cost import Question, Switch
from pycoll.order import FREE

if TYPE_CHECKING:
    from pycoll.runtime.join import World


def question(
    world: World,
    collective: str,
    nbytes: int,
    wanted: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    unproved: bool = False,
    without: tuple[str, ...] = (),
    switch: Switch = Switch.NONE,
    order: str = FREE,
) -> Question:
    """Return what the ranks of a communicator ask about a call."""
    return Question(
        collective,
        nbytes,
        world.size,
        world.cores,
        placement=world.placement,
        remote=world.remote,
        wanted=wanted,
        dtype=dtype,
        slots=world.slots,
        slot_bytes=world.slot_bytes,
        budget=world.budget,
        small_bytes=world.small_bytes,
        rdma=world.rdma,
        wire=world.wire,
        software=world.software,
        device=device,
        unproved=unproved,
        without=without,
        switch=switch,
        order=order,
    )
