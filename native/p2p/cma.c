/* Rendezvous with a mapped peer: the reader copies a message from where it lies, one copy instead
 * of two.
 *
 * Memory of the heap is mapped. Any other is read by process_vm_readv (CMA), where the kernel
 * allows it: a try on the peer's arena header, whose token proves that it is the peer, shows that.
 */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include "core/target_cpu.h"
#include "p2p/p2p.h"

#define PC_CMA_BYTES (UINT64_C(4) << 20) /* in one step; then other transfers get their turn */

struct offer { /* inline in the line of a PC_IN_SENDER message */
    uint64_t address;
    uint64_t heap; /* offset in the sender's heap, plus one; 0: not in the heap */
};

static ssize_t read_peer(int32_t pid, void *to, uint64_t from, size_t nbytes)
{
    struct iovec mine = {to, nbytes}, theirs = {(void *)(uintptr_t)from, nbytes};
    return process_vm_readv(pid, &mine, 1, &theirs, 1, 0);
}

bool pc__cma_usable(struct pc_comm *comm, uint32_t peer)
{
    const struct pc_arena *known = (const struct pc_arena *)comm->peers[peer].arena;
    struct pc_arena found;
    size_t n = offsetof(struct pc_arena, token) + sizeof found.token;
    if (known == NULL || known->pid == 0 || known->token == 0) /* NULL: a remote peer */
        return false;
    return read_peer(known->pid, &found, known->address, n) == (ssize_t)n
           && memcmp(&found, known, n) == 0;
}

static int read_all(struct pc_comm *comm, uint32_t peer, void *to, uint64_t from, uint64_t nbytes)
{
    const struct pc_arena *known = (const struct pc_arena *)comm->peers[peer].arena;
    while (nbytes > 0) {
        ssize_t n = read_peer(known->pid, to, from, nbytes);
        if (n <= 0)
            return errno == ESRCH ? PC_LOST : PC_SYSTEM;
        to = (char *)to + n;
        from += (uint64_t)n;
        nbytes -= (uint64_t)n;
    }
    return PC_OK;
}

static bool make_offer(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t,
                       struct pc_line *line)
{
    const char *heap = comm->arena + comm->layout.heap;
    bool registered = !comm->layout.windows && t->at >= heap /* a window has no heap */
                      && t->at + t->nbytes <= comm->arena + comm->layout.end;
    struct offer offer = {.address = (uint64_t)(uintptr_t)t->at,
                          .heap = registered ? (uint64_t)(t->at - heap) + 1 : 0};
    memcpy(line->bytes, &offer, sizeof offer);
    return registered || __atomic_load_n(&queue->fifo->out_credit->place, __ATOMIC_RELAXED);
}

static int read_offer(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t,
                      const struct pc_line *line)
{
    struct offer offer;
    memcpy(&offer, line->bytes, sizeof offer);
    struct pc_fifo *f = queue->fifo;
    uint64_t left = t->nbytes - t->done, n = left < PC_CMA_BYTES ? left : PC_CMA_BYTES;
    const struct pc_arena *theirs = (const struct pc_arena *)comm->peers[f->peer].arena;
    int rc = PC_OK;
    t->withdrawn = atomic_load_explicit(&theirs->withdrawn, memory_order_relaxed);
    if (t->withdrawn)
        return 0;
    if (offer.heap == 0) {
        rc = read_all(comm, f->peer, t->at + t->done, offer.address + t->done, n);
    } else if (comm->layout.windows || t->nbytes > comm->options.heap_bytes
               || offer.heap - 1 > comm->options.heap_bytes - t->nbytes) {
        rc = PC_INVALID;
    } else {
        const char *heap = comm->peers[f->peer].arena + comm->layout.heap;
        pc__copy(t->at + t->done, heap + offer.heap - 1 + t->done, n);
    }
    atomic_thread_fence(memory_order_acquire);
    t->withdrawn = atomic_load_explicit(&theirs->withdrawn, memory_order_relaxed);
    if (t->withdrawn)
        return 0; /* the sender broke off: the bytes read may be garbage */
    if (rc != PC_OK)
        return pc__fail(&comm->p2p->error, rc, (int)f->peer, "the memory of rank %u cannot be read",
                        f->peer);
    t->done += n;
    if (t->done == t->nbytes) {
        f->received++;
        pc__edge_queue_publish(comm, queue); /* the sender waits for this credit */
        t->finished = true;
    }
    return 1;
}

const struct pc_rndv_ops pc__cma_rndv = {.offer = make_offer, .read = read_offer};
