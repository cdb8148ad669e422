"""One function per function of ``native/pycoll.h``; the only importer of the native module.

Each checks its return code, turns a failure into an exception and adds no policy. The functions
through which a call runs (`run`, `resume`, `work_wait`, `submit`) return their code instead:
what it means depends on the call, and `faults` knows. Importing this module raises
UnavailableError where the engine is not built.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader
from typing import Any, NamedTuple, NoReturn

from pycoll import installed
from pycoll.errors import (
    BrokenError,
    CollectiveTimeout,
    InternalError,
    MismatchError,
    PeerLostError,
    PycollError,
    TransportError,
    UnavailableError,
    UsageError,
    encoded,
)
from pycoll.fabric import Fabric, Rail

#: Written by the build when it could not compile the engine: the reason and the cure.
_RECORD = installed.HERE / "_native_missing.txt"
_COMPILER = "apt-get install gcc python3-dev"
_REINSTALL = "pip install --force-reinstall --no-deps pycoll"


def _missing(error: ImportError) -> UnavailableError:
    what = "pycoll's native engine is not there, so nothing can run"
    if there := installed.engine_elsewhere():
        return UnavailableError(
            f"{what}: this Python imports pycoll from {installed.HERE}, which has no engine, and "
            f"so not the one that is installed in {there}; to mend it: start from another folder, "
            f"or with python -P, or build the engine in {installed.HERE.parent} too (make build)"
        )
    why = _RECORD.read_text(encoding="utf-8").strip() if _RECORD.exists() else ""
    if not why:
        again = "make build" if installed.in_sources() else _REINSTALL
        why = f"{error}; to mend it: {_COMPILER}, then {again}"
    return UnavailableError(f"{what}: {why}")


def _load() -> tuple[Any, Any]:
    """Load the shared object as the two modules that it holds."""
    try:
        native = importlib.import_module("pycoll._native")
    except ImportError as error:
        raise _missing(error) from error
    loader = ExtensionFileLoader("pycoll._fastcall", native.__file__ or "")
    spec = importlib.util.spec_from_file_location("pycoll._fastcall", loader=loader)
    if spec is None:  # cannot be: a loader was given
        raise InternalError(f"{native.__file__} gives no module spec")
    fastcall = importlib.util.module_from_spec(spec)
    loader.exec_module(fastcall)
    return native, fastcall


_native, fastcall = _load()
ffi: Any = _native.ffi
_lib: Any = _native.lib

AGAIN: int = _lib.PC_AGAIN
INVALID: int = _lib.PC_INVALID
TIMEDOUT: int = _lib.PC_TIMEDOUT
MISMATCH: int = _lib.PC_MISMATCH
ABORTED: int = _lib.PC_ABORTED
BUSY: int = _lib.PC_BUSY
BROKEN: int = _lib.PC_BROKEN
LOST: int = _lib.PC_LOST
UNMAPPABLE: int = _lib.PC_UNMAPPABLE
IDLE: int = _lib.PC_STATUS_IDLE
CALLING: int = _lib.PC_STATUS_CALLING
TRANSFER: int = _lib.PC_CAUSE_TRANSFER  #: `Error.cause` where a transfer failed
REFUSED_P2P_OP = "a message that was refused"  #: in texts about transfers, see edge_queue.c
REFUSED: int = _lib.PC_REFUSED  #: signature on the board of a call that was refused
FORGOTTEN: int = _lib.PC_FORGOTTEN  #: of a call, made or refused, that is on the board no more
BOARD_CALLS: int = _lib.PC_STATUS_CALLS  #: how many of its last calls a board knows
CLOSED: int = _lib.PC_STATUS_CLOSED

#: Rails of a rank at most.
MAX_RAILS: int = _lib.PC_MAX_RAILS
#: An address blob is smaller than this.
ADDRESS_CAPACITY = 1024
#: Bytes of a board's text without its closing zero.
BOARD_TEXT: int = ffi.sizeof(ffi.new("struct pc_status *").text) - 1
_ERROR_TEXT: int = ffi.sizeof(ffi.new("struct pc_error *").text) - 1


class Error(NamedTuple):
    """What the engine says about its last failure."""

    code: int
    cause: int  #: ABORTED: what was given to `comm_abort`; else TRANSFER if one failed
    peer: int
    errnum: int
    text: str


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


class Port(NamedTuple):
    """What a port of an RDMA device says of itself."""

    device: str
    port: int  #: from 1
    state: int  #: an ibv_port_state; 4: active
    link_layer: int  #: 1 InfiniBand, 2 Ethernet
    mtu: int  #: bytes, with the next
    max_mtu: int
    lid: int
    speed: int  #: bits per second each way; 0: unknown
    max_inline: int  #: bytes; 0: not tried
    max_queue_pairs: int
    gid_index: int  #: of the address that would stand for it, or -1
    gid_type: int  #: of that: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2
    gid: bytes
    numa_node: int  #: or -1
    driver: str


class NetState(NamedTuple):
    """What carries a communicator's messages to remote peers."""

    paths: int  #: queue pairs that there should be
    live: int  #: of those, how many carry messages
    queue_pairs: int  #: that exist at this moment
    regions: int  #: memory regions that do
    failures: int  #: of paths
    revivals: int  #: of paths that had failed
    replayed: int  #: messages that were sent again
    recovery_ns: int  #: the longest time from a failure's notice to the replay
    bytes: tuple[int, ...]  #: sent by each rail


