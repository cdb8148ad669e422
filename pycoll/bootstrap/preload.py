"""Preload: what first calls import and read, for a process of which ranks will be copies.

A rank that imports it by itself takes a fifth of a second of a core for it, and memory of its own.
"""

from __future__ import annotations

import contextlib
import importlib

from pycoll.errors import UnavailableError

#: With what they import in their turn.
_MODULES = (
    "encodings.idna",  # of socket.getaddrinfo
    "numpy",
    "pycoll.communicator",
    "pycoll.runtime.engine",
    "pycoll.runtime.host.executor",
    "pycoll.runtime.dispatch",
    "pycoll.runtime.work",
    "pycoll.runtime.shrink",
    "pycoll.runtime.plan.selection",
    "pycoll.cost.offer",
    "pycoll.cost.prediction",
    "pycoll.arrays.families",
    "pycoll.verify",
)


#: Copies on one host beyond which each is to hold as little memory of its own as can be.
MANY_COPIES = 64


def preload(copies: int) -> None:
    """Import and read what the ranks need, as far as this machine can: they may not use the engine.

    Args:
        copies: Ranks on this host. For many the first calls are rehearsed, too: some 15 ms.
    """
    with contextlib.suppress(UnavailableError):
        for name in _MODULES:
            importlib.import_module(name)
        certificates = importlib.import_module("pycoll.verify.certificates")
        certificates.read()  # a megabyte
    if copies > MANY_COPIES:
        with contextlib.suppress(Exception):  # the ranks do without, or say what is wrong
            importlib.import_module("pycoll.rehearsal").rehearse()
