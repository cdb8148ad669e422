"""Flips of one bit that are planted into calls of a job, to see whether a check finds them.

Where: in a slot of shared memory, on the wire, in the result of one rank. All ranks of a job plant
from the same seed, so they agree on who does it; the one that did knows what was flipped.

    flips.py wire SIZE SEED COUNT    # a job of its own, as the library that flips is preloaded
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE.parent / "faults")]

import compiled  # noqa: E402
import numpy as np  # noqa: E402

import pycoll  # noqa: E402
from pycoll.runtime.check.memory import octets  # noqa: E402
from pycoll.runtime.check.moved import Moved, Pairs  # noqa: E402
from pycoll.runtime.check.reduction import Reduction  # noqa: E402

ELEMENTS = 960  #: of a block: more than a line has, less than waits for all ranks first
SECONDS = 60.0  #: until a call fails; reached only by a hang
REDUCING = ("allreduce", "reduce", "reduce_scatter")
#: Bits of a float64 that matter to any sum of such that are about as large.
BITS = range(40, 63)
_CHANNELS, _SEEN = 4, 4096  #: of an edge; bytes of a slot that are looked at
_LEAST = 96  #: words of a message of a call; those of a check are shorter
#: Algorithms some of whose ranks send before they are sent anything; rank 0 is not of these.
_LEAVES = ("flat_tree", "recursive_doubling", "recursive_halving", "halving_doubling")
_STABLE = 0.03  #: seconds without a change after which a late rank is waited for


class Flip(NamedTuple):
    """What was planted."""

    source: int  #: the rank that sent it; of a result, whose it is
    target: int
    bit: int


class Told(NamedTuple):
    """How a call ended on one rank."""

    found: bool
    ranks: tuple[int, ...] = ()
    hops: tuple[tuple[int, int, int], ...] = ()
    text: str = ""
    flip: Flip | None = None  #: on the rank that planted one


def call(
    comm: pycoll.Communicator, collective: str, algorithm: str | None, root: int, seed: int
) -> Any:
    """Make a call on random data."""
    rng = np.random.default_rng([comm.rank, seed])
    method = getattr(comm, collective)
    options = {"root": root} if collective in ("broadcast", "reduce", "gather", "scatter") else {}
    blocks = comm.size if collective in ("reduce_scatter", "alltoall", "scatter") else 1
    x = rng.normal(size=ELEMENTS * blocks)
    if collective == "alltoallv":
        out, counts = np.empty(ELEMENTS * comm.size), [ELEMENTS] * comm.size
        return method(rng.normal(size=out.size), counts, out, counts)
    if collective == "scatter" and comm.rank != root:
        return method(None, np.empty(ELEMENTS), algorithm=algorithm, **options)
    return method(x, algorithm=algorithm, **options)


def told(make: Callable[[], Any], flip: Callable[[], Flip | None] = lambda: None) -> Told:
    """Make a call; say whether it was found wrong, and what was flipped."""
    try:
        make()
    except pycoll.CorruptionError as error:
        return Told(True, error.ranks, error.hops, str(error), flip())
    return Told(False, flip=flip())


# In the result of one rank, when the call has ended.


@contextmanager
def in_result(victim: bool, bit: int, rng: random.Random) -> Iterator[None]:
    """Flip a bit of the result of the calls inside, before it is looked at."""
    kinds = (Reduction, Moved, Pairs)
    before = [kind.after for kind in kinds]

    def after(self: Any, real: Any) -> Any:
        if isinstance(self, Pairs):
            pieces = [piece for one in self._got for piece in one.pieces if piece.nbytes]
        else:
            pieces = (self._first if isinstance(self, Reduction) else self._got).pieces
        words = pieces[-1].view("u8")
        words[rng.randrange(words.size)] ^= np.uint64(1 << bit)
        return real(self)

    if victim:
        for kind, real in zip(kinds, before, strict=True):
            kind.after = functools.partialmethod(after, real)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind, real in zip(kinds, before, strict=True):
            kind.after = real  # type: ignore[method-assign]


# In shared memory.


@functools.cache
def _arena_library() -> ctypes.CDLL:
    compiled.require()
    unit = compiled.Unit(HERE / "arena.c", (*compiled.C, "-O1", "-fPIC"))
    library = ctypes.CDLL(str(compiled.linked("libarena.so", [unit], "-shared")))
    library.flips_slot.restype = ctypes.c_size_t
    library.flips_slot.argtypes = [ctypes.c_void_p, *[ctypes.c_uint32] * 4]
    return library


def slots(rank: int, size: int) -> Iterator[tuple[int, Any]]:
    """Yield each slot of this rank's arena: the peer whose it is, and its first words."""
    where = _arena_library().flips_slot
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, _, rest = line.partition("-")
        offset = rest.split()[2]
        if "memfd:pycoll" not in rest or int(offset, 16):
            continue
        arena = int(begin, 16)
        for peer in range(size):
            for channel in range(_CHANNELS):
                for slot in range(64):
                    at = where(arena, rank, peer, channel, slot)
                    if at == 0:
                        break
                    if peer != rank:
                        yield peer, octets(arena + at, _SEEN).view("u8")


