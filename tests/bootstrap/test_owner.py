"""The key of the user who runs a job, and who joins with it, without it, or in another's name."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ports
import pytest

from pycoll.bootstrap import environment, rendezvous, route, store, torchrun, user_key
from pycoll.bootstrap.base import Bootstrap
from pycoll.bootstrap.rendezvous import Star
from pycoll.config import Config
from pycoll.errors import BootstrapError

SECONDS = 60.0  #: generous: reached only by a hang
ROOT = Path(__file__).parents[2]
NOBODY = 65534


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(user_key, "FALLBACKS", (tmp_path / "fallback",))


def path(folder: Path) -> Path:
    return folder / f"pycoll-key-{os.geteuid()}"


def test_a_key_is_made_once_for_its_user_alone(tmp_path):
    folder = tmp_path / "a" / "cache"
    first = user_key.key(folder)
    assert user_key.key(folder) == first
    assert len(first) == user_key.KEY_BYTES
    assert stat.S_IMODE(path(folder).stat().st_mode) == 0o600
    assert [entry.name for entry in folder.iterdir()] == [path(folder).name]
    assert user_key.key(tmp_path / "b") != first


def test_ranks_that_make_the_key_at_once_have_the_same(tmp_path):
    for i in range(20):
        with ThreadPoolExecutor(8) as pool:
            keys = [pool.submit(user_key.key, tmp_path / str(i)) for _ in range(8)]
        assert len({key.result() for key in keys}) == 1


def readable(at: Path) -> None:
    at.write_bytes(bytes(32))
    at.chmod(0o640)


def short(at: Path) -> None:
    at.write_bytes(b"short")
    at.chmod(0o600)


def linked(at: Path) -> None:
    short(at.with_suffix(".other"))
    at.symlink_to(at.with_suffix(".other"))


WRONG = {
    "readable": (readable, r"others may read it \(mode 640, want 600\)"),
    "short": (short, r"it has not 32 bytes"),
    "link": (linked, r"Too many levels of symbolic links"),
    "pipe": (os.mkfifo, r"it is no file"),
    "folder": (Path.mkdir, r"it is no file"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_others_may_have_put_there_is_never_taken_for_a_key(tmp_path, monkeypatch, wrong):
    make, message = WRONG[wrong]
    make(path(tmp_path))
    instead = user_key.key(tmp_path)  # in another folder, and there is no waiting for a pipe's end
    assert (
        instead
        == user_key.key(tmp_path)
        == user_key._read(path(tmp_path / "fallback"), os.geteuid())
    )
    monkeypatch.setattr(user_key, "FALLBACKS", ())
    with pytest.raises(
        BootstrapError, match=rf"^there is no place for a key .*{message}\): set PYCOLL_SECRET"
    ):
        user_key.key(tmp_path)


def test_a_folder_that_cannot_be(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert user_key.key(tmp_path / "file" / "cache") == user_key.key(
        Path("/proc/cache/" + 5000 * "a")
    )
    monkeypatch.setattr(user_key, "FALLBACKS", ())
    with pytest.raises(BootstrapError, match=r"^there is no place .*Not a directory"):
        user_key.key(tmp_path / "file" / "cache")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_key_of_another_user_is_not_taken(tmp_path):
    path(tmp_path).write_bytes(bytes(32))
    path(tmp_path).chmod(0o600)
    os.chown(path(tmp_path), NOBODY, NOBODY)
    assert user_key.key(tmp_path) == user_key._read(path(tmp_path / "fallback"), os.geteuid())


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.2", "::1"])
def test_what_is_here(address):
    assert route.is_here(address)


@pytest.mark.parametrize("address", ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"])
def test_what_is_elsewhere(address):
    assert not route.is_here(address)


# Where the tests run as root the second user is a real one; else only the key is another.


def torchrun_of(port: int, rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYCOLL_ADDRESS": f"127.0.0.1:{port}",
    }


def slurm_of(port: int, rank: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(port),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_PROCID": str(rank),
        "PYCOLL_ADDRESS": f"127.0.0.1:{port}",
    }


def plain(port: int, rank: int) -> dict[str, str]:
    return {
        "PYCOLL_RANK": str(rank),
        "PYCOLL_SIZE": "2",
        "PYCOLL_ADDRESS": f"127.0.0.1:{port}",
    }


LAUNCHERS = {"environment": plain, "torchrun": torchrun_of, "slurm": slurm_of}

HONEST = """
import pycoll
comm = pycoll.init()
print(comm.rank, comm.allgather_object(f"honest {comm.rank}"))
"""

#: Joins in every way that it knows, and gives the others something that runs where it is loaded.
STRANGER = """
import encodings.idna, hashlib, os, sys, time
import pycoll
from pycoll.bootstrap import rendezvous
from pycoll.bootstrap.base import Bootstrap
from pycoll.bootstrap.member import Member
from pycoll.errors import BootstrapError