class Stuck(NamedTuple):
    """Where an unfinished call stands."""

    channel: int
    instruction: int
    peer: int
    sending: bool  #: waits for a free slot; else for a message


def _text(chars: Any) -> str:
    return bytes(ffi.string(chars)).decode("utf-8", "replace")


def _bytes(text: str, limit: int) -> bytes:
    return encoded(text).replace(b"\0", b"?")[:limit]


def version() -> str:
    """Return the version that the native engine was built as."""
    return _text(_lib.pc_version())


def compiler() -> str:
    """Return what compiled the engine."""
    return _text(_lib.pc_compiler())


def cpu_features() -> str:
    """Return the instruction sets that the reduce kernels use here."""
    return _text(_lib.pc_cpu_features())


def code_name(code: int) -> str:
    """Return the name of a return code."""
    return _text(_lib.pc_code_name(code))


def verbs_missing() -> str:
    """Return what keeps this machine or build from RDMA, and what mends it; "" if nothing does."""
    return _text(_lib.pc_verbs_missing())


def verbs_ports() -> list[Port]:
    """Return every port of every RDMA device."""
    count = capacity = 0
    found = ffi.NULL
    while (count := check(_lib.pc_verbs_ports(found, capacity), None, "RDMA ports")) > capacity:
        found, capacity = ffi.new("struct pc_port[]", count), count  # a device may come meanwhile
    return [_port(found[i]) for i in range(count)]


def _port(p: Any) -> Port:
    fields = {name: getattr(p, name) for name in Port._fields}
    texts = {"device": _text(p.device), "driver": _text(p.driver), "gid": bytes(p.gid)}
    return Port(**(fields | texts))


def verbs_loopback(rail: Rail, fabric: Fabric, seconds: float) -> float:
    """Return the bytes per second of RDMA writes from a port to itself, of about so many seconds.

    Raises:
        TransportError: The port cannot be opened, or fails; says what mends it.
    """
    bandwidth, e = ffi.new("double *"), ffi.new("struct pc_error *")
    code = _lib.pc_verbs_loopback(_specs([rail]), _options(fabric), seconds, e, bandwidth)
    if code < 0:
        kind = _EXCEPTIONS.get(code, InternalError)
        raise kind(_text(e.text) or code_name(code))
    return float(bandwidth[0])


def _options(fabric: Fabric) -> Any:
    tc, sl, timeout, retry, qps, mtu = fabric
    options = ffi.new("struct pc_verbs_options *")
    options.traffic_class, options.service_level = tc, sl
    options.timeout, options.retry_count = timeout, retry
    options.queue_pairs, options.mtu = qps, mtu
    return options


def _specs(rails: Sequence[Rail]) -> Any:
    specs = ffi.new("struct pc_rail_spec[]", len(rails))
    for spec, rail in zip(specs, rails, strict=True):
        spec.device, spec.port, spec.gid_index = rail.device.encode(), rail.port, rail.gid
    return specs


_EXCEPTIONS: dict[int, type[PycollError]] = {
    _lib.PC_NOMEM: UnavailableError,
    _lib.PC_SYSTEM: TransportError,
    UNMAPPABLE: UnavailableError,
    TIMEDOUT: CollectiveTimeout,
    MISMATCH: MismatchError,
    BUSY: UsageError,
    BROKEN: BrokenError,
    LOST: PeerLostError,
}


def check(code: int, comm: Any, what: str) -> int:
    """Return a code that is not negative; raise what a negative one means."""
    if code >= 0:
        return code
    raise_for(code, comm, what)


