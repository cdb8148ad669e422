/* Completion queues, and the channels that wake who waits for them. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include "nic.h"

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *base)
{
    struct fv_channel *channel = calloc(1, sizeof *channel);
    int pipes[2];
    if (!channel || FV_FAILS("create_comp_channel") || pipe2(pipes, O_CLOEXEC)) {
        free(channel);
        return NULL;
    }
    channel->base.context = base;
    channel->base.fd = pipes[0];
    channel->writer = pipes[1];
    pthread_mutex_init(&channel->lock, NULL);
    fcntl(pipes[1], F_SETFL, O_NONBLOCK);
    fv_object(fv_context_of(base), FV_CHANNELS, 1);
    return &channel->base;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
    struct fv_channel *channel = (struct fv_channel *)base;
    struct fv_context *c = fv_context_of(base->context);
    fv_enter(c);
    bool used = base->refcnt != 0;
    fv_leave(c);
    if (used)
        return EBUSY;
    fv_object(c, FV_CHANNELS, -1);
    close(base->fd);
    close(channel->writer);
    pthread_mutex_destroy(&channel->lock);
    free(channel);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *base, int cqe, void *cq_context,
                             struct ibv_comp_channel *channel, int vector)
{
    struct fv_context *c = fv_context_of(base);
    errno = EINVAL;
    if (cqe < 1 || (uint32_t)cqe > fv_options.max_cqe || vector < 0
        || vector >= base->num_comp_vectors)
        return NULL;
    struct fv_cq *cq = calloc(1, sizeof *cq);
    if (!cq || FV_FAILS("create_cq") || !(cq->ring = calloc((size_t)cqe, sizeof *cq->ring))) {
        free(cq);
        errno = ENOMEM;
        return NULL;
    }
    cq->base.context = base;
    cq->base.channel = channel;
    cq->base.cq_context = cq_context;
    cq->base.cqe = cqe;
    pthread_mutex_init(&cq->lock, NULL);
    pthread_mutex_init(&cq->base.mutex, NULL);
    pthread_cond_init(&cq->base.cond, NULL);
    fv_enter(c);
    if (channel)
        channel->refcnt++;
    fv_object(c, FV_CQS, 1);
    fv_leave(c);
    return &cq->base;
}

int ibv_resize_cq(struct ibv_cq *base, int cqe)
{
    struct fv_cq *cq = (struct fv_cq *)base;
    if (cqe < 1 || (uint32_t)cqe > fv_options.max_cqe)
        return EINVAL;
    struct fv_cqe *ring = FV_FAILS("resize_cq") ? NULL : calloc((size_t)cqe, sizeof *ring);
    if (ring == NULL)
        return ENOMEM;
    pthread_mutex_lock(&cq->lock);
    uint32_t before = (uint32_t)base->cqe;
    bool fits = cq->head - cq->tail <= (uint32_t)cqe;
    for (uint64_t i = cq->tail; fits && i != cq->head; i++)
        ring[i % (uint32_t)cqe] = cq->ring[i % before];
    if (fits) {
        struct fv_cqe *old = cq->ring;
        cq->ring = ring;
        ring = old;
        base->cqe = cqe;
    }
    pthread_mutex_unlock(&cq->lock);
    free(ring);
    return fits ? 0 : EINVAL;
}

/* Takes unread events of `cq` out of its channel. */
static void withdraw(struct fv_channel *channel, const struct fv_cq *cq)
{
    struct ibv_cq *kept[4096], *event;
    size_t n = 0;
    pthread_mutex_lock(&channel->lock);
    int flags = fcntl(channel->base.fd, F_GETFL);
    fcntl(channel->base.fd, F_SETFL, flags | O_NONBLOCK);
    while (n < 4096 && read(channel->base.fd, &event, sizeof event) == sizeof event)
        if (event != &cq->base)
            kept[n++] = event;
    for (size_t i = 0; i < n; i++)
        if (write(channel->writer, &kept[i], sizeof event) != sizeof event)
            fv_fatal("a completion channel overflowed");
    fcntl(channel->base.fd, F_SETFL, flags);
    pthread_mutex_unlock(&channel->lock);
}

