/* Pacing, with -DPC_PACE=<bytes per second>: data that leaves for another rank takes as long as it
 * would on a link of that speed, so that ranks that share one GPU can stand for ranks on several.
 * Part of kernel.h; without the flag nothing of this is compiled. No measurement of a link: a link
 * has a latency, other traffic, and its own rules.
 *
 * Each block has an equal share of its rank's link, which is busy until `link_free`. Its leader
 * waits behind each part that the block moves, so a message that is announced by a count is seen
 * when the link would have brought it; packets are seen at once, and what comes behind them waits.
 * Whoever waits looks at the abort word and the deadline as anywhere. Not paced is what goes by a
 * switch's multicast address, and messages between two ranks (transfer.h). */
#ifndef PC_KERNEL_PACE_H
#define PC_KERNEL_PACE_H
#if defined(PC_PACE)

/* How many copies of what an instruction moves pass this rank's link. */
PC_ROUTINE uint32_t pc__crossing(const PC_CALL *call, const struct pc_vm_instruction *i)
{
    const uint32_t n = (uint32_t)i->nsrc + i->ndst, rank = call->shared->image->rank;
    uint32_t found = 0;
    PC_ROLLED
    for (uint32_t j = 0; j < n; j++) {
        const struct pc_vm_operand *p = &i->at.operands[j];
        if (p->space == PC_SPACE_PEER_IN || p->space == PC_SPACE_PEER_OUT)
            found += p->peer != rank;
        else if (p->space == PC_SPACE_SLOT)
            found += !p->receiving;
    }
    return found;
}

PC_ROUTINE void pc__pace(PC_CALL *call, const struct pc_vm_instruction *i, uint64_t nbytes)
{
    if (!pc__leads(call) || call->over)
        return;
    const uint64_t each = nbytes * pc__crossing(call, i) * call->shared->image->nblocks;
    uint64_t now = pc__clock_ns();
    uint32_t spins = 0;
    if (call->link_free < now)
        call->link_free = now;
    call->link_free += each / PC_PACE * 1000000000u + each % PC_PACE * 1000000000u / PC_PACE;
    while (now < call->link_free) {
        /* A later wait need not find out: packets are there before the link has brought them. */
        if (pc__hopeless(call, &spins, i, PC_NOBODY, 1, 0))
            return;
        pc__relax();
        now = pc__clock_ns();
    }
}

/* Packets of 16 bytes have 12 of data. */
template <class F> struct pc_ll_move;

template <class F> PC_DEVICE_FN void pc__pace_ll(const pc_ll_move<F> &move)
{
    uint64_t nbytes = 0;
    PC_ROLLED
    for (uint32_t k = 0; k < move.count(); k++)
        nbytes += move.nbytes(k);
    pc__pace(move.call, move.i, (nbytes + 11) / 12 * 16);
}

#else

PC_ROUTINE void pc__pace(PC_CALL *, const struct pc_vm_instruction *, uint64_t)
{
}

template <class Move> PC_DEVICE_FN void pc__pace_ll(const Move &)
{
}

#endif
#endif
