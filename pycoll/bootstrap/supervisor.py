"""Supervisor: the user's process forks a worker, and each ends the job if the other dies.

The worker and what it starts are a process group of their own: a signal, from a terminal or from
`kill`, reaches the supervisor alone, which passes it on once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from pycoll.bootstrap import processes

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  #: what asks a job to end
_AWAITED = {signal.SIGCHLD, signal.SIGTSTP, signal.SIGUSR1, *ENDINGS}
_PIPED = (signal.SIGCHLD, signal.SIGUSR1, *ENDINGS)  #: what the worker hears of by its pipe


def supervise(work: Callable[[], int]) -> int:
    """Run `work` in a child of this process, and return what it returns.

    Nothing that the child started is left behind. If this process is killed, the child gets
    SIGTERM; if the child is, this process ends what it started and returns 128 and the signal.

    Args:
        work: It starts with the signals that end a job blocked, and calls `signal_pipe`, itself or
            as another program (`execute`), when it can heed them. One that comes earlier waits.
    """
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    try:
        processes.adopt()
        child = os.fork()
        if child == 0:
            _work(work, parent)
        with contextlib.suppress(PermissionError):  # it has done so, and is another program
            os.setpgid(child, child)  # a signal may come before the child does so
        return _wait(child)
    finally:
        processes.end_children()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(work: Callable[[], int], parent: int) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a background job that writes to a terminal
        processes.adopt()
        processes.hear_of_the_end(parent)
        code = work()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def signal_pipe() -> int:
    """Have each signal write a byte, its number, to a pipe, whose other end is returned."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in _PIPED:
        # Ctrl-C may be ignored, as in what a shell's script starts in the background.
        if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
    return reader


def execute(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Go on, in the worker, as another program, which begins with `signal_pipe`.

    Standard input is empty from here on.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.execve(command[0], [*command], environ)


def fork() -> int:
    """Fork as `os.fork` does; a signal to the copy waits until it calls `no_signal_pipe`.

    Else the copy would take it as this process does, and lose it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def no_signal_pipe() -> None:
    """Undo `signal_pipe` in a rank that is a fork, whose descriptors are closed."""
    signal.set_wakeup_fd(-1)
    for number in _PIPED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)


def _wait(child: int) -> int:
    """Pass signals on to the child until it has ended; return its exit code."""
    while True:
        came = signal.sigwait(_AWAITED)
        if came == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        elif came == signal.SIGTSTP:
            os.killpg(child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.killpg(child, signal.SIGCONT)  # as this process was
        else:
            os.kill(child, came)
