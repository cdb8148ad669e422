"""Nothing runs unproved: what a communicator knows of the Programs that were proved.

A proof is made once for all ranks: by a certificate, by an earlier job that left its record on
disk, or by the first rank that needs it. The record says what each rank needs to lower its own
steps, and which Programs were proved; a rank that finds another one in its hands runs nothing.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import zlib
from typing import TYPE_CHECKING, NamedTuple

from pycoll import log
from pycoll.algorithms import BUILTIN
from pycoll.bootstrap.framing import MAX_BLOB
from pycoll.errors import ScheduleError
from pycoll.program.isa import EdgeKind
from pycoll.program.lower import compile_own, identity
from pycoll.runtime import room
from pycoll.runtime.plan import turns
from pycoll.runtime.plan.once import found_once
from pycoll.schedule import NotDirect, rank_steps

if TYPE_CHECKING:
    from pycoll.program.program import Program
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.join import World
    from pycoll.schedule import Algorithm, Placement
    from pycoll.verify import Record


class Form(NamedTuple):
    """One of the Programs that an algorithm lowers to."""

    algorithm: Algorithm
    average: bool
    direct: bool
    placement: Placement


class Own(NamedTuple):
    """This rank's Program of a form, as it is loaded, and what is known of all ranks."""

    record: Record
    digest: int  #: equal on all ranks
    blob: bytes
    peers: frozenset[int]  #: that exchange messages with this one, as if the root were rank 0


