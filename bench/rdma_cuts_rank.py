"""A rank of rdma_cuts.py: all-reduces of random data without end, every element checked.

It answers each line of its standard input with a line of JSON about where it stands. After "stop"
came to rank 0, all ranks leave. When a call fails it says so in a last line of JSON, and ends with
exit code 3.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import numpy as np

import pycoll
from pycoll.runtime.native import verbs

LARGEST = 18  #: elements of the longest call, as a power of two: 1 MiB
TURNS = 8  #: after so many calls the ranks ask whether to stop


class Rank:
    """The communicator, and what is told of it."""

    def __init__(self) -> None:
        self.comm = pycoll.init()
        self.turns = self.wrong = 0
        self.longest = 0.0  #: seconds from one finished call to the next, since it was last asked
        self.finished = time.monotonic()
        self.stopping = False
        rank, size = self.comm.rank, self.comm.size
        # All draw the same: counts, dtypes and everybody's data, so each knows every result.
        self.random = np.random.default_rng(size)
        self.pattern = self.random.integers(-999, 1000, (2 << LARGEST) + size, dtype=np.int32)
        self.own = rank

    def call(self) -> None:
        """Reduce something, and check it."""
        count = int(2 ** self.random.uniform(0, LARGEST))
        at = int(self.random.integers(0, 1 << LARGEST))
        kind = (np.int32, np.float32)[self.random.integers(2)]  # whose sums of these are exact
        parts = [self.pattern[at + r : at + r + count] for r in range(self.comm.size)]
        x, want = parts[self.own].astype(kind), np.sum(parts, axis=0, dtype=np.int32).astype(kind)
        out = np.invert(want.view(np.int32)).view(kind)
        begun = time.monotonic()
        self.comm.allreduce(x, out)
        now = time.monotonic()
        self.longest = max(self.longest, now - begun)
        self.finished = now
        self.wrong += int(np.count_nonzero(out != want))
        self.turns += 1

    def agreed(self) -> bool:
        """Tell whether the ranks are to stop."""
        flag = np.array([self.stopping], np.int32)
        self.comm.allreduce(flag, op="max")
        self.finished = time.monotonic()
        return bool(flag[0])

    def state(self) -> dict[str, Any]:
        """Return what is told; since when `longest` counts starts anew."""
        waits = time.monotonic() - self.finished  # in a call that has not ended, maybe
        longest, self.longest = max(self.longest, waits), 0.0
        wire = verbs.comm_net_state(self.comm._engine.comm)
        told = {"turns": self.turns, "wrong": self.wrong, "longest": longest}
        return told | {"wire": wire._asdict()}

    def listen(self) -> None:
        """Answer; in a thread."""
        for line in sys.stdin:
            self.stopping |= line.strip() == "stop"
            print(json.dumps(self.state()), flush=True)


def main() -> None:
    rank = Rank()
    rank.call()  # connects
    print(json.dumps({"transport": rank.comm.transport}), flush=True)
    threading.Thread(target=rank.listen, daemon=True).start()
    try:
        while True:
            for _ in range(TURNS):
                rank.call()
            if rank.agreed():
                break
    except pycoll.PycollError as error:
        after = time.monotonic() - rank.finished
        last = {"error": type(error).__name__, "text": str(error), "after": after}
        print(json.dumps(last | {"wrong": rank.wrong}), flush=True)
        sys.exit(3)
    rank.comm.close()


if __name__ == "__main__":
    main()
