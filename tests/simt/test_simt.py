"""The GPU's kernels on threads: the code that a GPU runs, under ThreadSanitizer.

Each rank is a launch of blocks, each block a few threads of the host with a real barrier, and
"device memory" is the process's. What a GPU adds to that - caches that are not coherent, warps, its
own compiler - is beyond these tests; that a block's threads, blocks and ranks are ordered is not.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import compiled
import pytest
from simulation import SLOT_BYTES, Case, programs, write

from pycoll.algorithms import BUILTIN, get
from pycoll.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    UINT8,
    UINT32,
    UINT64,
    DType,
    ReduceOp,
)
from pycoll.schedule import Algorithm, NotDirect

pytestmark = pytest.mark.native

HERE = Path(__file__).parent
KERNEL, PACKETS, LL, BLOCK, TARGET = (
    f"gpu/kernel/{name}.h" for name in ("kernel", "packets", "ll", "block", "target_simt")
)
RACE = 66  #: exit status of ThreadSanitizer

#: All dtypes, each with one op.
KERNELS: tuple[tuple[DType, ReduceOp], ...] = (
    (INT32, ReduceOp.SUM),
    (FLOAT64, ReduceOp.SUM),
    (FLOAT32, ReduceOp.AVG),
    (FLOAT16, ReduceOp.SUM),
    (BFLOAT16, ReduceOp.AVG),
    (INT8, ReduceOp.MAX),
    (UINT8, ReduceOp.SUM),
    (UINT32, ReduceOp.PROD),
    (INT64, ReduceOp.MIN),
    (UINT64, ReduceOp.SUM),
)
#: Elements: none, one, of part of a word, a line, a unit of 64 bytes, some tiles.
COUNTS = (0, 1, 3, 10, 11, 16, 17, 65, 129, 300)
#: Messages until the flags of packets begin again; PC_LL_FLAG_PERIOD.
PERIOD = (1 << 32) - 1

Change = tuple[str, str, str]  #: a header, a text that is there once, what stands there instead


def driver(kernels: Sequence[tuple[DType, ReduceOp]], *changes: Change) -> Path:
    """Return the driver with these kernels, made of headers with these changes.

    The engine, which no kernel calls, is compiled without a sanitizer.
    """
    for suffix in (".c", ".cc"):
        compiled.require("tsan", suffix)
    include = [f"-I{HERE}", f"-I{compiled.NATIVE}"]
    if changes:
        include.insert(0, f"-I{changed(changes)}")
    c = ("-std=gnu11", "-O0", "-pthread", "-D_GNU_SOURCE", f"-I{compiled.NATIVE}", f"-I{HERE}")
    units = [compiled.Unit(source, c) for source in (*compiled.ENGINE, HERE / "world.c")]
    cxx = (
        *("-std=c++17", "-O1", "-g", "-pthread", "-fwrapv", "-ffp-contract=off"),
        *("-Wall", "-Wextra", *compiled.SANITIZERS["tsan"], *include),
    )
    units.append(compiled.Unit(HERE / "driver.cc", cxx))
    for dtype, op in kernels:
        which = (f"-DPC_KERNEL_DTYPE={dtype.code}", f"-DPC_KERNEL_OP={int(op)}")
        units.append(compiled.Unit(HERE / "entry.cc", (*cxx, *which)))
    return compiled.linked("driver", units, *compiled.SANITIZERS["tsan"])


def changed(changes: Sequence[Change]) -> Path:
    """Return a folder with the headers that changes are made of."""
    texts: dict[str, str] = {}
    for header, old, new in changes:
        text = texts.get(header) or (compiled.NATIVE / header).read_text()
        assert text.count(old) == 1, f"{header}: {old!r}"
        texts[header] = text.replace(old, new)
    name = f"changed-{hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:20]}"
    for header, text in texts.items():
        compiled.kept(name, header, lambda path, text=text: path.write_text(text))
    return compiled.KEPT / name


@pytest.fixture(scope="module")
def every() -> Path:
    return driver(KERNELS)


@pytest.fixture(scope="module")
def one() -> Path:
    return driver(KERNELS[:1])


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a driver on some cases."""

    def run(driver: Path, verb: str, cases: Sequence[Case], *rest: object) -> object:
        write(tmp_path / "cases", cases)
        env = dict(os.environ) | {"TSAN_OPTIONS": f"halt_on_error=1 exitcode={RACE}"}
        command = [driver, verb, tmp_path / "cases", *map(str, rest)]
        return subprocess.run(command, capture_output=True, text=True, timeout=250, env=env)

    return run  # type: ignore[return-value]


