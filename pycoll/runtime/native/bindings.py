"""One function per function of ``native/pycoll.h``.

Each checks its return code, turns a failure into an exception and adds no policy. The functions
through which a call runs (`run`, `resume`, `work_wait`, `submit`) return their code instead:
what it means depends on the call, and `failure` knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pycoll.errors import InternalError, PycollError, encoded
from pycoll.program.isa import HOST_DESTINATIONS
from pycoll.runtime.native.codes import AGAIN, EXCEPTIONS, UNMAPPABLE, check, raise_for
from pycoll.runtime.native.load import ffi, lib, text_of

IDLE: int = lib.PC_STATUS_IDLE
CALLING: int = lib.PC_STATUS_CALLING
REFUSED_P2P_OP = "a message that was refused"  #: in texts about transfers, see edge_queue.c
REFUSED: int = lib.PC_REFUSED  #: signature in the status of a call that was refused
FORGOTTEN: int = lib.PC_FORGOTTEN  #: of a call, made or refused, that is in the status no more
STATUS_CALLS: int = lib.PC_STATUS_CALLS  #: how many of its last calls a status knows
CLOSED: int = lib.PC_STATUS_CLOSED

#: An address blob is smaller than this.
ADDRESS_CAPACITY = 1024
#: Bytes of a status's text without its closing zero.
STATUS_TEXT: int = ffi.sizeof(ffi.new("struct pc_status *").text) - 1
_ERROR_TEXT: int = ffi.sizeof(ffi.new("struct pc_error *").text) - 1


class P2POp(NamedTuple):
    """One end of a transfer."""

    address: int
    nbytes: int
    peer: int
    sending: bool
    dtype: int  #: its code


class RankStatus(NamedTuple):
    """What a rank says it is doing."""

    sequence: int  #: calls entered so far
    signature: int  #: of the last call entered
    state: int
    text: str  #: about that call; empty when it has not been described
    elsewhere: str = ""  #: what the process does on its other communicators, once asked


class Stuck(NamedTuple):
    """Where an unfinished call stands."""

    channel: int
    instruction: int
    peer: int
    sending: bool  #: waits for a free slot; else for a message


def _bytes(text: str, limit: int) -> bytes:
    return encoded(text).replace(b"\0", b"?")[:limit]


def comm_open(
    rank: int,
    size: int,
    *,
    slots: int,
    slot_bytes: int,
    heap_bytes: int,
    spin: int,
    ring_bytes: int = 0,
    windows: bool = False,
    small_bytes: int = 0,
) -> Any:
    """Create this rank's memory; see ``struct pc_options``."""
    options = ffi.new(
        "struct pc_options *",
        {
            "rank": rank,
            "size": size,
            "slots": slots,
            "slot_bytes": slot_bytes,
            "heap_bytes": heap_bytes,
            "spin": spin,
            "ring_bytes": ring_bytes,
            "windows": windows,
            "small_bytes": small_bytes,
        },
    )
    out = ffi.new("struct pc_comm **")
    code = lib.pc_comm_open(options, out)
    try:
        check(code, out[0] or None, f"rank {rank} could not create its memory")
    except PycollError:
        comm_close(out[0])  # until here it held the reason
        raise
    return out[0]


def comm_address(comm: Any) -> bytes:
    """Return the blob by which peers find this rank."""
    blob = ffi.new("char[]", ADDRESS_CAPACITY)
    n = check(lib.pc_comm_address(comm, blob, ADDRESS_CAPACITY), comm, "address of this rank")
    return bytes(ffi.buffer(blob, n))


def comm_connect(comm: Any, peer: int, blob: bytes) -> int:
    """Map a peer's memory; AGAIN until the peer has answered, or another code."""
    return int(lib.pc_comm_connect(comm, peer, ffi.from_buffer(blob), len(blob)))


def comm_try(comm: Any, peer: int, blob: bytes) -> int:
    """Map a peer's memory if that needs nothing from the peer; return a code."""
    return int(lib.pc_comm_map(comm, peer, ffi.from_buffer(blob), len(blob)))


def comm_map(comm: Any, peer: int, blob: bytes) -> None:
    """Map the memory of a peer of `comm_near`, before anything else needs it."""
    check(comm_try(comm, peer, blob), comm, f"rank {peer}, whose memory was to be mapped")


