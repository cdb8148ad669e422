"""Hops: which single one, with which single flipped bit, makes right results those that there are.

All ranks' Programs are run for one element, with values that know where they come from. What comes
out is a graph: the inputs, the messages between ranks (hops), the folds, the results. Then each
node's value is taken with one bit flipped, and what follows from it is computed anew, by the
arithmetic of the reference interpreter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pycoll.dtypes import DType, ReduceOp
from pycoll.program.arithmetic import combine, divide, storage
from pycoll.program.isa import CHUNK_UNIT, Flag, Space
from pycoll.program.program import Instruction, Operand, Program
from pycoll.program.reference import Channel, World

#: Places of all ranks' instructions up to which they are run: about a second.
MOST_STEPS = 1 << 17
#: Values that are computed anew, for all bits at once: about five seconds.
MOST_VALUES = 1 << 17

Scalar = np.ndarray[Any, Any]
Place = tuple[int, int]  #: a rank, and the chunk of its input or output


class Fit(NamedTuple):
    """A flip that explains what there is."""

    kind: str  #: "message", or what a rank has made: "fold"; or has in memory: "result", "input"
    source: int  #: of a message: who sends it; else the rank
    target: int  #: who receives it; else the rank
    bit: int  #: 0: the least significant


class TooLarge(Exception):
    """It would take longer than some seconds."""


class _Node(NamedTuple):
    kind: str
    source: int
    target: int
    children: tuple[int, ...]
    scaled: bool = False  #: it is divided by the number of ranks


class Graph:
    """Where every value of a run comes from.

    Args:
        programs: Of all ranks.
        slots: Of an edge.
    """

    def __init__(self, programs: Sequence[Program], slots: int) -> None:
        steps = sum(
            o.nchunks
            for p in programs
            for i in p.instructions
            for o in (*i.sources, *i.destinations)
        )
        if steps > MOST_STEPS:
            raise TooLarge(f"its programs touch {steps} chunks, at most {MOST_STEPS} are followed")
        self.size = len(programs)
        self.nodes: list[_Node] = []
        self.leaves: dict[Place, int] = {}
        self.outputs: dict[Place, int] = {}
        _Run(programs, slots, self).run()

    def leaf(self, place: Place) -> int:
        """Return the node of a chunk of a rank's input."""
        if place not in self.leaves:
            self.leaves[place] = self.add("input", place[0], place[0])
        return self.leaves[place]

    def add(self, kind: str, source: int, target: int, *children: int, scaled: bool = False) -> int:
        """Return a new node."""
        self.nodes.append(_Node(kind, source, target, children, scaled))
        return len(self.nodes) - 1


class _Run(World):
    """The reference interpreter's run, of nodes in place of bytes: one tile."""

    def __init__(self, programs: Sequence[Program], slots: int, graph: Graph) -> None:
        self.slots, self.ntiles, self.tile, self.graph = slots, 1, CHUNK_UNIT, graph
        self.filled, self.consumed = defaultdict(int), defaultdict(int)
        self.sent: dict[Any, int] = {}
        self.channels = [
            _Channel(self, p, c) for p in programs for c in range(len(p.channel_starts))
        ]


class _Channel(Channel):
    world: _Run

    def __init__(self, world: _Run, program: Program, number: int) -> None:
        super().__init__(world, program, number)
        self.kept: dict[int, int] = {}  #: scratch

    def _reduce_copy(self, i: Instruction) -> None:
        graph, rank = self.world.graph, self.program.rank
        scaled = bool(i.flags & Flag.SCALE)
        read = [[self._read(o, k) for o in i.sources] for k in range(i.sources[0].nchunks)]
        for k, values in enumerate(read):
            made = values[0]
            if len(values) > 1 or scaled:
                made = graph.add("fold", rank, rank, *values, scaled=scaled)
            for o in i.destinations:
                self._write(o, k, made)

    def _read(self, o: Operand, k: int) -> int:
        graph, rank, place = self.world.graph, self.program.rank, o.place + k
        if o.space is Space.IN:
            return graph.leaf((rank, place))
        if o.space is Space.OUT:
            return graph.outputs[rank, place]
        if o.space is Space.SCRATCH:
            return self.kept[place]
        if o.space is Space.PEER_IN:
            return graph.add("message", o.edge, rank, graph.leaf((o.edge, place)))
        if o.space is Space.PEER_OUT:
            return graph.add("message", o.edge, rank, graph.outputs[o.edge, place])
        edge = self.program.edges[o.edge]
        key = self._key(edge)
        return self.world.sent[key, self.world.consumed[key], k]

    def _write(self, o: Operand, k: int, value: int) -> None:
        graph, rank, place = self.world.graph, self.program.rank, o.place + k
        if o.space is Space.OUT:
            graph.outputs[rank, place] = value
        elif o.space is Space.SCRATCH:
            self.kept[place] = value
        elif o.space is Space.PEER_OUT:
            graph.outputs[o.edge, place] = graph.add("message", rank, o.edge, value)
        else:
            edge = self.program.edges[o.edge]
            key = self._key(edge)
            said = self.world.sent
            said[key, self.world.filled[key], k] = graph.add("message", rank, edge.peer, value)


