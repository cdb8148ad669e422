/* The span of the GPU's kernels, compiled for this machine, to be called from Python. */
#include "gpu/kernel/target_simt.h"

#include "gpu/kernel/span.h"

namespace
{

struct call {
    void **dst;
    const void **src;
    uint32_t ndst, nsrc, divisor, packets;
    uint32_t nbytes;
    const uint32_t *flag;
    uint32_t patience; /* tries that find packets missing, before it gives up */
    uint32_t seal;
    uint32_t npieces;
    const uint32_t *pieces;
    uint32_t gap; /* bytes between two pieces of an operand that is not packets */
};

/* What pc__span_ll moves. */
struct packets_move {
    const call &c;
    uint32_t left;

    uint32_t nsrc() const
    {
        return c.nsrc;
    }

    uint32_t ndst() const
    {
        return c.ndst;
    }

    uint32_t divisor() const
    {
        return c.divisor;
    }

    bool packets(uint32_t operand) const
    {
        return c.packets >> operand & 1;
    }

    uint32_t flag(uint32_t operand) const
    {
        return c.flag[operand];
    }

    void *address(uint32_t operand) const
    {
        return operand < c.nsrc ? (void *)c.src[operand] : c.dst[operand - c.nsrc];
    }

    uint32_t seal() const
    {
        return c.seal;
    }

    uint32_t plain() const
    {
        uint32_t found = c.nsrc;
        for (uint32_t s = 0; s < c.nsrc; s++)
            if (!packets(s))
                found = found == c.nsrc ? s : 255;
        return found;
    }

    uint32_t count() const
    {
        return c.npieces;
    }

    uint32_t nbytes(uint32_t piece) const
    {
        return c.pieces[piece];
    }

    uint64_t offset(uint32_t, uint32_t piece) const
    {
        uint64_t at = 0;
        for (uint32_t k = 0; k < piece; k++)
            at += c.pieces[k] + c.gap;
        return at;
    }

    bool poll(uint32_t)
    {
        return left-- == 0;
    }
};

/* 1 + the operand that it gave up on, or 0. */
template <uint32_t dtype, uint32_t op> uint32_t fold(const call &c)
{
    typedef pc__folding<dtype, op> F;
    packets_move move = {c, c.patience};
    if (c.packets)
        return pc__span_ll<F>(move);
    pc__span_gpu<F>(c.dst, c.ndst, c.src, c.nsrc, c.nbytes, c.divisor);
    return 0;
}

typedef uint32_t (*fold_fn)(const call &);
#define ROW(dtype) {fold<dtype, 0>, fold<dtype, 1>, fold<dtype, 2>, fold<dtype, 3>, fold<dtype, 4>}
const fold_fn folds[PC_NDTYPES][PC_NREDUCE]
    = {ROW(0), ROW(1), ROW(2), ROW(3), ROW(4), ROW(5), ROW(6), ROW(7), ROW(8), ROW(9)};
} // namespace

/* Each thread of a block in turn, as the span never waits for another thread of its own. What they
 * gave up on, in bits: bit j for operand j. */
extern "C" int pc_span_test(uint32_t dtype, uint32_t op, uint32_t threads, const call *c)
{
    pc_simt_block block(threads);
    int dead = 0;
    for (uint32_t t = 0; t < threads; t++) {
        pc_simt_enter(&block, t);
        dead |= (1 << folds[dtype][op](*c)) >> 1;
    }
    return dead;
}