def case(drawn: random.Random, number: int, algorithm: Algorithm, size: int, packets: bool) -> Case:
    """Return a call that has something odd about it."""
    c = algorithm.collective
    dtype, op = KERNELS[number % len(KERNELS)]
    if not c.reduces and op is ReduceOp.AVG:
        dtype, op = KERNELS[0]
    count = drawn.choice(COUNTS)
    counts = [count] * c.nblocks(size)
    if c.blocks == "rank":
        counts = [min(count, 65)] * size
        if not c.equal_blocks and drawn.random() < 0.5:
            counts = [drawn.choice((0, 1, count, count // 2)) for _ in counts]
    loaded = programs(algorithm, size, op is ReduceOp.AVG)
    widest, channels = loaded[0].widest, max(len(p.channel_starts) for p in loaded)
    return Case(
        algorithm,
        size,
        dtype,
        op,
        tuple(counts),
        root=drawn.randrange(size) if c.rooted else 0,
        tile=min(drawn.choice((64, 192)), SLOT_BYTES // widest // 64 * 64),
        slots=drawn.choice((2, 4)),
        lanes=1 if channels > 1 else 2,
        packets=packets,
        in_place=c.in_place and drawn.random() < 0.4,
        offset=drawn.choice((0, 0, dtype.itemsize, 1)),
    )


@pytest.mark.parametrize("packets", [False, True], ids=["plain", "packets"])
@pytest.mark.parametrize("size", range(2, 9))
def test_every_algorithm(run: Run, every: Path, size: int, packets: bool) -> None:
    drawn = random.Random(f"{size} {packets}")
    cases = [
        case(drawn, number + size, algorithm, size, packets)
        for number, algorithm in enumerate(BUILTIN)
    ]
    done = run(every, "run", cases)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]
    assert done.stdout == f"{len(cases)} cases\n"


#: Of which nothing has room in shared memory: so it is with Programs for dozens of ranks.
IN_PLACE: Change = (
    KERNEL, "#define PC_PACKAGE_ROOM 12288u", "#define PC_PACKAGE_ROOM 64u"
)  # fmt: skip


def test_packages_that_are_run_where_they_lie(run: Run) -> None:
    drawn = random.Random(1)
    cases = [
        case(drawn, 0, algorithm, 3, packets) for algorithm in BUILTIN for packets in (False, True)
    ]
    cases = [replace(c, dtype=INT32, op=ReduceOp.SUM, offset=0) for c in cases]
    direct = of("allreduce", "two_shot", direct=True)
    cases += [direct, replace(direct, stray=1), of("allreduce", "ring", first=2 * PERIOD - 3)]
    done = run(driver(KERNELS[:1], IN_PLACE), "run", cases)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]


#: Blocks that look for their rank's arrays by themselves.
EACH_LOOKS: Change = (
    KERNEL,
    "        return theirs.in && theirs.out;\n",
    """        return pc__registered(image, call->shared->out, call->shared->out_segment,
                              image->mine.out_first, image->mine.out_count, image->mine.out);
""",
)


@pytest.mark.parametrize("size", [2, 3])
def test_arrays_in_a_segment(run: Run, one: Path, size: int) -> None:
    c = of("allreduce", "two_shot", direct=True, size=size, segments=1)
    cases = [c, replace(c, lanes=4), replace(c, in_graph=True), replace(c, in_place=True)]
    cases += [
        replace(c, stray=1, segments=1),
        replace(c, segments=0),
        replace(c, lanes=2, offset=4),
    ]
    done = run(one, "run", [*cases, *cases])
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]


@pytest.mark.parametrize("size", [2, 3])
def test_a_segment_that_comes_and_goes_while_kernels_run(run: Run, one: Path, size: int) -> None:
    """All blocks of all ranks decide alike, whatever the table is when they begin."""
    c = of("allreduce", "two_shot", direct=True, size=size, segments=2, launches=60, lanes=8)
    done = run(one, "run", [c, c])
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]


