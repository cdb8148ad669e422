"""GPUDirect RDMA on real verbs: all that a message takes is counted, and faults do not go unseen.

Soft-RoCE places data before it completes, so no data show that a flush is missing. What shows it is
that each part of a message waits for a flush, and each of those is a read that the kernel has seen
the very card send to itself. Threads of the host die if they touch memory of the GPU (memory
protection keys); the driver reaches what it has pinned all the same. Memory that a driver has
pinned cannot be freed.

Messages between two ranks go forth and back one at a time, so that numbers are exact. They are
those that two stand-ins for cards have counted (bench/gpudirect_counts.py).

Of the faults in planted.py two are not here. With another card's reads nothing ever comes, whatever
carries it. A read that began too early differs from a right one in nothing that is counted, only in
when, and Soft-RoCE has placed all by then; the stand-in for libibverbs, which holds data back,
shows it (tests/native/test_device_comms.py).
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import engine
import fakecuda_library
import planted
import pytest
from batch_job import State
from command import GuestError
from device_job import FLUSHES, device_ranks
from packets import Looped
from rack import Rack
from ranks import ROOT

pytestmark = pytest.mark.skipif(
    bool(fakecuda_library.lack()), reason=fakecuda_library.lack() or "-"
)

#: Bytes of a message, how often it goes forth and back, and that of which stand-ins have counted
#: what it takes.
MESSAGES = (
    (40, 20, 40),
    (200, 20, 4096),
    (4096, 20, 4096),
    (65536, 20, 65536),
    (1 << 20, 3, 1 << 20),
)
COUNTS = ("requests", "credits", "gpu_bytes", "gpu_flushes", "gpu_flushed", "driver_flushes")


def counted(nbytes: int) -> tuple[int, int, int]:
    """Return what a message has taken: work requests, bytes of the host's memory, parts."""
    rows = json.loads((ROOT / "bench" / "results" / "gpudirect-counts.json").read_text())["rows"]
    wanted = "stream", nbytes, "direct, flushed by reads"
    sender, receiver = (row for row in rows if (row["call"], row["nbytes"], row["way"]) == wanted)
    requests = sender["requests"] - sender["credits"]
    return int(requests), int(sender["host_bytes"]), int(receiver["gpu_flushed"])


def complaints(rack: Rack, flush: str, built: Path | None = None) -> list[str]:
    """Say what is wrong with messages between two ranks with two cards each: it is all counted."""
    said: list[str] = []
    settings = {"PYCOLL_VERBS": "timeout=19"}
    with device_ranks(rack, ["echo"], 2, flush, settings, built, rails=2, stdin=True) as ranks:
        try:
            before: list[State] = [json.loads(rank.line(0)) for rank in ranks]
            for turn, (nbytes, times, like) in enumerate(MESSAGES):
                looped = Looped(rack.nics, range(4))
                for rank in ranks:
                    rank.send(f"{nbytes} {times}\n")
                now = [json.loads(rank.line(turn + 1)) for rank in ranks]
                if any("error" in one for one in now):
                    raise GuestError(ranks.describe())
                packets = looped.packets()
                for number, (then, one) in enumerate(zip(before, now, strict=True)):
                    more = {name: one[name] - then[name] for name in COUNTS}
                    sent = sum(one["bytes"]) - sum(then["bytes"])
                    more["host_bytes"] = sent - more["gpu_bytes"]
                    cards = packets[2 * number : 2 * number + 2]
                    takes = [times * each for each in counted(like)]
                    said += wrong(flush, nbytes, times, takes, more, cards)
                before = now
            for rank in ranks:
                rank.close_input()
            ranks.finish()
        except GuestError as error:
            for rank in ranks:
                rank.kill()
            said.append(str(error))
            with suppress(GuestError):
                ranks.finish()
            said.append(ranks.describe())
    return [*said, *rack.nics.objects()]


def wrong(
    flush: str,
    nbytes: int,
    times: int,
    takes: list[int],
    more: dict[str, int],
    looped: list[int],
) -> list[str]:
    """Compare what a rank has counted for its messages with what they take.

    Args:
        flush: Of FLUSHES.
        nbytes: Of a message.
        times: How many it has sent, and received.
        takes: Work requests, bytes of the host's memory and parts of all of them.
        more: What it has counted.
        looped: What each of its cards has sent to itself: of a read, the request and the answer.
    """
    requests, host_bytes, parts = takes
    parts = 0 if flush == "none" else parts
    reads = [packets // 2 for packets in looped]
    said = {
        "work requests": (more["requests"] - more["credits"], requests),
        "bytes out of the host's memory": (more["host_bytes"], host_bytes),
        "bytes out of the GPU's memory": (more["gpu_bytes"], times * nbytes - host_bytes),
        "parts that waited for a flush": (more["gpu_flushed"], parts),
        "calls of the driver": (
            more["driver_flushes"],
            more["gpu_flushes"] if flush == "driver" else 0,
        ),
        "reads by its cards": (sum(reads), more["gpu_flushes"] if flush == "read" else 0),
        "packets of half a read": (sum(packets % 2 for packets in looped), 0),
    }
    if flush == "read" and nbytes in (200, 4096):
        said["flushes"] = (more["gpu_flushes"], parts)  # each message alone
    if flush == "read" and nbytes == 65536:  # a part by each card, which reads for it
        said["reads by the first card"] = (reads[0], times)
        said["reads by the second card"] = (reads[1], times)
    least = parts > 0 and not 0 < more["gpu_flushes"] <= parts
    return [
        f"{nbytes} B, {times} times: {got} {what}, want {want}"
        for what, (got, want) in said.items()
        if got != want
    ] + [f"{nbytes} B: {more['gpu_flushes']} flushes for {parts} parts"] * least


@pytest.mark.parametrize("flush", FLUSHES)
def test_every_part_is_flushed_by_the_card_that_wrote_it(rack: Rack, flush: str) -> None:
    assert complaints(rack, flush) == []


#: What finds a planted fault.
FINDS = {
    "no flush": "0 parts that waited for a flush",
    "no flush by the driver": "0 calls of the driver",
    "only the first card reads": "0 reads by the second card",
    "inline from the GPU": "ended with -11",
    "staged by the host": "ended with -11",
    "the card raises the count": "0 parts that waited for a flush",
    "freed before the queue pairs are gone": "of memory that a driver has pinned",
}


@pytest.mark.parametrize("fault", FINDS)
def test_a_planted_fault_is_found(rack: Rack, fault: str) -> None:
    built = engine.build(fault)
    said = complaints(rack, planted.GPUDIRECT[fault].by, built)
    assert any(FINDS[fault] in one for one in said), said
