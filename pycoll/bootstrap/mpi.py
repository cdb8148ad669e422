"""mpi4py: MPI hands out rank 0's address and the job's secret, and is then left alone.

The only importer of mpi4py. MPI is used for two nonblocking allgathers, on COMM_WORLD or on the
communicator that the user names, which are polled against a deadline: a blocking call could not
say which rank never came, nor be interrupted by Ctrl-C. Being collectives they cannot match a
message of the user's program.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any

from pycoll.bootstrap import rendezvous, route
from pycoll.bootstrap.framing import pack_blobs, unpack_blobs
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.rendezvous import Address, Star
from pycoll.config import Config
from pycoll.errors import BootstrapError, UnavailableError, UsageError

#: Number of ranks, as the launchers of Open MPI and of MPICH and its kin give it.
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
#: Says only that there is a PMIx launcher; srun and prterun set it.
PMIX_VARIABLES = ("PMIX_RANK", "PMIX_NAMESPACE")

BLOB_BYTES = 1024  #: what a rank gives to an allgather, padded

#: Requests that a deadline left open: MPI may still write to their buffers.
_abandoned: list[object] = []


def launched(environ: Mapping[str, str]) -> bool:
    """Tell whether an MPI launcher started this process, or the program has MPI running."""
    if any(name in environ for name in SIZE_VARIABLES):
        return launched_size(environ) != 1
    if all(name in environ for name in PMIX_VARIABLES):
        return True
    module = sys.modules.get("mpi4py.MPI")
    return bool(
        module
        and module.Is_initialized()
        and not module.Is_finalized()
        and module.COMM_WORLD.Get_size() > 1
    )


def installed() -> bool:
    """Tell whether mpi4py can be found; it is not imported, which would start MPI."""
    return "mpi4py" in sys.modules or importlib.util.find_spec("mpi4py") is not None


def launched_size(environ: Mapping[str, str]) -> int:
    """Return the number of ranks that the launcher says it started, or 0 if it does not say."""
    for name in SIZE_VARIABLES:
        text = environ.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return 0


def meet(config: Config, environ: Mapping[str, str]) -> Star:
    """Learn rank 0's address through MPI and meet the others there."""
    return _meet(_world(environ), config, "pycoll.init()")


def meet_over(comm: Any, config: Config) -> Star:
    """Meet the ranks of an mpi4py communicator, numbered as they are there.

    Raises:
        UsageError: It is no communicator, an inter-communicator, or has been freed.
    """
    module = sys.modules.get("mpi4py.MPI")  # without it nobody can have a communicator
    if module is None or not isinstance(comm, module.Comm):
        raise UsageError(f"from_mpi: comm is a {type(comm).__name__}, want an mpi4py.MPI.Comm")
    _require_running(module, "pycoll.from_mpi()")
    if comm == module.COMM_NULL:
        raise UsageError(
            "from_mpi: comm is MPI.COMM_NULL: it was freed, or this rank is not one of its ranks"
        )
    if comm.Is_inter():
        raise UsageError(
            f"from_mpi: comm is an inter-communicator ({comm.Get_size()} and "
            f"{comm.Get_remote_size()} ranks), which has two groups; pass comm.Merge()"
        )
    return _meet(comm, config, "pycoll.from_mpi()")


def _meet(comm: Any, config: Config, call: str) -> Star:
    deadline = time.monotonic() + config.timeout
    rank, size = comm.Get_rank(), comm.Get_size()
    if size == 1:
        return Star(0, 1, (Member.me(),))
    hosts = _allgather(comm, Member.me().host.encode(), deadline, call)
    near = all(host == hosts[0] for host in hosts)
    if rank:
        offer = _allgather(comm, b"", deadline, call)[0]
        secret, port, names = unpack_blobs(offer, 3)
        return rendezvous.join(_addresses(port, names), rank, size, secret, deadline)
    with rendezvous.listen("127.0.0.1" if near else "", 0, backlog=4 * size + 64) as listener:
        secret = config.secret or os.urandom(32)
        port = struct.pack("<H", listener.getsockname()[1])
        names = b" ".join(name.encode() for name in (["127.0.0.1"] if near else _names()))
        _allgather(comm, pack_blobs([secret, port, names]), deadline, call)
        return rendezvous.gather(listener, size, secret, deadline)


def _world(environ: Mapping[str, str]) -> Any:
    """Return COMM_WORLD of an MPI that runs and agrees with the launcher."""
    try:
        # Importing it calls MPI_Init, unless the program has said otherwise.
        from mpi4py import MPI
    except ImportError as error:
        raise UnavailableError(
            f"started by an MPI launcher, but mpi4py cannot be imported ({error}): "
            "pip install mpi4py"
        ) from error
    _require_running(MPI, "pycoll.init()")
    world = MPI.COMM_WORLD
    wanted = launched_size(environ)
    if wanted and world.Get_size() != wanted:
        library = MPI.Get_library_version().partition(",")[0].split("\n")[0].strip()
        raise BootstrapError(
            f"the MPI launcher started {wanted} ranks, but mpi4py's MPI ({library}) sees "
            f"{world.Get_size()}: use the mpirun of that MPI"
        )
    return world


def _require_running(module: Any, call: str) -> None:
    if module.Is_finalized() or not module.Is_initialized():
        state = "is finalized" if module.Is_finalized() else "is not initialized"
        raise BootstrapError(f"mpi4py: MPI {state}: call {call} between Init and Finalize")


def _allgather(comm: Any, blob: bytes, deadline: float, call: str) -> list[bytes]:
    """Give every rank's blob to every rank, or fail at the deadline."""
    size = comm.Get_size()
    if len(blob) > BLOB_BYTES - 2:
        raise BootstrapError(f"mpi4py: a blob has {len(blob)} bytes, at most {BLOB_BYTES - 2}")
    mine = bytearray(BLOB_BYTES)
    struct.pack_into(f"<H{len(blob)}s", mine, 0, len(blob), blob)
    everyone = bytearray(size * BLOB_BYTES)
    request = comm.Iallgather(mine, everyone)
    pause = 0.0
    while not request.Test():
        if time.monotonic() > deadline:
            _abandoned.append((request, mine, everyone))
            raise BootstrapError(
                f"mpi4py: not all {size} ranks came to {call} before the deadline "
                f"(rank {comm.Get_rank()} did)"
            )
        time.sleep(pause)  # at first a mere yield: ranks may share a core
        pause = min(pause + 1e-5, 1e-3)
    blobs = []
    for start in range(0, len(everyone), BLOB_BYTES):
        (count,) = struct.unpack_from("<H", everyone, start)
        blobs.append(bytes(everyone[start + 2 : start + 2 + count]))
    return blobs


def _names() -> list[str]:
    """Return names and addresses under which other machines may reach this one, best first."""
    found = [socket.gethostname(), socket.getfqdn()]
    with contextlib.suppress(OSError):
        found += route.addresses().values()
    kept = [name for name in dict.fromkeys(found) if not route.is_loopback(name)]
    return kept[:16]


def _addresses(port: bytes, names: bytes) -> list[Address]:
    (number,) = struct.unpack("<H", port)
    return [(name, number) for name in names.decode().split()]
