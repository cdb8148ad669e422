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
    "pycoll.runtime.plan.selection",
    "pycoll.cost.offer",
    "pycoll.cost.prediction",
    "pycoll.arrays.families",
    "pycoll.verify",
)


def preload() -> None:
    """Import and read it; not what this machine cannot run: ranks need not use the engine."""
    with contextlib.suppress(UnavailableError):
        for name in _MODULES:
            importlib.import_module(name)
        certificates = importlib.import_module("pycoll.verify.certificates")
        certificates.certificates()  # a megabyte
        certificates.source_digest()
