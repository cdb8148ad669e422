// Where blocks are placed, with the option PLACES=1: a kernel begins when all its blocks, or as
// many as its multiprocessors hold at a time, have found room beside those that run. On hardware
// blocks are placed one by one, which tells apart less: who finds no room waits here as there.
#include "driver.h"
#include <algorithm>
#include <vector>

namespace fake
{

struct Room {
    int warps = 0, registers = 0, shared = 0, blocks = 0;
};
static std::map<std::pair<int, unsigned>, Room> &used = // by device and multiprocessor
    *new std::map<std::pair<int, unsigned>, Room>;

static bool put(Room &room, const BlockNeeds &block, int by)
{
    Room after = {room.warps + by * block.warps, room.registers + by * block.registers,
                  room.shared + by * block.shared, room.blocks + by};
    if (after.warps > THREADS_PER_MULTIPROCESSOR / WARP || after.registers > REGISTERS
        || after.shared > SHARED || after.blocks > BLOCKS_PER_MULTIPROCESSOR)
        return false;
    room = after;
    return true;
}

Places::Places(int device, const std::set<unsigned> &sms, const BlockNeeds &block, size_t blocks,
               const char *name)
    : device(device), block(block)
{
    if (!option("PLACES", 0))
        return;
    std::unique_lock held(lock);
    bool said = false;
    while (!find(sms, std::min(blocks, (size_t)block.resident * sms.size()))) {
        if (!said)
            note("no room: %s waits for a place on %zu multiprocessors", name, sms.size());
        said = true;
        changed.notify_all();
        changed.wait(held);
    }
    note("placed: %s on %u to %u", name, at.empty() ? 0 : *std::min_element(at.begin(), at.end()),
         at.empty() ? 0 : *std::max_element(at.begin(), at.end()));
}

// Breadth first, as far as anybody knows.
bool Places::find(const std::set<unsigned> &sms, size_t wanted)
{
    for (bool placed = true; placed && at.size() < wanted;) {
        placed = false;
        for (unsigned sm : sms)
            if (at.size() < wanted && put(used[{device, sm}], block, 1)) {
                at.push_back(sm);
                placed = true;
            }
    }
    if (at.size() == wanted)
        return true;
    leave();
    return false;
}

void Places::leave()
{
    for (unsigned sm : at)
        put(used[{device, sm}], block, -1);
    at.clear();
}

Places::~Places()
{
    if (at.empty())
        return;
    std::lock_guard held(lock);
    leave();
    changed.notify_all();
}

} // namespace fake
