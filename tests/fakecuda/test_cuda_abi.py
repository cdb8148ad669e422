"""What is written out of CUDA's interface, here and in native/, is what cuda.h has."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path

import fakecuda
import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"

#: Each enumerator that stands in our sources, by file, and CUDA's name for it.
ENUMERATORS = {
    "gpu/driver/cuda.h": {
        "CUDA_INVALID_VALUE": "CUDA_ERROR_INVALID_VALUE",
        "CUDA_OUT_OF_MEMORY": "CUDA_ERROR_OUT_OF_MEMORY",
        "CUDA_INVALID_DEVICE": "CUDA_ERROR_INVALID_DEVICE",
        "CUDA_INVALID_IMAGE": "CUDA_ERROR_INVALID_IMAGE",
        "CUDA_INVALID_HANDLE": "CUDA_ERROR_INVALID_HANDLE",
        "CUDA_NOT_FOUND": "CUDA_ERROR_NOT_FOUND",
        "CUDA_NOT_READY": "CUDA_ERROR_NOT_READY",
        "CUDA_PEER_ACCESS_ALREADY_ENABLED": "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        "CUDA_NOT_SUPPORTED": "CUDA_ERROR_NOT_SUPPORTED",
        "CUDA_INVALID_RESOURCE_TYPE": "CUDA_ERROR_INVALID_RESOURCE_TYPE",
        "CUDA_INVALID_RESOURCE_CONFIGURATION": "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
        "CUDA_LAUNCH_COOPERATIVE": "CU_LAUNCH_ATTRIBUTE_COOPERATIVE",
        "CUDA_LAUNCH_PRIORITY": "CU_LAUNCH_ATTRIBUTE_PRIORITY",
        "CUDA_LAUNCH_SYNC_DOMAIN": "CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN",
        "CUDA_SYNC_DOMAIN_REMOTE": "CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE",
    },
    "pycoll.h": {
        "PC_CUDA_HOST": "CU_MEMORYTYPE_HOST",
        "PC_CUDA_DEVICE": "CU_MEMORYTYPE_DEVICE",
        "PC_CUDA_NO_CAPTURE": "CU_STREAM_CAPTURE_STATUS_NONE",
        "PC_CUDA_CAPTURING": "CU_STREAM_CAPTURE_STATUS_ACTIVE",
        "PC_CUDA_INVALIDATED": "CU_STREAM_CAPTURE_STATUS_INVALIDATED",
        "PC_CUDA_GLOBAL": "CU_STREAM_CAPTURE_MODE_GLOBAL",
        "PC_CUDA_THREAD_LOCAL": "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL",
        "PC_CUDA_RELAXED": "CU_STREAM_CAPTURE_MODE_RELAXED",
    },
    "gpu/driver/cuda.c": {
        "DEVICE_THREADS_PER_BLOCK": "CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK",
        "DEVICE_SHARED_PER_BLOCK": "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK",
        "DEVICE_WARP": "CU_DEVICE_ATTRIBUTE_WARP_SIZE",
        "DEVICE_REGISTERS_PER_BLOCK": "CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK",
        "DEVICE_MULTIPROCESSORS": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
        "DEVICE_THREADS_PER_MULTIPROCESSOR": ("CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR"),
        "DEVICE_CAPABILITY_MAJOR": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
        "DEVICE_CAPABILITY_MINOR": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
        "DEVICE_SHARED_PER_MULTIPROCESSOR": (
            "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"
        ),
        "DEVICE_REGISTERS_PER_MULTIPROCESSOR": (
            "CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR"
        ),
        "DEVICE_SAME_HOST_POINTER": ("CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM"),
        "DEVICE_COOPERATIVE": "CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH",
        "DEVICE_SHARED_PER_BLOCK_OPTIN": "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
        "DEVICE_HOST_REGISTER": "CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED",
        "DEVICE_BLOCKS_PER_MULTIPROCESSOR": "CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR",
        "DEVICE_SHARED_RESERVED": "CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK",
        "DEVICE_RDMA": "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED",
        "DEVICE_SYNC_DOMAINS": "CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT",
    },
    "gpu/driver/cuda_memory.c": {
        "POINTER_MEMORY_TYPE": "CU_POINTER_ATTRIBUTE_MEMORY_TYPE",
        "POINTER_BUFFER_ID": "CU_POINTER_ATTRIBUTE_BUFFER_ID",
        "POINTER_IS_MANAGED": "CU_POINTER_ATTRIBUTE_IS_MANAGED",
        "POINTER_DEVICE_ORDINAL": "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL",
        "POINTER_IS_LEGACY_IPC_CAPABLE": "CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE",
        "POINTER_RANGE_START": "CU_POINTER_ATTRIBUTE_RANGE_START_ADDR",
        "POINTER_RANGE_SIZE": "CU_POINTER_ATTRIBUTE_RANGE_SIZE",
        "HOST_PORTABLE": "CU_MEMHOSTREGISTER_PORTABLE",
        "HOST_MAPPED": "CU_MEMHOSTREGISTER_DEVICEMAP",
        "IPC_LAZY_ENABLE_PEER_ACCESS": "CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS",
    },
    "gpu/driver/cuda_virtual.c": {
        "DEVICE_VIRTUAL_MEMORY": "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
        "DEVICE_POSIX_DESCRIPTOR": (
            "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"
        ),
        "DEVICE_MULTICAST": "CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED",
        "ALLOCATION_PINNED": "CU_MEM_ALLOCATION_TYPE_PINNED",
        "LOCATION_DEVICE": "CU_MEM_LOCATION_TYPE_DEVICE",
        "HANDLE_POSIX_DESCRIPTOR": "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
        "ACCESS_READ_WRITE": "CU_MEM_ACCESS_FLAGS_PROT_READWRITE",
        "ALLOCATION_GRANULARITY_MINIMUM": "CU_MEM_ALLOC_GRANULARITY_MINIMUM",
        "MULTICAST_GRANULARITY_MINIMUM": "CU_MULTICAST_GRANULARITY_MINIMUM",
    },
    "gpu/driver/cuda_stream.c": {
        "STREAM_NON_BLOCKING": "CU_STREAM_NON_BLOCKING",
        "EVENT_DEFAULT": "CU_EVENT_DEFAULT",
        "EVENT_DISABLE_TIMING": "CU_EVENT_DISABLE_TIMING",
        "USER_OBJECT_NO_DESTRUCTOR_SYNC": "CU_USER_OBJECT_NO_DESTRUCTOR_SYNC",
        "GRAPH_USER_OBJECT_MOVE": "CU_GRAPH_USER_OBJECT_MOVE",
    },
    "gpu/driver/cuda_green.c": {
        "RESOURCE_SM": "CU_DEV_RESOURCE_TYPE_SM",
        "GREEN_DEFAULT_STREAM": "CU_GREEN_CTX_DEFAULT_STREAM",
        "GREEN_STREAM_NON_BLOCKING": "CU_STREAM_NON_BLOCKING",
    },
    "gpu/driver/cuda_memops.c": {
        "DEVICE_64_BIT_MEMOPS": "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS",
        "WAIT_VALUE_GEQ": "CU_STREAM_WAIT_VALUE_GEQ",
        "WRITE_VALUE_DEFAULT": "CU_STREAM_WRITE_VALUE_DEFAULT",
    },
    "gpu/driver/cuda_module.c": {
        "FUNCTION_THREADS": "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK",
        "FUNCTION_SHARED": "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES",
        "FUNCTION_LOCAL": "CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES",
        "FUNCTION_REGISTERS": "CU_FUNC_ATTRIBUTE_NUM_REGS",
        "FUNCTION_DYNAMIC_SHARED": "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
        "FUNCTION_CARVEOUT": "CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT",
    },
    "memory/mem_type.c": {
        "POINTER_SYNC_MEMOPS": "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS",
        "DEVICE_CAPABILITY_MAJOR": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
        "DEVICE_USES_HOST_PAGE_TABLES": (
            "CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES"
        ),
        "DEVICE_RDMA_SUPPORTED": "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED",
        "DEVICE_RDMA_FLUSH_OPTIONS": "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS",
        "DEVICE_RDMA_ORDERING": "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING",
        "DEVICE_DMA_BUF_SUPPORTED": "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED",
        "HANDLE_DMA_BUF": "CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD",
        "FLUSH_OPTION_HOST": "CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST",
        "FLUSH_CURRENT_CONTEXT": "CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX",
        "ORDERED_FOR_OWNER": "CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER",
    },
}

#: The layout of what is handed over, ours and CUDA's.
LAYOUTS = """
#define SAME(ours, theirs) _Static_assert((ours) == (theirs), #ours " is not " #theirs)
#define SIZE(ours, theirs) SAME(sizeof(struct ours), sizeof(theirs))
#define PLACE(ours, field, theirs, of) SAME(offsetof(struct ours, field), offsetof(theirs, of))
SIZE(pc_cuda_ipc, CUipcMemHandle);
SAME(PC_CUDA_HANDLE, CU_IPC_HANDLE_SIZE);
SIZE(pc_cuda_launch_attribute, CUlaunchAttribute);
PLACE(pc_cuda_launch_attribute, id, CUlaunchAttribute, id);
PLACE(pc_cuda_launch_attribute, value, CUlaunchAttribute, value);
PLACE(pc_cuda_launch_attribute, value.cooperative, CUlaunchAttribute, value.cooperative);
PLACE(pc_cuda_launch_attribute, value.priority, CUlaunchAttribute, value.priority);
PLACE(pc_cuda_launch_attribute, value.sync_domain, CUlaunchAttribute, value.memSyncDomain);
SIZE(pc_cuda_launch_config, CUlaunchConfig);
PLACE(pc_cuda_launch_config, blocks, CUlaunchConfig, gridDimX);
PLACE(pc_cuda_launch_config, threads, CUlaunchConfig, blockDimX);
PLACE(pc_cuda_launch_config, shared, CUlaunchConfig, sharedMemBytes);
PLACE(pc_cuda_launch_config, stream, CUlaunchConfig, hStream);
PLACE(pc_cuda_launch_config, attributes, CUlaunchConfig, attrs);
PLACE(pc_cuda_launch_config, nattributes, CUlaunchConfig, numAttrs);
SIZE(pc_cuda_location, CUmemLocation);
PLACE(pc_cuda_location, id, CUmemLocation, id);
SIZE(pc_cuda_allocation, CUmemAllocationProp);
PLACE(pc_cuda_allocation, handle_types, CUmemAllocationProp, requestedHandleTypes);
PLACE(pc_cuda_allocation, location, CUmemAllocationProp, location);
PLACE(pc_cuda_allocation, flags, CUmemAllocationProp, allocFlags);
SIZE(pc_cuda_access, CUmemAccessDesc);
PLACE(pc_cuda_access, flags, CUmemAccessDesc, flags);
SIZE(pc_cuda_multicast, CUmulticastObjectProp);
PLACE(pc_cuda_multicast, nbytes, CUmulticastObjectProp, size);
PLACE(pc_cuda_multicast, handle_types, CUmulticastObjectProp, handleTypes);
PLACE(pc_cuda_multicast, flags, CUmulticastObjectProp, flags);
SIZE(pc_cuda_resource, CUdevResource);
PLACE(pc_cuda_resource, type, CUdevResource, type);
PLACE(pc_cuda_resource, sm.count, CUdevResource, sm.smCount);
PLACE(pc_cuda_resource, sm.least, CUdevResource, sm.minSmPartitionSize);
PLACE(pc_cuda_resource, sm.unit, CUdevResource, sm.smCoscheduledAlignment);
SAME(sizeof(CUmemGenericAllocationHandle), sizeof(uint64_t));
SAME(sizeof(CUdeviceptr), sizeof(uint64_t));
SAME(sizeof(CUdevice), sizeof(int));
"""


@functools.cache
def header() -> Path | None:
    """A cuda.h of this machine."""
    roots = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", *_installed(), "/usr"]
    found = (Path(root) / "include" / "cuda.h" for root in roots if root)
    return next((path for path in found if path.exists()), None)


def _installed() -> list[str]:
    return sorted(map(str, Path("/usr/local").glob("cuda-*")), reverse=True)


needs_header = pytest.mark.skipif(header() is None, reason="no cuda.h: CUDA_HOME names none")


def enumerators(text: str) -> dict[str, int]:
    """Enumerators with a number, such as NAME = 7."""
    return {name: int(n) for name, n in re.findall(r"\b([A-Z][A-Z0-9_]+) = (\d+)\b", text)}


def compiles(program: str, folder: Path) -> None:
    (folder / "check.c").write_text(program)
    include = (header() or Path()).parent
    done = subprocess.run(
        ["cc", "-fsyntax-only", f"-I{include}", f"-I{NATIVE}", str(folder / "check.c")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_every_enumerator_is_looked_at() -> None:
    """All that stand in the files for CUDA's interface have a row above."""
    parts = ("memory", "virtual", "stream", "module", "green", "memops")
    for name in ("cuda.h", "cuda.c", *(f"cuda_{part}.c" for part in parts)):
        path = f"gpu/driver/{name}"
        assert set(enumerators((NATIVE / path).read_text())) == set(ENUMERATORS[path]), name