def comm_near(comm: Any, peer: int) -> None:
    """Say that a peer can be mapped, and will be by `comm_map`."""
    check(lib.pc_comm_near(comm, peer), comm, f"rank {peer} as a peer to be mapped")


def comm_remote(comm: Any, peer: int) -> None:
    """Say that a peer cannot be mapped: what passes goes over sockets; see `comm_adopt`."""
    check(lib.pc_comm_remote(comm, peer), comm, f"rank {peer} as a remote peer")


def comm_net(comm: Any, name: str) -> None:
    """Say by which network remote peers are reached; "": by the first there is, TCP.

    Args:
        comm: One without remote peers as yet.
        name: A network's that needs no options.
    """
    check(lib.pc_comm_net(comm, name.encode(), ffi.NULL, 0), comm, f"network {name!r}")


def comm_event_fd(comm: Any) -> int:
    """Return a descriptor, readable when `comm_handle_events` has work, or -1: it never has."""
    return int(lib.pc_comm_event_fd(comm))


def comm_handle_events(comm: Any) -> None:
    """See to what reaches remote peers; any thread may, while another is inside a call."""
    check(lib.pc_comm_handle_events(comm), None, "attending to RDMA")


def comm_adopt(comm: Any, peer: int, fd: int) -> None:
    """Hand over a connected socket to a remote peer; any thread may. It is the engine's now."""
    code = lib.pc_comm_adopt(comm, peer, fd)
    if code < 0:
        fault = ffi.new("struct pc_error *")
        lib.pc_comm_peer_fault(comm, peer, fault)
        if why := text_of(fault.text):
            raise EXCEPTIONS.get(code, InternalError)(why)
    check(code, None, f"socket to rank {peer}")


def comm_connections(comm: Any, peer: int) -> int:
    """Return how many sockets to a remote peer live; any thread may ask."""
    return check(lib.pc_comm_connections(comm, peer), None, f"sockets to rank {peer}")


def comm_accept(comm: Any) -> int:
    """Serve peers that connect; return how many were served."""
    return check(lib.pc_comm_accept(comm), comm, "serving a peer that connects")


def comm_connect_fd(comm: Any) -> int:
    """Return a file descriptor that is readable when `comm_accept` has work."""
    return check(lib.pc_comm_connect_fd(comm), comm, "descriptor of connecting")


def comm_sealed(comm: Any) -> None:
    """Stop serving: all peers are connected, or near."""
    check(lib.pc_comm_sealed(comm), comm, "end of connecting")


def comm_close(comm: Any) -> None:
    """Give everything back."""
    lib.pc_comm_close(comm)


def comm_abort(comm: Any, cause: int, peer: int, text: str) -> None:
    """End the call in progress, if any, and all later ones; any thread may say so."""
    lib.pc_comm_abort(comm, cause, peer, _bytes(text, _ERROR_TEXT))


def comm_broken(comm: Any) -> int:
    """Return 0, or the code that broke the communicator."""
    return int(lib.pc_comm_broken(comm))


def comm_entered(comm: Any) -> int:
    """Tell whether a thread is inside a call: 0, or 2 if it is this one, else 1."""
    return int(lib.pc_comm_entered(comm))


def comm_op_count(comm: Any) -> int:
    """Return how many calls and messages of this rank have taken their places."""
    return int(lib.pc_comm_op_count(comm))


def comm_op_count_before(comm: Any) -> int:
    """Return how many had when the present call came in, as `fastcall` noted."""
    return int(lib.pc_comm_op_count_before(comm))


def comm_follow(comm: Any, leader: Any) -> None:
    """Have a launch on a GPU by ``comm`` take a place among the calls of ``leader``, too."""
    lib.pc_comm_follow(comm, leader)


def comm_uncount_ops(comm: Any, places: int) -> None:
    """Count only so many places: what took those behind them was no call of the user's."""
    lib.pc_comm_uncount_ops(comm, places)


def comm_calls(comm: Any) -> int:
    """Return the number of this rank's last call, queued ones included."""
    return int(lib.pc_comm_calls(comm))


def refuse(comm: Any) -> int | None:
    """Have a call that was refused take its place, behind those that are queued; its number.

    None inside another call, and of a communicator that is broken.
    """
    number = ffi.new("uint64_t *")
    return None if lib.pc_refuse(comm, number) else int(number[0])


