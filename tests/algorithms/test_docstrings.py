"""What an algorithm says about itself is true."""

import ast
import inspect
import math
import re
import textwrap

import pytest

from pycoll.algorithms import BUILTIN
from pycoll.schedule import Algorithm, Kind, schedule
from pycoll.schedule.evaluate import evaluate

every_algorithm = pytest.mark.parametrize("a", BUILTIN, ids=lambda a: a.name)
SIZES = [*range(1, 18), 32]


def fields(a: Algorithm) -> dict[str, str]:
    """Return the fixed lines by their word, continued lines joined."""
    doc = inspect.cleandoc(a.function.__doc__ or "")
    text = re.sub(r"\n +", " ", doc)
    return dict(line.split(": ", 1) for line in text.splitlines()[2:])


def number(text: str, size: int) -> float:
    """Compute a formula such as 2log2(p) + (size > p); p is the largest power of two in size."""
    code = re.sub(r"(\d)(?=[a-z(])", r"\1*", text.replace("log2", "lg"))
    p = 1 << (size.bit_length() - 1)
    known = {"size": size, "p": p, "lg": math.log2, "ceil": math.ceil}
    return float(eval(code, {"__builtins__": {}}, known))


def agrees(found: float, claim: str, size: int) -> bool:
    bound = claim.removeprefix("at most ")
    want = number(bound, size)
    return found <= want if bound != claim else math.isclose(found, want)


@every_algorithm
def test_the_four_lines_are_there(a: Algorithm) -> None:
    assert list(fields(a)) == ["Chunks", "Needs", "Cost", "Source"]
    assert re.search(r"\d{4}", fields(a)["Source"])


@every_algorithm
def test_the_cost_is_what_counting_finds(a: Algorithm) -> None:
    match = re.fullmatch(r"(.+) steps; (.+) of the data sent per rank\.", fields(a)["Cost"])
    assert match
    steps, share = match.groups()
    for size in SIZES:
        s = schedule(a, size)
        sent = max(
            sum(step.chunks.nchunks for step in rank if step.kind is Kind.SEND) for rank in s.ranks
        )
        assert agrees(evaluate(s).depth, steps, size), (size, evaluate(s).depth)
        assert agrees(sent / s.nchunks, share, size), (size, sent / s.nchunks)


@every_algorithm
def test_at_most_is_reached(a: Algorithm) -> None:
    match = re.fullmatch(r"(.+) steps; (.+) of the data sent per rank\.", fields(a)["Cost"])
    assert match
    s = schedule(a, 16)
    assert evaluate(s).depth >= number(match[1].removeprefix("at most "), 16) - 1


@every_algorithm
def test_the_chunks_are_what_is_cut(a: Algorithm) -> None:
    claim = fields(a)["Chunks"].split(",")[0].rstrip(".")
    for size in SIZES:
        assert schedule(a, size).nchunks == number(claim, size)


@every_algorithm
def test_the_body_fits_in_25_lines(a: Algorithm) -> None:
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(a.function))).body
    assert isinstance(function, ast.FunctionDef)
    body = function.body[1:]  # behind the docstring
    assert (body[-1].end_lineno or 0) - body[0].lineno + 1 <= 25