@needs_header
def test_enumerators(tmp_path: Path) -> None:
    rows = []
    for name, names in ENUMERATORS.items():
        found = enumerators((NATIVE / name).read_text())
        rows += [
            f'_Static_assert({theirs} == {found[ours]}, "{ours} of {name}");'
            for ours, theirs in names.items()
        ]
    compiles("\n".join(["#include <cuda.h>", *rows]), tmp_path)


@needs_header
def test_layouts(tmp_path: Path) -> None:
    # Both headers are called cuda.h.
    ours = f'#include "{NATIVE / "gpu" / "driver" / "cuda.h"}"'
    theirs = f'#include "{header()}"'
    compiles("\n".join([theirs, "#include <stddef.h>", ours, LAYOUTS]), tmp_path)


@needs_header
def test_symbols_are_those_that_cuda_declares() -> None:
    """With the version at their end: other versions take other arguments."""
    declared = (header() or Path()).read_text()
    for symbol in re.findall(r'"(cu[A-Z]\w+)"', (NATIVE / "gpu" / "driver" / "cuda.h").read_text()):
        assert re.search(rf"\b{symbol}\b", declared), symbol


@needs_header
def test_errors_of_the_stand_in(tmp_path: Path) -> None:
    text = (HERE / "errors.cpp").read_text()
    codes = enumerators((HERE / "driver.h").read_text())
    rows = [
        f'_Static_assert({theirs} == {codes[ours]}, "{ours}");'
        for ours, theirs in re.findall(r"\{(\w+), \"(CUDA_\w+)\",", text)
    ]
    assert len(rows) > 20
    compiles("\n".join(["#include <cuda.h>", *rows]), tmp_path)


def test_codes_of_the_tests_are_those_of_the_stand_in() -> None:
    codes = enumerators((HERE / "driver.h").read_text())
    assert codes["CAPTURE_ISOLATION"] == fakecuda.CAPTURE_ISOLATION
    assert codes["HOST_MEMORY_NOT_REGISTERED"] == fakecuda.NOT_REGISTERED
