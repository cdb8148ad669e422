"""Plans: a verified Program bound to a message, found again at the next call of its kind.

A call that no plan serves yet takes the slow path through here: hear which algorithm runs it, and
what is proved of that, lower this rank's steps, load and bind them. What is asked about all ranks
is found out by one of them (`once`); the rest each does for itself. The signature of a plan travels
with every message of its calls, so ranks that do not agree find out from the first one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pycoll import collector, log
from pycoll.algorithms import get
from pycoll.cost import Choice
from pycoll.dtypes import ReduceOp
from pycoll.errors import CollectiveTimeout, PeerLostError, ScheduleError, UsageError
from pycoll.program.isa import CHUNK_UNIT, HOST_DESTINATIONS
from pycoll.program.join import joined
from pycoll.program.program import Program
from pycoll.program.slots import tile_bytes
from pycoll.runtime import room
from pycoll.runtime.failure import TOLD
from pycoll.runtime.native import bindings
from pycoll.runtime.plan.call import BARRIER, Call, Wanted
from pycoll.runtime.plan.earlier import SETTLED
from pycoll.runtime.plan.geometry import Geometry, geometry
from pycoll.runtime.plan.options import Ordered
from pycoll.runtime.plan.proof import Form, Proofs, code_of
from pycoll.runtime.record.kinds import Kind
from pycoll.schedule import COLLECTIVES, Algorithm, NotDirect
from pycoll.schedule.trace import forget

if TYPE_CHECKING:
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.options import Asked
    from pycoll.runtime.plan.selection import Selection
    from pycoll.verify import Record

#: Plans kept; when there are more, all are forgotten and the ones in use are made again.
MAX_PLANS = 1024
#: Bytes of a Program that took megabytes to lower.
LONG = 64 << 10


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class BoundPlan:
    """A native plan and what it is called."""

    handle: Any
    number: int  #: the pointer, as `fastcall` takes it
    text: str
    algorithm: str
    direct: str | None  #: algorithm that runs instead where all arrays are of `empty`
    transport: str  #: what moves the data, such as "shm", "tcp" or "shm+verbs"
    nbytes: int  #: of the message, all blocks together


@dataclass(slots=True)
class _Lowered:
    """This rank's Program of one form."""

    form: Form
    digest: int
    peers: frozenset[int]  #: the ranks that exchange messages with this one
    record: Record
    blob: bytes  #: until it is loaded
    code: bytes  #: tells the Program from every other
    handle: Any = None  #: the native program


class Target(Protocol):
    """Where the plans of a communicator run: on the host, or on a GPU."""

    destinations: int  #: of a REDUCE_COPY that they run, at most

    @property
    def direct(self) -> bool:
        """Tell whether arrays of `empty` may take the direct form."""

    @property
    def selection(self) -> Selection:
        """Return how calls choose their algorithms."""

    def keep(self, call: Call, handle: Any, forms: Sequence[Form], timeout: float | None) -> Any:
        """Return what runs a native plan, which is freed when the engine closes at the latest."""

    def offer(self, call: Call, asked: Asked, made: BoundPlan) -> None:
        """Let later calls find a plan by their arrays alone."""

    def forget(self) -> None:
        """Let no call find any of them so."""

    def transport(self, peers: set[int]) -> str:
        """Return what moves the data to these ranks."""


