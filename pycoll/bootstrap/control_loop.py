"""Control loop: the control plane's one thread, with the sockets and processes that it watches.

It sleeps in a selector until a socket, a peer's process or the calling thread wakes it. On one
rank, at first rank 0, it also runs the `ControlRouter`; if the connection to that rank ends, the
`Failover` says who does. What the frames mean to this rank is the affair of `Control`.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from pycoll import log
from pycoll.bootstrap.clock import answer
from pycoll.bootstrap.control_router import RANK, SECONDS, ControlRouter, Outgoing
from pycoll.bootstrap.control_socket import ANSWER_SECONDS, ControlSocket, silence_seconds
from pycoll.bootstrap.failover import Failover
from pycoll.bootstrap.framing import MAX_BLOB, Frame, FrameType
from pycoll.bootstrap.reasons import (
    DIED,
    FORGED,
    GARBLED,
    GAVE_UP,
    HUNG_UP,
    SILENT,
    UNREACHABLE,
)
from pycoll.bootstrap.rendezvous import Star
from pycoll.bootstrap.seal import SealError, Seals
from pycoll.errors import BootstrapError

TAMPERED = "tampered"  #: kind of the abort that tells the other end of such a connection
#: How long it may take to find out whether a process has ended whose connection has.
PROOF_SECONDS = 1.0
#: How long until a port is called again that took a call and ended it: soon, where its process may
#: be ending, and then ever more rarely.
CALL_AGAIN_SECONDS = 0.001, 0.05
WATCHED = 8  #: how many processes a rank watches
#: How long a dead process's last words may take to rank 0, on its machine and from another.
PIDFD_SECONDS, FAR_SECONDS = 0.75, 3.0
#: How long the end of the thread may take until what it said has arrived. TCP, which waits twice as
#: long each time that it tries again, is through after an outage of two seconds.
FLUSH_SECONDS = 3.5
ARRIVED_SECONDS = 0.002, 0.02  #: how often to look whether it has, at first and later on


class _GivenUp(Exception):
    """The router has said that this very rank is lost."""


class ControlLoop:
    """Sends this rank's frames and hands it what comes, both by way of the router.

    Args:
        star: The sockets, which are closed when the thread ends.
        timeout: Seconds that the job allows a wait for other ranks.
        deliver: Called on the thread with each frame that is for this rank.
        after: Called on the thread after each round.
        ended: Called on the thread at its end, with the error if it was one.
        recall: Called on the thread; returns what a router that knows nothing must hear.
    """

    def __init__(
        self,
        star: Star,
        timeout: float,
        deliver: Callable[[Frame], None],
        after: Callable[[], None],
        ended: Callable[[Exception | None], None],
        recall: Callable[[], list[Frame]],
    ) -> None:
        self._star, self._timeout = star, timeout
        self._deliver_here, self._after, self._ended = deliver, after, ended
        self._recall = recall
        self._chief = 0  #: the rank that runs the router
        self._router = ControlRouter(star.size) if star.rank == 0 else None
        self._outbox: deque[Frame] = deque()
        self._forsaken: int | None = None  #: the router's rank, which does not answer
        self._retiring = False
        self._farewell: Frame | None = None  #: the last frame; the thread ends once it is there
        self._finished = False  # all is said, and the router may close its end
        self._parted = threading.Event()  # the farewell is out; the router may be needed still
        # Rank whose process has ended, and whose connection has not → when to give it up.
        self._suspects: dict[int, float] = {}
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._links: dict[int, ControlSocket] = {}
        # Those with something unsent, or sent and not acknowledged: most have neither.
        self._busy: set[ControlSocket] = set()
        for peer, sock in star.links.items():
            self._link(peer, sock, star.seals[peer])
        self._early: dict[int, tuple[socket.socket, Seals]] = {}  # came before it was our turn
        self._ends: set[int] = set()  # ranks whose processes this one knows to have ended
        self._pidfds: dict[int, int] = {}
        # Rank whose connection has ended, and perhaps its process → until when to look for that.
        self._hung_up: dict[int, float] = {}
        self._probes: dict[int, socket.socket] = {}  #: connections that show it, of other machines
        self._again: dict[int, float] = {}  #: when such a connection is to be tried again
        self._watch_processes()
        self._failover = Failover(
            star,
            self._selector,
            timeout,
            came=self._came,
            reached=self._reached,
            preside=self._preside,
            ended=self._note_end,
            unreachable=lambda rank: self._lose(rank, UNREACHABLE),
            hung_up=lambda rank: self._lose(rank, HUNG_UP),
        )
        self._thread = threading.Thread(target=self._run, name="pycoll-control", daemon=True)

    def start(self) -> None:
        """Begin to deliver, now that whoever is called back knows this object."""
        self._thread.start()

    def post(self, *frames: Frame) -> None:
        """Send frames to rank 0; none just wakes the thread. For any thread."""
        self._outbox.extend(frames)
        with contextlib.suppress(OSError):  # full: it is awake already; closed: it has ended
            self._waker.send(b"\0")

    def forsake(self) -> bool:
        """Turn to another router, as this one does not answer; False: it is this rank. Any thread.

        Nothing happens while another is being sought already.
        """
        if self._router:
            return False
        self._forsaken = self._chief
        self.post()
        return True

    def stop(self, farewell: Frame) -> None:
        """Send a last frame, end the thread and free everything.

        Where the router is, the thread goes on for as long as others need it.
        """
        # Not by the outbox: the router may end once it has this, and a thread that had sent it, and
        # does not know yet that it is the last, would seek another router.
        self._farewell = farewell
        self.post()
        if not self.current():
            self._parted.wait()
            if not self._lingers():
                self._thread.join()

    def retire(self, seconds: float) -> None:
        """End the thread, which was told to stop; others may need its router, but no longer."""
        if not self.current():
            self._thread.join(seconds)
            self._retiring = True
            self.post()
            self._thread.join(2 * FLUSH_SECONDS)

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

    def gone(self, rank: int) -> None:
        """Drop the suspicion against a rank whose end is explained, and what it may wait for."""
        self._suspects.pop(rank, None)
        self._failover.exclude(rank)
        if rank in self._early:
            self._turn_away(rank, *self._early.pop(rank))

    def report(self, error: Exception) -> None:
        """Show an error of a callback as Python shows one that ends a thread."""
        details = (type(error), error, error.__traceback__, self._thread)
        threading.excepthook(threading.ExceptHookArgs(details))

    def _watch_processes(self) -> None:
        """Watch some processes of this machine themselves.

        A socket stays open as long as any process holds it, so a child that a rank forked
        behind Python's back would hide that rank's death. Each rank watches the next few and
        tells the router; all watch the router's rank, of which no router could tell.
        """
        members, rank = self._star.members, self._star.rank
        mine = members[rank]
        near = [
            (other - rank) % len(members)
            for other, member in enumerate(members)
            if member.host == mine.host and member.namespace == mine.namespace
        ]
        for step in sorted(near)[1 : WATCHED + 1]:
            self._watch((rank + step) % len(members))
        self._watch(self._chief)

    def _near(self, rank: int) -> bool:
        """Tell whether a rank's process id means something to this process."""
        mine, theirs = self._star.members[self._star.rank], self._star.members[rank]
        return theirs.host == mine.host and theirs.namespace == mine.namespace != 0

    def _watch(self, rank: int) -> bool:
        """Watch the process of a rank, if it is one of this machine and not this one.

        Returns:
            False if there is no such process any more.
        """
        mine, theirs = self._star.members[self._star.rank], self._star.members[rank]
        if not self._near(rank) or theirs.pid == mine.pid or rank in self._pidfds.values():
            return True
        try:
            fd = os.pidfd_open(theirs.pid)
        except ProcessLookupError:
            return False
        except OSError:  # an old kernel, or no descriptor is left
            return True
        self._pidfds[fd] = rank
        self._selector.register(fd, selectors.EVENT_READ)
        return True

    # What follows runs on the thread.

    def _run(self) -> None:
        failure = None
        try:
            while (farewell := self._farewell) is None:
                self._turn(self._pause())
            self._outbox.append(farewell)
            until = self._flush()
            if self._router:  # who has left all that it was in comes to no group any more
                self._deliver(self._router.lost(self._star.rank, farewell.key))
            while self._lingers():
                self._parted.set()
                self._turn(self._pause())
                if not self._lingers():
                    until = self._flush()
            self._drain(until)
        except Exception as error:
            failure = error
            self.report(error)
        finally:
            self._selector.close()
            self._close_all()
            self._ended(failure)
            self._router = None
            self._parted.set()

    def _lingers(self) -> bool:
        router = self._router
        return router is not None and router.needed() and not self._retiring

    def _pause(self) -> float | None:
        now = time.monotonic()
        answers = (self._patience(link, now) for link in self._busy if link.open)
        waits = (*self._suspects.values(), *self._hung_up.values(), *self._again.values())
        due = min([self._failover.due(), *waits, *answers])
        if self._router:
            due = min(due, self._router.next_deadline())
        return None if due == math.inf else max(0.0, due - now)

    def _patience(self, link: ControlSocket, now: float) -> float:
        """Return until when an answer from a peer's machine is waited for, or infinity."""
        silence = link.silence(now)
        left = max(silence_seconds(self._timeout) - silence, ANSWER_SECONDS)
        return now + left if silence else math.inf

    def _look_for_silence(self, now: float) -> None:
        limit = silence_seconds(self._timeout)
        for link in [link for link in self._busy if link.open]:
            if link.silence(now) >= limit:
                self._cut(link)
                self._lose(link.peer, UNREACHABLE)
        self._busy = {link for link in self._busy if link.open and not link.settled()}

    def _turn(self, pause: float | None) -> None:
        # What is late by now, and is not found there, did not come in time; what comes while this
        # thread is not run did.
        looked = time.monotonic()
        for key, events in self._selector.select(pause):
            if key.fileobj is self._woken:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            elif key.fd in self._pidfds:
                self._notice_end(key.fd)
            elif key.data is self._failover:
                self._failover.handle(key.fileobj, events)
            elif isinstance(key.data, int):
                self._heed_probe(key.data)
            elif events & selectors.EVENT_READ:
                self._read(key.data)
        while self._outbox:
            self._dispatch(self._outbox.popleft())
        forsaken, self._forsaken = self._forsaken, None
        if forsaken == self._chief and not self._router:
            self._lose(forsaken, SILENT)
        if self._suspects:
            for rank in [r for r, due in self._suspects.items() if due <= looked or self._mute(r)]:
                self._condemn(rank)
        if self._hung_up:
            for rank in [rank for rank, due in self._hung_up.items() if due <= looked]:
                self._end_proof(rank, HUNG_UP)
        if self._again:
            for rank in [rank for rank, due in self._again.items() if due <= looked]:
                self._call_up(rank)
        self._failover.expire(looked)
        if self._busy:
            self._look_for_silence(time.monotonic())
        if self._router:
            for rank in self._router.absent(looked):
                self._lose(rank, UNREACHABLE)
            self._deliver(self._router.expire(looked, time.monotonic()))
            self._deliver(self._router.flush())
        for link in list(self._busy):
            self._send(link)
        self._after()

    def _dispatch(self, frame: Frame) -> None:
        """Send a frame of this rank to the router, which may be in this process."""
        if self._router and frame.kind is FrameType.TIME:
            self._deliver_here(answer(frame, self._star.rank))
        elif self._router:
            self._deliver(self._router.receive(self._star.rank, frame, time.monotonic()))
        else:
            self._queue(self._chief, frame)

    def _deliver(self, out: list[Outgoing]) -> None:
        """Send what the router says; this rank last, since what it then does may be to die."""
        here = [frame for rank, frame in out if rank == self._star.rank]
        for rank, frame in out:
            if rank != self._star.rank:
                self._queue(rank, frame)
                if link := self._links.get(rank):
                    self._send(link)
        for rank in {frame.rank for _, frame in out if frame.kind is FrameType.LOST}:
            self._failover.exclude(rank)
            if (link := self._links.get(rank)) and link.open:  # others say it, and it may live
                self._dismiss(link)
        for frame in here:
            self._deliver_here(frame)

    def _queue(self, rank: int, frame: Frame) -> None:
        link = self._links.get(rank)  # None while a router is sought, which is told everything
        if link and link.open:
            self._busy.add(link)
            link.queue(frame)

    def _send(self, link: ControlSocket) -> None:
        if not link.open:
            return
        if link.unsent:
            link.send()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.unsent else 0)
        if wanted != link.events:
            link.events = wanted
            self._selector.modify(link.sock, wanted, link)

    def _read(self, link: ControlSocket) -> bool:
        """Act on what came from a peer; False if nothing has."""
        try:
            data = link.receive()
            for frame in link.frames(data):
                self._take(link.peer, frame)
            reason = "" if data else DIED
        except BlockingIOError:
            return False
        except OSError:
            reason = UNREACHABLE
        except _GivenUp:
            reason = GAVE_UP
        except SealError as error:
            self._distrust(link, error)
            return True
        except (BootstrapError, UnicodeDecodeError, struct.error):
            reason = GARBLED
        if reason:
            believed = link.open and self._links.get(link.peer) is link  # else it was lost before
            self._cut(link)
            if believed and reason == DIED:
                self._prove(link.peer)
            elif believed:
                self._lose(link.peer, reason)
        return True

    def _link(self, peer: int, sock: socket.socket, seals: Seals) -> None:
        """Begin to read what a peer sends."""
        size = self._star.size
        limit = max(MAX_BLOB + SECONDS.size, size * RANK.size)  # a part of an exchange, or JOIN
        if not self._router:
            limit = size * (MAX_BLOB + 4)
        link = self._links[peer] = ControlSocket(peer, sock, seals, limit, self._timeout)
        self._selector.register(sock, selectors.EVENT_READ, link)

    def _cut(self, link: ControlSocket) -> None:
        """End a connection of which nothing more is wanted."""
        if link.sock.fileno() >= 0:
            self._selector.unregister(link.sock)
            link.sock.close()
        link.open = False

    def _distrust(self, link: ControlSocket, error: SealError) -> None:
        """Believe no more of what comes over a connection, and tell its other end why.

        It stays open until that end closes it: a reset would destroy what it is told.
        """
        text = f"rank {link.peer} did not send this: {error}"
        self._busy.add(link)
        link.queue(Frame(FrameType.ABORT, self._star.rank, TAMPERED, text.encode()))
        self._send(link)
        link.finish()
        link.open = False
        self._lose(link.peer, FORGED)

    def _take(self, peer: int, frame: Frame) -> None:
        if self._router is None:
            if frame.kind is FrameType.LOST and frame.rank == self._star.rank:
                raise _GivenUp
            self._deliver_here(frame)
        elif frame.kind is FrameType.DEAD:
            (rank,) = RANK.unpack(frame.body)
            if not 0 <= rank < self._star.size or rank == self._star.rank:
                raise BootstrapError(f"rank {peer} says that rank {rank} has died")
            self._question(rank)
        elif frame.kind is FrameType.TIME and frame.rank == peer:
            self._queue(peer, answer(frame, self._star.rank))
        else:
            self._deliver(self._router.receive(peer, frame, time.monotonic()))

    def _notice_end(self, fd: int) -> None:
        """A process has ended: tell the router, which knows whether it had taken leave."""
        rank = self._pidfds.pop(fd)
        self._selector.unregister(fd)
        os.close(fd)
        self._failover.exclude(rank)
        self._note_end(rank)
        if rank in self._hung_up:
            self._end_proof(rank, DIED)

    # A connection that ends says little: a process that lives may have closed it. That it has ended
    # its own machine knows, and another when that refuses a connection to where it listened.

    def _prove(self, rank: int) -> None:
        """Find out whether the process of a rank has ended, whose connection has."""
        if rank in self._ends or (self._router and self._router.parted(rank)):
            self._lose(rank, DIED)
            return
        self._hung_up[rank] = time.monotonic() + PROOF_SECONDS
        members = self._star.members
        if self._near(rank) and members[rank].pid != members[self._star.rank].pid:
            if not self._watch(rank):
                self._end_proof(rank, DIED)
        elif rank not in self._probes and rank not in self._again:
            self._call_up(rank)

    def _call_up(self, rank: int) -> None:
        self._again.pop(rank, None)
        sock = self._failover.probe(rank)
        if sock is None:
            if rank in self._hung_up:
                self._end_proof(rank, HUNG_UP)
            return
        self._probes[rank] = sock
        self._selector.register(sock, selectors.EVENT_WRITE, rank)

    def _heed_probe(self, rank: int) -> None:
        """See whether a connection is refused, greeted, or ended by a process that ends now."""
        sock = self._probes[rank]
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error in (0, errno.ECONNRESET):
            self._selector.modify(sock, selectors.EVENT_READ, rank)
            try:
                lives = sock.recv(1)
            except BlockingIOError:  # connected; nobody has greeted yet
                return
            except OSError:
                lives = b""
            if not lives:
                self._end_probe(rank)
                now, (least, most) = time.monotonic(), CALL_AGAIN_SECONDS
                known = PROOF_SECONDS - (self._hung_up.get(rank, now) - now)
                self._again[rank] = now + min(most, max(least, known / 4))
                return
        if rank in self._hung_up:
            self._end_proof(rank, DIED if error == errno.ECONNREFUSED else HUNG_UP)
            return
        self._end_probe(rank)
        if error == 0:
            self._clear(rank)

    def _end_probe(self, rank: int) -> None:
        self._again.pop(rank, None)
        if sock := self._probes.pop(rank, None):
            self._selector.unregister(sock)
            sock.close()

    def _end_proof(self, rank: int, reason: str) -> None:
        self._hung_up.pop(rank)
        self._end_probe(rank)
        if reason == DIED:
            self._ends.add(rank)
        self._lose(rank, reason)

    def _note_end(self, rank: int) -> None:
        """See that nobody is left who answers for a rank."""
        self._ends.add(rank)
        if self._router or rank == self._chief:
            self._doubt(rank)
        else:
            self._queue(self._chief, self._dead(rank))

    def _dead(self, rank: int) -> Frame:
        return Frame(FrameType.DEAD, self._star.rank, "", RANK.pack(rank))

    def _question(self, rank: int) -> None:
        """Find out whether a rank lives that another holds to be dead, and that is connected here.

        The other may be mistaken. But a process that has ended may seem to be connected, where a
        child of it holds the socket: so a rank that does not answer is believed to have died.
        """
        link = self._links.get(rank)
        if rank in self._ends or not (link and link.open):
            self._doubt(rank)
        elif not self._watch(rank):
            self._note_end(rank)
        elif rank in self._pidfds.values():  # if it has ended, that is noticed next
            self._clear(rank)
        else:
            self._doubt(rank)
            if rank not in self._probes and rank not in self._again:
                self._call_up(rank)

    def _clear(self, rank: int) -> None:
        """Drop what another rank has said of one that lives."""
        self._suspects.pop(rank, None)
        log.info("control", "rank %d was said to have died, and lives", rank)

    def _doubt(self, rank: int) -> None:
        members = self._star.members
        near = members[rank].host == members[self._star.rank].host
        wait = PIDFD_SECONDS if near else FAR_SECONDS
        self._suspects.setdefault(rank, time.monotonic() + wait)

    def _mute(self, rank: int) -> bool:
        """Tell whether nothing is on its way here that a rank has said, or another says of it."""
        link = self._links.get(rank)
        coming = self._router.coming() - self._suspects.keys() if self._router else ()
        return not (link and link.open) and not coming

    def _condemn(self, rank: int) -> None:
        """Take in the last words of a process that has ended; then it has died."""
        link = self._links.get(rank)  # whatever it sent lies here, however late this thread runs
        while link and link.open and self._read(link):
            pass
        if rank not in self._hung_up:
            self._end_probe(rank)
        if self._suspects.pop(rank, None):
            self._lose(rank, DIED)

    def _lose(self, rank: int, reason: str) -> None:
        """Note what this process itself saw; where the router is, tell the others."""
        if self._router:
            self._deliver(self._router.lost(rank, reason))
            return
        if rank == self._chief and (link := self._links.get(rank)) and link.open:
            self._cut(link)  # a child of that process may hold the other end
        self._deliver_here(Frame(FrameType.LOST, rank, reason))
        if reason == UNREACHABLE:  # and so is its machine, with all who are there
            mine, theirs = self._star.members[self._star.rank].host, self._star.members[rank].host
            for other, member in enumerate(self._star.members):
                if member.host == theirs != mine and other != rank:
                    self._deliver_here(Frame(FrameType.LOST, other, UNREACHABLE))
        # It may be lost twice, by its connection and by its process. A call that is under way may
        # have been accepted, and its end would be taken for that of this rank.
        if rank == self._chief and not self._finished and not self._failover.seeking:
            self._failover.seek()

    # Another router. Who comes here knows that the last one is gone, perhaps before this rank does.

    def _came(self, rank: int, sock: socket.socket, seals: Seals) -> None:
        if rank in self._failover.out:
            self._turn_away(rank, sock, seals)
            return
        if self._router is None:
            if rank in self._early:
                self._early[rank][0].close()
            self._early[rank] = sock, seals
            return
        if link := self._links.get(rank):
            self._cut(link)
        self._link(rank, sock, seals)

    def _turn_away(self, rank: int, sock: socket.socket, seals: Seals) -> None:
        """Tell a rank that came, and lives, that it is held to be gone, and serve it no more.

        The connection stays open until that rank closes it, as in `_distrust`.
        """
        if link := self._links.get(rank):
            self._cut(link)
        self._link(rank, sock, seals)
        self._dismiss(self._links[rank])

    def _dismiss(self, link: ControlSocket) -> None:
        link.queue(Frame(FrameType.LOST, link.peer, UNREACHABLE))
        self._send(link)
        link.finish()
        link.open = False

    def _reached(self, rank: int, sock: socket.socket, seals: Seals) -> None:
        self._chief = rank
        self._watch(rank)
        self._link(rank, sock, seals)
        for frame in [*self._recall(), *map(self._dead, sorted(self._ends - {rank}))]:
            self._queue(rank, frame)

    def _preside(self) -> None:
        me = self._chief = self._star.rank
        others = set(range(self._star.size)) - {me} - self._failover.out
        until = time.monotonic() + 2 * silence_seconds(self._timeout)
        self._router = ControlRouter(self._star.size, me, others, until)
        for frame in self._recall():
            self._dispatch(frame)
        for rank in self._ends:
            self._doubt(rank)
        for rank, (sock, seals) in self._early.items():
            self._came(rank, sock, seals)
        self._early.clear()

    def _flush(self) -> float:
        """Send what is queued, the farewell last, but not for ever; return until when."""
        until = time.monotonic() + FLUSH_SECONDS
        self._turn(0)
        while (left := until - time.monotonic()) > 0:
            if self._sent():
                break
            pause = self._pause()
            self._turn(left if pause is None else min(left, pause))
        return until

    def _sent(self) -> bool:
        """Tell whether nothing is left to be handed to the kernel."""
        unsent = any(link.unsent and link.open for link in self._busy)
        return not (unsent or self._failover.seeking)

    def _drain(self, until: float) -> None:
        """Read on until what was sent has arrived.

        A socket that is closed with unread bytes, or gets more of them afterwards, answers with a
        reset, and what was still on its way from here is lost: the farewell above all.
        """
        pause, longest = ARRIVED_SECONDS
        self._finished = True
        for link in self._links.values():
            link.finish()
        while (left := until - time.monotonic()) > 0:
            links = [link for link in self._links.values() if link.open]
            if self._sent() and all(link.arrived() for link in links):
                break
            self._turn(min(left, pause))
            pause = min(2 * pause, longest)

    def _close_all(self) -> None:
        self._failover.close()
        for link in self._links.values():
            link.sock.close()
        for sock, _ in self._early.values():
            sock.close()
        for sock in self._probes.values():
            sock.close()
        for fd in self._pidfds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._waker.close()
        self._woken.close()
