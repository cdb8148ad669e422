"""One function per ``pc_device_*`` of ``native/pycoll.h``: the GPU's side of a communicator.

The communicator is one of its own, whose calls all run on the GPU. A failure's text is in
`codes.comm_error`; `check` and `wait` return their code, as `bindings.run` does. But for `free`,
`quiet`, `tidy` and `plan_free`, one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pycoll.errors import counted
from pycoll.runtime.native import bindings, codes
from pycoll.runtime.native.bindings import P2POp
from pycoll.runtime.native.codes import UNMAPPABLE
from pycoll.runtime.native.load import ffi, lib, text_of

#: An address is smaller than this.
ADDRESS_CAPACITY = 1024
#: Messages of `device_comm_transfer`, at most, where they are no call.
MOST_TRANSFERS: int = lib.PC_DEVICE_TRANSFERS
#: Bits of what `device_comm_launch` says.
LACK: int = lib.PC_LAUNCHED_LACK
REGISTERED: int = lib.PC_LAUNCHED_REGISTERED
#: A kernel's argument is smaller than this.
ARGUMENT_CAPACITY = 256
TIMED = 128  #: calls whose times on the GPU are known, at most


class Shape(NamedTuple):
    """What a plan became on the GPU."""

    blocks: int
    instances: int  #: of each channel of the staged form
    packets: bool  #: messages travel with their flags
    direct: bool  #: arrays of `device_comm_alloc` are read and written where they lie
    threads: int  #: of a block
    direct_instances: int  #: of each channel of the form for such arrays; 0: there is none

    @property
    def protocol(self) -> str:
        """How data goes: "direct", or else as NCCL calls it, "LL" in packets, "Simple" in slots."""
        return "direct" if self.direct else "LL" if self.packets else "Simple"

    def __str__(self) -> str:
        return f"{counted(self.blocks, 'block')}, {self.protocol}"


class State(NamedTuple):
    """What a device communicator has done, and how it reaches its peers."""

    launched: int  #: calls, those in graphs excluded
    captured: int
    handed_over: int  #: messages and credits handed to the transport
    pinned: int  #: plans that a graph may still launch
    direct: int  #: peers whose GPU memory this rank reaches
    staged: int  #: peers reached through memory of the host
    remote: int
    max_blocks: int  #: of a kernel
    calling: int  #: 1: a call may be unfinished; messages of two ranks are none


class Registration(NamedTuple):
    """What has become of users' own arrays."""

    on: bool
    reached: int  #: allocations of this rank that all peers have opened
    waiting: int  #: that they are told to open, or that are to be closed
    refused: int  #: that they do not open
    opened: int  #: allocations of peers that this rank has opened
    questions: int  #: to the driver, about arrays
    direct: int  #: launches that ran in the direct form, on whatever arrays; if asked for
    lack: str  #: why an allocation is not reached, the last of those that are not


class Stuck(NamedTuple):
    """Where a call stood on the GPU when it failed."""

    block: int
    instruction: int
    peer: int
    want: int  #: the count that it waited for
    got: int


def device_comm_open(
    comm: Any, device: int, local_ranks: Sequence[int], heap_bytes: int, multicast: bool = False
) -> Any:
    """Open the device communicator of a communicator; for all ranks at once.

    Args:
        comm: One whose ranks are connected, and which has no calls on the CPU.
        device: Ordinal of the GPU.
        local_ranks: The ranks of this host, this one too, in ascending order, alike on all of them.
        heap_bytes: GPU memory for `device_comm_alloc`, taken at once; a multiple of 4096, equal
            on all ranks.
        multicast: Its heap is one for `multicast_create` and the like, likewise.

    Raises:
        UnavailableError: There is no GPU, or no memory on it.
    """
    ranks = ffi.new("uint32_t[]", list(local_ranks))
    options = ffi.new("struct pc_device_comm_options *")
    options.device, options.heap_bytes = device, heap_bytes
    options.nlocals, options.locals = len(local_ranks), ranks
    options.multicast = multicast
    out = ffi.new("struct pc_device_comm **")
    codes.check(lib.pc_device_comm_open(comm, options, out), comm, f"GPU {device}")
    return out[0]


