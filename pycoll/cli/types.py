"""What an option's text stands for: argparse's types."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection

_SUFFIXES = {"": 0, "K": 10, "M": 20, "G": 30}


def nbytes(text: str) -> int:
    """Parse a message size such as 8, 4K or 256M; K, M and G are powers of 1024."""
    match = re.fullmatch(r"([1-9][0-9]*)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, want such as 8, 4K or 256M")
    return int(match[1]) << _SUFFIXES[match[2].upper()]


def at_least(least: int) -> Callable[[str], int]:
    """Return what parses an integer of at least ``least``."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}, want an integer of at least {least}")
        return int(text)

    return number


positive = at_least(1)


def listed(text: str) -> tuple[str, ...]:
    """Parse names between commas, each once."""
    return tuple(dict.fromkeys(name for name in text.split(",") if name))


def some_of(known: Collection[str], other: str) -> Callable[[str], tuple[str, ...]]:
    """Return what parses some of the known names; ``other`` says what any other one is."""

    def names(text: str) -> tuple[str, ...]:
        for name in listed(text):
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"{name!r} is {other}, want some of {', '.join(known)}"
                )
        return listed(text)

    return names
