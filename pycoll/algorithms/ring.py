"""All-reduce round a ring."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.schedule import ScheduleBuilder, allreduce


@algorithm(allreduce)
def ring(b: ScheduleBuilder) -> None:
    """Reduce-scatter, then all-gather, round a ring.

    Chunks: size.
    Needs: any size.
    Cost: 2(size - 1) steps; 2(size - 1)/size of the data sent per rank.
    Source: Patarasuk and Yuan, JPDC 69(2), 2009.
    """
    right, left = (b.rank + 1) % b.size, (b.rank - 1) % b.size
    x = b.output  # in place: the input stands in the output
    for k in range(b.size - 1):
        b.send(x[b.rank - k], to=right)
        b.recv_reduce(x[b.rank - k - 1], frm=left)
    for k in range(b.size - 1):
        b.send(x[b.rank + 1 - k], to=right)
        b.recv(x[b.rank - k], frm=left)
