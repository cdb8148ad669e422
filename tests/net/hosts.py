"""Hosts on one machine: network namespaces joined by a bridge, whose wires can be bent and cut.

A host has its own network, hostname, processes, /proc, /sys and /dev/shm; the disk is shared. What
holds it is one process that reads a pipe from this one: when this process ends, whatever the way,
the pipe ends, and with that process the kernel ends all that ran on the host, and its wires.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NETWORK = "10.77.0"
SECONDS = 30  #: for a command that the kernel answers at once
TOOLS = ("unshare", "nsenter", "setpriv", "mount", "hostname", "ip")
HOLD = "hostname {name} && mount -t tmpfs tmpfs /dev/shm && mount -t sysfs sysfs /sys && echo ready"
ALONE = ("--net", "--uts", "--ipc", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child")


@functools.cache
def lack() -> str:
    """Say what this machine lacks for hosts; empty if nothing."""
    for tool in TOOLS:
        if shutil.which(tool) is None:
            package = "iproute2" if tool == "ip" else "util-linux"
            return f"no command {tool}: apt-get install {package}"
    wire = (
        "ip link add dev one type veth peer name two && ip link add dev three type bridge && "
        "test -c /dev/net/tun"
    )
    script = f"{HOLD.format(name='probe')} && {wire}"
    done = subprocess.run(
        ["unshare", *ALONE, "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    reason = (done.stderr.strip() or "no /dev/net/tun").splitlines()[-1]
    return f"no network namespaces here, want root ({reason})" if done.returncode else ""


class Hosts:
    """`count` hosts on one bridge, called host0, host1, ...; a context manager.

    The bridge is in a namespace too, with an address of its own: the *front*, from which a
    launcher reaches every host.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._holders: list[subprocess.Popen[str]] = []  #: of every host, then of the front
        self._wires: dict[int, subprocess.Popen[str]] = {}

    def __enter__(self) -> Hosts:
        """Make the hosts and plug them in."""
        try:
            names = [*map(self.name, range(self.count)), "front"]
            self._holders += [_hold(name) for name in names]
            for name, holder in zip(names, self._holders, strict=True):
                assert holder.stdout is not None
                if (said := holder.stdout.readline()) != "ready\n":
                    raise OSError(f"{name} is not ready but says {said!r}; {lack()}")
            self._ip(
                "link add bridge type bridge forward_delay 0 mcast_snooping 0",
                f"addr add {self.front_address}/24 dev bridge",
                "link set bridge up",
                "link set lo up",
            )
            for host in range(self.count):
                holder = self._holders[host].pid
                self._ip(f"link add wire{host} type veth peer name eth0 netns {holder}")
                self._ip(
                    "link set lo up",
                    f"addr add {self.address(host)}/24 dev eth0",
                    "link set eth0 up",
                    host=host,
                )
                self._ip(f"link set wire{host} master bridge up")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Take everything down."""
        self.close()

    def close(self) -> None:
        """End every process on every host; their namespaces and wires go with them."""
        processes = (*self._wires.values(), *self._holders)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            process.wait(SECONDS)
            assert process.stdout is not None
            process.stdout.close()
        self._holders.clear()
        self._wires.clear()

    @staticmethod
    def name(host: int) -> str:
        """Return a host's name."""
        return f"host{host}"

    @staticmethod
    def address(host: int) -> str:
        """Return a host's address."""
        return f"{NETWORK}.{host + 1}"

    def run(
        self, host: int, argv: Sequence[str], env: Mapping[str, str] | None = None, **more: Any
    ) -> subprocess.Popen[str]:
        """Start a program on a host; killing the Popen, this process or the host kills it."""
        return subprocess.Popen([*self.enter(host), *argv], env=env, text=True, **more)

    def enter(self, host: int) -> list[str]:
        """Return the command in front of one that is to run on a host."""
        # unshare itself stays outside of the process namespace that it made for its child.
        holder = self._holders[host].pid
        inside = [f"--target={holder}", "--net", "--uts", "--ipc", "--mount", "--wd"]
        pids = f"--pid=/proc/{holder}/ns/pid_for_children"
        return ["nsenter", *inside, pids, "--", "setpriv", "--pdeathsig=KILL"]

    @property
    def front(self) -> list[str]:
        """The command in front of a launcher: it sees the bridge, and starts programs on hosts."""
        holder = self._holders[self.count].pid
        return ["nsenter", f"--target={holder}", "--net", "--", "setpriv", "--pdeathsig=KILL"]

    @property
    def front_address(self) -> str:
        """The address at which the hosts reach the front."""
        return f"{NETWORK}.254"

    @property
    def agent(self) -> dict[str, str]:
        """What agent.sh, a launcher's stand-in for ssh, has to find in the environment."""
        pids = " ".join(f"{self.address(h)}={self._holders[h].pid}" for h in range(self.count))
        return {"HOSTS_PIDS": pids}

    def shape(
        self,
        host: int,
        *,
        delay: float = 0.0,
        loss: float = 0.0,
        reorder: float = 0.0,
        rate: float = 0.0,
    ) -> None:
        """Bend a host's wire, both ways; everything else about it is as it was before.

        Args:
            host: Whose wire.
            delay: Seconds that every frame takes.
            loss: Share of the frames that get lost.
            reorder: Share of the frames that are overtaken by later ones.
            rate: Bytes per second that get through; 0: as many as can.
        """
        if host not in self._wires:
            self._bend(host)
        wire = self._wires[host]
        assert wire.stdin is not None
        assert wire.stdout is not None
        print(delay, loss, reorder, rate, file=wire.stdin, flush=True)
        if (said := wire.stdout.readline()) != "set\n":
            raise OSError(f"the wire of host {host} is not set but says {said!r}")

    def cut(self, host: int) -> None:
        """Pull a host's cable."""
        self._ip(f"link set wire{host} down")

    def mend(self, host: int) -> None:
        """Plug a host's cable in again."""
        self._ip(f"link set wire{host} up")

    def split(self, away: Sequence[int]) -> None:
        """Part some hosts from the rest: on each side all reach each other."""
        self._ip(
            "link add side type bridge forward_delay 0 mcast_snooping 0",
            "link set side up",
            *(f"link set wire{host} master side" for host in away),
        )

    def join(self) -> None:
        """Have all hosts reach each other again."""
        self._ip(
            *(f"link set wire{host} master bridge" for host in range(self.count)), "link del side"
        )

    def _bend(self, host: int) -> None:
        """Lead a host's wire through a process that carries every frame (see wire.py)."""
        # Not every kernel has netem. Taps and not raw sockets: frames come out of a tap with their
        # checksums computed and cut to the MTU, whatever the veth's offloads have put off.
        near, far = f"near{host}", f"far{host}"
        wire = subprocess.Popen(
            [*self.front, sys.executable, str(Path(__file__).with_name("wire.py")), near, far],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._wires[host] = wire
        assert wire.stdout is not None
        if (said := wire.stdout.readline()) != "ready\n":
            raise OSError(f"the wire of host {host} is not ready but says {said!r}")
        self._ip(
            f"link add bend{host} type bridge forward_delay 0 mcast_snooping 0",
            f"link set bend{host} up",
            f"link set wire{host} master bend{host}",
            f"link set {near} master bend{host} up",
            f"link set {far} master bridge up",
        )

    def _ip(self, *commands: str, host: int | None = None) -> None:
        """Run `ip` commands on a host or at the front."""
        holder = self._holders[self.count if host is None else host].pid
        done = subprocess.run(
            ["nsenter", f"--target={holder}", "--net", "--", "ip", "-batch", "-"],
            input="\n".join(commands) + "\n",
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            raise OSError(f"ip refuses one of {commands}: {done.stderr.strip()}")


def _hold(name: str) -> subprocess.Popen[str]:
    """Start the process whose namespaces are a host."""
    # `cat` ends with its input. It is its host's first process, whose children all orphans become;
    # the kernel buries them where SIGCHLD is ignored.
    script = f"{HOLD.format(name=name)} && trap '' CHLD && exec cat"
    return subprocess.Popen(
        ["unshare", *ALONE, "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
