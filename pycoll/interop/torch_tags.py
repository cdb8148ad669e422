"""Messages with tags, by those of a Communicator, which has none.

Messages with tag 0 are the communicator's own. All others from one rank to another travel over a
communicator of the two, made by both when they first use one, each behind its tag and its length. A
thread at either end sends or receives there in order; what nobody has asked for yet is kept.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable

import torch

from pycoll.communicator import Communicator
from pycoll.errors import (
    ClosedError,
    CollectiveTimeout,
    MismatchError,
    PycollError,
    UsageError,
)
from pycoll.interop.torch_tensor import Tensor

_REFUSED = -1  #: bytes of a message that was refused


class Promise:
    """One message on its way: what a process group's work waits for."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._done = threading.Event()
        self._error: PycollError | None = None

    def settle(self, error: PycollError | None = None) -> None:
        """Say that it is over; only the first time counts."""
        if not self._done.is_set():
            self._error = error
            self._done.set()

    def wait(self, timeout: float | None = None) -> None:
        """Return once it is over; raise what went wrong, or CollectiveTimeout."""
        if not self._done.wait(timeout):
            raise CollectiveTimeout(
                f"{self._what} is not finished after {timeout:g} s; it goes on, wait again"
            )
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        """Tell whether it is over."""
        return self._done.is_set()

    def exception(self) -> PycollError | None:
        """Return what went wrong; waits until it is over."""
        self._done.wait()
        return self._error


class _TaggedMessage:
    """One that somebody sends or wants: the bytes of a tensor.

    Without a tensor it was refused, and takes its place among the others: whatever comes for it is
    dropped, and whoever wants it is told. On the receiver's side that is who calls next: its own
    message becomes one of those, which is `told`.
    """

    told = False

    def __init__(self, tag: int, array: Tensor | None, what: str) -> None:
        self.tag, self.array, self._what = tag, array, what
        self.length: int = _REFUSED if array is None else array.numel()
        self.promise = Promise(what)

    def tell(self) -> None:
        """Fail: one that was refused here has taken what came before what comes for this one."""
        self.array, self.length, self.told = None, _REFUSED, True
        self.promise.settle(
            MismatchError(
                f"{self._what}: an earlier recv of this tag was refused on this rank, and has "
                "taken its message; what comes for this call is dropped, too"
            )
        )

    def take(self, data: Tensor | None) -> None:
        """Receive what was kept."""
        if self.array is None:
            self.promise.settle()
            return
        if data is None:
            self.promise.settle(MismatchError(f"{self._what}: its sender was refused this message"))
            return
        if self.length == data.numel():
            self.array.copy_(data)
            self.promise.settle()
            return
        self.promise.settle(
            UsageError(
                f"{self._what}: the message has {data.numel()} bytes, the tensor {self.length}"
            )
        )


