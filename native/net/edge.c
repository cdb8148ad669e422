/* What an edge knows of its half at a peer whose memory is not mapped. */
#include "core/target_cpu.h"

/* Whether message n has come: memory says so before any completion. */
static bool here(const struct pc_fifo *f, uint64_t n)
{
    return pc__count(&f->in_lines[n & (PC_LINES - 1)]) > n;
}

bool pc__edge_holds_credit(const struct pc_net_edge *edge)
{
    return edge->fifo->channel >= PC_MAX_CHANNELS;
}

bool pc__edge_due(const struct pc_net_edge *edge, bool all)
{
    uint64_t half = edge->peer->net->comm->options.slots / 2;
    return all || edge->ahead || pc__edge_holds_credit(edge) || edge->consumed - edge->told >= half
           || here(edge->fifo, edge->consumed + 1) || here(edge->fifo, edge->told + half - 1);
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
    pc__raise(at, count == 0 ? line + 1 : count + PC_LINES); /* who sleeps is woken by the poller */
    return true;
}
