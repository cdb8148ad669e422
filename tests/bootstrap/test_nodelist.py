from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.bootstrap.nodelist import MOST, expand
from pycoll.errors import BootstrapError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node7", ["node7"]),
        ("a,b.example,c-1", ["a", "b.example", "c-1"]),
        ("n[3]", ["n3"]),
        ("n[3-5,9]", ["n3", "n4", "n5", "n9"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[001,3]", ["n001", "n3"]),
        ("r[1-2]n[0-1]x,login", ["r1n0x", "r1n1x", "r2n0x", "r2n1x", "login"]),
        ("[1-2]", ["1", "2"]),
        (" n[1-2], m ", ["n1", "n2", "m"]),
    ],
)
def test_node_lists_as_slurm_writes_them(text, names):
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"^node list '' has the item '', want a name$"),
        ("a,,b", r"has the item '', want a name$"),
        ("n[", r"has the item 'n\[', want a name$"),
        ("n]1", r"has the item 'n\]1', want a name$"),
        ("n[[1]]", r"want a name$"),
        ("n[]", r"has the range '', want 3 or 01-16$"),
        ("n[3-1]", r"has the range '3-1', want"),
        ("n[1-x]", r"has the range '1-x', want"),
        ("n[-1]", r"has the range '-1', want"),
        ("n[1-999999999]", r"has the range '1-999999999', want"),
        ("n[1-900000,1-900000]", rf"has more than {MOST} nodes$"),
        ("a[1-9999]b[1-9999]", rf"has more than {MOST} nodes$"),
        ("n[1-600000],m[1-600000]", rf"has more than {MOST} nodes$"),
        ("n[" + "9" * 5000 + "]", r"^node list 'n\[9+\.\.\.' has the range '9+\.\.\.', want"),
        ("n[\u0661]", r"has the range '\u0661', want"),
    ],
)
def test_what_is_no_node_list(text, message):
    with pytest.raises(BootstrapError, match=message):
        expand(text)


names = st.text("abz-.", min_size=1, max_size=5)


@given(st.lists(st.tuples(names, st.lists(st.integers(0, 40), min_size=1, max_size=4)), min_size=1))
def test_lists_of_numbers_are_expanded_in_order(items):
    text = ",".join(f"{name}[{','.join(map(str, numbers))}]" for name, numbers in items)
    assert expand(text) == [f"{name}{number}" for name, numbers in items for number in numbers]


@given(st.text("n1-9,[] x", max_size=20))
def test_any_text_is_a_list_of_names_or_an_error(text):
    try:
        got = expand(text)
    except BootstrapError:
        return
    assert all(name and not set(name) & set("[], ") for name in got)
