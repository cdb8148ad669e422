/* Marks the instructions of a direct form that can use the multicast address of the heaps; see
 * kernel/multimem.h.
 *
 * A fold is marked by itself: its sources are the same place of all ranks' IN. A store to all is a
 * run of REDUCE_COPYs, as none has more than two destinations: the first one folds or copies, those
 * that follow copy what it copies, or what it has left in OUT, and all their destinations together
 * are the same place of all ranks' OUT. As the data then moves by another address, no other
 * instruction may touch OUT: nothing within a call orders the two addresses. */
#include <string.h>
#include "gpu/device_image.h"

struct marker {
    const struct pc_program *program;
    uint32_t rank, size;
};

static bool same_place(const struct pc_vm_operand *a, const struct pc_vm_operand *b)
{
    return a->place == b->place && a->chunk == b->chunk && a->nchunks == b->nchunks;
}

/* The rank whose array of a kind an operand names, or the number of ranks. */
static uint32_t owner(const struct marker *m, const struct pc_vm_operand *p, bool out)
{
    if (p->space == (out ? PC_SPACE_OUT : PC_SPACE_IN))
        return m->rank;
    if (p->space == (out ? PC_SPACE_PEER_OUT : PC_SPACE_PEER_IN))
        return p->peer;
    return m->size;
}

/* The ranks whose arrays n operands name, a bit for each; 0: not all name that place, or one is
 * named twice. */
static uint64_t owners(const struct marker *m, const struct pc_vm_operand *first, uint32_t n,
                       const struct pc_vm_operand *place, bool out)
{
    uint64_t all = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t rank = owner(m, &first[k], out);
        if (rank >= m->size || all >> rank & 1 || !same_place(&first[k], place))
            return 0;
        all |= UINT64_C(1) << rank;
    }
    return all;
}

static bool touches_out(const struct pc_vm_instruction *line)
{
    for (uint32_t k = 0; k < (uint32_t)line->nsrc + line->ndst; k++)
        if (line->at.operands[k].space == PC_SPACE_OUT
            || line->at.operands[k].space == PC_SPACE_PEER_OUT)
            return true;
    return false;
}

/* How many instructions from one on are a store to all; 0: it begins none. */
static uint32_t run_of(const struct marker *m, uint32_t first, uint32_t end)
{
    const struct pc_vm_instruction *code = m->program->code, *head = &code[first];
    const struct pc_vm_operand *from = head->at.operands;
    const uint64_t every = (m->size < 64 ? UINT64_C(1) << m->size : 0) - 1;
    uint64_t own = UINT64_C(1) << m->rank, reached = 0;
    /* That of this rank among the sources tells how all of them lie. */
    if (!(owners(m, from, head->nsrc, from, false) & own))
        return 0;
    for (uint32_t i = first; i < end && code[i].step == PC_STEP_REDUCE_COPY; i++) {
        const struct pc_vm_operand *p = code[i].at.operands;
        uint64_t to = owners(m, p + code[i].nsrc, code[i].ndst, from, true);
        bool copies = code[i].nsrc == 1 && !(code[i].flags & PC_FLAG_SCALE);
        bool of_result = p->space == PC_SPACE_OUT && reached & own;
        bool of_source
            = p->space == PC_SPACE_IN && head->nsrc == 1 && !(head->flags & PC_FLAG_SCALE);
        if (i > first && (!copies || !same_place(p, from) || !(of_result || of_source)))
            return 0;
        if (to == 0 || reached & to)
            return 0;
        reached |= to;
        if (reached == every)
            return i + 1 - first;
    }
    return 0;
}

/* Whether every REDUCE_COPY that touches OUT belongs to a store to all. */
static bool stores_to_all(const struct marker *m)
{
    const struct pc_program *p = m->program;
    bool any = false;
    for (uint32_t i = 0, n; i < p->ninstructions; i += n) {
        n = run_of(m, i, p->ninstructions);
        any |= n != 0;
        if (n == 0 && p->code[i].step == PC_STEP_REDUCE_COPY && touches_out(&p->code[i]))
            return false;
        n = n == 0 ? 1 : n;
    }
    return any;
}

uint32_t pc__mark_multimem(const struct pc_program *program, struct pc_vm_instruction *code,
                           uint32_t rank, uint32_t size, bool folds)
{
    const struct marker m = {.program = program, .rank = rank, .size = size};
    uint32_t alike = 0;
    if (size < 2 || size > 64)
        return 0;
    const uint64_t every = (size < 64 ? UINT64_C(1) << size : 0) - 1;
    for (uint32_t i = 0; i < program->ninstructions && folds; i++) {
        const struct pc_vm_instruction *line = &program->code[i];
        const struct pc_vm_operand *from = line->at.operands;
        if (line->step != PC_STEP_REDUCE_COPY || owners(&m, from, line->nsrc, from, false) != every)
            continue;
        code[i].flags |= PC_FLAG_FOLD_ALL;
        alike |= PC_ALIKE_IN;
    }
    for (uint32_t i = 0, n; stores_to_all(&m) && i < program->ninstructions; i += n) {
        n = run_of(&m, i, program->ninstructions);
        for (uint32_t k = 0; k < n; k++)
            code[i + k].flags |= k == 0 ? PC_FLAG_STORE_ALL : PC_FLAG_FOLLOWS;
        if (n != 0) /* a fold reads those of others by their own addresses, if not by the switch */
            alike |= PC_ALIKE_OUT | (program->code[i].nsrc > 1 ? PC_ALIKE_IN : 0);
        n = n == 0 ? 1 : n;
    }
    return alike;
}
