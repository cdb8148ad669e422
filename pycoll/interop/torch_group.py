"""The process group of torch: its life, its names, messages between two ranks, barriers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import BarrierOptions

from pycoll.communicator import Communicator
from pycoll.errors import BrokenError, PeerLostError, UnavailableError, UsageError, quoted
from pycoll.interop import torch_place
from pycoll.interop.torch_calls import only
from pycoll.interop.torch_collectives import Collectives
from pycoll.interop.torch_dynamo import run_as_it_is
from pycoll.interop.torch_entry import call, torch_errors
from pycoll.interop.torch_env import seconds
from pycoll.interop.torch_init import Maker
from pycoll.interop.torch_name import DEVICES, NAME
from pycoll.interop.torch_overloads import options
from pycoll.interop.torch_tags import TagQueues
from pycoll.interop.torch_tensor import Tensor, incoming, outgoing
from pycoll.interop.torch_work import Pending
from pycoll.runtime.record import places

# Calls come in through torch's frames: the line in an event is that of whoever called torch.
places.not_users(f"{os.path.dirname(torch.__file__)}{os.sep}")

#: torch's flag, 0x01, which older ones do not have.
SHRINK_ABORT = 1


@torch_errors
def create(asked: Any) -> Group:
    """Make the process group that torch describes; its ranks call this, and nobody else.

    The ranks of the first one meet through torch's store. A group of some of those of a "pycoll"
    group meets over the connections which that one has.
    """
    ranks = list(asked.global_ranks_in_group)
    made: Group | None = torch_place.kept()
    if made is not None:
        made.settle(asked.store, ranks or range(asked.group_size))
        return made
    timeout = asked.timeout
    parent = dist.group.WORLD
    if ranks and isinstance(parent, Group):
        return Group(parent._maker.part(ranks, "torch group", timeout), asked.store, ranks)
    met = Maker.met(asked.store, asked.group_rank, asked.group_size, timeout)
    return Group(met, asked.store, ranks or range(asked.group_size))


@torch_errors
def adopt(comm: Communicator) -> Any:
    """Make a communicator torch's default group; see `torch_backend.init_process_group`."""
    if not isinstance(comm, Communicator):
        raise UsageError(f"init_process_group: comm is {quoted(comm)}, want a Communicator")
    if state := comm._engine.state():
        raise UsageError(f"init_process_group: comm is {state}, want one that is open")
    old: Any = dist.group.WORLD
    if isinstance(old, Group) and old._engine is comm._engine:
        raise UsageError("init_process_group: comm is that of the default group")
    return torch_place.install(Group(Maker.of(comm), None, range(comm.size)))


@torch_errors
def shrunk(old: Any, timeout: timedelta | None) -> Group:
    """Return a group of those who live; see `torch_backend.shrink`."""
    if not isinstance(old, Group):
        raise UsageError(f"shrink: the group is {quoted(old)}, want a process group of {NAME!r}")
    if not isinstance(timeout, timedelta | None):
        raise UsageError(f"shrink: timeout is {quoted(timeout)}, want a datetime.timedelta")
    return old.shrink_to_living(timeout)


class Options(Backend.Options):  # type: ignore[misc]
    """What scripts look up in a backend's options: how long a call may take, and whose they are."""

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(NAME, timeout)

    def __deepcopy__(self, memo: Any) -> Options:
        """Return a copy: torch makes one for each group that it splits off."""
        made = Options(self._timeout)
        made.global_ranks_in_group = self.global_ranks_in_group
        made.group_name = self.group_name
        return made


