"""The stand-in for libibverbs reports what real verbs do, and what a test does to its network.

``rxe.txt`` is what the driver printed on Soft-RoCE (Linux 6.1, rdma-core 44); a test in tests/rdma
shows that it still does.
"""

from __future__ import annotations

import contextlib
import difflib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import compiled
import fakeverbs_library
import pytest
from fabric import Fabric, Kind

pytestmark = pytest.mark.skipif(bool(fakeverbs_library.lack()), reason=fakeverbs_library.lack())

HERE = Path(__file__).parent
RXE = (HERE / "rxe.txt").read_text()
SCENARIOS = [line for line in RXE.splitlines() if not line.startswith(" ")]
GID = {"rxe": "1", "mlx5": "3"}  #: the index of the RoCE v2 address in IPv4

#: What a ConnectX does otherwise, by the manual pages and rdma-core's mlx5 provider.
MLX5 = """\
-  bad lkey: 0=local QP operation error 3=Work Request Flushed Error
+  bad lkey: 0=local protection error 3=Work Request Flushed Error
-  receive too small, sender: 1=remote operation error
-  receiver: 100=local QP operation error 101=Work Request Flushed Error
+  receive too small, sender: 1=remote invalid request error
+  receiver: 100=local length error 101=Work Request Flushed Error
-  on it: sends come back, receives do not
+  on it: sends come back, receives too
-  after its QP: 1 more
+  after its QP: 0 more
-  events: sender 0, receiver 0
+  events: sender 0, receiver 1
+  local access violation work queue error, of its QP 1
-  a QP that takes no more says so: 0
+  a QP that takes no more says so: 1
"""


@pytest.fixture
def fabric(tmp_path: Path):
    with Fabric(tmp_path / "fabric", fakeverbs_library.built()) as fabric:
        yield fabric


def environment(
    fabric: Fabric, options: dict[str, object], sanitizer: str = "plain"
) -> dict[str, str]:
    """Return what the driver needs: the stand-in, and commands that bend the network."""
    control = f"{sys.executable} {HERE / 'fabric.py'} {fabric.path}"
    commands = {
        "CUT": "cut fake0 fake1",
        "HEAL": "heal fake0 fake1",
        "DOWN": "down fake1",
        "UP": "up fake1",
    }
    # The commands are children of the driver, and want the library without a sanitizer.
    control = f"LD_LIBRARY_PATH={fabric.library} {control}"
    return {
        **fabric.environment(fakeverbs_library.built(sanitizer), **options),
        "PATH": str(Path(shutil.which("cc") or "").parent),
        **{name: f"{control} {arguments}" for name, arguments in commands.items()},
    }


