"""Computation beside communication on one GPU: what keeps them apart, and what it would gain.

A collective's blocks can only run beside a computation where an SM has room for them: registers,
threads, shared memory. A kernel that fills every SM makes them wait until its last wave ends. The
remedy is that of Cui and Pericas (arXiv 2606.09200): the computation's blocks are given shared
memory that they do not use, so that an SM holds fewer of them, and the communication's stream has a
higher priority, so that its blocks are the first to be placed. Or each gets SMs of its own, by a
green context of CUDA, as a collective needs few.

`plan` says what would have to be done for a kernel, `shape` does it, `partition` parts the SMs,
`copy_engine` does without them, `all_gather_matmul` and `matmul_reduce_scatter` cut both into
tiles, `advise` compares the ways by arithmetic, and `measure` tells whether any of it gains
anything. Needs a GPU, but for `plan` of a `Footprint` with a ``capability``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pycoll.arguments import flag, instance, integer
from pycoll.errors import PycollError, UsageError, quoted
from pycoll.overlap.advice import Advice, confirm
from pycoll.overlap.advice import advise as _capped
from pycoll.overlap.compare import Comparison, compare
from pycoll.overlap.occupancy import Footprint
from pycoll.overlap.result import Measured
from pycoll.overlap.shaped import Launch, Shaped
from pycoll.overlap.tiled import all_gather_matmul, matmul_reduce_scatter
from pycoll.overlap.workload import COLLECTIVE, Communication, Computation

if TYPE_CHECKING:
    from pycoll.benchmark.oob import Gather
    from pycoll.overlap.gpu import Gpu
    from pycoll.overlap.green import Partition
    from pycoll.overlap.kernel import Block
    from pycoll.overlap.limits import Limits
    from pycoll.overlap.machine import Machine
    from pycoll.overlap.timing import Enqueue, Parts
    from pycoll.runtime.cuda.copies import CopyEngine

__all__ = [
    "COLLECTIVE",
    "Advice",
    "Communication",
    "Comparison",
    "Computation",
    "Footprint",
    "Launch",
    "Measured",
    "Shaped",
    "advise",
    "all_gather_matmul",
    "copy_engine",
    "footprint",
    "matmul_reduce_scatter",
    "measure",
    "partition",
    "plan",
    "shape",
]

#: More SMs than any GPU has, and more GPUs.
MOST_SMS, MOST_DEVICE = 65536, 2**31 - 1
MOST_BYTES = 2**48  #: of a window


def plan(
    kernel: Any,
    block: Block,
    comm: Any = None,
    *,
    shared_mem: int = 0,
    capability: tuple[int, int] | None = None,
) -> Advice:
    """Say how many blocks of a kernel an SM may hold for a collective to run beside them.

    Args:
        kernel: A cupy RawKernel (or a function of a RawModule), a compiled Triton kernel, the
            integer handle of a CUfunction, or a `Footprint`.
        block: The threads of its block: a number, or a tuple as cupy takes it.
        comm: The communicator whose collectives are to run beside it. Its first use with GPUs is a
            moment at which all ranks meet, so then all of them call this. By default a block of
            `COLLECTIVE` is reckoned with.
        shared_mem: Bytes of dynamic shared memory that the kernel's launch asks for.
        capability: Compute capability to reckon for, such as ``(9, 0)``, by the table of
            `pycoll.overlap.limits`; by default this machine's GPU is asked.

    Returns:
        The advice: blocks per SM as they are and capped, the padding in bytes, whether a block of
        the collective fits then, and why.

    Raises:
        UsageError: The kernel or the block is none.
        UnavailableError: There is no GPU, and no ``capability`` was given that is known.
    """
    _require_communicator("plan", comm)
    gpu, sm = _machine(comm, capability)
    return _advise(kernel, block, shared_mem, None if gpu is None else comm, gpu, sm)


def advise(
    work: Computation,
    collective: Communication,
    comm: Any = None,
    *,
    copies: bool = False,
    capability: tuple[int, int] | None = None,
) -> Comparison:
    """Compare the ways to run a collective beside a computation, and say which should win and why.

    Everything is reckoned, by the blocks that SMs hold, by waves, and by NVIDIA's data sheets: it
    tells what is worth trying, and `measure` what is so.

    Args:
        work: The computation.
        collective: What is to run beside it.
        comm: The communicator: the collective's block and their number are then those of its
            kernels. As with `plan`, all its ranks call this if any does.
        copies: There is a form of the collective that copy engines do.
        capability: Compute capability to reckon for, ``(8, 0)`` or ``(9, 0)``: that of an A100 or
            H100 of NVLink's form; by default this machine's GPU is asked.

    Returns:
        What each way would take and why; ``str()`` of it is a table.

    Raises:
        UsageError: No SM holds a block of the computation, or an argument is none.
        UnavailableError: There is no GPU and no ``capability``, or a time is neither given nor
            known.

    Example:
        >>> chain = overlap.Computation(overlap.Footprint(256, 32), 8448, nbytes=2**30, flops=2**30)
        >>> sums = overlap.Communication("allreduce", nbytes=64 << 20, ranks=8)
        >>> overlap.advise(chain, sums, capability=(9, 0)).best
        'priority'
    """
    instance("overlap.advise: work", work, Computation)
    instance("overlap.advise: collective", collective, Communication)
    flag("overlap.advise: copies", copies)
    _require_communicator("advise", comm)
    if comm is not None:
        collective = replace(collective, block=_beside(comm), blocks=comm.cuda().blocks)
    return compare(work, collective, _whole(comm, capability), copies)


def footprint(kernel: Any, block: Block | None = None, *, shared_mem: int = 0) -> Footprint:
    """Return what a block of a kernel takes of an SM, as `advise` wants it.

    Args:
        kernel: What `plan` takes.
        block: The threads of its block; a compiled Triton kernel and a `Footprint` know their own.
        shared_mem: Bytes of dynamic shared memory that a launch asks for.

    Raises:
        UsageError: The kernel is none, or its block is not known.
        UnavailableError: The handle of a CUfunction is given, and there is no GPU to ask.
    """
    from pycoll.overlap import kernel as kernels

    if block is None:
        block = kernels.own_threads(kernel)
    handle = isinstance(kernel, int) and not isinstance(kernel, bool)
    return kernels.footprint(kernel, block, shared_mem, _gpu(None) if handle else None)


def shape(
    kernel: Any, max_blocks_per_sm: int, *, capability: tuple[int, int] | None = None
) -> Shaped:
    """Return a kernel of which an SM holds at most so many blocks at a time.

    Args:
        kernel: A cupy RawKernel, a function of a RawModule, or a compiled Triton kernel.
        max_blocks_per_sm: At least 1; `plan` says how many.
        capability: As of `plan`.

    Returns:
        What is called like cupy's: ``shaped(grid, block, args, shared_mem=0)``; of a Triton kernel
        also ``shaped[grid](*args)``. Each launch is given shared memory that it does not use; the
        results are the same.

    Raises:
        UsageError: The kernel is none of these, or the cap is no positive integer.
        UnavailableError: There is no GPU, and no ``capability`` was given that is known.
    """
    return Shaped(kernel, max_blocks_per_sm, _machine(None, capability)[1])


def partition(sms: int, comm: Any = None, *, device: int | None = None) -> Partition:
    """Part the GPU's SMs: so many for the collective, all others for the computation.

    Each part is a green context of CUDA with a stream; whatever is enqueued on the stream runs on
    that part alone. Make it before the collectives run: the driver may wait for kernels.

    Args:
        sms: How many SMs the collective gets. On compute capability 9.0 and later a multiple of 8,
            on 8.x of 2 from 4 on. The others are the computation's.
        comm: The communicator whose collectives are to run there. Its blocks wait for one another,
            so the part must hold all of a launch at once, which is checked. As with `plan`, all
            ranks call this if any does. By default nothing is checked.
        device: The GPU, as CUDA counts, where there is no communicator; by default the current one.

    Returns:
        A `Partition`, for a ``with`` statement: its ``computation`` and ``communication`` are the
        streams.

    Raises:
        UsageError: The SMs cannot be parted so, or too few are asked for.
        UnavailableError: There is no GPU, or its driver has no green contexts: they want NVIDIA's
            driver 550 or later (CUDA 12.4).

    Example:
        >>> with overlap.partition(16, comm) as part:  # doctest: +SKIP
        ...     with part.computation:
        ...         y = a @ b
        ...     with part.communication:
        ...         comm.allreduce(x)
    """
    from pycoll.overlap.green import require_room

    _require_communicator("partition", comm)
    sms = integer("overlap.partition: sms", sms, 1, MOST_SMS)
    if device is not None:
        device = integer("overlap.partition: device", device, 0, MOST_DEVICE)
        if comm is not None:
            raise UsageError(
                f"overlap.partition: device is {device}, and comm has a GPU of its own; want one "
                "of the two"
            )
    gpu = _gpu(comm, device)
    if comm is not None:
        require_room(sms, _beside(comm), comm.cuda().blocks, gpu.limits)
    return gpu.partition(sms, comm)


def copy_engine(comm: Any, nbytes: int) -> CopyEngine:
    """Make ready for all-gathers and all-to-alls by copy engines; all ranks call it alike.

    They take no multiprocessor, so they run beside any computation. What is received lies in a
    window that the peers have mapped: arrays of the engine's ``empty``.

    Args:
        comm: The communicator. Its ranks must reach each other's GPU memory.
        nbytes: Of each rank's window, the same on all.

    Returns:
        The engine, for a ``with`` statement.

    Raises:
        UnavailableError: On all ranks, where one does not reach another's GPU memory, or has a
            driver or a GPU without stream memory operations of 64 bits.
        UsageError: An argument is none.

    Example:
        >>> with overlap.copy_engine(comm, 64 << 20) as copies:  # doctest: +SKIP
        ...     out = copies.empty(comm.size * x.size)
        ...     copies.allgather(x, out)
    """
    from pycoll.runtime.cuda.copies import CopyEngine

    if comm is None:
        raise UsageError("overlap.copy_engine: comm is None, want a pycoll.Communicator")
    _require_communicator("copy_engine", comm)
    return CopyEngine(comm, integer("overlap.copy_engine: nbytes", nbytes, 1, MOST_BYTES))


def measure(
    compute: Enqueue | Launch,
    collective: Enqueue,
    shaped: Enqueue | None = None,
    *,
    comm: Any = None,
    repeats: int = 15,
    gpu: Any = None,
    sms: int | None = None,
    copies: Enqueue | None = None,
) -> Measured:
    """Time a computation beside a collective in several ways, and say whether one of them gains.

    The ways are: one after the other; on two streams; with the collective's stream at the highest
    priority; with the computation shaped; both; each on SMs of its own; and by copy engines. They
    take turns; times are the GPU's own.

    Args:
        compute: Enqueues the computation on the stream that it is called with, which is cupy's and
            torch's current one meanwhile. Or a `Launch`, which is then shaped as `plan` advises.
        collective: Enqueues the collective alike: ``lambda stream: comm.allreduce(x)``.
        shaped: Enqueues the computation in its shaped form; by default that of a `Launch`, and
            where there is neither the ways that need it are left out.
        comm: The communicator; all its ranks call this alike, and the slowest rank's times count.
        repeats: How often each way is timed, at least 1.
        gpu: Where it runs; by default the communicator's GPU, or else the current one. Anything
            with the methods of `pycoll.overlap.timing.Gpu`.
        sms: How many SMs the collective gets in the way ``partition``, which is left out without,
            or where the driver of any rank has no green contexts.
        copies: Enqueues the collective by copy engines; without it that way is left out.

    Returns:
        The times in seconds, the best way and what it gains; ``str()`` of it is a table.

    Raises:
        UsageError: ``repeats`` is less than 1 or more than a million, or an argument is none.
        UnavailableError: There is no GPU.
    """
    from pycoll.benchmark.oob import gather
    from pycoll.overlap.frameworks import on_stream
    from pycoll.overlap.timing import MOST_REPEATS, run
    from pycoll.runtime.cuda import pace

    _require_communicator("measure", comm)
    repeats = integer("overlap.measure: repeats", repeats, 1, MOST_REPEATS)
    given = {"compute": compute, "collective": collective, "shaped": shaped, "copies": copies}
    for what, enqueue in given.items():
        if not callable(enqueue) and not (what in ("shaped", "copies") and enqueue is None):
            raise UsageError(
                f"overlap.measure: {what} is {quoted(enqueue)}, want a function of a stream"
            )
    if sms is not None:
        sms = integer("overlap.measure: sms", sms, 1, MOST_SMS)
    if gpu is not None and not hasattr(gpu, "stream"):
        raise UsageError(
            f"overlap.measure: gpu is {quoted(gpu)}, want what has the methods of "
            "pycoll.overlap.timing.Gpu, or None"
        )
    notes: list[str] = []
    here = _gpu(comm) if gpu is None else gpu
    if shaped is None and isinstance(compute, Launch):
        work = compute.kernel, compute.block, compute.shared_mem
        advice = _advise(*work, comm, here, here.limits)
        notes.append(f"plan: {advice}")
        if advice.capped < advice.natural:
            shaped = compute.shaped(advice.capped, here.limits)
    elif shaped is None:
        notes.append("not shaped: compute is no overlap.Launch, and no shaped form was given")
    capped = None if shaped is None else on_stream(shaped)
    streamed = on_stream(compute), on_stream(collective), capped
    meet = gather(comm)
    copied = None if copies is None else on_stream(copies)
    parts = None if sms is None else _parts(here, sms, meet, notes)
    try:
        found = run(here, meet, *streamed, repeats, parts=parts, copies=copied)
        # Only now all kernels are loaded.
        notes.append(pace.label() if comm is None or gpu is not None else comm.cuda().paced)
        return replace(found, note="\n".join(filter(None, notes)))
    finally:
        if parts is not None:
            parts.close()


def _parts(gpu: Any, sms: int, meet: Gather, notes: list[str]) -> Parts | None:
    """Return the SMs in two parts, if every rank can part its own; else note why not."""
    parts: Parts | None = None
    failure: PycollError | None = None
    try:
        parts = gpu.partition(sms)
    except PycollError as error:
        failure = error
    # Whoever cannot must not leave the others waiting for it in the first way.
    if sum(meet(float(failure is not None))) == 0:
        assert parts is not None
        notes.append("partition: {} SMs compute, {} communicate".format(*parts.sms))
        return parts
    if parts is not None:
        parts.close()
    if isinstance(failure, UsageError):
        raise failure
    notes.append(f"no partition: {failure or 'another rank cannot part its SMs'}")
    return None


def _require_communicator(who: str, comm: Any) -> None:
    if comm is not None and not hasattr(comm, "allgather_object"):
        raise UsageError(
            f"overlap.{who}: comm is {quoted(comm)}, want a pycoll.Communicator, or None"
        )


def _advise(kernel: Any, block: Block, shared_mem: int, comm: Any, gpu: Any, sm: Limits) -> Advice:
    from pycoll.overlap.kernel import footprint, handle_of

    beside = COLLECTIVE if comm is None else _beside(comm)
    each = footprint(kernel, block, shared_mem, gpu)
    advice = _capped(each, beside, sm)
    handle = handle_of(kernel)
    return advice if gpu is None or handle is None else confirm(advice, each, gpu, handle, sm)


def _beside(comm: Any) -> Footprint:
    """Return what a block of a communicator's kernels takes."""
    own = comm.cuda()
    if not own.registers:  # it has loaded no kernel yet
        return COLLECTIVE
    return Footprint(own.threads, own.registers, own.shared_bytes)


def _machine(comm: Any, capability: tuple[int, int] | None) -> tuple[Gpu | None, Limits]:
    """Return the GPU that is reckoned for, where it is there, and its limits."""
    from pycoll.overlap.limits import limits

    if capability is not None:
        return None, limits(capability)
    gpu = _gpu(comm)
    return gpu, gpu.limits


def _whole(comm: Any, capability: tuple[int, int] | None) -> Machine:
    """Return what is known of the whole GPU that is reckoned for."""
    from pycoll.overlap.machine import Machine, machine, rates

    if capability is not None:
        return machine(capability)
    gpu = _gpu(comm)
    return Machine(gpu.limits, gpu.multiprocessors, *gpu.parts(), rates(gpu.capability))


def _gpu(comm: Any, device: int | None = None) -> Gpu:
    # Loaded here: it brings the engine, and what reckons with numbers only does without.
    from pycoll.overlap.gpu import Gpu

    return Gpu(device if comm is None else comm.cuda().device)
