"""Collector: what is asked of Python's while much is made, and when it is over."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Look for no cycles inside; plans and proofs of many ranks take half as long so."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def give_back() -> None:
    """Give freed memory back to the system.

    Python keeps some thousand tuples that it has freed, until a whole collection, and each of them
    keeps a megabyte of others from being given back.
    """
    if gc.isenabled():
        gc.collect()
