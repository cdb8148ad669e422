"""A job in a guest whose ranks have a GPU each, the stand-in: see device_rank.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fakecuda_library
from batch_job import State
from rack import Rack
from ranks import ROOT, Ranks

DEVICE_RANK = str(Path(__file__).with_name("device_rank.py"))
ENGINE = str(Path(__file__).with_name("engine.py"))
#: What makes a NIC's writes visible: options of the stand-in, and what pycoll says of it.
FLUSHES = {
    "none": ({"CAPABILITY": 90}, "no flush"),
    "driver": ({"CAPABILITY": 80, "FLUSH": 1}, "flushed by the driver"),
    "read": ({"CAPABILITY": 80, "FLUSH": 0}, "flushed by an RDMA read"),
}


def device_ranks(
    rack: Rack,
    arguments: list[str],
    size: int,
    flush: str,
    settings: dict[str, str],
    built: Path | None = None,
    **more: Any,
) -> Ranks:
    """Start ranks whose GPUs are stand-ins.

    Args:
        rack: What they run on.
        arguments: Of device_rank.py.
        size: How many ranks.
        flush: What makes a card's writes visible, of FLUSHES.
        settings: More of their environment.
        built: Another engine than pycoll's own.
        **more: Options of `Ranks`.
    """
    folders = [ROOT, *(ROOT / "tests" / name for name in (".", "cuda", "fakecuda", "rdma"))]
    env = {
        "PYTHONPATH": ":".join(map(str, folders)),
        "PYCOLL_TRANSPORT": "verbs",
        "FAKECUDA_LIBRARY": str(fakecuda_library.built()),
        "FAKECUDA_PINNED": "1",
    }
    env |= {f"FAKECUDA_{name}": str(value) for name, value in FLUSHES[flush][0].items()}
    other = [] if built is None else [ENGINE, str(built)]
    argv = [sys.executable, *other, DEVICE_RANK, *arguments]
    return Ranks(rack, argv, size, env={**env, **settings}, cold=built is not None, **more)


def unstaged(state: State) -> bool:
    """Whether all bytes came out of memory of the GPU, but those of messages in their lines."""
    rest: int = sum(state["bytes"]) - state["gpu_bytes"]
    return state["gpu_bytes"] > 0 and rest <= 40 * state["requests"]
