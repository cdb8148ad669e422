// The engine's own kernels, for one dtype, PC_KERNEL_DTYPE: what native/gpu/kernel/kernel.cu is to a GPU.
#include "gpu/kernel/target_simt.h"
#include "gpu/kernel/span.h"
#include "gpu/kernel/kernel.h"
#include "driver.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

namespace { // another Block is in transfers.cpp

struct Block {
    pc_simt_block block;
    pc_shared shared;
    explicit Block(uint32_t threads) : block(threads)
    {
    }
};

} // namespace

template <uint32_t op> static void play(const pc_kernel_args *ranks, const fake::Grid &grid)
{
    uint32_t blocks = grid.blocks[0] * grid.blocks[1];
    std::vector<std::unique_ptr<Block>> all;
    for (uint32_t b = 0; b < blocks; b++)
        all.push_back(std::make_unique<Block>(grid.threads));
    fake::together(blocks * grid.threads, [&](uint32_t i) {
        uint32_t b = i / grid.threads;
        pc_simt_enter(&all[b]->block, i % grid.threads);
        pc__kernel<pc__folding<PC_KERNEL_DTYPE, op>>(&ranks[b / grid.blocks[0]], b % grid.blocks[0],
                                                     &all[b]->shared);
    });
}

template <uint32_t op> static void one(void *const *arguments, const fake::Grid &grid)
{
    play<op>((const pc_kernel_args *)arguments[0], grid);
}

// One launch for several ranks: blockIdx.y is the rank.
template <uint32_t op> static void fused(void *const *arguments, const fake::Grid &grid)
{
    play<op>(*(const pc_kernel_args *const *)arguments[0], grid);
}

enum { REGISTERS_USED = 80 }; // at most, by what the tests of the real kernels hold them to
#define KERNEL(name, op) \
    static fake::Kernel name##_one( \
        "pc_" TEXT(PC_KERNEL_NAME) "_" #name, \
        {{sizeof(pc_kernel_args)}, REGISTERS_USED, sizeof(pc_shared), one<op>}); \
    static fake::Kernel name##_fused( \
        "pc_fused_" TEXT(PC_KERNEL_NAME) "_" #name, \
        {{sizeof(void *)}, REGISTERS_USED, sizeof(pc_shared), fused<op>});
KERNEL(sum, PC_REDUCE_SUM)
KERNEL(prod, PC_REDUCE_PROD)
KERNEL(min, PC_REDUCE_MIN)
KERNEL(max, PC_REDUCE_MAX)
KERNEL(avg, PC_REDUCE_AVG)
