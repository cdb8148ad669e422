"""A rank with arrays on a GPU, the stand-in, whose memory NICs reach by nvidia_peermem.

    device_rank.py every        makes every collective, and messages, and checks them all
    device_rank.py mixed CALLS  makes calls drawn at random
    device_rank.py echo         sends messages forth and back, as each line of its standard input
                                says: bytes, times; it writes what has been counted then
    device_rank.py LENGTH...    sums arrays of these lengths in turns, as often as its standard
                                input says; it writes the lines that batches.py does

The stand-in's device memory is the host's, so that a real driver registers it by its address; the
host is made to look as if it had the module. What the stand-in is, and where, its variables say.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fakecuda
import gpus
import numpy as np
import random_calls
from collective_checks import COLLECTIVES, ROOTED, Case, blocks
from random_calls import GUARD, Piece

import pycoll
from pycoll.runtime.native import verbs

COUNTS = (3, 20_000)  #: elements: in the line itself; cut over the rails where there are two
LONGEST = 1 << 18  #: elements of a message
SECONDS = 60  #: in which every path has come up, or never will
MODULES = "/sys/module"


def load_peermem() -> None:
    """Have this process, in a mount namespace of its own, find that nvidia_peermem is loaded."""
    subprocess.run(["mount", "-t", "tmpfs", "none", MODULES], check=True)
    os.mkdir(f"{MODULES}/nvidia_peermem")


def state(comm: pycoll.Communicator) -> verbs.NetState:
    """Return what the network of the device communicator has counted."""
    return verbs.comm_net_state(comm._collectives.launch.cuda.streams.open().comm)


def messages(comm: pycoll.Communicator) -> None:
    """Send to every rank, this one too, and receive from it."""
    ranks = range(comm.size)
    sends = [(gpus.of(np.arange(3000 * comm.rank + peer, dtype="f4")), peer) for peer in ranks]
    recvs = [(gpus.of(np.zeros(3000 * peer + comm.rank, "f4")), peer) for peer in ranks]
    comm.exchange(sends, recvs, async_op=True).synchronize()
    for got, peer in recvs:
        np.testing.assert_array_equal(got.host, np.arange(3000 * peer + comm.rank, dtype="f4"))


def every(comm: pycoll.Communicator, stream: fakecuda.Stream) -> None:
    """Make every collective, out of place and in place, from every root."""
    seen = gpus.DeviceChecks(comm, stream)
    for collective in COLLECTIVES:
        for n in COUNTS:
            for root in range(comm.size) if collective in ROOTED else (0,):
                case = Case(collective, blocks(collective, n, comm.size), root=root)
                seen.blocking(case, offset=True)
    messages(comm)
    comm.barrier()


def fork(number: int) -> None:
    """Have a child that ends at once, or as any other Python does."""
    if (child := os.fork()) == 0:
        if number % 2:
            os._exit(0)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0


def serve(comm: pycoll.Communicator, stream: fakecuda.Stream, lengths: list[int]) -> None:
    """Sum random arrays as often as each line of the standard input says."""
    number = 0
    for line in sys.stdin:
        for _ in range(int(line)):
            print(f"call {number}", flush=True)
            draw, n = np.random.default_rng(number), lengths[number % len(lengths)]
            parts = draw.integers(-999, 1000, (comm.size, n), dtype=np.int32)
            x, out = gpus.of(parts[comm.rank]), gpus.of(~parts.sum(0, dtype=np.int32))
            with comm.on_stream(stream):
                summed = comm.allreduce(x, out, async_op=True)
            if os.environ.get("FORKS"):
                fork(number)
            summed.synchronize()
            np.testing.assert_array_equal(out.host, parts.sum(0, dtype=np.int32), f"call {number}")
            number += 1
        print(json.dumps(state(comm)._asdict()), flush=True)


def paths(comm: pycoll.Communicator) -> None:
    """Wait until every path to every peer is there, on all ranks: regions are registered."""
    comm.cuda()
    messages(comm)
    end = time.monotonic() + SECONDS
    while (now := state(comm)).live < now.connections:
        assert time.monotonic() < end, now
        time.sleep(0.01)
    comm.barrier()


def tell(comm: pycoll.Communicator) -> None:
    """Write what has been counted."""
    named = [call.name for call in fakecuda.calls()]
    said = {"driver_flushes": named.count("cuFlushGPUDirectRDMAWrites")}
    print(json.dumps(state(comm)._asdict() | said), flush=True)


def echo(comm: pycoll.Communicator, stream: fakecuda.Stream) -> None:
    """Be one of two ranks: a message goes once the one before has come."""
    paths(comm)
    memory, draw = random_calls.Memory(2 * LONGEST + GUARD), np.random.default_rng(5)
    stream.synchronize()
    fakecuda.guard()
    tell(comm)
    for line in sys.stdin:
        nbytes, times = map(int, line.split())
        n = nbytes // 4
        ends = [Piece(0, n), Piece(n + GUARD, n)]
        there, back = (memory.seen(end, "int32") for end in ends)
        for _ in range(times):
            want = np.zeros(2 * n + GUARD, "i4")
            want[:n] = draw.integers(-(1 << 31), 1 << 31, n, dtype="i4")
            memory.host[: want.size] = 0
            if comm.rank == 0:
                memory.host[:n] = want[:n].view("u4")
                want[n + GUARD :] = want[:n]
            memory.copy(want.size, stream)
            with comm.on_stream(stream):
                if comm.rank == 0:
                    comm.send(there, 1)
                    comm.recv(back, 1)
                else:
                    comm.recv(there, 0)
                    comm.send(there, 0)
            memory.copy(want.size, stream, back=True)
            stream.synchronize()
            assert (memory.host[: want.size] == want.view("u4")).all(), line
        comm.barrier()  # what the other has been sent has been posted
        tell(comm)


def reached(comm: pycoll.Communicator) -> dict[str, Any]:
    """Say how the others are reached, and what went between them."""
    gpu = comm.cuda()
    found = state(comm)
    assert found.failures == 0
    return {"reach": gpu.reach, "lacks": gpu.lacks, "gpudirect": gpu.gpudirect, **found._asdict()}


def main() -> None:
    """Do as told."""
    load_peermem()
    log = Path(f"/tmp/cuda.{os.getpid()}")
    gpus.use(log)
    with pycoll.init() as comm:
        stream = fakecuda.Stream()
        try:
            if sys.argv[1] == "every":
                every(comm, stream)
                print(json.dumps(reached(comm)))
            elif sys.argv[1] == "mixed":
                random_calls.Calls(comm, stream, 7).make(int(sys.argv[2]))
                print(json.dumps(reached(comm)))
            elif sys.argv[1] == "echo":
                echo(comm, stream)
            else:
                serve(comm, stream, [int(length) for length in sys.argv[1:]])
        except pycoll.PycollError as error:
            said = {"error": type(error).__name__, "text": str(error), **state(comm)._asdict()}
            print(json.dumps(said), flush=True)
            sys.exit(3)
    assert not [said for said in fakecuda.remarks(log) if said.startswith("undefined")]
    log.unlink()


if __name__ == "__main__":
    main()
