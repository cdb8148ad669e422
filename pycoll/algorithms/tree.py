"""Binary trees over ranks, and the two that together use every rank's links fully."""

from __future__ import annotations


def neighbours(v: int, size: int) -> tuple[list[int], list[int]]:
    """Return the parent (none for 0) and the children of v in the in-order binary tree."""
    if v == 0:
        return [], [1 << ((size - 1).bit_length() - 1)] if size > 1 else []
    low = v & -v  # half the width of v's subtree; odd ranks are leaves
    parent = (v ^ low) | (low << 1)
    left, right = low >> 1, low >> 1
    while v + right >= size:
        right >>= 1  # the right subtree is cut off by size: its root moves left
    return [parent if parent < size else v ^ low], [v + d for d in (-left, right) if d]


def rooted(tree: int, rank: int, size: int) -> tuple[list[int], list[int]]:
    """Return the parent and the children of ``rank`` in one of two trees that rank 0 feeds.

    Ranks from 1 on are inner ones in at most one of the trees.
    """
    if size % 2:
        to = [0, *range(size - 1, 0, -1)]  # the second tree is the first one mirrored
        back = to
    else:
        to = [0, *range(2, size), 1]  # shifted by one
        back = [0, size - 1, *range(1, size - 1)]
    if tree == 0:
        return neighbours(rank, size)
    parent, children = neighbours(to[rank], size)
    return [back[v] for v in parent], [back[v] for v in children]
