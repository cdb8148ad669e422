"""libfabric by a stand-in: completions in any order, no progress but by polling, strict rules."""

from __future__ import annotations

import re
from ctypes.util import find_library
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
        # on some cards EFA writes for who asks for its newer interface
        ({"FAKEFABRIC_WRITES": "newer", "FAKEFABRIC_MINOR": "17"}, 7, 8),
        ({"FAKEFABRIC_WRITES": "newer", "FAKEFABRIC_MINOR": "18"}, 1, 2),
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


@pytest.mark.parametrize(
    "settings",
    [{}, {"FAKEFABRIC_BUSY": "1"}, {"FAKEFABRIC_TELLS": "1"}],
    ids=["closes", "stays open", "tells"],
)
@pytest.mark.parametrize("end", ["broken_off", "late"])
def test_nothing_is_read_of_or_into_memory_once_its_message_is_broken_off(
    library: Path, end: str, settings: dict[str, str]
) -> None:
    done = run(library, JOB, "4", end, **settings)
    assert done.stdout == "libfabric libfabric libfabric libfabric\n", done.stderr


@pytest.mark.skipif(not find_library("fabric"), reason="no libfabric: apt-get install libfabric1")
def test_a_message_of_the_real_tcp_provider_is_broken_off(tmp_path: Path) -> None:
    for _ in range(2):  # most runs crashed
        done = run(tmp_path, JOB, "4", "broken_off", PYCOLL_FABRIC="tcp")
        assert done.stdout == "libfabric libfabric libfabric libfabric\n", done.stderr


@pytest.mark.skipif(not find_library("fabric"), reason="no libfabric: apt-get install libfabric1")
def test_an_endpoint_of_the_real_tcp_provider_closes_while_messages_come_in(tmp_path: Path) -> None:
    done = run(tmp_path, JOB, "4", "abandoned", PYCOLL_FABRIC="tcp")
    assert done.stdout == "libfabric libfabric libfabric libfabric\n", done.stderr


def test_sends_end_though_their_receiver_makes_no_other_call(library: Path, tmp_path: Path) -> None:
    done = run(library, JOB, "2", "silent", str(tmp_path))
    assert done.stdout == "libfabric libfabric\n", done.stderr


PACKETS = 2  #: regions of a peer without writes; the next: with these, with headers along
WRITTEN, JOINED = PACKETS + 2, PACKETS + 3
NO_READS = {"FAKEFABRIC_ENDPOINTS": "1"}


@pytest.mark.parametrize(
    ("settings", "way", "regions"),
    [
        ({}, "reads", JOINED),
        ({"FAKEFABRIC_PLACES": "1"}, "reads", WRITTEN),  # no place for headers is registered
        ({"FAKEFABRIC_WRITES": "none"}, "packets", PACKETS),
        (NO_READS, "packets", JOINED),
        ({"FAKEFABRIC_QUEUES": "2"}, "packets", JOINED),
        ({"FAKEFABRIC_REFUSE": "remote_read"}, "packets", JOINED),
        ({"FAKEFABRIC_REFUSE": "remote_write"}, "reads", PACKETS),
        ({"FAKEFABRIC_REFUSE": "write"}, "reads", PACKETS),
        ({"FAKEFABRIC_REFUSE": "3"}, "reads", PACKETS),  # the slots
        ({"FAKEFABRIC_REFUSE": "4"}, "reads", PACKETS),  # the shadow
        ({"FAKEFABRIC_REFUSE": "5"}, "reads", WRITTEN),  # the place for headers
    ],
)
def test_a_transfer_goes_by_what_can_be_opened_and_registered(
    library: Path, settings: dict[str, str], way: str, regions: int
) -> None:
    done = run(library, JOB, "2", "way", **settings)
    assert done.stdout == f"{way}, {regions} regions\nlibfabric libfabric\n", done.stderr
    assert "does not close" not in done.stderr  # as the stand-in does where a region is left


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize(
    "settings",
    [NO_READS, {"FAKEFABRIC_PLACES": "1"}, {"FAKEFABRIC_REFUSE": "5"}],
    ids=["no endpoint for reads", "one place", "no region for headers"],
)
def test_transfers_where_one_rank_lacks_what_the_other_has(
    library: Path, settings: dict[str, str], rank: str
) -> None:
    done = run(library, JOB, "2", "transfers", ONE_RANK=rank, **settings)
    assert done.stdout == "libfabric libfabric\n", done.stderr


#: Of long arrays that two ranks exchange, how it ends.
RIGHT = {f"rank {rank}: right" for rank in range(2)}
NO_REGION = ": no region for 1048576 bytes that are to come from rank"
NO_PACKETS = "its connection cannot be used here (fi_mr_reg of provider efa: "


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"FAKEFABRIC_REFUSE": "remote_read"}, None),
        ({"FAKEFABRIC_REFUSE": "remote_read", "ONE_RANK": "1"}, None),
        ({"FAKEFABRIC_REFUSE": "read"}, NO_REGION),
        ({"FAKEFABRIC_REFUSE": "read", "ONE_RANK": "1"}, NO_REGION),
        ({"FAKEFABRIC_REFUSE": "1"}, NO_PACKETS),
        ({"FAKEFABRIC_REFUSE": "2"}, NO_PACKETS),
        ({"FAKEFABRIC_REFUSE": "5"}, None),
        *(({"FAKEFABRIC_REFUSE": call}, "") for call in "678"),  # of either kind
        *(({"FAKEFABRIC_REGIONS": str(n)}, "") for n in range(JOINED - 1, JOINED + 4)),
    ],
    ids=lambda value: ",".join(value.values()) if isinstance(value, dict) else "",
)
def test_where_registrations_are_scarce_all_is_right_or_all_hear_why_it_is_not(
    library: Path, settings: dict[str, str], why: str | None
) -> None:
    """`why`: None: all is right; "": or a transfer fails."""
    done = run(library, JOB, "2", "scarce", **settings)
    assert "does not close" not in done.stderr, done.stderr  # as where a region is left
    assert done.stdout.endswith("libfabric libfabric\n"), done.stderr
    said = {line for line in done.stdout.splitlines() if line.startswith("rank ")}
    if why is None or (why == "" and said == RIGHT):
        assert said == RIGHT
    else:
        assert len(said) == 2
        assert all((why or NO_REGION) in line and line.endswith("; True") for line in said), said
        assert why == NO_PACKETS or all("a transfer at " in line for line in said), said


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


@pytest.mark.parametrize("elements", ["1000", "300000"])
@pytest.mark.parametrize("dead", [[0], [3], [2, 0], [1, 3]], ids=str)
def test_whoever_dies_the_others_go_on(library: Path, dead: list[int], elements: str) -> None:
    done = run(library, JOB, "4", "deaths", str(dead), elements)
    living = [rank for rank in range(4) if rank not in dead]
    assert done.stdout.count(f"left {living}\n") == len(living), done.stdout + done.stderr


def test_every_survivor_names_the_rank_that_was_killed(library: Path) -> None:
    walk = ROOT / "tests" / "faults" / "walk.py"
    # For which the walk asks. Before 1.18 an endpoint that reads would not be closed.
    settings = {"FAKEFABRIC_PROVIDER": "tcp", "FAKEFABRIC_MINOR": "18"}
    done = run(library, walk, "--jobs", "12", "--ways", "libfabric", **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"jobs": 12, "survivors": 36' in done.stdout
