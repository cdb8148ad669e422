"""Every exception that pycoll raises.

A message says what happened, where, what was got and what was wanted. Each
class also inherits the builtin that a caller would expect to catch.
"""

from __future__ import annotations


class PycollError(Exception):
    """Base of every error that pycoll raises."""


class UsageError(PycollError, ValueError):
    """The caller passed something that pycoll does not serve; the message says what to do."""


class BusyError(UsageError):
    """The call came while another one is under way on the same communicator; that one goes on."""


class ScheduleError(PycollError):
    """A schedule or program is not correct. Base of the verifier's findings.

    Where the finding has a place, the attributes say which; else they are None.
    """

    rank: int | None = None
    channel: int | None = None
    instruction: int | None = None
    chunk: int | None = None


class PostconditionError(ScheduleError):
    """A place does not hold, at the end, what the collective promises."""


class RaceError(ScheduleError):
    """Two accesses to one place, at least one a write, with no order between them."""


class DeadlockError(ScheduleError):
    """Some rank waits for a signal that no rank will ever send."""


class UnavailableError(PycollError):
    """Something this machine or build lacks; the message names the command that mends it."""


class BootstrapError(PycollError):
    """The ranks could not find or authenticate each other."""


class TransportError(PycollError, OSError):
    """The operating system or the fabric refused an operation."""


class PeerLostError(TransportError):
    """A rank of the job is gone."""


class LostError(PycollError):
    """This rank is out: the other survivors went on without it, or too few of them have come."""


class MismatchError(PycollError):
    """Ranks called different collectives, or one collective with different arguments."""


class CollectiveTimeout(PycollError, TimeoutError):
    """A collective reached its deadline; the message says who waits for whom."""


class ClosedError(PycollError):
    """The communicator was closed by its owner."""


class BrokenError(PycollError):
    """An earlier failure broke the communicator; see ``__cause__``."""


class RevokedError(BrokenError):
    """A rank called `Communicator.revoke` or `Communicator.shrink`."""


class CorruptionError(PycollError):
    """A checked call gave a wrong result: bits have flipped. See PYCOLL_CHECK.

    Every rank raises it, with the same text. The communicator can be used as before; what the
    arrays of the result hold is not to be used.

    Attributes:
        call: What was called.
        communicator: Its name: "job", or such as "split 1 #7d3c..".
        first: The first element of the result that is wrong, as far as is known; None: it is not.
        last: The last one.
        offset: The byte of the result at which they begin.
        ranks: The odd ones: whose results are wrong; where all are, who can have made them so.
            Empty: not known. Of two that differ, where nobody knows which is right, both.
        hops: Each (sender, receiver, bit) with which one flipped bit, counted from the least of an
            element, explains what there is.
    """

    call: str = ""
    communicator: str = ""
    first: int | None = None
    last: int | None = None
    offset: int | None = None
    ranks: tuple[int, ...] = ()
    hops: tuple[tuple[int, int, int], ...] = ()


class InternalError(PycollError):
    """A bug in pycoll. Please report it with the message."""


def quoted(value: object) -> str:
    """Return a value as messages show it: one line, not long, whatever its own repr() does."""
    try:
        text = " ".join(line.strip() for line in repr(value).splitlines())
    except Exception:  # a user's own, or an integer of more digits than Python prints
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


_LONGEST = 80  #: characters of a value


def counted(n: int, noun: str) -> str:
    """Return how many there are of something: 1 rank, 2 ranks."""
    return f"{n} {noun}{'s' * (n != 1)}"


def described(error: BaseException) -> str:
    """Return the type and the text of an exception, whatever its own str() does."""
    try:
        text = str(error)
    except Exception:
        text = "<its str() failed>"
    return f"{type(error).__name__}: {text}"


def encoded(text: str) -> bytes:
    """Return a text of the user's for other ranks or C, which read UTF-8.

    It may hold what UTF-8 cannot: a name of a file whose bytes are not UTF-8 has lone surrogates.
    """
    return text.encode(errors="backslashreplace")