def refuse_message(comm: Any, peer: int, sending: bool) -> bool:
    """Have a message that was refused take its place; False inside another call."""
    direction = lib.PC_DIRECTION_SEND if sending else lib.PC_DIRECTION_RECV
    return int(lib.pc_refuse_message(comm, peer, direction)) == 0


def comm_forked(comm: Any) -> None:
    """Detach from the peers, in the child of a fork."""
    lib.pc_comm_forked(comm)


def comm_number(comm: Any) -> int:
    """Return the pointer as the number that `fastcall` takes."""
    return int(ffi.cast("uintptr_t", comm))


def heap_alloc(comm: Any, nbytes: int) -> int | None:
    """Allocate memory that peers can reach; None when the heap is full."""
    address = lib.pc_heap_alloc(comm, nbytes)
    return int(ffi.cast("uintptr_t", address)) or None


def heap_free(comm: Any, address: int) -> None:
    """Free what `heap_alloc` gave."""
    check(lib.pc_heap_free(comm, ffi.cast("void *", address)), comm, "free of empty() memory")


def heap_buffer(address: int, nbytes: int) -> Any:
    """Return allocated memory as a writable buffer object."""
    return ffi.buffer(ffi.cast("char *", address), nbytes)


def program_load(
    comm: Any, blob: bytes, root: int = 0, destinations: int = HOST_DESTINATIONS
) -> Any:
    """Load a Program after checking every instruction; its rank r runs at rank r + root.

    ``destinations``: the most that a REDUCE_COPY may have where it is to run.
    """
    out = ffi.new("struct pc_program **")
    code = lib.pc_program_load(comm, ffi.from_buffer(blob), len(blob), root, destinations, out)
    check(code, comm, "program rejected by the loader")
    return ffi.gc(out[0], lib.pc_program_free)


def plan_create(
    comm: Any,
    staged: Any,
    direct: Any | None,
    *,
    signature: int,
    blocks: Sequence[int],
    dtype: int,
    op: int,
    tile: int,
    stream: bool,
    root: int = 0,
    in_extent: tuple[int, int] | None = None,
    out_extent: tuple[int, int] | None = None,
) -> Any:
    """Bind Programs to the blocks of a message and its type.

    Args:
        comm: The communicator.
        staged: Program whose messages pass through slots.
        direct: Its zero-copy form, or None.
        signature: Of the call; equal on all ranks.
        blocks: Bytes of each: one block, or one for each rank.
        dtype: Code of the element type.
        op: Code of the reduction.
        tile: Bytes of a chunk per turn of the loop.
        stream: Write the result past the cache.
        root: What the Programs were loaded with.
        in_extent: First block that this rank's input holds, and how many; all by default.
        out_extent: The same of the output.
    """
    spec, table = ffi.new("struct pc_plan_spec *"), ffi.new("uint64_t[]", blocks)
    spec.signature, spec.dtype, spec.op = signature, dtype, op
    spec.tile, spec.stream, spec.root = tile, stream, root
    spec.nblocks, spec.blocks = len(blocks), table
    whole = (0, len(blocks))
    spec.input.first, spec.input.count = whole if in_extent is None else in_extent
    spec.output.first, spec.output.count = whole if out_extent is None else out_extent
    out = ffi.new("struct pc_plan **")
    code = lib.pc_plan_create(comm, spec, staged, ffi.NULL if direct is None else direct, out)
    check(code, comm, "plan rejected by the engine")
    return ffi.gc(out[0], lib.pc_plan_free)


def plan_number(plan: Any) -> int:
    """Return the pointer as the number that `fastcall` takes."""
    return int(ffi.cast("uintptr_t", plan))


def release(handle: Any) -> None:
    """Free a program or plan now, not when Python collects it."""
    ffi.release(handle)


def run(comm: Any, plan: Any, x: int, out: int, timeout: float) -> int:
    """Run a call; AGAIN after a millisecond, then go on with `resume`."""
    return int(lib.pc_run(comm, plan, ffi.cast("void *", x), ffi.cast("void *", out), timeout))


def resume(comm: Any, seconds: float) -> int:
    """Go on with an unfinished call for at most so long."""
    return int(lib.pc_resume(comm, seconds))


def comm_stuck(comm: Any) -> Stuck | None:
    """Return where the unfinished call stands, or None when there is none."""
    s = ffi.new("struct pc_stuck *")
    if lib.pc_comm_stuck(comm, s) != 1:
        return None
    return Stuck(s.channel, s.instruction, s.peer, s.direction == lib.PC_DIRECTION_SEND)


