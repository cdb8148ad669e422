import pytest

from pycoll.algorithms import BUILTIN, algorithm, get, names
from pycoll.errors import UsageError
from pycoll.schedule import COLLECTIVES, ScheduleBuilder, allreduce


def test_names_are_in_order() -> None:
    assert names("allreduce")[:4] == ("ring", "recursive_doubling", "halving_doubling", "bruck")
    assert names("alltoall") == ("pairwise", "spread", "bruck", "direct")
    assert names("dance") == ()


def test_a_name_is_one_algorithm_of_its_collective() -> None:
    keys = [(a.collective.name, a.name) for a in BUILTIN]
    assert len(set(keys)) == len(keys)
    assert {collective for collective, _ in keys} == set(COLLECTIVES)
    for collective, name in keys:
        found = get(name, collective)
        assert (found.collective.name, found.name) == (collective, name)
        assert found in BUILTIN


def test_an_unknown_name_lists_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"^algorithm is 'rong', want one of ring, recursive_d"):
        get("rong")
    with pytest.raises(UsageError, match=r"^algorithm is 'ring', want one of binomial, direct$"):
        get("ring", "gather")
    with pytest.raises(UsageError, match=r"^algorithm is 'ring', want one of none$"):
        get("ring", "dance")


def test_the_decorator_takes_a_collective_or_its_name() -> None:
    def nothing(b: ScheduleBuilder) -> None:
        pass

    assert algorithm(allreduce)(nothing).collective is allreduce
    assert algorithm("allreduce")(nothing).collective is allreduce
    assert names("allreduce").count("nothing") == 0
    with pytest.raises(UsageError, match=r"^collective is 'dance', want one of allreduce, b"):
        algorithm("dance")


def test_a_decorator_without_its_collective() -> None:
    with pytest.raises(UsageError, match=r'^mine: want a collective first, such as @algorithm\("a'):

        @algorithm  # type: ignore[arg-type]
        def mine(b: ScheduleBuilder) -> None: ...
