"""``pycoll plan``: what one rank of a job would do in a call."""

from __future__ import annotations

import argparse
from typing import Any

import pycoll
from pycoll.algorithms import get
from pycoll.cli.algorithm import equal_hosts
from pycoll.cli.explain import question_here
from pycoll.cli.own_program import own_program
from pycoll.cli.progress import working
from pycoll.cli.types import nbytes, positive
from pycoll.config import Config
from pycoll.cost import Machine, choose, load
from pycoll.cost.explanation import size_text
from pycoll.dtypes import BY_NAME
from pycoll.errors import UsageError, counted
from pycoll.program.slots import tile_bytes
from pycoll.schedule import COLLECTIVES, Kind, Step, rank_steps

_SHOWN = 16  #: ranks that are named


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "plan",
        help="what one rank does in a call, and with whom",
        description="Print the plan that one rank of a job would make for a call: the algorithm "
        "and its proof, its peers, messages and memory. No rank is started.",
    )
    option = parser.add_argument
    option("collective", choices=[*COLLECTIVES], metavar="COLLECTIVE")
    option("--nbytes", type=nbytes, metavar="SIZE", required=True, help="of the whole message")
    option("--size", type=positive, required=True, metavar="N", help="number of ranks")
    option("--rank", type=int, default=0, metavar="R", help="whose plan (default 0)")
    option("--algorithm", metavar="NAME", help="as if the call asked for this one")
    option("--dtype", choices=[*BY_NAME], default="float32", metavar="NAME")
    option("--nodes", type=positive, metavar="N", help="hosts of --size ranks (default 1)")
    option("--cores", type=positive, metavar="N", help="of each host (default: as here)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the plan."""
    size, rank = options.size, options.rank
    if not 0 <= rank < size:
        raise UsageError(f"--rank is {rank}, want 0 to {size - 1} (--size {size})")
    question, placement = question_here(options), equal_hosts(size, options.nodes)
    with working(f"choosing {options.collective} at {size} ranks"):
        choice = choose(question, load(Config.load().cache, pycoll.__version__, question))
    algorithm = get(choice.algorithm, options.collective)
    with working(f"proving {algorithm.name} at {size} ranks"):
        program, record = own_program(algorithm, size, rank, placement)
    facts = record.facts
    most = Machine.of(question).message_bytes(facts.edges, facts.widest)
    tile = tile_bytes(choice.tile, facts.widest, most)
    chunk = -(-options.nbytes // program.nchunks)
    print(f"{options.collective}, {size_text(options.nbytes)}, rank {rank} of {size}")
    print(f"algorithm: {algorithm.name}; {choice.reason}")
    proof = record.verdict
    origin = {"proof": "made now", "cache": "of an earlier job"}.get(proof.origin, proof.origin)
    print(f"proof: {origin}" + ("" if proof.origin == "certificate" else f"; {proof.how()}"))
    print(
        f"chunks: {program.nchunks} of {size_text(chunk)}, {program.nscratch} in scratch; "
        f"{size_text(min(tile, chunk))} of each at a time"
    )
    steps = rank_steps(algorithm, size, rank, placement).steps
    turns = -(-chunk // min(tile, chunk))  # each sends a message of each step
    sent = [s for s in steps if s.kind is Kind.SEND]
    print("sends: " + _messages(sent, "to", rank, chunk, turns))
    received = [s for s in steps if s.kind in (Kind.RECV, Kind.RECV_REDUCE)]
    print("receives: " + _messages(received, "from", rank, chunk, turns))
    print(
        f"slots: {question.slots} of {size_text(most)} an edge, of {size_text(question.slot_bytes)}"
    )
    print(f"program: {counted(len(program.instructions), 'instruction')}")
    return 0


def _messages(steps: list[Step], to: str, rank: int, chunk: int, turns: int) -> str:
    """Return how many messages there are, how long together, and whom they go to or come from."""
    ranks = [[peer for peer in s.peers if peer != rank] for s in steps]
    peers = sorted({peer for each in ranks for peer in each})
    if not peers:
        return "nothing"
    messages = turns * sum(map(len, ranks))
    nbytes = chunk * sum(s.chunks.nchunks * len(each) for s, each in zip(steps, ranks, strict=True))
    some = ", ".join(map(str, peers[:_SHOWN])) + (", ..." if len(peers) > _SHOWN else "")
    return (
        f"{counted(messages, 'message')}, {size_text(nbytes)}, "
        f"{to} {counted(len(peers), 'rank')}: {some}"
    )
