/* Green contexts: a part of a GPU's multiprocessors, and a stream whose kernels run there alone.
 *
 * A green context has no memory, modules or events of its own: it is the primary context with fewer
 * multiprocessors. So everything else in the engine goes on in the primary context, and only the
 * stream tells where a kernel runs. A handle of a green context may be used by one thread at a
 * time: it is used here alone, to make streams and to be destroyed. */
#include <string.h>
#include "gpu/driver/cuda.h"
#include "core/internal.h"

enum { RESOURCE_SM = 1 };               /* CUdevResourceType */
enum { GREEN_DEFAULT_STREAM = 1 };      /* CUgreenCtxCreate_flags; required */
enum { GREEN_STREAM_NON_BLOCKING = 1 }; /* CUstream_flags; required */

_Static_assert(sizeof(struct pc_cuda_resource) == 144, "as CUdevResource is");
_Static_assert(offsetof(struct pc_cuda_resource, sm) == 96, "as CUdevResource has it");

/* Drivers of CUDA 12 do not tell these; they are those that cuda.h lists. */
static void guideline(int device, struct pc_cuda_sms *out)
{
    struct pc_cuda_device found;
    struct pc_error ignored;
    int major = pc_cuda_device(device, &ignored, &found) == PC_OK ? found.major : 0;
    if (out->least == 0)
        out->least = major >= 9 ? 8 : major == 8 ? 4 : 2;
    if (out->unit == 0)
        out->unit = major >= 9 ? 8 : 2;
}

static int lacking(struct pc_error *error)
{
#define PC_LACK(name, symbol, arguments) \
    if (pc__cuda.name == NULL) \
        return pc__fail( \
            error, PC_UNMAPPABLE, -1, \
            "libcuda.so.1 has no %s: install NVIDIA's driver 550 or later (CUDA 12.4)", symbol);
    PC_CUDA_GREEN(PC_LACK)
#undef PC_LACK
    return PC_OK;
}

/* What a GPU or a driver cannot do at all is no failure of the call. */
static int told(int rc, struct pc_error *error)
{
    if (rc == PC_OK)
        return rc;
    if (error->errnum == CUDA_NOT_SUPPORTED || error->errnum == CUDA_INVALID_RESOURCE_TYPE)
        error->code = PC_UNMAPPABLE;
    else if (error->errnum == CUDA_INVALID_RESOURCE_CONFIGURATION)
        error->code = PC_INVALID;
    return error->code;
}

static int resource(int device, struct pc_error *error, struct pc_cuda_resource *all)
{
    int handle = 0;
    memset(all, 0, sizeof *all);
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.DeviceGet(&handle, device);
    if (result == 0)
        result = pc__cuda.DeviceGetDevResource(handle, all, RESOURCE_SM);
    rc = pc__cuda_leave(result, error, "cuDeviceGetDevResource of GPU %d", device);
    return told(rc, error);
}

int pc_cuda_sms(int device, struct pc_error *error, struct pc_cuda_sms *out)
{
    struct pc_cuda_resource all;
    memset(out, 0, sizeof *out);
    int rc = pc__cuda_enter(device, error); /* which says that there is no driver, or no GPU */
    if (rc != PC_OK)
        return rc;
    pc__cuda_leave(0, error, "%s", "");
    rc = lacking(error);
    if (rc == PC_OK)
        rc = resource(device, error, &all);
    if (rc != PC_OK)
        return rc;
    *out = (struct pc_cuda_sms){.count = all.sm.count, .least = all.sm.least, .unit = all.sm.unit};
    guideline(device, out);
    return PC_OK;
}