class Evil:
    def __reduce__(self):
        return os.system, ("touch " + sys.argv[1],)

# All is imported before another user may be unable to read it.
with pycoll.init(Bootstrap("single", rendezvous.Star(0, 1, (Member.me(),)), 30.0)) as alone:
    alone.allgather_object(1)
rendezvous.is_here("127.0.0.1")
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
try:
    comm = pycoll.init(timeout=60)
    comm.allgather_object(Evil())
except BootstrapError as error:
    print("refused:", error)
port = os.environ["PYCOLL_ADDRESS"].rpartition(":")[2]
known = [
    b"pycoll loopback 127.0.0.1:" + port.encode(),
    b"pycoll torchrun secret  127.0.0.1 " + port.encode(),
    b"pycoll slurm loopback  " + port.encode() + b" 0",
]
for secret in [hashlib.sha256(name).digest() for name in known] if sys.argv[2] == "1" else []:
    try:
        rendezvous.join([("127.0.0.1", int(port))], 1, 2, secret, time.monotonic() + 60, secret)
        print("joined")
    except BootstrapError as error:
        print("refused:", error)
"""


@pytest.fixture
def cache() -> Iterator[str]:
    """A folder of the second user's, whom the owner of the job's key does not trust."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []
    yield made
    for process in made:
        process.kill()
        process.communicate()


@pytest.fixture
def port() -> int:
    return ports.free()


def started(program: str, *args: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *args],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.native
@pytest.mark.parametrize("by", LAUNCHERS)
def test_another_user_cannot_join(tmp_path, processes, port, cache, by):
    """The job refuses the stranger, waits for its own rank, and goes on."""
    variables, evidence = LAUNCHERS[by], tmp_path / "evidence"
    zero = started(HONEST, **variables(port, 0))
    processes.append(zero)
    stranger = started(STRANGER, str(evidence), "1", PYCOLL_CACHE=cache, **variables(port, 1))
    processes.append(stranger)
    said, trouble = stranger.communicate(timeout=SECONDS)
    assert [line.partition(" turned us away")[0] for line in said.splitlines()] == [
        f"refused: rank 1: 127.0.0.1:{port}: rank 0"
    ] * 4, said + trouble
    one = started(HONEST, **variables(port, 1))
    processes.append(one)
    want = ["honest 0", "honest 1"]
    for rank, process in enumerate((zero, one)):
        out, err = process.communicate(timeout=SECONDS)
        assert out == f"{rank} {want}\n", err
    assert not evidence.exists()


@pytest.mark.native
@pytest.mark.parametrize("by", LAUNCHERS)
def test_another_user_cannot_be_rank_0(tmp_path, processes, port, cache, by):
    variables, evidence = LAUNCHERS[by], tmp_path / "evidence"
    processes += [
        started(STRANGER, str(evidence), "0", PYCOLL_CACHE=cache, **variables(port, 0)),
        started(HONEST, **variables(port, 1)),
    ]
    out, err = processes[1].communicate(timeout=SECONDS)
    assert out == ""
    assert "BootstrapError: rank 1: 127.0.0.1:" in err
    assert "rank 0 turned us away: is PYCOLL_SECRET the same on all ranks?" in err
    assert not evidence.exists()


