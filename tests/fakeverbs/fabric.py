"""The stand-in for libibverbs: bending the network that it pretends.

A rank uses it with ``LD_LIBRARY_PATH`` at the folder that `fakeverbs_library.built` returns and
``FAKEVERBS_FABRIC`` at a path that all ranks share; without that the network is the process's own.
`Fabric` is that network, seen from outside::

    fabric = Fabric(folder / "fabric", fakeverbs_library.built())
    rank = subprocess.Popen(command, env=os.environ | fabric.environment(devices=4))
    fabric.cut_both("fake0", "fake1")

From a shell: ``python fabric.py PATH cut fake0 fake1``.

Variables of a rank, as keyword arguments of `Fabric.environment` without the ``FAKEVERBS_``:

=========  ==================================================================================
DEVICES    how many there are, fake0 and so on, each with one port; 2, at most 8
HOST       0 to 15: whose devices they are. Ranks with the same number share devices
GBPS       gigabits per second that the ports claim, with commas between the devices'; 100
LIKE       mlx5 or rxe: whose ways to follow where providers differ (see nic.h); mlx5
JITTER     microseconds by which each request may begin late, so that QPs overtake; 0
LATE       microseconds that a receiver's memory lags behind: what was written before the last
           packet of a message with an immediate is seen so long after that packet, the last one
           first, and just before the message completes; 0
OVERTAKE   microseconds that a READ of a GPU's memory waits, at most, until a receive has completed
           that tells of what was written there behind it; 0
SEED       of the jitter
MEMLOCK    bytes that a process may register
FAIL       create_qp:3,reg_mr:1 makes those calls fail with ENOMEM, counted from 1; reg_mr:3+ those
           from the third on. reg_peermem_mr counts the ibv_reg_mr of a GPU's memory alone;
           post_srq_recv fails with EIO, as ENOMEM there says that the queue is full
INLINE     bytes of inline data that a QP may have; 512
CQE        completions that a completion queue may hold; 1048576
SRQ        receives that a shared receive queue may have; 32767. 0: there is none
MTU        of the ports, in bytes; 4096
LINK       ethernet or infiniband
FAMILY     4, 6 or both: the addresses that ports have on Ethernet besides the link-local one; 4
ABI        extended or compat: how ibv_query_port is reached
DMABUF     1 or 0: whether a GPU's memory is registered by dma-buf; 1 if LIKE is mlx5, else 0
PEERMEM    1 or 0: whether it is by its address, as with nvidia_peermem; 0
HOLD       flush, late or none: what is written into a GPU's memory lands at a flush and not else,
           or after 20 ms, too, or at once; flush. A GPU that orders such writes (CAPABILITY and
           ORDERING of the stand-in for libcuda) sees them at once
=========  ==================================================================================

The memory of a GPU is that of the stand-in for libcuda (tests/fakecuda), and gpu.c says when what
was written there can be seen. Regions are found by ``objects()["gpu_mrs"]``, and the counts
``held``, ``landed_by_read``, ``landed_by_driver``, ``landed_late`` and ``never_landed`` say what
became of each packet; ``gpu_reads`` and ``driver_flushes`` count the flushes of both kinds.

What it does not have: UD, UC, XRC, atomics, memory windows. A process that is stopped
(SIGSTOP) stops its NIC too, which real ones do not.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path

from fakeverbs_library import CONTROL, SONAME

HERE = Path(__file__).parent
DEVICES = 8  #: of a host, at most; as in fabric.h
PORTS = 128
SLOTS = 512
COUNTS = (
    *("tx_packets", "tx_bytes", "rx_packets", "rx_bytes", "dropped", "retransmitted"),
    *("duplicates", "rnr", "refused", "failed", "stray", "unclosed", "sends", "queries"),
    *("held", "landed_by_read", "landed_by_driver", "landed_late", "never_landed"),
    *("gpu_reads", "driver_flushes"),
)
OBJECTS = (
    *("pds", "mrs", "mr_bytes", "relaxed", "gpu_mrs"),
    *("channels", "cqs", "qps", "wrs", "srqs", "receives"),
)


class Kind(IntFlag):
    """Kinds of packets: what a cut drops, and what a fuse counts."""

    WRITE = 1
    WRITE_IMM = 2
    SEND = 4
    READ = 8
    ACK = 16
    READ_RESPONSE = 32
    REQUESTS = 15
    RESPONSES = 48
    ALL = 63


@dataclass(frozen=True)
class Opened:
    """A device that some process holds open, and what it holds of it."""

    pid: int
    device: str
    alive: bool  #: the process is
    pds: int
    mrs: int
    mr_bytes: int
    relaxed: int  #: regions that may be written in any order
    gpu_mrs: int  #: regions of a GPU's memory
    channels: int
    cqs: int
    qps: int
    wrs: int  #: send requests that were posted and have not ended
    srqs: int
    receives: int  #: that were posted and not consumed


def port(device: str) -> int:
    """Return the number of a port: of ``"fake1"``, or of ``"3/fake1"`` on host 3."""
    host, _, name = device.rpartition("/")
    return int(host or 0) * DEVICES + int(name.removeprefix("fake"))


class Fabric:
    """The network at `path`, which is made if it is not there."""

    def __init__(self, path: Path, library: Path) -> None:
        self.path = path
        self.library = library
        self._lib = ctypes.CDLL(str(library / CONTROL))
        self._lib.fakeverbs_open.restype = ctypes.c_void_p
        for name in ("fakeverbs_count", "fakeverbs_blown"):
            getattr(self._lib, name).restype = ctypes.c_uint64
        opened = self._lib.fakeverbs_open(os.fsencode(path))
        if not opened:
            raise OSError(f"{path}: cannot be made or mapped, or is of another version")
        self._fabric = ctypes.c_void_p(opened)

    def environment(self, library: Path | None = None, **options: object) -> dict[str, str]:
        """Return what a rank's environment wants: ``devices=4`` becomes FAKEVERBS_DEVICES=4."""
        given = {f"FAKEVERBS_{name.upper()}": str(value) for name, value in options.items()}
        return {
            "LD_LIBRARY_PATH": str(library or self.library),
            "FAKEVERBS_FABRIC": str(self.path),
            **given,
        }

    def cut(self, one: str, other: str, kinds: Kind = Kind.ALL) -> None:
        """Drop packets of `kinds` from `one` port to the `other`; nobody is told."""
        self._lib.fakeverbs_cut(self._fabric, port(one), port(other), int(kinds))

    def heal(self, one: str, other: str, kinds: Kind = Kind.ALL) -> None:
        """Let packets of `kinds` pass from `one` port to the `other`, and take the fuse out."""
        self._lib.fakeverbs_heal(self._fabric, port(one), port(other), int(kinds))

    def cut_both(self, one: str, other: str) -> None:
        """Drop everything between two ports."""
        self.cut(one, other)
        self.cut(other, one)

    def heal_both(self, one: str, other: str) -> None:
        """Undo all cuts between two ports."""
        self.heal(one, other)
        self.heal(other, one)

    def fuse(
        self,
        one: str,
        other: str,
        after: int,
        *,
        count: Kind = Kind.REQUESTS,
        packets: bool = False,
        drop: Kind = Kind.ALL,
        drop_back: Kind = Kind.ALL,
    ) -> None:
        """Cut by itself once `after` more messages have passed from `one` port to the `other`.

        Args:
            one: where the messages come from.
            other: where they go to.
            after: how many pass; what comes later is dropped. At least 1.
            count: the kinds that are counted.
            packets: count packets (of the path MTU), so that a message is cut in its middle.
            drop: what is dropped from then on, in the direction of the count.
            drop_back: what is dropped in the other direction. With ``count=Kind.WRITE_IMM,
                drop=Kind(0), drop_back=Kind.RESPONSES`` all lands, and nobody learns of it.
        """
        self._lib.fakeverbs_fuse(
            self._fabric,
            port(one),
            port(other),
            int(count),
            int(not packets),
            ctypes.c_int64(after),
            int(drop),
            int(drop_back),
        )

    def blown(self, one: str, other: str) -> int:
        """How often a fuse between these two has blown."""
        return int(self._lib.fakeverbs_blown(self._fabric, port(one), port(other)))

    def down(self, device: str) -> None:
        """Take a port down: all its packets are lost, and its NICs tell by PORT_ERR."""
        self._lib.fakeverbs_down(self._fabric, port(device), 1)

    def up(self, device: str) -> None:
        """Bring a port up again; its NICs tell by PORT_ACTIVE."""
        self._lib.fakeverbs_down(self._fabric, port(device), 0)

    def move(self, device: str) -> None:
        """Give a port another address (GID, or LID of InfiniBand); its NICs tell by an event.

        What is connected stays so: unlike in a real network its packets still arrive.
        """
        self._lib.fakeverbs_move(self._fabric, port(device))

    def partition(self, device: str, key: int) -> None:
        """Give a port a second partition key behind 0xffff; its NICs tell by PKEY_CHANGE. 0: none.

        As with `move`, packets of what is connected still arrive.
        """
        self._lib.fakeverbs_partition(self._fabric, port(device), key)

    def slow(self, device: str, bytes_per_second: int) -> None:
        """Let a port send no faster than this; 0: as fast as it goes."""
        self._lib.fakeverbs_speed(self._fabric, port(device), ctypes.c_uint64(bytes_per_second))

    def narrow(self, device: str, nbytes: int) -> None:
        """Let a port send no packet with more payload: it tries for ever, and tells nobody; 0: any.

        Args:
            device: Whose port.
            nbytes: An MTU of InfiniBand; new queue pairs find it to be the port's.
        """
        self._lib.fakeverbs_narrow(self._fabric, port(device), nbytes)

    def isolate(self, device: str) -> None:
        """Drop everything between this port and all others; unlike `down`, nobody is told."""
        self._all(self._lib.fakeverbs_cut, device)

    def rejoin(self, device: str) -> None:
        """Undo all cuts of this port."""
        self._all(self._lib.fakeverbs_heal, device)

    def _all(self, change: Callable[..., None], device: str) -> None:
        for other in range(PORTS):
            change(self._fabric, port(device), other, int(Kind.ALL))
            change(self._fabric, other, port(device), int(Kind.ALL))

    def counts(self, device: str) -> Mapping[str, int]:
        """Everything that was counted of a port, since the fabric was made; see fabric.h."""
        return {
            name: int(self._lib.fakeverbs_count(self._fabric, port(device), what))
            for what, name in enumerate(COUNTS)
        }

    def total(self, name: str) -> int:
        """One count, over all ports: ``total("rnr")``."""
        what = COUNTS.index(name)
        return sum(
            int(self._lib.fakeverbs_count(self._fabric, number, what)) for number in range(PORTS)
        )

    def opened(self) -> list[Opened]:
        """Every device that is open now, also those that a killed process left."""
        out = (ctypes.c_uint64 * (3 + len(OBJECTS)))()
        found = []
        for slot in range(SLOTS):
            if not self._lib.fakeverbs_slot(self._fabric, slot, out):
                continue
            host, device = divmod(out[1], DEVICES)
            name = f"{host}/fake{device}" if host else f"fake{device}"
            found.append(Opened(out[0], name, bool(out[2]), *out[3:]))
        return found

    def objects(self, pid: int | None = None) -> Mapping[str, int]:
        """What the process `pid` (None: all that live) holds open, with ``contexts``.

        Process IDs are those in the process's own namespace.
        """
        mine = [one for one in self.opened() if one.alive and pid in (None, one.pid)]
        return {"contexts": len(mine)} | {
            name: sum(getattr(one, name) for one in mine) for name in OBJECTS
        }

    def close(self) -> None:
        """Unmap the fabric; its ranks keep it."""
        self._lib.fakeverbs_close(self._fabric)

    def __enter__(self) -> Fabric:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def main(arguments: list[str]) -> int:
    """Do one thing to a fabric, from a shell; the stand-in is found by LD_LIBRARY_PATH."""
    if len(arguments) < 2:
        print(
            "fabric.py PATH counts|opened|cut|heal|isolate|rejoin|down|up|slow|fuse ARGUMENTS",
            file=sys.stderr,
        )
        return 2
    path, verb, *rest = arguments
    folder = next(
        Path(entry)
        for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":")
        if entry and (Path(entry) / SONAME).exists()
    )
    with Fabric(Path(path), folder) as fabric:
        match verb:
            case "counts":
                print(*(f"{k} {v}" for k, v in fabric.counts(rest[0]).items()), sep="\n")
            case "opened":
                print(*fabric.opened(), sep="\n")
            case "cut":
                fabric.cut_both(rest[0], rest[1])
            case "heal":
                fabric.heal_both(rest[0], rest[1])
            case "isolate":
                fabric.isolate(rest[0])
            case "rejoin":
                fabric.rejoin(rest[0])
            case "down":
                fabric.down(rest[0])
            case "up":
                fabric.up(rest[0])
            case "slow":
                fabric.slow(rest[0], int(rest[1]))
            case "fuse":
                fabric.fuse(rest[0], rest[1], int(rest[2]))
            case _:
                print(f"{verb}: no such verb", file=sys.stderr)
                return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
