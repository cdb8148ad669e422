import pytest

from pycoll.algorithms import algorithm, get, names
from pycoll.errors import UsageError
from pycoll.schedule import ScheduleBuilder, allreduce


def test_names_are_in_order() -> None:
    assert names("allreduce") == (
        "ring",
        "recursive_doubling",
        "halving_doubling",
        "double_binary_tree",
        "one_shot",
        "two_shot",
    )
    assert names("alltoall") == ()


def test_get_returns_the_algorithm() -> None:
    for name in names("allreduce"):
        assert get(name).name == name


def test_an_unknown_name_lists_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"^algorithm is 'rong', want one of ring, recursive_d"):
        get("rong")


def test_the_decorator_takes_a_collective_or_its_name() -> None:
    def nothing(b: ScheduleBuilder) -> None:
        pass

    assert algorithm(allreduce)(nothing).collective is allreduce
    assert algorithm("allreduce")(nothing).collective is allreduce
    assert names("allreduce").count("nothing") == 0
    with pytest.raises(UsageError, match=r"^collective is 'dance', want one of allreduce$"):
        algorithm("dance")
