"""``pycoll plan``: what one rank of a job would do in a call."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pycoll
from pycoll.algorithms import get
from pycoll.cli.algorithm import equal_hosts, load_algorithm
from pycoll.cli.explain import edges_here, question_here
from pycoll.cli.progress import working
from pycoll.cli.types import nbytes, positive
from pycoll.config import Config
from pycoll.cost import choose, load
from pycoll.cost.explanation import size_text
from pycoll.dtypes import BY_NAME
from pycoll.errors import UsageError, counted
from pycoll.program.isa import CHUNK_UNIT, Direction, EdgeKind
from pycoll.program.program import Edge, Program
from pycoll.program.reference import bounds
from pycoll.program.slots import tile_bytes
from pycoll.program.volume import Volume, volume
from pycoll.runtime import room
from pycoll.schedule import COLLECTIVES

if TYPE_CHECKING:
    from pycoll.verify import Record

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
    option(
        "--algorithm", metavar="NAME", help="the call's own, or file.py:function (default: chosen)"
    )
    option("--dtype", choices=[*BY_NAME], default="float32", metavar="NAME")
    option("--nodes", type=positive, metavar="N", help="hosts of --size ranks (default 1)")
    option("--cores", type=positive, metavar="N", help="of each host (default: as here)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the plan."""
    from pycoll.cli.own_program import origin, own_program  # loaded here: it brings the prover

    size, rank = options.size, options.rank
    if not 0 <= rank < size:
        raise UsageError(f"--rank is {rank}, want 0 to {size - 1} (--size {size})")
    wanted = options.algorithm and load_algorithm(options.algorithm, options.collective)
    if wanted:
        options.algorithm = wanted.name
    question, placement = question_here(options), equal_hosts(size, options.nodes)
    with working(f"choosing {options.collective} at {size} ranks"):
        choice = choose(question, load(Config.load().cache, pycoll.__version__, question))
    algorithm = wanted or get(choice.algorithm, options.collective)
    with working(f"planning {algorithm.name} at {size} ranks") as stage:
        program, record = own_program(algorithm, size, rank, placement, stage)
    starts = _starts(options, algorithm.collective.nblocks(size), program.nchunks)
    lines = [
        f"{options.collective}, {size_text(options.nbytes)}, rank {rank} of {size}",
        f"algorithm: {algorithm.name}; {choice.reason}",
        f"proof: {origin(record)}",
        *_memory_and_messages(
            edges_here(size, options.nodes or 1), choice.tile, program, record, starts
        ),
    ]
    print("\n".join(lines))
    return 0


def _starts(options: argparse.Namespace, nblocks: int, nchunks: int) -> list[int]:
    """Return where each chunk of the message begins, in bytes; then where the last one ends."""
    itemsize = BY_NAME[options.dtype].itemsize
    if options.nbytes % (nblocks * itemsize):
        blocks = f" in {nblocks} blocks of one length" if nblocks > 1 else ""
        raise UsageError(
            f"--nbytes is {options.nbytes}, want a multiple of {nblocks * itemsize}: "
            f"{options.dtype} elements{blocks}"
        )
    block, parts = options.nbytes // nblocks, nchunks // nblocks
    inside = [bounds(part, parts, block)[0] for part in range(parts)]
    return [b * block + at for b in range(nblocks) for at in inside] + [options.nbytes]


def _memory_and_messages(
    job: room.World, wanted: int, program: Program, record: Record, starts: list[int]
) -> Iterator[str]:
    facts = record.facts
    most = room.message_bytes(facts.edges, facts.widest, job, wanted)
    tile = tile_bytes(wanted, facts.widest, most)
    if tile == 0:
        raise UsageError(
            f"it sends {facts.widest} chunks at once, want at most {most // CHUNK_UNIT}, as many "
            "as fit a slot"
        )
    chunk = max(b - a for a, b in pairwise(starts))
    ntiles = max(1, -(-chunk // tile))
    yield (
        f"chunks: {program.nchunks} of at most {size_text(chunk)}, in {counted(ntiles, 'tile')}; "
        f"at most {facts.widest} in a message"
    )
    carried = [
        (edge, Volume(messages * ntiles, nbytes))
        for edge, (messages, nbytes) in zip(program.edges, volume(program, starts), strict=True)
        if edge.kind is EdgeKind.DATA
    ]
    sent, got = (
        [(e, v) for e, v in carried if e.direction is way]
        for way in (Direction.SEND, Direction.RECV)
    )
    yield f"sends: {_messages(sent, 'to')}"
    yield f"receives: {_messages(got, 'from')}"
    longest = min(facts.widest * min(tile, chunk), starts[-1])
    yield (
        f"slots: {job.slots} of {size_text(job.long_slot_bytes)} an edge, of which messages "
        f"use {size_text(longest)} each: {size_text(job.slots * longest * len(got))} in all"
    )
    yield f"scratch: {size_text(program.nscratch * tile)}"
    yield (
        f"program: {counted(len(program.instructions), 'instruction')} on "
        f"{counted(len(program.channel_starts), 'channel')}"
    )


def _messages(edges: list[tuple[Edge, Volume]], to: str) -> str:
    """Return how many messages there are, how long together, and whom they go to or come from."""
    if not edges:
        return "nothing"
    peers = sorted({edge.peer for edge, _ in edges})
    messages, nbytes = (sum(v[i] for _, v in edges) for i in range(2))
    some = ", ".join(map(str, peers[:_SHOWN])) + (", ..." if len(peers) > _SHOWN else "")
    return (
        f"{counted(messages, 'message')}, {size_text(nbytes)}, on {counted(len(edges), 'edge')} "
        f"{to} {counted(len(peers), 'rank')}: {some}"
    )
