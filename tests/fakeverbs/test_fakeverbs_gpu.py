"""The stand-in for libibverbs with a GPU's memory: what is refused, and what is seen when.

The memory is that of the stand-in for libcuda. No real device was at hand to compare with: what is
asserted here is what the manual pages, the kernel's sources and NVIDIA's documents say.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import compiled
import fakecuda_library
import fakeverbs_library
import pytest
from fabric import Fabric

_LACK = fakeverbs_library.lack() or fakecuda_library.lack()
pytestmark = [pytest.mark.native, pytest.mark.skipif(bool(_LACK), reason=_LACK)]

#: A GPU that orders nothing, as one before compute capability 9.0 may.
OLD = {"capability": 80}


@pytest.fixture
def fabric(tmp_path: Path):
    with Fabric(tmp_path / "fabric", fakeverbs_library.built()) as fabric:
        yield fabric


def cuda(sanitizer: str) -> Path:
    """Return the folder of the stand-in for libcuda: kernels are not wanted."""
    return fakecuda_library.built(sanitizer, dtypes=("int32",))


def drive(
    fabric: Fabric,
    scenario: str,
    *,
    gpu: Mapping[str, object] = OLD,
    sanitizer: str = "plain",
    code: int = 0,
    env: Mapping[str, str] | None = None,
    **options: object,
) -> list[str]:
    """Run a scenario; returns its lines, or what it complains of if it is to fail."""
    found = fabric.environment(fakeverbs_library.built(sanitizer), **options)
    found["LD_LIBRARY_PATH"] += f":{cuda(sanitizer)}"
    found |= {f"FAKECUDA_{name.upper()}": str(value) for name, value in gpu.items()}
    done = subprocess.run(
        [str(fakeverbs_library.driver(sanitizer)), "fake0", "fake1", "3", scenario],
        env={"PATH": os.environ["PATH"], **found, **(env or {})},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == code, done.stdout + done.stderr
    if code:
        return done.stderr.splitlines()
    assert done.stderr == ""
    assert not any(one.alive for one in fabric.opened())
    return [line.strip() for line in done.stdout.splitlines()[1:]]


BOTH = pytest.mark.parametrize("way", ["dmabuf", "peermem"])
PACKETS = 10  #: of 40,000 bytes


@BOTH
@pytest.mark.parametrize("flush", ["driver", "read"])
def test_a_completion_overtakes_the_data(fabric: Fabric, way: str, flush: str) -> None:
    said = drive(fabric, "gpu_written", peermem=1, env={"WAY": way, "FLUSH": flush})
    assert said == ["told: o, later: o, flushed: x"]
    counts = fabric.counts("fake1")
    assert counts["held"] == counts[f"landed_by_{flush}"] == PACKETS
    assert counts["gpu_reads"] == (2 if flush == "read" else 0)
    assert counts["driver_flushes"] == (2 if flush == "driver" else 0)
    assert counts["never_landed"] == counts["landed_late"] == 0
    assert fabric.counts("fake0")["held"] == 0


@BOTH
def test_without_a_flush_it_is_never_seen(fabric: Fabric, way: str) -> None:
    said = drive(fabric, "gpu_written", peermem=1, env={"WAY": way})
    assert said == ["told: o, later: o, flushed: o"]
    assert fabric.counts("fake1")["never_landed"] == PACKETS


@pytest.mark.parametrize(
    ("gpu", "relaxed", "seen"),
    [
        ({"capability": 90}, True, True),
        ({"capability": 90, "coherent": 1}, False, False),
        ({"capability": 80, "ordering": 100}, False, True),
        ({"capability": 80, "ordering": 100}, True, False),
        ({"capability": 90, "coherent": 1, "ordering": 200}, False, True),
    ],
)
def test_where_the_gpu_orders_what_is_written(
    fabric: Fabric, gpu: dict[str, object], relaxed: bool, seen: bool
) -> None:
    env = {"RELAXED": "1"} if relaxed else {}
    said = drive(fabric, "gpu_written", gpu=gpu, env=env)
    assert said == [
        f"told: {'x' if seen else 'o'}, later: {'x' if seen else 'o'}, flushed: "
        f"{'x' if seen else 'o'}"
    ]
    assert fabric.counts("fake1")["held"] == (0 if seen else PACKETS)


def test_the_driver_may_offer_no_flush(fabric: Fabric) -> None:
    gpu = OLD | {"flush": 0}
    said = drive(fabric, "gpu_written", gpu=gpu, env={"FLUSH": "driver"}, code=1)
    assert said == ["cuFlushGPUDirectRDMAWrites = 801"]
    assert drive(fabric, "gpu_written", gpu=gpu, env={"FLUSH": "read"}) == [
        "told: o, later: o, flushed: x"
    ]


def test_what_was_written_lands_in_its_order(fabric: Fabric) -> None:
    assert drive(fabric, "gpu_order") == ["the peer read: y", "there: y x"]
    counts = fabric.counts("fake1")
    assert (counts["held"], counts["landed_by_read"], counts["gpu_reads"]) == (2, 2, 1)


@BOTH
def test_a_read_by_another_card_is_no_flush(fabric: Fabric, way: str) -> None:
    said = drive(fabric, "gpu_other_card", peermem=1, env={"WAY": way})
    assert said == ["read by the other card: o o", "by the card that wrote: x x"]
    assert fabric.counts("fake0")["gpu_reads"] == fabric.counts("fake1")["gpu_reads"] == 1


def test_what_sends_and_reads_bring(fabric: Fabric) -> None:
    assert drive(fabric, "gpu_scattered") == ["sent: o, flushed: x", "read: x, flushed: r"]


def test_memory_that_lags_behind_waits_for_its_flush_as_well(fabric: Fabric) -> None:
    said = drive(fabric, "gpu_written", late=1000, env={"FLUSH": "read"})
    assert said == ["told: o, later: o, flushed: x"]


def test_a_read_that_is_overtaken_says_nothing_of_what_came_behind_it(fabric: Fabric) -> None:
    said = drive(fabric, "gpu_overtaken", overtake=5_000_000)
    assert said == ["of the read: 0 more", "first: what came behind it, read: x, flushed: y"]


def test_a_read_that_nothing_overtakes_is_answered_in_the_end(fabric: Fabric) -> None:
    said = drive(fabric, "gpu_written", overtake=1000, env={"FLUSH": "read"})
    assert said == ["told: o, later: o, flushed: x"]


@BOTH
def test_a_gpu_is_read_and_never_inlined(fabric: Fabric, way: str) -> None:
    said = drive(fabric, "gpu_source", peermem=1, jitter=300, env={"WAY": way})
    assert said == ["there: g g.", "inline: Bad address"]


def test_what_is_refused(fabric: Fabric) -> None:
    assert drive(fabric, "gpu_refusals") == [
        "by address: Bad address",
        "past its end: Bad address",
        "a dma-buf: taken",
        "its second half: taken",
        "past its end: Invalid argument",
        "another offset in the page: Invalid argument",
        "of nothing: Invalid argument",
        "written by others alone: Invalid argument",
        "no dma-buf: Invalid argument",
        "no descriptor: Bad file descriptor",
    ]


@pytest.mark.parametrize("options", [{"like": "rxe"}, {"dmabuf": 0}])
def test_where_no_dmabuf_is_taken(fabric: Fabric, options: dict[str, object]) -> None:
    said = drive(fabric, "gpu_refusals", peermem=1, **options)
    assert said[:3] == [
        "by address: taken",
        "past its end: Bad address",
        "a dma-buf: Operation not supported",
    ]


def test_a_gpu_may_be_out_of_reach_by_address(fabric: Fabric) -> None:
    said = drive(fabric, "gpu_refusals", gpu={"rdma": 0}, peermem=1)
    assert said[0] == "by address: Bad address"


def test_what_is_deregistered_never_lands(fabric: Fabric) -> None:
    assert drive(fabric, "gpu_dropped") == ["there: o"]
    assert fabric.counts("fake1")["never_landed"] == 1


def test_data_that_land_late_or_at_once(fabric: Fabric) -> None:
    assert drive(fabric, "gpu_late", hold="late") == ["there: x"]
    assert fabric.counts("fake1")["landed_late"] == 1
    assert drive(fabric, "gpu_late", hold="none") == ["there: x"]
    assert fabric.counts("fake1")["held"] == 1


@BOTH
def test_who_frees_what_is_registered_dies(fabric: Fabric, way: str) -> None:
    said = drive(fabric, "gpu_freed", peermem=1, env={"WAY": way}, code=-6)
    assert len(said) == 1
    assert said[0].startswith("fakecuda: cuMemFree(0x")
    assert said[0].endswith(") of memory that a NIC has registered")


@BOTH
@pytest.mark.parametrize("which", ["1", "1+"])
def test_registrations_fail_on_request(fabric: Fabric, way: str, which: str) -> None:
    fail = f"reg_{way}_mr:{which}"
    said = drive(fabric, "gpu_written", peermem=1, fail=fail, env={"WAY": way}, code=1)
    assert said == ["registering memory of the GPU: Cannot allocate memory"]


@BOTH
def test_registrations_fail_from_one_on(fabric: Fabric, way: str) -> None:
    """The second is what another card reads."""
    fail, env = f"reg_{way}_mr:2+", {"WAY": way}
    drive(fabric, "gpu_written", peermem=1, fail=fail, env=env)
    said = drive(fabric, "gpu_other_card", peermem=1, fail=fail, env=env, code=1)
    assert said == ["registering memory of the GPU: Cannot allocate memory"]


@pytest.mark.parametrize("sanitizer", ["tsan", "asan"])
def test_no_race_or_stray_access_with_a_gpu(fabric: Fabric, sanitizer: str) -> None:
    compiled.require(sanitizer)
    for scenario in ("gpu_written", "gpu_order", "gpu_scattered", "gpu_source", "gpu_dropped"):
        drive(fabric, scenario, sanitizer=sanitizer, env={"FLUSH": "driver"})