def device_comm_address(dc: Any, comm: Any) -> bytes:
    """Return the blob by which other ranks of the host find this device communicator's memory."""
    blob = ffi.new("char[]", ADDRESS_CAPACITY)
    n = codes.check(lib.pc_device_comm_address(dc, blob, ADDRESS_CAPACITY), comm, "address")
    return bytes(ffi.buffer(blob, n))


def device_comm_connect(dc: Any, comm: Any, peer: int, blob: bytes) -> str:
    """Open a peer's GPU memory; return "", or why it cannot be reached.

    Raises:
        InternalError: The blob is no address of that rank.
    """
    code = lib.pc_device_comm_connect(dc, peer, ffi.from_buffer(blob), len(blob))
    if code == UNMAPPABLE:
        return codes.comm_error(comm).text
    codes.check(code, comm, f"the GPU of rank {peer}")
    return ""


def multicast_create(dc: Any, comm: Any) -> int:
    """Make the object for all ranks' heaps, on one rank; return a descriptor, to be closed."""
    fd = ffi.new("int32_t *")
    codes.check(lib.pc_device_comm_multicast_create(dc, fd), comm, "multicast")
    return int(fd[0])


def multicast_export(dc: Any, comm: Any) -> int:
    """Return a descriptor of this rank's heap, to be closed."""
    fd = ffi.new("int32_t *")
    codes.check(lib.pc_device_comm_multicast_export(dc, fd), comm, "multicast")
    return int(fd[0])


def multicast_join(dc: Any, comm: Any, fd: int) -> None:
    """Add this rank's GPU to the object; its descriptor, -1 where it was made."""
    codes.check(lib.pc_device_comm_multicast_join(dc, fd), comm, "multicast")


def multicast_reach(dc: Any, comm: Any, peer: int, fd: int) -> None:
    """Open a peer's heap."""
    codes.check(lib.pc_device_comm_multicast_reach(dc, peer, fd), comm, "multicast")


def multicast_bind(dc: Any, comm: Any) -> None:
    """Bind this rank's heap; once all GPUs were added, or the driver waits for that for ever."""
    codes.check(lib.pc_device_comm_multicast_bind(dc), comm, "multicast")


def multicast_map(dc: Any, comm: Any, rounds: bool) -> None:
    """Give the object an address; `rounds`: the switch may fold sums of floats."""
    codes.check(lib.pc_device_comm_multicast_map(dc, rounds), comm, "multicast")


def device_comm_gpudirect(dc: Any, comm: Any, ways: int) -> str:
    """Have the data of all remote edges lie in memory of the GPU; return "", or why it cannot.

    Args:
        dc: One that is not sealed, and has no remote rank connected.
        comm: Its communicator.
        ways: That may be tried: a bit for each, 2 for dma-buf and 4 for nvidia_peermem.

    Raises:
        PycollError: The device or the engine failed.
    """
    code = lib.pc_device_comm_gpudirect(dc, ways)
    if code in (UNMAPPABLE, codes.NOMEM):
        return codes.comm_error(comm).text
    codes.check(code, comm, "GPUDirect RDMA")
    return ""


def device_comm_staged(dc: Any, comm: Any, rank: int) -> str:
    """Return why messages to and from this rank alone are staged; "" where they are not."""
    code = lib.pc_device_comm_staged(dc, rank)
    if code == UNMAPPABLE:
        return codes.comm_error(comm).text
    codes.check(code, comm, "GPUDirect RDMA")
    return ""


def device_comm_seal(
    dc: Any, comm: Any, reached: Sequence[bool], whole: bool, registers: bool = False
) -> None:
    """Say which peers reach this rank's GPU memory as it reaches theirs; calls may begin.

    Args:
        dc: One that has tried to connect to all of them.
        comm: Its communicator.
        reached: For each rank; false for this one.
        whole: So do all pairs of all ranks, as all agree.
        registers: Peers open allocations of this rank's user, too; likewise.
    """
    those = ffi.from_buffer(bytes(map(bool, reached)))
    code = lib.pc_device_comm_seal(dc, those, whole, registers)
    codes.check(code, comm, "the edges of a GPU")


def device_comm_detach(dc: Any, seconds: float) -> None:
    """End what was launched, after waiting for at most so long, and let go of peers' memory."""
    lib.pc_device_comm_detach(dc, seconds)


