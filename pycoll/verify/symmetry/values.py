"""Values up to a group: an expression tree stands for all trees that the group makes of it.

A value is (node, g): the tree of the node with g applied to every leaf, the leaf of (rank, chunk)
becoming that of (g·rank, g·chunk). The value of rank g·r is g times the value of its representative
r, so that of all ranks only the representatives' need be known.

Two trees have one node if and only if some g brings one to the other. A fold of (a, s) and (b, t)
is s times the fold of a and u·b with u = s⁻¹t, whose node is found by (a, b, u) once that is the
same for all ways to write the same pair:

- folds commute, so the lesser node comes first, and of the two ways to write {a, u·a}, which is u
  times {a, u⁻¹·a}, the one with the lesser u is taken;
- some elements may leave a tree as it is, its *stabiliser*: the whole sum of recursive doubling is
  the same for all ranks. So u counts modulo the stabilisers of both a and b, and what of it is
  owed to that of a goes to s. The fold is left as it is by what leaves both a and b, and where it
  is {a, u·a} and u·u leaves a, by u, which swaps the two.

The g of a value counts modulo the stabiliser of its node and is kept reduced. So equality of
values, as numbers, is equality of trees.
"""

from __future__ import annotations

from collections.abc import Sequence

from pycoll.schedule.collective import Collective
from pycoll.verify.symmetry import runs as sets
from pycoll.verify.symmetry.group import Group, Subgroup
from pycoll.verify.symmetry.runs import Runs
from pycoll.verify.values import WrongValueError, named_ranks