def raise_for(code: int, comm: Any, what: str) -> NoReturn:
    """Raise the exception of a negative code, with the engine's own text."""
    error = Error(code, 0, -1, 0, "") if comm is None else comm_error(comm)
    text = error.text if error.code == code and error.text else code_name(code)
    kind = _EXCEPTIONS.get(code, InternalError)
    if kind is TransportError and error.errnum:
        why = os.strerror(error.errnum)  # which the engine's own text may end with
        text = text if text.endswith(why) else f"{text}: {why}"
        raise TransportError(error.errnum, f"{what}: {text}")
    raise kind(f"{what}: {text}")


def comm_open(
    rank: int, size: int, *, slots: int, slot_bytes: int, heap_bytes: int, spin: int
) -> Any:
    """Create this rank's memory."""
    options = ffi.new(
        "struct pc_options *",
        {
            "rank": rank,
            "size": size,
            "slots": slots,
            "slot_bytes": slot_bytes,
            "heap_bytes": heap_bytes,
            "spin": spin,
        },
    )
    out = ffi.new("struct pc_comm **")
    code = _lib.pc_comm_open(options, out)
    try:
        check(code, out[0] or None, f"rank {rank} could not create its memory")
    except PycollError:
        comm_close(out[0])  # until here it held the reason
        raise
    return out[0]


def comm_address(comm: Any) -> bytes:
    """Return the blob by which peers find this rank."""
    blob = ffi.new("char[]", ADDRESS_CAPACITY)
    n = check(_lib.pc_comm_address(comm, blob, ADDRESS_CAPACITY), comm, "address of this rank")
    return bytes(ffi.buffer(blob, n))


def comm_connect(comm: Any, peer: int, blob: bytes) -> int:
    """Map a peer's memory; AGAIN until the peer has answered, or another code."""
    return int(_lib.pc_comm_connect(comm, peer, ffi.from_buffer(blob), len(blob)))


def comm_remote(comm: Any, peer: int) -> None:
    """Say that a peer cannot be mapped: what passes goes over sockets; see `comm_adopt`."""
    check(_lib.pc_comm_remote(comm, peer), comm, f"rank {peer} as a remote peer")


def comm_rails(comm: Any, fabric: Fabric, rails: Sequence[Rail], patience: float = 0.0) -> None:
    """Say that remote peers are reached by RDMA over these ports; with none, by sockets again.

    Args:
        comm: One without remote peers as yet.
        fabric: How packets are sent.
        rails: At most MAX_RAILS, each with its port.
        patience: Seconds for a first path to each peer, rounded up, from when the two have a
            connection; 0: for ever.
    """
    options = _options(fabric)
    options.patience = math.ceil(patience)
    code = _lib.pc_comm_rails(comm, options, _specs(rails), len(rails))
    check(code, comm, "opening RDMA ports")


def comm_event_fd(comm: Any) -> int:
    """Return a descriptor that is readable when `comm_attend` has work, or -1: it never has."""
    return int(_lib.pc_comm_event_fd(comm))


def comm_handle_events(comm: Any) -> None:
    """See to what reaches remote peers; any thread may, while another is inside a call."""
    check(_lib.pc_comm_handle_events(comm), None, "attending to RDMA")


def comm_net_state(comm: Any) -> NetState:
    """Return what state the way to remote peers is in."""
    s = ffi.new("struct pc_net_state *")
    check(_lib.pc_comm_net_state(comm, s), comm, "state of the way to remote ranks")
    fields = {name: getattr(s, name) for name in NetState._fields}
    return NetState(**(fields | {"bytes": tuple(s.bytes)}))


def comm_adopt(comm: Any, peer: int, fd: int) -> None:
    """Hand over a connected socket to a remote peer; any thread may. It is the engine's now."""
    check(_lib.pc_comm_adopt(comm, peer, fd), None, f"socket to rank {peer}")


def comm_connections(comm: Any, peer: int) -> int:
    """Return how many sockets to a remote peer live; any thread may ask."""
    return check(_lib.pc_comm_connections(comm, peer), None, f"sockets to rank {peer}")


def comm_accept(comm: Any) -> int:
    """Serve peers that connect; return how many were served."""
    return check(_lib.pc_comm_accept(comm), comm, "serving a peer that connects")


def comm_connect_fd(comm: Any) -> int:
    """Return a file descriptor that is readable when `comm_poll` has work."""
    return check(_lib.pc_comm_connect_fd(comm), comm, "descriptor of connecting")


