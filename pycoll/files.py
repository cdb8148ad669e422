"""Files that other programs may have left: read them without trusting what is there."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any


def read(path: Path) -> bytes:
    """Return what a file holds.

    Raises:
        OSError: It cannot be read, or is no regular file: a pipe would be waited for, without end.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("it is not a regular file")
        return stream.read()


def read_json(path: Path) -> Any:
    """Return the value that a file of JSON holds.

    Raises:
        OSError: As `read`.
        ValueError: It is not JSON.
    """
    try:
        return json.loads(read(path))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
