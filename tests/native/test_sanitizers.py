"""The engine under ThreadSanitizer, AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import compiled
import fabric
import fakefabric
import fakeverbs_library
import pytest

from pycoll.algorithms import names

HERE = Path(__file__).parent

# Every ordering weakened: x86 hides that, ThreadSanitizer does not.
RELAXED = """
#include <stdatomic.h>
#define memory_order_acquire memory_order_relaxed
#define memory_order_release memory_order_relaxed
#define memory_order_acq_rel memory_order_relaxed
"""


#: Without which no weakened order is seen: what raises counts, and what waits for them.
ORDERING = ("status", "comm", "progress", "shm", "wait")


def built(driver: str, sanitizer: str) -> Path:
    return compiled.driver(HERE / f"{driver}.c", sanitizer)


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a driver; with `verbs`, a sanitizer, it finds RDMA devices, with these options."""

    def run(
        *command: object, verbs: str = "", **options: object
    ) -> subprocess.CompletedProcess[str]:
        env = dict(os.environ)
        if verbs:
            if reason := fakeverbs_library.lack():
                pytest.skip(reason)
            network = fabric.Fabric(tmp_path / "fabric", fakeverbs_library.built(verbs))
            env |= network.environment(**{"devices": fabric.DEVICES} | options)
        return subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=300, env=env
        )

    return run


#: How ranks reach each other; see ranks.c.
of_paths = pytest.mark.parametrize(
    ("path", "size"),
    [(path, size) for path in ("mapped", "remote", "rails") for size in (2, 3, 4)] + [("both", 4)],
)


@of_paths
def test_no_race(run: Run, programs: Path, path: str, size: int) -> None:
    verbs = "tsan" if path == "rails" else ""
    tsan = built("ranks", "tsan")
    done = run(tsan, path, programs / str(size), size, 200, *names("allreduce"), verbs=verbs)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"200 calls on {size} ranks\n"


@of_paths
def test_no_stray_access(run: Run, programs: Path, path: str, size: int) -> None:
    verbs = "asan" if path == "rails" else ""
    asan = built("ranks", "asan")
    done = run(asan, path, programs / str(size), size, 400, *names("allreduce"), verbs=verbs)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"400 calls on {size} ranks\n"


@pytest.mark.parametrize("spin", [0, 20])  # 0: as where ranks share cores
@pytest.mark.parametrize(
    ("path", "size"),
    [
        *(("mapped", size) for size in (1, 2, 4)),
        *((path, size) for path in ("remote", "rails") for size in (2, 3)),
        ("both", 4),
    ],
)
@pytest.mark.parametrize("kind", ["tsan", "asan"])
def test_no_race_or_stray_access_of_transfers(
    run: Run, kind: str, path: str, size: int, spin: int
) -> None:
    verbs = kind if path == "rails" else ""
    done = run(built("transfers", kind), path, size, 400, spin, verbs=verbs)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"400 messages or batches on {size} ranks\n"


@pytest.mark.parametrize(
    "scenario", ["several", "order", "memory", "deadline", "beside", "call", "credit"]
)
def test_beside_a_peer_that_does_not_read(run: Run, scenario: str) -> None:
    done = run(built("stuck", "asan"), scenario)
    assert (done.returncode, done.stdout) == (0, f"{scenario}\n"), done.stderr


@pytest.mark.parametrize(
    ("memory", "how"),
    [
        *(("heap", how) for how in ("abort", "call", "queued", "amid", "unheard")),
        *(("own", how) for how in ("abort", "call", "queued", "close", "unheard")),
    ],
)
def test_what_lies_at_a_rank_whose_transfers_have_ended_is_not_taken(
    run: Run, memory: str, how: str
) -> None:
    done = run(built("withdrawn", "asan"), memory, how)
    assert (done.returncode, done.stdout) == (0, f"{memory} {how}\n"), done.stderr


@pytest.mark.parametrize(
    "scenario",
    [
        *("probe", "near", "far", "refused", "half", "reader", "sender"),
        pytest.param(
            "user",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
        ),
    ],
)
def test_exchanges_between_near_and_far_cores(run: Run, scenario: str) -> None:
    done = run(built("far_cores", "asan"), scenario)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{scenario}\n", "")


