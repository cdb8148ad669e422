"""How the benchmarks get hosts with RDMA: a guest of this machine, whose NICs are made of software.

Each host has one NIC and one rank. MPI is the system's Open MPI over UCX, as the wheels that the
other benchmarks take know no RDMA; both libraries send through the same queue of the same device.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch import MPI, ROOT, environment

sys.path.append(str(ROOT / "tests" / "rdma"))

from command import GuestError
from guest import Guest
from probe import lack, tools
from rack import NETWORK, Rack
from ranks import Ranks

from pycoll.benchmark import metadata

__all__ = ["UCX", "Budget", "GuestError", "Rack", "Ranks", "machine", "version"]

AGENT = str(Path(__file__).with_name("rdma_agent.sh"))


@dataclass(frozen=True, kw_only=True)
class UCX(MPI):
    """The system's Open MPI over UCX's RC transport, with a rank on each host of a guest."""

    guest: Guest
    rack: Rack
    shared: Path  #: a folder that is the guest's as well
    library: Path  #: libmpi

    def command(self, ranks: int) -> list[str]:
        """Return mpirun and the Python that it starts on every rank."""
        names = ",".join(f"{self.rack.address(host)}:1" for host in range(ranks))
        options = {
            "plm_rsh_agent": AGENT,
            "oob_tcp_if_include": f"{NETWORK}.0/24",
            "pml": "ucx",
            "btl": "^openib,ofi",
            "osc": "^ucx",
            # The hosts share two processors, which ranks that only poll would keep from each other.
            "mpi_yield_when_idle": "1",
        }
        more = [text for key, value in options.items() for text in ("--mca", key, value)]
        more += ["--host", names, "--map-by", "ppr:1:node", "--bind-to", "none"]
        return [str(self.folder / "mpirun"), *more, "-n", str(ranks), sys.executable]

    def environment(self) -> dict[str, str]:
        """Return what the ranks need; the agent adds what differs between hosts."""
        ucx = {"UCX_TLS": "rc,self", "UCX_IB_GID_INDEX": "0"}
        own = {"PYCOLL_TRANSPORT": "verbs", "MPI4PY_LIBMPI": str(self.library)}
        return {**environment(), **ucx, **own}

    def run(self, ranks: int, *arguments: str, timeout: float = 600) -> str:
        """Run ``python *arguments`` on every rank; returns what they printed."""
        argv = [*self.command(ranks), *arguments]
        return self.guest.run(argv, env=self.environment(), timeout=timeout).stdout

    def bench(
        self, ranks: int, *arguments: str, collective: str = "allreduce", timeout: float = 600
    ) -> dict[str, Any]:
        """Run ``pycoll bench`` and return its JSON."""
        path = self.shared / "rows.json"
        command = ["-m", "pycoll", "bench", collective, "--json", str(path), *arguments]
        print(f"# {ranks} hosts: pycoll bench {collective} {' '.join(arguments)}", flush=True)
        print(self.run(ranks, *command, timeout=timeout), end="", flush=True)
        result: dict[str, Any] = json.loads(path.read_text())
        if (transport := result["meta"]["transport"]) != "verbs":
            sys.exit(f"pycoll went by {transport}, want verbs: nothing was measured")
        result["meta"]["host"] = metadata.machine()  # which ran the guest
        result["meta"]["versions"]["ucx"] = version("ucx_info", "-v")
        return result


@contextlib.contextmanager
def machine(hosts: int, nics: int) -> Iterator[UCX]:
    """Boot a guest with hosts and NICs; says what is missing where that cannot be."""
    libraries = [*Path("/usr/lib").glob("*/libmpi.so.40")]
    reason = lack() or tools("ib_write_lat")
    if not reason and not (libraries and shutil.which("mpirun", path="/usr/bin")):
        reason = "no Open MPI of the system's: apt-get install openmpi-bin libucx0"
    if reason:
        print(f"# not measured: {reason}")
        sys.exit()
    with tempfile.TemporaryDirectory() as folder, Guest(share=[folder]) as guest:
        rack = Rack(guest, hosts, nics)
        yield UCX(
            "openmpi",
            Path("/usr/bin"),
            guest=guest,
            rack=rack,
            shared=Path(folder),
            library=libraries[0],
        )


class Budget:
    """Tells whether one more round ends in time, if it takes as long as the longest before."""

    def __init__(self, seconds: float) -> None:
        self._begun = self._round = time.monotonic()
        self._seconds, self._longest = seconds, 0.0

    def rounds(self, most: int) -> Iterator[int]:
        """Yield the numbers of the rounds: the first always, the others while there is time."""
        for number in range(most):
            self._round = time.monotonic()
            if number and self._round + self._longest > self._begun + self._seconds:
                print(f"# no time for more than {number} of {most} rounds")
                return
            yield number
            self._longest = max(self._longest, time.monotonic() - self._round)


def version(*command: str) -> str | None:
    """Return the first line that a program says of itself."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return None
    said = (done.stdout + done.stderr).strip().splitlines()
    return said[0].lstrip("# ") if said else None
