/* A plane's edges: the FIFOs and tokens of its kernels, which are those of the CPU with
 * PC_MAX_BLOCKS edges where it has channels, and with the device's addresses. */
#include <stdlib.h>
#include "gpu/device_comm.h"

/* An edge by way of both ranks' device arenas; `mine` and `theirs` as the device sees them. */
static struct pc_fifo direct_fifo(const struct pc_device_comm *plane, uint32_t peer, uint32_t block)
{
    const struct pc_device_layout *l = &plane->layout;
    uint64_t mine = plane->arena, theirs = plane->peers[peer].arena;
    uint32_t me = plane->place, they = plane->peers[peer].place;
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

/* An edge by way of the host: that of the CPU, with the device's addresses. */
static struct pc_fifo host_fifo(const struct pc_device_comm *plane, uint32_t peer, uint32_t block)
{
    const struct pc_fifo *f = &plane->comm->fifos[(size_t)peer * PC_EDGE_CHANNELS + block];
    return (struct pc_fifo){
        .out_lines = AT(struct pc_line, pc__host_register_address(plane, f->out_lines)),
        .out_data = AT(char, pc__host_register_address(plane, f->out_data)),
        .out_credit = AT(struct pc_line, pc__host_register_address(plane, f->out_credit)),
        .in_lines = AT(struct pc_line, pc__host_register_address(plane, f->in_lines)),
        .in_data = AT(char, pc__host_register_address(plane, f->in_data)),
        .in_credit = AT(struct pc_line, pc__host_register_address(plane, f->in_credit)),
        .peer = peer,
        .channel = (uint8_t)block,
    };
}

static void write_edges(const struct pc_device_comm *plane, struct pc_fifo *fifos,
                        struct pc_token *dones)
{
    const struct pc_device_layout *l = &plane->layout;
    for (uint32_t p = 0; p < plane->comm->options.size; p++) {
        const struct pc_device_peer *peer = &plane->peers[p];
        bool direct = peer->reach == PC_ROUTE_P2P;
        uint32_t nblocks = direct                         ? PC_MAX_BLOCKS
                           : peer->reach == PC_ROUTE_SELF ? 0
                                                          : PC_MAX_CHANNELS;
        for (uint32_t b = 0; b < nblocks; b++)
            fifos[(size_t)p * PC_MAX_BLOCKS + b]
                = direct ? direct_fifo(plane, p, b) : host_fifo(plane, p, b);
        for (uint32_t b = 0; b < PC_MAX_BLOCKS && direct; b++)
            dones[(size_t)p * PC_MAX_BLOCKS + b] = (struct pc_token){
                .out = AT(struct pc_line, peer->arena + pc__device_done(l, plane->place, b)),
                .in = AT(struct pc_line, plane->arena + pc__device_done(l, peer->place, b)),
                .peer = p,
            };
    }
}
/* Where heaps are, and the lines by which ranks tell each other where their arrays are. */
static void write_reached(const struct pc_device_comm *plane, struct pc_ipc_peer *reached)
{
    const struct pc_device_layout *l = &plane->layout;
    for (uint32_t p = 0; p < plane->comm->options.size; p++) {
        const struct pc_device_peer *peer = &plane->peers[p];
        bool self = peer->reach == PC_ROUTE_SELF;
        uint64_t theirs = self ? plane->arena : peer->arena;
        reached[p].heap = AT(char, theirs + l->heap);
        if (self)
            continue;
        reached[p].out = AT(struct pc_line, theirs + pc__device_ready(l, plane->place));
        reached[p].in = AT(struct pc_line, plane->arena + pc__device_ready(l, peer->place));
    }
}
#undef AT

/* Parts of the edges' memory, one behind the other. */
struct parts {
    size_t dones, locals, states, reached, arrays, end;
};

static struct parts parts_of(uint32_t size)
{
    size_t each = (size_t)size * PC_MAX_BLOCKS;
    struct parts p = {.dones = pc__page_up(each * sizeof(struct pc_fifo))};
    p.locals = p.dones + pc__page_up(each * sizeof(struct pc_token));
    p.states = p.locals + pc__page_up(PC_LOCALS * sizeof(struct pc_token));
    p.reached = p.states + pc__page_up(PC_MAX_BLOCKS * sizeof(struct pc_block_state));
    p.arrays = p.reached + pc__page_up(size * sizeof(struct pc_ipc_peer));
    p.end = p.arrays + pc__page_up(each * sizeof(struct pc_arrays));
    return p;
}

/* FIFOs, tokens and block states: made on the host, and the kernels' from then on. */
int pc__device_fifos_make(struct pc_device_comm *plane)
{
    const struct pc_options *o = &plane->comm->options;
    struct parts parts = parts_of(o->size);
    char *memory = calloc(1, parts.end);
    if (memory == NULL)
        return pc__fail(plane->error, PC_NOMEM, -1, "no memory for the edges of a plane");
    int rc = pc_cuda_alloc(plane->device, parts.end, plane->error, &plane->edges_memory);
    if (rc == PC_OK) {
        uint64_t at = plane->edges_memory;
        write_edges(plane, (struct pc_fifo *)memory, (struct pc_token *)(memory + parts.dones));
        for (uint32_t i = 0; i < PC_LOCALS; i++)
            ((struct pc_token *)(memory + parts.locals))[i].peer = i;
        if (plane->whole)
            write_reached(plane, (struct pc_ipc_peer *)(memory + parts.reached));
        rc = pc__device_comm_upload(plane, at, memory, parts.end);
        plane->edges = (struct pc_device_fifos){.fifos = at,
                                                .dones = at + parts.dones,
                                                .locals = at + parts.locals,
                                                .states = at + parts.states,
                                                .watch = plane->watch_device,
                                                .rank = o->rank,
                                                .size = o->size,
                                                .slots = plane->layout.slots,
                                                .slot_bytes = plane->layout.slot_bytes,
                                                .packets = plane->whole,
                                                .reached = plane->whole ? at + parts.reached : 0,
                                                .arrays = plane->whole ? at + parts.arrays : 0,
                                                .heap_bytes = plane->heap.bytes};
    }
    free(memory);
    return rc;
}