def abandon(handle: Any) -> None:
    """Never free a program or plan: native code may use it until the process ends."""
    ffi.gc(handle, None)


def work_place() -> Any:
    """Return the place of one work; what lies there is freed with it, if it is finished."""
    return ffi.gc(ffi.new("struct pc_work **"), _work_free)


def _work_free(work: Any) -> None:
    if work_wait(work, 0) != AGAIN:
        lib.pc_work_free(work[0])


def submit(comm: Any, plan: Any, x: int, out: int, timeout: float, where: str, work: Any) -> int:
    """Queue a call for the progress thread; its work goes to ``work``."""
    code = lib.pc_submit(
        comm,
        plan,
        ffi.cast("void *", x),
        ffi.cast("void *", out),
        timeout,
        _bytes(where, STATUS_TEXT),
        work,
    )
    return int(code)


def work_wait(work: Any, seconds: float) -> int:
    """Wait at most so long for queued work; AGAIN when it is not finished. No work is finished."""
    return int(lib.pc_work_wait(work[0], seconds)) if work[0] else 0


def p2p_ops(messages: Sequence[P2POp]) -> Any:
    """Return messages as native code takes them."""
    found = ffi.new("struct pc_p2p_op[]", len(messages))
    for m, (address, nbytes, peer, sending, dtype) in zip(found, messages, strict=True):
        m.at, m.nbytes, m.peer, m.dtype = ffi.cast("void *", address), nbytes, peer, dtype
        m.direction = lib.PC_DIRECTION_SEND if sending else lib.PC_DIRECTION_RECV
    return found


def exchange(comm: Any, messages: Sequence[P2POp], timeout: float) -> int:
    """Transfer messages; AGAIN after a millisecond, then go on with `resume`."""
    return int(lib.pc_exchange(comm, p2p_ops(messages), len(messages), timeout))


def post(comm: Any, messages: Sequence[P2POp], timeout: float, work: Any) -> int:
    """Transfer messages beside the caller; their work goes to ``work``."""
    return int(lib.pc_post(comm, p2p_ops(messages), len(messages), timeout, work))


def comm_gone(comm: Any, peer: int, died: bool) -> None:
    """Say that a rank has left in good order or died; any thread may."""
    lib.pc_comm_gone(comm, peer, died)


def pairwise(comm: Any, signature: int, messages: Sequence[P2POp], timeout: float) -> int:
    """Run transfers as one call; AGAIN after a millisecond, then go on with `resume`."""
    return int(lib.pc_pairwise(comm, signature, p2p_ops(messages), len(messages), timeout))


def pairwise_submit(
    comm: Any, signature: int, messages: Sequence[P2POp], timeout: float, where: str, work: Any
) -> int:
    """Queue transfers as one call for the progress thread; its work goes to ``work``."""
    found, text = p2p_ops(messages), _bytes(where, STATUS_TEXT)
    code = lib.pc_pairwise_submit(comm, signature, found, len(messages), timeout, text, work)
    return int(code)


def status_describe(comm: Any, text: str) -> None:
    """Say in this rank's status what its present call is."""
    lib.pc_status_describe(comm, _bytes(text, STATUS_TEXT))


def status_call(comm: Any, peer: int, number: int) -> int:
    """Return the signature of a rank's call, `REFUSED` or `FORGOTTEN`.

    0 if it has not come to that call, or is remote.
    """
    return int(lib.pc_status_call(comm, peer, number))


def status_differs(comm: Any) -> bool:
    """Tell whether a mapped peer is in the call of this rank's number and has called another."""
    return bool(lib.pc_status_differs(comm))


def status_look(comm: Any, peer: int) -> RankStatus | None:
    """Read a rank's status; None if its memory is not mapped, or not yet."""
    b = ffi.new("struct pc_status *")
    code = lib.pc_status_read(comm, peer, b)
    if code == UNMAPPABLE:
        return None
    check(code, comm, f"status of rank {peer}")
    described = b.described == b.sequence & 0xFFFFFFFF and b.sequence > 0
    return RankStatus(b.sequence, b.signature, b.state, text_of(b.text) if described else "")


def status_read(comm: Any, peer: int) -> RankStatus:
    """Read the status of a rank whose memory is mapped."""
    status = status_look(comm, peer)
    if status is None:
        raise_for(UNMAPPABLE, comm, f"status of rank {peer}")
    return status
