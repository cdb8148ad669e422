"""What must hold when no thread can go on: all have ended, edges are level, OUT is right."""

from __future__ import annotations

from pycoll.errors import DeadlockError, PostconditionError, ScheduleError
from pycoll.program.isa import EdgeKind
from pycoll.verify.finding import COLUMNS, At, finding
from pycoll.verify.machine import Machine
from pycoll.verify.network import AWAIT_SLOT
from pycoll.verify.values import rank_names

CHAIN = 8  #: waits that a message lists


def check_ending(machine: Machine, *, average: bool) -> None:
    """Raise what is wrong with the state in which a run has stopped."""
    if not all(machine.ended):
        raise _deadlock(machine)
    _check_level(machine)
    if machine.order is not None:
        machine.order.finish()
    _check_output(machine, average)


def _deadlock(machine: Machine) -> ScheduleError:
    """Follow the waits from one thread until they close a circle or reach an ended thread."""
    thread = machine.ended.index(False)
    chain: list[int] = []
    while thread not in chain and not machine.ended[thread]:
        chain.append(thread)
        thread = _awaited(machine, thread)
    circle = thread in chain
    if circle:
        chain = chain[chain.index(thread) :]
    waits = "; ".join(_wait(machine, t) for t in chain[:CHAIN])
    if len(chain) > CHAIN:
        waits += f"; and {len(chain) - CHAIN} more"
    if circle:
        text = f"waits in a circle with {machine.slots} slots per edge: {waits}"
    else:
        waits += f"; {_who(machine, thread)} has ended"
        text = f"waits for ever: {waits}"
    shown = chain if circle else [*chain[: COLUMNS - 1], thread]
    return finding(DeadlockError, text, *(_place(machine, t) for t in shown))


def _awaited(machine: Machine, thread: int) -> int:
    """Return the thread whose signal a blocked thread waits for."""
    kind, link = machine.network.threads[thread].code[machine.steps[thread]]
    ends = machine.network.links[link]
    return ends.target if kind == AWAIT_SLOT else ends.source


def _wait(machine: Machine, thread: int) -> str:
    kind, link = machine.network.threads[thread].code[machine.steps[thread]]
    other = _who(machine, _awaited(machine, thread))
    if kind == AWAIT_SLOT:
        what = f"{other} to free a slot ({machine.slots} of {machine.slots} filled)"
    else:
        noun = {EdgeKind.DATA: "message", EdgeKind.LOCAL: "signal", EdgeKind.DONE: "DONE"}
        number = machine.awaited[link] + 1
        what = f"{noun[machine.network.links[link].kind]} {number} of {other}"
    place = _place(machine, thread)
    tile = machine.offsets[thread] // machine.tile_stride
    return f"{_who(machine, thread)} at #{place.instruction} (tile {tile}) waits for {what}"


def _who(machine: Machine, thread: int) -> str:
    t = machine.network.threads[thread]
    several = len(t.program.channel_starts) > 1
    return f"rank {t.program.rank}" + (f" channel {t.channel}" if several else "")


def _place(machine: Machine, thread: int) -> At:
    return machine.network.threads[thread].at(machine.steps[thread])


def _check_level(machine: Machine) -> None:
    """Edges outlive the call: the next one would take what this one leaves."""
    for link, ends in enumerate(machine.network.links):
        filled, awaited = machine.filled[link], machine.awaited[link]
        asked, consumed = machine.asked[link], machine.consumed[link]
        if ends.kind != EdgeKind.DATA:
            consumed, asked = awaited, filled
        if asked == filled == awaited == consumed:
            continue
        source, target = _who(machine, ends.source), _who(machine, ends.target)
        if filled != awaited or ends.kind != EdgeKind.DATA:
            what = {EdgeKind.DATA: "messages", EdgeKind.LOCAL: "signals", EdgeKind.DONE: "DONEs"}
            text = (
                f"{source} sends {filled} {what[ends.kind]} to {target}, which waits for "
                f"{awaited}: the next call would take the rest"
            )
        elif awaited != consumed:
            text = (
                f"{target} waits for {awaited} messages of {source} and consumes {consumed}: "
                "a slot is never given back"
            )
        else:
            text = f"{source} takes {asked} slots to {target} and fills {filled}"
        raise finding(
            ScheduleError, text, _place(machine, ends.source), _place(machine, ends.target)
        )


def _check_output(machine: Machine, average: bool) -> None:
    """Every place of OUT holds what the collective promises, on all ranks the same bits."""
    network, values = machine.network, machine.values
    n = network.nchunks
    for tile in range(machine.full_tiles):
        for rank in range(network.size):
            first = tile * machine.tile_stride + rank * network.stride
            held = machine.memory[first : first + n]
            wanted = values.after[rank * n : rank * n + n]
            origins = values.origin[rank * n : rank * n + n]
            for chunk, (value, want) in enumerate(zip(held, wanted, strict=True)):
                if want is None:
                    continue
                if not value:
                    text = f"never writes chunk {chunk} of OUT"
                elif values.ranks[value] != want:
                    text = _difference(chunk, values.ranks[value], want)
                elif values.chunks[value] != origins[chunk]:
                    text = (
                        f"chunk {chunk} of OUT holds chunk {values.chunks[value]} of "
                        f"{rank_names(want)}, want chunk {origins[chunk]}"
                    )
                elif average and network.size > 1 and value not in values.scaled:
                    text = f"chunk {chunk} of OUT holds a sum that was never divided"
                elif not average and value in values.scaled:
                    text = f"chunk {chunk} of OUT holds an average, but a sum was asked for"
                elif values.same_bits and value != values.agreed.setdefault(chunk, value):
                    agreed = values.agreed[chunk]
                    text = (
                        f"chunk {chunk} of OUT is {values.text(value)} but on rank 0 "
                        f"{values.text(agreed)}: not the same bits"
                    )
                else:
                    continue
                place = _place(machine, network.thread_of[rank, 0])
                raise finding(PostconditionError, text, place, chunk=chunk)


def _difference(chunk: int, got: int, want: int) -> str:
    parts = []
    if want & ~got:
        parts.append(f"lacks the contribution of {rank_names(want & ~got)}")
    if got & ~want:
        parts.append(f"holds a contribution of {rank_names(got & ~want)} that it must not")
    return f"chunk {chunk} of OUT {' and '.join(parts)}"
