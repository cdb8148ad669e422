"""Processes that a fork server starts, as `subprocess.Popen` has them."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


class Forked:
    """A process that was forked; what is here of it is as in `subprocess.Popen`."""

    def __init__(self, server: ForkServer, output: int) -> None:
        self.returncode: int | None = None
        self.pid = 0
        self._server, self._output = server, output

    def communicate(self, timeout: float) -> tuple[str, None]:
        """Return what it wrote to stdout and stderr, once it has ended."""
        until, said = time.monotonic() + timeout, b""
        while self._output >= 0:
            left = max(0.0, until - time.monotonic())
            if not select.select([self._output], [], [], left)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout, said)
            data = os.read(self._output, 1 << 16)
            said += data
            if not data:
                self.close()
        self.wait(until - time.monotonic())
        return said.decode(errors="replace"), None

    def wait(self, timeout: float = 60.0) -> int:
        """Return its status, once it has ended."""
        until = time.monotonic() + timeout
        while self.returncode is None:
            if not self._server.hear(max(0.0, until - time.monotonic())):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def poll(self) -> int | None:
        """Return its status, or None while it runs."""
        while self.returncode is None and self._server.hear(0.0):
            pass
        return self.returncode

    def kill(self) -> None:
        """End it; nothing happens where it has ended."""
        while not self.pid:
            self._server.hear(60.0)
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Read no more of what it writes."""
        if self._output >= 0:
            os.close(self._output)
            self._output = -1


class ForkServer:
    """Starts processes from one that runs ``script``, which ends by `fork_server.serve`.

    Args:
        script: What it runs; its argument is the descriptor of a socket.
        env: Its variables.
    """

    def __init__(self, script: Path, env: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._numbers = itertools.count()
        self._children: dict[int, Forked] = {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(theirs.fileno())],
                env=env,
                pass_fds=(theirs.fileno(),),
            )

    def start(self, argv: Sequence[str], env: Mapping[str, str]) -> Forked:
        """Run a script; ``argv`` begins with its path."""
        number = next(self._numbers)
        read, write = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        what = {"number": number, "argv": list(argv), "env": dict(env), "cwd": os.getcwd()}
        try:
            socket.send_fds(self._socket, [json.dumps(what).encode()], [null, write, write])
        finally:
            os.close(write)
            os.close(null)
        child = self._children[number] = Forked(self, read)
        return child

    def hear(self, timeout: float) -> bool:
        """Take one message about a process, if it comes in time."""
        if not select.select([self._socket], [], [], timeout)[0]:
            return False
        data = self._socket.recv(4096)
        assert data, f"the fork server has ended with {self._process.wait()}"
        said = json.loads(data)
        child = self._children[said["number"]]
        if "pid" in said:
            child.pid = said["pid"]
        else:
            child.returncode = said["status"]
            del self._children[said["number"]]
        return True

    def close(self) -> None:
        """End it, once its processes have ended."""
        self._socket.close()
        self._process.wait()