class Late:
    """A rank that comes late, and meanwhile flips a bit of what its peers have sent it."""

    def __init__(self, comm: pycoll.Communicator, bit: int, rng: random.Random) -> None:
        self.bit, self.rng = bit, rng
        self.rank = comm.rank
        self.slots = list(slots(comm.rank, comm.size))
        self.before = [words.copy() for _, words in self.slots]
        self.flip: Flip | None = None

    def _changed(self) -> list[tuple[int, int]]:
        found = []
        for i, (_, words) in enumerate(self.slots):
            places = (words != self.before[i]).nonzero()[0]
            if places.size >= _LEAST:
                found += [(i, int(word)) for word in places]
        return found

    def plant(self, seconds: float) -> None:
        """Wait until the peers have sent what they can, and flip a bit of it."""
        until, seen, since = time.monotonic() + seconds, self._changed(), time.monotonic()
        while time.monotonic() < until and not (seen and time.monotonic() - since > _STABLE):
            time.sleep(0.002)
            now = self._changed()
            if now != seen:
                seen, since = now, time.monotonic()
        if not seen:
            return
        edge = self.rng.choice(sorted({self.slots[i][0] for i, _ in seen}))
        i, word = self.rng.choice([one for one in seen if self.slots[one[0]][0] == edge])
        self.slots[i][1][word] ^= np.uint64(1 << self.bit)
        self.flip = Flip(edge, self.rank, self.bit)


# On the wire.


def wire() -> ctypes.CDLL:
    """Return the library that flips, which is preloaded."""
    return ctypes.CDLL(None)


def wire_library() -> Path:
    """Build it."""
    compiled.require()
    unit = compiled.Unit(HERE / "wire.c", (*compiled.C, "-O1", "-fPIC"))
    return compiled.linked("libwire.so", [unit], "-shared")


def _sockets() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if one.family == socket.AF_INET:
                        yield int(name), str(one.getsockname())
        except OSError:
            continue


def _peer(fd: int, addresses: list[list[str]]) -> int:
    """Return the rank at the other end of a socket."""
    with socket.socket(fileno=os.dup(fd)) as one:
        there = str(one.getpeername())
    return next(rank for rank, theirs in enumerate(addresses) if there in theirs)


# Stories.


class Story(NamedTuple):
    """A flip, and the call that it is planted in; the same on all ranks."""

    place: str  #: "result", "slot" or "wire"
    collective: str
    algorithm: str | None
    victim: int
    root: int
    bit: int
    send: int  #: on the wire: which of the large sends

    @classmethod
    def of(
        cls, rng: random.Random, place: str, collective: str, algorithm: str | None, size: int
    ) -> Story:
        root = rng.randrange(size)
        other = (root + 1 + rng.randrange(size - 1)) % size
        victim = rng.randrange(size)
        if collective in ("reduce", "gather"):
            victim = other if place == "wire" else root
        elif collective in ("broadcast", "scatter"):
            victim = root if place == "wire" else other
        elif place == "slot" and algorithm in _LEAVES:
            victim = 0
        elif place == "slot" and algorithm == "ordered_chain":
            victim = size - 1  # rank 0 sends first
        send = 1 + (rng.randrange(2) if collective in REDUCING else 0)  # it may run twice
        return cls(place, collective, algorithm, victim, root, rng.choice(BITS), send)