def test_blocks_that_look_for_themselves_are_noticed(run: Run) -> None:
    c = of("allreduce", "two_shot", direct=True, segments=2, launches=200, lanes=8, timeout=5.0)
    done = run(driver(KERNELS[:1], EACH_LOOKS), "run", [c])
    assert done.returncode in (1, RACE), done.stderr[:4000]


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_lanes_change_no_bit(run: Run, every: Path, lanes: int) -> None:
    cases = [
        Case(get(name), 3, FLOAT32, ReduceOp.AVG, (count,), lanes=lanes, packets=packets)
        for name in ("ring", "two_shot", "one_shot")
        for count in (0, 5, 200, 1001)
        for packets in (False, True)
    ]
    done = run(every, "run", cases)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]


def has_direct(algorithm: Algorithm, size: int) -> bool:
    try:
        return bool(programs(algorithm, size, False, True))
    except NotDirect:
        return False


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_the_direct_form(run: Run, every: Path, size: int) -> None:
    drawn = random.Random(size)
    cases = []
    for number, algorithm in enumerate(a for a in BUILTIN if has_direct(a, size)):
        c = replace(case(drawn, number, algorithm, size, False), direct=True)
        average = c.op is ReduceOp.AVG  # a dtype of its own for each op: no kernel of another
        widest = max(programs(algorithm, size, average, direct)[0].widest for direct in (0, 1))
        c = replace(c, tile=min(c.tile, SLOT_BYTES // widest // 64 * 64), lanes=1 + number % 2)
        cases += [c, replace(c, stray=number % size)]  # which all ranks must find out
    done = run(every, "run", cases)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]


#: Of elements of 1, 2, 4 and 8 bytes.
WIDTHS = ((UINT8, ReduceOp.SUM), (FLOAT16, ReduceOp.SUM), (INT32, ReduceOp.SUM),
          (FLOAT64, ReduceOp.SUM), (INT64, ReduceOp.MIN))  # fmt: skip


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("dtype", "op"), WIDTHS, ids=lambda x: x.name.lower())
def test_packets_of_every_length(
    run: Run, every: Path, dtype: DType, op: ReduceOp, size: int
) -> None:
    cases = [
        Case(get(("one_shot", "ring")[count % 2]), size, dtype, op, (count,), tile=1024,
             packets=True, launches=2, offset=count % 3 // 2 * dtype.itemsize)
        for count in range(100 // dtype.itemsize + 1)
    ]  # fmt: skip
    done = run(every, "run", cases)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]


def in_pieces(size: int) -> list[Algorithm]:
    """Return algorithms some of whose messages have several chunks."""
    return [a for a in BUILTIN if programs(a, size, False)[0].widest > 1]


@pytest.mark.parametrize("size", [3, 4, 6])
def test_packets_of_pieces_that_lie_in_one_and_do_not(run: Run, every: Path, size: int) -> None:
    """Of a message one end may have its chunks side by side, the other in places of its scratch."""
    cases = []
    for number, algorithm in enumerate(in_pieces(size)):
        for k, count in enumerate((1, 4, 8, 9, 11, 12, 13, 23, 24, 25, 70)):
            dtype, op = WIDTHS[(number + k) % len(WIDTHS)]
            n = algorithm.collective.nblocks(size)
            counts = (count * (size if n == 1 else 1),) * n
            cases.append(
                Case(algorithm, size, dtype, op, counts, tile=(64, 128, 1024)[k % 3],
                     lanes=1 + k % 2 if len(programs(algorithm, size, False)[0].channel_starts) == 1
                     else 1, packets=True, launches=2, root=k % size if
                     algorithm.collective.rooted else 0)
            )  # fmt: skip
    assert len(cases) > 40
    done = run(every, "run", cases)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]


