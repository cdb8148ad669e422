"""Owner: a key that only the user who runs the job can read, for launchers that hand out no secret.

What such a launcher tells the ranks, an address or a job's name, everyone on the machine knows.
Mixed with this key it becomes a secret: a process of another user cannot make it. The key is a
file of mode 600 that the first job makes: in the folder of PYCOLL_CACHE, by default the user's own,
which hosts often share; in a folder of this machine where that cannot be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import stat
from pathlib import Path

from pycoll.errors import BootstrapError

KEY_BYTES = 32
#: Where every user may write, and nobody may remove what another has written.
FALLBACKS = (Path("/tmp"), Path("/dev/shm"))


def secret(cache: Path, name: bytes) -> bytes:
    """Return the secret of the job called `name`, which every rank of this user finds alike.

    Args:
        cache: The folder of PYCOLL_CACHE.
        name: What tells the job apart from the user's others.

    Raises:
        BootstrapError: There is no place for a key.
    """
    return hmac.digest(key(cache), b"pycoll " + name, hashlib.sha256)


def key(cache: Path) -> bytes:
    """Return this user's key on this machine, which is made if there is none."""
    user = os.geteuid()
    problems = []
    for folder in (cache, *FALLBACKS):
        path = folder / f"pycoll-key-{user}"
        try:
            return _read(path, user)
        except FileNotFoundError:
            pass
        except (OSError, _NotOurs) as error:
            problems.append(f"{path}: {_words(error)}")
            continue
        try:
            _make(path)
            return _read(path, user)
        except (OSError, _NotOurs) as error:
            problems.append(f"{path}: {_words(error)}")
    raise BootstrapError(
        f"there is no place for a key that only user {user} can read ({'; '.join(problems)}): set "
        "PYCOLL_SECRET to the same output of `openssl rand -hex 32` on every rank"
    )


class _NotOurs(Exception):
    """What lies there is not what this module made."""


def _read(path: Path, user: int) -> bytes:
    # Whoever may write to the folder may have put anything there: a link, a pipe.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _NotOurs("it is no file")
        if found.st_uid != user:
            raise _NotOurs(f"it belongs to user {found.st_uid}")
        if found.st_mode & 0o077:
            raise _NotOurs(f"others may read it (mode {stat.S_IMODE(found.st_mode):o}, want 600)")
        data = os.read(fd, KEY_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) != KEY_BYTES:
        raise _NotOurs(f"it has not {KEY_BYTES} bytes")
    return data


def _make(path: Path) -> None:
    """Put a key there that is whole from the first moment, unless another rank is quicker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = f"{path}.{os.urandom(8).hex()}"  # tempfile would load more than all else here
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(os.urandom(KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


def _words(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
