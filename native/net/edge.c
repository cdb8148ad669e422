/* An edge to a remote peer: when credit is due, and when all fragments of a message are here. */
#include "core/target_cpu.h"

/* Whether message n has come. Its count in memory shows that before any completion is polled. */
static bool has_come(const struct pc_fifo *f, uint64_t n)
{
    return pc__count(&f->in_lines[n & (PC_LINES - 1)]) > n;
}

bool pc__edge_holds_credit(const struct pc_net_edge *edge)
{
    return edge->fifo->channel >= PC_MAX_CHANNELS;
}

/* Half of what may be in flight is told at once, so that a peer which streams need not stop, and
 * that wherever this rank is next the peer may be ahead by the other half. Fewer are held back for
 * a message to take along, unless the peer is seen to have sent all that it may, and waits: this
 * rank may have nothing to send, or wait for that peer. A rank that waits sees that before it
 * sleeps; one that leaves a call does not look, for the other half is enough then. */
bool pc__edge_due(const struct pc_net_edge *edge, uint64_t depth)
{
    return pc__edge_holds_credit(edge) || 2 * (edge->consumed - edge->told) >= depth
           || has_come(edge->fifo, edge->told + depth - 1);
}

bool pc__edge_frag(struct pc_net_edge *edge, uint32_t line, uint32_t frag, uint32_t frags)
{
    uint8_t *come = &edge->come[line];
    *come |= (uint8_t)(1u << frag);
    if (*come != (1u << frags) - 1)
        return false;
    *come = 0;
    struct pc_line *at = &edge->fifo->in_lines[line];
    uint64_t count = pc__count(at);
    pc__raise(at, count == 0 ? line + 1 : count + PC_LINES); /* the caller wakes sleepers */
    return true;
}
