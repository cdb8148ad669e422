"""A compiled kernel with the attributes of Triton's class, launched on the stand-in for the driver.

As of triton/compiler/compiler.py and backends/nvidia/driver.{c,py}, 3.5.1 and 3.9.0: what is loaded
late, where launches get their numbers from, and what is unloaded with the object. The launcher
refuses what theirs does: another number of packed numbers, or arguments that are not all there.
"""

from __future__ import annotations

import sys
from collections import namedtuple
from types import ModuleType, SimpleNamespace
from typing import Any

import fakecuda

#: How many numbers the launcher wants: the cluster's dimensions went in 3.6.
PACKED = {"3.5": 6, "3.9": 3}
Metadata = namedtuple("Metadata", "name num_ctas num_warps shared target")


class CompiledKernel:
    """As Triton's."""

    unloaded = 0

    def __init__(
        self,
        registers: int = 32,
        shared: int = 0,
        num_warps: int = 1,
        version: str = "3.9",
        num_ctas: int = 1,
        arguments: int = 3,
    ) -> None:
        self.metadata = Metadata("busy", num_ctas, num_warps, shared, "cuda")
        packed = num_warps, num_ctas, shared, 1, 1, 1
        self.packed_metadata = packed[: PACKED[version]]
        self.kernel = b"cubin"
        self.module: fakecuda.Module | None = None
        self.function: int | None = None
        self._registers, self._version, self._arguments = registers, version, arguments
        self._run: Any = None
        self.launches: list[tuple[Any, ...]] = []

    def __del__(self) -> None:
        if self.module is not None:
            type(self).unloaded += 1

    def _init_handles(self) -> None:
        if self.module is not None:
            return
        said = {"registers": self._registers, "like": "fakecuda_busy"}
        self.module = fakecuda.Module(fakecuda.image(busy=said))
        self.function = self.module.function("busy")
        self.n_regs, self.n_spills, self.n_max_threads = self._registers, 0, 1024
        if self.metadata.shared > 48 << 10:  # as load_binary does, and only then
            fakecuda.cu("cuFuncSetAttribute", fakecuda.c_void_p(self.function), 8, 227 << 10)
        self._run = self._launch

    @property
    def run(self) -> Any:
        if self._run is None:
            self._init_handles()
        return self._run

    def launch_metadata(self, grid: Any, stream: int, *args: Any) -> Any:
        return None if sys.modules["triton"].knobs.runtime.launch_enter_hook is None else {"x": 1}

    def _launch(
        self,
        x: int,
        y: int,
        z: int,
        stream: int,
        function: int,
        packed: tuple[int, ...],
        about: Any,
        enter: Any,
        leave: Any,
        *args: Any,
    ) -> None:
        if len(packed) != PACKED[self._version] or not isinstance(packed, tuple):
            raise TypeError(f"function takes exactly {PACKED[self._version]} arguments")
        if len(args) != self._arguments:
            raise TypeError(f"{len(args)} arguments, want {self._arguments}")
        if enter is not None:
            enter(about)
        on = SimpleNamespace(ptr=stream)
        threads = 32 * packed[0]
        fakecuda.launch(
            function, *args, stream=on, blocks=x * y * z, threads=threads, shared=packed[2]
        )
        self.launches.append(((x, y, z), stream, packed[2]))
        if leave is not None:
            leave(about)


def loaded(stream: int) -> ModuleType:
    """Return as much of the module triton as is asked for, with a current stream."""
    active = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda _: stream)
    hooks = SimpleNamespace(launch_enter_hook=None, launch_exit_hook=None)
    module: Any = ModuleType("triton")
    module.runtime = SimpleNamespace(driver=SimpleNamespace(active=active))
    module.knobs = SimpleNamespace(runtime=hooks)
    return module  # type: ignore[no-any-return]
