"""Verbosity: what PYCOLL_LOG asks for, such as ``info,net=debug:/tmp/log.%h.%p``.

Levels, with commas between them: one for all loggers, and one for each ``subject`` whose logger
shall say more, or less. A file may follow behind a colon; else it is all shown on standard error.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

LEVELS = ("debug", "info", "warning")
#: The loggers, ``pycoll.<subject>``, and what each says.
SUBJECTS = {
    "bootstrap": "version and settings; the launcher, the ranks and their hosts",
    "transport": "how ranks reach each other, by which rails, and why by no others",
    "net": "connections that are made, fail and come back; what had to be sent again",
    "selection": "which algorithm runs a call, and why",
    "proof": "what was proved, or read, before it ran",
    "cuda": "which GPU, and whose memory is reached how",
    "control": "who is gone, and which rank carries the control plane",
    "group": "communicators of some of the ranks, and of newcomers",
    "shrink": "who goes on, and without whom",
    "record": "records of the last calls that were written, or could not be",
    "check": "which calls were not checked though PYCOLL_CHECK asks for it",
    "profiler": "callbacks that raised, and are told no more",
}
#: What a name of a file may have in it: the host's name, the process id, and a percent sign.
_PLACES = ("%h", "%p", "%%")


class Verbosity(NamedTuple):
    """From which level on what is said is shown, and where."""

    level: str | None  #: of all loggers but those of `subjects`; None: these alone are shown
    subjects: tuple[tuple[str, str], ...] = ()  #: and the level of each
    file: str = ""  #: with %h and %p in it; "": standard error

    @classmethod
    def parse(cls, value: str | Verbosity) -> Verbosity:
        """Read what a user wrote; ValueError says what is wanted."""
        if isinstance(value, Verbosity):
            return value
        levels, colon, file = value.strip().partition(":")
        general: str | None = None
        subjects: dict[str, str] = {}
        for one in levels.split(","):
            subject, equals, level = one.strip().lower().rpartition("=")
            subject, level = subject.strip(), level.strip()
            if level not in LEVELS or bool(equals) != bool(subject):
                raise ValueError(
                    "debug, info or warning, and subject=level for single loggers, with commas "
                    "between them and :FILE behind, such as info,net=debug:/tmp/log.%h.%p"
                )
            if subject and subject not in SUBJECTS:
                raise ValueError(f"of subjects one of {', '.join(SUBJECTS)}")
            if subject in subjects or (not subject and general is not None):
                raise ValueError(f"one level for {subject or 'all loggers'}")
            if subject:
                subjects[subject] = level
            else:
                general = level
        if colon:
            _check_file(file)
        return cls(general, tuple(subjects.items()), file)

    def path(self, host: str, process: int) -> str:
        """Return the name of the file that a process of a host writes."""
        found = {"%h": host, "%p": str(process), "%%": "%"}
        return re.sub("%.", lambda place: found[place[0]], self.file)

    def __str__(self) -> str:
        levels = [self.level] if self.level else []
        levels += [f"{subject}={level}" for subject, level in self.subjects]
        return ",".join(levels) + (f":{self.file}" if self.file else "")


def _check_file(file: str) -> None:
    if not set(re.findall("%.?", file)) <= set(_PLACES) or not file or "\0" in file:
        raise ValueError("behind the colon a file, in whose name %h, %p and %% are all there is")
    # What the directory is called is known only with the name of the host in it.
    directory = os.path.dirname(file) or "."
    if "%" not in directory and not os.access(directory, os.W_OK | os.X_OK):
        raise ValueError(f"a file in a directory that can be written, which {directory} cannot")