def device_comm_close(dc: Any) -> None:
    """Give everything back; when all ranks have detached, and before the communicator closes."""
    lib.pc_device_comm_close(dc)


def device_comm_alloc(dc: Any, nbytes: int) -> int | None:
    """Allocate GPU memory that peers can reach; None when the heap is full."""
    return int(lib.pc_device_comm_alloc(dc, nbytes)) or None


def device_comm_free(dc: Any, address: int) -> None:
    """Free what `device_comm_alloc` gave; any thread may."""
    codes.check(lib.pc_device_comm_free(dc, address), None, "free of empty() memory on a GPU")


def device_plan_create(
    dc: Any,
    comm: Any,
    plan: Any,
    function: int,
    *,
    threads: int = 0,
    blocks: int = 0,
    channels: int = 0,
    packets: bool = True,
) -> Any:
    """Bind a plan to a kernel; not while a stream is being captured by this thread.

    Args:
        dc: One that is sealed.
        comm: Its communicator.
        plan: Of `bindings.plan_create`. It belongs to the device communicator from
            then on, also if this fails.
        function: The kernel, as `bindings_cuda.function` gives it, of the same dtype and operator.
        threads: Of a block; 0: as many as suit.
        blocks: Of a kernel, at most; alike on all ranks. 0: as many as there can be.
        channels: Of the Program of the rank that has most; 0: all ranks have as many.
        packets: Send short messages with their flags, where all ranks may.
    """
    options = ffi.new("struct pc_device_plan_options *")
    options.function, options.threads = function, threads
    options.blocks, options.channels = blocks, channels
    options.packets = -1 if packets else 0
    out = ffi.new("struct pc_device_plan **")
    ffi.gc(plan, None)
    codes.check(lib.pc_device_plan_create(dc, plan, options, out), comm, "a plan on a GPU")
    return ffi.gc(out[0], lib.pc_device_plan_free)


def device_plan_shape(plan: Any) -> Shape:
    """Return what a plan became."""
    s = ffi.new("struct pc_device_plan_shape *")
    lib.pc_device_plan_shape(plan, s)
    return Shape(s.blocks, s.instances, bool(s.packets), bool(s.direct), s.threads, s.direct)


def device_comm_launch(dc: Any, plan: Any, x: int, out: int, stream: int, timeout: float) -> int:
    """Enqueue a call on a stream behind all calls so far, and return its code; waits for nothing.

    A positive code is success and bits: `LACK`, where `device_comm_registration` has another
    `lack`, and `REGISTERED`, where `device_comm_tidy` has something to look after.

    Args:
        dc: The device communicator.
        plan: Of `device_plan_create`; where the stream is being captured, the graph keeps it.
        x: Address of the input.
        out: Address of the output.
        stream: The driver's handle, 0 for the default stream.
        timeout: Seconds, from when the kernel first has to wait.
    """
    return int(lib.pc_device_comm_launch(dc, plan, x, out, stream, timeout))


def device_comm_order(dc: Any, comm: Any, stream: int, ends: bool) -> None:
    """Put what else belongs to a call, such as copies, in order with calls; waits for nothing.

    Args:
        dc: The device communicator.
        comm: Its communicator.
        stream: The driver's handle.
        ends: False: what is enqueued on the stream next comes behind all calls so far. True: later
            calls come behind what was enqueued on it.
    """
    codes.check(lib.pc_device_comm_order(dc, stream, ends), comm, "the order of calls on a GPU")


def device_comm_time(dc: Any, comm: Any) -> None:
    """Note from now on when the kernels of calls run."""
    codes.check(lib.pc_device_comm_time(dc), comm, "events around calls on a GPU")


def device_comm_times(dc: Any) -> dict[int, tuple[int, int | None]]:
    """Return when the kernels of the last calls began and ended, by number, in nanoseconds.

    Times are of CLOCK_MONOTONIC; None: it has not ended.
    """
    found = ffi.new("struct pc_device_time[]", TIMED)
    count = lib.pc_device_comm_times(dc, found, TIMED)
    return {one.sequence: (one.began_ns, one.ended_ns or None) for one in found[0:count]}


