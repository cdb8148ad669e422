"""Calls through a multicast address, over the stand-in: a GPU for each rank, or why not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fakecuda
import gpus
import numpy as np
import pytest

import pycoll
from pycoll.communicator import Communicator
from pycoll.cost import Switch
from pycoll.dtypes import DTYPES, ReduceOp
from pycoll.runtime.cuda import multicast

sys.path.append(str(Path(__file__).parents[1] / "gpu"))

import kernels
import together

pytestmark = gpus.MARKS

OPS: dict[str, Callable[..., Any]] = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def begin(comm: Communicator) -> str:
    """Make ready on a GPU of this rank's own; return what is said of multicast."""
    fakecuda.use(comm.rank)
    return comm.cuda(comm.rank).multicast


def given(dtype: str, rank: int, count: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(rank)
    if dtype.startswith("float"):
        return rng.standard_normal(count).astype(dtype)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return rng.integers(low, high, count, dtype=dtype, endpoint=True)


def folded(dtype: str, op: str, size: int, count: int) -> np.ndarray[Any, Any]:
    """Return what ranks in their order make of it."""
    out = given(dtype, 0, count).copy()
    for rank in range(1, size):
        OPS[op](out, given(dtype, rank, count), out=out)
    return out


def allreduces(comm: Communicator, dtypes: Sequence[str], skip: int = 0) -> tuple[int, int]:
    """All-reduce arrays of the heap; return how much this rank's switch folded and stored."""
    before = fakecuda.switched()
    stream = fakecuda.Stream()
    away = comm.empty(skip, "uint8", device="cuda") if skip else None
    for dtype in dtypes:
        for op in OPS:
            for count in (1, 37, 5000):
                x = comm.empty(count, dtype, device="cuda")
                gpus.host(x)[...] = given(dtype, comm.rank, count)
                with comm.on_stream(stream):
                    comm.allreduce(x, op=op, algorithm="two_shot")
                stream.synchronize()
                wanted = folded(dtype, op, comm.size, count)
                assert gpus.host(x).tobytes() == wanted.tobytes(), (dtype, op, count)
    del away
    now = fakecuda.switched()
    return now[0] - before[0], now[1] - before[1]


def ranks(size: int, fn: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    return gpus.ranks(size, fn, *args, devices=size, multicast=1, **options)


@pytest.mark.parametrize("size", [2, 4])
def test_allreduce(size: int, tmp_path: Path) -> None:
    def rank() -> tuple[str, tuple[int, int], tuple[int, int]]:
        with pycoll.init() as comm:
            said = begin(comm)
            return said, allreduces(comm, ["int32", "uint64"]), allreduces(comm, ["float32"])

    log = tmp_path / "log"
    for said, integers, floats in ranks(size, rank, log=log):
        assert said == "on"
        assert min(integers) > 0
        assert floats[0] == 0  # what a switch would round in another order
        assert floats[1] > 0
    assert [r for r in fakecuda.remarks(log) if r.startswith(("hang", "undefined"))] == []


def test_arrays_at_different_offsets_go_without() -> None:
    def rank() -> list[tuple[int, int]]:
        with pycoll.init() as comm:
            assert begin(comm) == "on"
            apart = allreduces(comm, ["int32"], skip=4096 if comm.rank == 1 else 0)
            return [apart, allreduces(comm, ["int32"])]

    for apart, alike in ranks(3, rank):
        assert apart == (0, 0)
        assert min(alike) > 0


def test_other_collectives() -> None:
    def rank() -> tuple[int, int]:
        with pycoll.init() as comm:
            assert begin(comm) == "on"
            stream, size, count = fakecuda.Stream(), comm.size, 1000
            x = comm.empty(size * count, "int64", device="cuda")
            part = comm.empty(count, "int64", device="cuda")
            every = [given("int64", r, size * count) for r in range(size)]
            with comm.on_stream(stream):
                gpus.host(x)[...] = every[comm.rank]
                comm.broadcast(x, root=1, algorithm="direct")
                stream.synchronize()
                assert (gpus.host(x) == every[1]).all()
                gpus.host(x)[...] = every[comm.rank]
                comm.reduce_scatter(x, part, algorithm="direct")
                stream.synchronize()
                mine = slice(comm.rank * count, (comm.rank + 1) * count)
                assert (gpus.host(part) == np.sum(every, axis=0)[mine]).all()
                comm.allgather(part, x, algorithm="direct")
                stream.synchronize()
                assert (gpus.host(x) == np.sum(every, axis=0)).all()
            return fakecuda.switched()

    for folds, stores in ranks(4, rank):
        assert folds > 0
        assert stores > 0


def test_sums_of_floats_go_by_the_switch_when_asked(monkeypatch) -> None:
    monkeypatch.setenv("PYCOLL_CUDA_MULTICAST", "on")

    def rank() -> tuple[int, int]:
        with pycoll.init() as comm:
            assert begin(comm) == "on"
            return allreduces(comm, ["float32", "float64"])

    for folds, stores in ranks(2, rank):  # of two the order does not matter
        assert min(folds, stores) > 0


def test_a_graph_replays_it() -> None:
    def rank() -> tuple[int, int]:
        with pycoll.init() as comm:
            assert begin(comm) == "on"
            stream = fakecuda.Stream()
            x = comm.empty(5000, "int32", device="cuda")
            with comm.on_stream(stream):
                plan = comm.plan("allreduce", x, algorithm="two_shot")
                with fakecuda.capture(stream) as graphs:
                    plan()
            for turn in range(3):
                gpus.host(x)[...] = given("int32", comm.rank + turn, 5000)
                comm.barrier()
                graphs[0].launch(stream)
                stream.synchronize()
                wanted = given("int32", turn, 5000) + given("int32", 1 + turn, 5000)
                assert (gpus.host(x) == wanted).all()
            graphs[0].close()
            return fakecuda.switched()

    for folds, stores in ranks(2, rank):
        assert min(folds, stores) > 0


@pytest.mark.fake_cuda(devices=3, multicast=1)
def test_ranks_that_are_threads() -> None:
    kernels.take_any()
    met, said = together.Meeting(3, 100.0), {}

    def rank(comm: Any) -> None:
        fakecuda.use(comm.rank)
        said[comm.rank] = comm.cuda(comm.rank).multicast
        stream = fakecuda.Stream()
        x = comm.empty(5000, "int32", device="cuda")
        gpus.host(x)[...] = given("int32", comm.rank, 5000)
        comm.plan("allreduce", x, algorithm="two_shot")
        met.of(comm.rank).gather(0.0)
        with comm.on_stream(stream):
            comm.allreduce(x, algorithm="two_shot")
        stream.synchronize()
        assert (gpus.host(x) == folded("int32", "sum", 3, 5000)).all()
        met.of(comm.rank).gather(0.0)

    together.spawn(rank, 3, timeout=60.0)
    assert said == dict.fromkeys(range(3), "on")
    assert min(fakecuda.switched()) > 0
    assert [r for r in fakecuda.remarks() if r.startswith(("hang", "undefined"))] == []


#: What the ranks lack, and what is said of it.
LACKS = {
    "no switch": ({"multicast": 0}, {}, "rank 0: GPU 0 has no switch with multicast objects"),
    "no virtual memory": ({"virtual": 0}, {}, "rank 0: GPU 0 has no virtual memory management"),
    "off": ({}, {"PYCOLL_CUDA_MULTICAST": "off"}, "off, by PYCOLL_CUDA_MULTICAST"),
    "no heap": ({}, {"PYCOLL_CUDA_HEAP": "0"}, "there is no heap for it, by PYCOLL_CUDA_HEAP"),
}


@pytest.mark.parametrize("lack", LACKS)
def test_without_it_calls_are_as_ever(monkeypatch, lack: str) -> None:
    options, settings, wanted = LACKS[lack]
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    def rank() -> tuple[str, tuple[str, ...]]:
        with pycoll.init() as comm:
            said = begin(comm)
            if lack != "no heap":
                assert allreduces(comm, ["int32"]) == (0, 0)
            return said, comm.cuda().reach

    given_options = {"devices": 2, "multicast": 1} | options
    for said, reach in gpus.ranks(2, rank, **given_options):
        assert said.startswith(wanted)
        assert reach == ("cuda", "cuda")


def test_ranks_that_share_a_gpu() -> None:
    def rank() -> str:
        with pycoll.init() as comm:
            said = comm.cuda(0).multicast
            assert allreduces(comm, ["int32"]) == (0, 0)
            return said

    assert set(gpus.ranks(3, rank, devices=2, multicast=1)) == {"ranks 0 and 1 share a GPU"}


def test_a_rank_alone() -> None:
    def rank() -> str:
        with pycoll.init() as comm:
            return begin(comm)

    assert ranks(1, rank) == ["it is for 2 to 64 ranks of one host"]


def test_ranks_that_were_told_different_things() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            mine = comm.rank
        if mine == 1:
            os.environ["PYCOLL_CUDA_MULTICAST"] = "on"
        with pycoll.init() as comm:
            assert comm.rank == mine
            wanted = (
                "^PYCOLL_CUDA_MULTICAST is on on rank 1 and auto on rank 0; give all ranks the same"
            )
            with pytest.raises(pycoll.UsageError, match=wanted):
                begin(comm)

    ranks(2, rank)


#: What fails on one rank, and how often a rank may call it before: each step in turn.
STEPS = (
    *("cuMemCreate:1", "cuMemMap:1=205", "cuMemSetAccess:1=101"),
    *("cuMemExportToShareableHandle:1=1", "cuMulticastCreate:1=801"),
    *("cuMemImportFromShareableHandle:1=1", "cuMulticastAddDevice:1=801", "cuMemMap:2=205"),
    *("cuMulticastBindMem:1=401", "cuMemMap:4=205", "cuMemSetAccess:4=101"),
)


@pytest.mark.parametrize("failure", STEPS)
@pytest.mark.parametrize("where", [0, 2])
def test_a_step_that_fails_on_one_rank(tmp_path: Path, failure: str, where: int) -> None:
    """All ranks go on without, and know why; nobody waits in the driver for who has given up."""
    name = failure.partition(":")[0]
    if name == "cuMulticastCreate" and where:
        pytest.skip("rank 0 makes the object")

    def rank() -> tuple[str, tuple[str, ...]]:
        with pycoll.init() as comm:
            fakecuda.use(comm.rank)
            if comm.rank == where:
                fakecuda.fail(failure)
            said = begin(comm)
            assert allreduces(comm, ["int32"]) == (0, 0)
            return said, comm.cuda().reach

    log = tmp_path / "log"
    for said, reach in ranks(3, rank, log=log):
        assert said.startswith(f"rank {where}"), said
        assert name in said, said
        assert reach == ("cuda",) * 3
    assert [r for r in fakecuda.remarks(log) if r.startswith(("hang", "undefined"))] == []
    lines = fakecuda.calls(log)
    assert sum(c.name == "cuMulticastBindMem" and not c.result for c in lines) == sum(
        c.name == "cuMulticastUnbind" and not c.result for c in lines
    )
    for made, gone in (("cuMemAddressReserve", "cuMemAddressFree"), ("cuMemMap", "cuMemUnmap")):
        counts = [sum(c.name == n and not c.result for c in lines) for n in (made, gone)]
        assert counts[0] == counts[1], (made, counts)


def test_what_the_switch_folds_is_said_once(tmp_path: Path) -> None:
    """`serves` is what the kernels have: PC_SWITCH_FOLDS."""
    source = tmp_path / "folds.c"
    source.write_text(
        '#include <stdio.h>\n#include "gpu/device.h"\nint main(void) {'
        f"for (unsigned d = 0; d < {len(DTYPES)}; d++) for (unsigned o = 0; o < {len(ReduceOp)}; "
        'o++) printf("%d", PC_SWITCH_FOLDS(d, o) ? 1 : 0); }'
    )
    native, program = Path(__file__).parents[2] / "native", tmp_path / "folds"
    subprocess.run(["cc", f"-I{native}", "-o", program, source], check=True)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    folds = iter(said)
    for dtype in DTYPES:
        for op in ReduceOp:
            known = next(folds) == "1"
            exact = known and dtype.name.startswith(("int", "uint"))
            assert (multicast.serves(True, dtype, op) is Switch.FOLDS) == known, (dtype, op)
            assert (multicast.serves(False, dtype, op) is Switch.FOLDS) == exact, (dtype, op)


def test_kernels_of_an_older_compiler_are_said() -> None:
    """Also if one rank alone has such: all go without, and calls are right."""

    def rank() -> tuple[str, tuple[int, int]]:
        from pycoll.runtime.cuda import kernels as loaded

        with pycoll.init() as comm:
            loaded.compile.multimem = lambda image: comm.rank != 1  # type: ignore[attr-defined]
            return begin(comm), allreduces(comm, ["int32"])

    why = "rank 1: its kernels were compiled by an NVRTC before 12.2, which has no multimem"
    assert ranks(3, rank) == [(why, (0, 0))] * 3


def test_the_choice_knows_of_it() -> None:
    def rank() -> list[str]:
        with pycoll.init() as comm:
            begin(comm)
            x = comm.empty(1 << 18, "int32", device="cuda")
            plan = comm.plan("allreduce", x)
            gpus.host(x)[...] = comm.rank + 1
            before = fakecuda.switched()
            with comm.on_stream(stream := fakecuda.Stream()):
                plan()
            stream.synchronize()
            assert (gpus.host(x) == 10).all()
            assert fakecuda.switched()[0] > before[0]
            return [plan.algorithm, str(comm.explain("allreduce", 1 << 20, "cuda"))]

    found = ranks(4, rank)
    assert [algorithm for algorithm, _ in found] == ["two_shot"] * 4
    for _, told in found:
        assert "NVLink SHARP stores: two_shot" in told
    for _, told in ranks(4, rounding(rank)):
        assert "NVLink SHARP folds and stores: two_shot" in told


def rounding(rank: Callable[[], Any]) -> Callable[[], Any]:
    def begun() -> Any:
        os.environ["PYCOLL_CUDA_MULTICAST"] = "on"
        return rank()

    return begun
