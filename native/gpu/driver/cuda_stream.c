/* Streams, events and stream capture. */
#include "gpu/driver/cuda.h"
#include "core/internal.h"

enum { STREAM_NON_BLOCKING = 1 };
enum { EVENT_DEFAULT = 0, EVENT_DISABLE_TIMING = 2 };
enum { USER_OBJECT_NO_DESTRUCTOR_SYNC = 1 }; /* the only flag, and required */
enum { GRAPH_USER_OBJECT_MOVE = 1 };         /* the graph takes over this reference */

int pc_cuda_priorities(int device, struct pc_error *error, int *least, int *greatest)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.CtxGetStreamPriorityRange(least, greatest), error,
                          "cuCtxGetStreamPriorityRange of GPU %d", device);
}

int pc_cuda_stream(int device, int priority, struct pc_error *error, uintptr_t *stream)
{
    void *made = NULL;
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.StreamCreateWithPriority(&made, STREAM_NON_BLOCKING, priority);
    *stream = (uintptr_t)made;
    return pc__cuda_leave(result, error, "cuStreamCreateWithPriority(%d) on GPU %d", priority,
                          device);
}

int pc_cuda_stream_free(int device, uintptr_t stream, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.StreamDestroy((void *)stream), error, "cuStreamDestroy(%#zx)",
                          (size_t)stream);
}

int pc_cuda_stream_query(int device, uintptr_t stream, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.StreamQuery((void *)stream), error, "cuStreamQuery(%#zx)",
                          (size_t)stream);
}

int pc_cuda_stream_wait(int device, uintptr_t stream, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.StreamSynchronize((void *)stream), error,
                          "cuStreamSynchronize(%#zx)", (size_t)stream);
}

int pc_cuda_stream_after(int device, uintptr_t stream, uintptr_t event, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.StreamWaitEvent((void *)stream, (void *)event, 0), error,
                          "cuStreamWaitEvent(%#zx, %#zx)", (size_t)stream, (size_t)event);
}

int pc_cuda_capturing(int device, uintptr_t stream, struct pc_error *error, uint64_t *id)
{
    int status = PC_CUDA_NO_CAPTURE;
    uint64_t found = 0;
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.StreamGetCaptureInfo((void *)stream, &status, &found, NULL, NULL, NULL);
    rc = pc__cuda_leave(result, error, "cuStreamGetCaptureInfo(%#zx)", (size_t)stream);
    *id = rc == PC_OK && status == PC_CUDA_CAPTURING ? found : 0;
    return rc == PC_OK ? status : rc;
}

/* A user object's destructor: runs on any thread, and must not call the driver. */
static void count_down(void *users)
{
    __atomic_sub_fetch((uint32_t *)users, 1, __ATOMIC_RELEASE);
}

int pc_cuda_capture_pin(int device, uintptr_t stream, uint32_t *users, struct pc_error *error)
{
    int status = PC_CUDA_NO_CAPTURE;
    void *graph = NULL, *object = NULL;
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.StreamGetCaptureInfo((void *)stream, &status, NULL, &graph, NULL, NULL);
    if (result == 0 && status != PC_CUDA_CAPTURING)
        result = CUDA_INVALID_VALUE;
    if (result == 0)
        result = pc__cuda.UserObjectCreate(&object, users, count_down, 1,
                                           USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (result == 0) {
        __atomic_add_fetch(users, 1, __ATOMIC_RELAXED);
        result = pc__cuda.GraphRetainUserObject(graph, object, 1, GRAPH_USER_OBJECT_MOVE);
        if (result != 0)
            pc__cuda.UserObjectRelease(object, 1);
    }
    return pc__cuda_leave(result, error, "cuGraphRetainUserObject for stream %#zx", (size_t)stream);
}

int pc_cuda_event(int device, uint32_t timing, struct pc_error *error, uintptr_t *event)
{
    void *made = NULL;
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.EventCreate(&made, timing ? EVENT_DEFAULT : EVENT_DISABLE_TIMING);
    *event = (uintptr_t)made;
    return pc__cuda_leave(result, error, "cuEventCreate on GPU %d", device);
}

int pc_cuda_event_free(int device, uintptr_t event, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.EventDestroy((void *)event), error, "cuEventDestroy(%#zx)",
                          (size_t)event);
}

int pc_cuda_event_record(int device, uintptr_t event, uintptr_t stream, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.EventRecord((void *)event, (void *)stream), error,
                          "cuEventRecord(%#zx, %#zx)", (size_t)event, (size_t)stream);
}

int pc_cuda_event_query(int device, uintptr_t event, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    /* The thread may be capturing another stream, which this call would invalidate. */
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    int result = pc__cuda.EventQuery((void *)event);
    pc__cuda_relax(mode);
    return pc__cuda_leave(result, error, "cuEventQuery(%#zx)", (size_t)event);
}

int pc_cuda_event_wait(int device, uintptr_t event, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.EventSynchronize((void *)event), error,
                          "cuEventSynchronize(%#zx)", (size_t)event);
}

int pc_cuda_event_seconds(int device, uintptr_t start, uintptr_t end, struct pc_error *error,
                          double *seconds)
{
    float milliseconds = 0;
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.EventElapsedTime(&milliseconds, (void *)start, (void *)end);
    *seconds = (double)milliseconds / 1000;
    return pc__cuda_leave(result, error, "cuEventElapsedTime(%#zx, %#zx)", (size_t)start,
                          (size_t)end);
}
