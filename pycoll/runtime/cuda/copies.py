"""All-gather and all-to-all by copy engines alone: no multiprocessor takes part.

Each rank has a *window*, memory of its GPU that all others have mapped. A call is enqueued on a
stream: words tell the peers that this rank's output may be written (READY), copies go to their
windows, words behind the copies count them (DONE), and the stream waits for the peers' words.
Copies, words and waits are cuMemcpyAsync, cuStreamWriteValue64 and cuStreamWaitValue64. What
computes with a part waits for its count alone, by `CopyEngine.wait` or in a kernel.

Such a wait knows neither a deadline nor an abort word. So the words lie in host memory, and a
thread of each rank watches what is enqueued: when a call's time is up, a rank is gone, or one has
given up, it stores all words that its streams wait for, and goes on doing so until these have
ended, as a peer's word may still come and undo that. What lies in windows then means nothing, and
the next call, or `check`, raises what happened. Waits that `CopyEngine.wait` has enqueued are
ended so, too, and until it is closed the words are stored again now and then for kernels that
look at them. The thread holds no lock that a call holds inside
the driver: to enqueue may wait for room, which there is when the waits have ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import secrets
import tempfile
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pycoll.arguments import integer
from pycoll.arrays import families
from pycoll.arrays.cuda_array import CudaArray
from pycoll.arrays.interface import handle_of
from pycoll.dtypes import BY_NAME
from pycoll.errors import (
    BrokenError,
    ClosedError,
    CollectiveTimeout,
    MismatchError,
    PeerLostError,
    PycollError,
    UnavailableError,
    UsageError,
    quoted,
)
from pycoll.runtime.cuda.stream import Event
from pycoll.runtime.native import cuda

if TYPE_CHECKING:
    from pycoll.arrays.view import ArrayView

#: Of this process, which opens no handles of its own memory.
_PROCESS = secrets.token_hex(8)
_ALIGNMENT = 256
#: Kinds of words: of each rank for each rank.
_READY, _DONE, _CALL, _KINDS = 0, 1, 2, 3
#: What no call's number reaches, by which waits are ended.
_RELEASED = 1 << 62
#: Seconds between two looks at what is enqueued, and that the words of a rank that left may take.
_PAUSE, _GRACE = 1e-3, 1.0
#: Seconds until words are stored again that end the waits of kernels, after a failure.
_AGAIN = 0.02
MOST_TILES = 4096


class _Hello(NamedTuple):
    """What a rank says when the engine is made."""

    lack: str
    process: tuple[str, int]
    device: int
    window: int
    handle: bytes
    nbytes: int


class Arrived(NamedTuple):
    """Where a kernel sees how much of a rank's part has come."""

    address: int  #: for the GPU, of a count of 64 bits in the host's memory
    base: int  #: the count before the call: tile t has come where it is at least base + t + 1
    tiles: int  #: of the call


def _mapped(fd: int, nbytes: int) -> mmap.mmap:
    """Map a file until `_unmapped`: it stays mapped when Python has no reference any more.

    The address is in what is enqueued on streams. Where it is not known that this has ended, the
    memory must stay until the process ends, as a window does.
    """
    made = mmap.mmap(fd, nbytes)
    # A list of them would be cleared as the interpreter ends, while streams may still run.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made


def _unmapped(made: mmap.mmap) -> None:
    made.close()
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(made))


def _in_part(what: str, error: BaseException) -> BrokenError:
    return BrokenError(f"{what} was enqueued in part: {str(error) or type(error).__name__}")


class _Call:
    """One that is enqueued.

    Args:
        number: Of this rank's calls.
        text: What it is.
        place: Of what, and where to.
        digest: Of all calls so far, as the others' is where they have made the same ones.
        begin: In front of it.
        timeout: Seconds that it may take.
    """

    def __init__(
        self, number: int, text: str, place: str, digest: int, begin: Event, timeout: float
    ) -> None:
        self.number, self.text, self.place, self.timeout = number, text, place, timeout
        self.word = number << 32 | digest
        self.begin = begin
        self.end: Event | None = None  #: until all of it is enqueued
        self.dropped = False  #: the rest of it never will be
        self.until: float | None = None  #: since it has begun

    def ended(self) -> bool:
        """Tell whether nothing of it runs any more."""
        return self.dropped or (self.end is not None and self.end.happened())


