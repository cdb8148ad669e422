"""The registration cache: what it keeps, and that it never keeps what memory no longer is.

The registrar is the driver's own (``pins.h``), so nothing here needs a device.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
HERE = Path(__file__).parent
SOURCES = [
    NATIVE / f"{name}.c" for name in ("pin", "unmap", "memory", "cuda", "cuda_memory", "error")
]
KINDS = {
    "plain": (),
    "asan": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "tsan": ("-fsanitize=thread",),
}

Compile = Callable[..., Path]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compile a driver once for each kind; skip where the compiler has no such sanitizer."""
    folder = tmp_path_factory.mktemp("pin")
    cc = shutil.which("cc")

    def compile_driver(driver: str, kind: str = "plain") -> Path:
        if cc is None:
            pytest.skip("no C compiler: apt-get install gcc")
        command = [cc, "-std=gnu11", "-O1", "-g", "-pthread", "-D_GNU_SOURCE", *KINDS[kind]]
        output = folder / f"{driver}-{kind}"
        if output.exists():
            return output
        probe = folder / "probe.c"
        probe.write_text("int main(void) { return 0; }\n")
        if subprocess.run(
            [*command, probe, "-o", folder / "probe"], capture_output=True
        ).returncode:
            pytest.skip(f"the compiler cannot link {' '.join(KINDS[kind])}")
        sources = [*SOURCES, HERE / f"{driver}.c"]
        subprocess.run([*command, f"-I{NATIVE}", *sources, "-o", output, "-ldl"], check=True)
        return output

    return compile_driver


def run(
    driver: Path, scenario: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [driver, scenario], capture_output=True, text=True, timeout=240, env=env, check=False
    )


@pytest.fixture(scope="module")
def watching(compiled: Compile) -> None:
    """Skip where the kernel does not let memory be watched: then nothing is kept."""
    missing = run(compiled("pin"), "missing").stdout.strip()
    if missing:
        pytest.skip(missing)


of_kinds = pytest.mark.parametrize("kind", KINDS)


@of_kinds
@pytest.mark.parametrize(
    "scenario", ["hit", "merge", "limit", "many", "use", "several", "file", "refused"]
)
@pytest.mark.usefixtures("watching")
def test_what_is_kept(compiled: Compile, kind: str, scenario: str) -> None:
    done = run(compiled("pin", kind), scenario)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{scenario}\n", "")


@of_kinds
@pytest.mark.parametrize(
    "scenario",
    [
        "remap",
        "discard",
        "move",
        "heap",
        "forks",
        "late",
        "window",
        "midway",
        "meanwhile",
        "unwatched",
        "mixed",
        "threads",
    ],
)
@pytest.mark.usefixtures("watching")
def test_no_registration_outlives_its_memory(compiled: Compile, kind: str, scenario: str) -> None:
    done = run(compiled("unmap", kind), scenario)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{scenario}\n", "")


@of_kinds
def test_nothing_is_kept_without_userfaultfd(compiled: Compile, kind: str) -> None:
    done = run(compiled("pin", kind), "without")
    assert (done.returncode, done.stdout, done.stderr) == (0, "without\n", "")


@pytest.mark.usefixtures("watching")
def test_the_watcher_asks_for_changes_in_flight(compiled: Compile, tmp_path: Path) -> None:
    """A mutant that only reads the events which are there already meets a stale registration."""
    source = (NATIVE / "unmap.c").read_text()
    asked = "for (uint32_t i = 0; changing(unmap.fd); i++) {"
    assert asked in source
    (tmp_path / "unmap.c").write_text(
        source.replace(asked, f"drain();\n    return true;\n    {asked}")
    )
    sources = [HERE / "unmap.c", tmp_path / "unmap.c"]
    sources += [path for path in SOURCES if path.name != "unmap.c"]
    subprocess.run(
        ["cc", "-std=gnu11", "-pthread", "-D_GNU_SOURCE", f"-I{NATIVE}", *sources, "-ldl"],
        cwd=tmp_path,
        check=True,
    )
    done = run(tmp_path / "a.out", "window")
    assert done.returncode == 1
    assert "word_at" in done.stderr


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """An environment where NVIDIA's driver is a stand-in that lacks something."""
    folders = {}
    for name in ("newer", "older"):
        folders[name] = tmp_path_factory.mktemp(name)
        cc = shutil.which("cc")
        if cc is None:
            pytest.skip("no C compiler: apt-get install gcc")
        output = folders[name] / "libcuda.so.1"
        command = [cc, "-shared", "-fPIC", "-D_GNU_SOURCE", HERE / "cuda.c", "-o", output]
        subprocess.run([*command, f"-D{name.upper()}_DRIVER"], check=True)

    def environment(lacking: str = "") -> dict[str, str]:
        folder = folders["older" if lacking == "older" else "newer"]
        return {"LD_LIBRARY_PATH": str(folder), "CUDA_STANDIN": lacking}

    return environment


@pytest.mark.parametrize(
    ("scenario", "lacking"),
    [
        ("kept", ""),
        ("pooled", "pooled"),
        ("other", ""),
        ("managed", "managed"),
        ("staged", ""),
        ("flush", ""),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "asan"])
def test_memory_of_a_gpu(
    compiled: Compile,
    cuda: Callable[[str], dict[str, str]],
    kind: str,
    scenario: str,
    lacking: str,
) -> None:
    done = run(compiled("memory", kind), scenario, cuda(lacking))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{scenario}\n", "")


@pytest.mark.parametrize(
    ("lacking", "dmabuf"),
    [
        ("nogpu", "NVIDIA's driver has no GPU: see nvidia-smi"),
        ("nodmabuf", "install NVIDIA's open kernel modules"),
        ("older", "install NVIDIA's driver 515 or later"),
    ],
)
def test_why_a_gpu_is_not_reached(
    compiled: Compile, cuda: Callable[[str], dict[str, str]], lacking: str, dmabuf: str
) -> None:
    done = run(compiled("memory"), "missing", cuda(lacking))
    assert done.returncode == 0, done.stderr
    assert dmabuf in done.stdout.split("|")[0]


def test_without_the_driver_of_a_gpu(compiled: Compile, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("this is no library")
    done = run(compiled("memory"), "absent", {"LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("libcuda.so.1 was not found: install NVIDIA's driver|")
