"""The verdict, or the counterexample and exit code 1."""

from __future__ import annotations


def test_a_builtin_is_right(cli):
    done = cli("verify", "ring", "--size", "8")
    assert done.code == 0
    assert done.out.startswith("ring at 8 ranks is right: proved in ")
    assert "4 slots per edge" in done.out


def test_the_direct_form_is_proved_on_request(cli):
    done = cli("verify", "two_shot", "--size", "4", "--direct")
    assert done.code == 0
    assert "direct form" in done.out


def test_no_direct_form_is_a_failure_with_its_reason(cli):
    done = cli("verify", "one_shot", "--size", "4", "--direct")
    assert done.code == 1
    assert "one_shot" in done.out
    assert "no direct form" in done.out


def test_ones_own_algorithm_is_right(cli, own):
    done = cli("verify", f"{own}:star", "--size", "5", "--slots", "4")
    assert done.code == 0
    assert done.out.startswith("star at 5 ranks is right")
    assert "4 slots per edge" in done.out


def test_a_wrong_algorithm_gives_its_counterexample_and_code_1(cli, own):
    done = cli("verify", f"{own}:forgetful", "--size", "3")
    assert done.code == 1
    assert done.out.startswith("forgetful at 3 ranks: PostconditionError\nrank 0")
    assert "lacks the contribution of rank 2" in done.out
    assert done.err == ""


def test_on_several_hosts(cli):
    def instructions(*hosts: str) -> str:
        done = cli("verify", "hierarchical", "--size", "4", *hosts)
        assert done.code == 0
        return done.out.rpartition("; ")[2]

    assert instructions("--nodes", "2") != instructions() == instructions("--nodes", "1")


def test_many_ranks_are_proved_by_a_few(cli):
    done = cli("verify", "hierarchical", "--size", "1024", "--nodes", "128")
    assert done.code == 0
    assert "8 ranks for all, by rotation of 128" in done.out


def test_symmetric_and_wrong_is_drawn(cli, own):
    done = cli("verify", f"{own}:own_first", "--size", "64")
    assert done.code == 1
    assert done.out.startswith("own_first at 64 ranks: PostconditionError\n")
    assert "not the same bits" in done.out


def test_what_is_too_large_is_neither_right_nor_wrong(cli, monkeypatch):
    monkeypatch.setattr("pycoll.verify.algorithm.LIMIT", 100)
    done = cli("verify", "double_binary_tree", "--size", "40")
    assert (done.code, done.out) == (2, "")
    assert "takes too long to prove on the spot" in done.err
    assert done.err.endswith("(--whole) proves them one by one, however long that takes\n")
    done = cli("verify", "double_binary_tree", "--size", "40", "--whole")
    assert done.code == 0
    assert "; rank by rank; " in done.out


def test_more_slots_than_an_edge_can_have_are_refused(cli):
    done = cli("verify", "ring", "--size", "4", "--slots", "5000000")
    assert done.code == 2
    assert "slots is 5000000, want an integer from 1 to 1048576" in done.err


def test_the_fixed_order_is_proved_on_request(cli):
    done = cli("verify", "two_shot", "--size", "5", "--order", "fixed")
    assert done.code == 0
    assert "two_shot at 5 ranks is right, and folds in the fixed order: proved" in done.out
    done = cli("verify", "ring", "--size", "5", "--order", "fixed")
    assert done.code == 1
    assert "ring at 5 ranks is right, but not in the fixed order: it folds chunk 1" in done.out
    done = cli("verify", "allgather.ring", "--size", "5", "--order", "fixed")
    assert done.code == 2
    assert "--order is fixed, but allgather folds nothing" in done.err
