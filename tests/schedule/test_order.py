import random

from pycoll.schedule.order import Access, cross_channel


def test_one_channel_needs_nothing() -> None:
    assert cross_channel([Access(0, [1], [1]), Access(0, [1], [1])]) == [(), ()]


def test_every_kind_of_conflict_waits_and_two_reads_do_not() -> None:
    write, read = Access(0, [], [7]), Access(0, [7], [])
    for first, second, want in (
        (write, Access(1, [7], []), (0,)),
        (read, Access(1, [], [7]), (0,)),
        (write, Access(1, [], [7]), (0,)),
        (read, Access(1, [7], []), ()),
        (write, Access(1, [8], [8]), ()),
    ):
        assert cross_channel([first, second]) == [(), want]


def test_a_wait_that_another_implies_is_left_out() -> None:
    items = [
        Access(0, [], [1]),
        Access(1, [1], [2]),
        Access(2, [1, 2], []),  # channel 1 knows item 0 already
        Access(2, [1], []),
    ]
    assert cross_channel(items) == [(), (0,), (1,), ()]


def test_the_waits_order_exactly_the_conflicts() -> None:
    draw = random.Random(7)
    for _ in range(200):
        items = [
            Access(draw.randrange(3), draw.sample(range(4), 1), draw.sample(range(4), 1))
            for _ in range(12)
        ]
        before = closure(items, cross_channel(items))
        for j, second in enumerate(items):
            for i, first in enumerate(items[:j]):
                conflict = {*first.writes} & {*second.reads, *second.writes} or (
                    {*first.reads} & {*second.writes}
                )
                assert not conflict or i in before[j]


def closure(items: list[Access], waits: list[tuple[int, ...]]) -> list[set[int]]:
    before: list[set[int]] = []
    for j, item in enumerate(items):
        direct = {i for i in range(j) if items[i].channel == item.channel} | set(waits[j])
        before.append(direct.union(*(before[i] for i in direct)))
    return before
