"""How a call is described, and where it was made."""

from __future__ import annotations

import types

from pycoll.runtime.faults import user_line


def within(module: str, code: str) -> str:
    """What `user_line` says when it is called below a function of a module of that name."""
    namespace = types.ModuleType(module).__dict__ | {"user_line": user_line}
    exec(compile(code, f"/elsewhere/{module}.py", "exec"), namespace)
    return str(namespace["call"]())


def test_the_frame_outside_of_pycoll_is_named() -> None:
    code = "\n\ndef call():\n    return user_line()\n"
    assert within("train", code) == "/elsewhere/train.py:4"
    assert within("pycolladder", code) == "/elsewhere/pycolladder.py:4"
    ours = within("pycoll.runtime.launch", code)
    assert ours.startswith("tests/runtime/test_faults.py:"), ours
    assert within("pycoll.communicator", code) == ours


def test_a_script_that_is_all_pycoll() -> None:
    line = within("pycoll.cli.bench", "def call(): return user_line()")
    assert line == "/elsewhere/pycoll.cli.bench.py:1"
