"""``pycoll explain``: which algorithm a collective would run, what the others take, and why."""

from __future__ import annotations

import argparse
import os
from typing import Any, NamedTuple

import pycoll
from pycoll.cli.algorithm import equal_hosts
from pycoll.cli.progress import working
from pycoll.cli.types import nbytes, positive
from pycoll.config import Config
from pycoll.cost import Machine, Question, explain, load
from pycoll.dtypes import BY_NAME
from pycoll.errors import UsageError
from pycoll.order import FREE, ORDERS
from pycoll.program.slots import SLOT_BYTES, SLOTS
from pycoll.runtime import room
from pycoll.schedule import COLLECTIVES


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "explain",
        help="which algorithm a collective runs, and why",
        description="Print every algorithm with the time that was measured by `pycoll tune`, or "
        "else predicted; no rank is started. The machine is this one, or a described one.",
    )
    option = parser.add_argument
    option("collective", choices=[*COLLECTIVES, "barrier"], metavar="COLLECTIVE")
    option("--nbytes", type=nbytes, metavar="SIZE", help="of the whole message; a barrier has 1")
    option("--algorithm", metavar="NAME", help="as if the call asked for this one")
    option("--dtype", choices=[*BY_NAME], default="float32", metavar="NAME")
    option("--device", choices=["cpu", "cuda"], default="cpu", help="where arrays lie")
    option("--order", choices=ORDERS, default=FREE, help="in which reductions fold (default free)")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--size", type=positive, metavar="N", help="number of ranks (default 2)")
    place.add_argument("--topology", metavar="FILE", help="ranks and links of a saved description")
    option("--nodes", type=positive, metavar="N", help="hosts of --size ranks (default 1)")
    option("--cores", type=positive, metavar="N", help="of each host (default: as here)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the explanation."""
    if options.nbytes is None:
        if options.collective != "barrier":
            raise UsageError(f"--nbytes of the {options.collective} is missing")
        options.nbytes = 1
    tuning = None
    if options.topology is not None:
        question, machine = _described(options)
    else:
        question, machine = question_here(options), None
        question = question._replace(device=options.device, order=options.order)
        if options.device == "cpu":
            tuning = load(Config.load().cache, pycoll.__version__, question)
    with working(f"simulating {question.collective} at {question.size} ranks"):
        told = explain(question, tuning, machine=machine)
    print(told)
    if options.topology is None and options.device == "cpu" and tuning is None:
        print("nothing was measured for such ranks here: run pycoll tune under their launcher")
    return 0


def question_here(options: argparse.Namespace) -> Question:
    """Return what a job on hosts like this one would ask about the call."""
    size, nodes = options.size or 2, options.nodes or 1
    edges = edges_here(size, nodes)
    return Question(
        options.collective,
        options.nbytes,
        size,
        options.cores or len(os.sched_getaffinity(0)),
        placement=equal_hosts(size, nodes),
        remote=nodes > 1,
        wanted=options.algorithm,
        dtype=options.dtype,
        slots=edges.slots,
        slot_bytes=edges.slot_bytes,
        budget=edges.budget,
        small_bytes=edges.small_bytes,
    )


class Edges(NamedTuple):
    """What the edges of a job have, as its `World` says."""

    slots: int
    slot_bytes: int
    long_slot_bytes: int
    budget: int
    small_bytes: int


def edges_here(size: int, nodes: int) -> Edges:
    """Return what the edges of a job of so many ranks would have, on hosts like this one."""
    near, space, alone = -(-size // nodes), room.slots_room(), nodes == 1
    held, budget = room.held(size, near), room.budget_bytes(share=room.memory_bytes() // near)
    each, long = (
        room.slot_bytes(size, held, space, longest=longest)
        for longest in (SLOT_BYTES, room.longest_slot_bytes(size, alone))
    )
    small = 0 if alone else room.small_bytes(size, long, held, space, budget)
    return Edges(SLOTS, each, long, budget, small)


def _described(options: argparse.Namespace) -> tuple[Question, Machine]:
    from pycoll.topology import load as load_topology

    if options.device != "cpu":
        raise UsageError(
            f"--device {options.device} with --topology: the ranks of a described cluster have "
            "arrays of the host, leave one out"
        )
    if options.nodes is not None:
        raise UsageError("--nodes and --topology both say where ranks are: leave one out")
    topology = load_topology(options.topology)
    if topology.size < 1:
        raise UsageError(f"{options.topology} has no ranks, want at least one")
    machine = Machine.described(topology)
    question = Question(
        options.collective,
        options.nbytes,
        topology.size,
        options.cores or machine.cores,
        placement=topology.placement(),
        remote=bool(machine.hosts),
        wanted=options.algorithm,
        dtype=options.dtype,
        order=options.order,
    )
    return question, machine
