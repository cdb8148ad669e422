/* A REDUCE_COPY through the multicast address of the heaps, at which the same offset of every
 * rank's heap lies: the switch folds the sources of all ranks into one load (multimem.ld_reduce),
 * and one store reaches the destinations of all (multimem.st). multimem_marks.c says which
 * instructions; the target, if it defines PC_TARGET_MULTIMEM, gives the accesses:
 *   pc__multimem_fold16<F, dtype, op>(from)   16 bytes, of PC_SWITCH_FOLDS(dtype, op), not closed
 *   pc__multimem_store16(to, x)               16 bytes
 *   pc__fence_alias()                         between accesses by two addresses of one memory
 *
 * The multicast address takes whole units of 16 bytes. What is beside those is done by the
 * operands' own addresses. Every rank's array has the same offset in its heap, or the call does
 * without. */
#ifndef PC_KERNEL_MULTIMEM_H
#define PC_KERNEL_MULTIMEM_H
#include "gpu/kernel/span.h"

#if defined(PC_TARGET_MULTIMEM)
/* What the switch folds with an op of F's. */
template <class F> struct pc__switch {
    static constexpr bool folds = false;

    PC_DEVICE_FN pc_vector load(const char *)
    {
        return pc_vector();
    }
};

template <uint32_t dtype, uint32_t op> struct pc__switch<pc__folding<dtype, op>> {
    static constexpr bool folds = PC_SWITCH_FOLDS(dtype, op);

    PC_DEVICE_FN pc_vector load(const char *from)
    {
        if constexpr (folds)
            return pc__multimem_fold16<pc__folding<dtype, op>, dtype, op>(from);
        else
            return pc_vector();
    }
};

/* 16 bytes of each source, folded, to all ranks. */
template <class F> struct pc__by_16_to_all : pc__by_16<F> {
    static constexpr bool to_all = true;

    PC_DEVICE_FN void store(char *to, pc_vector x)
    {
        pc__multimem_store16(to, x);
    }
};

/* 16 bytes that the switch has folded: what is left is to close them. */
template <class F> struct pc__by_16_from_all : pc__by_16<F> {
    PC_DEVICE_FN pc_vector load(const char *from)
    {
        return pc__switch<F>::load(from);
    }
};

/* As pc__rows, of one source; `to_all`: the destination is a multicast address. */
template <class F, uint32_t rows>
PC_DEVICE_FN void pc__rows_from_all(const pc__operands &o, uint32_t at, bool to_all)
{
    typedef pc__by_16_from_all<F> access;
    const uint32_t apart = PC_WARP * access::bytes;
    pc_vector x[rows];
    PC_UNROLLED
    for (uint32_t u = 0; u < rows; u++)
        x[u] = access::load(o.one + at + u * apart);
    PC_UNROLLED
    for (uint32_t u = 0; u < rows; u++)
        x[u] = access::close(x[u], o.divisor);
    if (to_all) {
        char *to = o.all + at;
        PC_UNROLLED
        for (uint32_t u = 0; u < rows; u++)
            pc__multimem_store16(to + u * apart, x[u]);
        return;
    }
    PC_ROLLED
    for (uint32_t d = 0; d < o.ndst; d++) {
        char *to = (char *)o.dst[d] + at;
        PC_UNROLLED
        for (uint32_t u = 0; u < rows; u++)
            access::store(to + u * apart, x[u]);
    }
}

template <class F>
PC_DEVICE_FN void pc__units_from_all(const pc__operands &o, uint32_t at, uint32_t count,
                                     bool to_all)
{
    /* Loads of a switch take long: several are in flight, where registers allow. */
    constexpr uint32_t deep = F::deep < 4 ? 2 : 4;
    const uint32_t tile = deep * PC_WARP, thread = pc__thread(), threads = pc__threads();
    const uint32_t whole = threads % PC_WARP ? 0 : count / tile * tile;
    PC_ROLLED
    for (uint32_t i = thread / PC_WARP * tile + thread % PC_WARP; i < whole;
         i += threads / PC_WARP * tile)
        pc__rows_from_all<F, deep>(o, at + i * 16, to_all);
    PC_ROLLED
    for (uint32_t i = whole + thread; i < count; i += threads)
        pc__rows_from_all<F, 1>(o, at + i * 16, to_all);
}

