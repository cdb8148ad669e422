"""A row of messages from rank to rank, at the level of the bindings, every byte of it checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from joined import SECONDS, SLOT_BYTES, finish

from pycoll.algorithms import algorithm
from pycoll.dtypes import UINT8, DType, ReduceOp
from pycoll.program.lower import compile_program
from pycoll.runtime.native import bindings, codes
from pycoll.schedule import Algorithm, ScheduleBuilder, allreduce


@algorithm(allreduce)
def along(b: ScheduleBuilder) -> None:
    """Pass rank 0's array from rank to rank."""
    b.chunks(1)
    if b.rank > 0:
        b.recv(b.output[:], frm=b.rank - 1)
    if b.rank + 1 < b.size:
        b.send(b.output[:], to=b.rank + 1)


def bind(comm: Any, rank: int, size: int, what: Algorithm, nbytes: int, dtype: DType = UINT8,
         tile: int = 1 << 30, slot_bytes: int = SLOT_BYTES) -> Any:  # fmt: skip
    compiled = compile_program(what, size, rank)
    program = bindings.program_load(comm, compiled.to_bytes())
    tile = min(tile, slot_bytes // compiled.widest // 64 * 64)
    return bindings.plan_create(
        comm,
        program,
        None,
        signature=nbytes + 1,
        blocks=[nbytes],
        dtype=dtype.code,
        op=int(ReduceOp.SUM),
        tile=tile,
        stream=False,
    )


def content(number: int, nbytes: int) -> np.ndarray:
    """What message `number` holds; no two of a row look alike."""
    return (np.arange(nbytes) * 7 + number * 13 + (number >> 5)).astype(np.uint8)


class Stream:
    """One end of a row of messages from rank 0 on: which comes next, and where it lies."""

    def __init__(self, comm: Any, rank: int, size: int, lengths: Sequence[int],
                 slot_bytes: int = SLOT_BYTES) -> None:  # fmt: skip
        self.comm, self.rank, self.number = comm, rank, 0
        self.lengths = lengths
        self.plans = {
            n: bind(comm, rank, size, along, n, slot_bytes=slot_bytes) for n in set(lengths)
        }
        self.memory = np.empty(max(lengths) + 64, np.uint8)

    def begin(self) -> int:
        """Send or receive the next message; AGAIN if it has to wait."""
        n, shift = self._next()
        self.memory[:] = 0xA5
        x = self.memory[shift : shift + n]
        if self.rank == 0:
            x[:] = content(self.number, n)
        address = self.memory.ctypes.data + shift
        return self.end(bindings.run(self.comm, self.plans[n], address, address, SECONDS))

    def end(self, code: int) -> int:
        """Look at what came, when it has come."""
        assert code in (0, codes.AGAIN), codes.comm_error(self.comm)
        if code == 0:
            n, shift = self._next()
            assert np.array_equal(self.memory[shift : shift + n], content(self.number, n))
            assert (self.memory[:shift] == 0xA5).all()
            assert (self.memory[shift + n :] == 0xA5).all()
            self.number += 1
        return code

    def resume(self) -> int:
        return self.end(bindings.resume(self.comm, 0.0))

    def rest(self) -> None:
        """Go on with a message that needs nobody else to move: what it waits for is on its way."""
        assert self.end(finish(self.comm, codes.AGAIN)) == 0

    def whole(self) -> None:
        """Send or receive the next message, which needs nobody else to move."""
        if self.begin() == codes.AGAIN:
            self.rest()

    def _next(self) -> tuple[int, int]:
        return self.lengths[self.number % len(self.lengths)], self.number % 5
