/* The addresses of an instruction's operands. C11 and CUDA C++; part of the interpreter, whose
 * targets give PC_ROUTINE, PC_CALL, pc__in and the like; see interpreter.h. */
#ifndef PC_OPERANDS_H
#define PC_OPERANDS_H
#include "vm/vm.h"

/* The address of an operand. `skip`: bytes of the chunk in earlier tiles; `packed`: offset in a
 * slot. A message of at most PC_INLINE_BYTES is inline in its line; one that is small lies in one
 * of PC_LINES slots behind the others. */
PC_ROUTINE char *pc__address(PC_CALL *call, const struct pc_vm_operand *p, uint32_t piece,
                             pc_skip skip, pc_size packed, pc_size total)
{
    const struct pc_terms *terms = call->terms;
    uint32_t place = p->place + piece;
    switch ((enum pc_space)p->space) {
    case PC_SPACE_IN:
        return pc__in(call) + terms->chunks[place].at + pc__skipped(call, skip);
    case PC_SPACE_OUT:
        return pc__out(call) + terms->chunks[place].at + pc__skipped(call, skip);
    case PC_SPACE_SCRATCH:
        return terms->scratch + (uint64_t)place * terms->tile;
    case PC_SPACE_PEER_IN:
        return pc__peer_in(call, p->peer) + terms->chunks[place].at + pc__skipped(call, skip);
    case PC_SPACE_PEER_OUT:
        return pc__peer_out(call, p->peer) + terms->chunks[place].at + pc__skipped(call, skip);
    case PC_SPACE_SLOT:
        break;
    }
    struct pc_fifo *f = p->fifo;
    uint64_t n = p->receiving ? f->received : f->sent;
    if (pc__uses_ll(call))
        return pc__ll_slot(call, f, p->receiving, n);
    if (total <= PC_INLINE_BYTES)
        return (char *)(p->receiving ? f->in_lines : f->out_lines)[n & (PC_LINES - 1)].bytes
               + packed;
    uint64_t small = pc__small_bytes(call, f);
    uint64_t at = total <= small ? (uint64_t)terms->slots * terms->slot_bytes
                                       + (n & (PC_LINES - 1)) * pc__small_stride(small)
                                 : (n & (terms->slots - 1)) * terms->slot_bytes;
    return (p->receiving ? f->in_data : f->out_data) + at + packed;
}

/* How many bytes of chunk c belong to the tile. */
PC_ROUTINE pc_size pc__tile_bytes(const PC_CALL *call, pc_skip skip, uint32_t c)
{
    uint64_t from = pc__skipped(call, skip), nbytes = call->terms->chunks[c].nbytes;
    uint32_t size = call->terms->tile;
    if (from >= nbytes)
        return 0;
    return (pc_size)(nbytes - from < size ? nbytes - from : size);
}

/* The bytes of a range in a tile: the length of its message. */
PC_ROUTINE pc_size pc__message_bytes(const PC_CALL *call, pc_tile tile,
                                     const struct pc_vm_operand *p)
{
    pc_skip skip = pc__skip(call, tile);
    pc_size total = 0;
    PC_ROLLED
    for (uint32_t k = 0; k < p->nchunks; k++)
        total += pc__tile_bytes(call, skip, p->chunk + k);
    return total;
}
#endif
