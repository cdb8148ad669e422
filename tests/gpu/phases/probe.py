"""What is there: driver, GPU, libraries, tools; CUDA IPC between two processes; VMM; RDMA order."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from typing import Any

from phase import Lacking, Run, main

NCCL = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
PACKAGES = ("numpy", "cupy-cuda12x", "cupy-cuda13x", "torch", *NCCL)
TOOLS = ("nvidia-smi", "compute-sanitizer", "nvidia-cuda-mps-control", "nsys", "nvcc", "mpirun")
NBYTES = 1 << 20


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda, verbs

    if lack := cuda.missing():
        raise Lacking(lack)
    from cudriver import ATTRIBUTES, Driver

    gpu = cuda.device(run.device)
    driver = Driver(run.device)
    run.details["gpu"] = gpu._replace(uuid=gpu.uuid.hex())._asdict()
    run.details["attributes"] = {
        name: driver.attribute(number) for name, number in ATTRIBUTES.items()
    }
    run.details["versions"] = {"python": platform.python_version(), **versions()}
    run.details["tools"] = {tool: shutil.which(tool) for tool in TOOLS}
    run.details["verbs"] = verbs.verbs_missing() or "there"
    for name in ("gpu", "attributes", "versions", "tools"):
        for key, value in run.details[name].items():
            print(f"{name}: {key}: {value}")
    run.details["vmm"] = driver.exportable() or "made and exported"
    print(f"VMM memory as a descriptor: {run.details['vmm']}")
    run.details["ipc"] = refused(run.device) or ipc(run)
    print(f"CUDA IPC between two processes: {run.details['ipc']}")
    kind = f"{gpu.name}, sm_{gpu.major}{gpu.minor}, CUDA {gpu.driver // 1000}"
    return f"{kind}; IPC {run.details['ipc']}; VMM {run.details['vmm']}"


def versions() -> dict[str, str]:
    """Return what of the packages is installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def refused(device: int) -> str:
    """Say why a process cannot open another's GPU memory here; empty if it can."""
    command = [sys.executable, __file__, "--handle", str(device)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as giver:
        handle = (giver.stdout or [""]).readline().strip()  # type: ignore[union-attr]
        taker = [sys.executable, __file__, "--take", handle or "none", str(device)]
        done = subprocess.run(taker, capture_output=True, text=True, timeout=60, check=False)
        said = giver.communicate("", timeout=60)[1]
    if not handle:
        return f"cannot be given: {said.strip()[-200:]}"
    return "" if done.returncode == 0 else f"cannot be opened: {done.stderr.strip()[-200:]}"


def give(device: int) -> None:
    """Print the handle of an allocation, and keep that until told to end."""
    from device import Pool

    from pycoll.runtime.native import cuda

    pool = Pool(device, 1 << 20)
    print(cuda.ipc_get(device, pool.empty(1).address).hex(), flush=True)
    sys.stdin.read()


def take(handle: str, device: int) -> None:
    """Open another process's allocation; with no handle, only make use of the GPU."""
    from device import Pool, close_all

    from pycoll.runtime.native import cuda

    Pool(device, 1 << 20)  # its context
    if handle:
        cuda.ipc_close(device, cuda.ipc_open(device, bytes.fromhex(handle)))
    close_all()


def ipc(run: Run) -> str:
    """Let another process read and write an allocation of this one."""
    import numpy as np
    from device import Pool

    from pycoll.runtime.native import cuda

    pool = Pool(run.device)
    values = np.random.default_rng(1).integers(0, 256, NBYTES, np.uint8)
    array = pool.array(values)
    handle = cuda.ipc_get(run.device, array.address)
    offset = array.address - cuda.pointer(array.address).base
    command = [sys.executable, __file__, "--open", handle.hex(), str(offset), str(run.device)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=max(10.0, run.left), check=False
    )
    run.check(done.returncode == 0, f"the other process failed: {done.stderr.strip()[-300:]}")
    run.check(np.array_equal(array.get(), values ^ 255), "what the other process wrote is not here")
    # A process never opens its own handle: the same allocation, by its address.
    return "works"


def other(arguments: list[str]) -> None:
    """Invert every byte of another process's allocation."""
    import numpy as np
    from device import Pool

    from pycoll.runtime.native import cuda

    device = int(arguments[2])
    pool = Pool(device)
    base = cuda.ipc_open(device, bytes.fromhex(arguments[0]))
    values: Any = np.empty(NBYTES, np.uint8)
    pool.get(base + int(arguments[1]), values)
    pool.put(base + int(arguments[1]), values ^ 255)
    cuda.ipc_close(device, base)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--open"]:
        other(sys.argv[2:])
    elif sys.argv[1:2] == ["--touch"]:
        take("", int(sys.argv[2]))
    elif sys.argv[1:2] == ["--handle"]:
        give(int(sys.argv[2]))
    elif sys.argv[1:2] == ["--take"]:
        take(sys.argv[2], int(sys.argv[3]))
    else:
        main(phase)
