"""One function per ``pc_cuda_*`` of ``native/pycoll.h``: NVIDIA's driver, as Python calls it.

A device is its ordinal; addresses, streams, events, modules and functions are integers, as cupy
and torch have them. Each call works in the device's primary context and leaves current what was.
Without a driver or a GPU each raises UnavailableError with what `missing` says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pycoll.errors import InternalError, PycollError, TransportError, UnavailableError, UsageError
from pycoll.runtime.native import codes
from pycoll.runtime.native.codes import AGAIN
from pycoll.runtime.native.load import ffi, lib

#: Bytes that let another process of the host open an allocation.
HANDLE: int = lib.PC_CUDA_HANDLE

UNKNOWN: int = lib.PC_CUDA_UNKNOWN
HOST: int = lib.PC_CUDA_HOST
DEVICE: int = lib.PC_CUDA_DEVICE

NO_CAPTURE: int = lib.PC_CUDA_NO_CAPTURE
CAPTURING: int = lib.PC_CUDA_CAPTURING
INVALIDATED: int = lib.PC_CUDA_INVALIDATED

GLOBAL: int = lib.PC_CUDA_GLOBAL
THREAD_LOCAL: int = lib.PC_CUDA_THREAD_LOCAL
RELAXED: int = lib.PC_CUDA_RELAXED

COOPERATIVE: int = lib.PC_CUDA_COOPERATIVE
REMOTE: int = lib.PC_CUDA_REMOTE
PRIORITY: int = lib.PC_CUDA_PRIORITY

_EXCEPTIONS: dict[int, type[PycollError]] = {
    lib.PC_NOMEM: UnavailableError,
    lib.PC_INVALID: UsageError,  # a stream, an event, an array: the caller's
    lib.PC_SYSTEM: TransportError,
    lib.PC_UNMAPPABLE: UnavailableError,
}


class Device(NamedTuple):
    """What a GPU is and what it holds; the limits of shared memory are bytes."""

    name: str
    bus: str  #: such as 0000:3b:00.0
    uuid: bytes
    nbytes: int
    major: int  #: compute capability, with the next
    minor: int
    driver: int  #: 12040: CUDA 12.4
    multiprocessors: int
    warp: int
    threads_per_block: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    registers_per_block: int
    registers_per_multiprocessor: int
    shared_per_block: int
    shared_per_block_optin: int
    shared_per_multiprocessor: int
    shared_reserved_per_block: int
    cooperative: bool
    sync_domains: int  #: 1 before compute capability 9.0
    host_register: bool  #: host memory that is there can be mapped
    same_host_pointer: bool  #: and has the same address on the device
    rdma: bool


class Pointer(NamedTuple):
    """What the driver knows of an address."""

    base: int  #: of its allocation, or 0
    nbytes: int
    id: int  #: of the allocation: no other ever has the same
    kind: int  #: UNKNOWN, HOST or DEVICE
    device: int  #: or -1
    managed: bool  #: moves between host and device
    ipc: bool  #: `ipc_get` can


class Function(NamedTuple):
    """What a kernel takes."""

    threads: int  #: of a block, at most
    registers: int  #: of a thread
    local: int  #: bytes of stack and spills per thread
    shared: int  #: bytes, static
    dynamic: int  #: bytes of dynamic shared memory at most, as things stand


class Multiprocessors(NamedTuple):
    """Those of a GPU, and how they can be parted."""

    sms: int
    least: int  #: of a part
    unit: int  #: a part has a multiple of it


class Part(NamedTuple):
    """A part of a GPU's multiprocessors: a green context."""

    context: int
    stream: int  #: whose kernels run on the part alone
    sms: int


class _Failure:
    """The place of an error's text, and the exception that it becomes."""

    def __init__(self) -> None:
        self.c = ffi.new("struct pc_error *")

    def check(self, code: int) -> int:
        """Return a code that is not negative; raise what a negative one means."""
        if code >= 0:
            return code
        text = bytes(ffi.string(self.c.text)).decode("utf-8", "replace")
        raise _EXCEPTIONS.get(code, InternalError)(text or codes.code_name(code))

    def ready(self, code: int) -> bool:
        """Return whether something has happened; raise what a failure means."""
        return code != AGAIN and not self.check(code)


def missing() -> str:
    """Return what keeps this process from GPUs, and what mends it; "" if nothing does."""
    return bytes(ffi.string(lib.pc_cuda_missing())).decode("utf-8", "replace")


def devices() -> int:
    """Return how many GPUs there are; 0 without a driver."""
    return int(lib.pc_cuda_devices())