def comm_sealed(comm: Any) -> None:
    """Stop serving: all peers are connected."""
    check(_lib.pc_comm_sealed(comm), comm, "end of connecting")


def comm_close(comm: Any) -> None:
    """Give everything back."""
    _lib.pc_comm_close(comm)


def comm_error(comm: Any) -> Error:
    """Return what the engine says about its last failure."""
    e = _lib.pc_comm_error(comm)
    return Error(e.code, e.cause, e.peer, e.errnum, _text(e.text))


def comm_abort(comm: Any, cause: int, peer: int, text: str) -> None:
    """End the call in progress, if any, and all later ones; any thread may say so."""
    _lib.pc_comm_abort(comm, cause, peer, _bytes(text, _ERROR_TEXT))


def comm_broken(comm: Any) -> int:
    """Return 0, or the code that broke the communicator."""
    return int(_lib.pc_comm_broken(comm))


def comm_entered(comm: Any) -> int:
    """Tell whether a thread is inside a call: 0, or 2 if it is this one, else 1."""
    return int(_lib.pc_comm_entered(comm))


def comm_op_count(comm: Any) -> int:
    """Return how many calls and messages of this rank have taken their places."""
    return int(_lib.pc_comm_op_count(comm))


def comm_op_count_before(comm: Any) -> int:
    """Return how many had when the present call came in, as `fastcall` noted."""
    return int(_lib.pc_comm_op_count_before(comm))


def comm_follow(comm: Any, leader: Any) -> None:
    """Have a launch on a GPU by ``comm`` take a place among the calls of ``leader``, too."""
    _lib.pc_comm_follow(comm, leader)


def comm_uncount_ops(comm: Any, places: int) -> None:
    """Count only so many places: what took those behind them was no call of the user's."""
    _lib.pc_comm_uncount_ops(comm, places)


def comm_calls(comm: Any) -> int:
    """Return the number of this rank's last call, queued ones included."""
    return int(_lib.pc_comm_calls(comm))


def refuse(comm: Any) -> int | None:
    """Have a call that was refused take its place, behind those that are queued; its number.

    None inside another call, and of a communicator that is broken.
    """
    number = ffi.new("uint64_t *")
    return None if _lib.pc_refuse(comm, number) else int(number[0])


def refuse_message(comm: Any, peer: int, sending: bool) -> bool:
    """Have a message that was refused take its place; False inside another call."""
    direction = _lib.PC_DIRECTION_SEND if sending else _lib.PC_DIRECTION_RECV
    return int(_lib.pc_refuse_message(comm, peer, direction)) == 0


def comm_forked(comm: Any) -> None:
    """Detach from the peers, in the child of a fork."""
    _lib.pc_comm_forked(comm)


def comm_number(comm: Any) -> int:
    """Return the pointer as the number that `fastcall` takes."""
    return int(ffi.cast("uintptr_t", comm))


def heap_alloc(comm: Any, nbytes: int) -> int | None:
    """Allocate memory that peers can reach; None when the heap is full."""
    address = _lib.pc_heap_alloc(comm, nbytes)
    return int(ffi.cast("uintptr_t", address)) or None


def heap_free(comm: Any, address: int) -> None:
    """Free what `heap_alloc` gave."""
    check(_lib.pc_heap_free(comm, ffi.cast("void *", address)), comm, "free of empty() memory")


def heap_buffer(address: int, nbytes: int) -> Any:
    """Return allocated memory as a writable buffer object."""
    return ffi.buffer(ffi.cast("char *", address), nbytes)


def program_load(comm: Any, blob: bytes, root: int = 0) -> Any:
    """Load a Program after checking every instruction; its rank r runs at rank r + root."""
    out = ffi.new("struct pc_program **")
    code = _lib.pc_program_load(comm, ffi.from_buffer(blob), len(blob), root, out)
    check(code, comm, "program rejected by the loader")
    return ffi.gc(out[0], _lib.pc_program_free)


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
    stream: int,
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
        stream: Write the result past the cache: 1 staged, 2 direct.
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
    code = _lib.pc_plan_create(comm, spec, staged, ffi.NULL if direct is None else direct, out)
    check(code, comm, "plan rejected by the engine")
    return ffi.gc(out[0], _lib.pc_plan_free)


def plan_number(plan: Any) -> int:
    """Return the pointer as the number that `fastcall` takes."""
    return int(ffi.cast("uintptr_t", plan))


def release(handle: Any) -> None:
    """Free a program or plan now, not when Python collects it."""
    ffi.release(handle)