/* The bytes before the first unit of 16 from `address` on, and those in whole units. */
PC_DEVICE_FN void pc__whole_units(const void *address, uint32_t nbytes, uint32_t *head,
                                  uint32_t *body)
{
    const uint32_t before = (0 - (uint32_t)(uintptr_t)address) & 15u;
    *head = before < nbytes ? before : nbytes;
    *body = (nbytes - *head) & ~15u;
}

/* What is not in whole units, at the operands' own addresses. */
template <class F>
PC_DEVICE_FN void pc__span_ends(const pc__operands &o, uint32_t nbytes, uint32_t head,
                                uint32_t body)
{
    PC_ROLLED
    for (uint32_t end = 0; end < 2; end++) {
        const uint32_t at = end ? head + body : 0, count = (end ? nbytes - at : head) / F::bytes;
        pc__units<pc__by_unit<F, F::bytes>, 1>(o, at, count);
    }
}

/* Whether all of n addresses lie alike in their 16 bytes, and on elements. */
template <class F> PC_DEVICE_FN bool pc__alike(const void *const address[], uint32_t n)
{
    const uint32_t first = (uint32_t)(uintptr_t)address[0];
    uint32_t apart = first & (F::bytes - 1);
    PC_ROLLED
    for (uint32_t k = 1; k < n; k++)
        apart |= ((uint32_t)(uintptr_t)address[k] ^ first) & 15u;
    return apart == 0;
}

/* All addresses lie alike. `from`: the multicast address of the sources. */
template <class F>
PC_DEVICE_FN void pc__span_of_all(pc__operands o, uint32_t nbytes, uint32_t flags, const char *from)
{
    uint32_t head, body;
    pc__whole_units(o.one, nbytes, &head, &body);
    pc__span_ends<F>(o, nbytes, head, body);
    if (flags & PC_FLAG_FOLLOWS)
        return;
    const bool to_all = flags & PC_FLAG_STORE_ALL;
    if constexpr (pc__switch<F>::folds) {
        if (flags & PC_FLAG_FOLD_ALL) {
            o.one = from;
            pc__units_from_all<F>(o, head, body / 16, to_all);
            return;
        }
    }
    pc__units<pc__by_16_to_all<F>, F::deep>(o, head, body / 16);
}

/* The same place of this rank's IN and OUT as that of an instruction's operands. */
PC_ROUTINE uint64_t pc__place_of_all(const PC_CALL *call, const struct pc_vm_instruction *i,
                                     uint32_t piece, pc_skip skip)
{
    return call->terms->chunks[i->at.operands->place + piece].at + pc__skipped(call, skip);
}

/* Whether the instruction that this one follows has left it nothing to do: all threads agree. */
PC_ROUTINE bool pc__done_for_all(const PC_CALL *call, const struct pc_vm_instruction *i,
                                 uint32_t piece, pc_skip skip, pc_size nbytes)
{
    if (!(i->flags & PC_FLAG_FOLLOWS) || call->shared->multicast == 0)
        return false;
    const uint64_t begin
        = (uint64_t)(uintptr_t)pc__out(call) + pc__place_of_all(call, i, piece, skip);
    return ((begin | nbytes) & 15u) == 0;
}

