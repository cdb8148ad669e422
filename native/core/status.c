/* The status of each rank: which call it is in, and on whom it waits. The fast path writes two
 * words of its own cache line and never reads; texts are written only after milliseconds of
 * waiting. */
#include <string.h>
#include "core/trace.h"

static struct pc_arena *mine(struct pc_comm *comm)
{
    return (struct pc_arena *)comm->arena;
}

void pc__status_enter(struct pc_comm *comm, uint64_t signature, uint64_t nbytes)
{
    struct pc_arena *a = mine(comm);
    uint64_t sequence = atomic_load_explicit(&a->sequence, memory_order_relaxed) + 1;
    atomic_thread_fence(memory_order_release); /* IDLE was stored before, and must be seen before */
    atomic_store_explicit(&a->signatures[sequence % PC_STATUS_CALLS], signature,
                          memory_order_relaxed);
    atomic_store_explicit(&a->sequence, sequence, memory_order_relaxed);
    atomic_store_explicit(&a->state, PC_STATUS_CALLING, memory_order_release);
    pc__trace_enter(comm, sequence, signature, nbytes);
}

void pc__status_leave(struct pc_comm *comm)
{
    pc__trace_leave(comm, PC_OK);
    atomic_store_explicit(&mine(comm)->state, PC_STATUS_IDLE, memory_order_release);
}

/* Peers may read while this writes. At worst they get a torn text, always terminated; `described`
 * tells whether it is about the call that they ask after. */
void pc__status_describe(struct pc_comm *comm, const char *text)
{
    struct pc_arena *a = mine(comm);
    size_t n = strnlen(text, sizeof a->text - 1);
    atomic_store_explicit(&a->described, 0, memory_order_release);
    memcpy(a->text, text, n);
    a->text[n] = 0;
    uint64_t sequence = atomic_load_explicit(&a->sequence, memory_order_relaxed);
    atomic_store_explicit(&a->described, (uint32_t)sequence, memory_order_release);
}

int pc_status_describe(struct pc_comm *comm, const char *text)
{
    if (comm->joined == NULL) /* else the status shows an earlier call of the queue */
        pc__status_describe(comm, text);
    return PC_OK;
}

/* Any thread may ask: NULL while the peer is not mapped. */
static struct pc_arena *mapped(struct pc_comm *comm, uint32_t peer)
{
    struct pc_arena *a = (struct pc_arena *)atomic_load(&comm->peers[peer].arena);
    return comm->peers[peer].stands_in ? NULL : a;
}

static void read_call(const struct pc_arena *a, struct pc_status *out)
{
    out->state = atomic_load_explicit(&a->state, memory_order_acquire);
    out->sequence = atomic_load_explicit(&a->sequence, memory_order_relaxed);
    out->signature = atomic_load_explicit(&a->signatures[out->sequence % PC_STATUS_CALLS],
                                          memory_order_relaxed);
}

static void read_status(const struct pc_arena *a, struct pc_status *out)
{
    read_call(a, out);
    out->described = atomic_load_explicit(&a->described, memory_order_acquire);
    atomic_thread_fence(memory_order_acquire); /* for the second read of `sequence` */
    memcpy(out->text, a->text, sizeof out->text);
    out->text[sizeof out->text - 1] = 0;
}

int pc_status_read(struct pc_comm *comm, uint32_t peer, struct pc_status *out)
{
    if (peer >= comm->options.size)
        return PC_INVALID;
    struct pc_arena *a = mapped(comm, peer);
    if (a == NULL)
        return PC_UNMAPPABLE;
    read_status(a, out);
    return PC_OK;
}

int pc_status_of_arena(const void *arena, size_t nbytes, struct pc_status *out)
{
    if (pc_trace_find(arena, nbytes) == NULL)
        return PC_INVALID;
    read_status(arena, out);
    return PC_OK;
}

static int in_other_call(struct pc_arena *a, const struct pc_status *own)
{
    struct pc_status theirs;
    read_call(a, &theirs);
    return theirs.state == PC_STATUS_CALLING && theirs.sequence == own->sequence
           && theirs.signature != own->signature;
}

int pc_status_differs(struct pc_comm *comm)
{
    struct pc_status own;
    read_call(mine(comm), &own);
    if (own.state != PC_STATUS_CALLING)
        return 0;
    for (uint32_t peer = 0; peer < comm->options.size; peer++) {
        struct pc_arena *a = mapped(comm, peer);
        /* Read twice: the owner writes the signature, the sequence and the state one after the
         * other, and leaves IDLE before it does. Equal readings cannot straddle that. */
        if (a == NULL || a == mine(comm) || !in_other_call(a, &own))
            continue;
        atomic_thread_fence(memory_order_acquire);
        if (in_other_call(a, &own))
            return 1;
    }
    return 0;
}

uint64_t pc_status_call(struct pc_comm *comm, uint32_t peer, uint64_t number)
{
    struct pc_arena *a = NULL;
    if (peer < comm->options.size)
        a = (struct pc_arena *)atomic_load(&comm->peers[peer].arena);
    if (a == NULL)
        return 0;
    if (number == 0 || number > atomic_load_explicit(&a->sequence, memory_order_acquire))
        return 0;
    uint64_t found
        = atomic_load_explicit(&a->signatures[number % PC_STATUS_CALLS], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    /* Read again: the rank may have overwritten the signature with a later call's. */
    uint64_t last = atomic_load_explicit(&a->sequence, memory_order_relaxed);
    return last + 1 < number + PC_STATUS_CALLS ? found : PC_FORGOTTEN;
}
