"""DeviceComm: the communicator beside a communicator, whose calls are kernels on GPUs.

It has a native communicator of its own, so the counts of its edges belong to the kernels alone, and
its own failures. All ranks make it together, at the first call on arrays of a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pycoll import log
from pycoll.bootstrap.reasons import CLOSED, EXITED
from pycoll.config import Config
from pycoll.errors import PycollError, UnavailableError, UsageError
from pycoll.runtime.cuda import gpudirect, multicast, reach, registration
from pycoll.runtime.cuda.failure import DeviceFailure
from pycoll.runtime.cuda.heap import DeviceHeap
from pycoll.runtime.cuda.images import Images
from pycoll.runtime.cuda.keep_alive import KeepAlive
from pycoll.runtime.cuda.kernels import Kernels
from pycoll.runtime.cuda.reclaim import RECLAIMER
from pycoll.runtime.cuda.stream import given_back, made
from pycoll.runtime.engine import Engine
from pycoll.runtime.native import codes, device_comm
from pycoll.runtime.native import cuda as bindings_cuda
from pycoll.runtime.plan.cache import PlanCache
from pycoll.runtime.plan.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pycoll.bootstrap import Bootstrap
    from pycoll.runtime.cuda.copies import CopyEngine
    from pycoll.runtime.failure import Control
    from pycoll.runtime.join import World
    from pycoll.runtime.native.bindings import P2POp
    from pycoll.runtime.p2p.pairwise import PairwiseKind
    from pycoll.runtime.plan.agreement import Agreement
    from pycoll.runtime.plan.proof import Proofs

#: How long leaving waits for what was launched, and then for the other ranks to come as far.
_DRAIN_SECONDS = 1.0
#: How long whoever wants to know when kernels ran waits for a launch to return.
_TURN_SECONDS = 0.5
#: Seconds between two looks at an event: a wait on the host may be short or long.
_PAUSE, _MOST_PAUSE = 20e-6, 1e-3


class Gpu(NamedTuple):
    """What a communicator has on its GPU."""

    device: int  #: as CUDA counts
    name: str
    #: CUDA's handle of the communicator's own stream, of the highest priority; while there is a
    #: partition of the SMs for the communicator, that of its part.
    stream: int
    threads: int  #: of a block of its kernels
    blocks: int  #: of its kernels, at most
    registers: int  #: of a thread of its kernels; 0 as long as none is loaded
    shared_bytes: int  #: of a block; 0 as long as no kernel is loaded
    #: how each rank is reached: "cuda", "shm", or by the transport between hosts, such as "tcp" or
    #: "verbs"; "verbs+gpu": from GPU to GPU
    reach: tuple[str, ...]
    lacks: tuple[str, ...]  #: for each rank, why it is not reached in a better way; "" if it is
    gpudirect: str  #: "on" and how NICs reach the GPU's memory, or why they do not
    multicast: str  #: "on" where NVLink's switch folds and stores for all ranks, else why not
    registration: str  #: "on" where peers open users' own arrays, else why not, or why not some
    paced: str = ""  #: "paced at ...: no measurement of a link" where kernels wait as for one


class _Hello(NamedTuple):
    """What a rank says before the device communicators are connected."""

    error: str
    address: bytes
    blocks: int
    heap: int


class DeviceComm:
    """One rank's side of it: an engine of its own, and the native device communicator."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        config: Config,
        agreement: Agreement,
        *,
        device: int,
        proofs: Proofs,
    ) -> None:
        self.timeout = config.timeout
        self.device = device  #: its number, as CUDA counts
        self.native: Any = None  #: until it is connected, and after it was closed
        self.kernels: Kernels
        self.stream = 0  #: CUDA's handle of its own
        self.copies: list[CopyEngine] = []  #: those that are open
        self.told = False  #: an allocator knows of it
        #: Streams on parts of the SMs, which calls with ``async_op`` are put on.
        self.parts: list[int] = []
        self.text, self.seconds = "a call", config.timeout  #: the last that was launched
        self._launched = 0  #: when it was closed
        self.whole = False  #: every rank reaches every other's GPU memory
        self._built = False
        self.held = KeepAlive(device, self.capturing, RECLAIMER.notice)
        self._guard = threading.Lock()  #: of `native`, which the control thread asks, too
        self.registers = False  #: allocations of users may be open
        self._tidying = threading.Lock()
        #: Launches are put in order one by one; reentrant: a signal handler may call, too.
        self.turn = threading.RLock()
        self._agreement = agreement._replace(tuning=None)
        self.engine = Engine(
            *(bootstrap, config),
            agreement=self._agreement,
            side=lambda *_: self,
            gpu=_bus_id(device),
        )
        self.world, self.comm = self.engine.world, self.engine.comm
        try:
            self._connect(config)
            self.images = Images(self)
            self.plans = PlanCache(self.engine, self.images, proofs)
            self._built = True
            RECLAIMER.enter(self)
        except BaseException as error:
            self.engine.leave_after(error)
            raise

    @cached_property
    def selection(self) -> Selection:
        """How calls choose their algorithms: by the rates of GPUs."""
        on = self.multicast == "on"
        switch = functools.partial(multicast.serves, self._rounds) if on else None
        how = self._agreement, self.engine.once, "cuda", self.whole
        return Selection(self.world, *how, switch)

    @property
    def device_name(self) -> str:
        """Return what others call the GPU."""
        return f"cuda:{self.device}"

    def times(self) -> dict[int, tuple[int, int | None]]:
        """Return when kernels ran, where records are to be written; see `Side`."""
        if self.native is None or not self.turn.acquire(timeout=_TURN_SECONDS):
            return {}  # a launch that does not return: what is known without it must do
        try:
            return device_comm.device_comm_times(self.native) if self.native else {}
        finally:
            self.turn.release()

    def make_failure(
        self, comm: Any, control: Control, world: World, name: Callable[[int], str], _: Any
    ) -> DeviceFailure:
        """Make the object that knows of failures."""
        return DeviceFailure(self, comm, control, world, name)

    @property
    def aside(self) -> int:
        """The stream of calls with ``async_op``: its own, or that of the part for collectives."""
        return self.parts[-1] if self.parts else self.stream

    @property
    def gpu(self) -> Gpu:
        """What the user is told of it."""
        function = self.kernels.any()
        threads, registers, shared = self.kernels.threads, 0, 0
        if function is not None:
            registers, shared = function.registers, function.shared
        name = bindings_cuda.device(self.device).name
        shape = threads, self.blocks, registers, shared
        ways = self.reach, self.lacks, self._gpudirect
        found = self.multicast, self._registration(), self.kernels.paced
        return Gpu(self.device, name, self.aside, *shape, *ways, *found)

    def _registration(self) -> str:
        if self.unregistered or self.native is None:
            return self.unregistered
        with self.turn:
            found = device_comm.device_comm_registration(self.native, self.comm)
        return f"on, but not for every array: {found.lack}" if found.refused else "on"

    def registered(self) -> device_comm.Registration:
        """Return what has become of users' own arrays."""
        with self.turn:
            return device_comm.device_comm_registration(self.native, self.comm, direct=True)

    def _connect(self, config: Config) -> None:
        """Open the native half, and reach the memory of the peers' GPUs where that goes."""
        world, hosts = self.world, self.world.hosts
        local = [rank for rank in range(world.size) if hosts[rank] == hosts[world.rank]]
        lack = multicast.lack(world, self.device, config, self._gather)
        said = None
        if not lack:
            said, lack = self._with_multicast(config, local)
        if said is None:
            said = self._meet(config, local)
        self.blocks = said[0].blocks
        unreached = {
            peer: device_comm.device_comm_connect(self.native, self.comm, peer, said[peer].address)
            for peer in local
            if peer != world.rank
        }
        reached = {peer for peer in local if not unreached.get(peer)}
        direct = gpudirect.register(self.native, self.comm, config.gpu_rdma, world.size)
        mine_said = json.dumps([sorted(reached), config.cuda_register, direct.told()])
        heard = [json.loads(blob) for blob in self._gather(mine_said)]
        gpudirects = [gpudirect.Said.of(told) for *_, told in heard]
        gpudirect.require(gpudirects)
        every = [set(peers) for peers, _, _ in heard]
        mutual = [{p for p in every[r] if r in every[p]} for r in range(world.size)]
        self.whole = all(len(peers) == world.size for peers in mutual)
        if not lack and not self.whole:  # the direct form, whose folds the switch makes, is out
            lack = "not all ranks reach each other's GPU memory"
        self.multicast = lack or "on"
        self._rounds = config.cuda_multicast == "on"  # alike on all ranks
        control = self.engine.bootstrap.control
        #: why no arrays of users are registered, the same on all ranks; "" where some may be
        self.unregistered = registration.lack(
            [setting for _, setting, _ in heard], self.whole, control.members, control.job()
        )
        mine = mutual[world.rank]
        self._gpudirect = gpudirect.how(self.comm, direct)
        ways = reach.ways(world, mine, unreached, gpudirects)
        self.reach, self.lacks = zip(*ways, strict=True)
        where = self.device, bindings_cuda.device(self.device).name, self.blocks
        log.info("cuda", "rank %d: GPU %d (%s), at most %d blocks a call", world.rank, *where)
        for line in reach.told(world.rank, self.reach, self.lacks):
            log.info("cuda", "rank %d: %s", world.rank, line)
        reaches = [peer in mine and peer != world.rank for peer in range(world.size)]
        registers = not self.unregistered
        device_comm.device_comm_seal(self.native, self.comm, reaches, self.whole, registers)
        if config.record:
            device_comm.device_comm_time(self.native, self.comm)

    def _with_multicast(self, config: Config, local: list[int]) -> tuple[list[_Hello] | None, str]:
        """Open with a heap for multicast; None and the reason, on all ranks, if one could not."""
        said = self._open(config, local, multicast=True)
        lack = "; ".join(hello.error for hello in said if hello.error)
        if not lack:
            lack = multicast.open_all(
                self.native, self.comm, self.world, config, self._gather, self.timeout
            )
        if not lack:
            return said, ""
        log.info("cuda", "rank %d: no multicast: %s", self.world.rank, lack)
        native, self.native = self.native, None
        if native is not None:
            device_comm.device_comm_detach(native, 0.0)
        try:
            self._gather("")  # nobody frees what another still has open
        finally:
            if native is not None:
                device_comm.device_comm_close(native)
        return None, lack

    def _open(self, config: Config, local: list[int], *, multicast: bool) -> list[_Hello]:
        """Open, and hear from all ranks whether they could."""
        error, address = "", b""
        try:
            heap = config.cuda_heap << 20
            self.native = device_comm.device_comm_open(
                self.comm, self.device, local, heap, multicast
            )
            address = device_comm.device_comm_address(self.native, self.comm)
            # All that one rank may lack, before anybody counts on it.
            if not self.stream:
                self.kernels = Kernels(self.device, config.cache)
                self.stream = made(self.device)
        except PycollError as failure:
            error = f"rank {self.world.rank} cannot use GPU {self.device}: {failure}"
        if multicast and not error and not self.kernels.multimem:
            error = (
                f"rank {self.world.rank}: its kernels were compiled by an NVRTC before 12.2, which "
                "has no multimem"
            )
        mine = [error, address.hex(), config.cuda_blocks, config.cuda_heap]
        return [_hello(blob) for blob in self._gather(json.dumps(mine))]

    def _meet(self, config: Config, local: list[int]) -> list[_Hello]:
        """Open as all others do; raise the same on all ranks if one could not."""
        said = self._open(config, local, multicast=False)
        if failed := [hello.error for hello in said if hello.error]:
            raise UnavailableError("; ".join(failed))
        for rank, hello in enumerate(said):
            if hello.heap != said[0].heap:
                raise UsageError(
                    f"the heap of GPU memory is of {hello.heap} MiB on rank {rank} and of "
                    f"{said[0].heap} MiB on rank 0; give all ranks the same"
                )
        return said

    def _gather(self, text: str) -> list[bytes]:
        return self.engine.bootstrap.allgather(text.encode(), self.timeout)

    # Calls.

    def launch(
        self, plan: Any, x: int, out: int, stream: int, timeout: float | None, text: str
    ) -> None:
        """Enqueue a plan on the arrays at two addresses, behind all launches so far."""
        seconds = self.timeout if timeout is None else timeout
        with self.turn:
            code = device_comm.device_comm_launch(self.native, plan, x, out, stream, seconds)
            if code > 0:
                self._note(code)
        self._launched_with(min(code, 0), text, seconds)

    def _note(self, bits: int) -> None:
        """Note what a launch has said of users' arrays."""
        if bits & device_comm.LACK:
            why = device_comm.device_comm_registration(self.native, self.comm).lack
            log.info("cuda", "rank %d: an array goes through slots: %s", self.world.rank, why)
        if bits & device_comm.REGISTERED:
            self.registers = True
            RECLAIMER.notice()

    def transfer(
        self,
        messages: Sequence[P2POp],
        stream: int,
        timeout: float | None,
        kind: PairwiseKind | None = None,
    ) -> None:
        """Enqueue messages with other ranks; ``kind``: they are a call of all ranks."""
        seconds = self.timeout if timeout is None else timeout
        call = 0 if kind is None else kind.signature
        with self.turn:
            code = device_comm.device_comm_transfer(
                *(self.native, self.kernels.transfer, self.kernels.threads, self.blocks),
                *(messages, stream, seconds, call),
            )
        # Of messages their kernel itself says what they are.
        text, seconds = (self.text, self.seconds) if kind is None else (kind.text, seconds)
        self._launched_with(code, text, seconds)

    def _launched_with(self, code: int, text: str, seconds: float) -> None:
        if code:  # maybe of a call before this one
            self.engine.failure.raise_for(code, self.seconds)
        self.text, self.seconds = text, seconds
        if self.engine.failure.uneasy():
            self.engine.failure.look()
            self.check()

    @contextlib.contextmanager
    def in_order(self, stream: int) -> Iterator[None]:
        """Have copies on a stream take their place among the calls, as if they were one."""
        with self.turn:
            device_comm.device_comm_order(self.native, self.comm, stream, False)
            yield
            device_comm.device_comm_order(self.native, self.comm, stream, True)

    def check(self, where: str = "") -> None:
        """Raise what went wrong with a launch, if anything did and is known."""
        code = device_comm.device_comm_check(self.native)
        if code:
            self.engine.failure.raise_for(code, self.seconds, where)

    def refuse(self) -> int | None:
        """Count a call that was refused; return its number, None if there are no more calls."""
        with self.turn:
            return None if self.native is None else device_comm.device_comm_refuse(self.native)

    def refuse_message(self, peer: int, sending: bool) -> bool:
        """Have a message that was refused take its place; False: there are no more messages."""
        with self.turn:
            return self.native is not None and device_comm.device_comm_refuse_message(
                self.native, peer, sending
            )

    def gone(self, peer: int) -> None:
        """Note that a rank has left or died: messages with it end."""
        with self._guard:
            if self.native is not None:
                device_comm.device_comm_gone(self.native, peer)

    def capturing(self, stream: int) -> bool:
        """Tell whether a stream is being captured into a graph."""
        return bindings_cuda.capturing(self.device, stream)[0] != bindings_cuda.NO_CAPTURE

    def wait(self, event: Any, seconds: float) -> int | None:
        """Wait on the host for an event, at most so long; None if it has not happened."""
        until, pause = time.monotonic() + seconds, _PAUSE
        while not self._happened(event):
            left = until - time.monotonic()
            if left <= 0:
                return None
            self.engine.failure.look()
            time.sleep(min(pause, left))
            pause = min(2 * pause, _MOST_PAUSE)
        return int(device_comm.device_comm_check(self.native)) if self.native else 0

    def _happened(self, event: Any) -> bool:
        """Tell whether it has, or never will, which `device_comm_check` then knows."""
        try:
            return bool(event.happened())
        except PycollError:
            if self.native is not None:
                device_comm.device_comm_wait(self.native, 0)
            if self.native is None or not device_comm.device_comm_check(self.native):
                raise
            return True

    def idle(self) -> bool:
        """Tell whether all that was launched has ended."""
        return device_comm.device_comm_wait(self.native, 0) != codes.AGAIN

    def quiet(self) -> bool:
        """Tell whether nothing that was launched runs, nor a graph can launch any.

        Any thread may ask that has the turn.
        """
        with self._guard:
            return self.native is None or device_comm.device_comm_quiet(self.native)

    def tidy(self) -> None:
        """Have what users have freed closed, here and by the peers, while nothing runs."""
        with self._tidying:
            if self.registers and self.native is not None:
                self.registers = device_comm.device_comm_tidy(self.native, self.comm)

    def forked(self) -> None:
        """In the child of a fork: threads that are not here may have had the locks."""
        self._guard, self.turn = threading.Lock(), threading.RLock()
        self._tidying = threading.Lock()

    def drain(self) -> None:
        """Wait on the host until all that was launched has ended, however that may be."""
        if self.native is None:
            return
        while device_comm.device_comm_wait(self.native, _DRAIN_SECONDS) == codes.AGAIN:
            self.engine.failure.look()
        if not device_comm.device_comm_check(self.native):  # else kernels are still giving up
            self.held.drain()

    @cached_property
    def device_heap(self) -> DeviceHeap:
        """Memory that all ranks reach; `heap` is that of the host."""
        return DeviceHeap(self)

    # Life.

    def calls(self) -> int:
        """Return how many calls this rank has launched; those that are captured do not count."""
        with self._guard:
            if self.native is None:
                return self._launched
            return int(device_comm.device_comm_state(self.native).launched)

    def captured(self) -> bool:
        """Tell whether a graph may still launch plans, which nobody counts."""
        with self._guard:
            return self.native is not None and device_comm.device_comm_state(self.native).pinned > 0

    def busy(self) -> bool:
        """Tell whether plans are in use: by what was launched, or by graphs."""
        return self.native is not None and not self.idle()

    def inside(self) -> bool:
        """Return False: `wait` uses nothing that is freed without a look whether it is there."""
        return False

    def shut(self, reason: str) -> None:
        """End what is still running, and give back what is the GPU's."""
        if self.native is None:
            return
        for copies in list(self.copies):
            with contextlib.suppress(PycollError):
                copies.end()
        bootstrap = self.engine.bootstrap
        seconds = _DRAIN_SECONDS if reason in (CLOSED, EXITED) else 0.0
        if reason != CLOSED:
            # First, for what follows may wait for kernels that wait for this rank.
            given_up = device_comm.device_comm_wait(self.native, seconds) == codes.AGAIN
            given_up = given_up and bool(device_comm.device_comm_state(self.native).calling)
            bootstrap.close(self.calls() - given_up, reason=reason)
        with self._tidying:  # which is over soon, as it began while nothing ran
            self.registers = False
        device_comm.device_comm_detach(self.native, seconds)
        self.held.close()
        RECLAIMER.leave(self)
        self.engine.waits.finish_pending()
        if self._built:
            # A peer's kernel may touch this rank's memory until that peer has come as far.
            with contextlib.suppress(PycollError):
                bootstrap.barrier(_DRAIN_SECONDS)
            self.images.free()
            self.plans.forget()
        launched = self.calls()
        with self._guard:
            native, self.native, self._launched = self.native, None, launched
        device_comm.device_comm_close(native)
        if self.stream:
            with contextlib.suppress(PycollError):  # after a fault the driver refuses everything
                given_back(self.device, self.stream, self.told)
                self.kernels.close()


def _bus_id(device: int) -> str:
    """Return where a GPU is; "" where it is not there, which all ranks are told of later."""
    try:
        return bindings_cuda.device(device).bus
    except PycollError:
        return ""


def _hello(blob: bytes) -> _Hello:
    error, address, blocks, heap = json.loads(blob)
    return _Hello(error, bytes.fromhex(address), blocks, heap)
