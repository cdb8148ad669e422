#include <errno.h>
#include <sched.h>
#include "ring.h"

static char *place(struct fv_fabric *f, uint32_t slot, uint64_t position)
{
    return f->rings + (size_t)slot * FV_RING_BYTES + position % FV_RING_BYTES;
}

/* Never blocks for long: the holder may be a stopped process. */
static bool lock(struct fv_slot *s)
{
    for (int tries = 0; tries < 64; tries++) {
        int error = pthread_mutex_trylock(&s->lock);
        if (error == EOWNERDEAD) /* it was killed; what it had not committed never was */
            error = pthread_mutex_consistent(&s->lock);
        if (!error)
            return true;
        if (tries > 16)
            sched_yield();
    }
    return false;
}

struct fv_packet *fv_ring_begin(struct fv_fabric *f, uint32_t slot, uint32_t length)
{
    struct fv_slot *s = &f->shared->slots[slot];
    if (!lock(s))
        return NULL;
    uint32_t bytes = (uint32_t)sizeof(struct fv_packet) + ((length + 7) & ~7u);
    uint64_t head = atomic_load(&s->head);
    uint64_t tail = atomic_load_explicit(&s->tail, memory_order_acquire);
    uint32_t to_end = FV_RING_BYTES - (uint32_t)(head % FV_RING_BYTES);
    uint32_t skipped = to_end < bytes ? to_end : 0;
    if (FV_RING_BYTES - (head - tail) < skipped + bytes) {
        pthread_mutex_unlock(&s->lock);
        return NULL;
    }
    if (skipped) { /* records are contiguous; all are multiples of 8, so that two words fit */
        struct fv_packet *skip = (struct fv_packet *)place(f, slot, head);
        skip->bytes = skipped;
        skip->kind = 0;
        head += skipped;
        atomic_store_explicit(&s->head, head, memory_order_release);
    }
    struct fv_packet *packet = (struct fv_packet *)place(f, slot, head);
    *packet = (struct fv_packet){.bytes = bytes, .length = length};
    return packet;
}

uint64_t fv_ring_commit(struct fv_fabric *f, uint32_t slot, struct fv_packet *packet)
{
    struct fv_slot *s = &f->shared->slots[slot];
    uint64_t bytes = packet->bytes;
    uint64_t end = atomic_fetch_add_explicit(&s->head, bytes, memory_order_release) + bytes;
    pthread_mutex_unlock(&s->lock);
    fv_slot_ring(f, slot);
    return end;
}

void fv_ring_cancel(struct fv_fabric *f, uint32_t slot)
{
    pthread_mutex_unlock(&f->shared->slots[slot].lock);
}

struct fv_packet *fv_ring_peek(struct fv_fabric *f, uint32_t slot)
{
    struct fv_slot *s = &f->shared->slots[slot];
    for (;;) {
        uint64_t tail = atomic_load_explicit(&s->tail, memory_order_relaxed);
        if (tail == atomic_load_explicit(&s->head, memory_order_acquire))
            return NULL;
        struct fv_packet *packet = (struct fv_packet *)place(f, slot, tail);
        if (packet->kind)
            return packet;
        fv_ring_take(f, slot, packet);
    }
}

void fv_ring_take(struct fv_fabric *f, uint32_t slot, const struct fv_packet *packet)
{
    atomic_fetch_add_explicit(&f->shared->slots[slot].tail, packet->bytes, memory_order_release);
}

bool fv_ring_taken(struct fv_fabric *f, uint32_t slot, uint64_t end)
{
    return atomic_load_explicit(&f->shared->slots[slot].tail, memory_order_acquire) >= end;
}
