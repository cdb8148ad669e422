"""A matrix product by tiles, beside the collective in front of it or behind it.

Tensor parallelism has a product whose input is gathered, and one whose output is reduced and
scattered. Cut into tiles, what has come is computed with while the rest is on its way, and what is
computed is on its way while the rest is computed. The computation is the caller's: it enqueues what
it likes on the current stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pycoll.arguments import integer
from pycoll.errors import UsageError, quoted
from pycoll.overlap.frameworks import made_current

if TYPE_CHECKING:
    from pycoll.arrays.view import ArrayView
    from pycoll.runtime.cuda.copies import CopyEngine

MOST_TILES = 4096


def all_gather_matmul(
    copies: CopyEngine,
    x: Any,
    out: Any,
    compute: Callable[[int, int, slice], object],
    *,
    tiles: int = 1,
    stream: Any = None,
) -> Any:
    """Gather ``x`` of all ranks by copy engines, and compute with each tile as soon as it is there.

    The copies run on the engine's own stream, behind what the computation's stream has been given
    so far. ``compute`` is called for each tile in the order in which they come: those of this rank,
    then those of the rank before it, and so on round. When this returns all is enqueued. What is
    enqueued behind it on the computation's stream comes behind the gather, too, so that ``x`` and
    ``out`` may be used again there.

    Args:
        copies: Of `copy_engine`.
        x: This rank's rows, on its GPU.
        out: Of ``copies.empty``: as many times the rows of ``x`` as there are ranks.
        compute: ``compute(rank, tile, rows)`` enqueues what is to be done with ``out[rows]``, a
            slice of the first axis, on the current stream of torch and cupy.
        tiles: Into how many tiles each rank's rows are cut, which it must divide; alike on all
            ranks.
        stream: The computation's; by default the one that ``x`` is ordered by.

    Returns:
        ``out``.

    Raises:
        UsageError: An argument is none, ``tiles`` does not divide the rows, ``out`` is of another
            shape or lies elsewhere, or the stream is being captured.
        PycollError: What an earlier call of ``copies`` has ended with.

    Example:
        >>> def product(rank, tile, rows):  # doctest: +SKIP
        ...     torch.matmul(gathered[rows], weight, out=y[rows])
        >>> overlap.all_gather_matmul(copies, x, out, product, tiles=4)  # doctest: +SKIP
    """
    who = "overlap.all_gather_matmul"
    if not all(hasattr(copies, name) for name in ("allgather", "arrival_order", "wait")):
        raise UsageError(f"{who}: copies is {quoted(copies)}, want what overlap.copy_engine made")
    copies.check()
    order = copies.arrival_order
    with copies.in_step():
        tiles = _checked(who, compute, tiles, stream)
        given, into = _on_gpu(f"{who}: x", x), _on_gpu(f"{who}: out", out)
        rows, each = given.shape[0], _divided(who, "x", given.shape[0], tiles)
        if into.shape != (rows * len(order), *given.shape[1:]):
            raise UsageError(
                f"{who}: out has shape {into.shape}, want {(rows * len(order), *given.shape[1:])}: "
                f"{len(order)} times the rows of x"
            )
        on = _handle(given, stream)
        _refuse_capture(who, copies.device, on)
        _behind(copies.device, on, copies.stream)
        try:
            copies.allgather(x, out, stream=copies.stream, tiles=tiles)
            with _current(copies.device, on):
                for rank in order:
                    for tile in range(tiles):
                        first = rank * rows + tile * each
                        copies.wait(rank, tile, on)
                        compute(rank, tile, slice(first, first + each))
        finally:  # also where compute raises: the copies still read x
            _behind(copies.device, copies.stream, on)
    return out


def matmul_reduce_scatter(
    comm: Any,
    compute: Callable[[int, Any], object],
    out: Any,
    *,
    tiles: int = 2,
    parts: Sequence[Any] | None = None,
    op: str = "sum",
    algorithm: Any = None,
    stream: Any = None,
) -> Any:
    """Compute a partial result by tiles, and reduce and scatter each while the next is computed.

    Rank r gets rows ``r * n`` to ``(r + 1) * n`` of the sum of all ranks' partial results, n the
    rows of ``out``, as by one reduce-scatter of the whole. With k = n / tiles, tile t has rows
    ``r * n + t * k`` to ``r * n + (t + 1) * k`` for each r: ``part[r * k : (r + 1) * k]`` is for
    rank r, and becomes its ``out[t * k : (t + 1) * k]``.

    The reduce-scatters run on the communicator's own stream, each behind its tile. When this
    returns all is enqueued; what is enqueued behind it on the computation's stream finds ``out``.

    Args:
        comm: The communicator.
        compute: ``compute(tile, part)`` enqueues what fills ``part``, on the current stream of
            torch and cupy.
        out: This rank's rows of the result, on its GPU.
        tiles: Into how many tiles they are cut, which it must divide; alike on all ranks.
        parts: At least two arrays of ``comm.size * k`` rows that ``compute`` is given in turn, one
            where there is one tile; by default two new ones, where ``out`` is of torch or cupy.
        op: As of ``comm.reduce_scatter``.
        algorithm: As of ``comm.reduce_scatter``.
        stream: The computation's; by default the one that ``out`` is ordered by.

    Returns:
        ``out``.

    Raises:
        UsageError: An argument is none, ``tiles`` does not divide the rows, or ``parts`` are too
            few, of another shape or dtype, or overlap, or are not given and cannot be made.
        PycollError: What any call raises, see `Communicator`.

    Example:
        >>> blocks = a.view(comm.size, tiles, k, -1)  # doctest: +SKIP
        >>> def product(tile, part):  # doctest: +SKIP
        ...     torch.matmul(blocks[:, tile], weight, out=part.view(comm.size, k, -1))
        >>> overlap.matmul_reduce_scatter(comm, product, out, tiles=tiles)  # doctest: +SKIP
    """
    who = "overlap.matmul_reduce_scatter"
    if not hasattr(comm, "reduce_scatter"):
        raise UsageError(f"{who}: comm is {quoted(comm)}, want a pycoll.Communicator")
    with comm._engine.order.begins(who):
        tiles = _checked(who, compute, tiles, stream)
        into = _on_gpu(f"{who}: out", out)
        each = _divided(who, "out", into.shape[0], tiles)
    gpu, on = comm.cuda(into.device.number), _handle(into, stream)
    with _current(gpu.device, on), comm.on_stream(on):
        with comm._engine.order.begins(who):
            shape = (comm.size * each, *into.shape[1:])
            if parts is None:
                parts = [_new(who, into, shape) for _ in range(min(tiles, 2))]
            else:
                parts = _given(who, parts, into, shape, min(tiles, 2))
        try:
            _in_turn(who, comm, compute, into, parts, op, algorithm, tiles)
        except BaseException:  # what is enqueued still writes to out
            _behind(gpu.device, gpu.stream, on)
            raise
    return out


def _in_turn(
    who: str,
    comm: Any,
    compute: Callable[[int, Any], object],
    into: ArrayView,
    parts: Sequence[Any],
    op: str,
    algorithm: Any,
    tiles: int,
) -> None:
    from pycoll.arrays import families

    each = into.shape[0] // tiles
    works: list[Any] = []
    for tile in range(tiles):
        part = parts[tile % len(parts)]
        if tile >= len(parts):
            works[tile - len(parts)].wait()
        with comm._engine.order.begins(who):
            compute(tile, part)
        mine = families.rows(into, tile * each, (tile + 1) * each).owner
        works.append(comm.reduce_scatter(part, mine, op, True, algorithm))
    for work in works[-len(parts) :]:
        work.wait()


def _checked(who: str, compute: Any, tiles: Any, stream: Any) -> int:
    from pycoll.arrays.interface import handle_of

    if not callable(compute):
        raise UsageError(f"{who}: compute is {quoted(compute)}, want a function")
    if stream is not None:
        handle_of(stream)
    return integer(f"{who}: tiles", tiles, 1, MOST_TILES)


def _on_gpu(what: str, array: Any) -> ArrayView:
    from pycoll.arrays import families

    found = families.look(array, what)
    if found.device.kind != "cuda":
        raise UsageError(f"{what} lies in the memory of {found.device}, want it on a GPU")
    if not found.shape:
        raise UsageError(f"{what} has no axes, want rows")
    return found


def _divided(who: str, what: str, rows: int, tiles: int) -> int:
    if rows % tiles:
        raise UsageError(f"{who}: {what} has {rows} rows, want a multiple of {tiles}, the tiles")
    return rows // tiles


def _handle(array: ArrayView, stream: Any) -> int:
    from pycoll.arrays.interface import LEGACY, handle_of

    return (array.stream() or LEGACY) if stream is None else (handle_of(stream) or LEGACY)


def _refuse_capture(who: str, device: int, on: int) -> None:
    from pycoll.runtime.native import cuda

    if cuda.capturing(device, on)[0] != cuda.NO_CAPTURE:
        raise UsageError(
            f"{who}: the stream is being captured, and a graph would wait for the words of this "
            "one call; want it outside of the capture"
        )


def _behind(device: int, first: int, second: int) -> None:
    """Let what a stream is given from now on come behind what another has been given."""
    from pycoll.runtime.cuda.stream import Event

    Event(device, first).hold_back(second)


@contextlib.contextmanager
def _current(device: int, on: int) -> Iterator[None]:
    """Make a stream the current one of torch and cupy."""
    from pycoll.arrays.interface import LEGACY
    from pycoll.overlap.streams import Queue

    # They know the default stream by 0; torch takes an odd handle for one of its own numbers.
    with contextlib.ExitStack() as stack:
        for entered in made_current(Queue(device, 0, 0 if on == LEGACY else on)):
            stack.enter_context(entered)
        yield


def _new(who: str, like: ArrayView, shape: tuple[int, ...]) -> Any:
    from pycoll.arrays import families
    from pycoll.arrays.interface import INTERFACE

    if like.family is INTERFACE:  # which makes none
        raise UsageError(
            f"{who}: parts is None, and out is a {type(like.owner).__name__}, which makes "
            f"none; want parts, arrays of shape {shape}"
        )
    return families.empty(like, shape).owner


def _given(
    who: str, parts: Any, like: ArrayView, shape: tuple[int, ...], least: int
) -> Sequence[Any]:
    if not isinstance(parts, list | tuple) or len(parts) < least:
        raise UsageError(f"{who}: parts is {quoted(parts)}, want a list of {least} arrays or more")
    seen = [like]
    for number, part in enumerate(parts):
        found = _on_gpu(f"{who}: parts[{number}]", part)
        if found.shape != shape or found.dtype is not like.dtype:
            raise UsageError(
                f"{who}: parts[{number}] has shape {found.shape} of {found.dtype.name}, want "
                f"{shape} of {like.dtype.name}"
            )
        if any(found.overlaps(other) for other in seen):
            raise UsageError(f"{who}: parts[{number}] overlaps out or another part, want it apart")
        seen.append(found)
    return parts
