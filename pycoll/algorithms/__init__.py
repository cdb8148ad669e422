"""The algorithms that pycoll ships; each has no privilege over a user's own."""

from __future__ import annotations

from pycoll.algorithms import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    gather,
    ordered_allreduce,
    ordered_reduce,
    ordered_reduce_scatter,
    plugins,
    reduce,
    reduce_scatter,
    scatter,
)
from pycoll.algorithms.decorator import algorithm
from pycoll.algorithms.hierarchy import hierarchical
from pycoll.errors import UsageError, quoted
from pycoll.schedule import Algorithm

#: Where two are predicted to be equally fast, the first one runs.
BUILTIN: tuple[Algorithm, ...] = (
    allreduce.ring,
    allreduce.recursive_doubling,
    allreduce.halving_doubling,
    allreduce.bruck,
    allreduce.double_binary_tree,
    allreduce.one_shot,
    allreduce.two_shot,
    allreduce.flat_tree,
    allreduce.hierarchical,
    allreduce.hierarchical_doubling,
    allreduce.hierarchical_tree,
    ordered_allreduce.ordered_chain,
    ordered_allreduce.ordered_hierarchical,
    broadcast.binomial,
    broadcast.chain,
    broadcast.double_binary_tree,
    broadcast.scatter_allgather,
    broadcast.two_shot,
    broadcast.direct,
    broadcast.hierarchical,
    broadcast.hierarchical_chain,
    reduce.binomial,
    reduce.chain,
    reduce.double_binary_tree,
    reduce.reduce_scatter_gather,
    reduce.two_shot,
    reduce.direct,
    reduce.hierarchical,
    reduce.hierarchical_chain,
    ordered_reduce.ordered_chain,
    ordered_reduce.ordered_hierarchical,
    allgather.ring,
    allgather.recursive_doubling,
    allgather.bruck,
    allgather.pat,
    allgather.direct,
    allgather.hierarchical,
    reduce_scatter.ring,
    reduce_scatter.recursive_halving,
    reduce_scatter.bruck,
    reduce_scatter.pat,
    reduce_scatter.pairwise,
    reduce_scatter.direct,
    reduce_scatter.hierarchical,
    ordered_reduce_scatter.ordered_hierarchical,
    alltoall.pairwise,
    alltoall.spread,
    alltoall.bruck,
    alltoall.direct,
    gather.binomial,
    gather.direct,
    scatter.binomial,
    scatter.direct,
)

#: That the choice looks at only where the fixed order is asked for: they are for nothing else.
FOR_FIXED_ORDER = frozenset({"ordered_chain", "ordered_hierarchical"})

_NAMED = {(a.collective.name, a.name): a for a in BUILTIN}


def names(collective: str) -> tuple[str, ...]:
    """Return the names of the algorithms for a collective, those of plug-ins last.

    Args:
        collective: Name of the collective.

    Returns:
        The names; none where there is no such collective.

    Raises:
        UsageError: ``collective`` is no text.

    Example:
        >>> pycoll.algorithms.names("scatter")
        ('binomial', 'direct')
    """
    if not isinstance(collective, str):
        raise UsageError(f"collective is {quoted(collective)}, want a name")
    plugged = plugins.load(tuple(_NAMED))
    return tuple(name for of, name in (*_NAMED, *plugged) if of == collective)


def get(name: str, collective: str = "allreduce") -> Algorithm:
    """Return an algorithm by its name.

    Args:
        name: Of a built-in, or of one that a package brings.
        collective: What it computes.

    Returns:
        The Algorithm.

    Raises:
        UsageError: There is none of the name; the text lists those that exist.

    Example:
        >>> pycoll.algorithms.get("ring")
        <pycoll.Algorithm ring for allreduce>
    """
    for what, value in (("algorithm", name), ("collective", collective)):
        if not isinstance(value, str):
            raise UsageError(f"{what} is {quoted(value)}, want a name")
    key = collective, name
    found = _NAMED.get(key) or plugins.load(tuple(_NAMED)).get(key)
    if found is None:
        known = ", ".join(names(collective)) or "none"
        raise UsageError(f"algorithm is {quoted(name)}, want one of {known}")
    return found


__all__ = ["BUILTIN", "Algorithm", "algorithm", "get", "hierarchical", "names"]
