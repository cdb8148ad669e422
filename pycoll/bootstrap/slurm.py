"""Slurm without MPI: the environment that srun gives to every task of a step.

Task 0 runs on the first node of the step. It takes the first free one of sixteen ports that a
hash of job and step gives, or of those that Slurm reserved for the step; the others try them in
the same order, and the secret tells the right one from a stranger's. PYCOLL_ADDRESS overrides
the choice, for a firewall or an arbitrary distribution of tasks.

A Slurm job shares no secret: all that srun sets can be read by others, from `scontrol show` or
by guessing. Ranks of one node meet on loopback with a key that only the user can read (`owner`);
for more nodes PYCOLL_SECRET is required, and srun carries it to every task.
"""

from __future__ import annotations

from collections.abc import Mapping

from pycoll.bootstrap import environment, nodelist, torchrun, user_key
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.rendezvous import Star
from pycoll.config import MOST_RANKS, Config
from pycoll.errors import BootstrapError, UsageError

MOST_PORTS = 16


def launched(environ: Mapping[str, str]) -> bool:
    """Tell whether srun started this process as one of several tasks.

    A batch script has some of these variables too, but no step; and an mpirun inside of a job
    starts its daemons as a step, whose numbers are not those of the ranks.
    """
    if not ("SLURM_PROCID" in environ and _step(environ)):
        return False
    if any(name.startswith("OMPI_COMM_WORLD_") for name in environ):
        return False
    rank, size = environ["SLURM_PROCID"], _tasks(environ)
    ranks = {environ.get(name, rank) for name in ("PMI_RANK", "PMIX_RANK")}
    return ranks == {rank} and environ.get("PMI_SIZE", size) == size and size not in ("", "1")


def meet(config: Config, environ: Mapping[str, str]) -> Star:
    """Meet the other tasks of the step on the node of task 0."""
    size = _number("number of tasks", _tasks(environ), 1, MOST_RANKS)
    rank = _number("SLURM_PROCID", environ.get("SLURM_PROCID", ""), 0, size - 1)
    if size == 1:
        return Star(0, 1, (Member.me(),))
    nodes = _nodes(environ)
    name = f"{environ.get('SLURM_CLUSTER_NAME', '')} {_job(environ)} {_step(environ)}".encode()
    host, choice = nodes[0], ports(name, environ.get("SLURM_STEP_RESV_PORTS", ""))
    if len(nodes) == 1:
        host = "127.0.0.1"
    secret = config.secret
    if config.address:
        host, port = environment.split(config.address)
        choice = [port]
    if not secret:
        if len(nodes) > 1:
            raise UsageError(
                f"PYCOLL_SECRET is not set, and this step has {len(nodes)} nodes, between which "
                "Slurm shares no secret: "
                "srun --export=ALL,PYCOLL_SECRET=$(openssl rand -hex 32) ..."
            )
        secret = user_key.secret(config.cache, b"slurm " + name)
    return environment.meet_at(host, choice, rank, size, secret, config.timeout)


def ports(name: bytes, reserved: str) -> list[int]:
    """Return the ports on which rank 0 may listen, in order.

    Args:
        name: Of the job and the step.
        reserved: What Slurm keeps free for this step, such as "12000-12003"; mostly nothing.
    """
    if not reserved:
        return torchrun.ports(b"slurm " + name)
    found = [int(text) for text in nodelist.expand(f"[{reserved}]")]
    if not all(0 < port < 65536 for port in found):
        raise BootstrapError(f"slurm: SLURM_STEP_RESV_PORTS is {reserved!r}, want 1 to 65535")
    return found[:MOST_PORTS]


def _nodes(environ: Mapping[str, str]) -> list[str]:
    arbitrary = environ.get("SLURM_ARBITRARY_NODELIST", "")
    if environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary") and arbitrary:
        return list(dict.fromkeys(nodelist.expand(arbitrary)))  # a node for each task
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environ.get(name):
            return nodelist.expand(environ[name])
    raise BootstrapError("slurm: SLURM_STEP_NODELIST is not set, want the nodes of this step")


def _tasks(environ: Mapping[str, str]) -> str:
    """Return the number of tasks of the step; SLURM_NTASKS may be that of the whole job."""
    return environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS", "")


def _step(environ: Mapping[str, str]) -> str:
    return environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID", "")


def _job(environ: Mapping[str, str]) -> str:
    return environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID", "")


def _number(what: str, text: str, lowest: int, highest: int) -> int:
    if not (text.isascii() and text.isdigit() and lowest <= int(text) <= highest):
        raise BootstrapError(
            f"slurm: {what} is {text!r}, want an integer from {lowest} to {highest}"
        )
    return int(text)
