"""File descriptors: what a process that has none left is told."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

from pycoll.errors import UnavailableError

#: What a rank may need beside what the program has open: of its own, and for each rank of the job.
_OWN, _EACH = 32, 4
#: Numbers of descriptors to look at when counting those in use.
_COUNTED = 1 << 16


@contextlib.contextmanager
def enough(what: str, size: int = 1) -> Iterator[None]:
    """Turn an error for want of file descriptors into one that says what limits them.

    Args:
        what: What is done inside, such as ``init``; begins the message.
        size: The number of ranks, as far as it is known.

    Raises:
        UnavailableError: The process, or the machine, has no file descriptor left.
    """
    try:
        yield
    except Exception as error:
        number = _number(error)
        if number is None:
            raise
        raise UnavailableError(f"{what}: {_text(number, size)}") from error


def _number(error: BaseException | None) -> int | None:
    """Return EMFILE or ENFILE where that is the error, or behind it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return error.errno
        error = error.__cause__ or error.__context__
    return None


def _text(number: int, size: int) -> str:
    wanted = _OWN + _EACH * size
    if number == errno.ENFILE:
        return (
            f"the machine has no file descriptor left, want {wanted} for this process: as root, "
            "sysctl fs.file-max=1000000"
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sum(_is_open(fd) for fd in range(min(soft, _COUNTED)))
    more = max(1024, 2 * (used + wanted))
    cure = f"ulimit -n {more}"
    if hard != resource.RLIM_INFINITY and more > hard:
        cure += f" (as root: the hard limit is {hard})"
    return (
        f"this process has {used} of {soft} file descriptors open (RLIMIT_NOFILE), want {wanted} "
        f"more for {size} rank{'' if size == 1 else 's'}: {cure}"
    )


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)  # which needs no descriptor, as listing /proc/self/fd would
    except OSError:
        return False
    return True
