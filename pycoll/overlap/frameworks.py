"""cupy and torch, where a program has loaded them: what they work on, and on which stream."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


def on_stream(enqueue: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return the same, with its stream as the current one of cupy and of torch."""

    def call(stream: Any) -> object:
        with contextlib.ExitStack() as stack:
            for entered in made_current(stream):
                stack.enter_context(entered)
            return enqueue(stream)

    return call


def _loaded() -> Iterator[tuple[str, Any]]:
    """Yield what is loaded and has a GPU; nothing is imported for it."""
    for name in ("cupy", "torch"):
        module = sys.modules.get(name)
        if module is not None and module.cuda.is_available():
            yield name, module


def made_current(stream: Any) -> Iterator[Any]:
    """Yield what makes a stream the current one of cupy and of torch, each to be entered."""
    for name, module in _loaded():
        if name == "torch":
            yield module.cuda.stream(module.cuda.ExternalStream(stream.ptr, stream.device))
        elif hasattr(module.cuda.Stream, "from_external"):  # since 14
            yield module.cuda.Stream.from_external(stream)
        else:
            yield module.cuda.ExternalStream(stream.ptr, stream.device)


def current_device() -> int:
    """Return the device that cupy, or else torch, works on; 0 without either."""
    for name, module in _loaded():
        found = module.cuda.Device().id if name == "cupy" else module.cuda.current_device()
        return int(found)
    return 0
