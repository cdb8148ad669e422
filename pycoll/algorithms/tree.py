"""All-reduce up and down two binary trees."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.schedule import ScheduleBuilder, allreduce


@algorithm(allreduce)
def double_binary_tree(b: ScheduleBuilder) -> None:
    """Reduce each half up its own tree and send it down again; up and down tiles overlap.

    Chunks: 2, one a tree; inner ranks of one tree are leaves of the other.
    Needs: any size.
    Cost: at most 2ceil(log2(size)) steps; at most 2 of the data sent per rank.
    Source: Sanders, Speck and Träff, Parallel Computing 35(12), 2009.
    """
    b.chunks(2)
    for tree in range(2):
        # The second tree is the first one mirrored or, for odd sizes, shifted by one.
        flip = -1 if tree and b.size % 2 == 0 else 1
        parent, children = _neighbours((flip * b.rank - tree) % b.size, b.size)
        above = [flip * (v + tree) % b.size for v in parent]
        below = [flip * (v + tree) % b.size for v in children]
        x = b.output[tree]
        with b.channel(2 * tree):
            b.recv_reduce(x, frm=[b.rank, *below])
            for peer in above:
                b.send(x, to=peer)
        with b.channel(2 * tree + 1):
            for peer in above:
                b.recv(x, frm=peer)
            for peer in below:
                b.send(x, to=peer)


def _neighbours(v: int, size: int) -> tuple[list[int], list[int]]:
    """Return the parent (none for 0) and the children of v in the in-order binary tree."""
    if v == 0:
        return [], [1 << ((size - 1).bit_length() - 1)] if size > 1 else []
    low = v & -v  # half the width of v's subtree; odd ranks are leaves
    parent = (v ^ low) | (low << 1)
    left, right = low >> 1, low >> 1
    while v + right >= size:
        right >>= 1  # the right subtree is cut off by size: its root moves left
    return [parent if parent < size else v ^ low], [v + d for d in (-left, right) if d]