class _TagQueue:
    """One direction between this rank and a peer.

    Args:
        make: Makes the communicator of the two; waits until the peer does so.
        what: Names the method and the peer in errors.
    """

    def __init__(self, make: Callable[[], Communicator], what: str) -> None:
        self._make, self._what = make, what
        self._changed = threading.Condition()
        self._error: PycollError | None = None
        self._comm: Communicator | None = None
        self._thread = threading.Thread(target=self._run, name=f"pycoll {what}", daemon=True)
        self._thread.start()

    def post(self, array: Tensor | None, tag: int) -> Promise:
        """Send an array of uint8, or receive into one; None: that was refused."""
        message = _TaggedMessage(tag, array, f"{self._what}, tag {tag})")
        with self._changed:
            if self._error is not None:
                message.promise.settle(self._error)
            else:
                self._add(message)
                self._changed.notify()
        return message.promise

    def close(self) -> None:
        """End it; what is not over fails."""
        self._fail(ClosedError(f"{self._what}): the process group was destroyed"))
        if self._comm is not None:
            self._comm._engine.leave()
        self._thread.join(1.0)  # it may still wait for the peer to make the communicator

    def _run(self) -> None:
        try:
            while self._wait():
                if self._comm is None:
                    self._comm = self._make()
                self._step(self._comm)
        except PycollError as error:
            # The two count themselves: to the user that would be somebody else.
            text = f"{self._what}, with a tag): of the two, the sender being rank 0: {error}"
            found = type(error)(text)
            found.__cause__ = error
            self._fail(found)

    def _wait(self) -> bool:
        """Wait for something to do; False if there will be nothing any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._waiting())
            return self._error is None

    def _fail(self, error: PycollError) -> None:
        with self._changed:
            self._error = self._error or error
            for message in self._waiting():
                message.promise.settle(self._error)
            self._changed.notify()

    def _add(self, message: _TaggedMessage) -> None:
        raise NotImplementedError

    def _waiting(self) -> list[_TaggedMessage]:
        raise NotImplementedError

    def _step(self, comm: Communicator) -> None:
        raise NotImplementedError


class _Sender(_TagQueue):
    def __init__(self, make: Callable[[], Communicator], peer: int) -> None:
        self._messages: deque[_TaggedMessage] = deque()
        super().__init__(make, f"send(rank {peer}")

    def _add(self, message: _TaggedMessage) -> None:
        self._messages.append(message)

    def _waiting(self) -> list[_TaggedMessage]:
        return list(self._messages)

    def _step(self, comm: Communicator) -> None:
        message = self._messages[0]
        head = torch.tensor([message.tag, message.length])
        sends = [(head, 1), (message.array, 1)]
        comm.exchange(sends=sends if message.length > 0 else sends[:1], async_op=True).wait()
        with self._changed:
            self._messages.popleft()
        message.promise.settle()


class _Receiver(_TagQueue):
    def __init__(self, make: Callable[[], Communicator], peer: int) -> None:
        self._wanted: defaultdict[int, deque[_TaggedMessage]] = defaultdict(deque)
        self._kept: defaultdict[int, deque[Tensor | None]] = defaultdict(deque)
        self._dropped: set[int] = set()  #: tags of messages of which the next recv is to be told
        self._present: _TaggedMessage | None = None  #: its bytes are coming
        super().__init__(make, f"recv(rank {peer}")

    def _add(self, message: _TaggedMessage) -> None:
        tag = message.tag
        if message.array is not None and tag in self._dropped:
            self._dropped.remove(tag)
            message.tell()
        if self._kept[tag]:
            self._give(message, self._kept[tag].popleft())
        else:
            self._wanted[tag].append(message)

    def _give(self, message: _TaggedMessage, data: Tensor | None) -> None:
        """Give what came to whom it came for; where that drops it, see that the user is told."""
        drops = message.array is None and not message.told and data is not None
        message.take(data)
        if drops:
            later = (m for m in self._wanted[message.tag] if m.array is not None or m.told)
            after = next(later, None)
            if after is None:
                self._dropped.add(message.tag)
            elif not after.told:
                after.tell()

    def _waiting(self) -> list[_TaggedMessage]:
        present = [] if self._present is None else [self._present]
        return present + [message for wanted in self._wanted.values() for message in wanted]

    def _step(self, comm: Communicator) -> None:
        """Take the next message in, whoever wants it."""
        head = torch.empty(2, dtype=torch.int64)
        comm.recv(head, 0, async_op=True).wait()
        tag, length = head.tolist()
        with self._changed:
            wanted = self._wanted[tag]
            if wanted and wanted[0].length == length:
                self._present = wanted.popleft()
        present = self._present
        data: Tensor = None if present is None else present.array
        if present is None and length != _REFUSED:
            data = torch.empty(length, dtype=torch.uint8)
        if length > 0:
            comm.recv(data, 0, async_op=True).wait()
        with self._changed:
            self._present = None
            if present is not None:
                present.promise.settle()
            elif wanted:
                self._give(wanted.popleft(), data)
            else:
                self._kept[tag].append(data)


class TagQueues:
    """The tagged messages of one process group.

    Args:
        make: Makes the communicator of two ranks, the sender first.
    """

    def __init__(self, make: Callable[[int, int], Communicator]) -> None:
        self._make = make
        self._senders: dict[int, _Sender] = {}
        self._receivers: dict[int, _Receiver] = {}

    def send(self, array: Tensor | None, rank: int, to: int, tag: int) -> Promise:
        """Send an array of uint8 from this rank."""
        if to not in self._senders:
            self._senders[to] = _Sender(lambda: self._make(rank, to), to)
        return self._senders[to].post(array, tag)

    def recv(self, array: Tensor | None, frm: int, rank: int, tag: int) -> Promise:
        """Receive an array of uint8 on this rank."""
        if frm not in self._receivers:
            self._receivers[frm] = _Receiver(lambda: self._make(frm, rank), frm)
        return self._receivers[frm].post(array, tag)

    def refused(self, rank: int, peer: int, sending: bool, tag: int) -> None:
        """Have a message that was refused on this rank take its place."""
        if sending:
            self.send(None, rank, peer, tag)
        else:
            self.recv(None, peer, rank, tag)

    def close(self) -> None:
        """End them all; what is not over fails."""
        for lane in (*self._senders.values(), *self._receivers.values()):
            lane.close()
        self._senders.clear()
        self._receivers.clear()
