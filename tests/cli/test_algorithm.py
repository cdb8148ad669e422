"""Names of algorithms: built-in, or file.py:function."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pycoll.cli.algorithm import load_algorithm
from pycoll.errors import UsageError


def test_a_builtin_by_name():
    assert load_algorithm("two_shot").name == "two_shot"


def test_a_function_of_a_file_with_imports_beside_it(tmp_path, own):
    (tmp_path / "beside.py").write_text("from own import star\n")
    path = list(sys.path)
    assert load_algorithm(f"{tmp_path / 'beside.py'}:star").name == "star"
    assert sys.path == path


def test_a_file_may_be_called_like_a_module_that_is_loaded(tmp_path, own):
    renamed = tmp_path / "argparse.py"
    renamed.write_text(Path(own).read_text())
    module = sys.modules["argparse"]
    assert load_algorithm(f"{renamed}:star").name == "star"
    assert sys.modules["argparse"] is module


def test_a_plain_function_is_refused(own):
    with pytest.raises(UsageError, match=r"own.py:plain is a function, want a function under @"):
        load_algorithm(f"{own}:plain")


def test_an_unknown_function_lists_the_algorithms_of_the_file(own):
    with pytest.raises(UsageError, match=r"has no 'ring', want one of star, forgetful"):
        load_algorithm(f"{own}:ring")


def test_a_file_that_does_not_load_says_why(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import a_module_that_is_not_there\n")
    with pytest.raises(UsageError, match=r"broken.py does not load: ModuleNotFoundError: No mod"):
        load_algorithm(f"{path}:f")


def test_a_file_that_is_not_python(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("")
    with pytest.raises(UsageError, match=r"notes.txt is not a Python file"):
        load_algorithm(f"{path}:f")


def test_a_name_that_several_collectives_have_means_all_reduce(own):
    assert load_algorithm("ring").collective.name == "allreduce"
    assert load_algorithm("allreduce.ring").collective.name == "allreduce"


def test_an_unknown_name_lists_those_that_exist():
    with pytest.raises(UsageError, match=r"algorithm is 'rign', want one of .*ring.* or file.py:"):
        load_algorithm("rign")


def test_an_algorithm_for_another_collective_is_refused(own):
    with pytest.raises(UsageError, match=r"own.py:star is for allreduce, want one for broadcast"):
        load_algorithm(f"{own}:star", "broadcast")
