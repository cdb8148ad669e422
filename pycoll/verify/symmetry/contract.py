"""Whether a collective promises the same after its ranks have changed places."""

from __future__ import annotations

from pycoll.schedule.collective import Collective, allgather, allreduce, alltoall, reduce_scatter
from pycoll.verify.symmetry.group import Group

#: Of these it is known for any permutation of the ranks that moves their blocks alike: what they
#: promise at (rank, block) is told by the rank, by the block's owner and by whether these are one.
KNOWN = (allreduce, allgather, reduce_scatter, alltoall)
MOST = 1 << 16  #: pairs of rank and block up to which the rules of others are evaluated


def invariant(collective: Collective, group: Group, nchunks: int) -> bool:
    """Tell whether ``group`` leaves before, after and origin of every rank and chunk as they are.

    The chunks of a message in one block all have the same promise, so they may move in any way;
    where each rank has a block, blocks must move as the ranks do.
    """
    blocks = collective.nblocks(group.size)
    if group.unit and nchunks % (group.unit * group.order):
        return False  # some chunks would move to where there are none
    if blocks > 1 and group.unit != group.step * (nchunks // blocks):
        return False
    if collective.equal_blocks != group.equal_blocks:
        return False
    if collective.reduces and collective.equal_blocks:
        return False  # a fold of two chunks in one place has no number of its own
    if collective in KNOWN:
        return True
    if collective.rooted or collective.same_bits or group.size * blocks > MOST:
        return False
    return evaluated(collective, group)


def evaluated(collective: Collective, group: Group) -> bool:
    """Evaluate the rules at every rank and block, and at their images under each generator."""
    size = group.size
    blocks = collective.nblocks(size)
    for g in group.generators:
        to = [group.rank(g, rank) for rank in range(size)]
        for rank in range(size):
            for block in range(blocks):
                there = to[block] if blocks > 1 else block
                for rule in (collective.before, collective.after):
                    here = rule(rank, block, size)
                    image = None if here is None else frozenset(to[r] for r in here)
                    if rule(to[rank], there, size) != image:
                        return False
                origin = collective.origin(rank, block, size)
                image_of = to[origin] if blocks > 1 else origin
                if collective.origin(to[rank], there, size) != image_of:
                    return False
    return True
