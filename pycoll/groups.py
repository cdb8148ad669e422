"""Communicators of some of the ranks of a Communicator."""

from __future__ import annotations

import functools
import operator
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pycoll.arguments import check_timeout, integer
from pycoll.bootstrap.descriptors import enough
from pycoll.config import MOST_RANKS, join_address
from pycoll.errors import MismatchError, UsageError, quoted
from pycoll.runtime.plan.options import CallOptions

if TYPE_CHECKING:
    from pycoll.collectives import Collectives
    from pycoll.runtime.engine import Engine

C = TypeVar("C")  #: a class of communicators

_INT64 = range(-(1 << 63), 1 << 63)


class Groups:
    """What forms them, of one communicator."""

    def __init__(self, engine: Engine, collectives: Collectives) -> None:
        self._engine = engine
        self._collectives = collectives
        self._formed = 0  #: on every rank alike

    def split(
        self, make: Callable[[Engine], C], color: int | None, key: int, timeout: float | None
    ) -> C | None:
        """Return what ``make`` makes of the ranks that give the same color."""
        with self._engine.order.begins("split"):
            import numpy

            mine = [
                color is not None,
                _whole(0 if color is None else color, "color"),
                _whole(key, "key"),
            ]
            options = CallOptions(timeout=timeout, purpose="split()")
            every = numpy.array(mine, numpy.int64)
            said = self._collectives.launch.run("allgather", every, None, options)
        self._formed += 1
        if color is None:
            return None
        same = [
            (theirs[2], rank)
            for rank, theirs in enumerate(said.reshape(-1, 3).tolist())
            if theirs[:2] == mine[:2]
        ]
        return self._group(make, [rank for _, rank in sorted(same)], "split")

    def dup(self, make: Callable[[Engine], C], timeout: float | None) -> C:
        """Return what ``make`` makes of the same ranks."""
        with self._engine.order.begins("dup"):
            self._collectives.launch.arrive(CallOptions(timeout=timeout, purpose="dup()"), False)
        self._formed += 1
        return self._group(make, list(range(self._engine.world.size)), "dup")

    def shrink(self, make: Callable[[Engine], C], timeout: float | None) -> C:
        """Return what ``make`` makes of those who live."""
        from pycoll.runtime.shrink import shrink

        self._engine.life.require_usable("shrink")
        seconds = check_timeout("shrink", timeout) or self._engine.timeout
        with enough("shrink", self._engine.world.size):
            return make(shrink(self._engine, seconds))

    def grow(
        self,
        make: Callable[[Engine], C],
        count: int,
        address: str | None,
        timeout: float | None,
    ) -> C:
        """Return what ``make`` makes of these ranks and of newcomers."""
        from pycoll.runtime import grow

        engine = self._engine
        with engine.order.begins("grow"):
            import numpy

            count = integer("grow: n", count, 1, MOST_RANKS - engine.world.size)
            place = engine.config.join_address
            if address is not None:
                place = join_address("grow: address", address)
            if place is None:
                raise UsageError(
                    "grow: no address, want one at which newcomers find this job, "
                    "comm.grow(n, address='host:port'), or PYCOLL_JOIN_ADDRESS, on every rank and "
                    "every newcomer; `pycoll run --elastic` sets it"
                )
            secret = grow.secret(engine, place)
            options = CallOptions(timeout=timeout, purpose="grow()")
            mine = numpy.array([count, zlib.crc32(place.encode())], numpy.int64)
            said = self._collectives.launch.run("allgather", mine, None, options).reshape(-1, 2)
        self._formed += 1
        self._same("n", said[:, 0].tolist(), str)
        self._same("the address (its CRC-32)", said[:, 1].tolist(), "{:08x}".format)
        checked = check_timeout("grow", timeout)
        seconds = engine.timeout if checked is None else checked
        with enough("grow", len(said) + count):
            meet = functools.partial(
                grow.meet, count=count, address=place, secret=secret, seconds=seconds
            )
            return make(engine.found(list(range(len(said))), f"grow {self._formed}", meet))

    @staticmethod
    def _same(what: str, values: list[int], shown: Callable[[int], str]) -> None:
        for rank, value in enumerate(values):
            if value != values[0]:
                raise MismatchError(
                    f"grow: {what} is {shown(value)} on rank {rank} and {shown(values[0])} on "
                    "rank 0; give all ranks the same"
                )

    def _group(self, make: Callable[[Engine], C], ranks: list[int], how: str) -> C:
        with enough(how, len(ranks)):
            return make(self._engine.group(ranks, f"{how} {self._formed}"))


def _whole(value: int, name: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = _INT64.stop
    if number not in _INT64:
        raise UsageError(f"split: {name} is {quoted(value)}, want an integer of at most 64 bits")
    return number