def device(number: int) -> Device:
    """Return what a GPU is."""
    failure, found = _Failure(), ffi.new("struct pc_cuda_device *")
    failure.check(lib.pc_cuda_device(number, failure.c, found))
    fields = {name: getattr(found, name) for name in Device._fields}
    for name in ("name", "bus"):
        fields[name] = bytes(ffi.string(fields[name])).decode("utf-8", "replace")
    for name in ("cooperative", "host_register", "same_host_pointer", "rdma"):
        fields[name] = bool(fields[name])
    return Device(**(fields | {"uuid": bytes(found.uuid)}))


def peer(number: int, other: int) -> None:
    """Let kernels of a GPU touch the memory of another.

    Raises:
        UnavailableError: They never can.
    """
    failure = _Failure()
    failure.check(lib.pc_cuda_peer(number, other, failure.c))


def multicast(number: int) -> str:
    """Return what keeps a GPU from multicast objects of NVLink's switches; "" if nothing does."""
    failure = _Failure()
    try:
        failure.check(lib.pc_cuda_multicast(number, failure.c))
    except UnavailableError as error:
        return str(error)
    return ""


def thread_mode(number: int, mode: int) -> None:
    """Set by which mode this thread's calls that disturb captures do so: RELAXED, ..."""
    failure = _Failure()
    failure.check(lib.pc_cuda_thread_mode(number, mode, failure.c))


@contextlib.contextmanager
def current(number: int) -> Iterator[None]:
    """Have a GPU's context current in this thread."""
    failure = _Failure()
    failure.check(lib.pc_cuda_push(number, failure.c))
    try:
        yield
    finally:
        lib.pc_cuda_pop()


def pointer(address: int) -> Pointer:
    """Return what the driver knows of an address; of ordinary memory, that it is UNKNOWN."""
    failure, found = _Failure(), ffi.new("struct pc_cuda_pointer *")
    failure.check(lib.pc_cuda_pointer(address, failure.c, found))
    where = found.base, found.nbytes, found.id, found.kind, found.device
    return Pointer(*where, bool(found.managed), bool(found.ipc))


def alloc(number: int, nbytes: int) -> int:
    """Allocate memory of a GPU; returns its address."""
    failure, address = _Failure(), ffi.new("uint64_t *")
    failure.check(lib.pc_cuda_alloc(number, nbytes, failure.c, address))
    return int(address[0])


def free(number: int, address: int) -> None:
    """Free what `alloc` returned."""
    failure = _Failure()
    failure.check(lib.pc_cuda_free(number, address, failure.c))


def host_alloc(number: int, nbytes: int) -> tuple[int, int]:
    """Allocate pinned host memory, zeroed; returns its address on the host and on the GPU."""
    failure, host, address = _Failure(), ffi.new("void **"), ffi.new("uint64_t *")
    failure.check(lib.pc_cuda_host_alloc(number, nbytes, failure.c, host, address))
    return int(ffi.cast("uintptr_t", host[0])), int(address[0])


def host_free(number: int, host: int) -> None:
    """Free what `host_alloc` returned."""
    failure = _Failure()
    failure.check(lib.pc_cuda_host_free(number, ffi.cast("void *", host), failure.c))


def host_register(number: int, host: int, nbytes: int) -> int:
    """Pin and map whole pages of host memory; returns their address on the GPU."""
    failure, address = _Failure(), ffi.new("uint64_t *")
    start = ffi.cast("void *", host)
    failure.check(lib.pc_cuda_host_register(number, start, nbytes, failure.c, address))
    return int(address[0])


def host_unregister(number: int, host: int) -> None:
    """Undo `host_register`."""
    failure = _Failure()
    failure.check(lib.pc_cuda_host_unregister(number, ffi.cast("void *", host), failure.c))


def copy(number: int, to: int, frm: int, nbytes: int, stream: int) -> None:
    """Enqueue a copy; host memory only if it is pinned."""
    failure = _Failure()
    failure.check(lib.pc_cuda_copy(number, to, frm, nbytes, stream, failure.c))


def fill(number: int, to: int, byte: int, nbytes: int, stream: int) -> None:
    """Enqueue the setting of every byte."""
    failure = _Failure()
    failure.check(lib.pc_cuda_fill(number, to, byte, nbytes, stream, failure.c))


def ipc_get(number: int, address: int) -> bytes:
    """Return the handle of the whole allocation that an address lies in."""
    failure, handle = _Failure(), ffi.new("char[]", HANDLE)
    failure.check(lib.pc_cuda_ipc_get(number, address, failure.c, handle))
    return bytes(ffi.buffer(handle, HANDLE))


def ipc_open(number: int, handle: bytes) -> int:
    """Map another process's allocation; returns where it begins."""
    failure, address = _Failure(), ffi.new("uint64_t *")
    if len(handle) != HANDLE:
        raise UsageError(f"a handle of GPU memory has {len(handle)} B, want {HANDLE}")
    failure.check(lib.pc_cuda_ipc_open(number, ffi.from_buffer(handle), failure.c, address))
    return int(address[0])


