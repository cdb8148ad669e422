"""The child's side of `pycoll.spawn`: it runs the function and reports how that ended."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from multiprocessing.spawn import prepare
from typing import Any, NamedTuple

from pycoll.bootstrap import control_plane, descriptors
from pycoll.bootstrap.job import Job, enter
from pycoll.bootstrap.preload import MANY_COPIES
from pycoll.errors import described

PR_SET_PDEATHSIG = 1
_M_ARENA_MAX = -8  #: of malloc.h
OUTCOME = struct.Struct("<Q")  # bytes of the pickled Outcome that follows


class Outcome(NamedTuple):
    """How a rank's function ended."""

    value: Any
    error: BaseException | None = None
    text: str = ""  #: the traceback


def run_forked(job: Job, fn: Callable[..., Any], args: tuple[Any, ...], report: int) -> None:
    """Run `fn` in a process that was just forked, which ends here.

    What the parent had set up for its own life is undone: exit handlers, signal handlers, the
    wake-up descriptor of an event loop, standard input.
    """
    gc.freeze()  # else a collection copies every page that has an object of the parent
    limit_malloc(job.size)
    atexit._clear()
    atexit.register(control_plane.leave_all)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if job.rank and job.listener:  # else connections to a rank 0 that died would be let in
        job.listener.close()
        job = job._replace(listener=None)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    _run(job, fn, args, report)


def run_fresh(
    parent: int, rank: int, size: int, port: int, listener: int, report: int, soft: int
) -> None:
    """Run what standard input describes in a fresh interpreter, which ends here."""
    die_with(parent)
    descriptors.restore(soft)
    secret, preparation, call = pickle.load(sys.stdin.buffer)
    sock = socket.socket(fileno=listener) if listener >= 0 else None
    job = Job(rank, size, port, secret, sock)
    try:
        prepare(preparation)  # sys.path, and the parent's script as module __mp_main__
        fn, args = pickle.loads(call)
    except BaseException as error:
        _report(report, _failure(error))
        os._exit(1)
    _run(job, fn, args, report)


def die_with(parent: int) -> None:
    """Have the kernel end this process when the parent's spawning thread ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def limit_malloc(copies: int) -> None:
    """Have all threads share one arena of malloc, where many processes share a host.

    An arena of the control thread's own takes some 300 KB. What the environment says of arenas
    holds.
    """
    told = {"MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "GLIBC_TUNABLES"} & os.environ.keys()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if copies > MANY_COPIES and mallopt is not None and not told:
        mallopt(_M_ARENA_MAX, 1)


def _run(job: Job, fn: Callable[..., Any], args: tuple[Any, ...], report: int) -> None:
    enter(job)
    outcome = Outcome(None)
    try:
        outcome = Outcome(fn(*args))
    except BaseException as error:
        outcome = _failure(error)
    try:
        # First the report: the exit handlers' farewell makes other ranks fail, and the parent
        # must hear of the cause before it hears of the consequences.
        _report(report, outcome)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(1 if outcome.error else 0)


def _failure(error: BaseException) -> Outcome:
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception class may refuse either in any way it likes
        error = RuntimeError(described(error))
    return Outcome(None, error.with_traceback(None), text)


def _report(fd: int, outcome: Outcome) -> None:
    try:
        data = pickle.dumps(outcome)
    except Exception as error:  # pickle raises whatever an object's methods raise
        data = pickle.dumps(_failure(error))
    data = OUTCOME.pack(len(data)) + data
    while data:
        data = data[os.write(fd, data) :]
