/* The reading end of a proxy FIFO, by which a block of a kernel tells the host which messages to
 * send.
 *
 * An entry is 8 bytes, so that it is seen whole or not at all: bit 63 is the lap, by which the
 * reader tells a new entry from the old one; then come plan, instruction and tile. Zeroed memory is
 * an empty FIFO. */
#ifndef PC_PROXY_FIFO_H
#define PC_PROXY_FIFO_H
#include <stdbool.h>
#include "gpu/device.h"

struct pc_proxy_entry {
    uint32_t plan;
    uint32_t instruction;
    uint32_t tile;
};

/* The lap bit of the k-th entry, counted from 0. */
static inline bool pc__proxy_fifo_lap(uint64_t k)
{
    return !(k / PC_PROXY_FIFO_ENTRIES & 1);
}

static inline struct pc_proxy_entry pc__proxy_entry(uint64_t bits)
{
    return (struct pc_proxy_entry){
        .plan = bits >> 48 & 0x7fff, .instruction = bits >> 24 & 0xffffff, .tile = bits & 0xffffff};
}

/* Decodes the k-th entry; false: it is not there yet. */
static inline bool pc__proxy_fifo_read(const uint64_t *ring, uint64_t k, struct pc_proxy_entry *out)
{
#ifdef PC_PROXY_FIFO_RELAXED /* a test's mutation: ThreadSanitizer must report it */
    uint64_t bits = __atomic_load_n(&ring[k % PC_PROXY_FIFO_ENTRIES], __ATOMIC_RELAXED);
#else
    uint64_t bits = __atomic_load_n(&ring[k % PC_PROXY_FIFO_ENTRIES], __ATOMIC_ACQUIRE);
#endif
    *out = pc__proxy_entry(bits);
    return bits >> 63 == pc__proxy_fifo_lap(k);
}
#endif
