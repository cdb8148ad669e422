"""Symbolic values: hash-consed expression trees, so that equality is identity.

The children of a fold are ordered, because every reduction is commutative; it is not
associative in floating point, so two trees that differ may give different bits. The multiset of
contributions is derived from the tree; as each may occur once only, it is a set of ranks, kept
as the bits of an integer.
"""

from __future__ import annotations

from collections.abc import Iterator

from pycoll.schedule.collective import Collective, Rule


class WrongValueError(Exception):
    """A fold or a scale that no correct collective does; the run adds the place."""


class Values:
    """All values of one verification; 0 stands for memory that was never written.

    Tables are by ``rank * nchunks + chunk``. The leaf of (rank, chunk) is one more than that, so
    a range of chunks of one rank's input is a range of values.
    """

    def __init__(self, collective: Collective, size: int, nchunks: int) -> None:
        self.size = size
        self.nchunks = nchunks
        self.parts = nchunks // collective.nblocks(size)
        self.everyone = (1 << size) - 1
        self.before = self._table(collective.before)
        self.after = self._table(collective.after)  #: contributions that OUT must hold
        self.origin = self._origins(collective)  #: chunk of the contributors that OUT must hold
        self.ranks = [0, *(b or 0 for b in self.before)]
        self.chunks = [-1, *(c for _ in range(size) for c in range(nchunks))]
        self.children: list[tuple[int, ...]] = [()] * len(self.ranks)
        self.folds: dict[tuple[int, int], int] = {}
        self.scales: dict[int, int] = {}
        self.scaled: set[int] = set()
        self.same_bits = collective.same_bits
        self.agreed: dict[int, int] = {}  # chunk -> the value that the first rank ends with

    def _table(self, rule: Rule) -> list[int | None]:
        """Evaluate a rule for every rank and chunk, sets as bits."""
        bits: dict[frozenset[int], int] = {}
        table: list[int | None] = []
        for rank in range(self.size):
            for block in range(self.nchunks // self.parts):
                ranks = rule(rank, block, self.size)
                if ranks is not None and ranks not in bits:
                    bits[ranks] = sum(1 << r for r in ranks)
                table += [None if ranks is None else bits[ranks]] * self.parts
        return table

    def _origins(self, collective: Collective) -> list[int]:
        """Return the chunk whose value is promised in every place of OUT."""
        parts, table = self.parts, list[int]()
        for rank in range(self.size):
            for block in range(self.nchunks // parts):
                first = collective.origin(rank, block, self.size) * parts
                table += range(first, first + parts)
        return table

    def leaf(self, rank: int, chunk: int) -> int:
        """Return the value of ``chunk`` of ``rank``'s input."""
        return 1 + rank * self.nchunks + chunk

    def inputs(self, stride: int) -> list[int]:
        """Return IN of all ranks, ``stride`` places each; 0 where it holds nothing."""
        n, rest = self.nchunks, [0] * (stride - self.nchunks)
        leaves = [0 if b is None else i + 1 for i, b in enumerate(self.before)]
        return [v for r in range(self.size) for v in (*leaves[r * n : r * n + n], *rest)]

    def fold(self, a: int, b: int) -> int:
        """Return ``a op b``; both are of one chunk."""
        key = (a, b) if a < b else (b, a)
        node = self.folds.get(key)
        if node is not None:
            return node
        twice = self.ranks[a] & self.ranks[b]
        if twice:
            raise WrongValueError(f"folds in the contribution of {rank_names(twice)} a second time")
        if a in self.scaled or b in self.scaled:
            raise WrongValueError("folds a value that an average has already divided")
        node = self.folds[key] = self._new(key, self.ranks[a] | self.ranks[b], self.chunks[a])
        return node

    def scale(self, a: int) -> int:
        """Return ``a / size``."""
        node = self.scales.get(a)
        if node is not None:
            return node
        missing = self.everyone & ~self.ranks[a]
        if missing:
            lacks = rank_names(missing)
            raise WrongValueError(f"divides a sum that lacks the contribution of {lacks}")
        if a in self.scaled:
            raise WrongValueError("divides a value that an average has already divided")
        node = self.scales[a] = self._new((a,), self.ranks[a], self.chunks[a])
        self.scaled.add(node)
        return node

    def _new(self, children: tuple[int, ...], ranks: int, chunk: int) -> int:
        self.children.append(children)
        self.ranks.append(ranks)
        self.chunks.append(chunk)
        return len(self.ranks) - 1

    def chunk(self, value: int) -> int:
        """Return the chunk of the input that a value is of."""
        return self.chunks[value]

    def whole(self, value: int) -> bool:
        """Tell whether a value holds the contributions of all ranks."""
        return self.ranks[value] == self.everyone

    def averaged(self, value: int) -> bool:
        """Tell whether an average has divided a value."""
        return value in self.scaled

    def names(self, value: int) -> str:
        """Name the ranks whose contributions a value holds, at most six of them."""
        return rank_names(self.ranks[value])

    def difference(self, value: int, place: int) -> str:
        """Say what is wrong with the contributions of a value at a place of OUT; "" if nothing."""
        return differing(self.ranks[value], self.after[place] or 0)

    def uneven(self) -> tuple[int, str] | None:
        """Return None: `agreed` was compared with what every rank ends with."""
        return None

    def text(self, value: int, depth: int = 4) -> str:
        """Write the tree with ranks as leaves, at most ``depth`` levels of it."""
        children = self.children[value]
        if not children:
            return str((value - 1) // self.nchunks)
        if depth == 0:
            return "..."
        if len(children) == 1:
            return f"{self.text(children[0], depth)}/size"
        return "(" + "+".join(self.text(c, depth - 1) for c in children) + ")"


def differing(got: int, want: int) -> str:
    """Say in what two sets of contributions differ; "" if they do not."""
    parts = []
    if want & ~got:
        parts.append(f"lacks the contribution of {rank_names(want & ~got)}")
    if got & ~want:
        parts.append(f"holds a contribution of {rank_names(got & ~want)} that it must not")
    return " and ".join(parts)


def rank_names(bits: int) -> str:
    """Name the ranks of a set of contributions, at most six of them."""
    return named_ranks(list(members(bits)))


def named_ranks(ranks: list[int]) -> str:
    """Name ranks, at most six of them."""
    names = ", ".join(map(str, ranks[:6])) + (", ..." if len(ranks) > 6 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"


def members(bits: int) -> Iterator[int]:
    """Yield the ranks of a set of contributions, ascending."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
