"""The groups, their subgroups and their values, against what can be listed one by one."""

from __future__ import annotations

import random
from itertools import product

import pytest

from pycoll.errors import UsageError
from pycoll.schedule import COLLECTIVES, Collective, allgather, allreduce
from pycoll.verify.symmetry import runs
from pycoll.verify.symmetry.contract import KNOWN, evaluated, invariant
from pycoll.verify.symmetry.group import Group, Rotation, Subgroup, Xor
from pycoll.verify.symmetry.values import SymmetricValues
from pycoll.verify.values import WrongValueError

GROUPS: list[Group] = [
    *(
        Rotation(m, step, unit)
        for m in (1, 2, 3, 6, 8, 12)
        for step in (1, 3)
        for unit in (0, 1, 2)
    ),
    *(Xor(m, step, unit) for m in (2, 4, 8, 16) for step in (1, 3) for unit in (0, 1, 2)),
]


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_it_acts_on_ranks_and_chunks_and_moves_every_rank(group: Group) -> None:
    elements = range(group.order)
    width = 2 * max(1, group.unit) * group.order
    for g in elements:
        assert sorted(group.rank(g, r) for r in range(group.size)) == [*range(group.size)]
        assert sorted(group.chunk(g, c) for c in range(width)) == [*range(width)]
        assert all(group.rank(g, r) != r for r in range(group.size)) == (g != 0)
        assert group.compose(g, group.inverse(g)) == 0
        for h in elements:
            both = group.compose(g, h)
            assert both == group.compose(h, g)
            for r in range(group.size):
                assert group.rank(g, group.rank(h, r)) == group.rank(both, r)
            for c in range(width):
                assert group.chunk(g, group.chunk(h, c)) == group.chunk(both, c)
    for rank in range(group.size):
        assert group.rank(group.element(rank), rank % group.step) == rank


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_it_moves_runs_as_it_moves_their_members(group: Group) -> None:
    r = random.Random(3)
    width = 3 * max(1, group.unit) * group.order
    for g in range(group.order):
        for _ in range(20):
            members = {x for x in range(group.size) if r.random() < 0.6}
            image = runs.of(group.rank(g, x) for x in members)
            assert group.ranks(g, runs.of(members)) == image
            first = r.randrange(width)
            n = r.randint(1, width - first)
            image = runs.of(group.chunk(g, c) for c in range(first, first + n))
            assert group.chunks(g, first, n) == image


def test_runs_are_sets() -> None:
    r = random.Random(4)
    for _ in range(300):
        a, b = ({x for x in range(12) if r.random() < 0.5} for _ in range(2))
        assert runs.common(runs.of(a), runs.of(b)) == runs.of(a & b)
        assert runs.without(runs.of(a), runs.of(b)) == runs.of(a - b)


def members(group: Group, h: Subgroup) -> frozenset[int]:
    return frozenset(g for g in range(group.order) if group.reduce(g, h) == 0)


def spanned(group: Group, made_of: set[int]) -> frozenset[int]:
    found = {0}
    while True:
        more = {group.compose(a, b) for a in found for b in made_of | found}
        if more <= found:
            return frozenset(found)
        found |= more


@pytest.mark.parametrize("group", [Rotation(12, 1, 1), Rotation(8, 2, 0), Xor(16, 1, 1)], ids=str)
def test_subgroups(group: Group) -> None:
    r = random.Random(5)
    subgroups = {group.trivial}
    for _ in range(60):
        subgroups.add(group.with_element(r.choice(sorted(subgroups)), r.randrange(group.order)))
    assert members(group, group.trivial) == {0}
    for h in subgroups:
        of_h = members(group, h)
        assert spanned(group, set(of_h)) == of_h
        for g in range(group.order):
            coset = {group.compose(g, x) for x in of_h}
            assert group.reduce(g, h) in coset
            assert len({group.reduce(x, h) for x in coset}) == 1
            assert members(group, group.with_element(h, g)) == spanned(group, {g, *of_h})
    for h, k in product(subgroups, subgroups):
        of_h, of_k = members(group, h), members(group, k)
        assert members(group, group.meet(h, k)) == of_h & of_k
        join = members(group, group.join(h, k))
        assert join == spanned(group, {*of_h, *of_k})
        for g in join:
            x = group.part(g, h, k)
            assert x in of_h
            assert group.compose(g, group.inverse(x)) in of_k


