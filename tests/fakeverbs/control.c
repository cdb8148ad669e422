/* What a test does to the network from outside; fabric.py calls these. A process that only controls
 * opens no device. */
#include "fabric.h"

struct fv_fabric *fakeverbs_open(const char *path)
{
    return fv_fabric_open(path);
}

void fakeverbs_close(struct fv_fabric *f)
{
    fv_fabric_close(f);
}

void fakeverbs_cut(struct fv_fabric *f, uint32_t from, uint32_t to, uint32_t kinds)
{
    atomic_fetch_or(&f->shared->links[from][to].dropped, kinds);
}

void fakeverbs_heal(struct fv_fabric *f, uint32_t from, uint32_t to, uint32_t kinds)
{
    struct fv_link *link = &f->shared->links[from][to];
    atomic_store(&link->left, 0);
    atomic_fetch_and(&link->dropped, ~kinds);
    fv_ring_all(f);
}

/* After `n` more packets of `counted` kinds from one to the other (`whole`: messages), these kinds
 * are dropped there and back. */
void fakeverbs_fuse(struct fv_fabric *f, uint32_t from, uint32_t to, uint32_t counted, int whole,
                    int64_t n, uint32_t dropped, uint32_t dropped_back)
{
    struct fv_link *link = &f->shared->links[from][to];
    atomic_store(&link->left, 0);
    atomic_store(&link->counted, counted);
    atomic_store(&link->whole, whole != 0);
    atomic_store(&link->then_dropped, dropped);
    atomic_store(&link->then_dropped_back, dropped_back);
    atomic_store(&link->left, n);
}

uint64_t fakeverbs_blown(struct fv_fabric *f, uint32_t from, uint32_t to)
{
    return atomic_load(&f->shared->links[from][to].blown);
}

/* The port's state changes, and every NIC of it tells so by an event. */
void fakeverbs_down(struct fv_fabric *f, uint32_t port, int down)
{
    atomic_store(&f->shared->ports[port].down, down != 0);
    atomic_fetch_add(&f->shared->changes, 1);
    fv_ring_all(f);
}

/* The port gets another address, and every NIC of it tells so by an event. */
void fakeverbs_move(struct fv_fabric *f, uint32_t port)
{
    atomic_fetch_add(&f->shared->ports[port].moved, 1);
    atomic_fetch_add(&f->shared->changes, 1);
    fv_ring_all(f);
}

/* The second entry of the port's table of partition keys, of which every NIC tells by an event. */
void fakeverbs_partition(struct fv_fabric *f, uint32_t port, uint32_t pkey)
{
    atomic_store(&f->shared->ports[port].pkey, pkey);
    atomic_fetch_add(&f->shared->changes, 1);
    fv_ring_all(f);
}

void fakeverbs_narrow(struct fv_fabric *f, uint32_t port, uint32_t nbytes)
{
    atomic_store(&f->shared->ports[port].narrow, nbytes);
    fv_ring_all(f);
}

void fakeverbs_speed(struct fv_fabric *f, uint32_t port, uint64_t bytes_per_second)
{
    atomic_store(&f->shared->ports[port].bytes_per_second, bytes_per_second);
    fv_ring_all(f);
}

uint64_t fakeverbs_count(struct fv_fabric *f, uint32_t port, uint32_t what)
{
    return atomic_load(&f->shared->ports[port].counts[what]);
}

/* Fills in pid, port, whether its process lives, then the counts of objects; 0 when nothing is open
 * in this slot. */
int fakeverbs_slot(struct fv_fabric *f, uint32_t slot, uint64_t out[3 + FV_OBJECTS])
{
    struct fv_slot *s = &f->shared->slots[slot];
    uint32_t state = atomic_load(&s->state);
    if (state == FV_FREE || state == FV_OPENING)
        return 0;
    out[0] = (uint64_t)atomic_load(&s->pid);
    out[1] = atomic_load(&s->port);
    out[2] = fv_slot_alive(f, slot);
    for (int i = 0; i < FV_OBJECTS; i++)
        out[3 + i] = atomic_load(&s->objects[i]);
    return 1;
}
