"""Launch: run a function as the ranks of a job on this machine, and return what they return."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.spawn import get_preparation_data
from typing import Any, Literal, TypeVar

from pycoll.bootstrap import local_child
from pycoll.bootstrap.control_router import rank_list
from pycoll.bootstrap.descriptors import enough, restore, room
from pycoll.bootstrap.job import Job
from pycoll.bootstrap.local_child import OUTCOME, Outcome
from pycoll.bootstrap.preload import preload
from pycoll.config import MOST_RANKS, Config
from pycoll.errors import (
    BootstrapError,
    BrokenError,
    CollectiveTimeout,
    PeerLostError,
    UsageError,
    quoted,
)

R = TypeVar("R")


def spawn(
    fn: Callable[..., R],
    size: int,
    *args: Any,
    timeout: float | None = None,
    start: Literal["fork", "spawn"] = "fork",
    check: bool = True,
) -> list[R]:
    """Run ``fn(*args)`` in `size` processes; in each, ``pycoll.init()`` finds its rank.

    No process outlives the call, nor this process, however either ends. The ranks' standard
    input is empty.

    Args:
        fn: Any function for "fork"; for "spawn" one that can be imported or that is defined in
            the running script.
        size: Number of ranks.
        *args: Given to every rank.
        timeout: Seconds for the whole run; PYCOLL_TIMEOUT by default.
        start: "fork" starts in a millisecond and serves functions of notebooks, but the ranks
            inherit what this process has set up; threads do not survive a fork, so code that
            keeps some (OpenMP in torch, a CUDA context) may hang in the ranks if it already ran
            here. "spawn" starts fresh interpreters.
        check: If a rank fails, end the others at once and raise its exception, its traceback in
            a note. If False, let them run, and return exceptions in place of results.

    Returns:
        What the ranks returned, in rank order.

    Raises:
        UsageError: An argument is none of these.
        CollectiveTimeout: Ranks still ran when the time was over.
        PeerLostError: A rank's process ended without a result.
        BootstrapError: A rank called ``sys.exit`` or was interrupted.

    Example:
        >>> pycoll.spawn(lambda: pycoll.init().rank, 2)
        [0, 1]
    """
    if not callable(fn):
        raise UsageError(f"spawn: fn is {quoted(fn)}, want a function that each rank calls")
    if not isinstance(start, str) or start not in ("fork", "spawn"):
        raise UsageError(f'spawn: start is {quoted(start)}, want "fork" or "spawn"')
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MOST_RANKS:
        raise UsageError(
            f"spawn: size is {quoted(size)}, want the number of ranks, 1 to {MOST_RANKS}"
        )
    seconds = Config.load(timeout=timeout).timeout
    secret = os.urandom(32)
    children: list[_Child] = []
    try:
        with room(2 * size) as soft:  # of each rank a pipe, and its process
            with (
                enough("spawn", size),
                socket.create_server(("127.0.0.1", 0), backlog=4 * size + 64) as listener,
            ):
                starter = (
                    _Forks(fn, args, size, soft) if start == "fork" else _Fresh(fn, args, soft)
                )
                port = listener.getsockname()[1]
                for rank in range(size):
                    starter(Job(rank, size, port, secret, listener), children)
            _wait(children, time.monotonic() + seconds, seconds, check)
    finally:
        for child in children:
            child.end()
    found: list[Any] = [
        child.outcome.error or child.outcome.value for child in children if child.outcome
    ]
    return found


@dataclass
class _Child:
    """A rank's process, as the parent sees it."""

    rank: int
    pid: int
    reader: int  #: where its outcome comes from
    process: subprocess.Popen[bytes] | None = None
    held: bytearray = field(default_factory=bytearray)
    outcome: Outcome | None = None
    ended: bool = False

    def read(self) -> bool:
        """Take what has come; True if nothing more will come."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.reader, 1 << 20):
                self.held += data
            return True
        return False

    def look(self) -> Outcome | None:
        """Return the outcome if it has just become whole, or if there will never be one."""
        if self.outcome:
            return None
        if len(self.held) >= OUTCOME.size:
            (count,) = OUTCOME.unpack_from(self.held)
            if len(self.held) >= OUTCOME.size + count:
                self.outcome = _restore(self.rank, bytes(self.held[OUTCOME.size :]))
        if self.ended and not self.outcome:
            self.outcome = Outcome(None, PeerLostError(f"spawn: rank {self.rank} {self.fate}"))
        return self.outcome

    def reap(self) -> None:
        """Wait for the process, which is ending."""
        if self.ended:
            return
        if self.process:
            code = self.process.wait()
        else:
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.ended = True
        self.fate = f"ended with exit code {code}"
        if code < 0:
            self.fate = f"was ended by {signal.Signals(-code).name}"

    def end(self) -> None:
        """Kill the process if it still runs, and close what belongs to it."""
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
            self.reap()
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1


def _restore(rank: int, report: bytes) -> Outcome:
    """Read what a rank reported, and make it fit to be raised in this process."""
    try:
        value, error, text = pickle.loads(report)
    except Exception as failure:  # unpickling runs code of the user's classes
        what = f"{type(failure).__name__}: {failure}"
        return Outcome(None, BootstrapError(f"spawn: rank {rank}'s result is lost: {what}"))
    if isinstance(error, SystemExit | KeyboardInterrupt | GeneratorExit):
        # Raised here, these would end the caller.
        what = f"{type(error).__name__}({error})" if str(error) else type(error).__name__
        error = BootstrapError(f"spawn: rank {rank} ended with {what}")
    if error is not None:
        error.add_note(f"rank {rank}: {text}".rstrip())
    return Outcome(value, error, text)


def _wait(children: list[_Child], deadline: float, seconds: float, check: bool) -> None:
    """Wait until every process has ended; raise at the deadline or at the first failure."""
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        watched: dict[int, int] = {}
        running = len(children)
        for child in children:
            selector.register(child.reader, selectors.EVENT_READ, child)
            with contextlib.suppress(OSError):  # an old kernel: the pipe's end must do
                watched[child.rank] = fd = os.pidfd_open(child.pid)
                stack.callback(os.close, fd)
                selector.register(fd, selectors.EVENT_READ, child)
        while running:
            remaining = max(0.0, deadline - time.monotonic())
            failures: list[BaseException] = []
            for key, _ in selector.select(remaining):
                child = key.data
                finished = child.read()
                if key.fd == watched.get(child.rank) or (finished and child.rank not in watched):
                    child.reap()
                    child.read()
                    running -= 1
                    selector.unregister(key.fd)
                elif finished:
                    selector.unregister(key.fd)
                outcome = child.look()
                if outcome and outcome.error is not None:
                    failures.append(outcome.error)
            if check and failures:
                # Of those that came together, one that is not the consequence of another.
                raise min(failures, key=lambda e: isinstance(e, PeerLostError | BrokenError))
            if running and not remaining:  # also what had come by then was read
                ranks = rank_list([child.rank for child in children if not child.ended])
                raise CollectiveTimeout(f"spawn: {ranks} still ran after {seconds:g} s")


class _Forks:
    """Starts ranks as copies of this process.

    Args:
        fn: What each runs.
        args: Its arguments.
        size: How many there will be.
        soft: The limit of file descriptors that a rank has.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], size: int, soft: int) -> None:
        preload(size)
        self._fn, self._args, self._soft = fn, args, soft
        # Where the ends lie that this process reads, which no rank must hold: most of them side by
        # side, so that closing hundreds is a few calls.
        self._runs: list[list[int]] = []

    def __call__(self, job: Job, children: list[_Child]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        reader, writer = os.pipe()
        parent = os.getpid()
        os.set_blocking(reader, False)
        self._note(reader)
        # Ctrl-C between the fork and the entry in the list would leave a process behind.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with warnings.catch_warnings():
                # That threads do not survive is said in the docstring of spawn.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                try:
                    local_child.die_with(parent)
                    for first, end in self._runs:
                        os.closerange(first, end)
                    restore(self._soft)
                    local_child.run_forked(job, self._fn, self._args, writer)
                finally:
                    os._exit(1)
            children.append(_Child(job.rank, pid, reader))
        finally:
            os.close(writer)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def _note(self, reader: int) -> None:
        if self._runs and self._runs[-1][1] == reader:
            self._runs[-1][1] += 1
        else:
            self._runs.append([reader, reader + 1])


class _Fresh:
    """Starts ranks as fresh interpreters, which get the call by reference."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], soft: int) -> None:
        self._soft = soft
        main = sys.modules["__main__"]
        if fn.__module__ == "__main__" and not hasattr(main, "__file__"):
            raise UsageError(
                f"spawn: {fn.__qualname__} is defined in a notebook or interactive session, where "
                'a fresh interpreter cannot import it: use start="fork", or put it in a file'
            )
        try:
            self._call = pickle.dumps((fn, args))
        except Exception as error:  # pickle raises whatever an object's methods raise
            raise UsageError(f'spawn: start="spawn" cannot pickle the call: {error}') from error

    def __call__(self, job: Job, children: list[_Child]) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        listener = job.listener.fileno() if job.listener and job.rank == 0 else -1
        numbers = (os.getpid(), job.rank, job.size, job.port, listener, writer, self._soft)
        code = f"from pycoll.bootstrap.local_child import run_fresh; run_fresh{numbers}"
        preparation = get_preparation_data(f"rank {job.rank}")
        del preparation["authkey"]  # which refuses to be pickled, and is not used here
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            pass_fds=[fd for fd in (listener, writer) if fd >= 0],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        os.close(writer)
        children.append(_Child(job.rank, process.pid, reader, process))
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            pickle.dump((job.secret, preparation, self._call), process.stdin)