class Element:
    """One element of a call, as it should have been.

    Args:
        graph: Of the Programs that ran.
        inputs: The element in the input of each rank that brings it, by its place.
        places: Where it is in outputs.
        dtype: Of the element.
        op: How contributions combine.

    Raises:
        TooLarge: There are more ways for a flip than are tried.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[Place, Scalar],
        places: Sequence[Place],
        dtype: DType,
        op: ReduceOp,
    ) -> None:
        self._nodes, self._size, self._dtype, self._op = graph.nodes, graph.size, dtype, op
        wanted = {graph.outputs[place] for place in places}
        for node in range(len(self._nodes) - 1, -1, -1):
            if node in wanted:
                wanted.update(self._nodes[node].children)
        self._order = sorted(wanted)
        self._ends = {place: graph.outputs[place] for place in places}
        self._users: dict[int, list[int]] = {node: [] for node in self._order}
        for node in self._order:
            for child in self._nodes[node].children:
                self._users[child].append(node)
        self._right: dict[int, Scalar] = {}
        by_leaf = {node: place for place, node in graph.leaves.items()}
        for node in self._order:
            leaf = by_leaf.get(node)
            given = None if leaf is None else inputs[leaf].reshape(1)
            self._right[node] = self._value(node, self._right) if given is None else given

    def right(self) -> dict[Place, bytes]:
        """Return what the outputs should hold."""
        return {place: self._right[node].tobytes() for place, node in self._ends.items()}

    def fits(self, there: Mapping[Place, bytes]) -> list[Fit]:
        """Return the flips of one bit after which outputs hold what they do."""
        kind = storage(self._dtype)
        got = {place: np.frombuffer(value, kind) for place, value in there.items()}
        bits = np.arange(8 * kind.itemsize)
        word = np.dtype(f"u{kind.itemsize}")
        flips = np.left_shift(np.ones(bits.size, word), bits.astype(word), dtype=word)
        found: dict[Fit, None] = {}
        left = MOST_VALUES
        for node in self._order:
            after = self._following(node)
            left -= len(after)
            if left < 0:
                raise TooLarge(f"more than {MOST_VALUES} values would be computed anew")
            changed = {node: (self._right[node].view(word) ^ flips).view(kind)}
            for user in after:
                changed[user] = self._value(user, {**self._of(user), **changed})
            match = np.ones(bits.size, bool)
            for place, end in self._ends.items():
                match &= _same(changed.get(end, self._right[end]), got[place])
            made = self._nodes[node]
            for bit in match.nonzero()[0].tolist():
                found[Fit(made.kind, made.source, made.target, bit)] = None
        found.update(self._at_rest(got, flips))
        return list(found)

    def _at_rest(self, got: Mapping[Place, Scalar], flips: Scalar) -> dict[Fit, None]:
        """Return flips of one output that nothing was sent from any more."""
        ends = {place: self._right[node] for place, node in self._ends.items()}
        wrong = [place for place in ends if not _same(ends[place], got[place]).all()]
        if len(wrong) != 1:
            return {}
        rank = wrong[0][0]
        changed = (ends[wrong[0]].view(flips.dtype) ^ flips).view(got[wrong[0]].dtype)
        bits = _same(changed, got[wrong[0]]).nonzero()[0].tolist()
        return {Fit("result", rank, rank, bit): None for bit in bits}

    def _of(self, node: int) -> dict[int, Scalar]:
        return {child: self._right[child] for child in self._nodes[node].children}

    def _following(self, node: int) -> list[int]:
        """Return the nodes whose values depend on one, in their order."""
        seen, todo = set[int](), list(self._users[node])
        while todo:
            user = todo.pop()
            if user not in seen:
                seen.add(user)
                todo += self._users[user]
        return sorted(seen)

    def _value(self, node: int, known: Mapping[int, Scalar]) -> Scalar:
        children, scaled = self._nodes[node].children, self._nodes[node].scaled
        value = known[children[0]]
        for child in children[1:]:
            value = combine(value, known[child], self._dtype, self._op)
        return divide(value, self._size, self._dtype) if scaled else value


def _same(a: Scalar, b: Scalar) -> Scalar:
    """Tell where the bits are alike; of floats, any NaN is like any other."""
    word = f"u{a.dtype.itemsize}"
    same: Scalar = a.view(word) == b.view(word)
    return same | (np.isnan(a) & np.isnan(b)) if a.dtype.kind == "f" else same
