/* The progress thread makes progress on transfers that nobody waits for.
 *
 * A user who posts transfers usually calls again soon, and each call makes progress. To take over
 * at once would cost every post a wake-up, on both ends: so the thread looks every PC_LOOK_EVERY_NS
 * and takes over once nobody has called since the last time. Then it marks what the transfers wait
 * for, and sleeps on the wakeup. */
#include <errno.h>
#include <time.h>
#include "p2p/p2p.h"

#define PC_LOOK_EVERY_NS UINT64_C(200000)
#define PC_DRIVE_NS UINT64_C(100000000)

/* Whether another thread is in a call, which makes progress. */
static bool visited(struct pc_comm *comm)
{
    return atomic_load(&comm->entered) || atomic_load(&comm->p2p->waiters);
}

int pc__progress_thread_wanted(struct pc_comm *comm)
{
    struct pc_p2p *p = comm->p2p;
    int rc = PC_OK;
    atomic_fetch_add_explicit(&p->visits, 1, memory_order_relaxed);
    if (atomic_load(&p->watching))
        return rc;
    pthread_mutex_lock(&comm->queue_lock);
    rc = pc__progress_thread_start(comm);
    atomic_store(&p->watching, rc == PC_OK);
    pthread_cond_signal(&comm->queue_moved);
    pthread_mutex_unlock(&comm->queue_lock);
    return rc;
}

/* Makes progress, asleep in between, until the user calls, a call is queued or all is done. */
static void make_progress(struct pc_comm *comm)
{
    struct pc_p2p *p = comm->p2p;
    atomic_store(&p->driving, 1);
    while (atomic_load(&comm->posted) && !atomic_load(&comm->queued)
           && !atomic_load(&comm->stopping) && !visited(comm)) {
        uint32_t armed = pc__wakeup_arm(comm); /* first: later news changes the counter */
        if (pc__p2p_progress(comm) != 0)
            continue;
        uint64_t now = pc__now(), until = now + PC_DRIVE_NS;
        if (pc__p2p_sleep_begin(comm, &until) && until > now && !atomic_load(&comm->queued)
            && !atomic_load(&comm->aborted))
            pc__wakeup_wait(comm, armed, until - now);
        pc__p2p_sleep_end(comm);
    }
    atomic_store(&p->driving, 0);
}

bool pc__progress_thread_turn(struct pc_comm *comm)
{
    struct pc_p2p *p = comm->p2p;
    if (!atomic_load(&p->watching))
        return false;
    uint32_t visits = atomic_load(&p->visits);
    uint64_t until = pc__now() + PC_LOOK_EVERY_NS;
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    if (pthread_cond_timedwait(&comm->queue_moved, &comm->queue_lock, &t) != ETIMEDOUT
        || atomic_load(&comm->stopping) || comm->head != NULL)
        return true;
    if (visits != atomic_load(&p->visits) || visited(comm))
        return true;
    if (atomic_load(&comm->posted)) {
        pthread_mutex_unlock(&comm->queue_lock);
        make_progress(comm);
        pthread_mutex_lock(&comm->queue_lock);
        return true;
    }
    /* A post after this store finds `watching` unset; one before it is found here. */
    atomic_store(&p->watching, 0);
    if (atomic_load(&comm->posted))
        atomic_store(&p->watching, 1);
    return true;
}
