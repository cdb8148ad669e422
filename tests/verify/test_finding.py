from __future__ import annotations

from assemble import data_from, data_to, inp, loop, move, out, program, scratch, slot, wait

from pycoll.errors import RaceError
from pycoll.verify.finding import WIDTH, At, describe, draw, finding

CODE = loop(
    wait(0),
    move(inp(0), to=(out(0), slot(0, 0)), scale=True),
    move(*[scratch(k, 0) for k in range(8)], to=out(0)),
    wait(9),
    move(slot(7, 0), to=out(0)),
)
PROGRAM = program(0, 2, CODE, edges=(data_to(1), data_from(1)), nscratch=8)


def test_instructions_are_described_as_the_disassembler_does() -> None:
    assert [describe(PROGRAM, i) for i in range(3)] == [
        "LOOP over tiles up to 6",
        "WAIT slot to 1",
        "out[0], (slot to 1)[0] = in[0] / size",
    ]
    assert describe(PROGRAM, 7) == "END"


def test_an_instruction_that_names_no_edge_can_still_be_drawn() -> None:
    assert [describe(PROGRAM, i) for i in (4, 5)] == ["WAIT", "REDUCE_COPY"]


def test_a_drawing_has_a_column_per_rank_with_an_arrow_at_the_conflict() -> None:
    drawn = draw([At(PROGRAM, 0, 6), At(PROGRAM, 0, 1)]).splitlines()
    assert drawn[0].split() == ["rank", "0", "channel", "0", "rank", "0", "channel", "0"]
    assert len(drawn) == 6
    assert drawn[-1].startswith("-> #6 END_LOOP from 0")
    assert drawn[-1].endswith("-> #1 WAIT slot to 1")
    assert drawn[1].strip() == "#2 out[0], (slot to 1)[0] = in[0] / size"


def test_a_long_instruction_is_cut_and_many_ranks_are_left_out() -> None:
    (line,) = (text for text in draw([At(PROGRAM, 0, 3)]).splitlines() if "#3" in text)
    assert len(line) == WIDTH
    assert line.endswith("...")
    assert draw([At(PROGRAM, 0, 1)] * 6).count("->") == 4


def test_a_finding_carries_its_place() -> None:
    error = finding(RaceError, "does it", At(PROGRAM, 0, 2), chunk=5)
    assert isinstance(error, RaceError)
    assert str(error).startswith("rank 0, channel 0, #2: does it\n\n")
    assert vars(error) == {"rank": 0, "channel": 0, "instruction": 2, "chunk": 5}
