/* A stand-in for libnccl over the stand-in for libcuda, whose device memory is the host's: so much
 * of NCCL as bench/gpu calls, for ranks that are threads. A collective waits for its stream and for
 * all ranks, and then adds or copies. It tells nothing about NCCL. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, FLOAT32 = 7, SUM = 0, MOST = 64 };

struct group {
    pthread_barrier_t barrier;
    const float *inputs[MOST];
    int size, left;
};
struct comm {
    struct group *group;
    int rank;
};

API int ncclGetVersion(int *version)
{
    const char *told = getenv("FAKENCCL_VERSION");
    *version = told == NULL ? 23007 : atoi(told);
    return SUCCESS;
}

API const char *ncclGetErrorString(int code)
{
    return code == INVALID_ARGUMENT ? "invalid argument" : "unhandled system error";
}

API int ncclCommInitAll(struct comm **comms, int size, const int *devices)
{
    if (size < 1 || size > MOST || getenv("NCCL_MULTI_RANK_GPU_ENABLE") == NULL)
        return INVALID_ARGUMENT;
    struct group *group = calloc(1, sizeof *group);
    (void)devices;
    pthread_barrier_init(&group->barrier, NULL, (unsigned)size);
    group->size = group->left = size;
    for (int rank = 0; rank < size; rank++) {
        comms[rank] = calloc(1, sizeof **comms);
        *comms[rank] = (struct comm){group, rank};
    }
    return SUCCESS;
}

/* Waits for a stream of device 0, in its primary context. */
static int finished(void *stream)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    if (driver == NULL)
        return 0;
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*push)(void *) = (int (*)(void *))dlsym(driver, "cuCtxPushCurrent_v2");
    int (*pop)(void **) = (int (*)(void **))dlsym(driver, "cuCtxPopCurrent_v2");
    int (*wait)(void *) = (int (*)(void *))dlsym(driver, "cuStreamSynchronize");
    if (retain(&context, 0) != 0 || push(context) != 0)
        return 0;
    int code = wait(stream);
    return pop(&context) == 0 && code == 0;
}

/* Waits for the stream and for all ranks, and says where the input of each lies. */
static int begin(const float *x, int dtype, int op, struct comm *comm, void *stream)
{
    if (dtype != FLOAT32 || op != SUM)
        return INVALID_ARGUMENT;
    if (!finished(stream))
        return SYSTEM_ERROR;
    comm->group->inputs[comm->rank] = x;
    pthread_barrier_wait(&comm->group->barrier);
    return SUCCESS;
}

static int end(struct comm *comm)
{
    pthread_barrier_wait(&comm->group->barrier);
    return SUCCESS;
}

/* Adds `count` elements of every rank, from `at` on. */
static void add(const struct group *group, float *out, size_t at, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float sum = group->inputs[0][at + i];
        for (int rank = 1; rank < group->size; rank++)
            sum += group->inputs[rank][at + i];
        out[i] = sum;
    }
}

/* Copies `count` elements of a rank, from `at` on; `out` may be where they are. */
static void copy(const struct group *group, int rank, float *out, size_t at, size_t count)
{
    memmove(out, group->inputs[rank] + at, count * sizeof *out);
}

API int ncclAllReduce(const float *x, float *out, size_t count, int dtype, int op,
                      struct comm *comm, void *stream)
{
    int code = begin(x, dtype, op, comm, stream);
    if (code != SUCCESS)
        return code;
    add(comm->group, out, 0, count);
    return end(comm);
}

API int ncclReduce(const float *x, float *out, size_t count, int dtype, int op, int root,
                   struct comm *comm, void *stream)
{
    int code = begin(x, dtype, op, comm, stream);
    if (code != SUCCESS)
        return code;
    if (comm->rank == root)
        add(comm->group, out, 0, count);
    return end(comm);
}

API int ncclReduceScatter(const float *x, float *out, size_t count, int dtype, int op,
                          struct comm *comm, void *stream)
{
    int code = begin(x, dtype, op, comm, stream);
    if (code != SUCCESS)
        return code;
    add(comm->group, out, count * (size_t)comm->rank, count);
    return end(comm);
}

API int ncclBroadcast(const float *x, float *out, size_t count, int dtype, int root,
                      struct comm *comm, void *stream)
{
    int code = begin(x, dtype, SUM, comm, stream);
    if (code != SUCCESS)
        return code;
    if (comm->rank != root)
        copy(comm->group, root, out, 0, count);
    return end(comm);
}

API int ncclScatter(const float *x, float *out, size_t count, int dtype, int root,
                    struct comm *comm, void *stream)
{
    int code = begin(x, dtype, SUM, comm, stream);
    if (code != SUCCESS)
        return code;
    copy(comm->group, root, out, count * (size_t)comm->rank, count);
    return end(comm);
}

/* Puts `count` elements of every rank together, those of rank r from `at` on. */
static void put_together(const struct group *group, float *out, size_t at, size_t count)
{
    for (int rank = 0; rank < group->size; rank++)
        copy(group, rank, out + count * (size_t)rank, at, count);
}

API int ncclAllGather(const float *x, float *out, size_t count, int dtype, struct comm *comm,
                      void *stream)
{
    int code = begin(x, dtype, SUM, comm, stream);
    if (code != SUCCESS)
        return code;
    put_together(comm->group, out, 0, count);
    return end(comm);
}

API int ncclGather(const float *x, float *out, size_t count, int dtype, int root, struct comm *comm,
                   void *stream)
{
    int code = begin(x, dtype, SUM, comm, stream);
    if (code != SUCCESS)
        return code;
    if (comm->rank == root)
        put_together(comm->group, out, 0, count);
    return end(comm);
}

API int ncclAlltoAll(const float *x, float *out, size_t count, int dtype, struct comm *comm,
                     void *stream)
{
    int code = begin(x, dtype, SUM, comm, stream);
    if (code != SUCCESS)
        return code;
    put_together(comm->group, out, count * (size_t)comm->rank, count);
    return end(comm);
}

API int ncclCommDestroy(struct comm *comm)
{
    if (--comm->group->left == 0) {
        pthread_barrier_destroy(&comm->group->barrier);
        free(comm->group);
    }
    free(comm);
    return SUCCESS;
}
