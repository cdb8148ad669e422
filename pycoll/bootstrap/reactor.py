"""Reactor: the control plane's one thread, with the sockets and processes that it watches.

It sleeps in a selector until a socket, a peer's process or the calling thread wakes it. On rank
0 it also runs the `Hub`. What the frames mean to this rank is the affair of `Control`.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from pycoll.bootstrap.framing import MAX_BLOB, Frame, Kind, encode
from pycoll.bootstrap.hub import RANK, SECONDS, Hub, Outgoing
from pycoll.bootstrap.link import Link
from pycoll.bootstrap.rendezvous import Star
from pycoll.errors import BootstrapError

#: Why a rank is gone, as `on_lost` is told.
DIED = "died"  # the process ended without a word
EXITED = "exited"  # the process ended in good order, but without close()
CLOSED = "closed"  # the rank called close()
GARBLED = "garbled"  # the rank sent what no rank of this version sends
UNREACHABLE = "unreachable"  # the network, or the whole machine of the rank, is down

WATCHED = 8  #: how many processes a rank watches
#: How long a dead process's last words may take to rank 0, on its machine and from another.
PIDFD_SECONDS, FAR_SECONDS = 0.75, 3.0
#: How long the end of the thread may take until what it said has arrived. TCP, which waits twice as
#: long each time that it tries again, is through after an outage of two seconds.
FLUSH_SECONDS = 3.5
ARRIVED_SECONDS = 0.002, 0.02  #: how often to look whether it has, at first and later on


class Reactor:
    """Sends this rank's frames and hands it what comes, both by way of rank 0.

    Args:
        star: The sockets, which are closed when the thread ends.
        timeout: Seconds that the job allows a wait for other ranks.
        deliver: Called on the thread with each frame that is for this rank.
        after: Called on the thread after each round.
        ended: Called on the thread at its end, with the error if it was one.
    """

    def __init__(
        self,
        star: Star,
        timeout: float,
        deliver: Callable[[Frame], None],
        after: Callable[[], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self._star = star
        self._deliver_here, self._after, self._ended = deliver, after, ended
        self._hub = Hub(star.size) if star.rank == 0 else None
        self._outbox: deque[Frame] = deque()
        self._stopping = False
        self._parted = threading.Event()  # the farewell is out; the hub may be needed still
        # Rank whose process has ended, and whose connection has not → when to give it up.
        self._suspects: dict[int, float] = {}
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        limit = MAX_BLOB + SECONDS.size if self._hub else star.size * (MAX_BLOB + 4)
        self._links = {peer: Link(peer, sock, limit, timeout) for peer, sock in star.links.items()}
        for link in self._links.values():
            self._selector.register(link.sock, selectors.EVENT_READ, link)
        self._pidfds = self._watch_processes()
        self._thread = threading.Thread(target=self._run, name="pycoll-control", daemon=True)
        self._thread.start()

    def post(self, *frames: Frame) -> None:
        """Send frames to rank 0; none just wakes the thread. For any thread."""
        self._outbox.extend(frames)
        with contextlib.suppress(OSError):  # full: it is awake already; closed: it has ended
            self._waker.send(b"\0")

    def stop(self, farewell: Frame) -> None:
        """Send a last frame, end the thread and free everything.

        On rank 0 the thread goes on for as long as groups without rank 0 need its hub.
        """
        self._outbox.append(farewell)
        self._stopping = True  # in this order: once it sees the flag, it only empties the outbox
        self.post()
        if not self.current():
            self._parted.wait()
            if not self._lingers():
                self._thread.join()

    def join(self, seconds: float) -> None:
        """Wait at most so long for the end of the thread, which was told to stop."""
        if not self.current():
            self._thread.join(seconds)

    def current(self) -> bool:
        """Tell whether the caller is the thread."""
        return threading.current_thread() is self._thread

    def forget(self) -> None:
        """Run in a forked child: let go of what is the parent's without a word to anyone.

        The selector is only closed: unregistering would change the epoll that the parent shares.
        """
        with contextlib.suppress(OSError):
            self._selector.close()
        self._close_all()

    def suspected(self, rank: int) -> None:
        """Drop the suspicion against a rank whose end is explained."""
        self._suspects.pop(rank, None)

    def report(self, error: Exception) -> None:
        """Show an error of a callback as Python shows one that ends a thread."""
        details = (type(error), error, error.__traceback__, self._thread)
        threading.excepthook(threading.ExceptHookArgs(details))

    def _watch_processes(self) -> dict[int, int]:
        """Watch some processes of this machine themselves; return pidfd → rank.

        A socket stays open as long as any process holds it, so a child that a rank forked
        behind Python's back would hide that rank's death. Each rank watches the next few and
        tells rank 0's hub; all watch rank 0, of which no hub could tell.
        """
        members, rank = self._star.members, self._star.rank
        mine = members[rank]
        near = [
            (other - rank) % len(members)
            for other, member in enumerate(members)
            if member.host == mine.host and member.namespace == mine.namespace
        ]
        watched = {(rank + step) % len(members) for step in sorted(near)[1 : WATCHED + 1]}
        if -rank % len(members) in near:
            watched.add(0)
        pidfds: dict[int, int] = {}
        for other in watched:
            if mine.namespace and members[other].pid != mine.pid:
                try:
                    fd = os.pidfd_open(members[other].pid)
                except OSError:  # gone already, which its socket will say; or an old kernel
                    continue
                pidfds[fd] = other
                self._selector.register(fd, selectors.EVENT_READ)
        return pidfds

    # What follows runs on the thread.

    def _run(self) -> None:
        failure = None
        try:
            while not self._stopping:
                self._turn(self._pause())
            self._flush()
            while self._lingers():
                self._parted.set()
                self._turn(self._pause())
            self._drain(self._flush())
        except Exception as error:
            failure = error
            self.report(error)
        finally:
            self._selector.close()
            self._close_all()
            self._ended(failure)
            self._hub = None
            self._parted.set()

    def _lingers(self) -> bool:
        hub = self._hub
        return hub is not None and hub.needed()

    def _pause(self) -> float | None:
        due = min(self._suspects.values(), default=math.inf)
        if self._hub:
            due = min(due, self._hub.next_deadline())
        return None if due == math.inf else max(0.0, due - time.monotonic())

    def _turn(self, pause: float | None) -> None:
        for key, events in self._selector.select(pause):
            if key.fileobj is self._woken:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            elif key.fd in self._pidfds:
                self._notice_end(key.fd)
            elif events & selectors.EVENT_READ:
                self._read(key.data)
        while self._outbox:
            self._dispatch(self._outbox.popleft())
        now = time.monotonic()
        for rank in [rank for rank, due in self._suspects.items() if due <= now]:
            self._condemn(rank)
        if self._hub:
            self._deliver(self._hub.expire(now))
        for link in self._links.values():
            self._send(link)
        self._after()

    def _dispatch(self, frame: Frame) -> None:
        """Send a frame of this rank to rank 0, which may be this process."""
        if self._hub:
            self._deliver(self._hub.receive(0, frame, time.monotonic()))
        else:
            self._queue(0, frame)

    def _deliver(self, out: list[Outgoing]) -> None:
        """Send what the hub says; this rank last, since what it then does may be to die."""
        here = [frame for rank, frame in out if rank == self._star.rank]
        for rank, frame in out:
            if rank != self._star.rank:
                self._queue(rank, frame)
                self._send(self._links[rank])
        for frame in here:
            self._deliver_here(frame)

    def _queue(self, rank: int, frame: Frame) -> None:
        link = self._links[rank]
        if link.open:
            link.unsent += encode(frame)

    def _send(self, link: Link) -> None:
        if not link.open:
            return
        if link.unsent:
            link.send()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.unsent else 0)
        if wanted != link.events:
            link.events = wanted
            self._selector.modify(link.sock, wanted, link)

    def _read(self, link: Link) -> bool:
        """Act on what came from a peer; False if nothing has."""
        try:
            data = link.receive()
            for frame in link.decoder.feed(data):
                self._take(link.peer, frame)
            reason = "" if data else DIED
        except BlockingIOError:
            return False
        except OSError:
            reason = UNREACHABLE
        except (BootstrapError, UnicodeDecodeError, struct.error):
            reason = GARBLED
        if reason:
            self._selector.unregister(link.sock)
            link.open = False
            link.sock.close()
            self._lose(link.peer, reason)
        return True

    def _take(self, peer: int, frame: Frame) -> None:
        if self._hub is None:
            self._deliver_here(frame)
        elif frame.kind is Kind.DEAD:
            (rank,) = RANK.unpack(frame.body)
            if not 0 < rank < self._star.size:
                raise BootstrapError(f"rank {peer} says that rank {rank} has died")
            self._doubt(rank)
        else:
            self._deliver(self._hub.receive(peer, frame, time.monotonic()))

    def _notice_end(self, fd: int) -> None:
        """A process has ended: tell the hub, which knows whether it had taken leave."""
        rank = self._pidfds.pop(fd)
        self._selector.unregister(fd)
        os.close(fd)
        if self._hub or rank == 0:
            self._doubt(rank)
        else:
            self._queue(0, Frame(Kind.DEAD, self._star.rank, "", RANK.pack(rank)))

    def _doubt(self, rank: int) -> None:
        members = self._star.members
        near = members[rank].host == members[self._star.rank].host
        wait = PIDFD_SECONDS if near else FAR_SECONDS
        self._suspects.setdefault(rank, time.monotonic() + wait)

    def _condemn(self, rank: int) -> None:
        """Take in the last words of a process that has ended; then it has died."""
        link = self._links[rank]  # whatever it sent lies here, however late this thread runs
        while link.open and self._read(link):
            pass
        if self._suspects.pop(rank, None) and link.open:
            self._lose(rank, DIED)

    def _lose(self, rank: int, reason: str) -> None:
        """Note what this process itself saw; on rank 0, tell the others."""
        if self._hub:
            self._deliver(self._hub.lost(rank, reason))
        else:
            self._deliver_here(Frame(Kind.LOST, rank, reason))

    def _flush(self) -> float:
        """Send what is queued, the farewell last, but not for ever; return until when."""
        until = time.monotonic() + FLUSH_SECONDS
        self._turn(0)
        while (left := until - time.monotonic()) > 0:
            if not any(link.unsent and link.open for link in self._links.values()):
                break
            self._turn(left)
        return until

    def _drain(self, until: float) -> None:
        """Read on until what was sent has arrived.

        A socket that is closed with unread bytes, or gets more of them afterwards, answers with a
        reset, and what was still on its way from here is lost: the farewell above all.
        """
        pause, longest = ARRIVED_SECONDS
        for link in self._links.values():
            link.finish()
        while (left := until - time.monotonic()) > 0:
            if all(link.arrived() for link in self._links.values() if link.open):
                break
            self._turn(min(left, pause))
            pause = min(2 * pause, longest)

    def _close_all(self) -> None:
        for link in self._links.values():
            link.sock.close()
        for fd in self._pidfds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._waker.close()
        self._woken.close()