#: Flags begin again somewhere in the call.
WRAP = [
    Case(get("ring"), 3, INT32, ReduceOp.SUM, (200,), packets=True, first=2 * PERIOD - k)
    for k in range(1, 7)
]
WRAP += [
    Case(get(name), 4, INT32, ReduceOp.SUM, (200,), packets=True, first=2 * PERIOD - 2)
    for name in ("one_shot", "two_shot")
]
#: They do between the two: 3 launches of 4 messages each, so short that they leave in its slot most
#: of what lay there a period ago.
SHORT_THEN_LONG = [
    Case(
        get("ring"), 3, INT32, ReduceOp.SUM, (n,), packets=True, first=2 * PERIOD - 12, timeout=5.0
    )
    for n in (3, 200)
]


def test_flags_of_packets_begin_again(run: Run, one: Path) -> None:
    plain = [replace(c, packets=False) for c in WRAP]  # which move on the same counts
    for order in (WRAP, plain + WRAP, SHORT_THEN_LONG):
        done = run(one, "run", order)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]


def test_slots_of_packets_are_cleaned(run: Run) -> None:
    change = (PACKETS, "        pc__clean(call, f);", "        (void)f;")
    uncleaned = driver(KERNELS[:1], change)
    # Ranks that happen to keep in step read nothing that is left over.
    ends = (run(uncleaned, "run", SHORT_THEN_LONG).returncode for _ in range(20))
    assert next(filter(None, ends), 0) == 1


#: Algorithms in which data goes one way: nothing but credit holds a sender back, so each wait and
#: each barrier is needed. Where everybody waits for everybody's data, that is credit enough.
ONE_WAY = (
    ("allreduce", "ring"),
    ("allreduce", "double_binary_tree"),
    ("broadcast", "chain"),
    ("broadcast", "two_shot"),
    ("reduce", "direct"),
    ("allgather", "ring"),
    ("reduce_scatter", "ring"),
    ("gather", "binomial"),
    ("scatter", "direct"),
)
#: With packets, in which only waiting in vain tells: a word that a slow reader needs is gone.
ONE_WAY_PACKETS = (("broadcast", "chain"), ("reduce", "chain"), ("gather", "binomial"))
#: Of what a thread of a kernel reads: another is slow.
SLOW: tuple[Change, ...] = (
    (TARGET, "{\n    pc_vector x;\n    const unsigned __int128 whole",
     "{\n    pc_vector x;\n    const struct timespec pause = {0, 200000};\n"
     "    if (pc_simt_self.index % 2)\n        nanosleep(&pause, nullptr);\n"
     "    const unsigned __int128 whole"),
)  # fmt: skip


#: Of the threads of a block that wait in vain: the first one says so later than the others.
LATE: Change = (
    KERNEL, "    int code = pc__verdict(call);\n",
    "    int code = pc__verdict(call);\n"
    "    const struct timespec pause = {1, 0};\n"
    "    if (code == PC_TIMEDOUT && pc__thread() == 0)\n        nanosleep(&pause, nullptr);\n",
)  # fmt: skip