def drive(
    fabric: Fabric, *scenarios: str, sanitizer: str = "plain", code: int = 0, **options: object
) -> str:
    """Run the driver; returns what it says, or what it complains of if it is to fail."""
    options = {"like": "rxe"} | options
    gid = GID[str(options["like"])]
    done = subprocess.run(
        [str(fakeverbs_library.driver(sanitizer)), "fake0", "fake1", gid, *scenarios],
        env=environment(fabric, options, sanitizer),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def drive_all(fabric: Fabric, **options: object) -> str:
    return "".join(drive(fabric, name, **options) for name in SCENARIOS)


def test_same_as_on_soft_roce(fabric: Fabric) -> None:
    assert drive_all(fabric) == RXE
    assert fabric.opened() == [] or not any(one.alive for one in fabric.opened())


def test_what_other_devices_do_otherwise(fabric: Fabric) -> None:
    said = drive_all(fabric, like="mlx5")
    lines = difflib.unified_diff(RXE.splitlines(), said.splitlines(), lineterm="", n=0)
    changes = [line for line in lines if line[:3] not in ("---", "+++") and line[:2] != "@@"]
    assert "\n".join(changes) + "\n" == MLX5


@pytest.mark.parametrize("sanitizer", ["tsan", "asan"])
def test_no_race_or_stray_access(fabric: Fabric, sanitizer: str) -> None:
    compiled.require(sanitizer)
    assert drive_all(fabric, sanitizer=sanitizer) == RXE
    drive(fabric, "stream", "lines", sanitizer=sanitizer)
    drive(fabric, "slots", "overtaking", sanitizer=sanitizer, jitter=100, like="mlx5")


def test_a_line_is_seen_whole(fabric: Fabric) -> None:
    assert drive(fabric, "lines") == "lines\n  5000 lines\n"


def test_a_writer_that_is_killed_hurts_nobody_else(fabric: Fabric) -> None:
    assert drive(fabric, "killed_writing") == "killed_writing\n  all well\n"
    assert all(one.device == "fake0" and not one.alive for one in fabric.opened())


def test_port_by_both_interfaces(fabric: Fabric) -> None:
    assert drive(fabric, "port", abi="compat") == drive(fabric, "port", abi="extended")


def test_infiniband(fabric: Fabric) -> None:
    assert "link layer 1" in drive(fabric, "port", link="infiniband")


def test_a_device_without_shared_receive_queues(fabric: Fabric) -> None:
    said = drive(fabric, "sharing", code=1, srq=0)
    assert said == "ibv_create_srq: Operation not supported\n"


def test_slots_are_free_when_polled(fabric: Fabric) -> None:
    assert drive(fabric, "slots").splitlines() == [
        "slots",
        "  sends: 64, before it is polled: 0",
        "  polled: 1=success/1",
        "  then: 64",
        "  receives: 64",
    ]


def test_overflow_of_a_completion_queue_ends_the_process(fabric: Fabric) -> None:
    said = drive(fabric, "overflow", code=-6)
    assert said == "fakeverbs: fake0: a completion queue of 1 overflowed\n"


def test_limit_of_locked_memory(fabric: Fabric) -> None:
    said = drive(fabric, "order", code=1, memlock=3 << 19)
    assert said == "ibv_reg_mr: Cannot allocate memory\n"


def test_calls_fail_on_request(fabric: Fabric) -> None:
    said = drive(fabric, "order", code=1, fail="create_qp:2")
    assert said == "ibv_create_qp: Cannot allocate memory\n"


def orders(fabric: Fabric, seed: int, jitter: int) -> list[int]:
    said = drive(fabric, "overtaking", seed=seed, jitter=jitter)
    return [int(word) for word in said.split(":")[1].split()]


def test_queue_pairs_overtake_one_another(fabric: Fabric) -> None:
    found = [orders(fabric, seed, 2000) for seed in range(3)]
    for order in found:
        assert sorted(order) == list(range(32))
        assert [n for n in order if n % 2] == list(range(1, 32, 2))
        assert [n for n in order if not n % 2] == list(range(0, 32, 2))
    assert any(order != sorted(order) for order in found)


def message(fabric: Fabric) -> list[str]:
    return [line.strip() for line in drive(fabric, "message").splitlines()[1:]]


def test_whole_message(fabric: Fabric) -> None:
    assert message(fabric) == ["sender: 2=success", "landed: 40000 bytes, line 1", "receiver: 1"]
    assert fabric.total("rnr") == 0


RETRIES = "transport retry counter exceeded"


@pytest.mark.parametrize(
    ("what", "seen"),
    [
        ({"count": Kind.WRITE, "packets": True, "after": 3}, (1, 12288, 0, 0)),
        ({"count": Kind.WRITE, "after": 1}, (1, 40000, 0, 0)),
        # All data acknowledged but the line: there are ten packets, and the last is number ten.
        ({"count": Kind.WRITE_IMM, "after": 1, "drop_back": Kind(0)}, (0, 40000, 1, 1)),
        (
            {"count": Kind.WRITE, "after": 1, "drop": Kind(0), "drop_back": Kind.RESPONSES},
            (1, 40000, 1, 1),
        ),
    ],
    ids=["in the middle", "before the line", "after the line", "all landed, nobody knows"],
)
def test_fuse(fabric: Fabric, what: dict, seen: tuple[int, int, int, int]) -> None:
    failed, landed, line, received = seen
    fabric.fuse("fake0", "fake1", **what)
    sender = f"sender: {failed}={RETRIES}" if failed else "sender: 2=success"
    assert message(fabric) == [
        sender,
        f"landed: {landed} bytes, line {line}",
        f"receiver: {received}",
    ]
    assert fabric.blown("fake0", "fake1") == 1


def test_line_landed_and_its_acknowledgement_lost(fabric: Fabric) -> None:
    fabric.cut("fake1", "fake0", Kind.ACK)
    assert message(fabric) == [
        f"sender: 1={RETRIES}",
        "landed: 40000 bytes, line 1",
        "receiver: 1",
    ]
    counts = fabric.counts("fake1")
    assert counts["duplicates"] > 0
    assert counts["dropped"] > 0


def test_stream_over_a_flapping_link(fabric: Fabric) -> None:
    # First what lands is acknowledged to nobody, until it lands again; half way all is cut.
    fabric.cut("fake1", "fake0", Kind.RESPONSES)
    fabric.fuse("fake0", "fake1", after=1500, count=Kind.WRITE_IMM)
    command = [str(fakeverbs_library.driver()), "fake0", "fake1", "1", "stream"]
    running = subprocess.Popen(
        command,
        env=environment(fabric, {"like": "rxe"}),
        stdout=subprocess.PIPE,
        text=True,
    )

    def until(what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not what():
            assert running.poll() is None
            assert time.monotonic() < deadline, fabric.counts("fake1")

    with running, contextlib.ExitStack() as stack:
        stack.callback(running.kill)
        until(lambda: fabric.counts("fake1")["duplicates"] > 0)
        fabric.heal("fake1", "fake0", Kind.RESPONSES)
        until(lambda: fabric.blown("fake0", "fake1") == 1)
        dropped = fabric.total("dropped")
        until(lambda: fabric.total("dropped") > dropped)
        fabric.heal_both("fake0", "fake1")
        assert running.communicate()[0] == "stream\n  receiver: 0 more\n  3000 messages\n"
    assert running.returncode == 0
    assert fabric.total("failed") == 0


def test_objects_that_a_process_holds(fabric: Fabric) -> None:
    command = [str(fakeverbs_library.driver()), "fake0", "fake1", "1", "hold"]
    running = subprocess.Popen(
        command,
        env=environment(fabric, {"like": "rxe"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert [running.stdout.readline(), running.stdout.readline()] == ["hold\n", "holding\n"]
    of_one = {"pds": 1, "mrs": 1, "mr_bytes": 1 << 20, "channels": 1, "cqs": 1, "qps": 1, "wrs": 0}
    of_one |= {"relaxed": 0, "gpu_mrs": 0, "srqs": 0, "receives": 0}
    two = {"contexts": 2} | {name: 2 * n for name, n in of_one.items()}
    assert fabric.objects(running.pid) == fabric.objects() == two
    assert [one.device for one in fabric.opened()] == ["fake0", "fake1"]
    running.communicate()
    assert fabric.opened() == []
    assert fabric.total("unclosed") == 0


def test_slow_and_isolated_ports(fabric: Fabric) -> None:
    fabric.isolate("fake1")
    assert message(fabric)[0] == f"sender: 1={RETRIES}"
    fabric.rejoin("fake1")
    fabric.slow("fake0", 10_000_000)
    assert message(fabric)[0] == "sender: 2=success"


def test_hosts_have_devices_of_their_own(fabric: Fabric) -> None:
    drive(fabric, "order", host=3)
    assert fabric.counts("3/fake0")["tx_packets"] > 0
    assert fabric.counts("fake0")["tx_packets"] == 0


def test_not_a_fabric(tmp_path: Path) -> None:
    (tmp_path / "fabric").write_text("something else")
    with pytest.raises(OSError, match="another version"):
        Fabric(tmp_path / "fabric", fakeverbs_library.built())
