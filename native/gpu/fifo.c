/* Makes the FIFOs and tokens of kernels: like those of the CPU, with PC_MAX_BLOCKS edges in place
 * of its channels, and with device addresses. */
#include <stdlib.h>
#include "gpu/device_comm.h"

/* A FIFO in the device arenas of both ranks; `mine` and `theirs` are device addresses. */
static struct pc_fifo direct_fifo(const struct pc_device_comm *dc, uint32_t peer, uint32_t block)
{
    const struct pc_device_layout *l = &dc->layout;
    uint64_t mine = dc->arena, theirs = dc->peers[peer].arena;
    uint32_t me = dc->local, they = dc->peers[peer].local;
#define AT(type, address) (type *)(uintptr_t)(address)
    return (struct pc_fifo){
        .out_lines = AT(struct pc_line, theirs + pc__device_lines(l, me, block)),
        .out_data = AT(char, theirs + pc__device_data(l, me, block)),
        .out_credit = AT(struct pc_line, mine + pc__device_credit(l, they, block)),
        .in_lines = AT(struct pc_line, mine + pc__device_lines(l, they, block)),
        .in_data = AT(char, mine + pc__device_data(l, they, block)),
        .in_credit = AT(struct pc_line, theirs + pc__device_credit(l, me, block)),
        .out_packets = AT(char, theirs + pc__device_ll_slots(l, me, block)),
        .in_packets = AT(char, mine + pc__device_ll_slots(l, they, block)),
        .peer = peer,
        .channel = (uint8_t)block,
    };
}

/* A FIFO in the host arenas: the CPU's, with device addresses; its data may lie on the GPU. */
static struct pc_fifo host_fifo(const struct pc_device_comm *dc, uint32_t peer, uint32_t block)
{
    uint64_t out = pc__gpudirect_data(dc, peer, block, false);
    uint64_t in = pc__gpudirect_data(dc, peer, block, true);
    const struct pc_fifo *f = &dc->comm->fifos[(size_t)peer * PC_EDGE_CHANNELS + block];
    return (struct pc_fifo){
        .out_lines = AT(struct pc_line, pc__host_register_address(dc, f->out_lines)),
        .out_data = AT(char, out != 0 ? out : pc__host_register_address(dc, f->out_data)),
        .out_credit = AT(struct pc_line, pc__host_register_address(dc, f->out_credit)),
        .in_lines = AT(struct pc_line, pc__host_register_address(dc, f->in_lines)),
        .in_data = AT(char, in != 0 ? in : pc__host_register_address(dc, f->in_data)),
        .in_credit = AT(struct pc_line, pc__host_register_address(dc, f->in_credit)),
        .peer = peer,
        .channel = (uint8_t)block,
    };
}

static void write_edges(const struct pc_device_comm *dc, struct pc_fifo *fifos,
                        struct pc_token *dones)
{
    const struct pc_device_layout *l = &dc->layout;
    for (uint32_t p = 0; p < dc->comm->options.size; p++) {
        const struct pc_device_peer *peer = &dc->peers[p];
        bool direct = peer->route == PC_ROUTE_P2P;
        uint32_t nblocks = direct                         ? PC_MAX_BLOCKS
                           : peer->route == PC_ROUTE_SELF ? 0
                                                          : PC_MAX_CHANNELS;
        for (uint32_t b = 0; b < nblocks; b++)
            fifos[(size_t)p * PC_MAX_BLOCKS + b]
                = direct ? direct_fifo(dc, p, b) : host_fifo(dc, p, b);
        for (uint32_t b = 0; b < PC_MAX_BLOCKS && direct; b++)
            dones[(size_t)p * PC_MAX_BLOCKS + b] = (struct pc_token){
                .out = AT(struct pc_line, peer->arena + pc__device_done(l, dc->local, b)),
                .in = AT(struct pc_line, dc->arena + pc__device_done(l, peer->local, b)),
                .peer = p,
            };
    }
}
/* Writes the addresses of all heaps and READY lines, this rank's too. */
static void write_reached(const struct pc_device_comm *dc, struct pc_ipc_peer *ipc_peers)
{
    const struct pc_device_layout *l = &dc->layout;
    for (uint32_t p = 0; p < dc->comm->options.size; p++) {
        const struct pc_device_peer *peer = &dc->peers[p];
        bool self = peer->route == PC_ROUTE_SELF;
        uint64_t theirs = self ? dc->arena : peer->arena;
        ipc_peers[p].segments[0].at = self              ? dc->heap_at
                                      : peer->heap != 0 ? peer->heap
                                                        : theirs + l->heap;
        ipc_peers[p].segments[0].nbytes = dc->heap.bytes;
        ipc_peers[p].out = AT(struct pc_line, theirs + pc__device_ready(l, dc->local));
        ipc_peers[p].in = AT(struct pc_line, dc->arena + pc__device_ready(l, peer->local));
    }
}
#undef AT

/* Offsets of the parts of edges_memory. */
struct parts {
    size_t dones, locals, states, ipc_peers, arrays, end;
};

static struct parts parts_of(uint32_t size)
{
    size_t each = (size_t)size * PC_MAX_BLOCKS;
    struct parts p = {.dones = pc__page_up(each * sizeof(struct pc_fifo))};
    p.locals = p.dones + pc__page_up(each * sizeof(struct pc_token));
    p.states = p.locals + pc__page_up(PC_LOCALS * sizeof(struct pc_token));
    p.ipc_peers = p.states + pc__page_up(PC_MAX_BLOCKS * sizeof(struct pc_block_state));
    p.arrays = p.ipc_peers + pc__page_up(size * sizeof(struct pc_ipc_peer));
    p.end = p.arrays + pc__page_up(each * sizeof(struct pc_arrays));
    return p;
}

/* Makes FIFOs, tokens and block states on the host and uploads them; only kernels change them. */
int pc__device_fifos_make(struct pc_device_comm *dc)
{
    const struct pc_options *o = &dc->comm->options;
    struct parts parts = parts_of(o->size);
    char *memory = calloc(1, parts.end);
    if (memory == NULL)
        return pc__fail(dc->error, PC_NOMEM, -1,
                        "no memory for the edges of a device communicator");
    int rc = pc_cuda_alloc(dc->device, parts.end, dc->error, &dc->edges_memory);
    if (rc == PC_OK) {
        uint64_t at = dc->edges_memory;
        write_edges(dc, (struct pc_fifo *)memory, (struct pc_token *)(memory + parts.dones));
        for (uint32_t i = 0; i < PC_LOCALS; i++)
            ((struct pc_token *)(memory + parts.locals))[i].peer = i;
        if (dc->whole)
            write_reached(dc, (struct pc_ipc_peer *)(memory + parts.ipc_peers));
        rc = pc__device_comm_upload(dc, at, memory, parts.end);
        dc->edges = (struct pc_device_fifos){
            .fifos = at,
            .dones = at + parts.dones,
            .locals = at + parts.locals,
            .states = at + parts.states,
            .control = dc->watch_device,
            .rank = o->rank,
            .size = o->size,
            .slots = dc->layout.slots,
            .slot_bytes = dc->layout.slot_bytes,
            .packets = dc->whole,
            .ipc_peers = dc->whole ? at + parts.ipc_peers : 0,
            .arrays = dc->whole ? at + parts.arrays : 0,
            .multicast = dc->multicast.at != 0 ? dc->multicast.at - dc->heap_at : 0,
            .rounds = dc->multicast.rounds};
    }
    free(memory);
    return rc;
}