def of(collective: str, name: str, **options: object) -> Case:
    """Return a call of several tiles: slots are used again within it."""
    algorithm = next(a for a in BUILTIN if (a.collective.name, a.name) == (collective, name))
    size, n = 3, algorithm.collective.nblocks(3)
    counts = (size * 16 * 6,) if n == 1 else (16 * 6,) * n
    made = Case(algorithm, size, INT32, ReduceOp.SUM, counts, timeout=5.0)
    return replace(made, **options)  # type: ignore[arg-type]


def survives(run: Run, driver: Path, c: Case, kind: str, number: int) -> bool:
    """Whether the call goes well each time without a line: once, its threads may be lucky."""
    for _ in range(5):
        end = run(driver, "mutate", [c], kind, number).returncode
        assert end in (0, 1, RACE)
        if end:
            return False
    return True


def survivors(run: Run, driver: Path, c: Case, kinds: Sequence[str]) -> list[str]:
    """Return the lines of some kinds without which the call goes well, and how many were tried."""
    counted = dict(line.split() for line in run(driver, "count", [c]).stdout.splitlines())
    lines = [(kind, n) for kind in kinds for n in range(int(counted[kind]))]
    assert lines, counted
    return [f"{kind} {n}" for kind, n in lines if survives(run, driver, c, kind, n)]


@pytest.mark.parametrize(("collective", "name"), ONE_WAY)
def test_each_barrier_and_wait_is_needed(run: Run, one: Path, collective: str, name: str) -> None:
    kinds = ("sync", "fence", "message", "credit", "local")
    assert survivors(run, one, of(collective, name), kinds) == []


@pytest.mark.parametrize("name", ["two_shot", "one_shot", "recursive_doubling"])
def test_each_message_is_waited_for(run: Run, one: Path, name: str) -> None:
    assert survivors(run, one, of("allreduce", name), ["message"]) == []


@pytest.mark.parametrize(("collective", "name"), ONE_WAY_PACKETS)
def test_each_barrier_and_credit_of_packets_is_needed(run: Run, collective: str, name: str) -> None:
    slow = driver(KERNELS[:1], *SLOW)
    c = of(collective, name, packets=True, timeout=1.5)
    assert run(slow, "run", [replace(c, timeout=60.0)]).returncode == 0
    assert survivors(run, slow, c, ("sync", "credit")) == []


@pytest.mark.parametrize(
    ("collective", "name"), [("allreduce", "two_shot"), ("allgather", "direct")]
)
def test_a_rank_waits_until_its_arrays_are_its_own(
    run: Run, one: Path, collective: str, name: str
) -> None:
    c = of(collective, name, direct=True)
    assert run(one, "run", [c]).returncode == 0
    assert survivors(run, one, c, ["done"]) == []


def test_slots_take_turns(run: Run, one: Path) -> None:
    assert run(one, "mutate", [of("allreduce", "ring")], "rotation", 0).returncode in (1, RACE)