/* The stream's own context decides where kernels run, not the one that is current at a launch. */
static int stream_of(void *green, int priority, void **stream)
{
    void *context = NULL, *popped;
    if (pc__cuda.GreenCtxStreamCreate != NULL)
        return pc__cuda.GreenCtxStreamCreate(stream, green, GREEN_STREAM_NON_BLOCKING, priority);
    int result = pc__cuda.CtxFromGreenCtx(&context, green); /* CUDA 12.4 has no other way */
    if (result == 0)
        result = pc__cuda.CtxPushCurrent(context);
    if (result != 0)
        return result;
    result = pc__cuda.StreamCreateWithPriority(stream, GREEN_STREAM_NON_BLOCKING, priority);
    pc__cuda.CtxPopCurrent(&popped);
    return result;
}

static int make(int device, struct pc_cuda_resource *of, int priority, struct pc_cuda_part *out,
                const char **what)
{
    void *description = NULL, *green = NULL, *stream = NULL;
    int handle = 0, result = pc__cuda.DeviceGet(&handle, device);
    *what = "cuDevResourceGenerateDesc";
    if (result == 0)
        result = pc__cuda.DevResourceGenerateDesc(&description, of, 1);
    if (result == 0) {
        *what = "cuGreenCtxCreate";
        result = pc__cuda.GreenCtxCreate(&green, description, handle, GREEN_DEFAULT_STREAM);
    }
    if (result == 0) {
        *what = "cuGreenCtxStreamCreate";
        result = stream_of(green, priority, &stream);
        if (result != 0)
            pc__cuda.GreenCtxDestroy(green);
    }
    if (result == 0)
        *out = (struct pc_cuda_part){
            .context = (uintptr_t)green, .stream = (uintptr_t)stream, .sms = of->sm.count};
    return result;
}

/* The stream first: after its context it could not be destroyed any more. */
static int unmake(const struct pc_cuda_part *part)
{
    int result = pc__cuda.StreamDestroy((void *)part->stream);
    int second = pc__cuda.GreenCtxDestroy((void *)part->context);
    return result != 0 ? result : second;
}

int pc_cuda_partition(int device, uint32_t sms, int priority, struct pc_error *error,
                      struct pc_cuda_part *own, struct pc_cuda_part *rest)
{
    struct pc_cuda_resource all, group, remaining;
    struct pc_cuda_sms there;
    unsigned groups = 1;
    const char *what = "cuDevSmResourceSplitByCount";
    int rc = pc_cuda_sms(device, error, &there);
    if (rc != PC_OK)
        return rc;
    uint32_t most = there.count > there.least ? there.count - there.least : 0;
    if (sms < there.least || sms % there.unit != 0 || sms > most)
        return pc__fail(error, PC_INVALID, -1,
                        "GPU %d cannot part %u of its %u multiprocessors: want a multiple of %u, "
                        "from %u to %u",
                        device, sms, there.count, there.unit, there.least,
                        most / there.unit * there.unit);
    rc = resource(device, error, &all);
    if (rc == PC_OK)
        rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    memset(&group, 0, sizeof group);
    memset(&remaining, 0, sizeof remaining);
    int result = pc__cuda.DevSmResourceSplitByCount(&group, &groups, &all, &remaining, 0, sms);
    bool split = result == 0 && groups == 1 && group.sm.count == sms && remaining.sm.count != 0;
    if (split)
        result = make(device, &group, priority, own, &what);
    if (split && result == 0) {
        result = make(device, &remaining, 0, rest, &what);
        if (result != 0)
            unmake(own);
    }
    rc = told(
        pc__cuda_leave(result, error, "%s for %u multiprocessors of GPU %d", what, sms, device),
        error);
    if (rc == PC_OK && !split)
        return pc__fail(error, PC_INVALID, -1,
                        "GPU %d: the driver parts its multiprocessors into %u groups of %u and %u "
                        "besides, want 1 of %u",
                        device, groups, group.sm.count, remaining.sm.count, sms);
    return rc;
}

int pc_cuda_partition_free(int device, const struct pc_cuda_part *own,
                           const struct pc_cuda_part *rest, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = unmake(own), second = unmake(rest);
    return pc__cuda_leave(result != 0 ? result : second, error, "cuGreenCtxDestroy on GPU %d",
                          device);
}
