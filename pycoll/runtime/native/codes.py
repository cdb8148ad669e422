"""What the engine's functions return, and the exceptions that it means."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, NoReturn

from pycoll.errors import (
    BrokenError,
    CollectiveTimeout,
    InternalError,
    MismatchError,
    PeerLostError,
    PycollError,
    TransportError,
    UnavailableError,
    UsageError,
)
from pycoll.runtime.native.load import lib, text_of

AGAIN: int = lib.PC_AGAIN
INVALID: int = lib.PC_INVALID
TIMEDOUT: int = lib.PC_TIMEDOUT
MISMATCH: int = lib.PC_MISMATCH
ABORTED: int = lib.PC_ABORTED
BUSY: int = lib.PC_BUSY
BROKEN: int = lib.PC_BROKEN
LOST: int = lib.PC_LOST
UNMAPPABLE: int = lib.PC_UNMAPPABLE
NOMEM: int = lib.PC_NOMEM
TRANSFER: int = lib.PC_CAUSE_TRANSFER  #: `Error.cause` where a transfer failed

EXCEPTIONS: dict[int, type[PycollError]] = {
    lib.PC_NOMEM: UnavailableError,
    lib.PC_SYSTEM: TransportError,
    UNMAPPABLE: UnavailableError,
    TIMEDOUT: CollectiveTimeout,
    MISMATCH: MismatchError,
    BUSY: UsageError,
    BROKEN: BrokenError,
    LOST: PeerLostError,
}


class Error(NamedTuple):
    """What the engine says about its last failure."""

    code: int
    cause: int  #: ABORTED: what was given to `comm_abort`; else TRANSFER if one failed
    peer: int
    errnum: int
    text: str


def code_name(code: int) -> str:
    """Return the name of a return code."""
    return text_of(lib.pc_code_name(code))


def comm_error(comm: Any) -> Error:
    """Return what the engine says about its last failure."""
    e = lib.pc_comm_error(comm)
    return Error(e.code, e.cause, e.peer, e.errnum, text_of(e.text))


def check(code: int, comm: Any, what: str) -> int:
    """Return a code that is not negative; raise what a negative one means."""
    if code >= 0:
        return code
    raise_for(code, comm, what)


def raise_for(code: int, comm: Any, what: str) -> NoReturn:
    """Raise the exception of a negative code, with the engine's own text."""
    error = Error(code, 0, -1, 0, "") if comm is None else comm_error(comm)
    text = error.text if error.code == code and error.text else code_name(code)
    kind = EXCEPTIONS.get(code, InternalError)
    if kind is TransportError and error.errnum:
        why = os.strerror(error.errnum)  # which the engine's own text may end with
        text = text if text.endswith(why) else f"{text}: {why}"
        raise TransportError(error.errnum, f"{what}: {text}")
    raise kind(f"{what}: {text}")
