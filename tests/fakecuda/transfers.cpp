// The engine's kernel of messages between two ranks: what native/gpu/kernel/transfer.cu is to a GPU.
#include "gpu/kernel/target_simt.h"
#include "gpu/kernel/span.h"
#include "gpu/kernel/transfer.h"
#include "driver.h"

namespace { // another Block is in collectives.cpp

struct Block {
    pc_simt_block block;
    pc_transfer_shared shared;
    explicit Block(uint32_t threads) : block(threads)
    {
    }
};

} // namespace

static void play(void *const *arguments, const fake::Grid &grid)
{
    auto launch = (const pc_transfer_args *)arguments[0];
    std::vector<std::unique_ptr<Block>> all;
    for (uint32_t b = 0; b < grid.blocks[0]; b++)
        all.push_back(std::make_unique<Block>(grid.threads));
    fake::together(grid.blocks[0] * grid.threads, [&](uint32_t i) {
        uint32_t b = i / grid.threads;
        pc_simt_enter(&all[b]->block, i % grid.threads);
        pc__transfers(launch, b, &all[b]->shared);
    });
}

enum { REGISTERS_USED = 80 }; // at most, by what the tests of the real kernel hold it to
static fake::Kernel transfers("pc_transfer", {{sizeof(pc_transfer_args)},
                                              REGISTERS_USED,
                                              sizeof(pc_transfer_shared),
                                              play});
