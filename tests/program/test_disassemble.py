from collections.abc import Callable

import pytest

from pycoll.algorithms import BUILTIN, algorithm, get
from pycoll.program.disassemble import disassemble
from pycoll.program.lower import compile_program
from pycoll.schedule import Algorithm, ScheduleBuilder, allreduce, dump, schedule

Golden = Callable[[str, str], None]


@pytest.mark.parametrize("a", BUILTIN, ids=lambda a: a.name)
def test_golden_programs(a: Algorithm, golden: Golden) -> None:
    for size in (2, 5):
        text = "\n".join(
            [
                dump(schedule(a, size)),
                disassemble(compile_program(a, size, 0)),
                disassemble(compile_program(a, size, size - 1, average=True)),
            ]
        )
        golden(f"{a.name}_{size}.txt", text)


def test_golden_direct(golden: Golden) -> None:
    golden(
        "two_shot_3_direct.txt", disassemble(compile_program(get("two_shot"), 3, 1, direct=True))
    )


def test_every_instruction_has_one_line_with_its_number() -> None:
    program = compile_program(get("double_binary_tree"), 6, 3)
    lines = [line for line in disassemble(program).splitlines()[1:] if line[0] == " "]
    assert [int(line.split()[0]) for line in lines] == list(range(len(program.instructions)))


def test_scratch_shows_its_place_and_its_chunk() -> None:
    @algorithm(allreduce)
    def through_scratch(b: ScheduleBuilder) -> None:
        b.send(b.input[1], to=1 - b.rank)
        b.recv(b.scratch[3], frm=1 - b.rank)
        b.reduce(b.scratch[3], into=b.output[1])

    text = disassemble(compile_program(through_scratch, 2, 0))
    assert "out[1] = in[1] . scratch[3]@1" in text
