"""Kernel: what steps cost where a call is a kernel on a GPU, counted by reading its source.

None of the constants is fitted. `native/vm/interpreter.h` and `native/gpu/kernel/` say which
instructions a step takes, published figures of an H100 what they cost; decision 14 has the
arithmetic for an all-reduce of 8 B, and what an H200 showed of it: long calls take what is
predicted, but for trees; an instruction takes several times `_INSTRUCTION`, so short calls take
longer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

_CYCLE = 1 / 1.7e9  #: of an H100's clock under load
#: Cycles of one instruction of a thread: 4 where it needs what the one before it made, else fewer.
_INSTRUCTION = 3
_SHARED = 30  #: cycles of a load from shared memory, where a Program's code and operands lie
_BARRIER = 50  #: of 256 threads
_L2 = 250  #: a load of what a peer has written, or of an array


def seconds_of(instructions: int, shared: int = 0, barriers: int = 0, l2: int = 0) -> float:
    """Return what a thread takes for so many of each."""
    cycles = _INSTRUCTION * instructions + _SHARED * shared + _BARRIER * barriers + _L2 * l2
    return cycles * _CYCLE


BARRIER = seconds_of(0, barriers=1)
#: A REDUCE_COPY besides its data: the addresses, and a barrier behind them.
MOVE = seconds_of(80, shared=6) + BARRIER
#: A release of system scope waits for all stores before it, also those over NVLink.
FENCE = 0.5e-6


class Protocol(NamedTuple):
    """What messages cost that are sent in one way.

    ``send`` and ``receive`` are the leader's steps for each message; ``depart`` is what those that
    an operation sends take together; ``move`` is what a REDUCE_COPY takes besides its data. Of that
    a block has ``window`` bytes of an operand on their way in each ``flight``.
    """

    send: float
    receive: float
    depart: float
    move: float
    window: int
    flight: float
    together: int  #: operands whose data is on its way together
    wire: float  #: bytes on the link for each of data


#: Packets (LL): nothing waits, a message costs the leader's steps. To send: WAIT, 20 instructions,
#: and FILL, 10: its packets say themselves that they are there. To receive: CONSUME, 30 and the
#: credit's store. A REDUCE_COPY is 80 and a barrier behind the addresses. Each of 256 threads has a
#: packet on its way, 12 bytes of data and 4 of flag, or of three sources and more one of each, up
#: to eight.
LL = Protocol(
    send=seconds_of(20 + 10, shared=2),
    receive=seconds_of(30, shared=1),
    depart=0.0,
    move=MOVE,
    window=256 * 12,
    flight=seconds_of(0, l2=1),
    together=8,
    wire=4 / 3,
)
#: Slots (NCCL: Simple): a REDUCE_COPY has a second barrier, behind its data, before the counts that
#: say that messages are there, or were read. All that it sends goes behind one fence, and the
#: receiver acquires each count. 32 KiB are on their way from memory, of two sources together: 45
#: GB/s.
SIMPLE = Protocol(
    send=seconds_of(20 + 30, shared=2),
    receive=seconds_of(20 + 30, shared=2, l2=1),
    depart=FENCE,
    move=MOVE + BARRIER,
    window=32 << 10,
    flight=0.7e-6,
    together=2,
    wire=1.0,
)

#: As native/gpu/device_plan.c divides a call: of one of up to so many bytes messages are packets,
#: and it has a block for each `LL_BLOCK_BYTES`; a longer one has a block for each `BLOCK_BYTES`.
#: Blocks are instances of all channels.
LL_BYTES = 64 << 10
LL_BLOCK_BYTES = 3 << 10
BLOCK_BYTES = 16 << 10
MOST_BLOCKS = 32


class Kernel(NamedTuple):
    """What limits a kernel besides its instructions, in bytes per second."""

    link: float = 400e9  #: NVLink of one GPU, each way
    memory: float = 3e12  #: read and written

    def shape(self, nbytes: int, channels: int, whole: bool) -> tuple[Protocol, int]:
        """Return how messages are sent, and the instances of each channel.

        Args:
            nbytes: Of the call.
            channels: Of the algorithm.
            whole: All ranks reach each other's GPU memory; else there is one instance.
        """
        if not whole:
            return SIMPLE, 1
        channels = max(1, channels)
        packets = nbytes <= LL_BYTES
        each = channels * (LL_BLOCK_BYTES if packets else BLOCK_BYTES)
        instances = max(1, min(math.ceil(nbytes / each), MOST_BLOCKS // channels))
        return LL if packets else SIMPLE, instances