def device_comm_prepare(dc: Any, comm: Any, plan: Any, x: int, out: int, timeout: float) -> bytes:
    """Return the argument of a kernel that the caller launches; that must happen."""
    place = ffi.new("char[]", ARGUMENT_CAPACITY)
    code = lib.pc_device_comm_prepare(dc, plan, x, out, timeout, place, ARGUMENT_CAPACITY)
    return bytes(ffi.buffer(place, codes.check(code, comm, "a call on a GPU")))


def device_comm_transfer(
    dc: Any,
    function: int,
    threads: int,
    blocks: int,
    messages: Sequence[P2POp],
    stream: int,
    timeout: float,
    call: int = 0,
) -> int:
    """Enqueue messages with other ranks behind all calls so far, and return the code.

    Args:
        dc: The device communicator.
        function: The kernel for them.
        threads: Of a block.
        blocks: At most; alike on all ranks.
        messages: In any order; those to one rank keep theirs.
        stream: The driver's handle; where it is being captured, a graph will move them.
        timeout: Seconds, as of a call.
        call: The signature of the call that they are; 0: they are none.
    """
    what = ffi.new("struct pc_device_transfers *")
    what.function, what.threads, what.blocks, what.call = function, threads, blocks, call
    ops = bindings.p2p_ops(messages)
    return int(lib.pc_device_comm_transfer(dc, what, ops, len(messages), stream, timeout))


def device_comm_refuse_message(dc: Any, peer: int, sending: bool) -> bool:
    """Have a message that was refused take its place among those with a rank."""
    direction = lib.PC_DIRECTION_SEND if sending else lib.PC_DIRECTION_RECV
    return int(lib.pc_device_comm_refuse_message(dc, peer, direction)) == 0


def device_comm_gone(dc: Any, peer: int) -> None:
    """Say that a rank has left or died; any thread may."""
    lib.pc_device_comm_gone(dc, peer)


def device_comm_refuse(dc: Any) -> int | None:
    """Have a call that was refused take its place among the launches; its number.

    None of a device communicator that is broken.
    """
    number = ffi.new("uint64_t *")
    return None if lib.pc_device_comm_refuse(dc, number) else int(number[0])


def device_comm_check(dc: Any) -> int:
    """Return 0, or the code of a call that has failed; asks no driver."""
    return int(lib.pc_device_comm_check(dc))


def device_comm_wait(dc: Any, seconds: float) -> int:
    """Wait until what was launched has finished.

    Returns:
        0, AGAIN after so long, or what `device_comm_check` would.
    """
    return int(lib.pc_device_comm_wait(dc, seconds))


def device_comm_quiet(dc: Any) -> bool:
    """Tell whether nothing that was launched runs, nor a graph can launch any.

    Any thread may ask, while no other can launch or make a plan.
    """
    return int(lib.pc_device_comm_quiet(dc)) == 0


def device_comm_stuck(dc: Any) -> Stuck | None:
    """Return where a call stood that failed on the GPU, or None when none has."""
    s = ffi.new("struct pc_stuck *")
    if lib.pc_device_comm_stuck(dc, s) != 1:
        return None
    return Stuck(s.channel, s.instruction, s.peer, s.want, s.got)


def device_comm_registration(dc: Any, comm: Any, direct: bool = False) -> Registration:
    """Return what has become of users' arrays; one thread at a time, as with launches.

    Args:
        dc: The device communicator.
        comm: Its communicator.
        direct: Have it copied from the GPU how many launches were direct.
    """
    s = ffi.new("struct pc_registration_state *")
    codes.check(lib.pc_device_comm_registration(dc, direct, s), comm, "the registration of arrays")
    counts = (s.reached, s.waiting, s.refused, s.opened, s.questions, s.direct)
    return Registration(bool(s.on), *counts, text_of(s.lack))


def device_comm_tidy(dc: Any, comm: Any) -> bool:
    """Have what users have freed closed, here and by the peers; tell whether more may come.

    Any thread may, while no other can launch, and nothing runs.
    """
    return codes.check(lib.pc_device_comm_tidy(dc), comm, "closing what was freed") != 0


def device_comm_state(dc: Any) -> State:
    """Return what a device communicator has done, and how it reaches its peers."""
    s = ffi.new("struct pc_device_comm_state *")
    lib.pc_device_comm_state(dc, s)
    return State(*(getattr(s, name) for name in State._fields))