class Proofs:
    """What has been proved for one communicator."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # By form and whether the ranks are proved one by one; an error where there is none such.
        self._known: dict[tuple[Form, bool], Record | NotDirect] = {}
        self._orders: dict[Form, list[str]] = {}

    def program(self, form: Form, root: int, timeout: float | None) -> Own:
        """Return this rank's Program of a form, which is proved.

        Among many ranks that do the same up to their numbers one of each class lowers it for all;
        the others only change the numbers. The proof holds the digest of the representative's
        Program; if what was handed out has another, each rank lowers its own. So does each that of
        a user's algorithm, as nobody but the ranks has seen that they do the same.

        Args:
            form: What is lowered.
            root: The rank that counts as the first.
            timeout: Seconds to wait for the rank that proves or lowers it; None: the
                communicator's.

        Raises:
            NotDirect: There is no such form.
            ScheduleError: It is wrong, or this rank's Program is none of those that were proved.
        """
        world = self._engine.world
        rank = (world.rank - root) % world.size
        for whole in (False, True):
            record = self._one_by_one(form, timeout) if whole else self._record(form, timeout)
            if world.size > room.EAGER and form.algorithm in BUILTIN and record.classes_are_large:
                found = self._of_class(form, record, rank, timeout)
                if found is not None:
                    return found
            with self._turn(form, rank):
                program = self._lower(form, record, rank)

                def lower(rank: int, known: Record = record) -> Program:
                    return self._lower(form, known, rank)

                if record.admits(program, form.algorithm.collective, lower):
                    return _own(record, record.finished(program))
            if record.group is None:
                break
            # It is not like the rank that was taken for it: all are to be proved, one by one.
        raise ScheduleError(_other_program(form, world))

    def disorder(
        self, form: Form, record: Record, rank: int, code: bytes, timeout: float | None
    ) -> str:
        """Say what the Programs of a form fold in another order than the fixed one; "" if nothing.

        Args:
            form: What is lowered.
            record: Its proof.
            rank: This one, as if the root were rank 0.
            code: `code_of` this rank's Program.
            timeout: Seconds to wait for the rank that finds it out; None: the communicator's.

        Raises:
            TooLargeError: Its ranks move too many chunks.
            ScheduleError: This rank's Program is none of those that were looked at.
        """
        found = self._orders.get(form)
        if found is None:
            found = self._orders[form] = found_once(
                self._engine.once,
                ("order", self._identity(form), form.direct, form.average, record.group is None),
                lambda: self._compared(form, record),
                timeout,
            )
        text, *codes = found
        if not text and codes[rank] != code.hex():
            raise ScheduleError(_other_program(form, self._engine.world))
        return text

    def _compared(self, form: Form, record: Record) -> list[str]:
        """Return `disorder` as whoever finds it out, and the digest of every rank's Program."""
        from pycoll.verify.fixed_order import difference, require_small

        size = self._engine.world.size
        require_small(form.algorithm, size, form.placement)
        programs = [record.finished(self._lower(form, record, rank)) for rank in range(size)]
        text = difference(programs, form.algorithm.collective, form.average)
        return [text, *(code_of(program.to_bytes()).hex() for program in programs)]

    def _identity(self, form: Form) -> int:
        return identity(form.algorithm, self._engine.world.size, form.placement)

    def forget(self) -> None:
        """Forget all records, and so the algorithms that they are of."""
        self._known.clear()
        self._orders.clear()

    def _of_class(self, form: Form, record: Record, rank: int, timeout: float | None) -> Own | None:
        """Return a rank's Program from the one that is lowered for its class; None if it cannot."""
        size, number = self._engine.world.size, record.representative(rank)

        def lower() -> str:
            with self._turn(form, number):
                blob = self._lower(form, record, number).to_bytes()
            packed = base64.b64encode(zlib.compress(blob, 1))
            return packed.decode() if len(packed) < MAX_BLOB // 2 else ""

        subject = "program", identity(form.algorithm, size, form.placement), number
        packed = found_once(self._engine.once, subject, lower, timeout)
        image = record.image(zlib.decompress(base64.b64decode(packed)), rank) if packed else None
        if image is None:
            return None
        return Own(record, image.digest, image.to_bytes(), image.peers())

    def _turn(self, form: Form, rank: int) -> contextlib.AbstractContextManager[object]:
        """Return what is to be held while a rank's steps are lowered."""
        engine = self._engine
        if not engine.world.lazy:  # few ranks
            return contextlib.nullcontext()
        side = rank_steps(form.algorithm, engine.world.size, rank, form.placement)
        if len(side.steps) < turns.LONG:
            return contextlib.nullcontext()
        return turns.Turns(engine.bootstrap.control.secret, engine.world.cores).take()

    def _lower(self, form: Form, record: Record, rank: int) -> Program:
        return compile_own(
            form.algorithm,
            self._engine.world.size,
            rank,
            record.facts,
            direct=form.direct,
            placement=record.lowered_for(form.placement),
        )

    def _one_by_one(self, form: Form, timeout: float | None) -> Record:
        """Return the proof of each rank by itself, which only those ask for that need it."""
        from pycoll.verify.gate import TooLargeError

        try:
            return self._record(form, timeout, whole=True)
        except TooLargeError as error:
            # Not one for which all ranks choose anew: the others run what was proved for them.
            rank = self._engine.world.rank
            raise ScheduleError(
                f"rank {rank} does not do what the rank that was proved for it does, and {error}"
            ) from None

    def _record(self, form: Form, timeout: float | None, *, whole: bool = False) -> Record:
        found = self._known.get((form, whole))
        if found is None:
            try:
                certified = None if whole else self._certified(form)
                if certified and self._engine.world.rank == 0:
                    _say(certified, form)
                found = certified or self._shared(form, whole, timeout)
            except NotDirect as error:
                found = error
            self._known[form, whole] = found
        if isinstance(found, NotDirect):
            raise NotDirect(str(found))
        return found

    def _certified(self, form: Form) -> Record | None:
        # Loaded here, with the prover: a communicator may never make a plan.
        from pycoll.verify import by_certificate
        from pycoll.verify.certificates import Form as Shape

        world = self._engine.world
        shape = Shape(form.direct, form.average)
        return by_certificate(form.algorithm, world.size, world.slots, shape, form.placement)

    def _shared(self, form: Form, whole: bool, timeout: float | None) -> Record:
        from pycoll.verify import Record, gate

        engine, world = self._engine, self._engine.world

        def prove() -> object:
            record = gate(
                form.algorithm,
                world.size,
                slots=world.slots,
                direct=form.direct,
                average=form.average,
                placement=form.placement,
                cache=engine.cache,
                whole=whole,
                unproved=engine.unproved,
            )
            _say(record, form, f" in {engine.cache}" if record.verdict.origin == "cache" else "")
            return record.to_json()

        number = identity(form.algorithm, world.size, form.placement)
        subject = "proof", number, form.direct, form.average, world.slots, whole
        return Record.from_json(found_once(engine.once, subject, prove, timeout))


def code_of(blob: bytes) -> bytes:
    """Return what tells a Program from every other."""
    return hashlib.blake2b(blob, digest_size=8).digest()


def _other_program(form: Form, world: World) -> str:
    return (
        f"{form.algorithm.name} at {world.size} ranks: rank {world.rank} would run another "
        "program than the one that was proved; an algorithm may depend on its arguments and on "
        "nothing else that differs between ranks, or between two runs"
    )


def _say(record: Record, form: Form, where: str = "") -> None:
    """Log by what a form is known to be correct; one rank does, for all."""
    kind = ", direct" * form.direct + ", average" * form.average
    name = f"{form.algorithm.collective.name}{kind}"
    log.info("proof", "%s: %s%s", name, record.verdict, where)


def _own(record: Record, program: Program) -> Own:
    far = frozenset(edge.peer for edge in program.edges if edge.kind is not EdgeKind.LOCAL)
    return Own(record, program.digest, program.to_bytes(), far)
