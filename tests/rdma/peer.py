"""A rank that is no pycoll: it speaks to one over verbs, through pyverbs.

Everything waits for what it wants with a deadline; what comes meanwhile is dealt with.
"""

from __future__ import annotations

import mmap
import select
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from pyverbs import enums
from queue_pair import ATTEMPT, OWN, READABLE, STAGE, Connection, Rail
from wireup import (
    CHANNELS,
    COUNT,
    CREDIT_BITS,
    INLINE,
    LINE,
    LINES,
    NO_PLACE,
    NOTE,
    PROGRAMS,
    End,
    Hello,
    Immediate,
    Kind,
    Line,
    Loan,
    News,
    Note,
    WireupMessage,
    WireupSocket,
    landed,
)

PATIENCE = 60.0  #: seconds
STATUS = {
    getattr(enums, f"IBV_WC_{name}"): name
    for name in ("SUCCESS", "REM_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_OP_ERR", "RETRY_EXC_ERR")
}
TRY = 7  #: channel of the write by which a connection is tried


class Message(NamedTuple):
    """What the other rank sent on a channel; `Peer.data` reads it."""

    channel: int
    number: int  #: from 0
    line: Line


class Peer:
    """One rank of a job, towards a rank that is pycoll.

    Args:
        wireup: The authenticated connection between the two.
        devices: Names of this rank's.
        slots: Of a channel of programs, as all ranks have agreed.
        slot_bytes: Of one.
        small_bytes: Of a small message, of which each line has a slot behind these.
    """

    def __init__(
        self,
        wireup: WireupSocket,
        devices: list[str],
        slots: int,
        slot_bytes: int,
        small_bytes: int,
    ) -> None:
        self.wireup = wireup
        message = self._next_message()
        assert message.kind is Kind.HELLO, message
        self.theirs = Hello.unpack(message.body)
        size = self.theirs.lines_bytes
        assert size == CHANNELS * LINES * LINE, size
        self.slots, self.slot_bytes, self.small_bytes = slots, slot_bytes, small_bytes
        self.channel_bytes = self.theirs.slots_bytes // CHANNELS
        behind = self.channel_bytes - slots * slot_bytes
        assert 0 <= behind - LINES * (small_bytes + LINE) < 4096, self.theirs
        self.memory = mmap.mmap(-1, size + self.theirs.slots_bytes)
        self.rails = [Rail(device, self.memory, size) for device in devices]
        self.conns: dict[int, Connection] = {}
        self.fences = 0  #: wireup messages that said that a connection is gone at the other end
        self.left = False  #: the other rank has said goodbye
        self.sent, self.consumed = [0] * CHANNELS, [0] * CHANNELS
        self.credit = [0] * CHANNELS  #: of what was sent, as the other rank said
        self._come = [0] * CHANNELS  #: messages that have come
        self._messages: list[Message] = []
        self._pieces: dict[tuple[int, int], set[int]] = {}
        self._busy = -1  #: connection whose end is dealt with by who uses it
        self._gone: dict[int, Connection] = {}
        self._lent: list[object] = []

    # What a test does.

    def greet(self) -> None:
        """Say where the other rank may write."""
        size, at = self.theirs.lines_bytes, self.rails[0].lines.buf
        keys = tuple(rail.key() for rail in self.rails)
        hello = Hello(1, at, size, at + size, self.theirs.slots_bytes, 0, keys)
        self.wireup.send(Kind.HELLO, hello.pack())

    def until_tried(self, count: int) -> None:
        """Wait until the other rank has tried so many connections."""
        conns = self.conns
        self._until(lambda: sum(c.tried for c in conns.values()) >= count, "a connection")

    def message(self) -> Message:
        """Return the next message of any channel, which is consumed by that."""
        self._until(lambda: bool(self._messages), "a message")
        message = self._messages.pop(0)
        self.consumed[message.channel] += 1
        return message

    def data(self, message: Message, nbytes: int) -> bytes:
        """Return what a message of so many bytes holds."""
        if nbytes <= INLINE:
            return message.line.inline[:nbytes]
        at = self.theirs.lines_bytes + self._slot(message.channel, message.number, nbytes)
        return self.memory[at : at + nbytes]

    def send(self, like: Message, data: bytes, pieces: int = 1, place: int | None = None) -> None:
        """Send a message of the call of another one, and with it what was consumed.

        Args:
            like: Whose call it is.
            data: Its bytes, or what says where they lie.
            pieces: Over so many connections it is cut.
            place: What its line says of the place; the same as the other's by default.
        """
        channel, number = like.channel, self.sent[like.channel]
        self.until_tried(pieces)
        inline = len(data) <= INLINE
        small = inline or (channel < PROGRAMS and len(data) <= self.small_bytes)
        self._until(
            lambda: number - self.credit[channel] < (LINES if small else self.slots), "room"
        )
        line = Line(*like.line[:3], data if inline else b"", number + 1)
        if place is not None:
            line = line._replace(place=place)
        step = len(data) // pieces
        slot = self.theirs.slots + self._slot(channel, number, len(data))
        at = (channel * LINES + number % LINES) * LINE
        indexes = sorted(self.conns)[:pieces]
        if inline:
            immediate = Immediate(channel, News.LINE, self.consumed[channel])
            self._write(indexes[0], immediate, line.pack(), at)
            indexes = []
        note = Note(*line[:3], number + 1, self.consumed[channel])
        for piece, index in enumerate(indexes):
            begin = piece * step
            end = len(data) if piece == pieces - 1 else begin + step
            immediate = Immediate(channel, News.PIECE, 0, pieces, piece, number % LINES)
            part, behind = data[begin:end], (len(data) + LINE - 1) // LINE * LINE
            if piece < pieces - 1:
                pass
            elif not small and channel < PROGRAMS and behind + LINE > self.slot_bytes:  # no room
                self._post(index, slot + begin, part)
                immediate = immediate._replace(news=News.LAST)
                self._write(index, immediate, note.pack(), at)
                continue
            else:
                place = (slot - self._slots_of(channel) + behind) // LINE
                immediate = immediate._replace(news=News.LAST, place=place)
                part = part.ljust(behind - begin, b"\0") + note.pack()
            self._post(index, slot + begin, part, immediate)
        self.sent[channel] += 1
        self._until(lambda: all(not conn.owned for conn in self.conns.values()), "acknowledgement")

    def read(self, address: int, nbytes: int, key: int) -> bytes:
        """Read memory of the other rank."""
        status = self.attempt(enums.IBV_WR_RDMA_READ, address, key, bytes(nbytes))
        assert status == "SUCCESS", status
        return self.conns[min(self.conns)].rail.stage.read(nbytes, 0)

    def lend(self, data: bytes) -> Loan:
        """Let the other rank read a message, for ever."""
        memory = mmap.mmap(-1, len(data))
        memory.write(data)
        regions = [rail.region(memory, READABLE) for rail in self.rails]
        self._lent += [memory, *regions]
        return Loan(regions[0].buf, tuple(region.rkey for region in regions))

    def until_credit(self, channel: int) -> None:
        """Wait until the other rank has consumed all that was sent."""
        self._until(lambda: self.credit[channel] == self.sent[channel], "credit")

    def give_back(self, channel: int, count: int) -> None:
        """Say how many messages were consumed."""
        self._write(min(self.conns), Immediate(channel, News.CREDIT, count))

    def claim(self, channel: int, place: int, count: int) -> None:
        """Say that a message has come whose note lies there, or in its line, with this count."""
        immediate = Immediate(channel, News.LAST, 0, place=place)
        note = Note(0, 0, 0, count, 0).pack() if place == NO_PLACE else b""
        self._write(min(self.conns), immediate, note, channel * LINES * LINE)

    def attempt(self, opcode: int, address: int, key: int, data: bytes) -> str:
        """Post one request to anywhere; return how it ended, as verbs name it.

        If that was the end of its connection, both ranks have fenced it, and another is there.
        """
        self.until_tried(1)
        self._busy = index = min(self.conns)
        self.conns[index].post(opcode, address, key, data, number=ATTEMPT)
        status: list[int] = []

        def ended() -> bool:
            status.extend(self._completions(index))
            return bool(status)

        self._until(ended, "completion")
        self._busy = -1
        name = STATUS.get(status[0], str(status[0]))
        if name != "SUCCESS":
            self.fence(index, name)
            self.until_tried(1)
        return name

    def fence(self, index: int, why: str) -> None:
        """Destroy a connection, say so, and wait until the other end has done the same."""
        conn = self.conns[index]
        self._let_go(index, why)
        self._until(lambda: conn.fenced, "the other end of a fence")

    def silence(self, index: int) -> None:
        """Destroy a connection's queue pair and say nothing: the other rank finds out by itself."""
        self.conns[index].qp.close()

    def counts(self) -> list[int]:
        """Return the count of every line, as it stands in memory."""
        return [self._line(c, i).count for c in range(CHANNELS) for i in range(LINES)]

    def leave(self) -> None:
        """Wait for the other rank's goodbye, and answer it."""
        self._until(lambda: self.left, "goodbye")
        for conn in self.conns.values():
            conn.close()
        self.wireup.close()

    # How it is done.

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"no {what} has come"
            for index in list(self.conns):
                if index != self._busy:
                    self._completions(index)
            if not self.left and select.select([self.wireup], [], [], 0)[0]:
                self._heed(self._next_message())

    def _next_message(self) -> WireupMessage:
        message = self.wireup.receive()
        return message or WireupMessage(Kind.CLOSE, 0, 0, b"")  # who dies does not even say so

    def _heed(self, message: WireupMessage) -> None:
        conn = self.conns.get(message.conn) or self._gone.get(message.conn)
        if message.kind is Kind.REQUEST:
            assert message.conn not in self.conns, f"{message} offers a connection that is there"
            rail = self.rails[message.conn % len(self.rails)]
            conn = self.conns[message.conn] = Connection(rail, message.turn)
            conn.connect(End.unpack(message.body))
            self.wireup.send(Kind.REPLY, conn.end().pack(), message.conn, message.turn)
        elif message.kind is Kind.FENCED:
            assert conn is not None
            assert conn.turn == message.turn, f"{message} is about turn {conn.turn}"
            self.fences += 1
            conn.fenced = True
            if message.conn in self.conns and message.conn != self._busy:
                self._let_go(message.conn, "the other end fenced it")
        elif message.kind is Kind.CLOSE:
            self.left = True
        else:
            raise AssertionError(f"nobody asked for {message}")

    def _let_go(self, index: int, why: str) -> None:
        self._completions(index)
        conn = self._gone[index] = self.conns.pop(index)
        conn.close()
        self.wireup.send(Kind.FENCED, landed(self.counts(), why), index, conn.turn)

    def _completions(self, index: int) -> list[int]:
        """Take in what a connection has brought; return how attempts have ended."""
        conn, attempts = self.conns[index], []
        for done in conn.cq.poll(16)[1]:
            good = done.status == enums.IBV_WC_SUCCESS
            if done.wr_id == ATTEMPT:
                attempts.append(done.status)
            elif done.wr_id == OWN:
                assert good, f"a write of this rank's own: {STATUS.get(done.status, done.status)}"
                conn.owned -= 1
            elif good:
                conn.tried = True
                conn.expect()
                self._take(Immediate.unpack(socket.ntohl(done.imm_data)))
        return attempts

    def _take(self, immediate: Immediate) -> None:
        if immediate.channel == TRY:
            return
        channel, said = immediate.channel, immediate.credit
        if immediate.news < News.PIECE:
            self.credit[channel] += (said - self.credit[channel]) & CREDIT_BITS
        else:
            come = self._pieces.setdefault((channel, immediate.line), set())
            come.add(immediate.piece)
            at = (channel * LINES + immediate.line) * LINE
            old = self._line(channel, immediate.line).count
            new = old + LINES if old else immediate.line + 1
            if immediate.news is News.LAST:
                place = (
                    self.theirs.lines_bytes + channel * self.channel_bytes + immediate.place * LINE
                )
                found = at if immediate.place == NO_PLACE else place
                note = Note.unpack(self.memory[found : found + NOTE.size])
                assert note.count == new, note
                self.memory[at : at + LINE] = Line(*note[:3], b"", old).pack()
                self.credit[channel] = max(self.credit[channel], note.credit)
            if len(come) == immediate.pieces:  # the writer leaves the count to the reader
                del self._pieces[channel, immediate.line]
                end = at + LINE
                self.memory[end - COUNT.size : end] = COUNT.pack(new)
        assert self.credit[channel] <= self.sent[channel], immediate
        number = self._come[channel]
        while (line := self._line(channel, number)).count > number:
            assert line.count == number + 1, f"{line} after {number} messages"
            self._messages.append(Message(channel, number, line))
            self._come[channel] = number = number + 1

    def _line(self, channel: int, number: int) -> Line:
        at = (channel * LINES + number % LINES) * LINE
        return Line.unpack(self.memory[at : at + LINE])

    def _slot(self, channel: int, number: int, nbytes: int) -> int:
        at = channel * self.channel_bytes
        if channel < PROGRAMS and nbytes <= self.small_bytes:
            behind = self.slots * self.slot_bytes
            return at + behind + number % LINES * (self.small_bytes + LINE)
        return at + number % self.slots * self.slot_bytes

    def _slots_of(self, channel: int) -> int:
        return self.theirs.slots + channel * self.channel_bytes

    def _post(
        self, index: int, address: int, data: bytes, immediate: Immediate | None = None
    ) -> None:
        """Write into the other rank's slots."""
        keys = self.theirs.rails[index % len(self.theirs.rails)]
        plain, last = enums.IBV_WR_RDMA_WRITE, enums.IBV_WR_RDMA_WRITE_WITH_IMM
        self.conns[index].post(last if immediate else plain, address, keys.slots, data, immediate)

    def _write(self, index: int, immediate: Immediate, data: bytes = b"", at: int = 0) -> None:
        """Write into the other rank's lines, with an immediate."""
        keys = self.theirs.rails[index % len(self.theirs.rails)]
        opcode = enums.IBV_WR_RDMA_WRITE_WITH_IMM
        address = self.theirs.lines + at
        self.conns[index].post(opcode, address, keys.lines, data, immediate, at=STAGE - LINE)
