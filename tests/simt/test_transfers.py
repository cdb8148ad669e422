"""The GPU's kernel of messages between two ranks, on threads, under ThreadSanitizer."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import compiled
import pytest
from test_simt import ABORTED, HERE, MISMATCH, RACE, TARGET, TIMEDOUT, Change, changed

pytestmark = pytest.mark.native

KERNEL = "gpu/kernel/transfer.h"
LOST = -11
REFUSED = 1  #: PC_REFUSED_MESSAGE


def driver(*changes: Change) -> Path:
    """Return the driver, made of headers with these changes."""
    compiled.require("tsan", ".cc")
    include = [f"-I{compiled.NATIVE}"]
    if changes:
        include.insert(0, f"-I{changed(changes)}")
    flags = (
        *("-std=c++17", "-O1", "-g", "-pthread", "-fwrapv", "-Wall", "-Wextra"),
        *("-Wno-missing-field-initializers", *compiled.SANITIZERS["tsan"], *include),
    )
    unit = compiled.Unit(HERE / "transfers.cc", flags)
    return compiled.linked("transfers", [unit], *compiled.SANITIZERS["tsan"])


@pytest.fixture(scope="module")
def kernel() -> Path:
    return driver()


def run(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ) | {"TSAN_OPTIONS": f"halt_on_error=1 exitcode={RACE}"}
    command = [program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, env=env)


@pytest.mark.parametrize("seed", range(6))
def test_all_that_is_sent_arrives(kernel: Path, seed: int) -> None:
    done = run(kernel, "run", seed, 30)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "30 cases\n"), done.stderr[:4000]


#: A change of the kernel, each of which must be found.
CHANGES: dict[str, Change] = {
    "release": (
        TARGET, "PC_DEVICE_FN void pc__store_release(uint64_t *to, uint64_t x)\n{\n"
                "    __atomic_store_n(to, x, __ATOMIC_RELEASE);",
        "PC_DEVICE_FN void pc__store_release(uint64_t *to, uint64_t x)\n{\n"
        "    __atomic_store_n(to, x, __ATOMIC_RELAXED);",
    ),
    "acquire": (
        TARGET, "PC_DEVICE_FN uint64_t pc__load_acquire(const uint64_t *from)\n{\n"
                "    return __atomic_load_n(from, __ATOMIC_ACQUIRE);",
        "PC_DEVICE_FN uint64_t pc__load_acquire(const uint64_t *from)\n{\n"
        "    return __atomic_load_n(from, __ATOMIC_RELAXED);",
    ),
    "barrier before the copies": (
        KERNEL, "if (pc__barrier(shared, call.dead) || shared->nready == 0)",
        "if (shared->nready == 0)",
    ),
    "barrier before the counts": (
        KERNEL, "pc__barrier(shared, false); /* the releases", "/* the releases",
    ),
    "credit": (
        KERNEL, "        if (n - f->credit >= args->slots)\n            return false;\n", "",
    ),
    "message": (
        KERNEL, "        if (!pc__transfer_raised(line, n + 1))\n            return false;\n", "",
    ),
    "slots take turns": (
        KERNEL, "+ (n & (args->slots - 1)) * (uint64_t)args->slot_bytes", "+ 0 * n",
    ),
    "packets are cleaned": (KERNEL, "        pc__transfer_clean(call, f);\n", ""),
    "lanes end where the next begins": (
        KERNEL, "job->left = nbytes - begin < each ? nbytes - begin : each;",
        "job->left = nbytes - begin;",
    ),
    "messages that were refused count": (KERNEL, "line->place != pc__transfer_refused(call, t)",
                                         "line->place != t->refused"),
    "it waits for any of its jobs": (
        KERNEL, "            if (job->transfer == job->end || !pc__transfer_ready(call, job))\n"
                "                continue;\n",
        "            if (job->transfer == job->end)\n                continue;\n"
        "            const uint64_t since = pc__clock_ns();\n"
        "            while (!pc__transfer_ready(call, job)) {\n"
        "                if (call->dead || pc__clock_ns() - since > 5000000000u) {\n"
        "                    call->dead = true;\n                    return;\n                }\n"
        "                pc__relax();\n            }\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found(change: str) -> None:
    program = driver(CHANGES[change])
    ends = (run(program, "run", seed, 30).returncode for seed in range(6))
    assert next(filter(None, ends), 0) in (1, RACE)


TROUBLE = re.compile(
    r"rank (\d+): code (-\d+) peer (\d+) direction (\d+) transfer (\w+) theirs (\w+) tag (\w+)"
)


def of(dtype: int, nbytes: int) -> int:
    return 1 << 63 | dtype << 48 | nbytes


#: How a case ends: the code, and the signature of what came instead; None: of no message.
ENDS: dict[str, tuple[int, int | None]] = {
    "alone": (TIMEDOUT, None),
    "abort": (ABORTED, None),
    "gone": (LOST, None),
    "length": (MISMATCH, of(5, 4999)),
    "dtype": (MISMATCH, of(6, 5000)),
    "refused": (MISMATCH, REFUSED),
    "call": (MISMATCH, of(5, 5000) ^ 7),
    "packets": (MISMATCH, None),
    "ready": (MISMATCH, None),
}


@pytest.mark.parametrize("how", ENDS)
def test_what_ends_badly_is_said(kernel: Path, how: str) -> None:
    code, theirs = ENDS[how]
    done = run(kernel, how, 0)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]
    found = TROUBLE.findall(done.stdout)
    assert [rank for rank, *_ in found] == ["1", "2"]
    for _, got, peer, direction, mine, came, tag in found:
        assert (int(got), int(peer), int(mine, 16), int(tag, 16)) == (code, 0, of(5, 5000), 0)
        assert int(came, 16) == (theirs or 0)
        if theirs is not None:
            assert int(direction) == 1
