/* A signal on an edge: it raises a count in a mapped peer's memory, or goes to the network. */
#ifndef PC_EDGE_H
#define PC_EDGE_H
#include <string.h>
#include "core/probe.h"
#include "core/target_cpu.h"

/* Sends the next message, whose line is filled but for the count. Its `nbytes` lie at `from`, and
 * belong to `slot`, in the data or in the line; or there already (NULL). OK; AGAIN: the network has
 * it, and pc__net_drained tells when it has left; or a code. The probe says how to store into a
 * mapped peer's slot. */
static inline int pc__edge_message(struct pc_comm *comm, struct pc_fifo *f, struct pc_probe *probe,
                                   void *slot, const void *from, uint64_t nbytes,
                                   struct pc_error *error)
{
    struct pc_line *line = &f->out_lines[f->sent & (PC_LINES - 1)];
    if (!pc__edge_mapped(f)) {
        int rc = pc__net_message(f->edge, slot, from, nbytes, error);
        return rc == PC_OK ? PC_AGAIN : rc;
    }
    if (from != NULL)
        pc__fill_slot(probe, slot, from, nbytes);
    if (pc__raise(line, ++f->sent))
        pc__wakeup_signal(comm, f->peer);
    return PC_OK;
}

/* What may be written behind a transfer's bytes as they are signalled. */
static inline uint64_t pc__edge_trailer(const struct pc_fifo *f)
{
    return pc__edge_mapped(f) ? 0 : PC_TRAILER_BYTES;
}

/* A length that transfers go by: to a mapped peer, or what the network likes. */
static inline uint64_t pc__edge_either(const struct pc_fifo *f, uint64_t mapped, uint64_t by_net)
{
    return pc__edge_mapped(f) ? mapped : by_net;
}

/* Before a message: its credit goes along where the network can do that. True when it does. */
static inline bool pc__edge_credit_along(const struct pc_fifo *f, uint64_t received)
{
    if (pc__edge_mapped(f))
        return false;
    pc__net_credit_along(f->edge, received);
    return true;
}

static inline void pc__edge_credit(struct pc_comm *comm, struct pc_fifo *f, uint64_t received)
{
    if (!pc__edge_mapped(f))
        pc__net_credit(f->edge, received);
    else if (pc__raise(f->in_credit, received))
        pc__wakeup_signal(comm, f->peer);
}
#endif
