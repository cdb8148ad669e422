from collections.abc import Callable

import pytest

from pycoll.algorithms import algorithm, get
from pycoll.errors import ScheduleError
from pycoll.passes.direct import match
from pycoll.program.lower import compile_all
from pycoll.schedule import NotDirect, ScheduleBuilder, allreduce, schedule


def test_messages_are_matched_in_order() -> None:
    found = match(schedule(get("two_shot"), 2))
    assert found == {(0, 1): [(1, 0)], (0, 3): [(1, 2)], (1, 1): [(0, 0)], (1, 3): [(0, 2)]}


def into_scratch(b: ScheduleBuilder) -> None:
    b.send(b.input[0], to=1 - b.rank)
    b.recv(b.scratch[0], frm=1 - b.rank)


def read_later(b: ScheduleBuilder) -> None:
    b.chunks(1)
    if b.rank == 0:
        b.recv_reduce(b.output[0], frm=1)
        b.send(b.output[0], to=1)
    else:
        b.send(b.input[0], to=0)
        b.recv(b.output[0], frm=0)
        b.copy(b.output[0], b.scratch[0])
        b.copy(b.scratch[0], b.output[0])


@pytest.mark.parametrize(
    ("function", "size", "message"),
    [
        (get("double_binary_tree").function, 2, r"it uses 4 channels, want 1"),
        (get("ring").function, 3, r"rank \d step 2: send out\[\d\].*not an untouched chunk"),
        (get("one_shot").function, 2, r"ranks 0 and 1 both touch chunk 0 of rank 0, and one"),
        (into_scratch, 2, r"rank 0 step 1: recv scratch.*a peer can write to out only"),
        (read_later, 2, r"ranks 0 and 1 both touch chunk 0 of rank 1"),
    ],
)
def test_what_has_no_direct_form_says_why(
    function: Callable[[ScheduleBuilder], None], size: int, message: str
) -> None:
    assert issubclass(NotDirect, ScheduleError)
    with pytest.raises(NotDirect, match=f"^{function.__name__}: no direct form: {message}"):
        compile_all(algorithm(allreduce)(function), size, direct=True)
