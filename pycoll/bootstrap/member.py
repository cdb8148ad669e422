"""Member: what the ranks tell each other about themselves when they meet."""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import NamedTuple

from pycoll.errors import BootstrapError
from pycoll.sysfs import boot_id

_LAYOUT = struct.Struct("<IQHB")  # process id, inode of its namespace, port, bytes of address


class Member(NamedTuple):
    """Where a rank lives."""

    pid: int
    namespace: int  #: process ids mean the same to two processes only within one namespace
    host: str  #: name and boot id: two machines may share either, hardly both
    #: From where rank 0 saw it come; of rank 0, where this process found it. Empty if unknown.
    address: str = ""
    #: Where it listens for those whose router is gone; of rank 0, which begins with the router, 0.
    port: int = 0

    @classmethod
    def me(cls) -> Member:
        """Describe this process."""
        try:
            namespace = os.stat("/proc/self/ns/pid").st_ino
        except OSError:  # no /proc: an unknown machine is only known by its name
            namespace = 0
        return cls(os.getpid(), namespace, f"{socket.gethostname()[:200]}/{boot_id()}")

    def encode(self) -> bytes:
        """Return the bytes that HELLO and WELCOME carry."""
        address = self.address.encode()
        layout = _LAYOUT.pack(self.pid, self.namespace, self.port, len(address))
        return layout + address + self.host.encode()

    @classmethod
    def parse(cls, data: bytes) -> Member:
        """Read what `encode` wrote."""
        if len(data) < _LAYOUT.size:
            raise BootstrapError(f"hello: {len(data)} bytes, want at least {_LAYOUT.size}")
        pid, namespace, port, length = _LAYOUT.unpack_from(data)
        middle = _LAYOUT.size + length
        if middle > len(data):
            raise BootstrapError(f"hello: {len(data)} bytes, want at least {middle}")
        try:
            # Those of a host have them in common: of a thousand ranks one text each is kept.
            address = sys.intern(data[_LAYOUT.size : middle].decode())
            host = sys.intern(data[middle:].decode())
        except UnicodeDecodeError:
            raise BootstrapError("hello: the host's name is not UTF-8") from None
        return cls(pid, namespace, host, address, port)

    def seen_at(self, address: str) -> Member:
        """Return the same with the address of its end of a connection."""
        return self._replace(address=address.removeprefix("::ffff:"))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition('/')[0]}"
