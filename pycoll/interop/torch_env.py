"""Under mpirun, srun and `pycoll.spawn`: a store for torch, where its variables are not set."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import TCPStore

from pycoll.bootstrap import Bootstrap, detect, launcher
from pycoll.config import Config

#: Of torchrun's variables some are there, and torch says best which are not.
_NOT_OURS = ("torchrun", "single")
#: torch tries for so long to connect to a store that is gone, whose port it was just told.
_CONNECT = timedelta(seconds=30)


def launched() -> bool:
    """Tell whether a launcher started this process that pycoll knows and torch does not."""
    return launcher(Config.load()) not in _NOT_OURS


def store(timeout: timedelta | None) -> tuple[TCPStore, int, int]:
    """Meet the other ranks; return a store on rank 0, this process's rank and their number."""
    config = Config.load(timeout=None if timeout is None else seconds(timeout))
    met = detect(config)
    try:
        served = serve(met, config, timedelta(seconds=config.timeout))
    finally:
        met.close()
    return served, met.rank, met.size


def serve(met: Bootstrap, config: Config, timeout: timedelta) -> TCPStore:
    """Return a store that rank 0 serves, on every rank of those that have met."""
    mine = b""
    if met.rank == 0:
        host = met.address(config.iface)
        served = TCPStore(host, 0, met.size, True, timeout, wait_for_workers=False)
        mine = f"{served.port} {host}".encode()
    port, _, host = met.allgather(mine)[0].decode().partition(" ")
    if met.rank:
        soon = min(timeout, _CONNECT)
        try:
            served = TCPStore(host, int(port), met.size, False, soon, wait_for_workers=False)
        except RuntimeError:
            met.check()  # rank 0 may be dead
            raise
        served.set_timeout(timeout)
    met.barrier()  # nobody is still on the way when rank 0 goes on
    return served


def seconds(timeout: timedelta) -> float:
    """Return torch's timeout as pycoll takes it: torch has no upper limit, pycoll a day."""
    return min(max(timeout.total_seconds(), 0.001), 86400.0)
