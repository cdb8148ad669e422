"""Which launcher started this process, and meeting the other ranks in its way."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pycoll import log
from pycoll.bootstrap import environment, job, mpi, slurm, torchrun
from pycoll.bootstrap.base import Bootstrap
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.rendezvous import Star
from pycoll.config import Config
from pycoll.errors import UsageError


def launcher(config: Config, environ: Mapping[str, str] | None = None) -> str:
    """Name the way in which `detect` would find the other ranks.

    What is nearest to the process wins: `pycoll.spawn` over PYCOLL_NEWCOMER and PYCOLL_RANK, which
    someone set on purpose, over the launchers; a torchrun that mpirun started on every node over
    that mpirun. srun gives way to MPI, which has a private way to hand out a secret, if mpi4py is
    installed, and to variables of torchrun, which someone set on purpose.
    """
    environ = os.environ if environ is None else environ
    if job.current():
        return "spawn"
    if config.newcomer != "no":
        return "join"
    if environment.launched(config):
        return "environment"
    if torchrun.innermost(environ):
        return "torchrun"
    by_srun = slurm.launched(environ)
    if mpi.launched(environ) and not (by_srun and not mpi.installed()):
        return "mpi4py"
    if torchrun.launched(environ):
        return "torchrun"
    if by_srun:
        return "slurm"
    if config.address is not None:
        raise UsageError(
            "PYCOLL_ADDRESS is set, but nothing says which rank this is: set PYCOLL_RANK"
        )
    return "single"


def detect(config: Config | None = None) -> Bootstrap:
    """Find out who this process is, and meet the other ranks of its job.

    Args:
        config: The settings; read from the environment by default.

    Raises:
        BootstrapError: The ranks could not find or authenticate each other before the timeout.
        UnavailableError: An MPI launcher started this process, and mpi4py is missing.
        UsageError: A bad setting, or this process is to join a running job.
    """
    config = config or Config.load()
    name = launcher(config)
    if name == "spawn":
        star = job.meet(config)
    elif name == "join":
        raise UsageError(
            "PYCOLL_NEWCOMER is set, so this process joins a running job, and is no rank of "
            "another: call pycoll.init() or pycoll.join()"
        )
    elif name == "environment":
        star = environment.meet(config)
    elif name == "mpi4py":
        star = mpi.meet(config, os.environ)
    elif name == "torchrun":
        star = torchrun.meet(config, os.environ)
    elif name == "slurm":
        star = slurm.meet(config, os.environ)
    else:
        star = Star(0, 1, (Member.me(),))
    log.info("bootstrap", "rank %d of %d, by launcher %s", star.rank, star.size, name)
    return Bootstrap(name, star, config.timeout)