def ipc_close(number: int, address: int) -> None:
    """Undo `ipc_open`, before the owner frees the allocation."""
    failure = _Failure()
    failure.check(lib.pc_cuda_ipc_close(number, address, failure.c))


def priorities(number: int) -> tuple[int, int]:
    """Return the least and the greatest priority of streams; the greatest is the lower number."""
    failure, least, greatest = _Failure(), ffi.new("int *"), ffi.new("int *")
    failure.check(lib.pc_cuda_priorities(number, failure.c, least, greatest))
    return int(least[0]), int(greatest[0])


def stream(number: int, priority: int = 0) -> int:
    """Make a stream that does not wait for the default one."""
    failure, made = _Failure(), ffi.new("uintptr_t *")
    failure.check(lib.pc_cuda_stream(number, priority, failure.c, made))
    return int(made[0])


def stream_free(number: int, handle: int) -> None:
    """Free a stream; what is enqueued still runs."""
    failure = _Failure()
    failure.check(lib.pc_cuda_stream_free(number, handle, failure.c))


def stream_query(number: int, handle: int) -> bool:
    """Tell whether everything enqueued has ended."""
    failure = _Failure()
    return failure.ready(lib.pc_cuda_stream_query(number, handle, failure.c))


def stream_wait(number: int, handle: int) -> None:
    """Wait on the host until everything enqueued has ended."""
    failure = _Failure()
    failure.check(lib.pc_cuda_stream_wait(number, handle, failure.c))


def stream_after(number: int, handle: int, event: int) -> None:
    """Let what is enqueued from now on begin after an event."""
    failure = _Failure()
    failure.check(lib.pc_cuda_stream_after(number, handle, event, failure.c))


def capturing(number: int, handle: int) -> tuple[int, int]:
    """Return whether a stream is being captured (NO_CAPTURE, ...), and the capture's own number."""
    failure, which = _Failure(), ffi.new("uint64_t *")
    found = failure.check(lib.pc_cuda_capturing(number, handle, failure.c, which))
    return found, int(which[0])


def capture_pin(number: int, handle: int, users: Any) -> None:
    """Let a graph that is being captured keep one of ``users``, a ``uint32_t *`` of `ffi`."""
    failure = _Failure()
    failure.check(lib.pc_cuda_capture_pin(number, handle, users, failure.c))


def multiprocessors(number: int) -> Multiprocessors:
    """Return how many multiprocessors a GPU has, and how they can be parted.

    Raises:
        UnavailableError: They cannot; says what is missing.
    """
    failure, found = _Failure(), ffi.new("struct pc_cuda_sms *")
    failure.check(lib.pc_cuda_sms(number, failure.c, found))
    return Multiprocessors(found.count, found.least, found.unit)


def partition(number: int, sms: int, priority: int) -> tuple[Part, Part]:
    """Part a GPU's multiprocessors: so many with a stream of that priority, and all others."""
    failure, own, rest = _Failure(), *(ffi.new("struct pc_cuda_part *") for _ in range(2))
    failure.check(lib.pc_cuda_partition(number, sms, priority, failure.c, own, rest))
    return _part(own), _part(rest)


def _part(of: Any) -> Part:
    return Part(int(of.context), int(of.stream), int(of.sms))


def partition_free(number: int, own: Part, rest: Part) -> None:
    """Undo `partition`, streams included, once nothing runs on them."""
    failure, parts = _Failure(), [ffi.new("struct pc_cuda_part *", each) for each in (own, rest)]
    failure.check(lib.pc_cuda_partition_free(number, *parts, failure.c))


def memops(number: int) -> str:
    """Return what keeps streams of a GPU from words that they write and wait for; "" if nothing."""
    failure = _Failure()
    try:
        failure.check(lib.pc_cuda_memops(number, failure.c))
    except UnavailableError as error:
        return str(error)
    return ""


def stream_write64(number: int, handle: int, address: int, value: int) -> None:
    """Enqueue the store of a word, behind all that the stream has written."""
    failure = _Failure()
    failure.check(lib.pc_cuda_stream_write64(number, handle, address, value, failure.c))


def stream_wait64(number: int, handle: int, address: int, value: int) -> None:
    """Let what is enqueued from now on begin when a word is at least ``value``: nothing else."""
    failure = _Failure()
    failure.check(lib.pc_cuda_stream_wait64(number, handle, address, value, failure.c))


def event(number: int, timing: bool = False) -> int:
    """Make an event; one without timing is cheaper."""
    failure, made = _Failure(), ffi.new("uintptr_t *")
    failure.check(lib.pc_cuda_event(number, timing, failure.c, made))
    return int(made[0])


