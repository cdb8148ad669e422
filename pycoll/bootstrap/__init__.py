"""Bootstrap: how ranks find each other, and the control plane that they keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pycoll.bootstrap.base import Bootstrap
from pycoll.bootstrap.control import Control
from pycoll.bootstrap.detect import detect, launcher

if TYPE_CHECKING:
    from pycoll.bootstrap.local_launch import spawn

__all__ = ["Bootstrap", "Control", "detect", "launcher", "spawn"]


def __getattr__(name: str) -> Any:
    if name != "spawn":
        raise AttributeError(f"module 'pycoll.bootstrap' has no attribute {name!r}")
    # Loaded at first use: what only a parent of ranks needs would double a rank's start-up.
    from pycoll.bootstrap.local_launch import spawn

    return spawn