/* A marked instruction: true when it is done. */
PC_ROUTINE bool pc__move_of_all(const PC_CALL *call, const struct pc_vm_instruction *i,
                                uint32_t piece, pc_skip skip, void *const address[],
                                uint32_t nbytes, uint32_t divisor)
{
    const uint32_t marks = PC_FLAG_FOLD_ALL | PC_FLAG_STORE_ALL | PC_FLAG_FOLLOWS;
    const uint64_t multicast = call->shared->multicast;
    if (!(i->flags & marks) || multicast == 0)
        return false;
    /* What is stored to all lies alike, as pc__apart has found: it must not be left undone. */
    if (!(i->flags & (PC_FLAG_STORE_ALL | PC_FLAG_FOLLOWS))
        && !pc__alike<F>(address, (uint32_t)i->nsrc + i->ndst))
        return false;
    const uint64_t place = multicast + pc__place_of_all(call, i, piece, skip);
    const char *from = pc__in(call) + place;
    char *to = pc__out(call) + place;
    pc__operands o = {(const char *)address[0],
                      (const char *)address[i->nsrc > 1],
                      to,
                      address + i->nsrc,
                      address,
                      i->nsrc,
                      i->ndst,
                      divisor};
    if (i->nsrc == 1 && divisor == 0)
        pc__span_of_all<pc__copying<F>>(o, nbytes, i->flags, from);
    else
        pc__span_of_all<F>(o, nbytes, i->flags, from);
    return true;
}

/* Run by the first warp, behind pc__astray, when all arrays are reached: whether a thread saw one
 * that keeps the call from the multicast address, at which only heaps lie. All ranks that have the
 * arrays which it needs come to the same answer. */
PC_ROUTINE bool pc__apart(const PC_CALL *call)
{
    const struct pc_shared *shared = call->shared;
    const struct pc_device_image *image = shared->image;
    const char *heap = (const char *)(uintptr_t)image->ipc_peers[image->rank].segments[0].at;
    const uint64_t n = image->states[shared->number].ready;
    const uint32_t in = (uint32_t)(uintptr_t)shared->in, out = (uint32_t)(uintptr_t)shared->out;
    bool apart = false;
    if (image->alike & PC_ALIKE_OUT) {
        apart = (out & (F::bytes - 1)) != 0;
        if (image->mine.in_count)
            apart |= ((in ^ out) & 15u) != 0;
    }
    PC_ROLLED
    for (uint32_t p = pc__thread(); p < image->size; p += PC_WARP) {
        const struct pc_ipc_peer *peer = &image->ipc_peers[p];
        const struct pc_where *theirs = (const struct pc_where *)peer->in[n & 1].bytes;
        apart |= (theirs->in | theirs->out) >> PC_SEGMENT_SHIFT != 0;
        if (p == image->rank)
            continue;
        const struct pc_arrays *arrays = pc__arrays(call, p);
        const char *their_heap = (const char *)(uintptr_t)peer->segments[0].at;
        if (image->alike & PC_ALIKE_IN)
            apart |= arrays->in - their_heap != shared->in - heap;
        if (image->alike & PC_ALIKE_OUT)
            apart |= arrays->out - their_heap != shared->out - heap;
    }
    /* What other ranks have written by their own addresses is now to be found by the multicast
     * address, and what they have read by those may be overwritten: this thread has heard so. */
    pc__fence_alias();
    return apart;
}

/* Run by all threads when a launch begins in a form: whether it uses the multicast address. */
PC_ROUTINE void pc__begin_multicast(PC_CALL *call, uint32_t form)
{
    struct pc_shared *shared = call->shared;
    if (form == 0 || shared->image->multicast == 0)
        return;
    const bool apart = !call->over && pc__thread() < PC_WARP && pc__apart(call);
    if (!pc__barrier(shared, apart) && pc__thread() == 0)
        shared->multicast = shared->image->multicast; /* read behind a barrier */
}

/* Behind the barrier before a count is raised: what all threads have done at the multicast address
 * comes before what whoever hears of it does at its own. */
PC_ROUTINE void pc__leave_multicast(const PC_CALL *call)
{
    if (pc__thread() == 0 && call->shared->multicast)
        pc__fence_alias();
}
#else
PC_ROUTINE void pc__begin_multicast(PC_CALL *, uint32_t)
{
}

PC_ROUTINE void pc__leave_multicast(const PC_CALL *)
{
}

PC_ROUTINE bool pc__done_for_all(const PC_CALL *, const struct pc_vm_instruction *, uint32_t,
                                 pc_skip, pc_size)
{
    return false;
}

PC_ROUTINE bool pc__move_of_all(const PC_CALL *, const struct pc_vm_instruction *, uint32_t,
                                pc_skip, void *const[], uint32_t, uint32_t)
{
    return false;
}
#endif
#endif
