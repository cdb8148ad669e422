"""The plain environment: PYCOLL_RANK, PYCOLL_SIZE and PYCOLL_ADDRESS say it all."""

from __future__ import annotations

import hashlib
import time

from pycoll.bootstrap import rendezvous, route
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.rendezvous import Star
from pycoll.config import Config
from pycoll.errors import BootstrapError, UsageError


def launched(config: Config) -> bool:
    """Tell whether the settings name a rank; UsageError if they do so by half."""
    if config.rank is None and config.size is None:
        return False
    if config.rank is None or config.size is None:
        given, missing = ("size", "rank") if config.rank is None else ("rank", "size")
        raise UsageError(
            f"PYCOLL_{given.upper()} is set, PYCOLL_{missing.upper()} is not: "
            "set PYCOLL_RANK, PYCOLL_SIZE and PYCOLL_ADDRESS"
        )
    if config.rank >= config.size:
        raise UsageError(
            f"PYCOLL_RANK is {config.rank}, want 0 to {config.size - 1} (PYCOLL_SIZE - 1)"
        )
    if config.size > 1 and config.address is None:
        raise UsageError("PYCOLL_ADDRESS is not set, want host:port of rank 0")
    return True


def meet(config: Config) -> Star:
    """Meet the other ranks at PYCOLL_ADDRESS."""
    assert config.rank is not None
    assert config.size is not None
    if config.size == 1:
        return Star(0, 1, (Member.me(),))
    assert config.address is not None
    host, port = split(config.address)
    secret = config.secret or _loopback_secret(config.address, host)
    return meet_at(host, [port], config.rank, config.size, secret, config.timeout)


def meet_at(
    host: str, ports: list[int], rank: int, size: int, secret: bytes, timeout: float
) -> Star:
    """Meet at the first of `ports` that rank 0 can have; the others try them in turn."""
    deadline = time.monotonic() + timeout
    if rank:
        return rendezvous.join([(host, port) for port in ports], rank, size, secret, deadline)
    problem = ""
    for port in ports:
        try:
            listener = rendezvous.listen(host, port, backlog=4 * size + 64)
        except OSError as error:
            problem = f"{host}:{port}: {error.strerror or error}"
            continue
        with listener:
            return rendezvous.gather(listener, size, secret, deadline)
    raise BootstrapError(f"rank 0 cannot listen at {problem}")


def split(address: str) -> tuple[str, int]:
    """Split "host:port" or "[host]:port", whose form Config has checked."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _loopback_secret(address: str, host: str) -> bytes:
    """Return a stand-in for PYCOLL_SECRET that is no secret from others on this machine."""
    if not route.is_loopback(host):
        raise UsageError(
            f"PYCOLL_SECRET is not set, and {address} can be reached from other machines: set it "
            "to the same output of `openssl rand -hex 32` on every rank"
        )
    return hashlib.sha256(f"pycoll loopback {address}".encode()).digest()
