"""Finding: what one check says of one thing, and what mends it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from pycoll.errors import InternalError


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    UNKNOWN = "not known"  #: nothing that this process may read tells
    WARNING = "warning"  #: it works, but slower or less surely than this machine could
    PROBLEM = "problem"  #: jobs fail, or run at a fraction of the machine's speed


@dataclass(frozen=True)
class Finding:
    """One row of the table. All but an ok one say what to do about it."""

    level: Level
    where: str  #: a device, a port, a file's path or "this process"
    what: str  #: one sentence without its full stop
    got: str = ""
    wanted: str = ""
    cure: str = ""  #: a command, or a file and what belongs into it
    check: str = ""  #: name of the check, filled in by `examine`

    def __post_init__(self) -> None:
        needed: tuple[str, ...] = (self.where, self.what)
        if self.level is not Level.OK:
            needed += (self.cure,)
        if self.level in (Level.WARNING, Level.PROBLEM):
            needed += (self.got, self.wanted)
        if not all(needed):
            raise InternalError(f"{self} says too little: want where, what, got, wanted and cure")

    def encode(self) -> dict[str, str]:
        """Return the fields as JSON takes them."""
        return {name: str(value) for name, value in asdict(self).items()}


def ok(where: str, what: str) -> Finding:
    """Say that nothing is wrong there."""
    return Finding(Level.OK, where, what)


def unknown(where: str, what: str, *, cure: str) -> Finding:
    """Say that nothing could be read, and how to find out."""
    return Finding(Level.UNKNOWN, where, what, cure=cure)


def warning(where: str, what: str, *, got: str, wanted: str, cure: str) -> Finding:
    """Say what costs speed or safety."""
    return Finding(Level.WARNING, where, what, got, wanted, cure)


def problem(where: str, what: str, *, got: str, wanted: str, cure: str) -> Finding:
    """Say what must be mended."""
    return Finding(Level.PROBLEM, where, what, got, wanted, cure)


def bad(severe: bool, where: str, what: str, *, got: str, wanted: str, cure: str) -> Finding:
    """Say what is a problem if it is `severe`, else a warning."""
    level = Level.PROBLEM if severe else Level.WARNING
    return Finding(level, where, what, got, wanted, cure)
