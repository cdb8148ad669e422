"""Schedules and programs as text."""

from __future__ import annotations

from pycoll.algorithms import get
from pycoll.schedule import parse, schedule


def test_the_schedule_reads_back_as_itself(cli):
    done = cli("show", "ring", "--size", "3")
    assert done.code == 0
    assert parse(done.out) == schedule(get("ring"), 3)


def test_one_rank_of_a_schedule(cli):
    whole = cli("show", "ring", "--size", "12").out
    parts = [cli("show", "ring", "--size", "12", "--rank", str(r)).out for r in range(12)]
    head = whole.splitlines(keepends=True)[0]
    assert all(part.startswith(head) for part in parts)
    assert head + "".join(part.removeprefix(head) for part in parts) == whole


def test_one_of_many_ranks_is_traced_alone(cli):
    done = cli("show", "recursive_doubling", "--size", "4096", "--rank", "5")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[:3] == [
        "schedule recursive_doubling allreduce size 4096 chunks 1 scratch 0",
        "rank 5",
        "  send out[0] to 4",
    ]
    assert len(lines) == 2 + 2 * 12


def test_the_programs_of_all_ranks_and_of_one(cli):
    whole = cli("show", "two_shot", "--size", "3", "--program")
    assert whole.code == 0
    assert whole.out.count("program of rank") == 3
    one = cli("show", "two_shot", "--size", "3", "--program", "--rank", "1")
    assert "program of rank 1 of 3" in one.out
    assert one.out in whole.out


def test_the_direct_form_touches_peers_memory(cli):
    staged = cli("show", "two_shot", "--size", "3", "--program").out
    direct = cli("show", "two_shot", "--size", "3", "--program", "--direct").out
    assert "staged" in staged
    assert "direct" in direct
    assert "slot" not in direct.lower()


def test_ones_own_algorithm(cli, own):
    done = cli("show", f"{own}:star", "--size", "2")
    assert done.out.startswith("schedule star allreduce size 2 chunks 1")


def test_on_several_hosts(cli):
    flat = cli("show", "hierarchical", "--size", "4").out
    placed = cli("show", "hierarchical", "--size", "4", "--nodes", "2").out
    assert parse(placed) != parse(flat) == schedule(get("hierarchical"), 4)
    assert "  send out[2:4] to 1\n" in placed
    arguments = ("show", "hierarchical", "--size", "4", "--nodes", "2", "--program", "--rank", "0")
    assert "slot to 2" in cli(*arguments).out
    assert "want a divisor of --size 4" in cli("show", "ring", "--size", "4", "--nodes", "3").err
