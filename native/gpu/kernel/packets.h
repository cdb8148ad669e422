/* LL packets of a kernel: which slot and which flag a message has, and which call it belongs to;
 * part of kernel.h. The loop over them is in ll.h. */
#ifndef PC_KERNEL_PACKETS_H
#define PC_KERNEL_PACKETS_H

PC_ROUTINE bool pc__uses_ll(const PC_CALL *call)
{
    return call->terms->packets;
}

/* n modulo PC_LL_FLAG_PERIOD, without a division. */
PC_DEVICE_FN uint32_t pc__in_period(uint64_t n)
{
    n = (n & PC_LL_FLAG_PERIOD) + (n >> 32);
    n = (n & PC_LL_FLAG_PERIOD) + (n >> 32);
    return n == PC_LL_FLAG_PERIOD ? 0 : (uint32_t)n;
}

/* The flag of message n. Never 0, as slots begin as zeros. */
PC_DEVICE_FN uint32_t pc__flag_of(uint64_t n)
{
    return pc__in_period(n) + 1;
}

PC_DEVICE_FN char *pc__ll_slot_of(const struct pc_fifo *f, bool receiving, uint64_t n,
                                  uint32_t slots)
{
    return (receiving ? f->in_packets : f->out_packets)
           + (n & (slots - 1)) * (uint64_t)PC_LL_SLOT_BYTES;
}

PC_ROUTINE char *pc__ll_slot(const PC_CALL *call, const struct pc_fifo *f, bool receiving,
                             uint64_t n)
{
    return pc__ll_slot_of(f, receiving, n, call->terms->slots);
}

/* What the first packet of a message has beside data and flag. */
PC_ROUTINE uint32_t pc__seal(const PC_CALL *call)
{
    uint64_t signature = call->terms->signature;
    return (uint32_t)(signature ^ signature >> 32);
}

/* A rank whose call is another one may send its message the other way, and who waits would never
 * see it: whether the next message is there in packets, or in a slot. Its length may be any, but it
 * has a first packet. */
PC_DEVICE_FN bool pc__came_in_packets(const struct pc_fifo *f, uint32_t slots)
{
    if (f->in_packets == NULL)
        return false;
    const char *slot = pc__ll_slot_of(f, true, f->received, slots);
    return pc__load_packet((const pc_vector *)slot).y >> 32 == pc__flag_of(f->received);
}

PC_DEVICE_FN bool pc__came_in_slot(const struct pc_fifo *f)
{
    return pc__count(&f->in_lines[f->received & (PC_LINES - 1)]) > f->received;
}

/* Flags repeat after PC_LL_FLAG_PERIOD messages, and old packets would then look like new ones; so
 * the reader clears each slot once in each period. */
PC_ROUTINE void pc__clean(const PC_CALL *call, const struct pc_fifo *f)
{
    pc_vector *packet = (pc_vector *)pc__ll_slot(call, f, true, f->received);
    const pc_vector zeros = {};
    PC_ROLLED
    for (uint32_t k = 0; k < PC_LL_PACKETS; k++)
        pc__store_packet(&packet[k], zeros);
    pc__fence(call->shared); /* the peer's next packets come after the zeros */
}

PC_ROUTINE void pc__taken(PC_CALL *call, struct pc_fifo *f)
{
    if (f->in_packets && pc__in_period(f->received) >= PC_LL_FLAG_PERIOD - call->terms->slots)
        pc__clean(call, f);
}

/* Whether the next message belongs to another call. */
PC_ROUTINE bool pc__foreign(const PC_CALL *call, const struct pc_fifo *f)
{
    const uint64_t n = f->received;
    const pc_vector first = pc__load_packet((const pc_vector *)pc__ll_slot(call, f, true, n));
    return (first.y >> 32 == pc__flag_of(n) && (uint32_t)first.y != pc__seal(call))
           || pc__came_in_slot(f);
}

/* Reports why polling for packets was given up. */
PC_ROUTINE void pc__gave_up(PC_CALL *call, const struct pc_vm_instruction *i, uint32_t operand)
{
    const struct pc_fifo *f = i->at.operands[operand].fifo;
    int code = pc__foreign(call, f) ? PC_MISMATCH : pc__verdict(call);
    call->dead = true;
    if (code != PC_BROKEN)
        pc__give_up(call, i, code, f->peer, f->received + 1, f->received);
}
#endif
