"""The cache of kernels: downloaded once, whole or not there, and said why not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import kernel
import pytest

pytestmark = pytest.mark.pure
READY = "import kernel; print(kernel.ready().image)"
#: Stands in for every program of the package manager; $0 is its name.
APT = """#!/bin/sh
case ${0##*/} in
apt-cache) echo "  Depends: linux-image-1.2-amd64" ;;
apt-get) echo download >>"$LOG"; [ $SLOW ] && cat; touch linux-image-1.2-amd64.deb ;;
dpkg-deb) cat "$TAR" ;;
esac
"""


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a package manager with a small kernel; returns the log of downloads."""
    for name in ("apt-cache", "apt-get", "dpkg-deb", "depmod"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(APT)
        program.chmod(0o755)
    files = {
        "boot/vmlinuz-1.2": b"image",
        "lib/modules/1.2/modules.order": b"",
        "lib/modules/1.2/kernel/net/9p/9p.ko": b"module",
        "lib/modules/1.2/kernel/sound/pci.ko": b"unwanted",
    }
    with tarfile.open(tmp_path / "kernel.tar", "w") as tar:
        for name, data in files.items():
            path = tmp_path / "file"
            path.write_bytes(data)
            tar.add(path, f"./{name}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("TAR", str(tmp_path / "kernel.tar"))
    monkeypatch.setenv("PYTHONPATH", str(Path(kernel.__file__).parent))
    return tmp_path / "log"


@pytest.fixture
def start(apt: Path) -> Callable[[], subprocess.Popen[str]]:
    """Starts a process that wants a kernel, in a process group of its own."""
    argv = [sys.executable, "-c", READY]
    pipe = subprocess.PIPE
    return lambda: subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, text=True, start_new_session=True
    )


def test_it_is_downloaded_once_whoever_wants_it(apt: Path, start: Callable) -> None:
    processes = [start() for _ in range(4)]
    said = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert said == {str(kernel.ready().image)}
    assert apt.read_text() == "download\n"


def test_what_the_guest_cannot_use_is_left_out(apt: Path) -> None:
    found = kernel.ready()
    assert (found.release, found.image.read_bytes()) == ("1.2", b"image")
    names = sorted(path.name for path in found.modules.rglob("*") if path.is_file())
    assert names == ["9p.ko", "modules.order"]


def test_a_download_that_was_killed_leaves_nothing(
    apt: Path, start: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOW", "until its input ends")
    process = start()
    while not apt.exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)  # apt-get, too: what it wrote later would be left
    process.communicate()
    monkeypatch.delenv("SLOW")
    assert kernel.ready().image.exists()
    assert not list(kernel.cache().glob("fetching-*"))


def test_why_there_is_none(apt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = apt.parent / "bin" / "apt-get"
    failing.write_text("#!/bin/sh\necho no network >&2; exit 100\n")
    want = r"apt-get linux-image-1.2-amd64 fails \(no network\); try apt-get update"
    with pytest.raises(kernel.KernelError, match=want):
        kernel.ready()
    assert not list(kernel.cache().glob("*-*"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    with pytest.raises(kernel.KernelError, match="/proc/nowhere/pycoll/guest cannot be made: No s"):
        kernel.ready()
