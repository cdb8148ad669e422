"""Where tunings are kept: one file for each machine, number of ranks and placement."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

from pycoll.cost.question import Question
from pycoll.cost.tuning import Tuning


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
        return Tuning.from_json(json.loads(file.read_text()))
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
    """Keep a tuning; ``meta`` says who measured when, for whoever looks into the file."""
    file = path(directory, key(version, question))
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, suffix=".part")
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump(tuning.to_json() | {"meta": meta}, stream)
        os.replace(temporary, file)  # another job may read it now
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return file


def cpu_model() -> str:
    """Return the model of the processor, or "" where the system does not say."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            text = stream.read(4096)  # the first core's; the whole takes long on a large machine
    except OSError:
        return ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return ""
