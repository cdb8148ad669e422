import pytest

from pycoll.algorithms import BUILTIN, algorithm, get
from pycoll.errors import ScheduleError
from pycoll.schedule import Algorithm, ScheduleBuilder, allreduce, dump, parse, schedule


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("a", BUILTIN, ids=lambda a: a.name)
def test_text_round_trips(a: Algorithm, size: int) -> None:
    s = schedule(a, size)
    again = parse(dump(s))
    assert again == s
    assert again.digest == s.digest
    assert str(s) == dump(s)


def test_scratch_and_local_steps_round_trip() -> None:
    @algorithm(allreduce)
    def through_scratch(b: ScheduleBuilder) -> None:
        b.send(b.input[:], to=1 - b.rank)
        b.recv(b.scratch[1:3], frm=1 - b.rank)
        b.reduce(b.scratch[1:3], into=b.output[:])
        b.copy(b.output[0], b.scratch[0])

    s = schedule(through_scratch, 2)
    assert parse(dump(s)) == s
    assert "  reduce scratch[1:3]@0 into out[0:2]\n" in dump(s)


GOOD = dump(schedule(get("ring"), 2))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schedule", "program", r"^line 1: .*want 'schedule NAME"),
        ("allreduce", "alldance", r"^line 1: .*with a collective of allreduce"),
        ("size 2", "size 0", r"^line 1: "),
        ("chunks 2", "chunks 0", r"^line 1: "),
        ("allreduce size 2 chunks 2", "allgather size 2 chunks 3", r"^3 chunks, want a multiple"),
        ("to 1", "to one", r"^line 3: "),
        ("out[0] to", "out[2] to", r"^line 3: "),
        ("out[0] to", "out[1:1] to", r"^line 3: "),
        ("out[0] to", "out[0]@0 to", r"^line 3: "),
        ("from 0 1", "from 1", r"^line 4: "),
        ("rank 1\n", "rank 2\n", r"^line 7: 'rank 2' is no step and not 'rank 1'"),
        ("rank 1\n", "", r"^the text holds 1 ranks, want 2$"),
        ("send out[0] to 1", "send out[1] to 1", r"rank 0 sends out\[1\] as message 0"),
    ],
)
def test_wrong_text_is_refused(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ScheduleError, match=message):
        parse(GOOD.replace(old, new, 1))


def test_empty_text_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"^line 1: ''"):
        parse("")
