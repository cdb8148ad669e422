"""Records of calls on GPUs: when kernels ran, by events on the stream."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import fakecuda
import gpus
import numpy as np
import pytest

import pycoll

pytestmark = gpus.MARKS

#: Of the GPU's clock against the host's: how long a rank that reads both may be off its core.
SLACK_NS = 100_000_000


def of_gpu(record: dict[str, Any]) -> list[dict[str, Any]]:
    (events,) = [
        comm["events"]
        for comm in record["comms"]
        if comm["events"] and comm["events"][0]["device"] == "cuda:0"
    ]
    return events


def test_events_say_when_kernels_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLL_RECORD", str(tmp_path))

    def rank() -> None:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x = fakecuda.Stream(), gpus.of(np.ones(100, "f4"))
            with comm.on_stream(stream):
                comm.allreduce(x)
                stream.synchronize()
                comm.barrier()
                began, late = time.monotonic_ns(), []
                for _ in range(3):
                    if comm.rank == 1:
                        time.sleep(0.5)
                    late.append(time.monotonic_ns())
                    comm.allreduce(x)
                stream.synchronize()
                ended = time.monotonic_ns()
            _, *events = of_gpu(comm.record())
            assert [one["call"] for one in events] == ["allreduce"] * 3
            for one in events:
                assert began - SLACK_NS <= one["entered_ns"] <= one["finished_ns"]
                assert one["finished_ns"] <= ended + SLACK_NS
            for one, after in itertools.pairwise(events):
                assert one["finished_ns"] <= after["entered_ns"] + SLACK_NS
            for one, at in zip(events, late, strict=True):
                if comm.rank == 0:  # its kernel waited for the other's
                    assert one["finished_ns"] - one["entered_ns"] >= 300_000_000
                else:
                    assert one["entered_ns"] >= at - SLACK_NS

    gpus.ranks(2, rank)


def test_more_calls_than_have_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLL_RECORD", str(tmp_path))

    def rank() -> None:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x = fakecuda.Stream(), gpus.of(np.ones(10, "f4"))
            with comm.on_stream(stream):
                for _ in range(200):
                    comm.allreduce(x, op="max")
                stream.synchronize()
            events = of_gpu(comm.record())
            assert [one["seq"] for one in events] == list(range(1, 201))
            assert all(one["entered_ns"] <= one["finished_ns"] for one in events)
            # Of those that have no events any more only the enqueuing is known.
            known = [one["entered_ns"] < one["finished_ns"] for one in events]
            assert not any(known[:72])
            assert all(known[72:])

    gpus.ranks(2, rank)


def test_a_kernel_that_waits_has_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLL_RECORD", str(tmp_path))

    def rank() -> None:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x = fakecuda.Stream(), gpus.of(np.ones(10, "f4"))
            with comm.on_stream(stream):
                comm.allreduce(x)
                stream.synchronize()
                comm.barrier()
                if comm.rank == 0:
                    comm.allreduce(x)
                    while (last := of_gpu(comm.record())[-1])["finished_ns"] is not None:
                        assert last["seq"] == 2
                    assert last["entered_ns"] is not None
                comm.barrier()
                if comm.rank == 1:
                    comm.allreduce(x)
                stream.synchronize()
            assert of_gpu(comm.record())[-1]["finished_ns"] is not None

    gpus.ranks(2, rank)


def test_without_the_setting_calls_are_enqueued_and_no_more() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            comm.cuda()
            stream, x = fakecuda.Stream(), gpus.of(np.ones(10, "f4"))
            with comm.on_stream(stream):
                comm.allreduce(x)
                comm.allreduce(x)
                stream.synchronize()
            for one in of_gpu(comm.record()):
                assert one["entered_ns"] == one["finished_ns"]

    gpus.ranks(2, rank)
