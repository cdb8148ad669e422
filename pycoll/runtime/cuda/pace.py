"""The speed of the link that the kernels pretend to have, where ranks share one GPU.

Kernels that are compiled while a rate is set wait as long as a link of that speed would take
(``native/gpu/kernel/pace.h``). What is timed with them says nothing of any link: whatever shows it
shows `label` too.
"""

from __future__ import annotations

from pycoll.arguments import integer

_MOST = 10**15
_rate = 0


def set_rate(bytes_per_second: int) -> None:
    """Let kernels be paced that this process compiles or loads from now on; 0: not.

    Raises:
        UsageError: It is no integer of 0 to 10^15.
    """
    global _rate
    _rate = integer("pace: bytes_per_second", bytes_per_second, 0, _MOST)


def options() -> tuple[str, ...]:
    """Return what the compiler is told."""
    return (f"-DPC_PACE={_rate}ull",) if _rate else ()


def label() -> str:
    """Return what results are to say; "" where nothing is paced."""
    return f"paced at {_rate / 1e9:g} GB/s: no measurement of a link" if _rate else ""