class CopyEngine:
    """A communicator's copy engines; `pycoll.overlap.copy_engine` makes it, on all ranks alike.

    Calls are in one order on all ranks, whatever their streams: each comes behind the one before,
    but not behind what else reads or writes its arrays on other streams. Once a call has failed,
    what lies in any rank's window means nothing.
    """

    def __init__(self, comm: Any, nbytes: int) -> None:
        self._size, self._rank = int(comm.size), int(comm.rank)
        self._comm, self.timeout = comm.dup(), float(comm._engine.timeout)
        self.device = int(comm.cuda().device)
        self._dc = comm._collectives.launch.cuda.streams.dc
        self._words: Any = None
        self._map: mmap.mmap | None = None
        self._window = self._at = self._used = 0
        self._peers: list[int] = []  #: where each rank's window is mapped here
        self._opened: list[int] = []
        self._calls: deque[_Call] = deque()
        self._waits: deque[Event] = deque()  #: behind what waits for one tile
        self._turn = threading.Lock()  #: of enqueueing
        self._moved = threading.Condition()  #: of what is enqueued, and of failures
        self._watcher: threading.Thread | None = None
        self._error: PycollError | None = None
        self._number, self._closed = 0, False
        self._loose = False  #: what is enqueued may write to windows and words after the end
        self._unwatched = False  #: a stream may still wait for a word, and nobody knows
        self._digest = 0  #: of what has been called, and where that goes
        self._base = self._tiles = 0  #: the counts before the last call, and what it adds
        self.stream = 0  #: CUDA's handle of its own stream, on which nothing is put by itself
        self._order: Event | None = None
        self.nbytes = -(-nbytes // _ALIGNMENT) * _ALIGNMENT  #: of the window
        try:
            self._meet(self._lack(comm))
            self._connect()
        except BaseException:
            with contextlib.suppress(PycollError):
                self._release()
            self._comm.close()
            raise
        self._dc.copies.append(self)

    # ---- making it: a rank that cannot tells the others before anything is waited for

    def _lack(self, comm: Any) -> str:
        reach = comm.cuda().reach
        far = [r for r, by in enumerate(reach) if r != self._rank and by != "cuda"]
        if far:
            return f"rank {self._rank} does not reach the GPU memory of rank {far[0]}"
        return cuda.memops(self.device)

    def _meet(self, lack: str) -> list[Any]:
        """Raise on every rank what keeps one from it."""
        found: list[str] = self._comm.allgather_object(lack)
        for rank, text in enumerate(found):
            if text:
                raise UnavailableError(f"overlap.copy_engine: {text} (rank {rank})")
        return found

    def _tried(self, step: Callable[[], None]) -> str:
        try:
            step()
        except (PycollError, OSError) as error:
            return str(error) or type(error).__name__
        return ""

    def _connect(self) -> None:
        path = self._share()
        try:
            self._meet(self._tried(lambda: self._open_words(path)))
        finally:
            if self._rank == 0:
                os.unlink(path)
        self._meet(self._tried(self._allocate))
        handle = cuda.ipc_get(self.device, self._window)
        process = _PROCESS, os.getpid()
        mine = _Hello("", process, self.device, self._window, handle, self.nbytes)
        everyone = [_Hello(*said) for said in self._comm.allgather_object(tuple(mine))]
        uneven = {said.nbytes for said in everyone} != {self.nbytes}
        self._meet("ranks ask for windows of different sizes" if uneven else "")
        self._meet(self._tried(lambda: self._open_windows(everyone, process)))

    def _share(self) -> str:
        path = lack = ""
        if self._rank == 0:
            try:
                fd, path = tempfile.mkstemp(prefix="pycoll-copies-", dir="/dev/shm")
                os.ftruncate(fd, self._words_bytes)
                os.close(fd)
            except OSError as error:
                lack = str(error)
        self._meet(lack)
        return str(self._comm.allgather_object(path)[0])

    @property
    def _words_bytes(self) -> int:
        words = _KINDS * self._size**2 + 4 * self._size
        return -(-8 * words // mmap.PAGESIZE) * mmap.PAGESIZE

    def _open_words(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR)
        try:
            self._map = _mapped(fd, self._words_bytes)
        finally:
            os.close(fd)
        self._words = np.frombuffer(self._map, np.uint64)
        host = int(self._words.ctypes.data)
        self._at = cuda.host_register(self.device, host, self._words_bytes)

    def _allocate(self) -> None:
        self._window = cuda.alloc(self.device, self.nbytes)
        self.stream = cuda.stream(self.device, cuda.priorities(self.device)[1])

    def _open_windows(self, everyone: Sequence[_Hello], process: tuple[str, int]) -> None:
        for said in everyone:
            if tuple(said.process) == process:
                cuda.peer(self.device, said.device)
                self._peers.append(said.window)
            else:
                self._peers.append(cuda.ipc_open(self.device, bytes(said.handle)))
                self._opened.append(self._peers[-1])

    # ---- words

    def _index(self, kind: int, of: int, by: int) -> int:
        return (kind * self._size + of) * self._size + by

    def _word(self, kind: int, of: int, by: int) -> int:
        """Return where the GPU finds the word of a rank, which another writes."""
        return self._at + 8 * self._index(kind, of, by)

    def _gave_up(self, rank: int) -> int:
        return _KINDS * self._size**2 + rank

    def _refusals(self, rank: int) -> tuple[int, int]:
        """Return where the numbers of the first and the last call are that a rank was refused.

        Of those that followed each other.
        """
        first = _KINDS * self._size**2 + self._size + 2 * rank
        return first, first + 1

    def _quiet(self, rank: int) -> int:
        """Return where a rank says, after a failure, that it writes to no window any more."""
        return _KINDS * self._size**2 + 3 * self._size + rank

    # ---- calls

    def empty(self, shape: int | tuple[int, ...], dtype: Any = "float32") -> CudaArray:
        """Return an array in the window; all ranks call it alike, in the same order.

        Raises:
            UnavailableError: The window is used up.
            UsageError: The dtype is none of pycoll's.
        """
        self._require_open()
        name = dtype if isinstance(dtype, str) else str(np.dtype(dtype))
        if name not in BY_NAME:
            raise UsageError(f"CopyEngine.empty: dtype is {quoted(dtype)}, want one of pycoll's")
        kind = BY_NAME[name]
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        sizes = tuple(integer("CopyEngine.empty: shape", size, 0) for size in sizes)
        made = CudaArray(self._window + self._used, sizes, kind, self.device, self)
        left = self.nbytes - self._used
        if made.nbytes > left:
            raise UnavailableError(
                f"CopyEngine.empty: {made.nbytes} B are wanted, and {left} B of the window's "
                f"{self.nbytes} B are left"
            )
        self._used += -(-made.nbytes // _ALIGNMENT) * _ALIGNMENT
        return made

    def allgather(self, x: Any, out: CudaArray, stream: Any = None, *, tiles: int = 1) -> CudaArray:
        """Enqueue an all-gather: ``out``, an array of `empty`, becomes every rank's ``x`` in turn.

        Parts go to the own window first, then to the next rank's, and so on round: they come in
        the order of `arrival_order`.

        Args:
            x: This rank's part, on its GPU; it must stay until the call has ended.
            out: As large as all parts together.
            stream: Where; by default the stream that ``x`` is ordered by.
            tiles: In how many copies a part goes to each rank, alike on all ranks: each of as many
                elements, but for the last ones, which are shorter where that does not divide.
                `wait` and `arrived` tell one from another.

        Raises:
            UsageError: ``out`` is no array of `empty`, or of another size or dtype.
            PycollError: What an earlier call has ended with.
        """
        with self.in_step():
            given, into = self._arrays("allgather", x, out)
            if into.nbytes != given.nbytes * self._size:
                raise UsageError(
                    f"CopyEngine.allgather: out has {into.nbytes} B, want {self._size} times the "
                    f"{given.nbytes} B of x"
                )
            own = into.address - self._window + self._rank * given.nbytes
            copies = [(own, given.address)] * self._size
            count = integer("CopyEngine.allgather: tiles", tiles, 1, MOST_TILES)
            each = -(-given.count // count) * given.dtype.itemsize
            cuts = [min(tile * each, given.nbytes) for tile in range(count + 1)]
            self._enqueue("allgather", given, into, copies, cuts, stream)
        return out

    def alltoall(self, x: Any, out: CudaArray, stream: Any = None) -> CudaArray:
        """Enqueue an all-to-all: part p of ``x`` becomes part r of rank p's ``out``, of rank r.

        Args:
            x: As many equal parts as there are ranks; as `allgather` has it.
            out: An array of `empty` of the same size.
            stream: As of `allgather`.

        Raises:
            UsageError: As of `allgather`, or there are no equal parts.
            PycollError: What an earlier call has ended with.
        """
        with self.in_step():
            given, into = self._arrays("alltoall", x, out)
            if into.nbytes != given.nbytes or given.count % self._size:
                raise UsageError(
                    f"CopyEngine.alltoall: x has {given.count} elements and out {into.count}; "
                    f"want as many, and {self._size} equal parts"
                )
            each = given.nbytes // self._size
            own = into.address - self._window + self._rank * each
            copies = [(own, given.address + peer * each) for peer in range(self._size)]
            self._enqueue("alltoall", given, into, copies, [0, each], stream)
        return out

    @contextlib.contextmanager
    def in_step(self) -> Iterator[None]:
        """Have a call that is refused in here take its place among the calls.

        The others may have made theirs, and hear of it; ranks that are all refused stay in step.
        """
        with self._turn:
            before = self._number
        try:
            yield
        except UsageError:
            with self._turn:
                if not self._closed and self._number == before:
                    self._count("refused")
                    first, last = self._refusals(self._rank)
                    if int(self._words[last]) != self._number - 1:
                        self._words[first] = self._number
                    self._words[last] = self._number
            raise

    @property
    def arrival_order(self) -> list[int]:
        """The ranks in the order in which their parts come: this one, and those before it."""
        return [(self._rank - k) % self._size for k in range(self._size)]

    def _count(self, text: str) -> None:
        self._number += 1
        # Of all so far: who looks late at the others' word of it may find that of a later call.
        self._digest = zlib.crc32(text.encode(), self._digest)

    def arrived(self, rank: int) -> Arrived:
        """Return where a kernel sees how many tiles of a rank's part have come, by the last call.

        A kernel that waits there reads the count with acquire semantics at system scope, until it
        is at least ``base + tile + 1``. After a failure it is much more, so that the kernel ends;
        the data mean nothing then, and `check` raises. The kernel must have ended before the engine
        is closed, and runs on another stream than the call, or waits for what is behind it.

        Raises:
            UsageError: There is no such rank, or no call was made yet.
            PycollError: What an earlier call has ended with.
        """
        self.check()
        rank = integer("CopyEngine.arrived: rank", rank, 0, self._size - 1)
        with self._turn:
            base, tiles = self._base, self._tiles
        if not tiles:
            raise UsageError("CopyEngine.arrived: nothing was gathered yet; want a call before it")
        return Arrived(self._word(_DONE, self._rank, rank), base, tiles)

    def wait(self, rank: int, tile: int, stream: Any) -> None:
        """Let a stream wait until a tile of a rank's part has come, by the last call.

        Args:
            rank: Whose part.
            tile: Which one, from 0 on.
            stream: Not the one that the call is on: there it would be behind all of it.

        Raises:
            UsageError: As of `arrived`, there is no such tile, or the stream is being captured.
            PycollError: What an earlier call has ended with.
        """
        at = self.arrived(rank)
        tile = integer("CopyEngine.wait: tile", tile, 0, at.tiles - 1)
        on = handle_of(stream)
        self._refuse_capture("wait", on)
        try:
            cuda.stream_wait64(self.device, on, at.address, at.base + tile + 1)
            behind = Event(self.device, on)
        except BaseException as error:  # what may wait there is not known
            with self._moved:
                self._unwatched = True
                self._fail(_in_part("CopyEngine.wait", error))
                self._moved.notify_all()
            raise
        with self._moved:
            self._waits.append(behind)
            self._watch()

    def _arrays(self, who: str, x: Any, out: Any) -> tuple[ArrayView, ArrayView]:
        self.check()
        given = families.look(x, f"CopyEngine.{who}: x")
        into = families.look(out, f"CopyEngine.{who}: out")
        end = self._window + self.nbytes
        if not (self._window <= into.address and into.address + into.nbytes <= end):
            raise UsageError(f"CopyEngine.{who}: out lies elsewhere, want an array of its empty()")
        if given.dtype is not into.dtype:
            raise UsageError(
                f"CopyEngine.{who}: x is of {given.dtype.name} and out of {into.dtype.name}; want "
                "the same"
            )
        if given.device.number != self.device:
            raise UsageError(f"CopyEngine.{who}: x is on {given.device}, want cuda:{self.device}")
        if given.overlaps(into):
            raise UsageError(f"CopyEngine.{who}: x and out overlap, want them apart")
        return given, into

    def _enqueue(
        self,
        who: str,
        x: ArrayView,
        out: ArrayView,
        copies: list[tuple[int, int]],
        cuts: list[int],
        stream: Any,
    ) -> None:
        """Enqueue a call.

        Args:
            who: Its name.
            x: What is copied.
            out: Where the others' parts come to; at the same place in the windows of all ranks.
            copies: To each rank: where to in its window, and from which address.
            cuts: Bytes at which a part begins, and each tile of it ends.
            stream: Where.
        """
        on = (x.stream() or 1) if stream is None else handle_of(stream)
        self._refuse_capture(who, on)
        tiles = len(cuts) - 1
        with self._turn:
            if self._order is not None:  # the peers count calls as this rank makes them
                self._order.hold_back(on)
            text = f"CopyEngine.{who} of {x.nbytes} B" + (f" in {tiles} tiles" * (tiles > 1))
            place = f" of {x.dtype.name} to byte {out.address - self._window} of the window"
            begin = Event(self.device, on)
            self._count(text + place)
            call = _Call(self._number, text, place, self._digest, begin, self.timeout)
            self._base, self._tiles = self._base + self._tiles, tiles
            with self._moved:
                self._require_open()
                self._raise_known()  # this rank may have said that it writes no more
                self._calls.append(call)
                self._watch()
            try:
                self._fill(call, copies, cuts, on)
                self._order = Event(self.device, on)
                call.end = self._order
            except BaseException as error:  # an interrupt, too: calls without an end hang `close`
                self._drop(call, on, error)
                raise

    def _drop(self, call: _Call, on: int, error: BaseException) -> None:
        """Fail because of a call that is enqueued in part, and will never be as a whole."""
        behind = None
        with contextlib.suppress(PycollError):
            behind = Event(self.device, on)  # what there is of the call ends before this
        with self._moved:
            self._fail(_in_part(call.text, error))
            call.end = behind
            # At once with the error: a watching thread that finds the call gone says that this
            # rank is quiet, unless it is loose.
            call.dropped = behind is None
            self._loose = self._loose or call.dropped
            self._moved.notify_all()

    def _refuse_capture(self, who: str, on: int) -> None:
        if cuda.capturing(self.device, on)[0] != cuda.NO_CAPTURE:
            raise UsageError(
                f"CopyEngine.{who}: the stream is being captured, and a graph would wait for the "
                "words of this one call; want it outside of the capture"
            )

    def _fill(self, call: _Call, copies: list[tuple[int, int]], cuts: list[int], on: int) -> None:
        others = [(self._rank + k) % self._size for k in range(1, self._size)]
        mine, number = self._rank, call.number
        for peer in others:
            cuda.stream_write64(self.device, on, self._word(_CALL, peer, mine), call.word)
            cuda.stream_write64(self.device, on, self._word(_READY, peer, mine), number)
        for peer in [mine, *others]:
            offset, frm = copies[peer]
            done = self._word(_DONE, peer, mine)
            if peer != mine:
                cuda.stream_wait64(self.device, on, self._word(_READY, mine, peer), number)
            for tile, (start, end) in enumerate(itertools.pairwise(cuts)):
                if end > start:
                    to = self._peers[peer] + offset + start
                    cuda.copy(self.device, to, frm + start, end - start, on)
                cuda.stream_write64(self.device, on, done, self._base + tile + 1)
        for peer in others:
            every = self._base + self._tiles
            cuda.stream_wait64(self.device, on, self._word(_DONE, mine, peer), every)

    # ---- watching

    def _watch(self) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._run, name="pycoll copies", daemon=True)
            self._watcher.start()
        self._moved.notify_all()

    def _run(self) -> None:
        while True:
            with self._moved:
                if not (self._calls or self._waits):
                    if self._closed:
                        return
                    self._moved.wait(None if self._error is None else _AGAIN)
                    if self._error is not None and not self._closed:
                        self._release_waits()
                        self._words[self._quiet(self._rank)] = not self._loose
                    continue
                self._look()
                self._moved.notify_all()
            time.sleep(_PAUSE)

    def _look(self) -> None:
        """Look at what is enqueued; end what cannot end by itself."""
        now = time.monotonic()
        try:
            while self._calls and self._calls[0].ended():
                self._compare(self._calls.popleft())
            while self._waits and self._waits[0].happened():
                self._waits.popleft()
            for call in self._calls:
                if call.until is None and call.begin.happened():
                    call.until = now + call.timeout
        except PycollError as error:  # the GPU is lost to this process: nothing runs any more
            self._fail(error)
            self._calls.clear()
            self._waits.clear()
        if self._calls:
            self._judge(self._calls[0], now)
        if self._error is not None:
            self._release_waits()

    def _release_waits(self) -> None:
        """End all that waits for a peer of this rank."""
        for kind in (_READY, _DONE):
            first = self._index(kind, self._rank, 0)
            self._words[first : first + self._size] = _RELEASED

    def _judge(self, call: _Call, now: float) -> None:
        if self._error is not None:
            return
        failure = self._comm._engine.failure
        self._hear()
        self._hear_refused(call)
        if self._error is not None:
            return
        if call.until is not None and now >= call.until:
            self._fail(CollectiveTimeout(f"{call.text} did not finish within {call.timeout:g} s"))
        elif failure.error is not None or failure.departed():
            # What it had enqueued may still come: only then is it missed.
            if call.until is None or call.until - now > _GRACE:
                call.until = now + _GRACE
                call.timeout = _GRACE
            elif call.until - now < _GRACE / 10:
                self._fail(PeerLostError(f"a rank is gone that takes no part in {call.text}"))

    def _hear(self) -> None:
        """Find out whether another rank has given up."""
        for rank in range(self._size):
            if self._words[self._gave_up(rank)] and rank != self._rank:
                self._fail(BrokenError(f"CopyEngine: rank {rank} gave up its copies"))

    def _hear_refused(self, call: _Call) -> None:
        """Find out whether another rank was refused the call that this one waits in."""
        for rank in range(self._size):
            first, last = (int(self._words[at]) for at in self._refusals(rank))
            if rank != self._rank and first <= call.number <= last:
                text = f"rank {rank} was refused a call where this rank made {call.text}"
                self._fail(MismatchError(text))

    def _compare(self, call: _Call) -> None:
        """Find out whether the others made another call of the same number."""
        self._hear_refused(call)
        for peer in range(self._size):
            word = int(self._words[self._index(_CALL, self._rank, peer)])
            if peer != self._rank and word >> 32 == call.number and word != call.word:
                self._fail(
                    MismatchError(
                        f"ranks called different things: rank {self._rank}: {call.text}"
                        f"{call.place}, and rank {peer} another, now or before"
                    )
                )

    def _fail(self, error: PycollError) -> None:
        if self._error is None:
            self._error = error
            if self._words is not None:
                self._words[self._gave_up(self._rank)] = 1

    # ---- its end

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("CopyEngine: it is closed")

    def check(self) -> None:
        """Raise what went wrong with an earlier call, if anything did and is known."""
        self._require_open()
        with self._moved:
            self._hear()
        self._raise_known()

    def _raise_known(self) -> None:
        if self._error is not None:
            raise type(self._error)(str(self._error))

    def synchronize(self) -> None:
        """Wait on the host until every call has ended, and every `wait`.

        Raises:
            PycollError: What one has ended with.
        """
        with self._moved:
            self._settle()
        self.check()

    def _settle(self) -> None:
        while self._calls or self._waits:
            self._moved.wait()

    def close(self) -> None:
        """Wait until every call has ended, and give the memory back; all ranks call it.

        After a failure no rank waits for long for another: what may still be written to stays
        taken, and that is nothing unless the driver does not tell when what was enqueued in part
        has ended, or a rank neither closes nor hears of it.
        """
        if self._closed:
            return
        with self._moved:
            self._settle()
            self._hear()
            self._closed = True  # before anybody enqueues another, which would outlive the words
            self._moved.notify_all()
        try:
            if self._error is not None:
                self._leave()
                return
            try:
                self._free_stream()
                self._comm.barrier()  # what is on its way to any window has come
                self._release()
            except PycollError:
                self._leave()
                raise
        finally:
            self._done()

    def end(self) -> None:
        """Give the memory back as the communicator closes, by which it was not closed."""
        if self._closed:
            return
        with self._moved:
            self._fail(ClosedError("CopyEngine: its communicator was closed"))
            until = time.monotonic() + _GRACE
            while (self._calls or self._waits) and time.monotonic() < until:
                self._moved.wait(_AGAIN)
            self._loose = self._loose or bool(self._calls or self._waits)
            self._closed = True
            self._moved.notify_all()
        self._leave()
        self._done()

    def _done(self) -> None:
        if self in self._dc.copies:
            self._dc.copies.remove(self)
        self._comm.close()

    def _leave(self) -> None:
        """Give back, after a failure, what no other rank touches any more."""
        with contextlib.suppress(PycollError):
            self._free_stream()
        if self._words is None:
            return
        self._release_waits()
        if self._loose:
            return
        self._words[self._quiet(self._rank)] = 1
        until = time.monotonic() + _GRACE
        while not (alone := self._untouched()) and time.monotonic() < until:
            time.sleep(_PAUSE)
        self._release_waits()  # once more: where all are quiet no word of theirs undoes this
        with contextlib.suppress(PycollError):
            self._unmap()
            if alone:
                self._free()

    def _untouched(self) -> bool:
        """Tell whether no other rank will ever write to this one's window."""
        died = self._comm._engine.failure.died
        return all(self._words[self._quiet(rank)] or died(rank) for rank in range(self._size))

    def _free_stream(self) -> None:
        if self.stream:
            cuda.stream_free(self.device, self.stream)
            self.stream = 0

    def _release(self) -> None:
        """Give all back, with the other ranks."""
        self._free_stream()
        self._unmap()
        self._comm.barrier()  # nobody frees what another has mapped
        self._free()

    def _unmap(self) -> None:
        for address in self._opened:
            cuda.ipc_close(self.device, address)
        self._opened.clear()

    def _free(self) -> None:
        if self._window:
            cuda.free(self.device, self._window)
            self._window = 0
        if self._unwatched:
            return
        if self._at:
            cuda.host_unregister(self.device, int(self._words.ctypes.data))
            self._at = 0
        self._words = None
        if self._map is not None:
            _unmapped(self._map)
            self._map = None

    def __enter__(self) -> CopyEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._used} of {self.nbytes} B of its window taken"
        return f"<overlap.CopyEngine of {self._size} ranks: {state}>"
