"""Processes: what starts the ranks of a job on this host; nothing of them outlives the supervisor.

The kernel ends a rank with its parent. What a rank has started, and left, becomes a child of the
nearest ancestor that called `adopt`, which can then end it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import secrets
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from pycoll.bootstrap import torchrun
from pycoll.bootstrap.descriptors import restore
from pycoll.bootstrap.local_child import PR_SET_PDEATHSIG, die_with
from pycoll.config import SETTINGS

PR_SET_CHILD_SUBREAPER = 36
#: Settings that would lead a rank to another job than its own.
_ELSEWHERE = ("rank", "size", "address", "newcomer")


class Process(Protocol):
    """A rank's process, as `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None:
        """Return how it ended: its exit code, or the signal below 0; None while it runs."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal if it still runs."""


class Started(NamedTuple):
    """A rank, and the ends where what it writes comes."""

    process: Process
    out: int
    err: int


class Starter(ABC):
    """What starts the ranks of one job. Close it when they have ended.

    Args:
        size: Number of ranks.
        soft: The limit of file descriptors that a rank has.
    """

    def __init__(self, size: int, soft: int) -> None:
        self.size = size
        self._soft = soft
        self._run = torchrun.OWN_RUN + secrets.token_hex(8)
        # Bound and never listening: nobody else is given the port, and torch's store may have it.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))

    def variables(self, rank: int) -> dict[str, str]:
        """Return what a rank has in its environment and no other process has: torchrun's."""
        return torchrun.variables(rank, self.size, self._held.getsockname()[1], self._run)

    @abstractmethod
    def start(self, rank: int) -> Started | None:
        """Start a rank, which the kernel ends with this process; None in a rank that is a fork."""

    def close(self) -> None:
        """Give back the port."""
        self._held.close()


class Interpreters(Starter):
    """Starts each rank as a program of its own."""

    def __init__(self, command: Sequence[str], size: int, soft: int) -> None:
        super().__init__(size, soft)
        self._command = command
        self._environ = shared_environ(size)

    def start(self, rank: int) -> Started:
        """Start a rank."""
        return self.begin(self.variables(rank))

    def begin(self, variables: Mapping[str, str], *keep: int) -> Started:
        """Start a process.

        Args:
            variables: What it has in its environment beside what all have.
            *keep: File descriptors that it has, too.
        """
        out, err = os.pipe(), os.pipe()
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=out[1],
            stderr=err[1],
            pass_fds=keep,
            env={**self._environ, **variables},
            preexec_fn=functools.partial(_begin, os.getpid(), self._soft),  # there is one thread
        )
        os.close(out[1])
        os.close(err[1])
        return Started(process, out[0], err[0])


def shared_environ(size: int, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of every rank of a job, but for what differs between ranks.

    Args:
        size: Number of ranks.
        environ: What they inherit; this process's by default.
    """
    settings = {setting.name: setting.variable for setting in SETTINGS}
    inherited = dict(os.environ if environ is None else environ)
    for name in _ELSEWHERE:
        inherited.pop(settings[name], None)
    cores = len(os.sched_getaffinity(0))
    return {
        "PYTHONUNBUFFERED": "1",  # else a line comes when its rank has written many
        "OMP_NUM_THREADS": str(max(1, cores // size)),  # else each rank takes every core
        settings["secret"]: secrets.token_hex(32),
        **inherited,
    }


def _begin(parent: int, soft: int) -> None:
    die_with(parent)
    restore(soft)


def adopt() -> None:
    """Become the parent of every descendant whose own parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def hear_of_the_end(parent: int) -> None:
    """Have the kernel send this process SIGTERM when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before we asked
        os.kill(os.getpid(), signal.SIGTERM)


def end_children() -> None:
    """Kill and reap every child of this process, and every one that it adopts on the way."""
    while children := _children():
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    """Return the children of this process; /proc/self/.../children is not in every kernel."""
    own = os.getpid()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name of a program may have any character: what follows its last parenthesis.
                if int(file.read().rpartition(b")")[2].split()[1]) == own:
                    found.append(int(name))
    return found