int ibv_destroy_cq(struct ibv_cq *base)
{
    struct fv_cq *cq = (struct fv_cq *)base;
    struct fv_context *c = fv_context_of(base->context);
    fv_enter(c);
    bool used = cq->users != 0;
    if (!used && base->channel)
        base->channel->refcnt--;
    fv_leave(c);
    if (used)
        return EBUSY;
    if (base->channel)
        withdraw((struct fv_channel *)base->channel, cq);
    pthread_mutex_lock(&base->mutex); /* what was got must be acknowledged */
    while (base->comp_events_completed != cq->events)
        pthread_cond_wait(&base->cond, &base->mutex);
    pthread_mutex_unlock(&base->mutex);
    fv_object(c, FV_CQS, -1);
    pthread_mutex_destroy(&cq->lock);
    pthread_mutex_destroy(&base->mutex);
    pthread_cond_destroy(&base->cond);
    free(cq->ring);
    free(cq);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **cq, void **cq_context)
{
    struct ibv_cq *event;
    if (read(base->fd, &event, sizeof event) != sizeof event)
        return -1;
    pthread_mutex_lock(&event->mutex);
    ((struct fv_cq *)event)->events++;
    pthread_mutex_unlock(&event->mutex);
    *cq = event;
    *cq_context = event->cq_context;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += n;
    pthread_cond_signal(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}

void fv_complete(struct fv_cq *cq, const struct fv_cqe *entry, bool solicited)
{
    pthread_mutex_lock(&cq->lock);
    uint32_t depth = (uint32_t)cq->base.cqe;
    if (cq->head - cq->tail == depth)
        fv_fatal("%s: a completion queue of %u overflowed", cq->base.context->device->name, depth);
    cq->ring[cq->head++ % depth] = *entry;
    atomic_fetch_add_explicit(&cq->count, 1, memory_order_release);
    bool wake
        = cq->armed == FV_ANY
          || (cq->armed == FV_SOLICITED_ONLY && (solicited || entry->wc.status != IBV_WC_SUCCESS));
    if (wake) {
        cq->armed = FV_UNARMED;
        struct ibv_cq *event = &cq->base;
        struct fv_channel *channel = (struct fv_channel *)cq->base.channel;
        if (write(channel->writer, &event, sizeof event) != sizeof event)
            fv_fatal("a completion channel overflowed");
    }
    pthread_mutex_unlock(&cq->lock);
}

/* `qp` is being destroyed. */
void fv_forget(struct fv_cq *cq, const struct fv_qp *qp)
{
    pthread_mutex_lock(&cq->lock);
    uint32_t depth = (uint32_t)cq->base.cqe;
    uint64_t kept = cq->tail;
    for (uint64_t i = cq->tail; i != cq->head; i++) {
        struct fv_cqe entry = cq->ring[i % depth];
        if (entry.qp == qp) {
            if (fv_options.like == FV_MLX5) {
                if (entry.srq)
                    atomic_fetch_sub(&entry.srq->used, 1);
                continue;
            }
            entry.qp = NULL;
        }
        cq->ring[kept++ % depth] = entry;
    }
    atomic_fetch_sub_explicit(&cq->count, (uint32_t)(cq->head - kept), memory_order_relaxed);
    cq->head = kept;
    pthread_mutex_unlock(&cq->lock);
}

int fv_poll_cq(struct ibv_cq *base, int n, struct ibv_wc *wc)
{
    struct fv_cq *cq = (struct fv_cq *)base;
    int taken = 0;
    if (atomic_load_explicit(&cq->count, memory_order_acquire) == 0)
        return 0; /* who polls all the time keeps nobody from the lock */
    pthread_mutex_lock(&cq->lock);
    for (; taken < n && cq->tail != cq->head; taken++, cq->tail++) {
        const struct fv_cqe *entry = &cq->ring[cq->tail % (uint32_t)base->cqe];
        wc[taken] = entry->wc;
        if (entry->srq && fv_options.like == FV_MLX5)
            atomic_fetch_sub(&entry->srq->used, 1);
        else if (entry->qp
                 && !entry->srq) /* the queue's slots up to this one can be posted to again */
            atomic_store_explicit(entry->receive ? &entry->qp->r_freed : &entry->qp->freed,
                                  entry->index + 1, memory_order_release);
    }
    atomic_fetch_sub_explicit(&cq->count, (uint32_t)taken, memory_order_relaxed);
    pthread_mutex_unlock(&cq->lock);
    return taken;
}

int fv_req_notify_cq(struct ibv_cq *base, int solicited_only)
{
    struct fv_cq *cq = (struct fv_cq *)base;
    if (!base->channel)
        return EINVAL;
    pthread_mutex_lock(&cq->lock);
    if (!solicited_only)
        cq->armed = FV_ANY;
    else if (cq->armed == FV_UNARMED)
        cq->armed = FV_SOLICITED_ONLY;
    pthread_mutex_unlock(&cq->lock);
    return 0;
}
