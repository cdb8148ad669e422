from collections.abc import Callable

import pytest

from pycoll.algorithms import algorithm, get
from pycoll.program.disassemble import disassemble
from pycoll.program.lower import compile_program
from pycoll.schedule import ScheduleBuilder, allreduce, dump, schedule

Golden = Callable[[str, str], None]


#: One or more of every collective, between them with all that lowering does.
SHOWN = (
    "allreduce ring",
    "allreduce recursive_doubling",
    "allreduce halving_doubling",
    "allreduce double_binary_tree",
    "allreduce one_shot",
    "allreduce two_shot",
    "broadcast binomial",
    "reduce binomial",
    "allgather ring",
    "reduce_scatter recursive_halving",
    "alltoall bruck",
    "gather binomial",
    "scatter binomial",
)


@pytest.mark.parametrize("shown", SHOWN)
def test_golden_programs(shown: str, golden: Golden) -> None:
    collective, name = shown.split()
    a = get(name, collective)
    average = a.collective.reduces
    for size in (2, 5):
        text = "\n".join(
            [
                dump(schedule(a, size)),
                disassemble(compile_program(a, size, 0)),
                disassemble(compile_program(a, size, size - 1, average=average)),
            ]
        )
        golden(f"{shown.removeprefix('allreduce ').replace(' ', '_')}_{size}.txt", text)


@pytest.mark.parametrize("shown", ["allreduce two_shot", "alltoall direct"])
def test_golden_direct(shown: str, golden: Golden) -> None:
    collective, name = shown.split()
    text = disassemble(compile_program(get(name, collective), 3, 1, direct=True))
    stem = name if collective == "allreduce" else collective
    golden(f"{stem}_3_direct.txt", text)


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
