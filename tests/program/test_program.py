import pytest

from pycoll.algorithms import get
from pycoll.errors import ScheduleError
from pycoll.program import isa
from pycoll.program.lower import compile_program
from pycoll.program.program import Program

BLOB = compile_program(get("one_shot"), 2, 0).to_bytes()
EDGES = isa.HEADER.size + isa.CHANNEL_START.size
CODE = EDGES + 2 * isa.EDGE.size


def put(at: int, *values: int) -> bytes:
    return BLOB[:at] + bytes(values) + BLOB[at + len(values) :]


def test_bytes_round_trip() -> None:
    for direct in (False, True):
        program = compile_program(get("two_shot"), 5, 2, direct=direct, average=True)
        assert Program.from_bytes(program.to_bytes()) == program


def test_fields_lie_where_the_table_says() -> None:
    assert BLOB[:4] == b"PCOL"
    assert BLOB[CODE] == isa.Op.LOOP
    peer = BLOB[EDGES : EDGES + 4]
    assert int.from_bytes(peer, "little") == 1  # of the first edge
    # REDUCE_COPY is the third instruction: one source, one destination.
    third = CODE + 2 * isa.INSTRUCTION.size
    assert list(BLOB[third : third + 4]) == [isa.Op.REDUCE_COPY, 0, 1, 1]


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (BLOB[:10], r"^program has 10 bytes, want at least 56$"),
        (put(0, 0), r"^program has magic 0x4c4f4300 version 2, want 0x4c4f4350 version 2$"),
        (put(4, 9), r"^program has magic 0x4c4f4350 version 9, want"),
        (BLOB + b"x", rf"^program has {len(BLOB) + 1} bytes, want {len(BLOB)} by its header$"),
        (put(CODE, 77), r"^program has an unknown code: 77 is not a valid Op$"),
        (put(EDGES + 4, 9), r"^program has an unknown code: 9 is not a valid EdgeKind$"),
        (put(CODE + 2, 200), r"^operand 200 of 5$"),
    ],
)
def test_a_corrupt_blob_is_refused(blob: bytes, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Program.from_bytes(blob)
