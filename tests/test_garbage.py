"""Garbage in any public argument: one line that says what was got and what is wanted.

Each public callable has a row, with arguments that are right; then each parameter in turn is given
each value of `GARBAGE`. What is not listed as legal there must be refused, and nothing may hang.
Callables are found by looking at pycoll, its Communicator, Work, Plan, ScheduleBuilder and at
pycoll.algorithms, topology and overlap, so a new one without a row fails. A text has to name the
parameter; where a function is to be told in other words, the row says which.
"""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import io
import re
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest

import pycoll
from pycoll import algorithms, overlap, topology
from pycoll.bootstrap import lobby, newcomer
from pycoll.errors import DeadlockError, PostconditionError
from pycoll.overlap.limits import limits

pytestmark = pytest.mark.native


class Odd:
    """Something whose repr() fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


GARBAGE: dict[str, Any] = {
    "none": None,
    "five": 5,
    "minus": -1,
    "huge": 2**70,
    "half": 1.5,
    "nan": float("nan"),
    "text": "x",
    "lines": "x\ny" * 1000,
    "blank": "",
    "bytes": b"",
    "object": object(),
    "list": [],
    "list5": [5],
    "listnone": [None],
    "tuple": (),
    "dict": {"a": 1},
    "true": True,
    "builtin": dict,
    "array": np.ones(2),
    "odd": Odd(),
}
NUMBERS = "five minus huge half nan true"
#: How a text begins to say what would be right.
SAYING = ("want", "pass ", "add up to")
FINITE = "none five half"  # seconds, and None

#: What refuses. A finding of the verifier is right where garbage happens to mean something.
REFUSALS = (pycoll.UsageError, pycoll.ScheduleError)
FINDINGS = (PostconditionError, DeadlockError)


class Row(NamedTuple):
    """A callable with arguments that are right, and what else is right for each parameter."""

    call: Callable[..., Any]
    right: dict[str, Any]
    legal: Mapping[str, str] = MappingProxyType({})
    #: parameters by whose values nothing can be wrong, such as flags, which have a truth value
    free: str = ""
    #: what is right on a machine that has it, such as a GPU; else UnavailableError is
    lacked: Mapping[str, str] = MappingProxyType({})
    #: by what words a text may name a parameter, where not by its name
    words: Mapping[str, str] = MappingProxyType({})


def outcome(row: Row, name: str, parameter: str, label: str) -> str | None:
    """Call with one piece of garbage; return what is wrong with what comes of it."""
    lacked = label in row.lacked.get(parameter, "").split()
    legal = label in row.legal.get(parameter, "").split() or parameter in row.free.split()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            row.call(**{**row.right, parameter: GARBAGE[label]})
    except REFUSALS as error:
        text = str(error)
        if isinstance(error, FINDINGS):
            return None
        if "\n" in text or len(text) > 600:
            return f"text of {len(text)} characters, {text.count(chr(10)) + 1} lines: {text[:200]}"
        if not (legal or any(word in text for word in SAYING)):
            return f"it is not said what is wanted: {text}"
        words = (parameter, row.words.get(parameter, parameter))
        if not (legal or any(re.search(rf"\b{re.escape(word)}(?!\w)", text) for word in words)):
            return f"it is not said of what parameter: {text}"
        return None
    except pycoll.UnavailableError as error:
        return None if lacked else f"UnavailableError: {str(error)[:200]}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None if legal or lacked else "accepted"


@contextlib.contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """Turn a hang into a failure that shows where."""

    def late(*_: Any) -> None:
        faulthandler.dump_traceback()
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def wrong(rows: dict[str, Row]) -> list[str]:
    found = []
    for name, row in rows.items():
        for parameter in row.right.keys() | row.legal.keys():
            for label in GARBAGE:
                with no_longer_than(60):
                    said = outcome(row, name, parameter, label)
                if said is not None:
                    found.append(f"{name}({parameter}={label}): {said}")
    return sorted(found)


def parameters(call: Callable[..., Any]) -> set[str]:
    """The names of what a callable takes, but for its own object."""
    return {
        name
        for name, p in inspect.signature(call).parameters.items()
        if name != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }


def methods(kind: type) -> set[str]:
    return {
        name
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and parameters(value)
    }


# ---- a communicator's

FLAG = "async_op"


def communicator_rows(comm: Any) -> dict[str, Row]:
    """The calls of a communicator of one rank, to which every call is as good as done."""
    x = np.ones(2)
    timed = {"timeout": FINITE}
    chosen = {"timeout": FINITE, "algorithm": "none"}
    rooted = {"root": ""} | chosen
    ordered = {"order": "none"}
    right: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
        "allreduce": (
            {"x": x},
            {"x": "list tuple array", "out": "none array", "op": ""} | chosen | ordered,
        ),
        "broadcast": ({"x": x}, {"x": "list tuple array"} | rooted),
        "reduce": ({"x": x}, {"x": "array", "out": "none array", "op": ""} | rooted | ordered),
        "allgather": ({"x": x}, {"x": "bytes array", "out": "none array"} | chosen),
        "reduce_scatter": (
            {"x": x},
            {"x": "array bytes", "out": "none array", "op": ""} | chosen | ordered,
        ),
        "alltoall": ({"x": x}, {"x": "bytes array", "out": "none array"} | chosen),
        "gather": ({"x": x}, {"x": "bytes array", "out": "none array"} | rooted),
        "scatter": ({"x": x}, {"x": "array", "out": "none array"} | rooted),
        "barrier": ({}, timed),
        "plan": (
            {"collective": "allreduce", "x": x},
            {"x": "array list tuple", "out": "none array", "op": "", "counts": "none"}
            | rooted
            | ordered,
        ),
        "exchange": (
            {},
            {"sends": "blank bytes list tuple", "recvs": "blank bytes list tuple"} | timed,
        ),
        "allgatherv": (
            {"x": x, "counts": [2]},
            {"x": "array", "out": "none array", "counts": ""} | chosen,
        ),
        "reduce_scatterv": (
            {"x": x, "counts": [2]},
            {"x": "array", "out": "none array", "op": "", "counts": ""} | chosen | ordered,
        ),
        "alltoallv": (
            {"x": x, "send_counts": [2], "out": x.copy(), "recv_counts": [2]},
            {"x": "array", "out": "array"} | timed,
        ),
        "gatherv": (
            {"x": x, "counts": [2]},
            {"x": "array", "out": "none array", "root": ""} | timed,
        ),
        "scatterv": (
            {"x": x, "counts": [2]},
            {"x": "array", "out": "none array", "root": ""} | timed,
        ),
        "broadcast_object": ({}, {"root": ""} | timed),
        "allgather_object": ({"obj": 1}, timed),
        "gather_object": ({"obj": 1}, {"root": ""} | timed),
        "scatter_object": (
            {"objs": [1]},
            {"root": "", "objs": "text list5 listnone"} | timed,
        ),
        "split": (
            {"color": 0},
            {"color": "none five minus true", "key": "five minus true"} | timed,
        ),
        "dup": ({}, timed),
        "empty": (
            {"shape": 3},
            {"shape": "five true list list5 tuple bytes blank", "dtype": "none", "device": ""},
        ),
        "explain": (
            {"collective": "allreduce", "nbytes": 8},
            {"nbytes": "five huge true", "device": ""} | ordered,
        ),
        "cuda": ({}, {"device": "", "timeout": ""}),
    }
    lacked = {"cuda": {"device": "none five true", "timeout": FINITE}}
    words = {"allgatherv": {"counts": "x"}, "reduce_scatterv": {"counts": "x"}}
    free = {"broadcast_object": "obj", "allgather_object": "obj", "gather_object": "obj"}
    rows = {
        name: Row(
            getattr(comm, name),
            given,
            legal,
            free.get(name, ""),
            lacked.get(name, {}),
            words.get(name, {}),
        )
        for name, (given, legal) in right.items()
    }

    def on_stream(stream: Any) -> None:
        with comm.on_stream(stream):
            pass

    rows["on_stream"] = Row(on_stream, {"stream": 0}, {"stream": "five true"})
    called = {"callback": print}, {"callback": "builtin"}
    rows["register_profiler"] = Row(closing(comm.register_profiler), *called)

    def record(path: Any = None) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            comm.record(path)

    rows["record"] = Row(record, {}, {"path": "none text"})
    rows["stats"] = Row(comm.stats, {})

    # A message to oneself waits for its other end: it is queued, and goes with a communicator.
    def queued(name: str, peer: str) -> Callable[..., None]:
        def call(x: Any, timeout: Any = None, **more: Any) -> None:
            other = comm.dup()
            try:
                given = {peer: 0, "async_op": True, "timeout": timeout} | more
                getattr(other, name)(x, **given)
            finally:
                other._engine.leave()

        return call

    rows["send"] = Row(queued("send", "to"), {"x": x}, {"x": "bytes array", "to": ""} | timed)
    rows["recv"] = Row(queued("recv", "frm"), {"x": x}, {"x": "array", "frm": ""} | timed)

    def grow(**given: Any) -> None:
        with (
            mock.patch.object(lobby.Lobby, "gather", side_effect=pycoll.CollectiveTimeout),
            contextlib.suppress(pycoll.CollectiveTimeout),
        ):
            comm.grow(**given)

    def shrink(timeout: Any = None) -> None:
        other = comm.dup()
        try:
            other.shrink(timeout).close()
        finally:
            other.close()

    rows["shrink"] = Row(shrink, {}, timed)
    place = {"address": "127.0.0.1:29400"}
    rows["grow"] = Row(grow, {"n": 1, **place}, {"n": "five true"} | timed)

    def waited(how: str) -> Callable[..., Any]:
        return lambda **given: getattr(comm.allreduce(x, async_op=True), how)(**given)

    for how in ("wait", "synchronize"):
        rows[f"Work.{how}"] = Row(waited(how), {}, {"timeout": "none five huge half true"})
    return rows


# ---- functions and classes


def closing(make: Callable[..., Any]) -> Callable[..., None]:
    return lambda **given: make(**given).close()


def join_nobody(**given: Any) -> None:
    with (
        mock.patch.object(newcomer, "meet", side_effect=pycoll.BootstrapError),
        contextlib.suppress(pycoll.BootstrapError),
    ):
        pycoll.join(**given)


def function_rows() -> dict[str, Row]:
    ring = algorithms.get("ring")
    return {
        "init": Row(
            closing(pycoll.init),
            {},
            {
                "bootstrap": "none",
                "timeout": FINITE,
                "selector": "none builtin",
                "unproved": "none true",
                "order": "none",
            },
        ),
        "join": Row(
            join_nobody,
            {"address": "127.0.0.1:29400"},
            {
                "timeout": FINITE,
                "wait": FINITE,
                "selector": "none builtin",
                "unproved": "none true",
                "order": "none",
            },
        ),
        "joining": Row(pycoll.joining, {}),
        "register_profiler": Row(
            closing(pycoll.register_profiler), {"callback": print}, {"callback": "builtin"}
        ),
        "from_mpi": Row(  # without mpi4py nobody gets as far as the others, which are init's
            pycoll.from_mpi,
            {"comm": 5},
            {"timeout": "", "selector": ""},
            words={"timeout": "comm", "selector": "comm"},
        ),
        "spawn": Row(
            pycoll.spawn,
            {"fn": int, "size": 1},
            {"timeout": FINITE, "start": "", "size": "five", "fn": "builtin"},
            "check",
        ),
        "verify": Row(
            pycoll.verify.verify,
            {"algorithm": "ring", "size": 3},
            {
                "size": "five true",
                "slots": "five true",
                "direct": "true",
                "average": "true",
                "collective": "none",
                "placement": "none",
                "whole": "true",
                "order": "",
            },
            words={"collective": "algorithm"},
        ),
        "algorithm": Row(
            lambda collective: pycoll.algorithm(collective), {"collective": "allreduce"}
        ),
        "algorithm()": Row(
            lambda function: pycoll.algorithm("allreduce")(function),
            {"function": lambda b: None},
            {"function": "builtin"},
        ),
        "Algorithm": Row(
            pycoll.Algorithm,
            {"function": lambda b: None, "collective": pycoll.allreduce},
            {"function": "builtin"},
        ),
        "ScheduleBuilder": Row(
            pycoll.ScheduleBuilder,
            {"size": 3, "rank": 0},
            {"size": "five true", "rank": "true", "collective": "", "placement": ""},
        ),
        "algorithms.get": Row(
            algorithms.get,
            {"name": "ring"},
            {"collective": ""},
            words=dict.fromkeys(("name", "collective"), "algorithm"),
        ),
        "algorithms.names": Row(
            algorithms.names, {"collective": "allreduce"}, {"collective": "text lines blank"}
        ),
        "algorithms.hierarchical": Row(
            lambda outer=ring, level=None: algorithms.hierarchical(
                outer,
                algorithms.get("ring", "reduce_scatter"),
                algorithms.get("ring", "allgather"),
                level=level,
            ),
            {},
            {"outer": "", "level": "none text lines blank"},
            words={"outer": "algorithm"},
        ),
    }


def builder_rows() -> dict[str, Row]:
    """The methods that an algorithm calls, by a rank of three that runs alone."""

    def at(name: str) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            b = pycoll.ScheduleBuilder(3, 0)
            b.recv(b.scratch[0], frm=1)
            done = getattr(b, name)(**given)
            if name == "channel":
                with done:
                    pass
            return done

        return call

    def index(array: str) -> Callable[..., Any]:
        return lambda **given: getattr(pycoll.ScheduleBuilder(3, 0), array)[given["index"]]

    out = pycoll.ScheduleBuilder(3, 0).output[0]
    scratch = pycoll.ScheduleBuilder(3, 0).scratch[0]
    rows = {
        "send": Row(at("send"), {"chunks": out, "to": 1}, {"to": "true"}, words={"to": "rank"}),
        "recv": Row(at("recv"), {"chunks": out, "frm": 1}, {"frm": "true"}, words={"frm": "rank"}),
        "recv_reduce": Row(
            at("recv_reduce"),
            {"chunks": out, "frm": 1},
            {"frm": "true"},
            words={"frm": "recv_reduce"},
        ),
        "copy": Row(
            at("copy"), {"src": out, "dst": scratch}, words=dict.fromkeys(("src", "dst"), "copy of")
        ),
        "reduce": Row(
            at("reduce"),
            {"src": scratch, "into": out},
            words=dict.fromkeys(("src", "into"), "reduce of"),
        ),
        "channel": Row(at("channel"), {"channel": 0}, {"channel": "true"}),
        "within": Row(
            at("within"),
            {"ranks": [0, 1]},
            {"chunks": "none blank bytes list tuple text", "collective": "none"},
        ),
        "chunks": Row(
            lambda n: pycoll.ScheduleBuilder(3, 0).chunks(n),
            {"n": 3},
            {"n": "five true"},
            words={"n": "chunks"},
        ),
        "output[]": Row(
            index("output"),
            {"index": 0},
            {"index": "five minus huge true"},
            words={"index": "out"},
        ),
        "scratch[]": Row(
            index("scratch"),
            {"index": 0},
            {"index": "five huge minus true"},
            words={"index": "scratch"},
        ),
    }
    return {f"ScheduleBuilder.{name}": row for name, row in rows.items()}


# ---- topology and overlap

TEXT = "text lines blank"
MAYBE = f"none {TEXT}"
COUNT = "five huge"  # of a record, which refuses what is no number
MAYBE_COUNT = f"none {COUNT}"
AMOUNT = "five huge half"
MAYBE_AMOUNT = f"none {AMOUNT}"
EMPTY = "list tuple"


def topology_rows(folder: Path) -> dict[str, Row]:
    """The calls of pycoll.topology; files are made in ``folder``."""
    two = topology.cluster(2, 2)
    written = folder / "two.json"
    topology.save(two, written)
    where = {"a": TEXT, "b": TEXT}
    wire = {"latency": AMOUNT, "bandwidth": AMOUNT, "kind": TEXT}
    wires = {"network": "", "memory": "", "bridge": ""}
    nodes = {"ranks_per_node": "five true list5", "sockets": "five true", "cores": "none five true"}
    pair = {"source": "true", "destination": "true"}

    def to_file(topology_: Any, path: Any) -> None:
        with contextlib.chdir(folder):
            topology.save(topology_, path)

    def method(name: str) -> Callable[..., Any]:
        return lambda **given: getattr(two, name)(**given)

    between = {"source": 0, "destination": 1}
    rows = {
        "Wire": Row(topology.Wire, {"latency": 1.0, "bandwidth": 1.0, "kind": "k"}, wire),
        "Link": Row(
            topology.Link,
            {"a": "x", "b": "y", "latency": 1.0, "bandwidth": 1.0, "kind": "k"},
            where | wire | {"weight": MAYBE_AMOUNT},
        ),
        "Socket": Row(
            topology.Socket,
            {"name": "s"},
            {"name": TEXT} | dict.fromkeys(("cores", "threads", "nbytes"), MAYBE_COUNT),
        ),
        "Pci": Row(
            topology.Pci,
            {"name": "p"},
            {"name": TEXT, "what": TEXT}
            | dict.fromkeys(("parent", "socket", "vendor", "device"), MAYBE)
            | dict.fromkeys(("width", "max_width"), MAYBE_COUNT)
            | dict.fromkeys(("speed", "max_speed"), MAYBE_AMOUNT),
        ),
        "Device": Row(
            topology.Device,
            {"name": "d"},
            {"name": TEXT} | dict.fromkeys(("vendor", "model", "socket", "pci"), MAYBE),
        ),
        "Nic": Row(
            topology.Nic,
            {"name": "n"},
            {"name": TEXT, "kind": TEXT, "speed": MAYBE_AMOUNT, "up": "none true"}
            | dict.fromkeys(("socket", "pci", "rdma"), MAYBE),
        ),
        "Switch": Row(topology.Switch, {"name": "s"}, {"name": TEXT}),
        "Node": Row(
            topology.Node,
            {"name": "n"},
            {"name": TEXT, "rack": MAYBE}
            | dict.fromkeys(("sockets", "devices", "nics", "pci", "links"), EMPTY),
        ),
        "Place": Row(
            topology.Place,
            {"node": "n", "at": "s"},
            {"node": TEXT, "at": TEXT, "rails": EMPTY},
        ),
        "Route": Row(
            topology.Route,
            {"links": ()},
            {"links": EMPTY, "rdma": "true", "share": AMOUNT},
        ),
        "Topology": Row(
            topology.Topology,
            {"nodes": ()},
            dict.fromkeys(("nodes", "switches", "links", "ranks"), EMPTY),
        ),
        "Topology.rails": Row(method("rails"), {"node": "node0"}),
        "Topology.leaves": Row(method("leaves"), {"node": "node0"}),
        "Topology.leaf": Row(method("leaf"), {"node": "node0", "nic": "nic0"}),
        "Topology.routes": Row(method("routes"), between, pair | {"flows": "five true"}),
        "Topology.path": Row(method("path"), between, pair),
        "Topology.latency": Row(method("latency"), between, pair),
        "Topology.bandwidth": Row(method("bandwidth"), between, pair | {"flows": "five true"}),
        "Topology.hops": Row(method("hops"), between, pair),
        "cluster": Row(
            topology.cluster,
            {"nodes": 1},
            {"nodes": "five true", "racks": "true", "cyclic": "true", "uplink": "none"}
            | nodes
            | wires,
        ),
        "fabric": Row(
            topology.fabric,
            {"nodes": 1},
            {
                "nodes": "five true",
                "rails": "five true",
                "leaves": "none true",
                "spines": "none five true",
                "rail_optimized": "true",
                "oversubscription": AMOUNT,
                "speeds": "none list5",
                "weights": "none list tuple",
                "gpus": "five true",
                "cyclic": "true",
                "hop": AMOUNT,
            }
            | nodes
            | wires,
        ),
        "load": Row(topology.load, {"path": written}),
        "save": Row(
            lambda path, topology=two: to_file(topology, path),
            {"path": folder / "again.json"},
            {"topology": "", "path": "text"},
        ),
        "tree": Row(topology.tree, {"topology": two}),
        "probe": Row(topology.probe, {"root": folder}, {"root": TEXT, "name": TEXT}),
    }
    return {f"topology.{name}": row for name, row in rows.items()}


class Clock:
    """A GPU that does nothing, in no time; its streams are iterable, for `dict` to take them."""

    limits = limits((9, 0))

    def stream(self, high: bool) -> Any:
        class Stream(tuple[Any, ...]):
            def record(self, event: Any) -> None: ...
            def wait(self, event: Any) -> None: ...
            def synchronize(self) -> None: ...

        return Stream()

    def partition(self, sms: int) -> Any:
        raise pycoll.UnavailableError("its driver has no green contexts")

    def event(self) -> object:
        return object()

    def seconds(self, start: Any, end: Any) -> float:
        return 1.0


class RawKernel:
    """What is asked of a kernel of cupy."""

    num_regs, shared_size_bytes, max_dynamic_shared_size_bytes = 32, 0, 48 << 10

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> None: ...


def overlap_rows() -> dict[str, Row]:
    """The calls of pycoll.overlap, on no GPU."""
    hopper = (9, 0)
    kernel = overlap.Footprint(256, 32)
    launch = {"grid": 1, "block": 256, "args": ()}
    sizes = {"grid": "five true list list5 tuple", "block": "five true list list5 tuple"}
    lists = sizes | {"args": "list list5 listnone tuple"}
    shaped = overlap.shape(RawKernel(), 8, capability=hopper)

    def measured(name: str) -> Callable[..., Any]:
        times = {"sequential": (1.0,), "concurrent": (2.0,)}
        return getattr(overlap.Measured((1.0,), (1.0,), times), name)  # type: ignore[no-any-return]

    way = {"way": "concurrent"}
    rows = {
        "Footprint": Row(
            overlap.Footprint,
            {"threads": 256, "registers": 32},
            {"threads": "five", "registers": "five", "shared": COUNT, "dynamic": COUNT},
        ),
        "plan": Row(
            lambda **given: overlap.plan(**{"capability": hopper, **given}),
            {"kernel": kernel, "block": 256},
            {
                "block": sizes["block"],
                "comm": "none",
                "shared_mem": "five huge true",
                "capability": "",
            },
            lacked={"capability": "none"},
            words={"block": "threads"},
        ),
        "advise": Row(
            lambda **given: overlap.advise(**{"capability": hopper, **given}),
            {
                "work": overlap.Computation(kernel, 8448, seconds=1e-3),
                "collective": overlap.Communication(seconds=1e-3),
            },
            {"comm": "none", "copies": "true", "capability": ""},
            lacked={"capability": "none"},
        ),
        "Computation": Row(
            overlap.Computation,
            {"block": kernel, "grid": 5, "seconds": 1e-3},
            {
                "grid": "five huge true",
                "seconds": "five half huge",
                "flops": "five half huge",
                "nbytes": "five half huge",
                "tensor": "true",
                "persistent": "true",
                "padded": "true",
            },
        ),
        "Communication": Row(
            overlap.Communication,
            {"seconds": 1e-3},
            {
                "seconds": "five half huge",
                "nbytes": "five half huge",
                "ranks": "five",
                "blocks": "five true",
                "kind": "",
                "block": "",
            },
        ),
        "footprint": Row(
            overlap.footprint,
            {"kernel": kernel, "block": 256},
            {"block": f"none {sizes['block']}", "shared_mem": "five huge true"},
            lacked={"kernel": "five minus huge true"},
            words={"block": "threads"},
        ),
        "shape": Row(
            lambda **given: overlap.shape(**{"capability": hopper, **given}),
            {"kernel": RawKernel(), "max_blocks_per_sm": 2},
            {"max_blocks_per_sm": "five huge true", "capability": ""},
            lacked={"capability": "none"},
        ),
        "measure": Row(
            lambda **given: overlap.measure(**{"gpu": Clock(), "repeats": 1, **given}),
            {"compute": lambda s: None, "collective": lambda s: None},
            {
                "compute": "builtin",
                "collective": "builtin",
                "shaped": "none builtin",
                "comm": "none",
                "repeats": "five true",
                "gpu": "",
                "sms": "none",
                "copies": "none builtin",
            },
            lacked={"gpu": "none", "sms": "five true"},
        ),
        "copy_engine": Row(
            overlap.copy_engine,
            {"comm": None, "nbytes": 5},
            {"comm": "", "nbytes": ""},
            words={"nbytes": "comm"},
        ),
        # Nothing lies on a GPU: what is right but for that is refused, by the first array.
        "all_gather_matmul": Row(
            overlap.all_gather_matmul,
            {
                "copies": SimpleNamespace(
                    **dict.fromkeys(("allgather", "arrival_order", "wait")),
                    check=bool,
                    in_step=contextlib.nullcontext,
                ),
                "x": np.ones(2),
                "out": np.ones(2),
                "compute": lambda *_: None,
            },
            {"compute": "builtin", "tiles": "five true", "stream": "none five true"},
            words={"out": "x"},
        ),
        "matmul_reduce_scatter": Row(
            overlap.matmul_reduce_scatter,
            {
                "comm": SimpleNamespace(
                    reduce_scatter=0,
                    _engine=SimpleNamespace(order=SimpleNamespace(begins=contextlib.nullcontext)),
                ),
                "compute": lambda *_: None,
                "out": np.ones(2),
            },
            {
                "compute": "builtin",
                "tiles": "five true",
                "stream": "none five true",
                # Of what comes behind `out` nothing is looked at before it.
                **dict.fromkeys(("parts", "op", "algorithm"), ""),
            },
            words=dict.fromkeys(("parts", "op", "algorithm"), "out"),
        ),
        "partition": Row(
            overlap.partition,
            {"sms": 16},
            {"sms": "", "comm": "", "device": ""},
            lacked={"sms": "five true", "comm": "none", "device": "none five true"},
        ),
        "Launch": Row(
            overlap.Launch,
            {"kernel": RawKernel(), **launch},
            {"kernel": "builtin", "shared_mem": "five huge true"} | lists,
        ),
        "Launch.shaped": Row(
            overlap.Launch(RawKernel(), **launch).shaped,
            {"max_blocks_per_sm": 2, "sm": limits(hopper)},
            {"max_blocks_per_sm": "five huge true"},
        ),
        "Launch()": Row(overlap.Launch(RawKernel(), **launch), {"stream": None}, free="stream"),
        "Shaped.padding": Row(
            shaped.padding,
            {"block": 256},
            {"block": sizes["block"], "shared_mem": "five true"},
            words={"block": "threads", "shared_mem": "dynamic"},
        ),
        "Shaped()": Row(
            shaped, launch, lists | {"shared_mem": "five true"}, words={"shared_mem": "dynamic"}
        ),
        "Measured.seconds": Row(measured("seconds"), way),
        "Measured.saving": Row(measured("saving"), way | {"over": "sequential"}),
        "Measured.faster": Row(measured("faster"), way | {"than": "sequential"}),
    }
    return {f"overlap.{name}": row for name, row in rows.items()}


def test_arguments_of_topology(tmp_path: Path) -> None:
    assert wrong(topology_rows(tmp_path)) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: topology.cluster(2, [1 << 19, (1 << 19) + 1]), r"adds up to 1048577 ranks, want"),
        (lambda: topology.fabric(1 << 11, rails=1 << 10), r"make 2098176 links, want at most 1048"),
        (
            lambda: topology.cluster(2, network=topology.NDR._replace(latency="x")),
            r"latency is 'x'",
        ),
    ],
)
def test_what_only_together_is_too_much(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(pycoll.UsageError, match=message):
        make()


def test_counts_and_speeds_of_numpy() -> None:
    assert topology.cluster(2, np.array([1, 2])).size == 3
    assert topology.cluster(2, np.int32(2)).size == 4
    found = topology.fabric(2, rails=2, speeds=np.array([1e9, 2e9], "float32"))
    assert found == topology.fabric(2, rails=2, speeds=[1e9, 2e9])


def test_ranks_dealt_in_turn_to_uneven_nodes() -> None:
    dealt = topology.cluster(3, [1, 0, 3], cyclic=True).ranks
    assert [place.node for place in dealt] == ["node0", "node2", "node2", "node2"]


def test_arguments_of_overlap() -> None:
    assert wrong(overlap_rows()) == []


def test_arguments_of_a_communicator() -> None:
    def rank() -> list[str]:
        comm = pycoll.init(timeout=30)
        found = wrong(communicator_rows(comm))
        assert comm.allreduce(np.ones(3))[0] == 1  # and it is as good as before
        return found

    assert pycoll.spawn(rank, 1, timeout=400) == [[]]


def test_arguments_of_functions() -> None:
    def rank() -> list[str]:
        return wrong(function_rows())

    assert pycoll.spawn(rank, 1, timeout=400) == [[]]


def test_arguments_of_an_algorithms_builder() -> None:
    assert wrong(builder_rows()) == []


# ---- nothing is left out

#: Public callables without a row, each with its reason.
EXEMPT = {
    "Communicator": "made by init",
    "Plan": "made by plan",
    "Work": "made by async_op",
    "CallEvent": "made for profilers",
    "Profiler": "made by register_profiler",
    "CallStats": "made by Communicator.stats",
    "Stats": "made by Communicator.stats",
    **dict.fromkeys(
        ("allgather", "allreduce", "alltoall", "broadcast", "gather", "reduce", "reduce_scatter"),
        "a Collective, which nobody calls",
    ),
    "scatter": "a Collective, which nobody calls",
    "Communicator.close": "takes nothing",
    "Plan.revoke": "the engine's",
    "Work.begin": "the engine's",
    "Work.start": "the engine's",
    "overlap.Advice": "made by plan",
    "overlap.Comparison": "made by advise",
    "overlap.Measured": "made by measure",
    "overlap.Shaped": "made by shape",
    "algorithms.Algorithm": "as pycoll.Algorithm",
    "algorithms.algorithm": "as pycoll.algorithm",
}
#: Parameters that take anything that has a truth value.
FLAGS = {"async_op", "check"}


def public() -> dict[str, Callable[..., Any]]:
    """Every public callable with parameters, by the name that its row has."""
    found: dict[str, Callable[..., Any]] = {}
    for name in pycoll.__all__:
        value = getattr(pycoll, name)
        if callable(value) and not (isinstance(value, type) and issubclass(value, Exception)):
            found[name] = value
    for kind, prefix in (
        (pycoll.Communicator, ""),
        (pycoll.Work, "Work."),
        (pycoll.Plan, "Plan."),
        (pycoll.ScheduleBuilder, "ScheduleBuilder."),
    ):
        for name in methods(kind):
            found[f"{prefix}{name}" if prefix else f"comm.{name}"] = getattr(kind, name)
    for module in (algorithms, topology, overlap):
        within = module.__name__.removeprefix("pycoll.")
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                found[f"{within}.{name}"] = value
            if isinstance(value, type) and module is not algorithms:
                found |= {f"{within}.{name}.{m}": getattr(value, m) for m in methods(value)}
    return found


def test_every_public_callable_has_a_row(tmp_path: Path) -> None:
    rows = function_rows() | builder_rows() | topology_rows(tmp_path) | overlap_rows()
    with pycoll.init() as comm:
        rows |= {
            name if "." in name else f"comm.{name}": row
            for name, row in communicator_rows(comm).items()
        }
    missing = []
    for name, value in public().items():
        if name in EXEMPT:
            continue
        if name not in rows:
            missing.append(name)
            continue
        row = rows[name]
        known = row.right.keys() | row.legal.keys() | set(row.free.split()) | FLAGS
        call = pycoll.verify.verify if name == "verify" else value
        missing += [f"{name}({p})" for p in sorted(parameters(call) - known - {"args", "inner"})]
    assert missing == []
    assert not set(EXEMPT) & set(rows), "a row makes the exemption needless"
