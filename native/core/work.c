/* Nonblocking calls: a queue, and the progress thread that runs it. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "core/trace.h"
#include "p2p/p2p.h"

#define PC_PATIENCE_NS UINT64_C(100000000)

static int execute(struct pc_comm *comm, struct pc_work *work)
{
    if (work->refused) {
        pc__refused(comm);
        pc__trace_queued(comm, work);
        return PC_OK;
    }
    int rc = work->batch ? pc__call_begin_batch(comm, work->batch, work->signature, work->timeout)
                         : pc__call_begin(comm, work->plan, work->in, work->out, work->timeout);
    if (rc != PC_OK)
        return rc;
    pc__trace_queued(comm, work);
    work->batch = NULL; /* the call owns it now */
    rc = pc__progress(comm, PC_FIRST_PATIENCE_NS);
    if (rc == PC_AGAIN)
        pc__status_describe(comm, work->where);
    while (rc == PC_AGAIN) /* pc__progress_thread_stop aborts it */
        rc = pc__progress(comm, PC_PATIENCE_NS);
    return rc;
}

/* The owner may free the work as soon as it reads FINISHED: so the wake-up comes last, and the
 * kernel only compares the address. */
static void finish(struct pc_work *work, int result)
{
    _Atomic uint32_t *state = &work->state;
    work->result = result;
    free(work->batch);
    atomic_fetch_sub_explicit(&work->comm->queued, 1, memory_order_release);
    if (work->refused) {
        free(work);
        return;
    }
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
            if (!pc__progress_thread_turn(comm))
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

void pc__progress_thread_stop(struct pc_comm *comm)
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

/* With the queue's lock. */
int pc__progress_thread_start(struct pc_comm *comm)
{
    if (comm->threaded)
        return PC_OK;
    int rc = pthread_create(&comm->thread, NULL, progress, comm);
    comm->threaded = rc == 0;
    errno = rc;
    return rc == 0 ? PC_OK
                   : pc__fail(&comm->error, PC_SYSTEM, -1, "progress thread: %s", strerror(rc));
}

int pc__enqueue(struct pc_comm *comm, const struct pc_work *job, const char *where,
                struct pc_work **result)
{
    struct pc_work *work = calloc(1, sizeof *work);
    if (work == NULL) {
        free(job->batch);
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a queued call");
    }
    *work = *job;
    work->comm = comm;
    work->place = atomic_load_explicit(&comm->place, memory_order_relaxed);
    strncpy(work->where, where, sizeof work->where - 1);
    pthread_mutex_lock(&comm->queue_lock);
    int rc = pc__progress_thread_start(comm);
    if (rc != PC_OK) {
        pthread_mutex_unlock(&comm->queue_lock);
        free(work->batch);
        free(work);
        return rc;
    }
    if (comm->head == NULL)
        comm->head = work;
    else
        comm->tail->next = work;
    comm->tail = work;
    if (atomic_load(&comm->queued) == 0) /* then the status shows all calls before this one */
        comm->numbered = atomic_load(&((struct pc_arena *)comm->arena)->sequence);
    comm->numbered++;
    atomic_fetch_add(&comm->queued, 1);
    pthread_cond_signal(&comm->queue_moved);
    pthread_mutex_unlock(&comm->queue_lock);
    if (atomic_load(&comm->p2p->driving))
        pc__wakeup_signal(comm, comm->options.rank); /* it may sleep on transfers */
    *result = work;
    return PC_OK;
}

int pc_submit(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out, double timeout,
              const char *where, struct pc_work **work)
{
    struct pc_work job
        = {.plan = plan, .in = (char *)(uintptr_t)in, .out = out, .timeout = timeout};
    int rc = pc__enter(comm);
    if (rc != PC_OK)
        return rc;
    rc = atomic_load(&comm->broken) ? PC_BROKEN : pc__enqueue(comm, &job, where, work);
    pc__leave(comm);
    return rc;
}

int pc_work_wait(struct pc_work *work, double seconds)
{
    if (work->posted != NULL)
        return pc__batch_wait(work->posted, seconds);
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
    if (work != NULL) /* it was not begun */
        free(work->posted);
    free(work);
}

/* A blocking call that follows queued ones goes through the queue. */
int pc__join_queue(struct pc_comm *comm, const struct pc_work *job, double seconds)
{
    int rc = pc__enqueue(comm, job, "", &comm->joined);
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
