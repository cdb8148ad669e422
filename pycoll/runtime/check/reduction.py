"""Reduction: one message of a checked call that folds, which runs a second time.

Programs fold in a fixed order, so the same plan gives the same bits again. What went wrong the
first time differs from the second, also where all ranks have got the same wrong result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycoll.runtime.check.finding import Finding, majority, ranks_text
from pycoll.runtime.check.followed import Block, followed
from pycoll.runtime.check.memory import Message, octets
from pycoll.runtime.plan.geometry import geometry
from pycoll.schedule import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycoll.arrays.view import ArrayView
    from pycoll.runtime.check.exchange import Exchange
    from pycoll.runtime.check.hops import Fit
    from pycoll.runtime.check.memory import Octets, Room
    from pycoll.runtime.dispatch import Dispatcher
    from pycoll.runtime.dispatch import Message as Call

_LONGEST = 8  #: bytes of an element that is folded


class Reduction:
    """One message that is folded.

    Args:
        launch: What runs calls.
        room: Memory of the check's own.
        call: What is run, and on which arrays.
        number: Of the message among those of its call.
        timeout: Seconds that the second run may take.
    """

    def __init__(
        self, launch: Dispatcher, room: Room, call: Call, number: int, timeout: float | None
    ) -> None:
        engine = launch.engine
        self._engine, self._launch, self._room, self._call = engine, launch, room, call
        self._number, self._timeout = number, timeout
        self._rank, self._size = engine.world.rank, engine.world.size
        collective = COLLECTIVES[call.call.collective]
        self._alike = collective.same_bits
        self._blocks = call.call.blocks(self._size)
        self._geometry = geometry(collective, self._rank, self._size, call.call.root)
        self._kept: list[Octets] | None = None
        self._first = Message.of(call.outputs)
        self._second = Message([])
        self._differing: tuple[int, int] | None = None

    def before(self) -> None:
        """Keep the input where the result overwrites it."""
        call = self._call
        if not any(x.overlaps(y) for x in call.inputs for y in call.outputs):
            return
        self._kept = []
        for i, view in enumerate(call.inputs):
            role = f"input {self._number} {i}"
            like = self._room.like(role, view)
            self._kept.append(self._room.plain(role, view.nbytes) if like is None else like)
        Message.of(call.inputs).copy_to(Message(self._kept))

    def after(self) -> list[int]:
        """Run it again; return what this rank tells the others."""
        self._again()
        self._differing = self._first.differing(self._second)
        first, last = self._differing or (-1, -1)
        return [first, last, self._first.checksum() if self._alike else 0]

    def wrong(self, told: Sequence[Sequence[int]]) -> bool:
        """Tell whether the results are wrong, from what all ranks told."""
        alike = len({row[2] for row in told}) == 1
        return not alike or any(row[0] >= 0 for row in told)

    def find(self, exchange: Exchange, told: Sequence[Sequence[int]]) -> Finding | None:
        """Find out where and whose; all ranks do. None: no byte differs any more."""
        holders = list(range(self._size))
        if not self._alike:
            holders = [rank for rank, row in enumerate(told) if row[0] >= 0][:1]
            extent: tuple[int, int] | None = (told[holders[0]][0], told[holders[0]][1])
        else:
            extent = exchange.extent([self._first, self._second])
        if extent is None:
            return None
        item = self._call.call.dtype.itemsize
        at = extent[0] // item * item
        block = holders[0] if len(self._blocks) > 1 else 0
        values = self._values(exchange, at, block)
        return self._judged(holders, block, at, extent, values)

    def _values(
        self, exchange: Exchange, at: int, block: int
    ) -> list[tuple[bytes, bytes, bytes, bool]]:
        """Return the element of each rank's input and two results, and whether all is mapped."""
        item = self._call.call.dtype.itemsize
        begin = sum(self._blocks[:block]) + at
        given = self._input().part(begin, begin + item).to_bytes()
        one, two = (m.part(at, at + item).to_bytes() for m in (self._first, self._second))
        holds = self._engine.heap.holds
        mapped = all(
            holds(view.address, view.nbytes) for view in (*self._call.inputs, *self._call.outputs)
        )
        rows = exchange.texts([given, one, two, bytes([mapped])], _LONGEST)
        return [(x[:item], a[:item], b[:item], bool(m[0])) for x, a, b, m in rows]

    def _judged(
        self,
        holders: list[int],
        block: int,
        at: int,
        extent: tuple[int, int],
        values: list[tuple[bytes, bytes, bytes, bool]],
    ) -> Finding:
        call, item = self._call, self._call.call.dtype.itemsize
        runs = [
            {rank: values[rank][1] for rank in holders},
            {rank: values[rank][2] for rank in holders},
        ]
        inputs: dict[Block, bytes] = {(rank, block): row[0] for rank, row in enumerate(values)}
        direct = all(row[3] for row in values) and not call.packed
        right, fits, unsought = self._followed(direct, at, block, inputs, runs)
        if right is None:
            both = {(run, rank): value for run, by in enumerate(runs) for rank, value in by.items()}
            right = majority(dict(enumerate(both.values())))
        odd = [[rank for rank in holders if by[rank] != right] for by in runs]
        if right is None:
            whose = "which run is right is not known: there is no majority"
            ranks: tuple[int, ...] = () if self._alike else tuple(holders)
        else:
            whose, ranks = self._whose(odd, holders, fits)
        return Finding(
            place=self._place(runs, holders),
            first=extent[0] // item,
            last=extent[1] // item,
            offset=extent[0],
            whose=whose,
            ranks=ranks,
            fits=tuple(fits),
            unsought=unsought,
        )

    def _followed(
        self,
        direct: bool,
        at: int,
        block: int,
        inputs: dict[Block, bytes],
        runs: list[dict[int, bytes]],
    ) -> tuple[bytes | None, list[Fit], str]:
        """Return the right value, and the flips that make it the wrong ones."""
        call, right = self._call, None
        found: dict[Fit, None] = {}
        for by in runs:
            outputs = {(rank, block): value for rank, value in by.items()}
            wanted = call.wanted
            known, fits, unsought = followed(
                self._engine, call.call, wanted, call.plan, direct, at, inputs, outputs
            )
            if unsought:
                return None, [], unsought
            right = next(iter(known.values()))
            if any(value != right for value in by.values()):
                found.update(dict.fromkeys(fits))
        return right, list(found), ""

    @staticmethod
    def _whose(
        odd: list[list[int]], holders: list[int], fits: list[Fit]
    ) -> tuple[str, tuple[int, ...]]:
        """Say which ranks' results are wrong; where all are alike, who could have made them so."""
        said = []
        for ranks, run in zip(odd, ("the call", "its second run"), strict=True):
            if ranks == holders and len(holders) > 1:
                said.append(f"{run} went wrong on all ranks")
            elif ranks:
                said.append(f"{run} went wrong on {ranks_text(ranks)}")
        some = sorted({rank for ranks in odd for rank in ranks if ranks != holders})
        if len(holders) == 1:
            some = holders
        elif not some:
            some = sorted({fit.target for fit in fits if fit.kind in ("message", "fold")})
        return " and ".join(said) or "the arithmetic of the check finds neither wrong", tuple(some)

    def _place(self, runs: list[dict[int, bytes]], holders: list[int]) -> str:
        first, second = (set(by.values()) for by in runs)
        if len(holders) == 1:
            return f"of rank {holders[0]}'s result, and other bits in a second run"
        if len(first) == len(second) == 1:
            return "alike on all ranks, and other bits in a second run"
        return "not alike on all ranks and in a second run"

    def _input(self) -> Message:
        return Message.of(self._call.inputs) if self._kept is None else Message(self._kept)

    # The second run.

    def _again(self) -> None:
        call = self._call
        if call.packed:
            return self._again_packed()
        out = call.outputs[0] if call.outputs else None
        to = None if out is None else self._room.like(f"output {self._number}", out)
        start = _address(call.inputs)
        if self._kept is not None:
            start = self._kept[0].ctypes.data
            holds, x = self._engine.heap.holds, call.inputs[0]
            if holds(x.address, x.nbytes) and not holds(start, x.nbytes):
                to = None  # no room for it in the heap
        if out is not None and to is None:
            return self._again_in_place(out)
        self._run(start, 0 if to is None else to.ctypes.data)
        self._second = Message([] if to is None else [to])

    def _again_in_place(self, out: ArrayView) -> None:
        """Run on the arrays of the user: the heap has no room for others like them."""
        mine = octets(out.address, out.nbytes)
        first = self._room.plain(f"first {self._number}", out.nbytes)
        second = self._room.plain(f"output {self._number}", out.nbytes)
        first[:] = mine
        try:
            if self._kept is not None:
                self._input().copy_to(Message.of(self._call.inputs))
            self._run(_address(self._call.inputs), out.address)
            second[:] = mine
        finally:
            mine[:] = first
        self._second = Message([second])

    def _again_packed(self) -> None:
        """Run as the engine runs a list of short arrays, in the same memory."""
        nbytes = self._first.nbytes
        shared = self._launch.shared(nbytes).view("u1").reshape(-1)[:nbytes]
        self._input().copy_to(Message([shared]))
        self._run(shared.ctypes.data, shared.ctypes.data)
        second = self._room.plain(f"output {self._number}", nbytes)
        second[:] = shared
        self._second = Message([second])

    def _run(self, x: int, out: int) -> None:
        self._engine.waits.call(self._call.plan.handle, x, out, self._timeout)


def _address(views: Sequence[ArrayView]) -> int:
    return views[0].address if views else 0
