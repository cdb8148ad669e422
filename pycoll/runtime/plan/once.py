"""Once: what one rank finds out for all, such as a choice or a proof, or why it cannot be.

The control plane carries it, so a rank that asks waits for no call of the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Protocol

from pycoll.errors import InternalError, PycollError


class Once(Protocol):
    """One rank of a communicator makes something; all that ask for it get it."""

    def __call__(self, key: str, make: Callable[[], bytes], timeout: float | None = None) -> bytes:
        """Return what is called ``key``."""


def found_once(
    once: Once, subject: object, find: Callable[[], Any], timeout: float | None = None
) -> Any:
    """Return what `find` returns, as JSON can write it, on whichever rank it is called.

    Args:
        once: The communicator's.
        subject: What is asked, the same on all ranks that ask the same; its text counts.
        find: Called on one rank; what it raises is raised on all that ask, if it is pycoll's.
        timeout: Seconds to wait for the rank that finds it out.
    """
    mine: list[PycollError] = []

    def make() -> bytes:
        try:
            return json.dumps({"found": find()}).encode()
        except PycollError as error:
            mine.append(error)
            return json.dumps({"error": _said(error)}).encode()

    key = hashlib.blake2b(repr(subject).encode(), digest_size=16).hexdigest()
    answer = json.loads(once(key, make, timeout))
    if mine:
        raise mine[0]  # it knows where it came from
    if "error" in answer:
        raise _heard(answer["error"])
    return answer["found"]


def _said(error: PycollError) -> dict[str, Any]:
    known = {k: v for k, v in vars(error).items() if isinstance(v, str | int | None)}
    return {"type": type(error).__name__, "text": str(error), "known": known}


def _heard(said: dict[str, Any]) -> PycollError:
    kinds: list[type[PycollError]] = [PycollError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    kind = next((kind for kind in kinds if kind.__name__ == said["type"]), InternalError)
    error = kind(said["text"])
    vars(error).update(said["known"])
    return error
