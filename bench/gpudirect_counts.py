"""What is done for a message between the GPUs of two hosts, staged and by GPUDirect RDMA? Counted.

Both the driver and the cards are stand-ins (tests/fakecuda, tests/fakeverbs), so nothing is timed:
work requests, credit, flushes, packets, what the proxy is handed, and out of which memory bytes are
sent. `allreduce` is one_shot, of which each rank waits before the next call; `stream` is messages
from rank 0 to rank 1 one behind the other. Each row is of one rank, for each call. How many
flushes and credits there are depends on what comes together, and so on the machine; the rest does
not.

Run: python bench/gpudirect_counts.py [--calls 40] [--sizes 40,4K]; it wants root, for hosts with
a boot id each, and a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# In front: tests/gpudirect has the conftest.py that is meant, tests/fakeverbs the fabric.py.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/cuda"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/fakecuda"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/fakeverbs"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/gpudirect"))

import fakecuda
import gpus
import numpy as np
from conftest import Cluster
from launch import RESULTS

import pycoll
from pycoll.benchmark import metadata
from pycoll.cli import types
from pycoll.runtime.native import device_comm, verbs

NAME = "gpudirect-counts.json"
SIZES = "40,4K,64K,1M"
#: Where data lies, and what flushes: options of the stand-in for libcuda, and ranks that stage.
WAYS: dict[str, tuple[dict[str, object], tuple[int, ...]]] = {
    "staged": ({"capability": 90}, (0, 1)),
    "direct, no flush": ({"capability": 90}, ()),
    "direct, flushed by the driver": ({"capability": 80, "flush": 1}, ()),
    "direct, flushed by reads": ({"capability": 80, "flush": 0}, ()),
    "host to GPU, flushed by reads": ({"capability": 80, "flush": 0}, (0,)),
    "GPU to host": ({"capability": 80, "flush": 0}, (1,)),
}
CALLS = ("allreduce", "stream")
NET = ("requests", "credits", "gpu_bytes", "gpu_flushes", "gpu_flushed")
#: Of both hosts together, as the cards have counted.
CARDS = ("tx_packets", "gpu_reads", "held")


def counted(comm: pycoll.Communicator) -> dict[str, int]:
    """Return what has been counted until now."""
    import stand_in

    made = comm._collectives.launch.cuda.streams.open()
    net, device = verbs.comm_net_state(made.comm), device_comm.device_comm_state(made.native)
    fabric = stand_in.network
    assert fabric is not None
    found = {name: int(getattr(net, name)) for name in NET}
    found["host_bytes"] = sum(net.bytes) - net.gpu_bytes
    found["handed_over"] = device.handed_over
    named = [called.name for called in fakecuda.calls()]
    found["driver_flushes"] = named.count("cuFlushGPUDirectRDMAWrites")
    return found | {f"both: {name}": fabric.total(name) for name in CARDS}


def settled(comm: pycoll.Communicator) -> dict[str, int]:
    """Return the same, once nothing comes to it any more: credit and ACKs may be late."""
    before, quiet = counted(comm), 0
    while quiet < 5:
        time.sleep(0.02)
        now = counted(comm)
        quiet = quiet + 1 if now == before else 0
        before = now
    return before


def rank(call: str, nbytes: int, staging: tuple[int, ...], calls: int, meet: Any) -> Any:
    """Be a rank: make calls, look at every bit, and return what was counted for each call."""
    number = int(os.environ["FAKEVERBS_HOST"])
    os.environ["PYCOLL_GPU_RDMA"] = "off" if number in staging else "auto"
    with pycoll.init() as comm:
        stream = fakecuda.Stream()
        rows = np.random.default_rng(3).integers(-99, 99, (2, nbytes // 4)).astype("f4")
        x, out = gpus.of(rows[comm.rank]), gpus.of(np.zeros(nbytes // 4, "f4"))

        def make() -> None:
            with comm.on_stream(stream):
                if call == "allreduce":
                    comm.allreduce(x, out, algorithm="one_shot")
                elif comm.rank == 0:
                    comm.send(x, 1, async_op=True)
                else:
                    comm.recv(out, 0, async_op=True)

        def make_all(number: int) -> None:
            for _ in range(number):
                make()
                if call == "allreduce":
                    stream.synchronize()
            stream.synchronize()

        comm.cuda()
        make_all(4)
        meet.wait()
        settled(comm)
        meet.wait()
        before = settled(comm)
        meet.wait()
        make_all(calls)
        meet.wait()
        settled(comm)
        meet.wait()
        after = settled(comm)
        if call == "allreduce" or comm.rank == 1:
            want = rows.sum(0).astype("f4") if call == "allreduce" else rows[0]
            np.testing.assert_array_equal(out.host, want)
        said = comm.cuda().gpudirect
        meet.wait()  # what closing costs is not counted
    return said, {name: (after[name] - before[name]) / calls for name in after}


def count(cluster: Cluster, call: str, nbytes: int, way: str, calls: int) -> list[dict[str, Any]]:
    """Return what each rank has counted."""
    gpu, staging = WAYS[way]
    meet = multiprocessing.get_context("fork").Barrier(2)
    found = cluster.run([0, 1], rank, call, nbytes, staging, calls, meet, gpu=gpu)
    rows = []
    for number, (said, counts) in enumerate(found):
        shown = {name: round(value, 3) for name, value in counts.items()}
        rows.append(
            {"call": call, "nbytes": nbytes, "way": way, "rank": number, "gpudirect": said, **shown}
        )
    return rows


def every(
    sizes: list[int], calls: int, show: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """Return all rows."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        for call in CALLS:
            for nbytes in sizes:
                for way in WAYS:
                    if call == "allreduce" and "host" in way:
                        continue  # its two ends differ: the stream says what each way costs
                    for row in count(cluster, call, nbytes, way, calls):
                        rows.append(row)
                        show(row)
        cluster.fabric.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--output", type=Path, default=RESULTS / NAME)
    options = parser.parse_args()
    sizes = [types.nbytes(size) for size in options.sizes.split(",")]
    rows = every(sizes, options.calls, lambda row: print(*row.values(), flush=True))
    meta = metadata.collect("none", 2, {}, "verbs, a stand-in")
    document = {"meta": meta, "calls": options.calls, "rows": rows}
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
