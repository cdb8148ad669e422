"""What must hold when no thread can go on: all have ended, edges are level, OUT is right."""

from __future__ import annotations

from pycoll.errors import DeadlockError, PostconditionError, ScheduleError
from pycoll.program.isa import EdgeKind
from pycoll.verify.finding import COLUMNS, At, finding
from pycoll.verify.network import AWAIT_SLOT
from pycoll.verify.symbolic_run import SymbolicRun

CHAIN = 8  #: waits that a message lists


def check_ending(run: SymbolicRun, *, average: bool) -> None:
    """Raise what is wrong with the state in which a run has stopped."""
    if not all(run.ended):
        raise _deadlock(run)
    _check_level(run)
    if run.order is not None:
        run.order.finish()
    _check_output(run, average)


def _deadlock(run: SymbolicRun) -> ScheduleError:
    """Follow the waits from one thread until they close a circle or reach an ended thread."""
    thread = run.ended.index(False)
    chain: list[int] = []
    while thread not in chain and not run.ended[thread]:
        chain.append(thread)
        thread = _awaited(run, thread)
    circle = thread in chain
    if circle:
        chain = chain[chain.index(thread) :]
    waits = "; ".join(_wait(run, t) for t in chain[:CHAIN])
    if len(chain) > CHAIN:
        waits += f"; and {len(chain) - CHAIN} more"
    if circle:
        text = f"waits in a circle with {run.slots} slots per edge: {waits}"
    else:
        waits += f"; {_who(run, thread)} has ended"
        text = f"waits for ever: {waits}"
    shown = chain if circle else [*chain[: COLUMNS - 1], thread]
    return finding(DeadlockError, text, *(_place(run, t) for t in shown))


def _awaited(run: SymbolicRun, thread: int) -> int:
    """Return the thread whose signal a blocked thread waits for."""
    kind, edge = run.network.threads[thread].code[run.steps[thread]]
    ends = run.network.edges[edge]
    return ends.target if kind == AWAIT_SLOT else ends.source


def _wait(run: SymbolicRun, thread: int) -> str:
    kind, edge = run.network.threads[thread].code[run.steps[thread]]
    other = _who(run, _awaited(run, thread))
    if kind == AWAIT_SLOT:
        what = f"{other} to free a slot ({run.slots} of {run.slots} filled)"
    else:
        noun = {EdgeKind.DATA: "message", EdgeKind.LOCAL: "signal", EdgeKind.DONE: "DONE"}
        number = run.awaited[edge] + 1
        what = f"{noun[run.network.edges[edge].kind]} {number} of {other}"
    place = _place(run, thread)
    tile = run.offsets[thread] // run.tile_stride
    return f"{_who(run, thread)} at #{place.instruction} (tile {tile}) waits for {what}"


def _who(run: SymbolicRun, thread: int) -> str:
    t = run.network.threads[thread]
    several = len(t.program.channel_starts) > 1
    return f"rank {t.program.rank}" + (f" channel {t.channel}" if several else "")


def _place(run: SymbolicRun, thread: int) -> At:
    return run.network.threads[thread].at(run.steps[thread])


def _check_level(run: SymbolicRun) -> None:
    """Edges outlive the call: the next one would take what this one leaves."""
    for edge, ends in enumerate(run.network.edges):
        filled, awaited = run.filled[edge], run.awaited[edge]
        asked, consumed = run.asked[edge], run.consumed[edge]
        if ends.kind != EdgeKind.DATA:
            consumed, asked = awaited, filled
        if asked == filled == awaited == consumed:
            continue
        source, target = _who(run, ends.source), _who(run, ends.target)
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
        raise finding(ScheduleError, text, _place(run, ends.source), _place(run, ends.target))


def _check_output(run: SymbolicRun, average: bool) -> None:
    """Every place of OUT holds what the collective promises, on all ranks the same bits."""
    network, values = run.network, run.values
    n = network.nchunks
    for tile in range(run.full_tiles):
        for rank in range(network.held):
            first = tile * run.tile_stride + rank * network.stride
            held = run.memory[first : first + n]
            wanted = values.after[rank * n : rank * n + n]
            origins = values.origin[rank * n : rank * n + n]
            for chunk, (value, want) in enumerate(zip(held, wanted, strict=True)):
                if want is None:
                    continue
                if not value:
                    text = f"never writes chunk {chunk} of OUT"
                elif different := values.difference(value, rank * n + chunk):
                    text = f"chunk {chunk} of OUT {different}"
                elif values.chunk(value) != origins[chunk]:
                    text = (
                        f"chunk {chunk} of OUT holds chunk {values.chunk(value)} of "
                        f"{values.names(value)}, want chunk {origins[chunk]}"
                    )
                elif average and network.size > 1 and not values.averaged(value):
                    text = f"chunk {chunk} of OUT holds a sum that was never divided"
                elif not average and values.averaged(value):
                    text = f"chunk {chunk} of OUT holds an average, but a sum was asked for"
                elif values.same_bits and value != values.agreed.setdefault(chunk, value):
                    agreed = values.agreed[chunk]
                    text = (
                        f"chunk {chunk} of OUT is {values.text(value)} but on rank 0 "
                        f"{values.text(agreed)}: not the same bits"
                    )
                else:
                    continue
                place = _place(run, network.thread_of[rank, 0])
                raise finding(PostconditionError, text, place, chunk=chunk)
    uneven = values.uneven()
    if uneven is not None:
        raise finding(PostconditionError, uneven[1], _place(run, 0), chunk=uneven[0])