@run_as_it_is
class Group(Collectives):
    """torch.distributed's process group "pycoll"."""

    def __init__(self, maker: Maker, store: Any, ranks: Sequence[int]) -> None:
        super().__init__(maker)
        self._left = maker  #: those of the group who are left, as far as they have agreed on it
        self._name = self._desc = ""
        self._lanes = TagQueues(self._pair)
        self.options = Options(timedelta(seconds=self._engine.timeout))
        self.settle(store, ranks)

    def settle(self, store: Any, ranks: Sequence[int]) -> None:
        """Take the store that torch has for the group, and its ranks, as the default group's."""
        self._store = store
        self.options.global_ranks_in_group = list(ranks)

    # What torch asks a group about itself.

    supports_splitting = True
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = torch_place.hooked()
    _device_types = tuple(map(torch.device, DEVICES))  #: torch looks whether one is among them

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
        self._name = self.options.group_name = name

    def getGroupDesc(self) -> str:
        """Return what torch says the group is for."""
        return self._desc

    def setGroupDesc(self, description: str) -> None:
        """Say what the group is for."""
        self._desc = description

    def get_group_store(self) -> Any:
        """Return torch's store of the group."""
        return self._store

    def _get_backend(self, device: Any) -> Any:
        """Return what serves a device: this group serves all."""
        return self

    def _get_sequence_number_for_group(self) -> int:
        """Return how many calls this rank has finished; messages between two ranks are none."""
        return self._engine.calls()

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the communicator counts its calls itself."""

    def supports_tensor_alloc(self, device: Any) -> bool:
        """Tell that it has no memory of its own to give: FSDP2 then takes torch's."""
        return False

    def eager_connect_single_device(self, device: Any) -> None:
        """Do nothing: the ranks are connected."""

    def perform_nocolor_split(self, device: Any) -> None:
        """Do nothing: ranks that are in no part need not come."""

    # Its life.

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a call may take from now on; on all ranks alike."""
        self._seconds = seconds(timeout)
        self.options._timeout = timeout

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
        name = group_name or f"{self._name}:split"
        store = dist.PrefixStore(f"{name}/{list(ranks)}", self._store)
        world = self.options.global_ranks_in_group
        part = self._maker.part(list(ranks), "torch split", timeout)
        made = Group(part, store, [world[rank] for rank in ranks])
        made.setGroupName(name)
        made.setGroupDesc(group_desc or "")
        return made

    splitGroup = split_group

    @torch_errors
    def shrink(
        self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts_override: Any = None
    ) -> Group:
        """Return a group without some ranks: what `torch.distributed.shrink_group` asks for.

        With SHRINK_ABORT, or where a rank has died, those who live agree on who they are. Otherwise
        whoever calls this meets, and calls that are under way go on.

        Args:
            ranks_to_exclude: As this group counts them; none of them calls this.
            shrink_flags: SHRINK_ABORT (1) ends the calls that are under way; SHRINK_DEFAULT is 0.
            opts_override: Options with another timeout.

        Raises:
            UsageError: Others are out than was asked. The new group is kept, so that a call which
                names those who are out returns it.
            LostError: The others went on without this rank, or too few have come.
        """
        excluded = set(ranks_to_exclude)
        remaining = [rank for rank in range(self._comm.size) if rank not in excluded]
        whole = self._left is self._maker and not self._engine.state()
        if whole and not shrink_flags & SHRINK_ABORT:
            # A death while they meet: not all may have, so they agree on it.
            with contextlib.suppress(PeerLostError, BrokenError):
                left = self._maker.part(remaining, "torch shrink")
                return self._without(left, remaining, opts_override)
        if self._left is self._maker or self._left.engine.state():
            self._left = self._left.shrunk(self._seconds)
        here = set(self._left.ranks)
        out = [rank for rank, job in enumerate(self._maker.ranks) if job not in here]
        if excluded != set(out):
            raise UsageError(
                f"shrink_group: ranks_to_exclude is {sorted(excluded)}, and of the "
                f"{self._comm.size} ranks those who live have agreed that {out} are out: "
                + (f"call it again, with {out}" if out else "nobody has to be excluded")
            )
        return self._without(self._left, remaining, opts_override)

    def shrink_to_living(self, timeout: timedelta | None = None) -> Group:
        """Return a group of those who live; see `pycoll.interop.torch_backend.shrink`."""
        self._left = self._left.shrunk(self._seconds if timeout is None else seconds(timeout))
        here = set(self._left.ranks)
        remaining = [rank for rank, job in enumerate(self._maker.ranks) if job in here]
        return self._without(self._left, remaining)

    def _without(self, left: Maker, remaining: Sequence[int], opts: Any = None) -> Group:
        world = self.options.global_ranks_in_group
        made = Group(left, self._store, [world[rank] for rank in remaining])
        timeout = getattr(opts, "_timeout", None)
        if timeout is None and self._seconds is not None:
            timeout = timedelta(seconds=self._seconds)
        if timeout is not None:
            made.set_timeout(timeout)
        return made

    @torch_errors
    def merge_remote_group(self, *_: Any, **__: Any) -> None:
        """Raise: torch merges groups of its own backends alone."""
        raise UnavailableError(
            "merge_remote_group: a pycoll group cannot take ranks in; its communicator grows, see "
            "pycoll.interop.torch_backend.init_process_group"
        )

    # Barriers.

    @call("barrier", None)
    def barrier(self, opts: Any = None, *, timeout: timedelta | None = None) -> Any:
        """Return once every rank has called it."""
        return self._begins(options(BarrierOptions, opts, timeout), [], [self._comm.barrier])

    @call("monitored_barrier", None)
    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> Any:
        """Return once every rank has called it; the error names all that did not."""
        limit = self._seconds if timeout is None else seconds(timeout)
        return self._completes((), [lambda: self._comm.barrier(timeout=limit)])

    # Messages between two ranks.

    def _refused_message(
        self, what: str, error: BaseException, peer: Any, sending: bool, tag: Any
    ) -> None:
        with self._entered:
            if not isinstance(tag, int) or tag <= 0:  # without a tag, or with what is none
                before = self._engine.order.count()  # nothing of it was begun
                self._engine.order.refused_messages(what, error, [(peer, sending)], before)
            elif self._is_peer(peer) and not self._engine.state():
                self._lanes.refused(self._comm.rank, peer, sending, tag)

    @call("send", lane=lambda tensors=None, dstRank=None, tag=0: (dstRank, True, tag))
    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:
        """Send a tensor to one rank."""
        tensor = only(tensors, "send")
        self._check_tag(tag, "send", tensor)
        array = outgoing(tensor)
        if tag:
            self._check_peer(dstRank, "send")

        def begin() -> Any:
            with self._entered:
                if tag == 0:
                    part: Any = self._comm.send(
                        array, dstRank, async_op=True, timeout=self._seconds
                    )
                else:
                    part = self._lanes.send(_bytes(array), self._comm.rank, dstRank, tag)
            return self._noted(Pending([part], (), [tensor], self._beside))

        return begin

    @call("recv", lane=lambda tensors=None, srcRank=None, tag=0: (srcRank, False, tag))
    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:
        """Receive a tensor from one rank."""
        tensor = only(tensors, "recv")
        self._check_tag(tag, "recv", tensor)
        array, arrive = incoming(tensor)
        if tag:
            self._check_peer(srcRank, "recv")

        def begin() -> Any:
            with self._entered:
                if tag == 0:
                    part: Any = self._comm.recv(
                        array, srcRank, async_op=True, timeout=self._seconds
                    )
                else:
                    part = self._lanes.recv(_bytes(array), srcRank, self._comm.rank, tag)
            after = () if arrive is None else (arrive,)
            return self._noted(Pending([part], after, [tensor], self._beside, srcRank))

        return begin

    @torch_errors
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Raise: a message is received where it lies, so its sender has to be known.

        No rank serves it, so it takes no place among the messages: `recv` may be called instead.
        """
        raise UnavailableError(
            "recv: no source is given, and pycoll receives from a rank that is named: pass src="
        )

    def _pair(self, frm: int, to: int) -> Communicator:
        return self._maker.part([frm, to], f"tags from {frm} to {to}").comm

    def _check_tag(self, tag: int, what: str, tensor: Tensor) -> None:
        if tag < 0:
            raise UsageError(f"{what}: tag is {tag}, want at least 0")
        if tag and not tensor.is_cpu:
            raise UnavailableError(
                f"{what}: tag is {tag}, and the tensor is on {tensor.device}, where messages have "
                "no tags: pass tag=0, or tensor.cpu()"
            )

    def _is_peer(self, peer: Any) -> bool:
        return peer in range(self._comm.size) and peer != self._comm.rank

    def _check_peer(self, peer: int, what: str) -> None:
        if not self._is_peer(peer):
            raise UsageError(
                f"{what}: the peer is rank {peer}; with a tag other than 0, want one of the "
                f"{self._comm.size} ranks that is not this one, {self._comm.rank}"
            )


def _bytes(array: Tensor) -> Tensor:
    return array.as_strided((array.numel(),), (1,)).view(torch.uint8)
