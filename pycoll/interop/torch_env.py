"""Under mpirun, srun and `pycoll.spawn`: a store for torch, where its variables are not set."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import TCPStore

from pycoll.bootstrap import detect, launcher
from pycoll.config import Config

#: Of torchrun's variables some are there, and torch says best which are not.
_NOT_OURS = ("torchrun", "single")


def launched() -> bool:
    """Tell whether a launcher started this process that pycoll knows and torch does not."""
    return launcher(Config.load()) not in _NOT_OURS


def store(timeout: timedelta | None) -> tuple[TCPStore, int, int]:
    """Meet the other ranks; return a store on rank 0, this process's rank and their number."""
    config = Config.load(timeout=None if timeout is None else seconds(timeout))
    allowed = timedelta(seconds=config.timeout)
    met = detect(config)
    try:
        rank, size = met.rank, met.size
        mine = b""
        if rank == 0:
            host = met.address(config.iface)
            served = TCPStore(host, 0, size, True, allowed, wait_for_workers=False)
            mine = f"{served.port} {host}".encode()
        port, _, host = met.allgather(mine)[0].decode().partition(" ")
        if rank:
            served = TCPStore(host, int(port), size, False, allowed, wait_for_workers=False)
        met.barrier()  # nobody is still on the way when rank 0 goes on
    finally:
        met.close()
    return served, rank, size


def seconds(timeout: timedelta) -> float:
    """Return torch's timeout as pycoll takes it: torch has no upper limit, pycoll a day."""
    return min(max(timeout.total_seconds(), 0.001), 86400.0)
