"""A list of arrays travels whole or breaks the communicator, on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pycoll


class Stopped(Exception):
    """Stands for whatever may strike between two messages, Ctrl-C among them."""


@pytest.mark.parametrize("async_op", [False, True])
def test_a_list_that_stops_between_two_messages(async_op: bool) -> None:
    def rank() -> str:
        comm = pycoll.init(timeout=60)
        arrays = [np.ones(1 << 18) for _ in range(3)]  # too large to be packed: three messages
        if comm.rank == 0:
            name, sent = ("submit" if async_op else "call"), []
            real = getattr(comm._engine.waits, name)

            def second_fails(*arguments: Any) -> Any:
                if sent:
                    raise Stopped
                sent.append(1)
                return real(*arguments)

            setattr(comm._engine.waits, name, second_fails)
            with pytest.raises(Stopped):
                comm.allreduce(arrays, async_op=async_op)
        else:
            with pytest.raises(pycoll.BrokenError, match=r"rank 0 .*gave up: Stopped inside"):
                comm.allreduce(arrays)
        with pytest.raises(pycoll.BrokenError, match="Stopped inside") as caught:
            comm.allreduce(np.ones(1 << 18))
        return type(caught.value).__name__

    assert pycoll.spawn(rank, 2) == ["BrokenError", "BrokenError"]
