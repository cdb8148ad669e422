/* Calls that run beside the caller: a queue, and the one thread that empties it. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "internal.h"

#define PC_PATIENCE_NS UINT64_C(100000000)

static int execute(struct pc_comm *comm, struct pc_work *work)
{
    int rc = pc__begin(comm, work->plan, work->in, work->out, work->timeout);
    if (rc != PC_OK)
        return rc;
    rc = pc__advance(comm, PC_FIRST_PATIENCE_NS);
    if (rc == PC_AGAIN)
        pc__board_describe(comm, work->where);
    while (rc == PC_AGAIN && !atomic_load(&comm->stopping))
        rc = pc__advance(comm, PC_PATIENCE_NS);
    return rc == PC_AGAIN ? PC_ABORTED : rc;
}

/* Its owner may free the work as soon as it reads FINISHED: the wake-up is the last thing, and the
 * kernel only compares the address. */
static void finish(struct pc_work *work, int result)
{
    _Atomic uint32_t *state = &work->state;
    work->result = result;
    atomic_fetch_sub_explicit(&work->comm->queued, 1, memory_order_release);
    atomic_store_explicit(state, PC_WORK_FINISHED, memory_order_release);
    syscall(SYS_futex, state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void *progress(void *argument)
{
    struct pc_comm *comm = argument;
    pthread_mutex_lock(&comm->queue_lock);
    while (!atomic_load(&comm->stopping)) {
        struct pc_work *work = comm->head;
        if (work == NULL) {
            pthread_cond_wait(&comm->queue_moved, &comm->queue_lock);
            continue;
        }
        comm->head = work->next;
        pthread_mutex_unlock(&comm->queue_lock);
        finish(work, execute(comm, work));
        pthread_mutex_lock(&comm->queue_lock);
    }
    for (struct pc_work *work = comm->head, *next; work != NULL; work = next) {
        next = work->next;
        finish(work, PC_ABORTED);
    }
    comm->head = NULL;
    pthread_mutex_unlock(&comm->queue_lock);
    return NULL;
}

void pc__progress_stop(struct pc_comm *comm)
{
    if (!comm->threaded)
        return;
    pthread_mutex_lock(&comm->queue_lock);
    atomic_store(&comm->stopping, 1);
    pthread_cond_broadcast(&comm->queue_moved);
    pthread_mutex_unlock(&comm->queue_lock);
    pc_comm_abort(comm, PC_ABORTED, -1, "the communicator was closed");
    pthread_join(comm->thread, NULL);
    comm->threaded = false;
}

static int enqueue(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out,
                   double timeout, const char *where, struct pc_work **result)
{
    struct pc_work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a queued call");
    *work = (struct pc_work){
        .comm = comm, .plan = plan, .in = (char *)(uintptr_t)in, .out = out, .timeout = timeout};
    strncpy(work->where, where, sizeof work->where - 1);
    pthread_mutex_lock(&comm->queue_lock);
    if (!comm->threaded) {
        int rc = pthread_create(&comm->thread, NULL, progress, comm);
        if (rc != 0) {
            pthread_mutex_unlock(&comm->queue_lock);
            free(work);
            errno = rc;
            return pc__fail(&comm->error, PC_SYSTEM, -1, "progress thread: %s", strerror(rc));
        }
        comm->threaded = true;
    }
    if (comm->head == NULL)
        comm->head = work;
    else
        comm->tail->next = work;
    comm->tail = work;
    atomic_fetch_add_explicit(&comm->queued, 1, memory_order_acq_rel);
    pthread_cond_signal(&comm->queue_moved);
    pthread_mutex_unlock(&comm->queue_lock);
    *result = work;
    return PC_OK;
}

int pc_submit(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out, double timeout,
              const char *where, struct pc_work **work)
{
    int rc = pc__enter(comm);
    if (rc != PC_OK)
        return rc;
    rc = atomic_load(&comm->broken) ? PC_BROKEN
                                    : enqueue(comm, plan, in, out, timeout, where, work);
    pc__leave(comm);
    return rc;
}

int pc_work_wait(struct pc_work *work, double seconds)
{
    uint64_t until = pc__now() + (seconds > 0 ? (uint64_t)(seconds * 1e9) : 0);
    for (;;) {
        if (atomic_load_explicit(&work->state, memory_order_acquire) == PC_WORK_FINISHED)
            return work->result;
        uint64_t now = pc__now();
        if (now >= until)
            return PC_AGAIN;
        struct timespec t
            = {(time_t)((until - now) / 1000000000u), (long)((until - now) % 1000000000u)};
        syscall(SYS_futex, &work->state, FUTEX_WAIT_PRIVATE, PC_WORK_QUEUED, &t, NULL, 0);
    }
}

void pc_work_free(struct pc_work *work)
{
    free(work);
}

/* A blocking call with queued ones before it takes its place behind them. */
int pc__join_queue(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out,
                   double timeout, double seconds)
{
    int rc = enqueue(comm, plan, in, out, timeout, "", &comm->joined);
    return rc == PC_OK ? pc__joined_wait(comm, seconds) : rc;
}

int pc__joined_wait(struct pc_comm *comm, double seconds)
{
    int rc = pc_work_wait(comm->joined, seconds);
    if (rc != PC_AGAIN) {
        pc_work_free(comm->joined);
        comm->joined = NULL;
    }
    return rc;
}