class SymmetricValues:
    """All values of one verification by symmetry; ``node * order + g``, and 0 for nothing.

    Tables are by ``rank * nchunks + chunk`` of the representatives. Node 1 + that is their leaf.
    """

    def __init__(
        self, collective: Collective, group: Group, nchunks: int, *, in_order: bool = False
    ) -> None:
        """Make the table of leaves; ``in_order``: a message keeps the order of its chunks."""
        self.group = group
        self.in_order = in_order
        self.order = group.order
        self.nchunks = nchunks
        self.parts = nchunks // collective.nblocks(group.size)
        self.everyone: Runs = ((0, group.size),)
        self.known: dict[frozenset[int], Runs] = {}
        size, blocks = group.size, collective.nblocks(group.size)
        places = [(rank, block) for rank in range(group.step) for block in range(blocks)]
        before = [self._runs(collective.before(r, b, size)) for r, b in places]
        after = [self._runs(collective.after(r, b, size)) for r, b in places]
        self.before = [ranks for ranks in before for _ in range(self.parts)]
        self.after = [ranks for ranks in after for _ in range(self.parts)]
        self.origin = [
            collective.origin(rank, block, size) * self.parts + part
            for rank, block in places
            for part in range(self.parts)
        ]
        self.node_ranks: list[Runs] = [(), *(b or () for b in self.before)]
        self.node_chunk = [-1, *(c for _ in range(group.step) for c in range(nchunks))]
        self.children: list[tuple[int, ...]] = [()] * len(self.node_chunk)
        self.stabilisers: dict[int, Subgroup] = {}  # of nodes that have more than 0
        self.pairs: dict[tuple[int, int, int], int] = {}
        self.folds: dict[tuple[int, int], int] = {}
        self.unions: dict[tuple[Runs, Runs, int], Runs] = {}
        self.scales: dict[int, int] = {}
        self.scaled: set[int] = set()
        self.same_bits = collective.same_bits
        self.agreed: dict[int, int] = {}  # chunk -> the value that representatives end with

    def _runs(self, ranks: frozenset[int] | None) -> Runs | None:
        if ranks is None:
            return None
        runs = self.known.get(ranks)
        if runs is None:
            runs = self.known[ranks] = sets.of(ranks)
        return runs

    def inputs(self, stride: int) -> list[int]:
        """Return IN of the representatives, ``stride`` places each; 0 where it holds nothing."""
        n, rest = self.nchunks, [0] * (stride - self.nchunks)
        leaves = [0 if b is None else (i + 1) * self.order for i, b in enumerate(self.before)]
        return [v for r in range(self.group.step) for v in (*leaves[r * n : r * n + n], *rest)]

    def chunk(self, value: int) -> int:
        """Return the chunk of the input that a value is of."""
        node, g = divmod(value, self.order)
        return self.group.chunk(g, self.node_chunk[node])

    def ranks(self, value: int) -> Runs:
        """Return whose contributions a value holds."""
        node, g = divmod(value, self.order)
        return self.group.ranks(g, self.node_ranks[node])

    def whole(self, value: int) -> bool:
        """Tell whether a value holds the contributions of all ranks."""
        return self.node_ranks[value // self.order] == self.everyone

    def averaged(self, value: int) -> bool:
        """Tell whether an average has divided a value."""
        return value // self.order in self.scaled

    def names(self, value: int) -> str:
        """Name the ranks whose contributions a value holds, at most six of them."""
        return names(self.ranks(value))

    def difference(self, value: int, place: int) -> str:
        """Say what is wrong with the contributions of a value at a place of OUT; "" if nothing."""
        got, want = self.ranks(value), self.after[place] or ()
        if got == want:
            return ""
        parts = []
        if lacks := sets.without(want, got):
            parts.append(f"lacks the contribution of {names(lacks)}")
        if more := sets.without(got, want):
            parts.append(f"holds a contribution of {names(more)} that it must not")
        return " and ".join(parts)

    def moved(self, values: Sequence[int], g: int, *, by_chunk: bool) -> list[int]:
        """Return g times each of the values; ``by_chunk``: in the order of their chunks."""
        result = [self._value(*divmod(v, self.order), g) for v in values]
        if by_chunk and len(result) > 1 and not self.in_order:
            result.sort(key=self.chunk)
        return result

    def _value(self, node: int, g: int, h: int = 0) -> int:
        if h:
            g = self.group.compose(g, h)
        stabiliser = self.stabilisers.get(node)
        if stabiliser is not None:
            g = self.group.reduce(g, stabiliser)
        return node * self.order + g

    def fold(self, x: int, y: int) -> int:
        """Return ``x op y``; both are of one chunk."""
        key = (x, y) if x < y else (y, x)
        found = self.folds.get(key)
        if found is not None:
            return found
        group = self.group
        (a, s), (b, t) = divmod(x, self.order), divmod(y, self.order)
        if a > b:
            (a, s), (b, t) = (b, t), (a, s)
        u = group.compose(group.inverse(s), t)
        of_a, of_b = self.stabilisers.get(a), self.stabilisers.get(b)
        if of_a is not None or of_b is not None:
            h = group.trivial if of_a is None else of_a
            k = group.trivial if of_b is None else of_b
            least = group.reduce(u, group.join(h, k))
            s = group.compose(s, group.part(group.compose(u, group.inverse(least)), h, k))
            u = least
        if a == b:
            other = group.inverse(u)
            if of_a is not None:
                other = group.reduce(other, of_a)
            if other < u:
                s, u = group.compose(s, u), other
        node = self.pairs.get((a, b, u))
        if node is None:
            node = self.pairs[a, b, u] = self._pair(a, b, u, s)
        self.folds[key] = self._value(node, s)
        return self.folds[key]

    def _pair(self, a: int, b: int, u: int, s: int) -> int:
        """Make the node of {a, u·b}; it is met as s times that."""
        group, mine, theirs = self.group, self.node_ranks[a], self.node_ranks[b]
        both = self.unions.get((mine, theirs, u))
        if both is None:
            other = group.ranks(u, theirs)
            if twice := sets.common(mine, other):
                again = names(group.ranks(s, twice))
                raise WrongValueError(f"folds in the contribution of {again} a second time")
            both = self.unions[mine, theirs, u] = sets.merged([*mine, *other])
        if a in self.scaled or b in self.scaled:
            raise WrongValueError("folds a value that an average has already divided")
        node = self._new((a * self.order, self._value(b, u)), both, self.node_chunk[a])
        h, k = (self.stabilisers.get(n, group.trivial) for n in (a, b))
        kept = group.meet(h, k)
        if a == b and group.reduce(group.compose(u, u), h) == 0:
            kept = group.with_element(kept, u)
        if kept != group.trivial:
            self.stabilisers[node] = kept
        return node

    def scale(self, x: int) -> int:
        """Return ``x / size``."""
        node, g = divmod(x, self.order)
        scaled = self.scales.get(node)
        if scaled is None:
            if missing := sets.without(self.everyone, self.node_ranks[node]):
                lacks = names(self.group.ranks(g, missing))
                raise WrongValueError(f"divides a sum that lacks the contribution of {lacks}")
            if node in self.scaled:
                raise WrongValueError("divides a value that an average has already divided")
            scaled = self._new((node * self.order,), self.node_ranks[node], self.node_chunk[node])
            if node in self.stabilisers:
                self.stabilisers[scaled] = self.stabilisers[node]
            self.scales[node] = scaled
            self.scaled.add(scaled)
        return self._value(scaled, g)

    def _new(self, children: tuple[int, ...], ranks: Runs, chunk: int) -> int:
        self.children.append(children)
        self.node_ranks.append(ranks)
        self.node_chunk.append(chunk)
        return len(self.node_chunk) - 1

    def uneven(self) -> tuple[int, str] | None:
        """Return a chunk that not all ranks end with the same tree of, and why; None: all do.

        Rank g·r ends with g·T(g⁻¹·c) as chunk c, where its representative r ends with T(c). That is
        T(c) for every g if T(g·c) = g·T(c) for the generators.
        """
        for g in self.group.generators:
            for chunk, value in self.agreed.items():
                there, made = self.group.chunk(g, chunk), self.moved([value], g, by_chunk=False)[0]
                if self.agreed.get(there) != made:
                    return there, (
                        f"chunk {there} of OUT is {self.text(self.agreed.get(there, 0))} but on "
                        f"rank {self.group.rank(g, 0)} {self.text(made)}: not the same bits"
                    )
        return None

    def text(self, value: int, depth: int = 4) -> str:
        """Write the tree with ranks as leaves, at most ``depth`` levels of it."""
        node, g = divmod(value, self.order)
        children = self.children[node]
        if not children:
            return str(self.group.rank(g, (node - 1) // self.nchunks))
        if depth == 0:
            return "..."
        children = tuple(self.moved(children, g, by_chunk=False))
        if len(children) == 1:
            return f"{self.text(children[0], depth)}/size"
        return "(" + "+".join(self.text(c, depth - 1) for c in children) + ")"


def names(ranks: Runs) -> str:
    """Name the ranks of a set, at most six of them."""
    first = [r for start, stop in ranks[:7] for r in range(start, min(stop, start + 7))]
    return named_ranks(first[:7])
