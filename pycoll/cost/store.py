"""Where tunings are kept: one file for each machine, number of ranks and placement."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pycoll import files
from pycoll.cost.question import Question
from pycoll.cost.tuning import Tuning
from pycoll.errors import UsageError, quoted
from pycoll.sysfs import cpu_model


def key(version: str, question: Question, cpu: str | None = None) -> str:
    """Return the name of a tuning: what else may change does not change what was measured.

    Args:
        version: Of pycoll.
        question: Any of the job's; what is told apart are its ranks and where they are.
        cpu: Model of the processor; this machine's by default.
    """
    levels = () if question.placement is None else question.placement.levels
    text = repr(
        (
            version,
            cpu_model() if cpu is None else cpu,
            question.size,
            question.cores,
            [(level.name, tuple(level.groups)) for level in levels],
            question.remote,
            question.slots,
            question.slot_bytes,
            *((question.wire,) if question.rdma else ()),  # another network is another machine
            *(("software",) if question.software else ()),
        )
    )
    return f"{question.size}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def path(directory: Path, name: str) -> Path:
    """Return the file of the tuning called ``name``."""
    return directory / "tuning" / f"{name}.json"


def load(directory: Path, version: str, question: Question) -> Tuning | None:
    """Return what was measured for the job's machine; None if nothing was.

    A file that cannot be read is a warning and no more: the model serves.
    """
    file = path(directory, key(version, question))
    try:
        return Tuning.from_json(files.read_json(file))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warnings.warn(
            f"{file} cannot be used ({error}); algorithms are chosen by the model. "
            "Run pycoll tune again, or remove the file",
            stacklevel=2,
        )
        return None


def store(
    directory: Path, version: str, question: Question, tuning: Tuning, meta: dict[str, Any]
) -> Path:
    """Keep a tuning; ``meta`` says who measured when, for whoever looks into the file.

    Raises:
        UsageError: It cannot be written there.
    """
    file = path(directory, key(version, question))
    with _writing(directory, file.parent) as (stream, temporary):
        json.dump(tuning.to_json() | {"meta": meta}, stream)
        stream.close()
        os.replace(temporary, file)  # another job may read it now
    return file


def require_writable(directory: Path) -> None:
    """Check that tunings can be kept in a directory, before they take time to measure.

    Raises:
        UsageError: They cannot.
    """
    with _writing(directory, path(directory, "-").parent):
        pass


@contextlib.contextmanager
def _writing(directory: Path, folder: Path) -> Iterator[tuple[IO[str], str]]:
    """Open a new file; what is left of it at the end goes."""
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".part")
        with os.fdopen(handle, "w") as stream:
            yield stream, temporary
    except OSError as error:
        raise UsageError(
            f"tunings cannot be kept in {quoted(str(directory))}: {error.strerror or error}; name "
            "another directory by --cache or PYCOLL_CACHE"
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
