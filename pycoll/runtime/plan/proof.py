"""Nothing runs unproved: the gate before a plan, opened alike on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pycoll.algorithms import BUILTIN
from pycoll.errors import ScheduleError
from pycoll.program.isa import CHUNK_UNIT
from pycoll.program.lower import compile_program
from pycoll.program.program import Program
from pycoll.runtime.native import bindings, load
from pycoll.runtime.plan.call import BARRIER, Call
from pycoll.schedule import Algorithm, Placement, asks_placement

if TYPE_CHECKING:
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.selection import Selection


class Form(NamedTuple):
    """One of the Programs that an algorithm lowers to."""

    algorithm: Algorithm
    average: bool
    direct: bool
    placement: Placement


class Chooser(Protocol):
    """What has a way to choose algorithms."""

    @property
    def selection(self) -> Selection:
        """Return it."""


class Proofs:
    """What has been proved for one communicator."""

    def __init__(self, engine: Engine, target: Chooser, bind: Callable[..., Any]) -> None:
        self._engine = engine
        self._target = target
        self._bind = bind  #: of Plans: makes the plan that carries a verdict
        self._proven: set[int] = set()

    def require(self, call: Call, forms: list[tuple[Form, Program]], text: str) -> None:
        """Return once all Programs of these forms are proved, or raise what is wrong.

        A built-in has its certificate, and where an edit has voided that every rank proves it
        alike. What has no certificate by its nature, a user's algorithm and one that depends on
        where the ranks are, is proved by rank 0 alone, once. Its verdict travels as a byte that
        the ranks reduce under a signature of its own, so that a rank which calls something else
        meanwhile is found out as in any other call. Only if the proof fails do the others repeat
        it, to raise the same error.
        """
        new = [(form, p.digest) for form, p in forms if p.digest not in self._proven]
        if not new:
            return
        mine = [form for form, _ in new if not self._certain(form)]
        for form, _ in new:
            if form not in mine:
                self._prove(form)
        if mine:
            error = self._refute(mine) if self._engine.world.rank == 0 else None
            if self._share(call, tuple(digest for _, digest in new), error is not None, text):
                error = error or self._refute(mine)
                name = mine[0].algorithm.name
                raise error or ScheduleError(f"{name}: rank 0 found it wrong; see its message")
        self._proven.update(digest for _, digest in new)

    def _certain(self, form: Form) -> bool:
        """Tell whether there can be a certificate."""
        size = self._engine.world.size
        return form.algorithm in BUILTIN and not asks_placement(
            form.algorithm, size, form.placement
        )

    def _prove(self, form: Form) -> None:
        # Loaded here: certificates answer for most calls, but the prover comes with them.
        from pycoll.verify import gate

        gate(
            form.algorithm,
            self._engine.world.size,
            slots=self._engine.world.slots,
            direct=form.direct,
            average=form.average,
            placement=form.placement,
            cache=self._engine.cache,
        )

    def _refute(self, forms: list[Form]) -> Exception | None:
        try:
            for form in forms:
                self._prove(form)
        except Exception as error:  # a user's function may raise anything, and all ranks must hear
            return error
        return None

    def _share(self, call: Call, digests: tuple[int, ...], wrong: bool, text: str) -> bool:
        """Tell every rank whether the proof failed."""
        engine, world = self._engine, self._engine.world
        choice, algorithm = self._target.selection.choose(BARRIER, None)
        carrier = Form(algorithm, average=False, direct=False, placement=world.placement)
        self._prove(carrier)
        program = compile_program(algorithm, world.size, world.rank, placement=carrier.placement)
        ask = replace(
            BARRIER,
            purpose=f"proof of {call} {digests}",
        )
        plan = self._bind(ask, [program], choice._replace(tile=CHUNK_UNIT), text)
        flag = load.ffi.new("unsigned char[1]", [wrong])
        address = int(load.ffi.cast("uintptr_t", flag))
        engine.waits.call(plan.handle, address, address)
        bindings.release(plan.handle)
        return bool(flag[0])
