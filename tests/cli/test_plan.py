"""What one rank does in a call: with whom, how much, and who proved it."""

from __future__ import annotations


def test_the_plan_of_one_rank(cli):
    done = cli("plan", "allreduce", "--algorithm", "ring", "--nbytes", "64K", "--size", "8")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "allreduce, 64 KiB, rank 0 of 8"
    assert lines[1].startswith("algorithm: ring; ")
    assert lines[2] == "proof: certificate"
    assert "chunks: 8 of 8 KiB, 0 in scratch" in done.out
    # Each of 8 chunks crosses 7 times to be folded, and 7 times to be known.
    assert "sends: 14 messages, 112 KiB, to 1 rank: 1" in lines
    assert "receives: 14 messages, 112 KiB, from 1 rank: 7" in lines
    assert lines[-1].startswith("program: ")


def test_a_message_is_counted_in_each_turn_of_the_loop(cli):
    done = cli("plan", "allreduce", "--algorithm", "ring", "--nbytes", "16M", "--size", "8")
    assert "chunks: 8 of 2 MiB, 0 in scratch; 256 KiB of each at a time" in done.out
    assert "sends: 112 messages, 28 MiB, to 1 rank: 1" in done.out


def test_a_rank_among_many_is_planned_alone(cli, cache):
    arguments = ("--algorithm", "recursive_doubling", "--nbytes", "4", "--size", "16384")
    done = cli("plan", "allreduce", *arguments, "--rank", "5")
    assert done.code == 0, done.err
    assert "proof: made now; 1 rank for all, by XOR below 16384" in done.out
    assert "sends: 14 messages, 56 B, to 14 ranks: 1, 4, 7, 13, 21, 37, " in done.out
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
    assert done.out.startswith("program of rank 5 of 16384, staged, ")
    assert "(slot to 4)[0]" in done.out
    done = cli("show", "two_shot", "--size", "1024", "--rank", "5", "--program")
    assert done.code == 2
    assert "too many to be proved one by one" in done.err