def event_free(number: int, handle: int) -> None:
    """Free an event."""
    failure = _Failure()
    failure.check(lib.pc_cuda_event_free(number, handle, failure.c))


def event_record(number: int, handle: int, on: int) -> None:
    """Let an event happen when all that is enqueued on a stream so far has ended."""
    failure = _Failure()
    failure.check(lib.pc_cuda_event_record(number, handle, on, failure.c))


def event_query(number: int, handle: int) -> bool:
    """Tell whether an event has happened."""
    failure = _Failure()
    return failure.ready(lib.pc_cuda_event_query(number, handle, failure.c))


def event_wait(number: int, handle: int) -> None:
    """Wait on the host until an event has happened."""
    failure = _Failure()
    failure.check(lib.pc_cuda_event_wait(number, handle, failure.c))


def event_seconds(number: int, start: int, end: int) -> float:
    """Return the time between two events with timing that have happened."""
    failure, seconds = _Failure(), ffi.new("double *")
    failure.check(lib.pc_cuda_event_seconds(number, start, end, failure.c, seconds))
    return float(seconds[0])


def module(number: int, image: bytes) -> int:
    """Load a cubin, a fatbin or PTX."""
    failure, made = _Failure(), ffi.new("uintptr_t *")
    kept = ffi.from_buffer(image + b"\0")  # PTX is a text that ends with a zero
    failure.check(lib.pc_cuda_module(number, kept, failure.c, made))
    return int(made[0])


def module_free(number: int, handle: int) -> None:
    """Unload a module."""
    failure = _Failure()
    failure.check(lib.pc_cuda_module_free(number, handle, failure.c))


def function(number: int, handle: int, name: str) -> int:
    """Return a kernel of a module, loaded now and not at its first launch."""
    failure, made = _Failure(), ffi.new("uintptr_t *")
    failure.check(lib.pc_cuda_function(number, handle, name.encode(), failure.c, made))
    return int(made[0])


def function_read(number: int, handle: int) -> Function:
    """Return what a kernel takes."""
    failure, found = _Failure(), ffi.new("struct pc_cuda_function *")
    failure.check(lib.pc_cuda_function_read(number, handle, failure.c, found))
    return Function(**{name: int(getattr(found, name)) for name in Function._fields})


def function_dynamic(number: int, handle: int, nbytes: int) -> None:
    """Allow a kernel's launches so much dynamic shared memory."""
    failure = _Failure()
    failure.check(lib.pc_cuda_function_dynamic(number, handle, nbytes, failure.c))


def function_carveout(number: int, handle: int, percent: int) -> None:
    """Ask for so much of an SM's L1 cache as shared memory where a kernel runs: 0 to 100 %."""
    failure = _Failure()
    failure.check(lib.pc_cuda_function_carveout(number, handle, percent, failure.c))


def occupancy(number: int, handle: int, threads: int, dynamic: int) -> int:
    """Return how many blocks of a kernel a multiprocessor holds."""
    failure, blocks = _Failure(), ffi.new("int *")
    failure.check(lib.pc_cuda_occupancy(number, handle, threads, dynamic, failure.c, blocks))
    return int(blocks[0])


def room(number: int, handle: int, blocks: int, threads: int) -> int:
    """Return the most dynamic shared memory with which so many blocks still fit, in bytes."""
    failure, dynamic = _Failure(), ffi.new("size_t *")
    failure.check(lib.pc_cuda_room(number, handle, blocks, threads, failure.c, dynamic))
    return int(dynamic[0])


def launch(
    number: int,
    handle: int,
    blocks: Sequence[int],
    threads: Sequence[int],
    arguments: Sequence[Any],
    on: int,
    *,
    shared: int = 0,
    flags: int = 0,
    priority: int = 0,
) -> None:
    """Enqueue a kernel.

    Args:
        number: The GPU.
        handle: The kernel.
        blocks: Of the grid: three numbers.
        threads: Of a block: three numbers.
        arguments: Pointers of `ffi` to each argument; read before this returns.
        on: The stream.
        shared: Bytes of dynamic shared memory.
        flags: Some of COOPERATIVE, REMOTE, PRIORITY.
        priority: Of the launch, with PRIORITY.
    """
    failure, grid = _Failure(), ffi.new("struct pc_cuda_grid *")
    grid.function, grid.stream, grid.shared = handle, on, shared
    grid.flags, grid.priority = flags, priority
    for i in range(3):
        grid.blocks[i], grid.threads[i] = blocks[i], threads[i]
    places = ffi.new("void *[]", [ffi.cast("void *", argument) for argument in arguments])
    failure.check(lib.pc_cuda_launch(number, grid, places, failure.c))