#: A change of the kernels, and what finds it.
CHANGES: dict[str, tuple[Change, bool]] = {
    "release": (
        (TARGET, "pc_simt_self.fenced ? __ATOMIC_RELEASE : __ATOMIC_RELAXED",
         "__ATOMIC_RELAXED"), False,
    ),
    "data is read before its slot is free": (
        (TARGET, "pc__store_acknowledged(Block *, uint64_t *to, uint64_t x)\n{\n"
         "    __atomic_store_n(to, x, __ATOMIC_RELEASE);",
         "pc__store_acknowledged(Block *, uint64_t *to, uint64_t x)\n{\n"
         "    __atomic_store_n(to, x, __ATOMIC_RELAXED);"), False,
    ),
    "acquire": (
        (TARGET, "pc__load_acquire(const uint64_t *from)\n{\n"
         "    return __atomic_load_n(from, __ATOMIC_ACQUIRE);",
         "pc__load_acquire(const uint64_t *from)\n{\n"
         "    return __atomic_load_n(from, __ATOMIC_RELAXED);"), False,
    ),
    "release between channels": (
        (TARGET, "pc__store_release_local(uint64_t *to, uint64_t x)\n{\n"
         "    __atomic_store_n(to, x, __ATOMIC_RELEASE);",
         "pc__store_release_local(uint64_t *to, uint64_t x)\n{\n"
         "    __atomic_store_n(to, x, __ATOMIC_RELAXED);"), False,
    ),
    "acquire between channels": (
        (TARGET, "pc__load_acquire_local(const uint64_t *from)\n{\n"
         "    return __atomic_load_n(from, __ATOMIC_ACQUIRE);",
         "pc__load_acquire_local(const uint64_t *from)\n{\n"
         "    return __atomic_load_n(from, __ATOMIC_RELAXED);"), False,
    ),
    "barrier behind the package": (
        (BLOCK, "    pc__barrier(shared, false);\n    struct pc_block_image *block",
         "    struct pc_block_image *block"), False,
    ),
    "barrier behind what has moved in it": (
        (BLOCK, "    call->over = pc__barrier(shared, call->dead || call->over);\n"
         "    return code;", "    return code;"), False,
    ),
    "barrier behind the last counts": (
        (BLOCK, "const bool failed = pc__barrier(shared, call.dead || call.over);",
         "const bool failed = call.dead || call.over;"), False,
    ),
    "signatures before the fence": (
        (KERNEL, "    bool covered = i->flags & PC_FLAG_FENCE;",
         "    bool covered = false;"), False,
    ),
    "counts are put back": (
        (BLOCK, "    pc__give_package(&call);\n", ""), False,
    ),
    "barrier behind the addresses": (
        (KERNEL, "    call->over = pc__barrier(call->shared, call->dead);\n    return !call->over;",
         "    return !call->over;"), False,
    ),
    "one table of addresses": (
        (KERNEL, "turn = call->turn ^= 1;", "turn = 0;"), False,
    ),
    "barrier of the first warp": (
        (KERNEL, "pc__warp_barrier(call->shared);", ";"), False,
    ),
    "READY is waited for": (
        (KERNEL, "        if (count >= n)\n", "        if (count >= n || n)\n"), False,
    ),
    "flags that change": (
        (PACKETS, "return pc__in_period(n) + 1;", "return n < n ? 0 : 1;"), True,
    ),
    "a packet is stored whole": (
        (TARGET, "    __atomic_store_n((unsigned __int128 *)to, whole, __ATOMIC_RELAXED);\n",
         "    (void)whole;\n    __atomic_store_n(&to->y, x.y, __ATOMIC_RELAXED);\n"
         "    sched_yield();\n    __atomic_store_n(&to->x, x.x, __ATOMIC_RELAXED);\n"), True,
    ),
    "a packet is loaded whole": (
        (TARGET, "    memcpy(&x, &whole, sizeof x);\n",
         "    memcpy(&x, &whole, sizeof x);\n    sched_yield();\n"
         "    x.y = __atomic_load_n(&from->y, __ATOMIC_RELAXED);\n"), True,
    ),
    "each packet is waited for": (
        (LL, "        wrong |= (uint32_t)(v[e].y >> 32) ^ flag;\n", ""), True,
    ),
    "each piece has packets of its own": (
        (LL, "        before = end;\n", ""), True,
    ),
    "the first packet has less data": (
        (LL, "u.left = u.number ? bytes : 8;", "u.left = bytes;"), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found(run: Run, change: str) -> None:
    text, packets = CHANGES[change]
    in_pieces = of("allreduce", "halving_doubling", size=4, lanes=2, packets=packets)
    direct = of("allreduce", "two_shot", direct=True)
    channels = of("allreduce", "hierarchical_tree", size=4)
    cases = [of("allreduce", "ring", packets=packets), in_pieces, direct, channels]
    assert run(driver(KERNELS[:1], text), "run", cases).returncode in (1, RACE)


TROUBLE = re.compile(
    r"rank (\d+): code (-\d+) block (\d+) instruction (\d+) peer (-?\d+) "
    r"slot (\d+) want (\d+) got (\d+)"
)


def troubles(text: str) -> dict[int, list[int]]:
    """Return what each rank says: code, block, instruction, peer, slot, want, got."""
    return {int(x[0]): [int(y) for y in x[1:]] for x in TROUBLE.findall(text)}


TIMEDOUT, MISMATCH, ABORTED = -6, -7, -8


@pytest.mark.parametrize("packets", [False, True], ids=["plain", "packets"])
@pytest.mark.parametrize(
    ("verb", "seconds", "code"),
    [("abort", 60.0, ABORTED), ("alone", 0.5, TIMEDOUT), ("alone", 1e-6, TIMEDOUT)],
)
def test_a_kernel_that_waits_in_vain_ends(
    run: Run, one: Path, verb: str, seconds: float, code: int, packets: bool
) -> None:
    c = of("broadcast", "chain", packets=packets, timeout=seconds)
    done = run(one, verb, [c])
    assert done.returncode == 0, done.stderr[:4000]
    found = troubles(done.stdout)
    assert set(found) == {1, 2}
    for rank, (why, block, instruction, peer, slot, want, got) in found.items():
        assert why == code
        assert (block, peer, slot, want, got) == (0, rank - 1, 0, 1, 0)
        op = c.programs[rank].instructions[instruction].op.name
        assert op == ("REDUCE_COPY" if packets else "WAIT")


@pytest.mark.parametrize("changes", [(), (LATE,)], ids=["any thread", "not the first"])
def test_a_rank_that_does_not_tell_its_arrays_is_named(
    run: Run, changes: tuple[Change, ...]
) -> None:
    """Rank 0 is blamed, and not a rank that waits for rank 0 itself, whatever thread says it."""
    c = of("allreduce", "two_shot", direct=True, timeout=5.0)
    found = troubles(run(driver(KERNELS[:1], *changes), "alone", [c]).stdout)
    assert {rank: what[:1] + what[2:4] for rank, what in found.items()} == {
        rank: [TIMEDOUT, (1 << 32) - 1, 0] for rank in (1, 2)
    }


@pytest.mark.parametrize("count", [288, 1, 0], ids=lambda count: f"{count} elements")
@pytest.mark.parametrize("packets", [False, True], ids=["plain", "packets"])
@pytest.mark.parametrize("name", ["ring", "one_shot"])
def test_messages_of_another_call_are_refused(
    run: Run, one: Path, name: str, packets: bool, count: int
) -> None:
    c = of("allreduce", name, packets=packets, foreign=1, launches=1, timeout=5.0, counts=(count,))
    done = run(one, "run", [c])
    assert done.returncode == 1
    found = troubles(done.stderr)
    assert MISMATCH in {what[0] for what in found.values()}, done.stderr


def test_only_the_seal_tells_that_packets_are_of_another_call(run: Run) -> None:
    """Flags count messages, which these ranks do alike: without a look at the seal all is well."""
    blind = (
        (LL, "u.number ? 0 : (uint32_t)v[0].y ^ seal", "0 * seal"),
        # Who waits for other packets looks there, too.
        ("gpu/kernel/packets.h", "(uint32_t)first.y != pc__seal(call)", "call == NULL"),
    )
    c = of("allreduce", "one_shot", packets=True, foreign=1, launches=1)
    assert run(driver(KERNELS[:1], *blind), "run", [c]).returncode == 0


@pytest.mark.parametrize("packets", [False, True], ids=["plain", "packets"])
@pytest.mark.parametrize("name", ["ring", "one_shot", "two_shot"])
def test_messages_that_come_the_other_way_are_refused(
    run: Run, one: Path, name: str, packets: bool
) -> None:
    """Rank 1 and who hears from it wait for what never comes: packets, or the count of a line."""
    c = of("allreduce", name, packets=packets, otherwise=1, launches=1, timeout=5.0)
    done = run(one, "run", [c])
    assert done.returncode == 1
    found = {rank: what[0] for rank, what in troubles(done.stderr).items()}
    told = (1, 2) if name == "ring" else (0, 1, 2)  # rank 0 of a ring waits for rank 2
    assert {found[rank] for rank in told} == {MISMATCH}, done.stderr


#: The forms that messages go in; each compares signatures in places of its own.
SALTED = {
    "plain": of("allreduce", "ring"),
    "packets": of("allreduce", "ring", packets=True),
    "direct": of("allreduce", "two_shot", direct=True),
    "astray": of("allreduce", "two_shot", direct=True, stray=1),
}


@pytest.mark.parametrize("in_graph", [False, True], ids=["launched", "replayed"])
@pytest.mark.parametrize("form", SALTED)
def test_ranks_that_refused_the_same_calls_are_in_step(
    run: Run, one: Path, form: str, in_graph: bool
) -> None:
    salts = (0x9E3779B97F4A7C15,) * 3
    c = replace(SALTED[form], salts=salts, in_graph=in_graph)
    done = run(one, "run", [c, replace(c, salts=()), c])
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]


@pytest.mark.parametrize("in_graph", [False, True], ids=["launched", "replayed"])
@pytest.mark.parametrize("form", SALTED)
def test_a_rank_that_alone_refused_a_call_is_out_of_step(
    run: Run, one: Path, form: str, in_graph: bool
) -> None:
    c = replace(SALTED[form], salts=(0, 0x9E3779B97F4A7C15, 0), in_graph=in_graph, launches=1)
    done = run(one, "run", [c])
    assert done.returncode == 1
    found = troubles(done.stderr)
    assert MISMATCH in {what[0] for what in found.values()}, done.stderr


# ---- pacing


def paced(bytes_per_second: int) -> Change:
    """Return the change by which kernels wait for a link of that speed."""
    return (
        KERNEL,
        "#define PC_KERNEL_H\n",
        f"#define PC_KERNEL_H\n#define PC_PACE {bytes_per_second}ull\n",
    )


@pytest.mark.parametrize("packets", [False, True], ids=["plain", "packets"])
def test_paced_kernels_do_the_same(run: Run, packets: bool) -> None:
    drawn = random.Random(3)
    cases = [case(drawn, 0, algorithm, 3, packets) for algorithm in BUILTIN]
    cases = [replace(c, dtype=INT32, op=ReduceOp.SUM, offset=0) for c in cases]
    direct = of("allreduce", "two_shot", direct=True)
    cases += [direct, replace(direct, stray=1), replace(direct, multicast=1)]
    done = run(driver(KERNELS[:1], paced(1_000_000)), "run", cases)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("two_shot", {"packets": False}),
        ("two_shot", {"packets": True}),
        ("two_shot", {"direct": True}),
        ("one_shot", {"packets": True, "counts": (3,)}),
    ],
    ids=["plain", "packets", "direct", "one packet"],
)
def test_a_link_that_is_too_slow_for_the_deadline_ends_at_it(
    run: Run, one: Path, algorithm: str, options: dict[str, object]
) -> None:
    """384 of 1152 B for each of two peers, and so in the second half: over 100 s at 10 B/s.

    A packet of 16 B takes over 2 s, too. It is there before the link has brought it, so that no
    rank waits for any packet: what waits for the link itself must end.
    """
    c = of("allreduce", algorithm, timeout=1.0, launches=1, **options)
    done = run(one, "run", [c])
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]
    done = run(driver(KERNELS[:1], paced(10)), "run", [c])
    assert done.returncode == 1, done.stderr[:4000]
    codes = [what[0] for what in troubles(done.stderr).values()]
    assert codes == [TIMEDOUT] * c.size, done.stderr[:4000]
