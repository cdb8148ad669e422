/* A stand-in for libcuda.so.1 with one GPU, whose memory is host memory. CUDA_STANDIN says what it
 * lacks: `pooled`, `managed`, `nodmabuf` or `nogpu`. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SIZE (8 * 4096u)

static char *memory;
static unsigned long long buffer_id = 7;
static int refuses_export, current;
static bool synchronous;

static bool lacks(const char *what)
{
    const char *set = getenv("CUDA_STANDIN");
    return set != NULL && strcmp(set, what) == 0;
}

char *standin_memory(unsigned long long **id, int **refuses)
{
    static char room[SIZE + 2 * 4096];
    memory = room + 4096 - (uintptr_t)room % 4096 + 512;
    *id = &buffer_id;
    *refuses = &refuses_export;
    return memory;
}

int cuInit(unsigned flags)
{
    return flags == 0 ? 0 : 1;
}

int cuDeviceGetCount(int *n)
{
    *n = lacks("nogpu") ? 0 : 1;
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? 0 : 101;
}

int cuDeviceGetAttribute(int *value, int which, int device)
{
    if (device != 0)
        return 101;
    *value = which == 75                          ? 8
             : which == 117                       ? 1
             : which == 118                       ? 100
             : which == 124 && !lacks("nodmabuf") ? 1
                                                  : 0;
    return 0;
}

int cuPointerGetAttributes(unsigned n, const int *which, void **out, uintptr_t at)
{
    bool mine = at >= (uintptr_t)memory && at < (uintptr_t)memory + SIZE;
    for (unsigned i = 0; i < n; i++) {
        if (which[i] == 2)
            *(unsigned *)out[i] = mine ? 2 : 1;
        else if (which[i] == 7)
            *(unsigned long long *)out[i] = buffer_id;
        else if (which[i] == 8)
            *(unsigned *)out[i] = lacks("managed");
        else if (which[i] == 9)
            *(int *)out[i] = 0;
        else if (which[i] == 10)
            *(unsigned *)out[i] = !lacks("pooled");
        else if (which[i] == 11)
            *(uintptr_t *)out[i] = (uintptr_t)memory;
        else if (which[i] == 12)
            *(size_t *)out[i] = SIZE;
        else
            return 1;
    }
    return 0;
}

int cuPointerSetAttribute(const void *value, int which, uintptr_t at)
{
    (void)at;
    synchronous = which == 6 && *(const unsigned *)value == 1;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &current;
    return device == 0 ? 0 : 101;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    return device == 0 ? 0 : 101;
}

int cuCtxPushCurrent_v2(void *context)
{
    current += context == &current;
    return 0;
}

int cuCtxPopCurrent_v2(void **context)
{
    *context = &current;
    current--;
    return 0;
}

int cuGetErrorString(int result, const char **text)
{
    *text = result == 801 ? "operation not supported" : NULL;
    return 0;
}

int cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    return current == 1 && target == 0 && scope == 100 ? 0 : 1;
}

#ifndef OLDER_DRIVER
int cuMemGetHandleForAddressRange(void *handle, uintptr_t at, size_t nbytes, int type,
                                  unsigned long long flags)
{
    if (current != 1 || !synchronous || at % 4096 != 0 || nbytes % 4096 != 0 || type != 1
        || flags != 0)
        return 1;
    if (refuses_export)
        return 801;
    *(int *)handle = memfd_create("dma-buf", MFD_CLOEXEC);
    return 0;
}
#endif