class Shelf:
    """A store that everybody can read."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        return 1


def of_user(name: str, tmp_path: Path, timeout: float = 30) -> Config:
    return Config.load({"PYCOLL_CACHE": str(tmp_path / name)}, timeout=timeout)


def test_who_reads_the_store_cannot_join(tmp_path, together, no_leak):
    shelf = Shelf()
    zero, one = together(
        lambda: store.bootstrap(shelf, 0, 2, of_user("mine", tmp_path, 3), "a store"),
        lambda: store.bootstrap(shelf, 1, 2, of_user("another's", tmp_path), "a store"),
    )
    with pytest.raises(BootstrapError, match=r"it does not know the job's secret\)$"):
        raise zero
    with pytest.raises(BootstrapError, match=r"rank 0 turned us away: is PYCOLL_SECRET the same"):
        raise one


def test_a_secret_on_rank_0_alone_is_said_to_be_so(tmp_path, together, no_leak):
    shelf = Shelf()
    given = Config.load({"PYCOLL_SECRET": "5a" * 32}, timeout=3)
    _, one = together(
        lambda: store.bootstrap(shelf, 0, 2, given, "a store"),
        lambda: store.bootstrap(shelf, 1, 2, of_user("mine", tmp_path), "a store"),
    )
    with pytest.raises(
        BootstrapError, match=r"^PYCOLL_SECRET is set on rank 0: set it to the same"
    ):
        raise one


def meet_of(users: list[str], tmp_path: Path, port: int, together) -> list[Star]:
    def meet(rank: int) -> Star:
        environ = {**torchrun_of(port, rank), "WORLD_SIZE": str(len(users))}
        return torchrun.meet(of_user(users[rank], tmp_path), environ)

    return together(*[lambda r=r: meet(r) for r in range(len(users))])


def test_hosts_that_share_no_key_meet_in_public_and_hear_a_warning(
    tmp_path, port, together, leave, no_leak, monkeypatch
):
    """One rank on rank 0's host, one that shares its folder, one that does not."""
    monkeypatch.setattr(rendezvous, "is_here", lambda address: False)
    with pytest.warns(RuntimeWarning) as warned:
        met = meet_of(["mine", "mine", "elsewhere"], tmp_path, port, together)
    (text,) = [str(warning.message) for warning in warned]
    assert re.match(r"rank 2: what answered as rank 0 at 127\.0\.0\.1:\d+ has not proved", text)
    assert [star.public for star in met] == [True] * 3
    assert len({star.secret for star in met}) == 1
    with pytest.warns(RuntimeWarning, match=r"^torchrun hands out no secret, and some host lacks"):
        zero = Bootstrap("torchrun", met[0], 30.0)
    others = [Bootstrap("torchrun", star, 30.0) for star in met[1:]]
    everyone = [zero, *others]
    said = together(*[lambda b=b: b.allgather(b"%d" % b.rank) for b in everyone])
    assert said == [[b"0", b"1", b"2"]] * 3
    assert [b.public for b in everyone] == [True] * 3
    leave(b.control for b in everyone)


def test_a_stranger_that_plays_rank_0_is_warned_of_and_gets_no_objects(
    together, no_leak, monkeypatch
):
    """It proves what anybody could derive, and does not say that it is public."""
    monkeypatch.setattr(rendezvous, "is_here", lambda address: False)
    monkeypatch.setattr(rendezvous, "_PUBLIC", b"")
    public, secret, deadline = b"derived from the job's name", b"a key", time.monotonic() + 30
    warned = pytest.warns(
        RuntimeWarning, match=r"^rank 1: what answered as rank 0 at .* stranger's"
    )
    with rendezvous.listen("127.0.0.1", 0, backlog=2) as listener, warned:
        there = [listener.getsockname()[:2]]
        stranger, honest = together(
            lambda: rendezvous.gather(listener, 2, public, deadline),
            lambda: rendezvous.join(there, 1, 2, secret, deadline, public),
        )
    assert honest.public
    for star in (stranger, honest):
        star.close()


def test_hosts_that_share_the_key_meet_in_private(
    tmp_path, port, together, leave, no_leak, monkeypatch
):
    monkeypatch.setattr(rendezvous, "is_here", lambda address: False)
    met = meet_of(["mine", "mine"], tmp_path, port, together)
    assert [star.public for star in met] == [False] * 2
    made = [Bootstrap("torchrun", star, 30.0) for star in met]  # a warning would be an error
    leave(bootstrap.control for bootstrap in made)


def test_on_one_host_no_rank_is_let_in_by_what_everybody_knows(tmp_path, port, together, no_leak):
    environ = torchrun_of(port, 0)
    own = {"PYCOLL_CACHE": str(tmp_path / "mine"), "PYCOLL_ADDRESS": environ["PYCOLL_ADDRESS"]}
    config = Config.load(own, timeout=3)
    public = torchrun.hashlib.sha256(b"pycoll torchrun secret  127.0.0.1 %d" % port).digest()
    zero, one = together(
        lambda: torchrun.meet(config, environ),
        lambda: environment.meet_at("127.0.0.1", [port], 1, 2, public, 30.0),
    )
    with pytest.raises(BootstrapError, match=r"it does not know the job's secret\)$"):
        raise zero
    with pytest.raises(BootstrapError, match=r"rank 0 turned us away"):
        raise one
