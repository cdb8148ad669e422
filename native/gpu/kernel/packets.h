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

/* The last packet of a message, which tells which call it belongs to. */
PC_ROUTINE uint64_t pc__seal(const PC_CALL *call, uint64_t n)
{
    uint64_t signature = call->terms->signature;
    return (uint64_t)pc__flag_of(n) << 32 | (uint32_t)(signature ^ signature >> 32);
}

PC_ROUTINE uint64_t *pc__seal_at(const PC_CALL *call, const struct pc_fifo *f, bool receiving,
                                 uint64_t n)
{
    return (uint64_t *)(pc__ll_slot(call, f, receiving, n) + 2 * PC_LL_BYTES);
}

PC_ROUTINE void pc__complete(const PC_CALL *call, const struct pc_fifo *f)
{
    pc__store_ll(pc__seal_at(call, f, false, f->sent), pc__seal(call, f->sent));
}

/* Whether the next message has its last packet; `foreign`: it belongs to another call. */
PC_ROUTINE bool pc__sealed(const PC_CALL *call, const struct pc_fifo *f, bool *foreign)
{
    uint64_t n = f->received, seal = pc__load_ll(pc__seal_at(call, f, true, n));
    bool there = seal >> 32 == pc__flag_of(n);
    *foreign = there && seal != pc__seal(call, n);
    return there;
}

/* A rank whose call is another one may send its message the other way, and who waits would never
 * see it: whether the next message is there in packets, or in a slot. */
PC_DEVICE_FN bool pc__came_in_packets(const struct pc_fifo *f, uint32_t slots)
{
    if (f->in_packets == NULL)
        return false;
    const char *slot = pc__ll_slot_of(f, true, f->received, slots);
    return pc__load_ll((const uint64_t *)(slot + 2 * PC_LL_BYTES)) >> 32
           == pc__flag_of(f->received);
}

PC_DEVICE_FN bool pc__came_in_slot(const struct pc_fifo *f)
{
    return pc__count(&f->in_lines[f->received & (PC_LINES - 1)]) > f->received;
}

/* Flags repeat after PC_LL_FLAG_PERIOD messages, and old packets would then look like new ones; so
 * the reader clears each slot once in each period. */
PC_ROUTINE void pc__clean(const PC_CALL *call, const struct pc_fifo *f)
{
    uint64_t *word = (uint64_t *)pc__ll_slot(call, f, true, f->received);
    PC_ROLLED
    for (uint32_t k = 0; k < PC_LL_SLOT_BYTES / 8; k++)
        pc__store_ll(&word[k], 0);
    pc__fence(call->shared); /* the peer's next packets come after the zeros */
}

/* Waits for the last packet of the next message, whichever thread; false: there is none. */
PC_ROUTINE bool pc__await_seal(PC_CALL *call, const struct pc_vm_instruction *i, struct pc_fifo *f)
{
    uint32_t spins = 0;
    bool foreign = false;
    while (f->sealed <= f->received && !pc__sealed(call, f, &foreign)) {
        if (pc__hopeless(call, &spins, i, f->peer, f->received + 1, f->received))
            return false;
        if (spins % PC_SPINS_PER_LOOK == 0 && (foreign = pc__came_in_slot(f)))
            break;
        pc__relax();
    }
    if (f->sealed > f->received)
        return true;
    if (foreign) {
        pc__give_up(call, i, PC_MISMATCH, f->peer, f->received + 1, f->received + 1);
        return false;
    }
    f->sealed = f->received + 1;
    return true;
}

PC_ROUTINE bool pc__taken(PC_CALL *call, const struct pc_channel *,
                          const struct pc_vm_instruction *i)
{
    struct pc_fifo *f = i->at.fifo;
    if (call->terms->packets && !pc__await_seal(call, i, f)) /* of an empty message */
        return false;
    if (f->in_packets && pc__in_period(f->received) >= PC_LL_FLAG_PERIOD - call->terms->slots)
        pc__clean(call, f);
    return true;
}

/* Decides between two polls for missing words whether to give up. It does when the message belongs
 * to another call, as that never sends them. */
template <class F> struct pc_poll {
    PC_CALL *call;
    const struct pc_vm_instruction *i;
    uint32_t spins;

    PC_DEVICE_MEMBER bool operator()(uint32_t operand)
    {
        bool foreign;
        if (++spins % PC_SPINS_PER_LOOK != 0)
            return false;
        const struct pc_fifo *f = i->at.operands[operand].fifo;
        pc__sealed(call, f, &foreign);
        return foreign || pc__came_in_slot(f) || pc__verdict(call) != PC_OK;
    }
};

/* Reports why pc_poll gave up. */
PC_ROUTINE void pc__gave_up(PC_CALL *call, const struct pc_vm_instruction *i, uint32_t operand)
{
    const struct pc_fifo *f = i->at.operands[operand].fifo;
    bool foreign;
    pc__sealed(call, f, &foreign);
    int code = foreign || pc__came_in_slot(f) ? PC_MISMATCH : pc__verdict(call);
    call->dead = true;
    if (code != PC_BROKEN)
        pc__give_up(call, i, code, f->peer, f->received + 1, f->received);
}
#endif
