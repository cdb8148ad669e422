/* Words that a stream writes, and waits for, without a kernel. */
#include "gpu/driver/cuda.h"
#include "core/internal.h"

enum { DEVICE_64_BIT_MEMOPS = 122 }; /* CUdevice_attribute */
enum { WAIT_VALUE_GEQ = 0 };         /* CUstreamWaitValue_flags: as signed difference */
enum { WRITE_VALUE_DEFAULT = 0 };    /* CUstreamWriteValue_flags: behind a fence of system scope */

int pc_cuda_memops(int device, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    pc__cuda_leave(0, error, "%s", "");
#define PC_LACK(name, symbol, arguments) \
    if (pc__cuda.name == NULL) \
        return pc__fail( \
            error, PC_UNMAPPABLE, -1, \
            "libcuda.so.1 has no %s: install NVIDIA's driver 515 or later (CUDA 11.7)", symbol);
    PC_CUDA_MEMOPS(PC_LACK)
#undef PC_LACK
    if (pc__cuda_attribute(device, DEVICE_64_BIT_MEMOPS) == 0)
        return pc__fail(error, PC_UNMAPPABLE, -1,
                        "GPU %d has no 64-bit stream memory operations (cuStreamWaitValue64)",
                        device);
    return PC_OK;
}

int pc_cuda_stream_write64(int device, uintptr_t stream, uint64_t address, uint64_t value,
                           struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.StreamWriteValue64((void *)stream, address, value, WRITE_VALUE_DEFAULT);
    return pc__cuda_leave(result, error, "cuStreamWriteValue64(%#zx, %#zx)", (size_t)stream,
                          (size_t)address);
}

int pc_cuda_stream_wait64(int device, uintptr_t stream, uint64_t address, uint64_t value,
                          struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.StreamWaitValue64((void *)stream, address, value, WAIT_VALUE_GEQ);
    return pc__cuda_leave(result, error, "cuStreamWaitValue64(%#zx, %#zx)", (size_t)stream,
                          (size_t)address);
}