def test_no_race_of_a_refused_call_with_a_queued_one(run: Run) -> None:
    done = run(built("refused", "tsan"), 50)
    assert (done.returncode, done.stdout, done.stderr) == (0, "50 turns\n", ""), done.stderr


def test_a_weakened_order_is_caught(run: Run, tmp_path: Path, programs: Path) -> None:
    header = tmp_path / "relaxed.h"
    header.write_text(RELAXED)
    weak = ("-include", str(header))
    units = [
        replace(unit, flags=(*unit.flags, *weak)) if unit.source.stem in ORDERING else unit
        for unit in compiled.engine("tsan")
    ]
    binary = compiled.driver(HERE / "ranks.c", "tsan", units)
    done = run(binary, "mapped", programs / "2", 2, 50, "ring")
    assert "WARNING: ThreadSanitizer: data race" in done.stderr
    assert done.returncode != 0


def test_damaged_programs_and_addresses(run: Run, programs: Path) -> None:
    binary = built("fuzz", "asan")
    staged = sorted((programs / "2").glob("*.0"))
    direct = sorted((programs / "2").glob("*.0.direct"))
    accepted = 0
    for seed in (1, 2, 3):
        done = run(binary, seed, 2000, *staged, *direct)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout.startswith("2000 programs, ")
        accepted += int(done.stdout.split()[2])
    # the test must reach the interpreter, not only the loader's refusals
    assert 300 < accepted < 5700


def test_a_peer_that_lies_over_its_sockets(run: Run) -> None:
    binary = built("fuzz_tcp", "asan")
    refused = 0
    for seed in (1, 2, 3):
        done = run(binary, seed, 1000)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout.startswith("1000 streams, ")
        refused += int(done.stdout.split()[2])
    assert 300 < refused < 2700


def test_a_peer_that_lies_in_letters(run: Run) -> None:
    binary = built("fuzz_wireup", "asan")
    refused = lived = 0
    for seed in (1, 2, 3):
        done = run(binary, seed, 100, verbs="asan")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout.startswith("100 liars, ")
        refused += int(done.stdout.split()[2])
        lived += int(done.stdout.split()[4])
    assert 100 < refused < 300
    assert lived > 20  # it must get as far as messages


def test_a_peer_that_lies_in_packets_and_writes(tmp_path: Path) -> None:
    if reason := fakefabric.lack():
        pytest.skip(reason)
    env = {**os.environ, "LD_LIBRARY_PATH": str(fakefabric.build(tmp_path))}
    binary = built("fuzz_fabric", "asan")
    refused = 0
    for seed in (1, 2, 3):
        done = subprocess.run(
            [binary, str(seed), "150"], capture_output=True, text=True, timeout=300, env=env
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout.startswith("150 liars, ")
        refused += int(done.stdout.split()[2])
    assert 45 < refused < 405


@pytest.mark.parametrize("like", ["mlx5", "rxe"])
def test_queue_pairs_that_end_take_no_shared_receives_along(run: Run, like: str) -> None:
    done = run(built("shared_receives", "asan"), 40, verbs="asan", like=like, srq=63)
    assert (done.returncode, done.stdout) == (0, "200 of 63\n"), done.stderr


@pytest.mark.parametrize("receives", ["shared", "own"])
def test_what_came_before_a_connection_failed_is_not_lost_with_it(run: Run, receives: str) -> None:
    done = run(built("late_completions", "asan"), receives, verbs="asan")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize(("size", "rails", "seed"), [(2, 2, 1), (3, 2, 3), (4, 2, 4)])
@pytest.mark.parametrize("kind", ["tsan", "asan"])
def test_connecting_failing_over_reviving_and_closing(
    run: Run, kind: str, size: int, rails: int, seed: int
) -> None:
    done = run(built("rails_walk", kind), size, rails, seed, 40, verbs=kind)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    words = done.stdout.split()
    assert words[:2] == ["40", "faults,"]
    failures, revivals = int(words[2]), int(words[4])
    assert failures > 10
    assert revivals > 0
