"""The fork server of torch's ranks: what it imports takes longer than most of their jobs."""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import threading
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import fork_server

#: What jobs import, or torch by itself as they go.
LOADED = ("numpy", "torch", "torch._dynamo.convert_frame", "torch.distributed.tensor",
          "torch.distributed.checkpoint", "torch.nn.parallel")  # fmt: skip


def alone() -> bool:
    """Tell whether this process has one thread: no other survives a fork."""
    return threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1


if __name__ == "__main__":
    for name in LOADED:
        importlib.import_module(name)
    assert alone(), "an import has started a thread"
    gc.freeze()  # else each rank's first collection copies what it has of this process
    if request := fork_server.serve(socket.socket(fileno=int(sys.argv[1]))):
        fork_server.run(request)
