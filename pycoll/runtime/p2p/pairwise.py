"""Pairwise: messages between two ranks, which no Program sends.

Transfers to one peer, and those from one peer, keep their order; there is none with anything else,
and they move whenever anybody polls or waits. A pairwise batch is transfers that together are one
call among the collectives, in their order.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pycoll.dtypes import DType
from pycoll.runtime.call_site import user_line
from pycoll.runtime.native import bindings
from pycoll.runtime.native.bindings import P2POp
from pycoll.runtime.record.kinds import Kind
from pycoll.runtime.work import Work

if TYPE_CHECKING:
    from pycoll.runtime.engine import Engine


class PairwiseKind:
    """A pairwise call that all ranks must make alike."""

    def __init__(self, what: str, dtype: DType, root: int | None) -> None:
        more = "" if root is None else f", root {root}"
        self.text = f"{what}({dtype.name}{more})"
        digest = hashlib.blake2b(f"pairwise {self.text}".encode(), digest_size=8).digest()
        self.signature = int.from_bytes(digest, "little")


class PairwiseKinds:
    """The kinds of pairwise calls that were made on one engine, by which its failures name them."""

    def __init__(self, engine: Engine) -> None:
        self._comm = engine.comm
        self._named = engine.failure.plans
        self._kinds: dict[tuple[str, DType, int | None], PairwiseKind] = {}

    def kind(self, what: str, dtype: DType, root: int | None) -> PairwiseKind:
        """Return the kind of a call, such as ``what`` = "alltoallv"."""
        kind = self._kinds.get((what, dtype, root))
        if kind is None:
            kind = self._kinds[what, dtype, root] = PairwiseKind(what, dtype, root)
            self._named[kind.signature] = kind
            Kind(what, "pairwise", 0, dtype.name).name(self._comm, kind.signature)
        return kind


class Pairwise:
    """The transfers of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kinds = PairwiseKinds(engine)

    def transfer(self, messages: Sequence[P2POp], timeout: float | None) -> None:
        """Send and receive messages, in any order, and return when all are done."""
        engine = self._engine
        seconds = engine.timeout if timeout is None else timeout
        self._finish(bindings.exchange(engine.comm, messages, seconds), seconds)

    def post(
        self,
        messages: Sequence[P2POp],
        timeout: float | None,
        owner: Any,
        text: str,
        finish: Callable[[], Any],
    ) -> Work:
        """Send and receive messages beside the caller; ``finish`` gives the Work's value.

        Args:
            messages: Their arrays are to be held by ``owner``.
            timeout: Seconds until the communicator breaks; the communicator's by default.
            owner: What must not be collected meanwhile.
            text: The call, as errors show it.
            finish: Called by the first `Work.wait` that finds all done.
        """
        engine = self._engine
        seconds = engine.timeout if timeout is None else timeout
        work = Work(engine, f"{text} at {user_line()}", seconds, owner)
        return work.begin(
            lambda place: bindings.post(engine.comm, messages, seconds, place), finish
        )

    def call(
        self,
        what: str,
        dtype: DType,
        root: int | None,
        messages: Iterable[P2POp],
        timeout: float | None,
    ) -> None:
        """Run a pairwise batch as one call, such as ``what`` = "alltoallv".

        Args:
            what: With ``dtype`` and ``root``, what all ranks must ask for alike.
            dtype: Of the elements.
            root: A rank, or None where there is none.
            messages: Those with this rank itself included: they become a copy.
            timeout: Seconds.
        """
        engine, kind = self._engine, self._kinds.kind(what, dtype, root)
        seconds = engine.timeout if timeout is None else timeout
        try:
            code = bindings.pairwise(
                engine.comm, kind.signature, self._staggered(messages), seconds
            )
            if code:
                engine.waits.finish(code, seconds)
        except BaseException as error:
            engine.waits.interrupted(error)
            raise

    def submit(
        self,
        what: str,
        dtype: DType,
        root: int | None,
        messages: Iterable[P2POp],
        timeout: float | None,
        owner: Any,
        finish: Callable[[], Any],
    ) -> Work:
        """Queue a pairwise batch behind the calls before it; see `call` and `post`."""
        engine, kind = self._engine, self._kinds.kind(what, dtype, root)
        seconds = engine.timeout if timeout is None else timeout
        where = f"{kind.text} at {user_line()}"
        work = Work(engine, where, seconds, owner)
        begin = functools.partial(
            bindings.pairwise_submit,
            engine.comm,
            kind.signature,
            self._staggered(messages),
            seconds,
            where,
        )
        return work.begin(begin, finish)

    def _staggered(self, messages: Iterable[P2POp]) -> list[P2POp]:
        """Order messages so that no rank is everybody's first; receives stand ready first."""
        rank, size = self._engine.world.rank, self._engine.world.size
        return sorted(messages, key=lambda m: (m.sending, (m.peer - rank) % size))

    def _finish(self, code: int, timeout: float) -> None:
        """Carry a blocking transfer that gave ``code`` to its end, or raise."""
        try:
            if code:
                self._engine.waits.finish_transfer(code, timeout)
        except BaseException as error:
            self._engine.waits.interrupted(error)
            raise
