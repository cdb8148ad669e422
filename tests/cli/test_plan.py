"""What one rank does in a call: with whom, how much, and who proved it."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

import pycoll
from pycoll.cli.types import nbytes as parse
from pycoll.cost.explanation import size_text


def test_the_plan_of_one_rank(cli):
    done = cli("plan", "allreduce", "--algorithm", "ring", "--nbytes", "64K", "--size", "8")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "allreduce, 64 KiB, rank 0 of 8"
    assert lines[1].startswith("algorithm: ring; ")
    assert lines[2] == "proof: certificate"
    assert "chunks: 8 of at most 8 KiB, in 1 tile; at most 1 in a message" in lines
    # Each of 8 chunks crosses 7 times to be folded, and 7 times to be known.
    assert "sends: 14 messages, 112 KiB, on 1 edge to 1 rank: 1" in lines
    assert "receives: 14 messages, 112 KiB, on 1 edge from 1 rank: 7" in lines
    assert lines[-3:] == [
        "slots: 4 of 1 MiB an edge, of which messages use 8 KiB each: 32 KiB in all",
        "scratch: 0 B",
        "program: 74 instructions on 1 channel",
    ]


def test_a_certificate_serves_several_hosts(cli):
    arguments = ("--nbytes", "64K", "--size", "72", "--nodes", "9", "--algorithm", "ring")
    assert "proof: certificate\n" in cli("plan", "allreduce", *arguments).out


def test_what_no_slot_holds_is_sent_in_tiles(cli):
    done = cli("plan", "allreduce", "--algorithm", "ring", "--nbytes", "16M", "--size", "8")
    assert "chunks: 8 of at most 2 MiB, in 8 tiles; at most 1 in a message\n" in done.out
    assert "sends: 112 messages, 28 MiB, on 1 edge to 1 rank: 1\n" in done.out
    assert "messages use 256 KiB each: 1 MiB in all\n" in done.out


@pytest.mark.native
@pytest.mark.parametrize(
    ("collective", "algorithm", "nbytes", "size"),
    [
        ("broadcast", "direct", 16 << 20, 2),  # from 8 MiB on, where nothing is folded: 1 MiB
        ("broadcast", "direct", 4 << 20, 2),  # and half of it from 4 MiB on
        ("broadcast", "direct", (4 << 20) - 4, 2),
        ("alltoall", "spread", 16 << 20, 4),
        ("allreduce", "ring", 16 << 20, 2),
        ("broadcast", "direct", 4 << 20, 9),  # of more ranks than have long slots
    ],
)
def test_a_job_runs_what_is_planned(
    cli, collective: str, algorithm: str, nbytes: int, size: int
) -> None:
    found = pycoll.spawn(partial(_tile_of, collective, algorithm, nbytes), size)
    arguments = ("--algorithm", algorithm, "--nbytes", str(nbytes), "--size", str(size))
    out = cli("plan", collective, *arguments).out
    chunk = re.search(r"chunks: \d+ of at most (\S+ \S+), in (\d+) tile", out)
    slot = re.search(r"slots: 4 of (\S+ \S+) an edge", out)
    assert chunk is not None, out
    assert slot is not None, out
    longest = parse(chunk[1].replace("i", "").replace(" ", "").removesuffix("B"))
    for tile, slot_bytes in found:
        assert int(chunk[2]) == -(-longest // tile)
        assert slot[1] == size_text(slot_bytes)


def _tile_of(collective: str, algorithm: str, nbytes: int) -> tuple[int, int]:
    """Make a call; return the tile of its plan, and the bytes of a slot."""
    from pycoll.runtime.native import bindings

    tiles, create = [], bindings.plan_create

    def created(*programs: object, tile: int, **options: object) -> object:
        tiles.append(tile)
        return create(*programs, tile=tile, **options)

    bindings.plan_create = created
    comm = pycoll.init()
    x = np.zeros(nbytes // 4, "float32")
    getattr(comm, collective)(x, algorithm=algorithm)
    return tiles[-1], comm._engine.world.long_slot_bytes


def test_what_is_sent_is_counted_to_the_byte(cli):
    """Chunks are cut at 64 bytes: of 100 one has 64, and the other the rest."""
    arguments = ("--algorithm", "ring", "--nbytes", "100", "--size", "2")
    done = cli("plan", "allreduce", *arguments, "--rank", "1")
    assert "chunks: 2 of at most 64 B" in done.out
    assert "sends: 2 messages, 100 B, on 1 edge to 1 rank: 0" in done.out
    done = cli("plan", "alltoall", "--nbytes", "1000", "--size", "12")
    assert done.code == 2
    assert "--nbytes is 1000, want a multiple of 48: float32 elements in 12 blocks" in done.err


def test_ones_own_algorithm_is_planned(cli, own):
    arguments = ("plan", "allreduce", "--nbytes", "1M", "--size", "3", "--algorithm")
    done = cli(*arguments, f"{own}:star")
    assert "algorithm: star; asked for\nproof: made now; rank by rank\n" in done.out
    assert "sends: 8 messages, 2 MiB, on 2 edges to 2 ranks: 1, 2" in done.out
    done = cli(*arguments, f"{own}:forgetful")
    assert done.code == 1
    assert "lacks the contribution of rank 2" in done.err


def test_scratch_is_a_tile_for_each_place(cli, own):
    arguments = ("--nbytes", "1M", "--size", "2", "--algorithm", f"{own}:spare")
    assert "scratch: 256 KiB\n" in cli("plan", "allreduce", *arguments).out


def test_a_rank_alone_sends_nothing(cli):
    done = cli("plan", "allreduce", "--nbytes", "4", "--size", "1")
    assert "sends: nothing\nreceives: nothing\n" in done.out


def test_what_fits_no_slot_is_refused_as_by_a_job(cli):
    hosts = ("--size", "16384", "--nodes", "8192", "--nbytes", "1M")
    done = cli("plan", "allreduce", "--algorithm", "hierarchical", *hosts)
    assert (done.code, done.out) == (2, "")
    assert "it sends 8192 chunks at once, want at most 4096, as many as fit a slot" in done.err


def test_what_is_too_large_is_planned_where_jobs_run_it(cli, monkeypatch):
    few = partial(pycoll.verify.gate, limit=100)
    monkeypatch.setattr("pycoll.cli.own_program.gate", few)
    arguments = (
        "--algorithm",
        "hierarchical_tree",
        "--nbytes",
        "1M",
        "--size",
        "75",
        "--nodes",
        "3",
    )
    done = cli("plan", "allreduce", *arguments)
    assert done.code == 2
    assert "PYCOLL_UNPROVED=yes, runs it as it is" in done.err
    monkeypatch.setenv("PYCOLL_UNPROVED", "yes")
    assert "proof: unproved\n" in cli("plan", "allreduce", *arguments).out


def test_a_rank_among_many_is_planned_alone(cli, cache):
    arguments = ("--algorithm", "recursive_doubling", "--nbytes", "4", "--size", "16384")
    done = cli("plan", "allreduce", *arguments, "--rank", "5")
    assert done.code == 0, done.err
    assert "proof: made now; 1 rank for all, by XOR below 16384" in done.out
    assert "sends: 14 messages, 56 B, on 14 edges to 14 ranks: 1, 4, 7, 13, 21, 37, " in done.out
    again = cli("plan", "allreduce", *arguments, "--rank", "5")
    assert "proof: of an earlier job; 1 rank for all, by XOR below 16384" in again.out


def test_a_rank_that_there_is_not(cli):
    done = cli("plan", "allreduce", "--nbytes", "4", "--size", "4", "--rank", "4")
    assert done.code == 2
    assert "--rank is 4, want 0 to 3 (--size 4)" in done.err


def test_the_program_of_a_rank_among_many(cli, cache):
    many = ("--size", "16384", "--rank", "5", "--program")
    done = cli("show", "recursive_doubling", *many)
    assert done.code == 0, done.err
    head, program = done.out.splitlines()[:2]
    assert head.startswith("proof: made now; 1 rank for all, by XOR below 16384; ")
    assert program.startswith("program of rank 5 of 16384, staged, ")
    assert "(slot to 4)[0]" in done.out
    done = cli("show", "two_shot", "--size", "1024", "--rank", "5", "--program")
    assert done.code == 2
    assert "its ranks do not all do the same" in done.err
    assert "PYCOLL_UNPROVED=yes, runs it as it is" in done.err


@pytest.mark.parametrize("name", ["ring", "bruck", "double_binary_tree"])
def test_a_program_that_is_lowered_alone_is_that_of_all(cli, name, monkeypatch):
    arguments = ("show", name, "--size", "48", "--rank", "29", "--program")
    whole = cli(*arguments).out
    monkeypatch.setattr("pycoll.cli.show.TOGETHER", 40)
    assert cli(*arguments).out == f"proof: certificate\n{whole}"


def test_a_rank_that_is_not_like_the_others_is_lowered_as_a_job_does(cli, own):
    arguments = ("plan", "allreduce", "--nbytes", "1M", "--size", "64", "--algorithm")
    usual = cli(*arguments, f"{own}:ring_but_one")
    assert "proof: made now; 1 rank for all, by rotation of 64; " in usual.out
    other = cli(*arguments, f"{own}:ring_but_one", "--rank", "30")
    assert "proof: made now; rank by rank\n" in other.out
