"""File descriptors: a job of many ranks gets them, and who has none left is told why."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

from pycoll.errors import UnavailableError

#: What a rank may need beside what the program has open: of its own, and for each rank of the job.
_OWN, _EACH = 32, 4
#: What a process needs, at the least, that has one for each rank of the job: rank 0, a launcher.
_SPARE = 16
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


def make_room(count: int) -> None:
    """Raise the soft limit of this process until `count` descriptors more can be opened.

    It stays where that is so already, and it never exceeds the hard limit. It is not lowered again
    while the job lasts: programs that call ``select()`` fail with descriptors from 1024 on.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _used() + count + _SPARE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def room(count: int) -> Iterator[int]:
    """Have room for `count` descriptors more inside; gives the soft limit that was there before."""
    before, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    make_room(count)
    try:
        yield before
    finally:
        restore(before)


def restore(soft: int) -> None:
    """Set the soft limit to what it was; what is open beyond it stays open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def require(count: int) -> None:
    """Raise OSError, which `enough` explains, if the hard limit leaves no room for `count` more.

    To be called after `make_room`, by who would else find out when it is half way.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and _used() + count > soft:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _used() -> int:
    """Return how many descriptors are open."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # of which one is the listing's own
    except OSError:  # there is none left to list them by
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return sum(_is_open(fd) for fd in range(min(soft, _COUNTED)))


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
    used = _used()
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
