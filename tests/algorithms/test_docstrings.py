"""What an algorithm says about itself is true."""

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Iterator

import pytest

from pycoll.algorithms import BUILTIN
from pycoll.schedule import Algorithm, Kind, Level, Placement, Schedule, schedule
from pycoll.schedule.evaluate import evaluate

every_algorithm = pytest.mark.parametrize(
    "a", BUILTIN, ids=lambda a: f"{a.collective.name}-{a.name}"
)
SIZES = [*range(1, 18), 32]
NODES = [(2, 2), (3, 2), (2, 4), (5, 3), (4, 4)]  #: nodes, and ranks on each
COST = re.compile(
    r"(?P<steps>.+) steps; (?P<sent>.+) (?P<unit>of the data|blocks) sent per rank"
    r"(, with local ranks in each of the nodes)?\."
)


def fields(a: Algorithm) -> dict[str, str]:
    """Return the fixed lines by their word, continued lines joined."""
    doc = inspect.cleandoc(a.function.__doc__ or "")
    text = re.sub(r"\n +", " ", doc)
    return dict(line.split(": ", 1) for line in text.splitlines()[2:])


def number(text: str, size: int, nodes: int) -> float:
    """Compute a formula such as 2log2(p) + (size > p); p is the largest power of two in size."""
    code = re.sub(r"(\d)(?=[a-z(])", r"\1*", text.replace("log2", "lg"))
    known = {
        "size": size,
        "p": 1 << (size.bit_length() - 1),
        "nodes": nodes,
        "local": size // nodes,
        "lg": math.log2,
        "ceil": math.ceil,
        "max": max,
    }
    return float(eval(code, {"__builtins__": {}}, known))


def agrees(found: float, claim: str, size: int, nodes: int) -> bool:
    bound = claim.removeprefix("at most ")
    want = number(bound, size, nodes)
    return found <= want if bound != claim else math.isclose(found, want)


def cost(a: Algorithm) -> re.Match[str]:
    match = COST.fullmatch(fields(a)["Cost"])
    assert match, fields(a)["Cost"]
    # Where every rank has a block of its own, what is sent is counted in blocks.
    assert (match["unit"] == "blocks") == (a.collective.blocks == "rank")
    return match


def cases(a: Algorithm) -> Iterator[tuple[int, int, Schedule]]:
    """Yield size, number of nodes and schedule: flat, and for hierarchical ones on equal nodes."""
    for size in SIZES:
        yield size, size, schedule(a, size)
    if "hierarchical" in a.name:
        for nodes, local in NODES:
            split = tuple(rank // local for rank in range(nodes * local))
            placement = Placement.of(Level("node", split))
            yield nodes * local, nodes, schedule(a, nodes * local, placement)


@every_algorithm
def test_the_four_lines_are_there(a: Algorithm) -> None:
    assert list(fields(a)) == ["Chunks", "Needs", "Cost", "Source"]
    assert re.search(r"\d{4}", fields(a)["Source"])


@every_algorithm
def test_the_cost_is_what_counting_finds(a: Algorithm) -> None:
    claim = cost(a)
    for size, nodes, s in cases(a):
        sent = max(
            sum(step.chunks.nchunks for step in rank if step.kind is Kind.SEND) for rank in s.ranks
        )
        unit = s.nchunks // s.collective.nblocks(size)
        found = evaluate(s).depth, sent / unit
        assert agrees(found[0], claim["steps"], size, nodes), (size, nodes, found)
        assert agrees(found[1], claim["sent"], size, nodes), (size, nodes, found)


@every_algorithm
def test_at_most_is_reached(a: Algorithm) -> None:
    steps = cost(a)["steps"].removeprefix("at most ")
    assert evaluate(schedule(a, 16)).depth >= number(steps, 16, 16) - 1


@every_algorithm
def test_the_chunks_are_what_is_cut(a: Algorithm) -> None:
    claim = re.split(r", [a-z]", fields(a)["Chunks"])[0].rstrip(".")
    for size, nodes, s in cases(a):
        assert s.nchunks == number(claim, size, nodes)


@every_algorithm
def test_the_body_fits_in_25_lines(a: Algorithm) -> None:
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(a.function))).body
    assert isinstance(function, ast.FunctionDef)
    body = function.body[1:]  # behind the docstring
    assert (body[-1].end_lineno or 0) - body[0].lineno + 1 <= 25
