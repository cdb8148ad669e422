"""torchrun's environment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

MASTER_PORT itself belongs to torch, whose store may listen on it, and its neighbours are what
people give to the next job on the machine. So rank 0 takes the first free one of sixteen ports
that a hash of the job's name, address and port gives, below the range from which the kernel
gives out ports; the other ranks try them in the same order, and the job's secret tells the right
one from a stranger's. PYCOLL_ADDRESS overrides the choice, for a firewall.

torchrun hands out no secret. One is derived from the job's name, address and port, and from a key
that only the user can read (`owner`). Hosts that do not share that key join by the first three,
which everyone may know: then a warning says so, and pickles are refused. PYCOLL_SECRET ends that.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from pycoll.bootstrap import environment, user_key
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.rendezvous import Star
from pycoll.config import MOST_RANKS, Config
from pycoll.errors import BootstrapError

#: Begins the name of a job that `pycoll run` started, which gives the same variables as torchrun.
OWN_RUN = "pycoll-"
PORTS = 16
LOWEST, HIGHEST = 10000, 32767


def launched(environ: Mapping[str, str]) -> bool:
    """Tell whether torchrun, or something that sets its variables, started this process."""
    return "RANK" in environ and "WORLD_SIZE" in environ


def innermost(environ: Mapping[str, str]) -> bool:
    """Tell whether torchrun itself started this process, so that an mpirun would lie outside."""
    return launched(environ) and "TORCHELASTIC_RUN_ID" in environ


def program(environ: Mapping[str, str] | None = None) -> str:
    """Name the program that set torchrun's variables, as the user knows it."""
    environ = os.environ if environ is None else environ
    own = environ.get("TORCHELASTIC_RUN_ID", "").startswith(OWN_RUN)
    return "pycoll run" if own else "torchrun"


def meet(config: Config, environ: Mapping[str, str]) -> Star:
    """Meet the other ranks on the machine that MASTER_ADDR names."""
    size = _number(environ, "WORLD_SIZE", 1, MOST_RANKS)
    rank = _number(environ, "RANK", 0, size - 1)
    if size == 1:
        return Star(0, 1, (Member.me(),))
    host = environ.get("MASTER_ADDR", "")
    if not host:
        raise BootstrapError("torchrun: MASTER_ADDR is not set, want the host of rank 0")
    port = _number(environ, "MASTER_PORT", 1, 65535)
    name = f"{environ.get('TORCHELASTIC_RUN_ID', '')} {host} {port}".encode()
    secret, public = config.secret, b""
    if not secret:
        secret = user_key.secret(config.cache, b"torchrun " + name)
        if environ.get("LOCAL_WORLD_SIZE") != str(size):  # else all are on this machine
            public = hashlib.sha256(b"pycoll torchrun secret " + name).digest()
    choice = ports(name)
    if config.address:
        host, port = environment.split(config.address)
        choice = [port]
    return environment.meet_at(host, choice, rank, size, secret, config.timeout, public)


def ports(name: bytes) -> list[int]:
    """Return the ports that rank 0 of the job called `name` may listen on, in order."""
    span = HIGHEST - LOWEST + 1
    start = int.from_bytes(hashlib.sha256(b"pycoll torchrun port " + name).digest()[:4], "big")
    # 7919 is prime to the span, so the ports differ, and lie far apart.
    return [LOWEST + (start + 7919 * i) % span for i in range(PORTS)]


def variables(rank: int, size: int, port: int, run: str) -> dict[str, str]:
    """Return what torchrun gives to a process, where all of them are on this host.

    Args:
        rank: Its number.
        size: Number of ranks.
        port: A free one, for torch's store.
        run: A name that no other job on this host has.
    """
    numbers = {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), size),
        "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": 1,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    return {
        **{name: str(number) for name, number in numbers.items()},
        "MASTER_ADDR": "127.0.0.1",
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 makes the store
    }


def restarted(count: int) -> dict[str, str]:
    """Return what tells a process that it is started in place of another."""
    return {"TORCHELASTIC_RESTART_COUNT": str(count)}


def _number(environ: Mapping[str, str], name: str, lowest: int, highest: int) -> int:
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit() and lowest <= int(text) <= highest):
        raise BootstrapError(
            f"torchrun: {name} is {text!r}, want an integer from {lowest} to {highest}"
        )
    return int(text)
