"""A report names exactly what was planted, whoever it is, and nothing where nothing was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_records import COMM, MS, SECOND, Planted, records, save

from pycoll.trace.analysis import Analysis, analyse
from pycoll.trace.job import gather

SIZES = (2, 3, 8, 64)
CALLS = {2: 32, 3: 32, 8: 16, 64: 10}


@pytest.fixture
def look(tmp_path: Path) -> Any:
    """Return what looks at records as if they had been files."""

    def analysed(made: list[dict[str, Any]]) -> Analysis:
        for path in tmp_path.iterdir():
            path.unlink()
        save(tmp_path, made)
        return analyse(gather([tmp_path]))

    return analysed


def job(size: int, planted: Planted | None = None, **options: Any) -> list[dict[str, Any]]:
    # 64 ranks with links to all others would be most of the time that these tests take.
    chosen: dict[str, Any] = {"calls": CALLS[size], "mesh": size < 64, **options}
    return records(size, planted=planted, **chosen)


def named(found: Analysis) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.kind, finding.ranks) for finding in found.findings]


@pytest.mark.parametrize("size", SIZES)
def test_where_nothing_is_planted_nothing_is_named(look: Any, size: int) -> None:
    for seed in range(3 if size == 64 else 12):
        assert named(look(job(size, seed=seed))) == []


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_is_late_to_each_call(look: Any, size: int) -> None:
    for rank in range(size):
        found = look(job(size, Planted(late={rank: 5 * MS})))
        assert named(found) == [("late", (rank,))]
        details = found.findings[0].details
        assert abs(details["median_ns"] - 5 * MS) < MS // 2
        # Of the call that was under way only those know who were in it already.
        assert details["late"] >= CALLS[size]
        assert details["steadily"]
        lost = details["lost_ns"]
        assert sorted(map(int, lost)) == [other for other in range(size) if other != rank]
        # Each of the others waited some 5 ms in each of the calls that they have finished.
        assert all(abs(ns - 5 * MS * CALLS[size]) < MS * CALLS[size] // 2 for ns in lost.values())
        assert f"rank {rank} was late to" in found.findings[0].text


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_is_late_once(look: Any, size: int) -> None:
    for rank in range(0, size, 1 if size < 64 else 9):
        found = look(job(size, Planted(once={rank: (5, 50 * MS)})))
        assert named(found) == [("late", (rank,))]
        details = found.findings[0].details
        assert (details["late"], details["steadily"]) == (1, False)
        assert [(late.seq, late.rank) for late in found.lateness[0].late] == [(5, rank)]


def test_two_ranks_that_are_late_to_one_call_are_both_named(look: Any) -> None:
    found = look(job(8, Planted(once={2: (5, 50 * MS), 6: (5, 45 * MS)})))
    assert named(found) == [("late", (2,)), ("late", (6,))]


def test_in_a_call_to_which_all_come_scattered_nobody_is_late(look: Any) -> None:
    scattered = {rank: (0, 10 * MS * (rank * 5 % 8)) for rank in range(8)}
    assert named(look(job(8, Planted(once=scattered)))) == []


def test_delays_that_cost_little_are_counted_and_not_named(look: Any) -> None:
    found = look(job(3, Planted(once={1: (50, 2 * MS)}), calls=400))
    assert named(found) == []
    assert [(late.seq, late.rank) for late in found.lateness[0].late] == [(50, 1)]


def test_what_others_waited_for_besides_is_not_lost_by_a_late_rank(look: Any) -> None:
    made = job(3, Planted(late={2: 5 * MS}), noise=0)
    for event in made[0]["comms"][0]["events"]:
        event["waited_ns"] += SECOND  # for what came after the late rank
    lost = look(made).findings[0].details["lost_ns"]
    assert abs(lost["0"] - 32 * 5 * MS) <= 33 * 40_000


def test_two_late_ranks_are_both_named(look: Any) -> None:
    found = look(job(8, Planted(late={2: 5 * MS, 5: 3 * MS})))
    assert named(found) == [("late", (2,)), ("late", (5,))]


def test_what_the_noise_explains_is_not_late(look: Any) -> None:
    assert named(look(job(8, Planted(late={3: 30_000}), noise=1000))) == [("late", (3,))]
    assert named(look(job(8, Planted(late={3: 200_000}), noise=100_000))) == []
    assert named(look(job(8, Planted(late={3: 2 * MS}), noise=100_000))) == [("late", (3,))]
    # Times of one rank are compared with times of another: how well clocks are aligned does not
    # matter.
    assert named(look(job(8, Planted(late={3: 300_000}), error=MS))) == [("late", (3,))]


def test_in_a_first_call_the_clocks_are_compared(look: Any) -> None:
    for error, late in ((MS, True), (30 * MS, False)):
        found = look(job(8, Planted(late={3: 50 * MS}), calls=1, error=error))
        assert [one.rank for one in found.lateness[0].late] == [3] * late


def test_who_ends_a_call_late_is_not_late_to_the_next(look: Any) -> None:
    """As in a ring over a slow link: the ranks behind it come late, and have lost no time."""
    made = job(8)
    for record in made:
        for number, event in enumerate(record["comms"][0]["events"]):
            shift = 7 * MS * record["rank"]
            if event["finished_ns"] is not None:
                event["finished_ns"] += shift
            if number and event["entered_ns"] is not None:
                event["entered_ns"] += shift
        record["clock"]["monotonic_ns"] += 7 * MS * record["rank"]
    assert named(look(made)) == []


def test_a_port_whose_links_lead_to_one_host_each_way(look: Any) -> None:
    """As in a ring over the hosts."""
    made = job(8)
    host = made[0]["comms"][0]["hosts"]
    for record in made:
        links = record["comms"][0]["links"]
        after = (host[record["rank"]] + 1) % 4
        links[:] = [one for one in links if host[one["peer"]] == after]
        for one in links:
            if 1 in (host[record["rank"]], after):
                one["busy_ns"] *= 2
    found = look(made)
    assert named(found) == [("port", (2, 3))]
    assert found.findings[0].details["direction"] == "both"
    assert "into and out of node1 are slow" in found.findings[0].text


@pytest.mark.parametrize("size", SIZES)
def test_a_link_at_half_speed(look: Any, size: int) -> None:
    for link in {(r["rank"], e["peer"], e["rail"]) for r in job(size) for e in links(r)}:
        found = look(job(size, Planted(slow={link: 0.5}), calls=1))
        assert named(found) == [("link", tuple(sorted(link[:2])))]
        details = found.findings[0].details
        assert details["links"] == [dict(zip(("from", "to", "rail"), link, strict=True))]
        assert details["GBps"] / details["others_GBps"] == pytest.approx(0.5, rel=0.2)
        frm, to, rail = link
        assert f"from rank {frm} on node" in found.findings[0].text
        assert f"to rank {to} on node" in found.findings[0].text
        assert f"mlx5_{rail}:1" in found.findings[0].text


def links(record: dict[str, Any]) -> list[dict[str, int]]:
    found: list[dict[str, int]] = record["comms"][0]["links"]
    return found


@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("out", [True, False])
@pytest.mark.parametrize("rail", [None, 0, 1])
def test_a_port_is_named_rather_than_each_of_its_links(
    look: Any, size: int, out: bool, rail: int | None
) -> None:
    made = job(size)
    host = made[0]["comms"][0]["hosts"]
    for culprit in set(host):
        slow = {
            (frm["rank"], link["peer"], link["rail"]): 0.5
            for frm in made
            for link in links(frm)
            if host[frm["rank"] if out else link["peer"]] == culprit
            and rail in (None, link["rail"])
        }
        found = look(job(size, Planted(slow=slow), calls=1))
        ranks = tuple(rank for rank in range(size) if host[rank] == culprit)
        assert named(found) == [("port", ranks)]
        details = found.findings[0].details
        assert details["host"] == f"node{culprit}"
        assert details["direction"] == ("out" if out else "in")
        assert len(details["links"]) == len(slow)
        assert ("mlx5_1:1" in found.findings[0].text) == (rail != 0)


def test_all_links_from_one_host_to_another_are_named_together(look: Any) -> None:
    slow = {(frm, to, rail): 0.5 for frm in (0, 1) for to in (4, 5) for rail in (0, 1)}
    found = look(job(8, Planted(slow=slow)))
    assert named(found) == [("link", (0, 1, 4, 5))]
    assert found.findings[0].details["hosts"] == ["node0", "node2"]
    two = {(frm, to, rail): 0.5 for frm in range(4) for to in range(4, 8) for rail in (0, 1)}
    found = look(job(8, Planted(slow=two), hosts=2))
    assert named(found) == [("link", tuple(range(8)))]
    assert found.findings[0].details["hosts"] == ["node0", "node1"]


def test_links_within_a_host_are_not_compared(look: Any) -> None:
    """Ranks of one host that share no memory reach each other by a network, too."""
    made = job(8)
    for record in made:
        links(record).append({"peer": record["rank"] ^ 1, "rail": 0, "sent": 1 << 27})
        links(record)[-1]["busy_ns"] = 1 << 26
    made[4]["comms"][0]["links"][-1]["busy_ns"] = 1 << 27
    assert named(look(made)) == []


def test_links_that_moved_little_are_not_compared(look: Any) -> None:
    made = job(8)
    links(made[2])[3].update(sent=(1 << 20) - 1, busy_ns=SECOND)
    links(made[4])[1].update(sent=1 << 21, busy_ns=4_999_999)
    links(made[5])[1].update(sent=0, busy_ns=0)
    found = look(made)
    assert named(found) == []
    assert sum(wire.like is None for wire in found.wires) >= 3


OTHER = (
    {"call": "reduce"},
    {"algorithm": "two_shot"},
    {"nbytes": 12},
    {"dtype": "float64"},
    {"op": "max"},
    {"line": "/home/me/train.py:7"},
)


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_with_another_algorithm(look: Any, size: int) -> None:
    for rank in range(size):
        found = look(job(size, Planted(other={rank: {"algorithm": "two_shot"}})))
        details = found.findings[0].details
        assert details["fields"] == ["algorithm"]
        assert {tuple(g["ranks"]): g["algorithm"] for g in details["groups"]}[rank,] == "two_shot"
        if size > 2:
            assert named(found) == [("disagreement", (rank,))]
            assert details["majority"] == [r for r in range(size) if r != rank]
        else:  # of two ranks nobody is the majority
            assert named(found) == [("disagreement", (0, 1))]
            assert details["majority"] is None


@pytest.mark.parametrize("other", OTHER, ids=lambda other: next(iter(other)))
@pytest.mark.parametrize("rank", [0, 5])
def test_whatever_differs_is_named(look: Any, other: dict[str, Any], rank: int) -> None:
    made = job(8, Planted(other={rank: other}))
    event = made[rank]["comms"][0]["events"][8]
    if "algorithm" not in other:
        # An engine that finds this ends the call on every rank.
        for record in made:
            record["comms"][0]["events"][8]["error"] = "MismatchError"
    found = look(made)
    assert named(found) == [("disagreement", (rank,))]
    ((field, value),) = other.items()
    details = found.findings[0].details
    assert (details["fields"], details["seqs"]) == ([field], [8])
    assert details["groups"][1][field] == (value if field != "line" else "train.py:7")
    text = found.findings[0].text
    assert f"rank {rank} called {other.get('call', 'allreduce')}" in text
    assert f"at {event['line']}" in text
    assert "the other 7 called allreduce" in text
    assert ("which ended in MismatchError" in text) == ("algorithm" not in other)


def test_refused_calls_are_compared_by_their_texts(look: Any) -> None:
    made = job(8)
    for record in made:
        count = 7 if record["rank"] == 6 else 1 << 18
        event = record["comms"][0]["events"][8]
        event["error"] = "MismatchError"
        if record["rank"] % 2 == 0:  # the others found out only after they had begun
            text = f"allreduce(sum, float32, {count} elements)"
            event.update(call=text, algorithm="", nbytes=0, dtype="", op="")
    found = look(made)
    assert named(found) == [("disagreement", (6,))]
    assert found.findings[0].details["fields"] == ["nbytes"]
    assert "allreduce(sum, float32, 7 elements)" in found.findings[0].text


def test_calls_that_disagree_alike_are_one_finding(look: Any) -> None:
    made = job(8)
    for event in made[1]["comms"][0]["events"]:
        event["line"] = "/scratch/other.py:3"
    for event in made[2]["comms"][0]["events"]:  # only the folder differs, as between hosts
        event["line"] = event["line"].replace("/home/me", "/scratch")
    found = look(made)
    assert {kind for kind, _ in named(found)} == {"disagreement"}
    assert {ranks for _, ranks in named(found)} == {(1,)}
    assert sum(len(f.details["seqs"]) for f in found.findings) in (16, 17)
    assert len(found.findings) <= 5  # the four lines of the loop, and the one behind it


def test_bytes_that_rightly_differ_are_no_disagreement(look: Any) -> None:
    made = job(8)
    for record in made:
        for event in record["comms"][0]["events"]:
            event.update(call="alltoallv", algorithm="", nbytes=1000 + record["rank"])
    assert named(look(made)) == []


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_stopped_while_the_others_wait(look: Any, size: int) -> None:
    for rank in range(size):
        found = look(job(size, Planted(stopped={rank})))
        assert named(found) == [("stopped", (rank,))]
        details, others = found.findings[0].details, [r for r in range(size) if r != rank]
        assert (details["seq"], details["missing"]) == (CALLS[size], [rank])
        assert details["in_it"] == others
        last = CALLS[size] - 1
        assert details["last"][str(rank)]["seq"] == last
        line = f"/home/me/train.py:{41 + last % 4}"
        assert details["last"][str(rank)]["line"] == line
        text = found.findings[0].text
        assert f"rank {rank} never reached allreduce {CALLS[size]} of world" in text
        assert f" {last} at {line}, which finished" in text


def test_a_rank_that_went_on_alone_is_named(look: Any) -> None:
    found = look(job(8, Planted(stopped=set(range(8)) - {5})))
    assert named(found) == [("stopped", (5,))]
    assert found.findings[0].details["missing"] == [0, 1, 2, 3, 4, 6, 7]


def test_where_the_stopped_rank_is_instead(look: Any) -> None:
    made = job(8, Planted(stopped={3}))
    for rank in (2, 3):
        comm = {**made[rank]["comms"][0], "name": "pair", "id": "ff", "links": []}
        comm |= {"rank": rank - 2, "ranks": [2, 3], "hosts": [0, 0], "events": []}
        made[rank]["comms"].append(comm)
    entered = made[3]["clock"]["monotonic_ns"] - 19 * SECOND
    event = {**made[3]["comms"][0]["events"][0], "seq": 0, "line": "/home/me/pair.py:8"}
    event |= {"entered_ns": entered, "finished_ns": None, "peer": 0, "sent": []}
    made[3]["comms"][1]["events"] = [event]
    found = look(made)
    # Each of the two waits for the other, in different communicators.
    assert named(found) == [("stopped", (3,)), ("stopped", (2,))]
    assert "it was in allreduce 0 of pair at /home/me/pair.py:8" in found.findings[0].text


def test_a_call_that_all_have_reached_and_none_finished(look: Any) -> None:
    made = job(8, Planted(stopped={3}))
    late = made[3]["comms"][0]
    entered = made[3]["clock"]["monotonic_ns"] - 20 * SECOND
    event = {**late["events"][0], "seq": 16, "line": "/home/me/train.py:99", "peer": 2}
    late["events"].append({**event, "entered_ns": entered, "finished_ns": None})
    found = look(made)
    assert ("stuck", tuple(range(8))) in named(found)
    assert [kind for kind, _ in named(found) if kind != "late"] == ["stuck"]
    assert "waits were for ranks 2-3" in next(f.text for f in found.findings if f.kind == "stuck")


def test_a_message_that_nobody_sends(look: Any) -> None:
    made = job(8)
    event = {**made[6]["comms"][0]["events"][0], "call": "recv", "algorithm": "", "peer": 1}
    event["entered_ns"] = made[6]["clock"]["monotonic_ns"] - 9 * SECOND
    made[6]["comms"][0]["events"].append({**event, "finished_ns": None})
    found = look(made)
    assert named(found) == [("stuck", (6,))]
    assert "recv at /home/me/train.py:41 of world has waited since 9.00 s, for rank 1" in (
        found.findings[0].text
    )


def test_a_call_that_failed_on_its_own(look: Any) -> None:
    made = job(8)
    made[2]["comms"][0]["events"][-1].update(error="TransportError")
    made[2]["reason"] = "TransportError: the cable of mlx5_0 is out"
    found = look(made)
    assert named(found) == [("error", (2,))]
    assert "the cable of mlx5_0 is out" in found.findings[0].text


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_without_a_file(look: Any, size: int) -> None:
    for rank in range(size):
        found = look(job(size, Planted(lacking={rank})))
        assert named(found) == [("missing", (rank,))]
        assert f"no file of rank {rank}" in found.findings[0].text


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_died(look: Any, size: int) -> None:
    for rank in range(size):
        found = look(job(size, Planted(dead={rank})))
        assert named(found) == [("lost", (rank,))]
        details = found.findings[0].details
        assert (details["seq"], details["missing"]) == (CALLS[size], [rank])
        assert set(details["errors"].values()) == {"PeerLostError"}


def test_what_a_disagreement_leads_to_is_not_named(look: Any) -> None:
    """A rank that made another call dies of it, and the others go on to their next call."""
    made = job(8, Planted(other={3: {"call": "reduce"}}))
    for record in made:
        events = record["comms"][0]["events"]
        events[8]["error"] = "MismatchError"
        del events[10 if record["rank"] != 3 else 9 :]
        if record["rank"] != 3:
            events[9]["error"] = "BrokenError"
    assert named(look(made)) == [("disagreement", (3,))]


def test_errors_that_are_consequences_are_not_named(look: Any) -> None:
    made = job(8)
    for record in made[:6]:
        record["comms"][0]["events"][15]["error"] = "BrokenError"
    assert named(look(made)) == []


def test_a_communicator_that_a_rank_has_closed_is_not_waited_for(look: Any) -> None:
    made = job(8)
    for record in made:
        record["comms"].append({**record["comms"][0], "id": "ff", "name": "twin", "links": []})
        record["clock"]["monotonic_ns"] += 9 * SECOND
        for comm in record["comms"]:
            comm["events"] = [e for e in comm["events"] if e["finished_ns"] is not None]
    del made[5]["comms"][1]
    assert named(look(made)) == []
    twin = made[2]["comms"][1]
    twin["events"] = [*twin["events"][:-1], {**twin["events"][-1], "finished_ns": None}]
    assert ("stopped", (5,)) in named(look(made))


def test_of_ranks_without_files_only_who_was_waited_for_was_lost(look: Any) -> None:
    found = look(job(8, Planted(dead={3}, lacking={6})))
    assert named(found) == [("lost", (3,)), ("missing", (6,))]


def test_waits_are_counted_for_whom_they_were(look: Any) -> None:
    found = look(job(8, Planted(late={4: 5 * MS})))
    first = found.waits[0]
    assert first.rank == 4
    assert first.by == frozenset(range(8)) - {4}
    assert first.waited_ns > 0.9 * sum(one.waited_ns for one in found.waits)


def test_the_table_of_calls(look: Any) -> None:
    made = job(8, noise=0)
    for record in made:  # the calls that were under way are none of the table's
        record["comms"][0]["events"] = record["comms"][0]["events"][:16]
    rows = {row.call: row for row in look(made).kinds}
    assert {name: row.calls for name, row in rows.items()} == dict.fromkeys(rows, 4)
    assert rows["allreduce"].nbytes == 4 << 20
    events = [e for r in made for e in r["comms"][0]["events"] if e["call"] == "allreduce"]
    took = sorted(e["finished_ns"] - e["entered_ns"] for e in events)
    assert rows["allreduce"].median_ns == (took[15] + took[16]) / 2
    assert rows["allreduce"].p99_ns == took[-1]
    busbw = 2 * 7 / 8 * (1 << 20) * len(took) / sum(took)
    assert rows["allreduce"].busbw == pytest.approx(busbw)
    waited = sum(e["waited_ns"] for e in events)
    assert rows["allreduce"].waiting == pytest.approx(waited / sum(took))
    assert rows["barrier"].busbw is None
    assert rows["allgather"].busbw == pytest.approx(
        7 / 8 * (1 << 16) * 32 / sum(rows["allgather"].durations_ns)
    )


def test_communicators_are_matched_by_id_and_calls_by_number(look: Any) -> None:
    """Two communicators of one name, whose calls have the same numbers."""
    made = job(8)
    for record in made:
        half = record["rank"] // 4
        comm = dict(record["comms"][0], name="half", id=f"{half}{half}{COMM[2:]}", links=[])
        comm |= {"ranks": [4 * half + i for i in range(4)], "rank": record["rank"] % 4}
        comm |= {"hosts": [0, 0, 1, 1]}
        events = [{**e, "peer": None, "nbytes": 8 + half} for e in comm["events"]]
        record["comms"].append({**comm, "events": events})
    found = look(made)
    assert named(found) == []
    assert [one.name for one in found.comms] == ["world", "half #0023", "half #1123"]
