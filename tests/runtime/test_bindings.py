"""The seam to C: codes become exceptions, and a missing engine says how to get one."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pycoll
import pycoll.algorithms
from pycoll.errors import (
    BrokenError,
    CollectiveTimeout,
    InternalError,
    MismatchError,
    TransportError,
    UnavailableError,
    UsageError,
)
from pycoll.fabric import Fabric, Rail
from pycoll.program import isa
from pycoll.program.lower import compile_program
from pycoll.runtime.native import bindings, codes, load, verbs


@pytest.fixture
def comm() -> Any:
    opened = bindings.comm_open(0, 1, slots=2, slot_bytes=4096, heap_bytes=1 << 20, spin=0)
    yield opened
    bindings.comm_close(opened)


def test_the_engine_is_of_this_version() -> None:
    assert load.version() == pycoll.__version__
    assert load.compiler()
    assert load.cpu_features()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NOMEM", UnavailableError),
        ("UNMAPPABLE", UnavailableError),
        ("SYSTEM", TransportError),
        ("TIMEDOUT", CollectiveTimeout),
        ("MISMATCH", MismatchError),
        ("BUSY", UsageError),
        ("BROKEN", BrokenError),
        ("INVALID", InternalError),
    ],
)
def test_every_code_has_its_exception(name: str, kind: type[Exception]) -> None:
    code = getattr(load.lib, f"PC_{name}")
    with pytest.raises(kind, match=f"trying: {name}"):
        codes.check(code, None, "trying")
    assert codes.check(3, None, "trying") == 3


def test_every_function_of_the_header_is_bound(root: Path) -> None:
    header = (root / "native" / "pycoll.h").read_text()
    declared = set(re.findall(r"\b(pc_\w+)\(", header)) - {"pc_fold_test"}  # for tests of kernels
    files = Path(bindings.__file__).parent.glob("*.py")
    source = "".join(path.read_text() for path in files)
    assert declared == set(re.findall(r"\blib\.(pc_\w+)", source))


def test_open_with_bad_options() -> None:
    with pytest.raises(InternalError, match="rank 3 could not create its memory: rank 3 of 2"):
        bindings.comm_open(3, 2, slots=2, slot_bytes=4096, heap_bytes=0, spin=0)


def test_blobs_that_lie(comm: Any) -> None:
    with pytest.raises(InternalError, match="program rejected by the loader"):
        bindings.program_load(comm, b"not a program")
    good = compile_program(pycoll.algorithms.get("ring"), 1, 0).to_bytes()
    with pytest.raises(InternalError, match="program rejected by the loader"):
        bindings.program_load(comm, good[:-1])
    program = bindings.program_load(comm, good)
    for wrong in ({"tile": 63}, {"dtype": 99}, {"op": 7}, {"blocks": [3]}, {"blocks": []},
        {"in_extent": (0, 2)}, {"out_extent": (0, 0)}, {"root": 1}):  # fmt: skip
        spec = {"blocks": [8], "dtype": 0, "op": 0, "tile": 64} | wrong
        with pytest.raises(InternalError, match="plan rejected by the engine: plan: "):
            bindings.plan_create(comm, program, None, signature=1, stream=False, **spec)
    bindings.release(program)


@pytest.mark.parametrize(
    "operand",
    [
        (isa.Space.IN, 0, 0, 1, 1),  # chunk 1 of 1
        (isa.Space.OUT, 0, 1 << 24, 0, 1),
        (isa.Space.SLOT, 0, 0, 0, 2),
        (256, 0, 0, 0, 1),
    ],
)
def test_an_operand_that_no_instruction_names_is_checked(
    comm: Any, operand: tuple[int, ...]
) -> None:
    good = compile_program(pycoll.algorithms.get("ring"), 1, 0).to_bytes()
    names = [name for name, _, _ in isa.HEADER_FIELDS]
    header = dict(zip(names, isa.HEADER.unpack_from(good), strict=True))
    number = header["noperands"]
    header["noperands"] += 1
    blob = isa.HEADER.pack(*header.values()) + good[isa.HEADER.size :] + isa.OPERAND.pack(*operand)
    with pytest.raises(InternalError, match=f"program: operand {number}: space "):
        bindings.program_load(comm, blob)


def test_instructions_share_no_operands(comm: Any) -> None:
    """The loader permutes those of one, and would have turned the other's sources into results."""
    good = compile_program(pycoll.algorithms.get("ring"), 1, 0).to_bytes()
    names = [name for name, _, _ in isa.HEADER_FIELDS]
    header = dict(zip(names, isa.HEADER.unpack_from(good), strict=True))
    at = isa.HEADER.size + header["nchannels"] * isa.CHANNEL_START.size
    at += header["nedges"] * isa.EDGE.size
    while isa.INSTRUCTION.unpack_from(good, at)[0] != isa.Op.REDUCE_COPY:
        at += isa.INSTRUCTION.size
    header["ninstructions"] += 1
    twice = good[: at + isa.INSTRUCTION.size] + good[at:]
    blob = isa.HEADER.pack(*header.values()) + twice[isa.HEADER.size :]
    with pytest.raises(InternalError, match="operand 0 is of an earlier one, want 2 or later"):
        bindings.program_load(comm, blob)


