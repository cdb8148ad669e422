"""What a whole GPU does: its SMs, how they can be parted, and its rates, by data sheets."""

from __future__ import annotations

from typing import NamedTuple

from pycoll.errors import UnavailableError, quoted
from pycoll.overlap.limits import Limits, limits


class Rates(NamedTuple):
    """What a GPU does in a second, at best."""

    memory: float  #: bytes
    plain: float  #: operations on 32-bit floats
    tensor: float  #: operations on 16-bit floats by tensor cores, of dense matrices
    link: float  #: bytes that it sends over NVLink


class Machine(NamedTuple):
    """A GPU."""

    sm: Limits
    sms: int
    least: int  #: SMs of a part
    unit: int  #: a part has a multiple of it
    rates: Rates | None  #: None: not known; then seconds are to be given


#: NVIDIA's data sheets of A100 (SXM, 80 GB) and H100 (SXM): SMs and rates by compute capability.
_SHEETS = {
    (8, 0): (108, Rates(2.039e12, 19.5e12, 312e12, 300e9)),
    (9, 0): (132, Rates(3.35e12, 67e12, 989e12, 450e9)),
}
#: How SMs are parted, by the major number, as the driver's documentation lists it.
_PARTS = {7: (2, 2), 8: (4, 2)}
_NEWER_PARTS = 8, 8


def rates(capability: tuple[int, int]) -> Rates | None:
    """Return the rates of GPUs of a compute capability, or None."""
    return _SHEETS[capability][1] if capability in _SHEETS else None


def machine(capability: tuple[int, int]) -> Machine:
    """Return a GPU of a compute capability.

    Raises:
        UsageError: It is not two integers.
        UnavailableError: No data sheet of one is known here.
    """
    sm = limits(capability)
    key = capability[0], capability[1]
    if key not in _SHEETS:
        known = ", ".join(f"{major}.{minor}" for major, minor in _SHEETS)
        raise UnavailableError(
            f"overlap.advise: no data sheet is known for compute capability "
            f"{quoted(key[0])}.{quoted(key[1])}; known are {known}; on a machine with that GPU "
            "leave capability out"
        )
    sms, found = _SHEETS[key]
    return Machine(sm, sms, *_PARTS.get(key[0], _NEWER_PARTS), found)
