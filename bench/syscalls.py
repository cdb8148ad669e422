"""System calls of this process, counted by the kernel's tracepoints; needs root.

The counts hold for the thread that opens them and for all threads that are made after that.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
NAMES = [
    *("sendto", "sendmsg", "sendmmsg", "write", "writev", "sendfile64"),
    *("recvfrom", "recvmsg", "read", "readv"),
    *("epoll_wait", "epoll_pwait", "poll", "ppoll", "select", "sched_yield", "futex"),
]
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_PERF_TYPE_TRACEPOINT = 2
_INHERIT = 1 << 1


def lack() -> str:
    """Say what this machine lacks for counting; empty if nothing."""
    if os.uname().machine not in _PERF_EVENT_OPEN:
        return f"perf_event_open has no known number on {os.uname().machine}"
    if not (TRACING / "events" / "raw_syscalls").exists():
        return f"no tracepoints of system calls in {TRACING}: mount -t tracefs tracefs {TRACING}"
    return ""


def events() -> dict[str, int]:
    """Return the numbers of this kernel's tracepoints by name of the system call, and of "all".

    A network namespace with a /sys of its own has no tracefs: its processes are told the numbers.
    """
    folders = {"all": TRACING / "events/raw_syscalls/sys_enter"}
    folders |= {name: TRACING / f"events/syscalls/sys_enter_{name}" for name in NAMES}
    return {
        name: int((folder / "id").read_text())
        for name, folder in folders.items()
        if folder.exists()
    }


class Syscalls:
    """Counters for what `events` returned."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self._fds = {name: self._open(number) for name, number in numbers.items()}

    @staticmethod
    def _open(number: int) -> int:
        # struct perf_event_attr as far as its first version (64 bytes).
        head = (_PERF_TYPE_TRACEPOINT, 64, number, 0, 0, 0, _INHERIT)
        attributes = struct.pack("IIQQQQQIIQ", *head, 0, 0, 0)
        libc = ctypes.CDLL(None, use_errno=True)
        call = _PERF_EVENT_OPEN[os.uname().machine]
        fd: int = libc.syscall(call, attributes, 0, -1, -1, 0)
        if fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"perf_event_open: {os.strerror(code)}")
        return fd

    def read(self) -> dict[str, int]:
        """Return the counts until now; the reading itself takes one `read` for each name."""
        return {name: struct.unpack("Q", os.read(fd, 8))[0] for name, fd in self._fds.items()}
