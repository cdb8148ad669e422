"""Resends: what RDMA ports sent again while a communicator lived, as their counters have it.

A port retries by itself, so that no call fails, and none says why it took long. The counters are
the port's: they tell of all that goes by it, of whatever job.
"""

from __future__ import annotations

from collections.abc import Sequence

from pycoll.sysfs import HOST, RDMA

#: What happened → what the drivers call it, of which a port has some.
COUNTERS = {
    "times that it began to send again": (
        "local_ack_timeout_err",
        "packet_seq_err",
        "completer_retry_err",
    ),
    "requests that came twice": ("duplicate_request",),
    "requests that came before others": ("out_of_sequence", "out_of_seq_request"),
}


class Resends:
    """The counters of some ports, from now on.

    Args:
        rails: The ports, such as ``mlx5_0:1``.
    """

    def __init__(self, rails: Sequence[str]) -> None:
        self._before = {rail: _read(rail) for rail in rails}

    def told(self) -> str:
        """Return what has grown since, in words; "" if nothing has, or nobody can tell."""
        parts = []
        for rail, before in self._before.items():
            grown = {what: n - before.get(what, n) for what, n in _read(rail).items()}
            if said := ", ".join(f"{n} {what}" for what, n in grown.items() if n > 0):
                parts.append(f"{rail}: {said}")
        return "; ".join(parts)


def _read(rail: str) -> dict[str, int]:
    device, _, port = rail.rpartition(":")
    folder = f"{RDMA}/{device}/ports/{port}/hw_counters"
    found = {
        what: [n for name in names if (n := HOST.count(f"{folder}/{name}")) is not None]
        for what, names in COUNTERS.items()
    }
    return {what: sum(counts) for what, counts in found.items() if counts}
