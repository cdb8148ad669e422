"""A fork server: a Python that has imported what jobs need, from which their ranks are forked.

Importing torch, or numpy on the slow processor of a guest, is most of what a short job does. A rank
that starts from here is a process like any other, with its own variables, folder and streams; it
ends as any Python does. Used where the import is not what is tested.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import socket
import sys
from typing import Any


def serve(client: socket.socket) -> dict[str, Any] | None:
    """Fork for every request; return in each child with what it is to be, in the end with None."""
    children: dict[int, tuple[int, int]] = {}  # descriptor that tells the end: process, command
    poll = select.poll()
    poll.register(client, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in children:
                poll.unregister(fd)
                os.close(fd)
                pid, number = children.pop(fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                client.send(json.dumps({"number": number, "status": status}).encode())
                continue
            data, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
            if not data:
                return None
            what: dict[str, Any] = json.loads(data)
            if (pid := os.fork()) == 0:
                client.close()
                for other in children:
                    os.close(other)
                for target, stream in enumerate(streams):
                    os.dup2(stream, target)
                    os.close(stream)
                return what
            for stream in streams:
                os.close(stream)
            client.send(json.dumps({"number": what["number"], "pid": pid}).encode())
            ended = os.pidfd_open(pid)
            children[ended] = pid, what["number"]
            poll.register(ended, select.POLLIN)


def run(what: dict[str, Any]) -> None:
    """Run a script, ``what["argv"]``, as the main program of this process."""
    os.chdir(what["cwd"])
    os.environ.clear()
    os.environ.update(what["env"])
    sys.argv = what["argv"]
    # This process was started for another rank, perhaps of another test, with another path.
    own = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    rest = [part for part in sys.path[1:] if part not in own]
    sys.path[:] = [os.path.dirname(os.path.abspath(sys.argv[0])), *own, *rest]
    if "PYTHONFAULTHANDLER" in os.environ:
        importlib.import_module("faulthandler").enable()
    runpy.run_path(sys.argv[0], run_name="__main__")
