"""Plans: a verified Program bound to a message, found again at the next call of its kind.

A call that no plan serves yet takes the slow path through here: choose an algorithm, prove it
unless a certificate does, lower it for this rank, load it, bind it. All ranks do the same from
the same inputs, so they agree without a message; the signature of a plan travels with every
message of its calls, so ranks that do not agree find out from the first one.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pycoll.algorithms import BUILTIN, get
from pycoll.cost import Choice, choose
from pycoll.dtypes import UINT8, DType, ReduceOp
from pycoll.errors import UsageError
from pycoll.program.isa import CHUNK_UNIT
from pycoll.program.lower import compile_program
from pycoll.program.program import Program
from pycoll.runtime import bindings
from pycoll.runtime.proof import Form, Proofs
from pycoll.schedule import Algorithm, NotDirect

if TYPE_CHECKING:
    from pycoll.runtime.engine import Engine

#: Plans kept; when there are more, all are forgotten and the ones in use are made again.
MAX_PLANS = 1024

#: What a user may ask for: nothing, a built-in by name, or an algorithm of one's own.
Wanted = Algorithm | str | None


@dataclass(frozen=True, slots=True)
class Call:
    """What all ranks must ask for alike."""

    collective: str
    op: ReduceOp
    dtype: DType
    count: int  #: elements
    pieces: tuple[int, ...] = ()  #: elements of each array of a coalesced call

    @property
    def nbytes(self) -> int:
        """Bytes of the message."""
        return self.count * self.dtype.itemsize

    def text(self, algorithm: Algorithm | None) -> str:
        """Return the call as errors show it; the algorithm only where the user chose one."""
        if self.collective == "barrier":
            return "barrier()"
        what = f"{self.count} element{'' if self.count == 1 else 's'}"
        if self.pieces:
            what = f"{len(self.pieces)} arrays of {what} in all"
        how = "" if algorithm is None else f", {_name(algorithm)}"
        return f"{self.collective}({self.op.name.lower()}, {self.dtype.name}, {what}{how})"


BARRIER = Call("barrier", ReduceOp.MAX, UINT8, 1)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Executable:
    """A native plan and what it is called."""

    handle: Any
    number: int  #: the pointer, as `fastcall` takes it
    text: str
    algorithm: str
    direct: str | None  #: algorithm that runs instead where all arrays are of `empty`


class Plans:
    """The plans of one communicator."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._plans: dict[tuple[Call, Wanted], Executable] = {}
        self._programs: dict[int, Any] = {}
        self._launchers: dict[Wanted, Any] = {None: engine.launcher}
        self._proofs = Proofs(engine, self._bind)
        engine.lend(self)

    def launcher(self, wanted: Wanted) -> Any:
        """Return what starts cached plans without Python's help, for one choice of algorithm."""
        launcher = self._launchers.get(wanted)
        if launcher is None:
            engine = self._engine
            launcher = bindings.fastcall.Launcher(engine.number, engine.timeout)
            self._launchers[wanted] = launcher
        return launcher

    def find(self, call: Call, wanted: Wanted) -> Executable:
        """Return the plan for a call; make it first if need be.

        Raises:
            UsageError: There is no such algorithm, or it is for another collective.
            ScheduleError: The algorithm is not correct.
        """
        found = self._plans.get((call, wanted))
        if found is not None:
            return found
        if len(self._plans) >= MAX_PLANS and not self._engine.calling():
            self._forget()  # else another thread may be inside a call of one: the next time
        made = self._plans[call, wanted] = self._make(call, wanted)
        if call.collective == "allreduce" and not call.pieces:
            launcher = self.launcher(wanted)
            n, arrays = call.nbytes, bindings.fastcall.ALIAS | bindings.fastcall.SHAPED
            launcher.add(0, int(call.op), 0, call.dtype.code, n, n, True, arrays, made.number)
        return made

    def revoke(self, refuse: Callable[..., Any]) -> None:
        """Forget every plan: the engine closes."""
        self._forget()

    def _forget(self) -> None:
        for launcher in self._launchers.values():
            launcher.drop()
        self._launchers = {None: self._engine.launcher}
        self._plans.clear()
        self._programs.clear()  # a native plan keeps its own

    def _make(self, call: Call, wanted: Wanted) -> Executable:
        world = self._engine.world
        asked = wanted
        if asked is None and call.collective != "barrier":
            asked = world.algorithm
        named = asked.name if isinstance(asked, Algorithm) else asked
        choice = choose(call.collective, call.nbytes, world.size, world.cores, named)
        algorithm = asked if isinstance(asked, Algorithm) else get(choice.algorithm)
        if algorithm.collective.name != "allreduce":
            raise UsageError(
                f"{call.collective}: algorithm {algorithm.name!r} is for "
                f"{algorithm.collective.name}, want one for allreduce"
            )
        text = call.text(algorithm if wanted is not None else None)
        average = call.op is ReduceOp.AVG
        staged = Form(algorithm, average, direct=False)
        forms = [(staged, self._compile(staged))]
        if choice.direct is not None:
            mapped = Form(algorithm if named else get(choice.direct), average, direct=True)
            with contextlib.suppress(NotDirect):  # it has no such form, and runs staged
                forms.append((mapped, self._compile(mapped)))
        programs = [program for _, program in forms]
        widest = max(program.widest for program in programs)
        tile = min(choice.tile, world.slot_bytes // widest // CHUNK_UNIT * CHUNK_UNIT)
        if tile == 0:
            raise UsageError(
                f"{call.collective}: algorithm {algorithm.name!r} sends {widest} chunks at once, "
                f"want at most {world.slot_bytes // CHUNK_UNIT}"
            )
        self._proofs.require(call, forms, text)
        return self._bind(call, programs, choice._replace(tile=tile), text)

    def _compile(self, form: Form) -> Program:
        world = self._engine.world
        return compile_program(
            form.algorithm, world.size, world.rank, direct=form.direct, average=form.average
        )

    def _bind(self, call: Call, programs: list[Program], choice: Choice, text: str) -> Executable:
        agreed = (call, [p.digest for p in programs], choice.tile, choice.stream)
        digest = hashlib.blake2b(repr(agreed).encode(), digest_size=8).digest()
        signature = int.from_bytes(digest, "little")
        engine, loaded = self._engine, [self._load(program) for program in programs]
        handle = bindings.plan_create(
            engine.comm,
            loaded[0],
            loaded[1] if len(loaded) > 1 else None,
            signature=signature,
            blocks=[call.nbytes],
            dtype=call.dtype.code,
            op=int(call.op),
            tile=choice.tile,
            stream=choice.stream,
        )
        engine.keep(handle)
        direct = choice.direct if len(programs) > 1 else None
        made = Executable(handle, bindings.plan_number(handle), text, choice.algorithm, direct)
        engine.faults.plans[signature] = made
        return made

    def _load(self, program: Program) -> Any:
        if program.digest not in self._programs:
            loaded = bindings.program_load(self._engine.comm, program.to_bytes())
            self._programs[program.digest] = self._engine.keep(loaded)
        return self._programs[program.digest]


def _name(algorithm: Algorithm) -> str:
    """Name an algorithm so that two of one name can be told apart."""
    if algorithm in BUILTIN:
        return algorithm.name
    return f"{algorithm.name} {algorithm.digest()[:8]}"
