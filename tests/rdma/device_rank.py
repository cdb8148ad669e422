"""A rank with arrays on a GPU, the stand-in, whose memory NICs reach by nvidia_peermem.

    device_rank.py every        makes every collective, and messages, and checks them all
    device_rank.py mixed CALLS  makes calls drawn at random
    device_rank.py LENGTH...    sums arrays of these lengths in turns, as often as its standard
                                input says; it writes the lines that batches.py does

The stand-in's device memory is the host's, so that a real driver registers it by its address; the
host is made to look as if it had the module. What the stand-in is, and where, its variables say.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import fakecuda
import gpus
import numpy as np
from collective_checks import COLLECTIVES, ROOTED, Case, blocks

import pycoll
from pycoll.runtime.native import verbs

COUNTS = (3, 20_000)  #: elements: in the line itself; cut over the rails where there are two
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


def mixed(comm: pycoll.Communicator, stream: fakecuda.Stream, calls: int) -> None:
    """Make calls drawn at random, the same on all ranks, each on other data."""
    seen, draw = gpus.DeviceChecks(comm, stream), random.Random(7)
    for call in range(calls):
        collective, n = draw.choice((*COLLECTIVES, "messages")), draw.choice((1, 9, 11, 300, 4099))
        n = COUNTS[-1] if call % 50 == 0 else n
        dtype, root, within = draw.choice(("float32", "int32")), draw.randrange(comm.size), call % 2
        if collective == "messages":
            messages(comm)
            continue
        counts = blocks(collective, n, comm.size)
        case = Case(collective, counts, dtype, root=root if collective in ROOTED else 0)
        for side, x, out in seen.arrays(case, bool(within), call % 3 == 0):
            if x is not None and collective in ("allgather", "alltoall", "broadcast"):
                x += call  # other data than the call before of that kind
            got = seen.call(case, x, out)
            if side.want is not None:
                more = call if collective in ("allgather", "alltoall", "broadcast") else 0
                np.testing.assert_array_equal(np.asarray(got).reshape(-1), side.want + more)


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
                comm.allreduce(x, out, async_op=True).synchronize()
            np.testing.assert_array_equal(out.host, parts.sum(0, dtype=np.int32), f"call {number}")
            number += 1
        print(json.dumps(state(comm)._asdict()), flush=True)


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
                mixed(comm, stream, int(sys.argv[2]))
                print(json.dumps(reached(comm)))
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
