"""Inserts mutants into the text of a source, all switched off until the environment says which.

A line stays the line that it was: each stretch of text is replaced by one of as many lines.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from mutant import NUMBER, Site

#: What a mutated source of C includes: switch.h, copied beside it under this name.
HEADER = "pc_mutation_switch.h"
#: Where a Python runs without its site, nothing has given it the switch.
_OFF = '; __pc_mutant__ = getattr(__import__("builtins"), "__pc_mutant__", lambda number: False)'
_IMPORT = re.compile(
    rb"^(from __future__ import annotations|import \w+|from \w+ import \w+)$", re.MULTILINE
)
_OPAQUE = re.compile(rb'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def inserted(source: bytes, sites: Mapping[int, Site]) -> bytes:
    """Return a source with mutants in it.

    Args:
        source: Its text.
        sites: Where, by the mutants' numbers; all in this source.

    Raises:
        ValueError: If two of them overlap, or there is no place for what each source needs.
    """
    file = next(iter(sites.values())).file
    lines = source.count(b"\n")
    above = len(source) + 1
    starts = [site.start for site in sites.values()]
    place = 0 if file.endswith(".py") else _gap(file, source, starts)
    for number, site in sorted(sites.items(), key=lambda item: -item[1].start):
        if site.end > above:
            raise ValueError(f"{file}:{site.line}: two mutants overlap")
        above = site.start
        new = site.planted.replace(NUMBER, str(number)).encode()
        source = source[: site.start] + new + source[site.end :]
    if file.endswith(".py"):
        match = _IMPORT.search(source)
        if match is None:
            raise ValueError(f"{file}: has no simple import behind which the switch finds a place")
        source = source[: match.end()] + _OFF.encode() + source[match.end() :]
        ast.parse(source)
    else:
        source = source[:place] + f'#include "{HEADER}"'.encode() + source[place:]
    assert source.count(b"\n") == lines, f"{file}: lines have shifted"
    return source


def _gap(file: str, source: bytes, starts: Sequence[int]) -> int:
    """Return where an empty line is that is compiled wherever the mutants after it are."""
    text = _OPAQUE.sub(lambda match: re.sub(rb"[^\n]", b"x", match[0]), source)
    at = 0
    branches: list[int] = []  # of the #if around a line, by where they begin
    gaps: list[tuple[int, list[int]]] = []
    common: list[int] | None = None
    for line in text.split(b"\n"):
        for _ in filter(lambda start: at <= start <= at + len(line), starts):
            common = [a for a, b in zip(common or branches, branches, strict=False) if a == b]
        word = line.strip()
        if word.startswith(b"#if"):
            branches = [*branches, at]
        elif word.startswith((b"#else", b"#elif")):
            branches = [*branches[:-1], at]
        elif word.startswith(b"#endif"):
            branches = branches[:-1]
        level = text.count(b"{", 0, at) == text.count(b"}", 0, at)
        if not word and 0 < at < min(starts) and level:
            gaps.append((at, branches))
        at += len(line) + 1
    for place, around in gaps:
        if common is not None and common[: len(around)] == around:
            return place
    raise ValueError(f"{file}: has no empty line in which the switch finds a place")
