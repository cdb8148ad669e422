"""Runs in the guest: starts the commands that the host asks for, many at once.

A command is its own control group, so that whatever it leaves behind ends with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from frames import Kind, Unpacker, pack

GROUPS = "/sys/fs/cgroup"
PIECE = 32768  #: bytes that the port takes at once
WARM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "warm.py")


class Starter:
    """The port to the host, and what waits for something to happen."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.poll = select.epoll()
        self.watched: dict[int, Callable[[], None]] = {}
        self.commands: dict[int, Command] = {}
        self.unpacker = Unpacker()
        self.warm: socket.socket | None = None  #: to warm.py

    def run(self) -> None:
        """Serve until the host closes the port."""
        self.watch(self.port, select.EPOLLIN, self.receive)
        self.say(Kind.READY, 0, os.uname().release.encode())
        while self.port in self.watched:
            for fd, _ in self.poll.poll():
                if fd in self.watched:  # or else it went by an event before this one
                    self.watched[fd]()

    def watch(self, fd: int, events: int, call: Callable[[], None]) -> None:
        self.poll.register(fd, events)
        self.watched[fd] = call

    def forget(self, fd: int) -> None:
        """Close what was watched."""
        self.poll.unregister(fd)
        del self.watched[fd]
        os.close(fd)

    def say(self, kind: Kind, number: int, data: bytes = b"") -> None:
        frame = memoryview(pack(kind, number, data))
        while frame:
            frame = frame[os.write(self.port, frame[:PIECE]) :]

    def receive(self) -> None:
        data = os.read(self.port, PIECE)
        if not data:  # the host closed
            self.forget(self.port)
        for kind, number, body in self.unpacker.feed(data):
            if kind is Kind.START:
                self.commands[number] = Command(self, number, json.loads(body))
            elif command := self.commands.get(number):  # or else it ended meanwhile
                command.take(kind, body)

    def fork(self, what: dict[str, Any], streams: tuple[int, int, int]) -> None:
        """Have warm.py start a command; `hear` gets the answer."""
        if self.warm is None:
            self.warm, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                if os.fork() == 0:
                    try:
                        os.set_inheritable(theirs.fileno(), True)
                        argv = [what["python"], WARM, str(theirs.fileno())]
                        os.execve(argv[0], argv, what["env"])
                    finally:
                        os._exit(127)
            self.watch(self.warm.fileno(), select.EPOLLIN, self.hear)
        socket.send_fds(self.warm, [json.dumps(what).encode()], list(streams))

    def hear(self) -> None:
        """Take what warm.py says of its children."""
        assert self.warm is not None
        data = self.warm.recv(4096)
        if not data:  # it failed: its traceback is on the console
            self.forget(self.warm.detach())
            self.warm = None
            for command in [c for c in self.commands.values() if c.warm]:
                command.ended(127)
            return
        said = json.loads(data)
        command = self.commands[said["number"]]
        if "pid" in said:
            command.started(said["pid"])
        else:
            command.ended(said["status"])


class Command:
    """A process, and all that it started."""

    def __init__(self, starter: Starter, number: int, what: dict[str, Any]) -> None:
        self.starter, self.number = starter, number
        self.group = f"{GROUPS}/command{number}"
        os.mkdir(self.group)
        self.warm = "python" in what
        self.pid = 0
        self.killed = False
        self.status: int | None = None
        self.open: set[int] = set()
        out, err = os.pipe(), os.pipe()
        stdin = os.pipe() if what["input"] else (os.open("/dev/null", os.O_RDONLY), -1)
        streams = (stdin[0], out[1], err[1])
        self.input = stdin[1]
        self._read(out[0], Kind.OUT)
        self._read(err[0], Kind.ERR)
        if self.warm:
            starter.fork({**what, "number": number, "group": self.group}, streams)
        elif (pid := os.fork()) == 0:
            self._become(what, streams)
        else:
            process = os.pidfd_open(pid)

            def over() -> None:
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                starter.forget(process)
                self.ended(status)

            starter.watch(process, select.EPOLLIN, over)
            self.started(pid)
        for fd in streams:
            os.close(fd)

    def _become(self, what: dict[str, Any], streams: tuple[int, int, int]) -> None:
        """Turn into the command; only in the new process."""
        try:
            for target, fd in enumerate(streams):
                os.dup2(fd, target)
            os.setsid()
            with open(f"{self.group}/cgroup.procs", "w") as file:
                file.write("0")
            for number in (signal.SIGPIPE, signal.SIGINT):  # which Python has changed
                signal.signal(number, signal.SIG_DFL)
            os.chdir(what["cwd"])
            os.execvpe(what["argv"][0], what["argv"], what["env"])
        except OSError as error:
            os.write(2, f"{what['argv'][0]}: {error}\n".encode())
        finally:
            os._exit(127)

    def take(self, kind: Kind, body: bytes) -> None:
        """Do what the host wants with it."""
        if kind is Kind.INPUT and self.input >= 0:
            if not body or not self._write(body):
                os.close(self.input)
                self.input = -1
        elif kind is Kind.SIGNAL and int(body) == 0:
            self.kill()
        elif kind is Kind.SIGNAL and self.pid and self.status is None:
            os.kill(self.pid, int(body))

    def _write(self, body: bytes) -> bool:
        """Write to its standard input, unless it reads no more."""
        try:
            while body:
                body = body[os.write(self.input, body) :]
        except BrokenPipeError:
            return False
        return True

    def _read(self, fd: int, kind: Kind) -> None:
        def came() -> None:
            if data := os.read(fd, PIECE):
                self.starter.say(kind, self.number, data)
            else:
                self._close(fd)

        self.open.add(fd)
        self.starter.watch(fd, select.EPOLLIN, came)

    def started(self, pid: int) -> None:
        """It is a process now."""
        self.pid = pid
        self.starter.say(Kind.STARTED, self.number, str(pid).encode())
        if self.killed:
            self.kill()

    def ended(self, status: int) -> None:
        """Its first process is over; end those that it left behind, and wait for them."""
        self.status = status
        self.kill()
        events = os.open(f"{self.group}/cgroup.events", os.O_RDONLY)
        self.open.add(events)

        def changed() -> None:
            if b"populated 0" in os.pread(events, 256, 0):
                self._close(events)

        self.starter.watch(events, select.EPOLLPRI, changed)
        changed()

    def kill(self) -> None:
        """Kill all of it, or what will be, if it is no process yet."""
        self.killed = True
        with open(f"{self.group}/cgroup.kill", "w") as file:
            file.write("1")
        if self.warm and self.pid and self.status is None:  # it may not have joined the group yet
            os.kill(self.pid, signal.SIGKILL)

    def _close(self, fd: int) -> None:
        self.open.discard(fd)
        self.starter.forget(fd)
        if not self.open and self.status is not None:
            if self.input >= 0:
                os.close(self.input)
            os.rmdir(self.group)
            del self.starter.commands[self.number]
            self.starter.say(Kind.EXIT, self.number, str(self.status).encode())


if __name__ == "__main__":
    # Commands inherit only what they are given: Python opens all else to close on exec.
    Starter(os.open(sys.argv[1], os.O_RDWR)).run()
