from pycoll.schedule import COLLECTIVES, allreduce


def test_allreduce_gathers_every_contribution_everywhere() -> None:
    assert allreduce.before(2, 1, 3) == {2}
    assert allreduce.after(2, 1, 3) == {0, 1, 2}
    assert allreduce.same_bits
    assert list(COLLECTIVES.values()) == [allreduce]
