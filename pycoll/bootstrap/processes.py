"""Processes: programs as the ranks of a job on this host; nothing of them outlives the supervisor.

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
from collections.abc import Mapping, Sequence

from pycoll.bootstrap import torchrun
from pycoll.bootstrap.local_child import PR_SET_PDEATHSIG, die_with
from pycoll.config import SETTINGS

PR_SET_CHILD_SUBREAPER = 36
#: Settings that would lead a rank to another job than its own.
_ELSEWHERE = ("rank", "size", "address")


class Processes:
    """What starts the ranks of one job. Close it when they have ended."""

    def __init__(self, size: int, environ: Mapping[str, str] | None = None) -> None:
        """Prepare a job of `size` ranks; `environ` (this process's) is what they inherit."""
        self._size = size
        self._run = torchrun.OWN_RUN + secrets.token_hex(8)
        # Bound and never listening: nobody else is given the port, and torch's store may have it.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        settings = {setting.name: setting.variable for setting in SETTINGS}
        inherited = dict(os.environ if environ is None else environ)
        for name in _ELSEWHERE:
            inherited.pop(settings[name], None)
        cores = len(os.sched_getaffinity(0))
        self._environ = {
            "PYTHONUNBUFFERED": "1",  # else a line comes when its rank has written many
            "OMP_NUM_THREADS": str(max(1, cores // size)),  # else each rank takes every core
            settings["secret"]: secrets.token_hex(32),
            **inherited,
        }

    def environ(self, rank: int) -> dict[str, str]:
        """Return the environment of a rank: torchrun's, and what this process has besides."""
        port = self._held.getsockname()[1]
        return {**self._environ, **torchrun.variables(rank, self._size, port, self._run)}

    def start(self, command: Sequence[str], rank: int) -> subprocess.Popen[bytes]:
        """Start a rank, with pipes for what it says; the kernel ends it with this process."""
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environ(rank),
            preexec_fn=functools.partial(die_with, os.getpid()),  # this process has one thread
        )

    def close(self) -> None:
        """Give back the port."""
        self._held.close()


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
