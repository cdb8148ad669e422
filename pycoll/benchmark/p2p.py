"""What two ranks of the benchmark do with each other, by whatever library sends and receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycoll.benchmark.problem import Problem

Call = Callable[[], object]
#: Sends and receives messages that are all on their way at once: pairs of an array and a rank.
Exchange = Callable[[list[tuple[Any, int]], list[tuple[Any, int]]], object]


def bind(
    problem: Problem,
    shift: Callable[[int, int], Call],
    exchange: Exchange,
    send: Any,
    recv: Any,
    x: Any,
    out: Any,
    answer: Any,
) -> Call:
    """Return what a rank does with others by a library.

    Args:
        problem: What is done.
        shift: Returns the call that sends to the first rank and receives from the second.
        exchange: Moves a window.
        send: Sends an array to a rank.
        recv: Receives an array from a rank.
        x: Messages to send, one behind the other.
        out: Where those that are received go.
        answer: An array of one element.
    """
    if problem.operation.name == "sendrecv":
        return shift((problem.rank + 1) % problem.size, (problem.rank - 1) % problem.size)
    if problem.operation.name == "pingpong":
        return pingpong(problem, send, recv, x, out)
    return window(problem, exchange, send, recv, x, out, answer)


def pingpong(problem: Problem, send: Any, recv: Any, x: Any, out: Any) -> Call:
    """Return what a rank does in ping-pong, by a blocking send and receive."""
    rank, other = problem.rank, problem.other
    if other is None:
        return lambda: None

    def there_and_back() -> None:
        if rank < other:
            send(x, other)
            recv(out, other)
        else:
            recv(out, other)
            send(out, other)

    return there_and_back


def window(
    problem: Problem, exchange: Exchange, send: Any, recv: Any, x: Any, out: Any, answer: Any
) -> Call:
    """Return what a rank does with a window of messages.

    Where one side only sends, it ends with a short answer of the other, as else the sender would
    be timed for what has not arrived. The arguments are those of `bind`.
    """
    other = problem.other
    if other is None:
        return lambda: None
    sends = [(message, other) for message in problem.messages(x)] if problem.sends else []
    recvs = [(message, other) for message in problem.messages(out)] if problem.receives else []

    def both_ways() -> None:
        exchange(sends, recvs)

    def there() -> None:
        exchange(sends, recvs)
        recv(answer, other)

    def here() -> None:
        exchange(sends, recvs)
        send(answer, other)

    if sends and recvs:
        return both_ways
    return there if sends else here