def live(comm: pycoll.Communicator, story: Story, rng: random.Random, wait: float = 2.0) -> Told:
    """Make the call of a story, and plant its flip if it is this rank's."""
    mine = comm.rank == story.victim

    seed = rng.randrange(1 << 30)

    def make(seed: int = seed) -> Any:
        return call(comm, story.collective, story.algorithm, story.root, seed)

    if story.place == "result":
        with in_result(mine, story.bit, rng):
            flip = Flip(comm.rank, comm.rank, story.bit) if mine else None
            return told(make, lambda: flip)
    if story.place == "slot":
        make(seed + 1)  # its plan is made, and known
        late = Late(comm, story.bit, rng) if mine else None
        comm.barrier()
        if late is not None:
            late.plant(wait)
        return told(make, lambda: late.flip if late else None)
    make(seed + 1)  # ranks are connected
    said = comm.allgather_object([address for _, address in _sockets()])
    if mine:
        bit = 64 * rng.randrange(ELEMENTS) + story.bit
        wire().flips_arm(story.send, ctypes.c_size_t(8 * _LEAST), ctypes.c_size_t(bit))

    def flip() -> Flip | None:
        fd = wire().flips_done() if mine else -1
        return None if fd < 0 else Flip(comm.rank, _peer(fd, said), story.bit)

    found = told(make, flip)
    if mine:
        wire().flips_arm(0, ctypes.c_size_t(0), ctypes.c_size_t(0))
    return found


def life(stories: list[Story], seed: int, apart: bool = False) -> list[Told]:
    """Be a rank of a job in which stories happen one after the other."""
    import warnings

    warnings.simplefilter("ignore")  # objects are not checked
    os.environ["PYCOLL_CHECK"] = "1"
    if apart:
        from test_survivors import apart as separate

        separate("abcdefgh")
    with pycoll.init(timeout=SECONDS) as comm:
        return [live(comm, story, random.Random(f"{seed} {i}")) for i, story in enumerate(stories)]


def named(story: Story, ends: list[Told]) -> bool:
    """Tell whether the rank, or the hop, of a flip that was found is named on every rank."""
    flip = next(end.flip for end in ends if end.flip is not None)
    if story.place == "result":
        return all(flip.source in end.ranks for end in ends)
    return all(tuple(flip) in end.hops for end in ends)


def run(stories: list[Story], size: int, seed: int) -> list[list[Told]]:
    """Run a job; return how each call ended, on each rank."""
    if stories[0].place != "wire":
        ranks = pycoll.spawn(life, size, stories, seed, timeout=10 * SECONDS)
    else:
        command = [
            sys.executable,
            str(HERE / "flips.py"),
            json.dumps(stories),
            str(size),
            str(seed),
        ]
        environment = {**os.environ, "LD_PRELOAD": str(wire_library())}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        ranks = [[_read(one) for one in rank] for rank in json.loads(done.stdout)]
    return [list(ends) for ends in zip(*ranks, strict=True)]


def _read(said: list[Any]) -> Told:
    found, ranks, hops, text, flip = said
    hops = tuple(tuple(hop) for hop in hops)
    return Told(found, tuple(ranks), hops, text, None if flip is None else Flip(*flip))


if __name__ == "__main__":
    given, count, begin = sys.argv[1:]
    wanted = [Story(*story) for story in json.loads(given)]
    print(
        json.dumps(pycoll.spawn(life, int(count), wanted, int(begin), True, timeout=10 * SECONDS))
    )
