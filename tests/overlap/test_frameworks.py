"""cupy's and torch's current streams while work is enqueued; neither is imported for it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pycoll.overlap.frameworks import current_device, on_stream


class Library:
    """As much of cupy or of torch as is used."""

    def __init__(self, name: str, device: int, available: bool = True, newer: bool = False) -> None:
        self.name, self.current = name, []
        external = self._cupy_stream if name == "cupy" else self._torch_stream
        self.cuda = SimpleNamespace(
            is_available=lambda: available,
            ExternalStream=external,
            stream=self._entered,
            Stream=SimpleNamespace(**({"from_external": self._taken} if newer else {})),
            Device=lambda: SimpleNamespace(id=device),
            current_device=lambda: device,
        )

    def _cupy_stream(self, ptr: int, device: int) -> Any:
        return self._entered((ptr, device))

    def _taken(self, stream: Any) -> Any:
        return self._entered((*stream.__cuda_stream__(), stream.device))

    def _torch_stream(self, ptr: int, device: int) -> Any:
        return ptr, device

    @contextlib.contextmanager
    def _entered(self, stream: Any) -> Iterator[None]:
        self.current.append(stream)
        yield
        self.current.pop()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    def load(*libraries: Library) -> None:
        for name in ("cupy", "torch"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        for library in libraries:
            monkeypatch.setitem(sys.modules, library.name, library)

    return load


STREAM = SimpleNamespace(ptr=77, device=3, __cuda_stream__=lambda: (0, 77))


def test_the_stream_is_current_in_both(loaded: Any) -> None:
    cupy, torch = Library("cupy", 1), Library("torch", 2)
    loaded(cupy, torch)
    seen: list[Any] = []

    def enqueue(stream: Any) -> str:
        seen.extend((stream, list(cupy.current), list(torch.current)))
        return "enqueued"

    assert on_stream(enqueue)(STREAM) == "enqueued"
    assert seen == [STREAM, [(77, 3)], [(77, 3)]]
    assert (cupy.current, torch.current) == ([], [])


def test_a_newer_cupy_takes_the_stream_itself(loaded: Any) -> None:
    cupy = Library("cupy", 1, newer=True)
    loaded(cupy)
    assert on_stream(lambda stream: list(cupy.current))(STREAM) == [(0, 77, 3)]


def test_a_library_without_a_gpu_is_left_alone(loaded: Any) -> None:
    torch = Library("torch", 0, available=False)
    loaded(torch)
    assert on_stream(lambda stream: list(torch.current))(STREAM) == []


def test_nothing_is_imported_for_it(loaded: Any) -> None:
    loaded()
    assert on_stream(lambda stream: stream.ptr)(STREAM) == 77
    assert "cupy" not in sys.modules
    assert current_device() == 0


@pytest.mark.parametrize(("names", "device"), [(("cupy", "torch"), 4), (("torch",), 5)])
def test_the_current_device(loaded: Any, names: tuple[str, ...], device: int) -> None:
    numbers = {"cupy": 4, "torch": 5}
    loaded(*(Library(name, numbers[name]) for name in names))
    assert current_device() == device
