"""Refused messages with a tag: what else is sent arrives, or who wants it is told. Three ranks."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import both
import torch
import torch.distributed as dist

import pycoll

META = torch.empty(4, device="meta")
TAG, LATER = 5, 6
rank = 0


def send(*values: float, tag: int = TAG) -> None:
    for value in values:
        dist.send(torch.full((4,), value), 0, tag=tag)


def received(frm: int, tag: int = TAG) -> float:
    x = torch.zeros(4)
    dist.recv(x, frm, tag=tag)
    return x[0].item()


def mismatch(function: Any) -> None:
    text = both.refused(function, pycoll.MismatchError)
    assert "an earlier recv of this tag was refused on this rank" in text


def threads() -> list[str]:
    """The threads that wait for a tagged message or send one."""
    return [
        t.name for t in threading.enumerate() if t.name.startswith(("pycoll recv", "pycoll send"))
    ]


def without_a_source() -> None:
    """It is served by no rank, so it takes nobody's message."""
    for tag in (0, TAG):
        if rank == 0:
            text = both.refused(lambda tag=tag: dist.recv(torch.zeros(4), tag=tag))
            assert "a rank that is named: pass src=" in text
            assert not threads(), f"what was refused waits for somebody: {threads()}"
            assert [received(2, tag), received(2, tag), received(1, tag)] == [2.0, 3.0, 1.0]
        else:
            send(*((1.0,) if rank == 1 else (2.0, 3.0)), tag=tag)


def without_a_peer() -> None:
    """Nobody knows whose message it was, so it takes none."""
    group: Any = dist.new_group()
    if rank == 0:
        before = threads()
        for peer in (-1, 0, 3, None, "x"):
            for method in (group.send, group.recv):
                both.refused(lambda m=method, p=peer: m([torch.zeros(4)], p, TAG), Exception)
        assert threads() == before, threads()


def messages_that_are_there() -> None:
    if rank == 0:
        assert received(1, LATER) == 9.0  # behind those of the other tag
        both.refused(lambda: dist.irecv(META, 1, tag=TAG))
        both.refused(lambda: dist.irecv(META, 1, tag=TAG))
        mismatch(lambda: received(1))
        assert received(1) == 4.0
    elif rank == 1:
        send(1.0, 2.0, 3.0, 4.0)
        send(9.0, tag=LATER)


def messages_that_come_later() -> None:
    if rank == 0:
        both.refused(lambda: dist.irecv(META, 1, tag=TAG))
        both.refused(lambda: dist.irecv(META, 1, tag=TAG))
        outs = [torch.zeros(4) for _ in range(2)]
        works = [dist.irecv(x, 1, tag=TAG) for x in outs]
    dist.barrier()
    if rank == 0:
        mismatch(works[0].wait)
        works[1].wait()
        assert [x[0].item() for x in outs] == [0.0, 4.0]
    elif rank == 1:
        send(1.0, 2.0, 3.0, 4.0)


def one_message() -> None:
    """A second try is told at once that the first one took the message: it waits for no other."""
    if rank == 0:
        both.refused(lambda: dist.recv(META, 1, tag=LATER + 1))
        mismatch(lambda: received(1, LATER + 1))
    elif rank == 1:
        send(1.0, tag=LATER + 1)


def main() -> None:
    global rank
    dist.init_process_group("pycoll", timeout=datetime.timedelta(seconds=60))
    rank = dist.get_rank()
    for case in (
        without_a_source,
        without_a_peer,
        messages_that_are_there,
        messages_that_come_later,
        one_message,
    ):
        case()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
