"""What a user's exception or file is called reaches the other ranks, whatever its text holds."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import BrokenError, CollectiveTimeout, Communicator, MismatchError, PeerLostError
from pycoll.errors import encoded


class Mute(RuntimeError):
    """An exception whose text nobody can have."""

    def __str__(self) -> str:
        raise ValueError("no text")


#: An exception, and how the others are told of it.
ERRORS = {
    "a lone surrogate": (RuntimeError("file \udcff"), r"RuntimeError: file \udcff"),
    "a zero byte": (RuntimeError("file \0."), "RuntimeError: file "),
    "megabytes": (RuntimeError("é" * (3 << 20)), "RuntimeError: éé"),
    "megabytes of surrogates": (RuntimeError("\udcff" * (3 << 20)), r"RuntimeError: \udcff\udcff"),
    "no text": (Mute(), "Mute: <its str() failed>"),
}


@pytest.mark.parametrize("what", ERRORS)
def test_why_a_rank_leaves_is_told(what: str) -> None:
    error, told = ERRORS[what]

    def rank() -> None:
        comm = pycoll.init(timeout=20)
        if comm.rank == 0:
            with pytest.raises(type(error)) as raised, comm:
                raise error
            assert raised.value is error
            assert comm._engine.heap._open == []  # the native communicator was closed
        else:
            with pytest.raises(PeerLostError, match=re.escape(f"failed with {told}")):
                comm.allreduce(np.ones(3))

    pycoll.spawn(rank, 2, timeout=60)


@pytest.mark.parametrize("what", ERRORS)
@pytest.mark.usefixtures("patient")
def test_why_a_call_was_refused_is_told(what: str) -> None:
    error, told = ERRORS[what]

    class Color:
        def __index__(self) -> int:
            raise error

    def rank() -> None:
        comm = pycoll.init(timeout=20)
        if comm.rank == 0:
            with pytest.raises(type(error)) as raised:
                comm.split(Color())  # type: ignore[arg-type]
            assert raised.value is error

        def call() -> Any:
            comm.split(0)
            comm.barrier()

        with pytest.raises(MismatchError) as mismatch:
            call()
        said = encoded(str(mismatch.value)).decode()  # the rank itself has its text as it is
        assert f"refused with {told}" in said

    pycoll.spawn(rank, 2, timeout=60)


def test_a_call_in_a_file_whose_name_is_not_utf_8() -> None:
    def rank() -> None:
        comm = pycoll.init(timeout=20)
        if comm.rank == 0:
            with pytest.raises(BrokenError, match=r"gave up \(timeout\): .* at odd\\udcff.py:1 "):
                comm._engine.bootstrap.barrier()
            with pytest.raises((CollectiveTimeout, BrokenError), match=r"odd\\udcff.py:1"):
                comm.barrier()
        else:
            where: dict[str, Communicator] = {"comm": comm}
            code = compile("comm.barrier(timeout=0.3)", "odd\udcff.py", "exec")
            with pytest.raises(CollectiveTimeout, match=r"did not finish within 0\.3 s"):
                exec(code, where)  # type: ignore[arg-type]

    pycoll.spawn(rank, 2, timeout=60)
