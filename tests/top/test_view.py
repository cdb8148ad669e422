"""What follows from two looks: who is waited for, rates, who has gone."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pycoll.runtime.record.arenas import About, Look, Seen, Sight, Wait
from pycoll.runtime.record.kinds import Kind
from pycoll.runtime.record.stats import CallStats
from pycoll.top.text import cut, duration, lines, number, rate, size
from pycoll.top.view import Row, Snapshot, View, awaited

pytestmark = pytest.mark.native  # the engine is loaded

SECOND = 1_000_000_000
ALLREDUCE = Kind("allreduce", "ring", 1000, "float32", "sum")


def row(rank: int, calls: int = 7, waits_for: int | None = None, **more: Any) -> Row:
    """A rank that is stuck in a call if it waits for another."""
    given: dict[str, Any] = dict.fromkeys(Row.__dataclass_fields__)
    state = "idle" if waits_for is None else "calling"
    given |= {"rank": rank, "number": calls, "waits_for": waits_for, "state": state}
    return Row(**(given | {"seconds": 5.0} | more))


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([row(0), row(1)], []),
        ([row(0, waits_for=1), row(1, calls=6)], [1]),
        ([row(0, waits_for=2), row(1, calls=6), row(2, calls=5)], [1, 2]),
        # Rank 1 waits for rank 2 in an earlier call.
        ([row(0, waits_for=1), row(1, calls=5, waits_for=2), row(2, calls=4)], [2]),
        # All have come: a chain, a circle, and one that leads to another host.
        ([row(0, waits_for=1), row(1, waits_for=2), row(2, state="stopped")], [2]),
        ([row(0, waits_for=1), row(1, waits_for=0)], []),
        ([row(0, waits_for=1), row(1, waits_for=9)], [9]),
        ([row(0, waits_for=1), row(1, state="gone")], [1]),
        # It has waited for less than a moment, or has not been seen to wait.
        ([row(0, waits_for=1, seconds=0.01), row(1, calls=6)], []),
        ([row(0, waits_for=1, seconds=None), row(1, calls=6)], []),
    ],
)
def test_who_is_waited_for(rows: list[Row], found: list[int]) -> None:
    assert awaited(rows) == found


def look(calls: int = 7, at: float = 1.0, state: str = "idle", **more: Any) -> Look:
    given: dict[str, Any] = {
        "at_ns": int(at * SECOND),
        "state": state,
        "calls": calls,
        "kind": ALLREDUCE,
        "since_ns": int(0.5 * SECOND),
        "waits": 0,
        "peer": None,
        "last_wait": None,
        "waited_ns": 0,
        "collectives": {"allreduce": CallStats(calls, 1000 * calls, {"ring": calls})},
        "sent": (),
    }
    return Look(**(given | more))


def seen(rank: int, job: str = "j1", one: Look | None = None, **more: Any) -> Seen:
    about = About(100 + rank, job, "job", rank, 4, "cpu", ())
    given = Seen((0, rank), os.getpid(), "here", False, about, one or look())
    return given._replace(about=about._replace(**more))


def test_rates_are_of_the_time_between_two_looks() -> None:
    view = View("here")
    [first] = view.next(Sight([seen(0)], 0, 0)).communicators[0].ranks
    assert (first.calls_per_s, first.bytes_per_s, first.waiting) == (None, None, None)
    rails = {"rails": ("mlx5_0", "mlx5_1")}
    view.next(Sight([seen(0, one=look(sent=(10, 20, 0)), **rails)], 0, 0))
    # A call of 1000 bytes is under way: it has begun, and not ended.
    later = look(18, at=3.0, state="calling", waited_ns=SECOND // 2, sent=(4010, 20, 0))
    [next_] = view.next(Sight([seen(0, one=later, **rails)], 0, 0)).communicators[0].ranks
    assert next_.calls_per_s == 5.5
    assert next_.bytes_per_s == 5000
    assert next_.bus_bytes_per_s == 5000 * 2 * 3 / 4
    assert next_.waiting == 0.25
    assert next_.rails == {"mlx5_0": 2000, "mlx5_1": 0}
    assert next_.seconds == 2.5


def test_counts_that_go_back_are_no_rates() -> None:
    view = View("here")
    view.next(Sight([seen(0, one=look(100, waited_ns=SECOND, sent=(9,)))], 0, 0))
    [back] = (
        view.next(Sight([seen(0, one=look(1, at=2.0, sent=(1,)))], 0, 0)).communicators[0].ranks
    )
    assert (back.calls_per_s, back.bytes_per_s, back.waiting) == (0, 0, 0)


def test_a_rank_that_has_gone_stays_while_others_of_it_are_here() -> None:
    view = View("here")
    ended = seen(1)._replace(pid=2**22 + 5)
    assert view.next(Sight([seen(0), ended], 0, 0)).communicators[0].here == 2
    stuck = look(8, state="calling", waits=3, peer=1)
    for _ in range(2):
        [group] = view.next(Sight([seen(0, one=stuck)], 0, 0)).communicators
        assert (group.here, group.size, group.waits_for) == (1, 4, [1])
        assert [one.state for one in group.ranks] == ["calling", "gone"]
    assert view.next(Sight([], 0, 0)).communicators == []


def test_a_rank_whose_process_goes_on_has_closed() -> None:
    view = View("here")
    view.next(Sight([seen(0), seen(1)], 0, 0))
    [group] = view.next(Sight([seen(0)], 0, 0)).communicators
    assert group.ranks[1].state == "closed"
    # A communicator of the same name that is made anew takes its place.
    anew = seen(1)._replace(key=(0, 77))
    [group] = view.next(Sight([seen(0), anew], 0, 0)).communicators
    assert [one.state for one in group.ranks] == ["idle", "idle"]


def test_only_the_job_that_is_wanted_is_shown() -> None:
    every = [seen(0), seen(0, job="k2")._replace(key=(1, 1), pid=5), seen(0, "j10")]
    every[2] = every[2]._replace(key=(1, 2))

    def jobs(*wanted: Any) -> list[str]:
        return [group.job for group in View("", *wanted).next(Sight(every, 0, 0)).communicators]

    assert jobs() == ["j1", "j10", "k2"]
    assert jobs("j1") == ["j1", "j10"]
    assert jobs("", 5) == ["k2"]
    assert jobs("j", 5) == []


def test_the_job_of_a_process_is_shown_when_that_has_ended() -> None:
    view, ended = View("", pid=5), seen(1)._replace(pid=5)
    view.next(Sight([seen(0), ended], 0, 0))
    [group] = view.next(Sight([seen(0)], 0, 0)).communicators
    assert (group.job, group.here) == ("j1", 1)


def texts(snapshot: Snapshot, width: int | None = None) -> str:
    return "\n".join(line.text for line in lines(snapshot, width))


def test_the_table_names_who_is_waited_for_and_who_is_not_here() -> None:
    stuck = look(8, state="calling", waits=1, peer=3, last_wait=Wait(8, 3, 2.0))
    text = texts(View("here").next(Sight([seen(0, one=stuck), seen(1, one=stuck)], 3, 1)))
    assert "2 of 4 ranks are here, call 8\nthe others wait for rank 3 (elsewhere)\n" in text
    assert "1 job, 1 process\n" in text
    assert "allreduce 1000 B (float32, sum, ring)" in text
    assert "rank 3, 2.0 s" in text
    assert "3 processes may not be looked into" in text
    assert "1 memory file of another version of pycoll" in text


def test_a_narrow_terminal_shows_what_matters() -> None:
    snapshot = View("here").next(Sight([seen(0), seen(1, one=look(6))], 0, 0))
    for width in (1, 2, 5, 20, 40, 60, 80, 100, 200):
        assert all(len(line) <= width for line in texts(snapshot, width).split("\n"))
    assert "calls/s" in texts(snapshot, 100)
    assert "since" in texts(snapshot, 80)
    assert "calls/s" not in texts(snapshot, 60)
    assert "rank  doing" in texts(snapshot, 50)


def test_what_a_terminal_would_heed_is_not_shown() -> None:
    bad = seen(0, job="\x1b[2J\u202e\n", device="cuda\x07", rails=("a\x9b",))
    bad = bad._replace(look=look(kind=Kind("\x1b]0;x\x07", "\x00", 9, "\r", "\b")))
    text = texts(View("here").next(Sight([bad], 0, 0)))
    assert all(line.isprintable() for line in text.split("\n"))
    assert "?[2J" in text


def test_numbers_have_units_that_suit_them() -> None:
    assert [size(n) for n in (0, 1000, 4096, 5 << 19, 1 << 52)] == [
        *("0 B", "1000 B", "4 KiB", "2.5 MiB", "4 PiB"),
    ]
    assert [rate(n) for n in (None, 0, 1234, 5e9, 7e13)] == [
        *("-", "0 B/s", "1.23 kB/s", "5 GB/s", "70 TB/s"),
    ]
    assert [number(n) for n in (None, 0, 0.25, 12345.6)] == ["-", "0", "0.25", "12,346"]
    assert [duration(s) for s in (None, 5e-6, 0.02, 3.21, 100, 7265)] == [
        *("-", "5 us", "20 ms", "3.2 s", "1 min 40 s", "2 h 01 min"),
    ]
    assert cut("日本語", 5) == "日本"