Tree = object  #: a leaf is (rank, chunk), a fold a frozenset of two


def brought(group: Group, g: int, tree: Tree) -> Tree:
    if isinstance(tree, tuple):
        return group.rank(g, tree[0]), group.chunk(g, tree[1])
    assert isinstance(tree, frozenset)
    return frozenset(brought(group, g, part) for part in tree)


def leaves(tree: Tree) -> set[int]:
    if isinstance(tree, tuple):
        return {tree[0]}
    assert isinstance(tree, frozenset)
    return set().union(*map(leaves, tree))


@pytest.mark.parametrize(
    ("group", "nchunks"),
    [
        (Rotation(6, 1, 0), 1),
        (Rotation(4, 1, 1), 4),
        (Rotation(4, 2, 0), 1),
        (Rotation(3, 2, 1), 3),
        (Xor(8, 1, 0), 1),
        (Xor(8, 1, 1), 8),
        (Xor(4, 2, 0), 2),
    ],
    ids=str,
)
def test_values_are_equal_if_and_only_if_their_trees_are(group: Group, nchunks: int) -> None:
    r = random.Random(6)
    for _ in range(4):
        values = SymmetricValues(allreduce, group, nchunks)
        inputs = values.inputs(nchunks)
        known: dict[int, Tree] = {
            inputs[rank * nchunks + c]: (rank, c)
            for rank in range(group.step)
            for c in range(nchunks)
        }
        by_tree = {tree: value for value, tree in known.items()}
        folds = 0
        for _ in range(1500):
            if r.random() < 0.4:
                value, g = r.choice(list(known)), r.randrange(group.order)
                (made,) = values.moved([value], g, by_chunk=False)
                tree = brought(group, g, known[value])
            else:
                a, b = r.choice(list(known)), r.choice(list(known))
                if values.chunk(a) != values.chunk(b):
                    continue
                if leaves(known[a]) & leaves(known[b]):
                    with pytest.raises(WrongValueError, match="a second time"):
                        values.fold(a, b)
                    continue
                made, tree = values.fold(a, b), frozenset((known[a], known[b]))
                folds += 1
            assert known.setdefault(made, tree) == tree
            assert by_tree.setdefault(tree, made) == made
            assert values.ranks(made) == runs.of(leaves(tree))
        assert folds > 20


def test_every_known_contract_is_left_as_it_is() -> None:
    for collective in KNOWN:
        for kind, order, step in product((Rotation, Xor), (2, 4, 8), (1, 3)):
            for parts in (1,) if collective.equal_blocks else (1, 2):
                size = order * step
                blocks = collective.nblocks(size)
                unit = step * parts if blocks > 1 else 1
                group = kind(order, step, unit, collective.equal_blocks)
                assert evaluated(collective, group)
                assert invariant(collective, group, parts * size)
                other = kind(order, step, 0, collective.equal_blocks)
                assert invariant(collective, other, parts * size) == (blocks == 1)
                wide = kind(order, step, parts * size, collective.equal_blocks)
                assert not invariant(collective, wide, parts * size)  # no chunks to go to


def test_xor_is_of_powers_of_two() -> None:
    with pytest.raises(UsageError, match="XOR of 6 blocks, want a power of two"):
        Xor(6, 1, 1)


def test_a_contract_with_a_root_is_not() -> None:
    for collective in COLLECTIVES.values():
        if collective.rooted:
            for group in (Rotation(4, 1, 1), Rotation(4, 1, 0), Xor(4, 1, 1)):
                assert not evaluated(collective, group)
                assert not invariant(collective, group, 4)


def test_the_rules_of_a_users_contract_are_evaluated() -> None:
    everyone_but_the_next = Collective(
        "others",
        before=lambda rank, block, size: frozenset((rank,)),
        after=lambda rank, block, size: frozenset({*range(size)} - {(rank + 1) % size}),
        reduces=True,
    )
    assert invariant(everyone_but_the_next, Rotation(4, 1, 0), 1)
    assert not invariant(everyone_but_the_next, Xor(4, 1, 0), 1)
    same = allgather
    assert invariant(same, Rotation(4, 1, 2), 8)
    assert not invariant(same, Rotation(4, 1, 1), 8)
