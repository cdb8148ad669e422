"""The process group of torch: its life, its names, messages between two ranks, barriers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pycoll.communicator import Communicator
from pycoll.errors import UnavailableError, UsageError
from pycoll.interop.torch_backend import NAME
from pycoll.interop.torch_calls import only, torch_errors
from pycoll.interop.torch_collectives import Collectives
from pycoll.interop.torch_dynamo import run_as_it_is
from pycoll.interop.torch_launch import seconds
from pycoll.interop.torch_meet import Maker
from pycoll.interop.torch_tags import Lanes
from pycoll.interop.torch_tensor import Tensor, incoming, outgoing
from pycoll.interop.torch_work import Pending


@torch_errors
def create(options: Any) -> Group:
    """Make the process group that torch describes; its ranks call this, and nobody else.

    The ranks of the first one meet through torch's store. A group of some of those of a "pycoll"
    group meets over the connections which that one has.
    """
    ranks = list(options.global_ranks_in_group)
    timeout = options.timeout
    parent = dist.group.WORLD
    if ranks and isinstance(parent, Group):
        return Group(parent._maker.part(ranks, "torch group", timeout))
    return Group(Maker.met(options.store, options.group_rank, options.group_size, timeout))


@run_as_it_is
class Group(Collectives):
    """torch.distributed's process group "pycoll"."""

    def __init__(self, maker: Maker) -> None:
        super().__init__(maker)
        self._name = self._desc = ""
        self._lanes = Lanes(self._pair)

    # What torch asks a group about itself.

    supports_splitting = True
    supports_coalescing = False
    supports_time_estimate = False
    options = None  #: a backend's; there are none

    @property
    def communicator(self) -> Communicator:
        """The group's ranks as pycoll knows them; it is closed with the group."""
        return self._comm

    def getBackendName(self) -> str:
        """Return "pycoll"."""
        return NAME

    name = _get_backend_name = getBackendName

    def getRank(self) -> int:
        """Return this process's rank in the group."""
        return self._comm.rank

    def getSize(self) -> int:
        """Return the number of ranks."""
        return self._comm.size

    def getGroupName(self) -> str:
        """Return the name that torch gave the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Give the group torch's name."""
        self._name = name

    def getGroupDesc(self) -> str:
        """Return what torch says the group is for."""
        return self._desc

    def setGroupDesc(self, description: str) -> None:
        """Say what the group is for."""
        self._desc = description

    def _get_backend(self, device: Any) -> Any:
        """Return what serves a device: this group serves all."""
        return self

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the communicator counts its calls itself."""

    def eager_connect_single_device(self, device: Any) -> None:
        """Do nothing: the ranks are connected."""

    def perform_nocolor_split(self, device: Any) -> None:
        """Do nothing: ranks that are in no part need not come."""

    # Its life.

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a call may take from now on; on all ranks alike."""
        self._seconds = seconds(timeout)

    _set_default_timeout = set_timeout

    @torch_errors
    def shutdown(self) -> None:
        """Finish what was begun, and take leave of the other ranks."""
        self._lanes.close()
        with self._entered:
            self._comm.close()
        self._completer.close()

    @torch_errors
    def abort(self) -> None:
        """Take leave without waiting for anything; what was begun fails."""
        self._engine.leave()
        self._lanes.close()
        self._completer.close()

    @torch_errors
    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> Group | None:
        """Return a group of some of the ranks, or None on a rank that is not among them.

        Args:
            ranks: As this group counts them, in the order of the new one.
            timeout: Of its calls; as here by default.
            opts: Of a backend; there are none.
            group_name: Its name.
            group_desc: What it is for.
            device_types: Which devices it is to serve: it serves all.
        """
        if self._comm.rank not in ranks:
            return None
        made = Group(self._maker.part(list(ranks), "torch split", timeout))
        made.setGroupName(group_name or f"{self._name}:split")
        made.setGroupDesc(group_desc or "")
        return made

    splitGroup = split_group

    # Barriers.

    @torch_errors
    def barrier(self, opts: Any = None) -> Any:
        """Return once every rank has called it."""
        timeout = self._timeout(opts)
        if opts is None or opts.asyncOp:
            return self._begin(opts, [], [lambda beside, limit: self._comm.barrier(beside, limit)])
        with self._entered:
            self._comm.barrier(timeout=timeout)
        return self._over

    @torch_errors
    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Return once every rank has called it; the error names all that did not."""
        limit = self._seconds if timeout is None else seconds(timeout)
        with self._entered:
            self._comm.barrier(timeout=limit)

    # Messages between two ranks.

    @torch_errors
    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """Send a tensor to one rank."""
        tensor = only(tensors, "send")
        self._check_tag(tag, "send")
        array = outgoing(tensor)
        with self._entered:
            if tag == 0:
                part = self._comm.send(array, dst, async_op=True, timeout=self._seconds)
            else:
                self._check_peer(dst, "send")
                part = self._lanes.send(_bytes(array), self._comm.rank, dst, tag)
        return self._noted(Pending([part], (), [tensor], self._beside))

    @torch_errors
    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """Receive a tensor from one rank."""
        tensor = only(tensors, "recv")
        self._check_tag(tag, "recv")
        staged = incoming(tensor)
        with self._entered:
            if tag == 0:
                part = self._comm.recv(staged.array, src, async_op=True, timeout=self._seconds)
            else:
                self._check_peer(src, "recv")
                part = self._lanes.recv(_bytes(staged.array), src, self._comm.rank, tag)
        arrive = () if staged.arrive is None else (staged.arrive,)
        return self._noted(Pending([part], arrive, [tensor], self._beside, src))

    @torch_errors
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Raise: a message is received where it lies, so its sender has to be known."""
        raise UnavailableError(
            "recv: no source is given, and pycoll receives from a rank that is named: pass src="
        )

    def _pair(self, frm: int, to: int) -> Communicator:
        return self._maker.part([frm, to], f"tags from {frm} to {to}").comm

    def _check_tag(self, tag: int, what: str) -> None:
        if tag < 0:
            raise UsageError(f"{what}: tag is {tag}, want at least 0")

    def _check_peer(self, peer: int, what: str) -> None:
        if not 0 <= peer < self._comm.size or peer == self._comm.rank:
            raise UsageError(
                f"{what}: the peer is rank {peer}; with a tag other than 0, want one of the "
                f"{self._comm.size} ranks that is not this one, {self._comm.rank}"
            )


def _bytes(array: Tensor) -> Tensor:
    return array.as_strided((array.numel(),), (1,)).view(torch.uint8)