def test_a_cpu_takes_no_more_destinations_than_it_stores_to_at_once(comm: Any) -> None:
    move = isa.Op.REDUCE_COPY
    whole = compile_program(pycoll.algorithms.get("ring"), 1, 0)
    code = tuple(
        i._replace(destinations=i.destinations * 3) if i.op is move else i
        for i in whole.instructions
    )
    blob = replace(whole, instructions=code).to_bytes()
    with pytest.raises(InternalError, match="1 sources, 3 destinations"):
        bindings.program_load(comm, blob)
    bindings.release(bindings.program_load(comm, blob, destinations=isa.MAX_DESTINATIONS))
    with pytest.raises(InternalError, match="9 destinations of one instruction, want at most 8"):
        bindings.program_load(comm, blob, destinations=9)


def test_ring_bytes_are_whole_pages_of_the_slots() -> None:
    sizes = {"slots": 2, "slot_bytes": 4096, "heap_bytes": 0, "spin": 0}
    bindings.comm_close(bindings.comm_open(0, 1, **sizes, ring_bytes=8192))
    for wrong in (100, 12288):
        with pytest.raises(InternalError, match="out of range"):
            bindings.comm_open(0, 1, **sizes, ring_bytes=wrong)


def test_the_heap(comm: Any) -> None:
    address = bindings.heap_alloc(comm, 100)
    assert address is not None
    memory = bindings.heap_buffer(address, 100)
    memory[:] = b"x" * 100
    assert bindings.heap_alloc(comm, 2 << 20) is None
    bindings.heap_free(comm, address)
    with pytest.raises(InternalError, match="free of empty"):
        bindings.heap_free(comm, address)


def test_the_board(comm: Any) -> None:
    status = bindings.status_read(comm, 0)
    assert (status.sequence, status.state, status.text) == (0, bindings.IDLE, "")
    with pytest.raises(InternalError, match="status of rank 1: INVALID"):
        bindings.status_read(comm, 1)
    assert bindings.comm_stuck(comm) is None
    assert bindings.resume(comm, 0) == codes.INVALID


@pytest.mark.own_process
def test_rails_that_are_not_there(comm: Any) -> None:
    """Whatever this machine has, it has no such device."""
    with pytest.raises((TransportError, UnavailableError), match="opening RDMA ports: "):
        verbs.comm_rails(comm, Fabric(), [Rail("nosuch0", 1)])
    verbs.comm_rails(comm, Fabric(), [])
    bindings.comm_net(comm, "")
    with pytest.raises(InternalError, match="network 'carrier': there is no network carrier"):
        bindings.comm_net(comm, "carrier")
    assert bindings.comm_event_fd(comm) == -1
    state = verbs.comm_net_state(comm)
    assert state[:-2] == (0,) * 17
    assert (state.bytes, state.unshared) == ((0,) * verbs.MAX_RAILS, "")


@pytest.mark.own_process
def test_ports_are_found_or_it_is_said_what_is_missing() -> None:
    ports = verbs.verbs_ports()
    assert bool(ports) or verbs.verbs_missing()
    for port in ports:
        assert port.device
        assert port.port >= 1
        assert len(port.gid) == 16


def test_nothing_to_resume_and_nothing_broken(comm: Any) -> None:
    assert bindings.comm_broken(comm) == 0
    bindings.comm_abort(comm, 1, -1, "enough\0said")
    assert codes.comm_error(comm).code in (0, codes.ABORTED, codes.INVALID)


def test_without_the_native_module_the_cure_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(load, "_RECORD", tmp_path / "absent")
    error = load._missing(ImportError("No module named 'pycoll._native'"))
    assert "No module named 'pycoll._native'; to mend it: apt-get install gcc" in str(error)
    (tmp_path / "absent").write_text("no C compiler (cc) was found; to mend it: install one\n")
    error = load._missing(ImportError("x"))
    assert str(error).endswith(
        "nothing can run: no C compiler (cc) was found; to mend it: install one"
    )


def test_everything_but_init_works_without_the_native_module() -> None:
    code = """if True:
        import sys
        class Hide:
            def find_spec(self, name, path=None, target=None):
                if name == "pycoll._native":
                    raise ImportError("hidden")
        sys.meta_path.insert(0, Hide())
        import pycoll
        from pycoll import *
        print(bool(pycoll.verify("ring", size=3)))
        try:
            pycoll.init()
        except pycoll.UnavailableError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "True"
    assert second.startswith("pycoll's native engine is not there, so nothing can run: ")
    assert "to mend it: " in second


def test_the_fast_module_is_in_the_same_shared_object() -> None:
    assert load.fastcall.__name__ == "pycoll._fastcall"
    native = importlib.import_module("pycoll._native")
    assert load.fastcall.__spec__.origin == native.__file__
