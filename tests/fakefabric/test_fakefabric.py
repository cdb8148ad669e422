"""libfabric by a stand-in: completions in any order, no progress but by polling, strict rules."""

from __future__ import annotations

import re
from pathlib import Path

import fakefabric
import pytest
from fakefabric import HERE, ROOT, run

pytestmark = pytest.mark.skipif(bool(fakefabric.lack()), reason=fakefabric.lack() or "-")
JOB = HERE / "job.py"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fakefabric.build(tmp_path_factory.mktemp("fakefabric"))


@pytest.mark.parametrize("size", [2, 4, 8])
def test_transfers_of_every_length_come_whole(library: Path, size: int) -> None:
    done = run(library, JOB, str(size), "transfers")
    assert done.stdout == " ".join(["libfabric"] * size) + "\n", done.stderr


def test_transfers_by_writes_that_go_to_one_place(library: Path) -> None:
    done = run(library, JOB, "3", "transfers", FAKEFABRIC_PLACES="1")
    assert done.stdout == "libfabric libfabric libfabric\n", done.stderr


@pytest.mark.parametrize("writes", ["none", "emulated"])
def test_transfers_without_writes_of_its_own(library: Path, writes: str) -> None:
    done = run(library, JOB, "3", "transfers", FAKEFABRIC_WRITES=writes)
    assert done.stdout == "libfabric libfabric libfabric\n", done.stderr


@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [
        ({}, 1, 2),  # the bytes with the header, and maybe one that tells what came
        ({"FAKEFABRIC_PLACES": "1"}, 2, 3),  # the header in a packet of its own
        ({"FAKEFABRIC_WRITES": "none"}, 7, 8),
        ({"FAKEFABRIC_WRITES": "emulated"}, 7, 8),
        ({"FAKEFABRIC_LONGEST": "65536"}, 7, 8),
    ],
)
def test_a_long_message_is_written_where_the_provider_itself_can(
    library: Path, settings: dict[str, str], least: int, most: int
) -> None:
    done = run(library, JOB, "2", "operations", **settings)
    assert (match := re.search(r"operations (\d+)\n", done.stdout)), done.stderr
    assert least <= int(match[1]) <= most


def test_a_message_is_not_lost_whose_completion_comes_after_its_receiver_has_closed(
    library: Path,
) -> None:
    done = run(library, JOB, "2", "last", FAKEFABRIC_LATE="1500")
    assert done.stdout == "libfabric libfabric\n", done.stderr


@pytest.mark.parametrize("busy", ["", "1"], ids=["closes", "stays open"])
@pytest.mark.parametrize("end", ["broken_off", "late"])
def test_nothing_is_read_of_or_into_memory_once_its_message_is_broken_off(
    library: Path, end: str, busy: str
) -> None:
    done = run(library, JOB, "4", end, **({"FAKEFABRIC_BUSY": busy} if busy else {}))
    assert done.stdout == "libfabric libfabric libfabric libfabric\n", done.stderr


def test_ports_on_another_network_than_the_one_the_ranks_met_on(library: Path) -> None:
    name = "verbs;ofi_rxm"
    settings = {"FAKEFABRIC_IP": "1", "FAKEFABRIC_PROVIDER": name, "PYCOLL_FABRIC": name}
    done = run(library, JOB, "2", "transfers", **settings)
    assert done.stdout == "libfabric libfabric\n", done.stderr


def test_an_endpoint_that_stays_open_is_told_and_keeps_its_memory(library: Path) -> None:
    done = run(library, JOB, "2", "transfers", FAKEFABRIC_BUSY="1")
    told = "pycoll: provider efa does not close its endpoint, and keeps its memory: "
    assert done.stdout == "libfabric libfabric\n", done.stderr
    assert done.stderr.count(told) == 4  # two ranks, with an endpoint for reads each


def test_every_collective(library: Path) -> None:
    done = run(library, JOB, "2", "collectives")
    assert done.stdout == "libfabric libfabric\n", done.stderr


def test_a_forked_child_leaves_the_endpoint_alone(library: Path) -> None:
    done = run(library, JOB, "2", "forks")
    assert done.stdout == "libfabric libfabric\n", done.stderr


def test_a_forked_child_does_not_hide_its_parents_death(library: Path) -> None:
    done = run(library, JOB, "3", "orphan")
    told = [line for line in done.stdout.splitlines() if line.startswith(("rank 0", "rank 2"))]
    assert len(told) == 2, done.stdout + done.stderr
    assert all("rank 1 (" in line and line.endswith("; True") for line in told)


@pytest.mark.parametrize(("size", "queue"), [(2, 6), (3, 14), (4, 24)])
def test_no_more_is_posted_than_a_short_queue_holds(library: Path, size: int, queue: int) -> None:
    done = run(library, JOB, str(size), "transfers", FAKEFABRIC_QUEUE=str(queue))
    assert done.stdout == " ".join(["libfabric"] * size) + "\n", done.stderr


def test_a_queue_that_is_too_short_for_all_ranks_is_refused(library: Path) -> None:
    done = run(library, JOB, "4", "transfers", FAKEFABRIC_QUEUE="17")
    assert (
        "PYCOLL_TRANSPORT=libfabric wants one provider on all ranks: rank 0 (process "
        in done.stderr
    )
    assert (
        "provider efa has queues for 17 receives and 17 sends, and 4 ranks want 18 of each; "
        "PYCOLL_TRANSPORT=tcp does without (so on 3 ranks more)" in done.stderr
    )


def test_a_send_that_fails_is_a_lost_peer(library: Path) -> None:
    done = run(library, JOB, "2", "cut", FAKEFABRIC_FAIL="500")
    assert done.stdout.endswith("libfabric libfabric\n"), done.stderr
    heard = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert len(heard) == done.stdout.count("and broken from then on\n") == 2
    # Whom the provider told, says why; whoever hears of it first by the socket's end, says that.
    why = "abort (provider efa: as the stand-in was told)", "it closed its connection"
    assert all(any(text in line for text in why) for line in heard), heard


@pytest.mark.parametrize("after", range(100, 108))
def test_a_packet_that_lies_is_an_error_and_no_more(library: Path, after: int) -> None:
    """Each packet after so many has one wrong byte in its header, another in each process."""
    done = run(library, JOB, "2", "lied", FAKEFABRIC_LIE=str(after))
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        kinds = "(InternalError|MismatchError|PeerLostError|BrokenError|CollectiveTimeout)"
        assert re.search(rf"rank {rank}: {kinds}: ", done.stdout), done.stdout
    assert done.stdout.endswith("libfabric libfabric\n")


def test_a_provider_that_is_not_there_is_named(library: Path) -> None:
    done = run(library, JOB, "2", "cut", PYCOLL_FABRIC="cxi")
    assert "UnavailableError: PYCOLL_TRANSPORT=libfabric wants one provider on all" in done.stderr
    assert "has no endpoint for reliable datagrams of provider cxi" in done.stderr
    assert "fi_info -t FI_EP_RDM lists what there is (so on 1 ranks more)" in done.stderr


def test_every_survivor_names_the_rank_that_was_killed(library: Path) -> None:
    walk = ROOT / "tests" / "faults" / "walk.py"
    settings = {"FAKEFABRIC_PROVIDER": "tcp"}  # for which the walk asks
    done = run(library, walk, "--jobs", "12", "--ways", "libfabric", **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"jobs": 12, "survivors": 36' in done.stdout
