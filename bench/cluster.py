"""How the benchmarks start ranks on several hosts: network namespaces of this machine.

All libraries alternate within one run, as on one host; between hosts there is TCP over veth pairs
and a bridge, which is as fast as this machine's kernel is.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from launch import MPI, ROOT, environment, mpis

sys.path.append(str(ROOT / "tests" / "net"))

from hosts import Hosts, lack

AGENT = str(ROOT / "tests" / "net" / "agent.sh")


@dataclass(frozen=True)
class Spread(MPI):
    """An MPI whose ranks are spread evenly over the hosts, neighbours on one host."""

    hosts: Hosts = field(kw_only=True)

    def command(self, ranks: int) -> list[str]:
        """Return mpirun, on the hosts' front, and the Python that it starts on every rank."""
        each = ranks // self.hosts.count
        if each * self.hosts.count != ranks:
            raise ValueError(f"{ranks} ranks do not spread evenly over {self.hosts.count} hosts")
        names = [self.hosts.address(host) for host in range(self.hosts.count)]
        if self.name == "openmpi":
            more = ["--host", ",".join(f"{name}:{each}" for name in names)]
            more += ["--map-by", f"ppr:{each}:node", "--prtemca", "plm_ssh_agent", AGENT]
            more += ["--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp"]
            # It counts the ranks of a host against that host's cores, which are the machine's. The
            # hosts share them: every rank would be bound to the first core, and poll there
            # without yielding it to the rank that it waits for.
            more += ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        else:
            more = ["-launcher", "rsh", "-launcher-exec", AGENT, "-hosts"]
            more += [",".join(f"{name}:{each}" for name in names)]
            more += ["-localhost", self.hosts.front_address]
        mpirun, *rest = super().command(ranks)
        return [*self.hosts.front, mpirun, *more, *rest]

    def environment(self) -> dict[str, str]:
        """Return what the ranks need, which the agent hands on."""
        gloo = {"GLOO_SOCKET_IFNAME": "eth0", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        return {**environment(self.root), **self.hosts.agent, **gloo}


@contextlib.contextmanager
def cluster(options: argparse.Namespace, count: int) -> Iterator[list[Spread]]:
    """Make the hosts; gives both MPIs spread over them."""
    if reason := lack():
        print(f"# not measured: {reason}")
        sys.exit()
    with Hosts(count) as hosts:
        yield [Spread(mpi.name, mpi.folder, hosts=hosts) for mpi in mpis(options)]
