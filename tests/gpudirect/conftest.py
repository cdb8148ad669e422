"""Ranks on several hosts with a GPU and RDMA cards each: both are stand-ins, in each rank.

A rank is a process that was forked from the test's; it has loaded the stand-in for libcuda and the
one for libibverbs, and finds the boot id of the host that the test says (in a mount namespace of
its own), so that it shares no memory with ranks of other hosts. A NIC reaches a GPU's memory as the
options of both say, and what is written there is seen after a flush (tests/fakeverbs/gpu.c)::

    def test_something(cluster: Cluster) -> None:
        def rank() -> None:
            with pycoll.init() as comm:
                comm.allreduce(gpus.of(np.ones(10, "f4")))

        cluster.run([0, 1], rank, gpu={"capability": 80}, card={"peermem": 1})
        assert cluster.fabric.total("held") > 0
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path += [str(Path(__file__).parents[1] / "cuda"), str(Path(__file__).parent)]  # gpus.py

import fakecuda
import fakefabric
import fakeverbs_library
import gpus
import stand_in
from fabric import Fabric

import pycoll
from pycoll.bootstrap import job


class Cluster:
    """Hosts that an RDMA network joins.

    Args:
        folder: Where the network is kept, and the logs of the ranks' GPUs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fabric = Fabric(folder / "fabric", fakeverbs_library.built())

    def log(self, rank: int) -> Path:
        """Return the log of a rank's calls of libcuda, of its last run."""
        return self.folder / f"cuda{rank}.log"

    def run(
        self,
        hosts: Sequence[int],
        fn: Callable[..., Any],
        *args: Any,
        gpu: Mapping[str, object] | None = None,
        card: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        transport: str = "verbs",
        **options: Any,
    ) -> list[Any]:
        """Run a function as ranks; returns what each returns.

        Args:
            hosts: Of every rank, the number of its host.
            fn: What a rank does.
            *args: Given to it.
            gpu: Options of the stand-in for libcuda (fakecuda_library.py).
            card: Options of the stand-in for libibverbs (fabric.py); with ``peermem`` the host
                has the module nvidia_peermem. Of the one for libfabric (fakefabric.c), where it is
                the transport.
            env: More of a rank's environment.
            transport: What ranks on different hosts are reached by.
            **options: Those of `pycoll.spawn`.
        """
        fakecuda.library()  # built by the parent, for all of them
        libfabric = fakefabric.build(self.folder) if transport == "libfabric" else None
        for rank in range(len(hosts)):
            self.log(rank).unlink(missing_ok=True)

        def rank() -> Any:
            place = job.current()
            assert place is not None
            number = place.rank
            os.environ.update({"PYCOLL_TRANSPORT": transport, **(env or {})})
            _live_on(hosts[number], self.folder)
            given = {"host": hosts[number], **(card or {})}
            if given.get("peermem"):
                _load_peermem()
            if libfabric is None:
                stand_in.load(self.fabric.path, **given)
            else:
                named = {f"FAKEFABRIC_{name.upper()}": str(value) for name, value in given.items()}
                os.environ.update(named)
                ctypes.CDLL(str(libfabric / fakefabric.SONAME))  # found by its name from now on
            gpus.use(self.log(number), **(gpu or {}))
            return fn(*args)

        return pycoll.spawn(rank, len(hosts), **{"timeout": 200, **options})


_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_SLAVE = 0x20000, 0x1000, 0x4000, 0x80000
_BOOT_ID, _MODULES = "/proc/sys/kernel/random/boot_id", "/sys/module"


def _live_on(host: int, folder: Path) -> None:
    """Have this process, of one thread, find another boot id than those on other hosts do."""
    identity = folder / f"boot_id.{host}"
    identity.write_text(f"{uuid.UUID(int=host + 1)}\n")
    _check(_libc().unshare(_CLONE_NEWNS), "unshare")
    _mount("none", "/", "none", _MS_REC | _MS_SLAVE)
    _mount(str(identity), _BOOT_ID, "none", _MS_BIND)


def _load_peermem() -> None:
    """Have this process, on its host, find that nvidia_peermem is loaded."""
    _mount("none", _MODULES, "tmpfs", 0)
    os.mkdir(f"{_MODULES}/nvidia_peermem")


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    arguments = (source.encode(), target.encode(), kind.encode(), flags, None)
    _check(_libc().mount(*arguments), f"mount {target}")


def _check(code: int, what: str) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


@functools.cache
def lack() -> str:
    """Say what this machine lacks for ranks that take themselves to be on several hosts."""
    with tempfile.TemporaryDirectory() as folder:
        if (child := os.fork()) == 0:
            try:
                _live_on(0, Path(folder))
            except OSError:
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "no mount namespaces here: they want root" if code else ""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Hosts, for one test."""
    if reason := fakeverbs_library.lack() or fakecuda.lack() or lack():
        pytest.skip(reason)
    made = Cluster(tmp_path)
    yield made
    # What ended has given back all it had of its card, and done nothing undefined with its GPU.
    living = [one for one in made.fabric.opened() if one.alive]
    logs = sorted(tmp_path.glob("cuda*.log"))
    remarks = [said for log in logs for said in fakecuda.remarks(log)]
    made.fabric.close()
    assert not living
    assert not [said for said in remarks if said.startswith("undefined")]
