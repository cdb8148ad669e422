"""Groups: in which ways the ranks of a job can change places, and the chunks with them.

The elements of a group are the integers below its order. Blocks of ``step`` ranks, such as nodes,
change places as wholes: rank x of block q goes to rank x of block q·g. So no element but 0 leaves
any rank where it is, and the ranks below ``step`` represent all others: *class* x is rank x of
every block. Chunks move likewise in blocks of ``unit``, within windows of ``order`` blocks each;
a ``unit`` of 0 leaves every chunk where it is.

A subgroup is whatever `trivial`, `with_element` and `meet` return: a divisor of the order that
generates it for a rotation, a basis in echelon form for XOR.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import gcd, lcm
from typing import TYPE_CHECKING, Any, TypeVar

from pycoll.errors import UsageError
from pycoll.verify.symmetry.runs import Runs, merged

if TYPE_CHECKING:
    import numpy.typing as npt

Subgroup = Any
Number = TypeVar("Number", int, "npt.NDArray[Any]")  #: or many at once


@dataclass(frozen=True)
class Group(ABC):
    """An abelian group that acts on ranks and on chunks."""

    order: int
    step: int  #: ranks of a block
    unit: int  #: chunks of a block; 0: chunks stay
    equal_blocks: bool = False  #: a chunk may lie in the place of any other

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.order * self.step

    def element(self, rank: int) -> int:
        """Return the element that brings the representative of ``rank`` to it."""
        return rank // self.step

    def rank(self, g: int, rank: Number) -> Number:
        """Return where an element brings a rank."""
        return self._move(g, rank, self.step)

    def chunk(self, g: int, chunk: Number) -> Number:
        """Return where an element brings a chunk."""
        return self._move(g, chunk, self.unit)

    def ranks(self, g: int, runs: Runs) -> Runs:
        """Return where an element brings a set of ranks."""
        return merged([p for a, b in runs for p in self._pieces(g, a, b, self.step)])

    def chunks(self, g: int, first: int, n: int) -> Runs:
        """Return where an element brings a range of chunks, as a set."""
        if not g or not self.unit:
            return ((first, first + n),)
        return merged([*self._pieces(g, first, first + n, self.unit)])

    def _move(self, g: int, x: Number, unit: int) -> Number:
        if not g or not unit:
            return x
        block, rest = x // unit, x % unit
        inside = block % self.order
        there: Number = (block - inside + self.compose(inside, g)) * unit + rest
        return there

    @property
    @abstractmethod
    def name(self) -> str:
        """What the group does, for people."""

    @property
    @abstractmethod
    def keeps_order(self) -> bool:
        """Whether chunks side by side follow each other as before, or from the end to the start."""

    @property
    @abstractmethod
    def generators(self) -> tuple[int, ...]:
        """Elements of which all others are made."""

    @abstractmethod
    def compose(self, g: Number, h: int) -> Number:
        """Return g·h."""

    @abstractmethod
    def inverse(self, g: int) -> int:
        """Return the element that undoes g."""

    @abstractmethod
    def _pieces(self, g: int, start: int, stop: int, unit: int) -> Iterator[tuple[int, int]]:
        """Yield where [start, stop) goes, in pieces."""

    @property
    @abstractmethod
    def trivial(self) -> Subgroup:
        """The subgroup of 0 alone."""

    @abstractmethod
    def reduce(self, g: int, h: Subgroup) -> int:
        """Return the one element that stands for all of g·h."""

    @abstractmethod
    def with_element(self, h: Subgroup, g: int) -> Subgroup:
        """Return the least subgroup that holds h and g."""

    @abstractmethod
    def join(self, h: Subgroup, k: Subgroup) -> Subgroup:
        """Return the least subgroup that holds both."""

    @abstractmethod
    def meet(self, h: Subgroup, k: Subgroup) -> Subgroup:
        """Return what is in both."""

    @abstractmethod
    def part(self, g: int, h: Subgroup, k: Subgroup) -> int:
        """Return an x of h for which g is x times an element of k; g is in their join."""


@dataclass(frozen=True)
class Rotation(Group):
    """Block q goes to block q + g, round the end."""

    @property
    def name(self) -> str:
        """What the group does, for people."""
        return f"rotation of {self.order}"

    @property
    def keeps_order(self) -> bool:
        """Whether chunks side by side follow each other as before, or from the end to the start."""
        return True

    @property
    def generators(self) -> tuple[int, ...]:
        """Elements of which all others are made."""
        return (1,) if self.order > 1 else ()

    def compose(self, g: Number, h: int) -> Number:
        """Return g·h."""
        return (g + h) % self.order

    def inverse(self, g: int) -> int:
        """Return the element that undoes g."""
        return -g % self.order

    def _pieces(self, g: int, start: int, stop: int, unit: int) -> Iterator[tuple[int, int]]:
        window, by = unit * self.order, unit * g
        while start < stop:
            base = start - start % window
            if start == base and start + window <= stop:  # whole windows stay
                end = stop - stop % window
                yield start, end
            else:
                end = min(stop, base + window)
                a, b = start + by, end + by
                over = base + window
                if b <= over or a >= over:
                    back = window if a >= over else 0
                    yield a - back, b - back
                else:
                    yield a, over
                    yield base, b - window
            start = end

    @property
    def trivial(self) -> int:
        """The subgroup of 0 alone."""
        return self.order

    def reduce(self, g: int, h: int) -> int:
        """Return the one element that stands for all of g·h."""
        return g % h

    def with_element(self, h: int, g: int) -> int:
        """Return the least subgroup that holds h and g."""
        return gcd(h, g)

    def join(self, h: int, k: int) -> int:
        """Return the least subgroup that holds both."""
        return gcd(h, k)

    def meet(self, h: int, k: int) -> int:
        """Return what is in both."""
        return lcm(h, k)

    def part(self, g: int, h: int, k: int) -> int:
        """Return an x of h for which g is x times an element of k; g is in their join."""
        both = gcd(h, k)  # x = h*i with h*i = g modulo k
        return h * (g // both * pow(h // both, -1, k // both) % (k // both)) % self.order


Basis = tuple[int, ...]


@dataclass(frozen=True)
class Xor(Group):
    """Block q goes to block q ^ g; the order is a power of two."""

    def __post_init__(self) -> None:
        if self.order & (self.order - 1):
            raise UsageError(f"XOR of {self.order} blocks, want a power of two")

    @property
    def name(self) -> str:
        """What the group does, for people."""
        return f"XOR below {self.order}"

    @property
    def keeps_order(self) -> bool:
        """Whether chunks side by side follow each other as before, or from the end to the start."""
        return False

    @cached_property
    def generators(self) -> tuple[int, ...]:
        """Elements of which all others are made."""
        return tuple(1 << k for k in range(self.order.bit_length() - 1))

    def compose(self, g: Number, h: int) -> Number:
        """Return g·h."""
        return g ^ h

    def inverse(self, g: int) -> int:
        """Return the element that undoes g."""
        return g

    def _pieces(self, g: int, start: int, stop: int, unit: int) -> Iterator[tuple[int, int]]:
        while start < stop:
            block, rest = divmod(start, unit)
            wide = 1  # aligned blocks that keep together: a power of two of them
            while (
                not rest
                and 2 * wide <= self.order
                and block % (2 * wide) == 0
                and start + 2 * wide * unit <= stop
            ):
                wide *= 2
            end = min(stop, (block + wide) * unit)
            first = (block ^ (g & -wide)) * unit + rest
            yield first, first + end - start
            start = end

    @property
    def trivial(self) -> Basis:
        """The subgroup of 0 alone."""
        return ()

    def reduce(self, g: int, h: Basis) -> int:
        """Return the one element that stands for all of g·h."""
        for b in h:
            g = min(g, g ^ b)
        return g

    def with_element(self, h: Basis, g: int) -> Basis:
        """Return the least subgroup that holds h and g."""
        g = self.reduce(g, h)
        if not g:
            return h
        # Each leading bit is in one vector only, so that `reduce` has one result.
        return tuple(sorted([g, *(min(b, b ^ g) for b in h)], reverse=True))

    def join(self, h: Basis, k: Basis) -> Basis:
        """Return the least subgroup that holds both."""
        for g in k:
            h = self.with_element(h, g)
        return h

    def meet(self, h: Basis, k: Basis) -> Basis:
        """Return what is in both."""
        result: Basis = ()
        for shared in self._eliminated(h, k)[1]:
            result = self.with_element(result, shared)
        return result

    def part(self, g: int, h: Basis, k: Basis) -> int:
        """Return an x of h for which g is x times an element of k; g is in their join."""
        x = 0
        for vector, of_h in self._eliminated(h, k)[0]:
            if g ^ vector < g:
                g, x = g ^ vector, x ^ of_h
        return x

    def _eliminated(self, h: Basis, k: Basis) -> tuple[list[tuple[int, int]], list[int]]:
        """Return a basis of the join, each with its part of h, and what lies in both."""
        basis: list[tuple[int, int]] = []
        shared: list[int] = []
        for vector, of_h in [*((b, b) for b in h), *((b, 0) for b in k)]:
            for other, part in basis:
                if vector ^ other < vector:
                    vector, of_h = vector ^ other, of_h ^ part
            if vector:
                basis = sorted([*basis, (vector, of_h)], reverse=True)
            elif of_h:
                shared.append(of_h)
        return basis, shared