def run(comm: Any, plan: Any, x: int, out: int, timeout: float) -> int:
    """Run a call; AGAIN after a millisecond, then go on with `resume`."""
    return int(_lib.pc_run(comm, plan, ffi.cast("void *", x), ffi.cast("void *", out), timeout))


def resume(comm: Any, seconds: float) -> int:
    """Go on with an unfinished call for at most so long."""
    return int(_lib.pc_resume(comm, seconds))


def comm_stuck(comm: Any) -> Stuck | None:
    """Return where the unfinished call stands, or None when there is none."""
    s = ffi.new("struct pc_stuck *")
    if _lib.pc_comm_stuck(comm, s) != 1:
        return None
    return Stuck(s.channel, s.instruction, s.peer, s.direction == _lib.PC_DIRECTION_SEND)


def abandon(handle: Any) -> None:
    """Never free a program or plan: native code may use it until the process ends."""
    ffi.gc(handle, None)


def work_place() -> Any:
    """Return the place of one work; what lies there is freed with it, if it is finished."""
    return ffi.gc(ffi.new("struct pc_work **"), _work_free)


def _work_free(work: Any) -> None:
    if work_wait(work, 0) != AGAIN:
        _lib.pc_work_free(work[0])


def submit(comm: Any, plan: Any, x: int, out: int, timeout: float, where: str, work: Any) -> int:
    """Queue a call for the progress thread; its work goes to ``work``."""
    code = _lib.pc_submit(
        comm,
        plan,
        ffi.cast("void *", x),
        ffi.cast("void *", out),
        timeout,
        _bytes(where, BOARD_TEXT),
        work,
    )
    return int(code)


def work_wait(work: Any, seconds: float) -> int:
    """Wait at most so long for queued work; AGAIN when it is not finished. No work is finished."""
    return int(_lib.pc_work_wait(work[0], seconds)) if work[0] else 0


def _messages(messages: Sequence[P2POp]) -> Any:
    found = ffi.new("struct pc_p2p_op[]", len(messages))
    for m, (address, nbytes, peer, sending, dtype) in zip(found, messages, strict=True):
        m.at, m.nbytes, m.peer, m.dtype = ffi.cast("void *", address), nbytes, peer, dtype
        m.direction = _lib.PC_DIRECTION_SEND if sending else _lib.PC_DIRECTION_RECV
    return found


def exchange(comm: Any, messages: Sequence[P2POp], timeout: float) -> int:
    """Transfer messages; AGAIN after a millisecond, then go on with `resume`."""
    return int(_lib.pc_exchange(comm, _messages(messages), len(messages), timeout))


def post(comm: Any, messages: Sequence[P2POp], timeout: float, work: Any) -> int:
    """Transfer messages beside the caller; their work goes to ``work``."""
    return int(_lib.pc_post(comm, _messages(messages), len(messages), timeout, work))


def comm_gone(comm: Any, peer: int, died: bool) -> None:
    """Say that a rank has left in good order or died; any thread may."""
    _lib.pc_comm_gone(comm, peer, died)


def pairwise(comm: Any, signature: int, messages: Sequence[P2POp], timeout: float) -> int:
    """Run transfers as one call; AGAIN after a millisecond, then go on with `resume`."""
    return int(_lib.pc_pairwise(comm, signature, _messages(messages), len(messages), timeout))


def pairwise_submit(
    comm: Any, signature: int, messages: Sequence[P2POp], timeout: float, where: str, work: Any
) -> int:
    """Queue transfers as one call for the progress thread; its work goes to ``work``."""
    found, text = _messages(messages), _bytes(where, BOARD_TEXT)
    code = _lib.pc_pairwise_submit(comm, signature, found, len(messages), timeout, text, work)
    return int(code)


def status_describe(comm: Any, text: str) -> None:
    """Say on this rank's board what its present call is."""
    _lib.pc_status_describe(comm, _bytes(text, BOARD_TEXT))


def status_call(comm: Any, peer: int, number: int) -> int:
    """Return the signature of a rank's call, `REFUSED` or `FORGOTTEN`.

    0 if it has not come to that call, or is remote.
    """
    return int(_lib.pc_status_call(comm, peer, number))


def status_read(comm: Any, peer: int) -> RankStatus:
    """Read a rank's board."""
    b = ffi.new("struct pc_status *")
    check(_lib.pc_status_read(comm, peer, b), comm, f"board of rank {peer}")
    described = b.described == b.sequence & 0xFFFFFFFF and b.sequence > 0
    return RankStatus(b.sequence, b.signature, b.state, _text(b.text) if described else "")
