"""A machine with RDMA inside this one: QEMU runs Debian's kernel on the host's own files.

What the host built runs there as it is: the same Python, the same extension, from the same folders.
They are read-only, under a layer in memory; folders that are shared can be written. One guest
runs many commands, at once if wanted. Nothing of it is left when this process ends.

    python tests/rdma/guest.py --nics 4 -- ibv_devinfo        its output, its exit status
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import initramfs
import kernel
from command import SECONDS, Command, GuestError
from frames import Kind, Unpacker, pack
from probe import lack

HERE = Path(__file__).resolve().parent
BOOT_SECONDS = 180  #: 5 are usual; a machine that does other things too may take many more
END_SECONDS = 60  #: in which a command that was killed has ended, or else the guest is stuck


class Guest:
    """A running guest; a context manager.

    Args:
        share: Folders that can be written in the guest; the host sees it at once.
        cpus: How many processors it has.
        memory: How much, as QEMU reads it. Taken only as it is used.
        accel: What runs its instructions, as QEMU reads it. The default works everywhere.
    """

    def __init__(
        self,
        *,
        share: Sequence[str | Path] = (),
        cpus: int = 2,
        memory: str = "4G",
        accel: str = "tcg,thread=multi,tb-size=512",
    ) -> None:
        self.share = [Path(folder).resolve() for folder in share]
        self.size = (cpus, memory, accel)
        self.release = ""  #: of its kernel
        self._changed, self._sending = threading.Condition(), threading.Lock()
        self._commands: dict[int, Command] = {}
        self._started = 0
        self._ready = self._over = False
        self._last = ""

    def __enter__(self) -> Guest:
        """Boot."""
        self._console = tempfile.TemporaryFile()
        self._port, theirs = socket.socketpair()
        try:
            with theirs:
                self._machine = self._boot(theirs.fileno())
        except BaseException:
            self._port.close()
            self._console.close()
            raise
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            with self._changed:
                if not self._changed.wait_for(lambda: self._ready or self._over, BOOT_SECONDS):
                    raise self._error(f"the guest has not started after {BOOT_SECONDS} seconds")
                if not self._ready:
                    raise self._error("the guest does not start")
            for number, folder in enumerate(self.share):
                options = "trans=virtio,version=9p2000.L,rw,msize=524288,cache=none,access=any"
                self.run(["mount", "-t", "9p", "-o", options, f"share{number}", str(folder)])
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the guest and all that runs in it."""
        self.close()

    def close(self) -> None:
        """End the guest and all that runs in it."""
        self._machine.kill()
        self._machine.wait()
        self._reader.join()
        self.console()  # the last time that it can be read
        self._port.close()
        self._console.close()

    @property
    def alive(self) -> bool:
        """Whether it can run commands."""
        return self._ready and not self._over

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        echo: Mapping[Kind, IO[bytes]] | None = None,
    ) -> Command:
        """Start a command: in this process's folder and with its variables unless told.

        Args:
            argv: The program, found by PATH, and its arguments.
            cwd: The folder it starts in.
            env: All its variables.
            stdin: Whether it has a standard input, for `Command.send`; /dev/null otherwise.
            echo: Streams to which what it writes goes at once, by `Kind.OUT` and `Kind.ERR`.

        Raises:
            GuestError: The guest has ended.
        """
        return self._start(argv, cwd, env, stdin, echo)

    def fork(
        self,
        argv: Sequence[str],
        *,
        host: int | None = None,
        apart: bool = False,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
    ) -> Command:
        """Start a script of this Python in a process that has imported pycoll: see warm.py.

        Args:
            argv: The script and its arguments.
            host: The host of a rack that it runs on.
            apart: As in `Rack.on`.
            cwd: As in `start`.
            env: As in `start`.
            stdin: As in `start`.

        Raises:
            GuestError: The guest has ended.
        """
        more = {"python": sys.executable, "host": host, "apart": apart}
        return self._start(argv, cwd, env, stdin, **more)

    def _start(
        self,
        argv: Sequence[str],
        cwd: str | Path | None,
        env: Mapping[str, str] | None,
        stdin: bool,
        echo: Mapping[Kind, IO[bytes]] | None = None,
        **more: Any,
    ) -> Command:
        what = {
            "argv": [str(argument) for argument in argv],
            "cwd": str(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "input": stdin,
            **more,
        }
        with self._changed:
            self._started += 1
            command = Command(self, self._started, what["argv"], echo or {})
            self._commands[self._started] = command
        self._send(Kind.START, command._number, json.dumps(what).encode())
        return command

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = SECONDS,
        input: str | None = None,
        check: bool = True,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Command:
        """Run a command to its end; see `start`.

        Args:
            argv: The program, found by PATH, and its arguments.
            timeout: Seconds after which it is killed.
            input: What it reads from its standard input.
            check: Whether an exit status that is not 0 is an error.
            cwd: The folder it starts in.
            env: All its variables.

        Raises:
            GuestError: It was killed, it failed and `check` is set, or the guest has ended. The
                text has all that the command said.
        """
        command = self.start(argv, cwd=cwd, env=env, stdin=input is not None)
        if input is not None:
            command.send(input)
            command.close_input()
        if command.wait(timeout) and check:
            raise GuestError(command.describe())
        return command

    def clear(self) -> None:
        """Kill all commands.

        Raises:
            GuestError: One cannot be killed, hence the guest was.
        """
        with self._changed:
            running = list(self._commands.values())
        for command in running:
            command.kill()
        for command in running:
            command.wait(END_SECONDS)

    def console(self) -> str:
        """Return what the guest's kernel and first processes have said."""
        if not self._console.closed:
            length = os.fstat(self._console.fileno()).st_size
            said = os.pread(self._console.fileno(), length, 0).decode(errors="replace")
            self._last = said.replace("\r\n", "\n").strip()
        return self._last

    def _boot(self, port: int) -> subprocess.Popen[bytes]:
        """Start QEMU."""
        cpus, memory, accel = self.size
        found = kernel.ready()
        console = self._console.fileno()
        variables = f'"PYTHON={sys.executable}" "GUEST={HERE}"'  # which the kernel hands on
        shares = {"root": "/", "modules": found.modules}
        shares |= {f"share{number}": folder for number, folder in enumerate(self.share)}
        readonly = {"root", "modules"}
        # No mitigations: nobody else is there. An error in the kernel ends it and shows. Interfaces
        # come and go at once, not after grace periods. A slow machine is not a failure.
        append = (
            "console=ttyS0 quiet loglevel=4 panic=-1 oops=panic random.trust_cpu=on "
            f"mitigations=off nokaslr tsc=reliable rcupdate.rcu_expedited=1 nowatchdog {variables}"
        )
        argv = [
            *("setpriv", "--pdeathsig=KILL", "qemu-system-x86_64", "-machine", "q35"),
            *("-accel", accel, "-cpu", "max,la57=off", "-smp", str(cpus), "-m", memory),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
            *("-kernel", str(found.image), "-initrd", str(initramfs.ready(found))),
            *("-append", append, "-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
            *("-chardev", f"file,id=console,path=/dev/fd/{console}", "-serial", "chardev:console"),
            *("-chardev", f"socket,id=commands,fd={port}"),
            *("-device", "virtserialport,chardev=commands,name=commands"),
        ]
        for tag, folder in shares.items():
            path = str(folder).replace(",", ",,")
            more = ",readonly=on" if tag in readonly else ""
            local = f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{more}"
            argv += ["-virtfs", local]
        # setpriv: when the thread that boots the guest ends, whatever the way, so does the guest.
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=self._console,
            stderr=self._console,
            pass_fds=(port, console),
            start_new_session=True,  # Ctrl-C is for this process, which ends the guest
        )

    def _read(self) -> None:
        """Take what comes from the guest, until it ends; in a thread."""
        unpacker = Unpacker()
        while data := self._receive():
            for kind, number, body in unpacker.feed(data):
                command = self._commands.get(number)
                if command is not None:
                    command._echo(kind, body)  # with no lock, as nobody may read what it writes
                with self._changed:
                    if command is not None:
                        command._take(kind, body)
                    else:
                        self.release, self._ready = body.decode(), True
                    if kind is Kind.EXIT:
                        del self._commands[number]
                    self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _receive(self) -> bytes:
        try:
            return self._port.recv(1 << 16)
        except ConnectionResetError:  # it ended with something unread
            return b""

    def _send(self, kind: Kind, number: int, body: bytes = b"") -> None:
        try:
            with self._sending:
                self._port.sendall(pack(kind, number, body))
        except OSError:
            raise self._error("the guest has ended") from None

    def _until(self, done: Callable[[], bool], command: Command, what: str, timeout: float) -> None:
        """Wait for a command's state, and kill it if that does not come."""
        with self._changed:
            self._changed.wait_for(lambda: done() or self._over, timeout)
            if done():
                return
            if self._over:
                raise self._error(f"the guest ended while {command.describe()}")
        command.kill()
        with self._changed:
            ended = self._changed.wait_for(lambda: command.returncode is not None, END_SECONDS)
        said = f"{what} did not come in {timeout:g} seconds; {command.describe()}"
        if not ended:
            self._machine.kill()
            raise self._error(f"{said}\nIt cannot be killed: the guest was.")
        raise GuestError(said)

    def _error(self, what: str) -> GuestError:
        return GuestError(f"{what}\n--- the end of the guest's console:\n{self.console()[-4000:]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command in a guest of its own; see --help."""
    parser = argparse.ArgumentParser(
        usage="guest.py [options] -- COMMAND...",
        description="Run a command in a machine with RDMA; its exit status is the command's, "
        "124 if it took too long, 125 if the guest does not run.",
    )
    parser.add_argument("--nics", type=int, default=0, help="RDMA NICs: rxe0, rxe1, ...")
    parser.add_argument("--hosts", type=int, default=0, help="network namespaces; see rack.py")
    parser.add_argument("--share", action="append", default=[], help="a folder to be written too")
    parser.add_argument("--timeout", type=float, default=600, help="seconds")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--memory", default="4G")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if missing := lack():
        print(f"guest: {missing}", file=sys.stderr)
        return 125
    streams = {Kind.OUT: sys.stdout.buffer, Kind.ERR: sys.stderr.buffer}
    try:
        with Guest(share=options.share, cpus=options.cpus, memory=options.memory) as guest:
            if options.nics or options.hosts:
                from rack import Rack

                Rack(guest, options.hosts, options.nics)
            command = guest.start(options.command, echo=streams)
            try:
                code = command.wait(options.timeout)
            except GuestError as error:
                late = f"{options.command[0]} has not ended after {options.timeout:g} seconds"
                what = f"{late}\n{guest.console()[-4000:]}" if guest.alive else error
                print(f"guest: {what}", file=sys.stderr)
                return 124 if guest.alive else 125
            return code if code >= 0 else 128 - code
    except GuestError as error:
        print(f"guest: {error}", file=sys.stderr)
        return 125
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
