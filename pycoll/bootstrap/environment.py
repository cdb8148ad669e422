"""The plain environment: PYCOLL_RANK, PYCOLL_SIZE and PYCOLL_ADDRESS say it all."""

from __future__ import annotations

import time

from pycoll.bootstrap import rendezvous, route, user_key
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
    secret = config.secret or _loopback_secret(config, host)
    return meet_at(host, [port], config.rank, config.size, secret, config.timeout)


def meet_at(
    host: str,
    ports: list[int],
    rank: int,
    size: int,
    secret: bytes,
    timeout: float,
    public: bytes = b"",
) -> Star:
    """Meet at the first of `ports` that rank 0 can have; the others try them in turn."""
    deadline = time.monotonic() + timeout
    if rank:
        where = [(host, port) for port in ports]
        return rendezvous.join(where, rank, size, secret, deadline, public)
    problem = ""
    for port in ports:
        try:
            listener = rendezvous.listen(host, port, backlog=4 * size + 64)
        except OSError as error:
            problem = f"{host}:{port}: {error.strerror or error}"
            continue
        with listener:
            return rendezvous.gather(listener, size, secret, deadline, public)
    raise BootstrapError(f"rank 0 cannot listen at {problem}")


def split(address: str) -> tuple[str, int]:
    """Split "host:port" or "[host]:port", whose form Config has checked."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _loopback_secret(config: Config, host: str) -> bytes:
    """Return what serves for PYCOLL_SECRET where all ranks are processes of this machine."""
    if not route.is_loopback(host):
        raise UsageError(
            f"PYCOLL_SECRET is not set, and {config.address} can be reached from other machines: "
            "set it to the same output of `openssl rand -hex 32` on every rank"
        )
    return user_key.secret(config.cache, f"loopback {config.address}".encode())
