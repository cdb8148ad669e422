"""Switches one planted mutant on, or notes which are reached; each Python of the tree loads it.

``MUTANT`` is the number of the mutant that is on. ``REACH`` is a folder in which each process notes
the sites that it reaches, and during which test; see observer.py. Some tests start programs with
an environment of their own: such a program looks at its ancestors' instead. switch.h is the same
for C. It is loaded by every Python that starts: what is not needed is not imported.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable


def _variables() -> tuple[str, str]:
    """Return MUTANT and REACH, of this process or of the first ancestor that has one."""
    mutant, reach = os.environ.get("MUTANT", ""), os.environ.get("REACH", "")
    pid = os.getppid()
    while not (mutant or reach) and pid > 1:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                given = dict(part.partition(b"=")[::2] for part in file.read().split(b"\0"))
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            break
        mutant = os.fsdecode(given.get(b"MUTANT", b""))
        reach = os.fsdecode(given.get(b"REACH", b""))
    return mutant, reach


def _noting(folder: str) -> Callable[[int], bool]:
    """Return what notes a site once in a process for each test, and switches nothing on."""
    import mmap

    # Tests replace functions of os and the builtin open; they must not see this.
    open_, write, close = os.open, os.write, os.close
    with open(f"{folder}/epoch", "rb") as file:
        epoch = memoryview(mmap.mmap(file.fileno(), 4, prot=mmap.PROT_READ)).cast("I")
    path, flags = f"{folder}/hits", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    seen: dict[int, int] = {}

    def note(site: int) -> bool:
        now = epoch[0]
        if seen.get(site) != now:
            seen[site] = now
            try:
                fd = open_(path, flags, 0o666)
            except OSError:  # no descriptor is left, say: the next hit may have more luck
                del seen[site]
                return False
            write(fd, b"%d %d\n" % (now, site))
            close(fd)
        return False

    return note


def _switch() -> Callable[[int], bool]:
    mutant, reach = _variables()
    if reach:
        try:
            return _noting(reach)
        except OSError:  # a machine that has not got the folder
            return frozenset[int]().__contains__
    on = frozenset([int(mutant)] if mutant else [])
    return on.__contains__


builtins.__pc_mutant__ = _switch()  # type: ignore[attr-defined]
