from __future__ import annotations

import pytest

from pycoll.schedule import Collective, allgather, allreduce, alltoall, reduce_scatter
from pycoll.verify.values import Values, WrongValueError, rank_names


def test_a_fold_is_one_value_whatever_its_order_and_another_when_regrouped() -> None:
    v = Values(allreduce, 3, 2)
    a, b, c = (v.leaf(r, 1) for r in range(3))
    assert v.fold(a, b) == v.fold(b, a)
    assert v.fold(v.fold(a, b), c) != v.fold(a, v.fold(b, c))
    assert v.ranks[v.fold(v.fold(a, b), c)] == 0b111
    assert v.chunks[v.fold(a, b)] == 1


def test_a_value_is_written_with_its_ranks() -> None:
    v = Values(allreduce, 3, 1)
    ab = v.fold(1, 2)
    assert v.text(v.scale(v.fold(ab, 3))) == "(2+(0+1))/size"
    assert v.text(v.fold(ab, 3), depth=1) == "(2+...)"


def test_a_contribution_counts_once() -> None:
    v = Values(allreduce, 3, 1)
    with pytest.raises(WrongValueError, match="the contribution of rank 1 a second time"):
        v.fold(v.fold(1, 2), v.fold(2, 3))


def test_an_average_divides_the_whole_sum_once() -> None:
    v = Values(allreduce, 2, 1)
    with pytest.raises(WrongValueError, match="lacks the contribution of rank 1"):
        v.scale(1)
    whole = v.scale(v.fold(1, 2))
    assert v.scale(v.fold(1, 2)) == whole
    with pytest.raises(WrongValueError, match="divides a value that an average has already"):
        v.scale(whole)


def test_a_divided_value_is_not_folded_again() -> None:
    # Only where nobody contributes can a divided value meet one that it does not contain.
    nobody = Collective("test", before=lambda r, c, n: frozenset(), after=lambda r, c, n: None)
    v = Values(nobody, 1, 2)
    v.everyone = 0
    with pytest.raises(WrongValueError, match="folds a value that an average has already divided"):
        v.fold(v.scale(1), 1)


def test_an_input_that_holds_nothing_has_no_value() -> None:
    root = Collective(
        "test",
        before=lambda rank, chunk, size: frozenset((0,)) if rank == 0 else None,
        after=lambda rank, chunk, size: frozenset((0,)),
    )
    assert Values(root, 2, 2).inputs(3) == [1, 2, 0, 0, 0, 0]


def test_many_ranks_are_named_shortly() -> None:
    assert rank_names(0b1010) == "ranks 1, 3"
    assert rank_names((1 << 9) - 1) == "ranks 0, 1, 2, 3, 4, 5, ..."


def test_rules_are_of_blocks_and_tables_of_chunks() -> None:
    v = Values(reduce_scatter, 2, 4)
    assert v.after == [0b11, 0b11, None, None, None, None, 0b11, 0b11]
    assert v.before == [1] * 4 + [2] * 4
    assert v.origin == [0, 1, 2, 3] * 2
    assert Values(allgather, 2, 4).inputs(4) == [1, 2, 0, 0, 0, 0, 7, 8]


def test_alltoall_promises_the_sources_chunk_of_this_rank() -> None:
    v = Values(alltoall, 3, 3)
    assert v.after == [1, 2, 4] * 3
    assert v.origin == [0, 0, 0, 1, 1, 1, 2, 2, 2]