class PlanCache:
    """The plans of one communicator.

    Args:
        engine: The communicator's.
        target: Where they run.
        proofs: Of the same ranks, if they have any already.
    """

    def __init__(self, engine: Engine, target: Target, proofs: Proofs | None = None) -> None:
        self._engine = engine
        self._target = target
        self._plans: dict[tuple[Call, Asked], BoundPlan] = {}
        self._first: set[tuple[Call, Asked]] = set()  #: of the plans those that are not for good
        self._known: dict[tuple[Form, int], _Lowered] = {}  # by form and root
        self.proofs = proofs or Proofs(engine)
        self._rank, self._size = engine.world.rank, engine.world.size
        engine.lend(self)

    def known(self, call: Call, asked: Asked) -> bool:
        """Tell whether `find` has only to look it up."""
        return (call, asked) in self._plans

    def find(self, call: Call, asked: Asked, timeout: float | None = None) -> BoundPlan:
        """Return the plan for a call; make it first if need be.

        Args:
            call: What all ranks ask for alike.
            asked: The algorithm; None: the fastest.
            timeout: Seconds to reach the ranks that it talks to; the communicator's by default.

        Raises:
            UsageError: There is no such algorithm, or it is for another collective.
            ScheduleError: The algorithm is not correct.
        """
        found = self._plans.get((call, asked))
        if found is not None and not (self._first and self._superseded(call, asked)):
            return found
        if len(self._plans) >= MAX_PLANS and not self._engine.calling():
            self.forget()  # else another thread may be inside a call of one: the next time
        made = self._plans[call, asked] = self._make(call, asked, timeout)
        plain = call == BARRIER or not (call.counts or call.pieces or call.purpose)
        # Then the arrays' lengths and formats say it all.
        if plain and call.dtype.named and self.lasts(call, asked):
            self._target.offer(call, asked, made)
        return made

    def lasts(self, call: Call, asked: Asked) -> bool:
        """Tell whether the plan of a call is for good: `find` will not return another later."""
        return (call, asked) not in self._first

    def _superseded(self, call: Call, asked: Asked) -> bool:
        """Tell whether the next call runs what is best for the ranks that there are."""
        return (call, asked) in self._first and self._settled()

    def _settled(self) -> bool:
        # The number of a call is the same on all ranks, so all change over at the same call.
        return self._engine.next_call() >= SETTLED

    def revoke(self, refuse: Callable[..., Any]) -> None:
        """Forget every plan: the engine closes."""
        self.forget()

    def forget(self) -> None:
        """Forget every plan; none may be in use."""
        self._target.forget()
        self._plans.clear()
        self._first.clear()
        self._known.clear()  # a native plan keeps its own
        self.proofs.forget()

    def _make(self, call: Call, asked: Asked, timeout: float | None) -> BoundPlan:
        wanted = asked.algorithm if isinstance(asked, Ordered) else asked
        try:
            own, choice, text, final = self._planned(call, wanted, timeout)
            (self._first.discard if final else self._first.add)((call, asked))
        except (PeerLostError, CollectiveTimeout) as error:
            if TOLD not in vars(error):  # it ended a wait for what another rank finds out for all
                named = wanted if isinstance(wanted, Algorithm) else None
                self._engine.failure.bereave_call(call.text(named))
            raise
        return self._bind(call, own, choice, text, timeout)

    def _planned(
        self, call: Call, wanted: Wanted, timeout: float | None
    ) -> tuple[list[_Lowered], Choice, str, bool]:
        """Return this rank's Programs for a call, the choice with its tile, and the call's text.

        And whether the choice is for good.
        """
        without: tuple[str, ...] = ()
        while True:
            choice, algorithm, final = self._target.selection.choose(
                call, wanted, timeout, without, first=not self._settled()
            )
            try:
                return *self._lowered_as(choice, algorithm, call, wanted, timeout), final
            except ScheduleError as error:
                # The choice only estimates what a proof takes; all ranks hear that it is too much.
                again = wanted is not None or algorithm.name in without
                if again or not _too_large(error):
                    raise
                if self._rank == 0:
                    log.info("selection", "%s gives way: %s", algorithm.name, error)
                without += (algorithm.name,)

    def _lowered_as(
        self,
        choice: Choice,
        algorithm: Algorithm,
        call: Call,
        wanted: Wanted,
        timeout: float | None,
    ) -> tuple[list[_Lowered], Choice, str]:
        """Return this rank's Programs of an algorithm that was chosen, and the rest likewise."""
        world = self._engine.world
        text = call.text(algorithm if wanted is not None else None)
        average = call.op is ReduceOp.AVG
        placement = world.placement.rotated(call.root)
        staged = Form(algorithm, average, False, placement)
        own = [self._lowered(staged, call.root, timeout)]
        if call.fixed:
            self._require_fixed(own[0], call, timeout)
        if choice.direct is not None and self._target.direct and world.direct:
            named = algorithm if choice.direct == algorithm.name else None
            direct = named or get(choice.direct, call.collective)
            mapped = Form(direct, average, True, placement)
            try:
                made = self._lowered(mapped, call.root, timeout)
                if not (call.fixed and self._disorder(made, call, timeout)):
                    own.append(made)
            except ScheduleError as error:
                if not (isinstance(error, NotDirect) or _too_large(error)):
                    raise  # else it has no such form, and runs staged
        widest = max(one.record.facts.widest for one in own)
        # A direct form has no messages.
        most = room.message_bytes(own[0].record.facts.edges, widest, world, choice.tile)
        tile = tile_bytes(choice.tile, widest, most)
        if tile == 0:
            raise UsageError(
                f"{call.collective}: algorithm {algorithm.name!r} sends {widest} chunks at once, "
                f"want at most {most // CHUNK_UNIT}"
            )
        if any(one.record.verdict.origin == "unproved" for one in own):
            text += " (unproved)"
        return own, choice._replace(tile=tile), text

    def _require_fixed(self, own: _Lowered, call: Call, timeout: float | None) -> None:
        if text := self._disorder(own, call, timeout):
            where = f" (ranks are counted from root {call.root})" if call.root else ""
            raise UsageError(
                f"{call.collective}: algorithm {own.form.algorithm.name!r} does not fold in the "
                f"fixed order among {self._size} ranks: {text}{where}; want one that does, or "
                "order='free'"
            )

    def _disorder(self, own: _Lowered, call: Call, timeout: float | None) -> str:
        rank = (self._rank - call.root) % self._size
        return self.proofs.disorder(own.form, own.record, rank, own.code, timeout)

    def _lowered(self, form: Form, root: int, timeout: float | None) -> _Lowered:
        """Return this rank's Program of a form, lowered once for all messages that it serves."""
        found = self._known.get((form, root))
        if found is None:
            own = self.proofs.program(form, root, timeout)
            if not self._engine.world.direct:  # for direct forms peers' steps are wanted again
                forget()
            peers = frozenset((peer + root) % self._size for peer in own.peers)
            code = code_of(own.blob)
            found = _Lowered(form, own.digest, peers, own.record, own.blob, code)
            self._known[form, root] = found
        return found

    def _bind(
        self,
        call: Call,
        own: list[_Lowered],
        choice: Choice,
        text: str,
        timeout: float | None = None,
    ) -> BoundPlan:
        engine, g = self._engine, self._geometry(call)
        agreed = (call, [one.digest for one in own], choice.tile, choice.stream)
        digest = hashlib.blake2b(repr(agreed).encode(), digest_size=8).digest()
        signature = int.from_bytes(digest, "little")
        peers = {peer for one in own for peer in one.peers}
        engine.links.require(peers, timeout)
        loaded = [self._load(one, call.root) for one in own]
        handle = bindings.plan_create(
            engine.comm,
            loaded[0],
            loaded[1] if len(loaded) > 1 else None,
            signature=signature,
            blocks=call.blocks(self._size),
            dtype=call.dtype.carrier.code,
            op=int(call.op),
            tile=choice.tile,
            stream=choice.stream,
            root=call.root,
            in_extent=g.input,
            out_extent=g.output,
        )
        handle = self._target.keep(call, handle, [one.form for one in own], timeout)
        made = BoundPlan(
            handle,
            bindings.plan_number(handle),
            text,
            choice.algorithm,
            choice.direct if len(own) > 1 else None,
            self._target.transport(peers),
            call.nbytes,
        )
        engine.failure.plans[signature] = made
        Kind(
            call.purpose.partition("(")[0] or call.collective + "v" * bool(call.counts),
            choice.algorithm,
            call.nbytes,
            call.dtype.name,
            call.op.name.lower() if COLLECTIVES[call.collective].reduces else "",
        ).name(engine.comm, signature)
        return made

    def _load(self, one: _Lowered, root: int) -> Any:
        if one.handle is None:
            blob, most = one.blob, self._target.destinations
            if most > HOST_DESTINATIONS and (one.form.direct or one.record.facts.fused):
                blob = joined(Program.from_bytes(blob), most).to_bytes()
            loaded = bindings.program_load(self._engine.comm, blob, root, most)
            long = len(blob) > LONG
            one.handle, one.blob = self._engine.keep(loaded), b""
            if long:
                collector.give_back()
        return one.handle

    def _geometry(self, call: Call) -> Geometry:
        return geometry(COLLECTIVES[call.collective], self._rank, self._size, call.root)


def _too_large(error: ScheduleError) -> bool:
    """Tell whether all ranks heard that a proof takes too long."""
    from pycoll.verify.gate import TooLargeError  # loaded with the prover, which raised it

    return isinstance(error, TooLargeError)
