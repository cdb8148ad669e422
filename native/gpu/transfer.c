/* Transfers of a device communicator: messages between two ranks that no Program sends, by a kernel
 * of their own. See transfer.h for how they go, and gpu/kernel/transfer.h for what runs. */
#include <stdlib.h>
#include <string.h>
#include "gpu/driver/cuda.h"
#include "gpu/device_comm.h"
#include "p2p/p2p.h"

/* Longest transfer of one lane; each doubling has twice as many. */
#define PC_LANE_BYTES (UINT64_C(64) << 10)
/* Rounds of a call that one kernel makes; in round d a rank sends to the rank d behind it, and
 * receives from the rank d before it. All ranks have the same rounds in a kernel, so that none
 * waits for a kernel that its peer has yet to launch behind one that waits for it. */
#define PC_KERNEL_ROUNDS (PC_KERNEL_TRANSFERS / 2)

_Static_assert(PC_DEVICE_TRANSFERS == PC_KERNEL_TRANSFERS, "as users are told");

struct ordered { /* a transfer, and where it stands */
    const struct pc_p2p_op *op;
    uint32_t round;
};

int pc__transfers_open(struct pc_device_comm *dc)
{
    void *peers = NULL;
    size_t nbytes = dc->comm->options.size * sizeof *dc->host_peers;
    int rc = pc_cuda_host_alloc(dc->device, nbytes, dc->error, &peers, &dc->host_peers_device);
    dc->host_peers = peers;
    dc->transfer_graphs = calloc(1, sizeof *dc->transfer_graphs);
    if (rc == PC_OK && dc->transfer_graphs == NULL)
        rc = pc__fail(dc->error, PC_NOMEM, -1, "no memory for transfers");
    return rc;
}

void pc__transfers_close(struct pc_device_comm *dc)
{
    struct pc_error ignored;
    if (dc->host_peers != NULL)
        pc_cuda_host_free(dc->device, dc->host_peers, &ignored);
    dc->host_peers = NULL;
    if (pc__transfers_graphs(dc) == 0) /* else the driver still decrements it */
        free(dc->transfer_graphs);
    dc->transfer_graphs = NULL;
}

uint32_t pc__transfers_graphs(const struct pc_device_comm *dc)
{
    return dc->transfer_graphs == NULL ? 0 : __atomic_load_n(dc->transfer_graphs, __ATOMIC_ACQUIRE);
}

void pc__transfers_gone(struct pc_device_comm *dc, uint32_t peer)
{
    if (dc->host_peers != NULL)
        __atomic_store_n(&dc->host_peers[peer].gone, 1, __ATOMIC_RELEASE);
}

static bool is_gone(const struct pc_device_comm *dc, uint32_t peer)
{
    return __atomic_load_n(&dc->host_peers[peer].gone, __ATOMIC_ACQUIRE) != 0;
}

int pc_device_comm_gone(struct pc_device_comm *dc, uint32_t peer)
{
    if (peer >= dc->comm->options.size)
        return PC_INVALID;
    if (dc->peers[peer].route != PC_ROUTE_NET) /* else the proxy sees when all has come */
        pc__transfers_gone(dc, peer);
    return PC_OK;
}

int pc_device_comm_refuse_message(struct pc_device_comm *dc, uint32_t peer, uint32_t direction)
{
    if (dc->host_peers == NULL || peer >= dc->comm->options.size || direction > PC_DIRECTION_RECV)
        return PC_INVALID;
    __atomic_add_fetch(&dc->host_peers[peer].refused[direction], 1, __ATOMIC_RELEASE);
    return PC_OK;
}

/* ---- what went wrong ------------------------------------------------------------------------- */

static struct pc_transfer text_of(uint64_t signature, uint64_t tag, uint32_t peer,
                                  uint32_t direction)
{
    return (struct pc_transfer){
        .signature = signature ^ tag, .tag = tag, .peer = peer, .direction = direction};
}

static int lost(struct pc_error *error, const struct pc_transfer *t)
{
    char what[96];
    pc__fail(error, PC_LOST, (int)t->peer, "%s cannot finish",
             pc__transfer_text(t, what, sizeof what));
    error->cause = PC_CAUSE_TRANSFER;
    return PC_LOST;
}

int pc__transfers_report(const struct pc_device_error *left, struct pc_error *error)
{
    int code = -(int)left->code;
    char what[96];
    struct pc_transfer t = text_of(left->transfer, left->tag, left->peer, left->direction);
    if (code == PC_MISMATCH)
        return pc__transfer_mismatch(error, &t, left->theirs);
    if (code == PC_LOST)
        return lost(error, &t);
    pc__fail(error, code, (int)t.peer, "%s did not finish within %.3g s on the GPU",
             pc__transfer_text(&t, what, sizeof what), (double)left->timeout_ns * 1e-9);
    error->cause = left->tag == 0 ? PC_CAUSE_TRANSFER : PC_CAUSE_CALL;
    return code;
}

/* ---- launches -------------------------------------------------------------------------------- */

static int check_all(struct pc_device_comm *dc, const struct pc_device_transfers *what,
                     const struct pc_p2p_op *ops, uint32_t n)
{
    const struct pc_options *o = &dc->comm->options;
    for (const struct pc_p2p_op *m = ops; m < ops + n; m++)
        if (m->peer >= o->size || m->peer == o->rank || m->direction > PC_DIRECTION_RECV
            || m->dtype >= PC_DTYPE_CODES || m->nbytes >> PC_NBYTES_BITS)
            return pc__fail(dc->error, PC_INVALID, (int)m->peer,
                            "transfer of %llu bytes of dtype %u with rank %u of %u, by rank %u",
                            (unsigned long long)m->nbytes, m->dtype, m->peer, o->size, o->rank);
    if (what->blocks == 0 || what->blocks > PC_MAX_BLOCKS)
        return pc__fail(dc->error, PC_INVALID, -1, "transfers in %u blocks, want 1 to %u",
                        what->blocks, PC_MAX_BLOCKS);
    if (what->call == 0 && n > PC_KERNEL_TRANSFERS)
        return pc__fail(dc->error, PC_INVALID, -1, "%u transfers at once, want at most %u", n,
                        PC_KERNEL_TRANSFERS);
    for (const struct pc_p2p_op *m = ops; what->call == 0 && m < ops + n; m++)
        if (m->direction == PC_DIRECTION_SEND && is_gone(dc, m->peer)) {
            /* Even if there is room: it reads nothing. */
            uint64_t signature = pc__transfer_signature(m->dtype, m->nbytes);
            struct pc_transfer t = text_of(signature, 0, m->peer, m->direction);
            int rc = lost(dc->error, &t);
            pc__device_comm_fail(dc, rc, dc->error);
            return rc;
        }
    return PC_OK;
}

static int earlier(const void *a, const void *b)
{
    const struct ordered *x = a, *y = b;
    if (x->round != y->round)
        return x->round < y->round ? -1 : 1;
    if (x->op->direction != y->op->direction)
        return x->op->direction < y->op->direction ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op; /* those to one peer keep their order */
}

/* In the order of their rounds, in which those of a direction of a peer follow each other. */
static struct ordered *in_order(const struct pc_device_comm *dc, const struct pc_p2p_op *ops,
                                uint32_t n)
{
    uint32_t rank = dc->comm->options.rank, size = dc->comm->options.size;
    struct ordered *all = malloc((n + (size_t)1) * sizeof *all);
    for (uint32_t i = 0; all != NULL && i < n; i++) {
        bool sends = ops[i].direction == PC_DIRECTION_SEND;
        uint32_t round = (sends ? ops[i].peer - rank : rank - ops[i].peer) + size;
        all[i] = (struct ordered){.op = &ops[i], .round = round % size};
    }
    if (all != NULL)
        qsort(all, n, sizeof *all, earlier);
    return all;
}

/* The base-2 logarithm of the number of lanes, alike at both ends. */
static uint8_t lanes_of(const struct pc_device_comm *dc, const struct pc_p2p_op *m, uint32_t blocks)
{
    bool direct = dc->peers[m->peer].route == PC_ROUTE_P2P;
    uint32_t most = direct || blocks < PC_MAX_CHANNELS ? blocks : PC_MAX_CHANNELS;
    uint8_t lanes_log2 = 0;
    while (2u << lanes_log2 <= most && m->nbytes > PC_LANE_BYTES << lanes_log2)
        lanes_log2++;
    return lanes_log2;
}

static bool same_job(const struct pc_kernel_transfer *a, const struct pc_kernel_transfer *b)
{
    return a->peer == b->peer && a->direction == b->direction;
}

/* Spreads the lanes over the blocks: returns how many blocks there are, at most `blocks`. */
static uint32_t place(struct pc_transfer_args *args, uint32_t blocks)
{
    uint32_t lanes[PC_KERNEL_TRANSFERS] = {0}, all = 0, next = 0;
    for (uint32_t i = 0, first = 0; i < args->n; i++) {
        first = i && same_job(&args->transfers[first], &args->transfers[i]) ? first : i;
        uint32_t each = 1u << args->transfers[i].lanes_log2;
        if (each > lanes[first]) {
            all += each - lanes[first];
            lanes[first] = each;
        }
    }
    uint32_t nblocks = all < blocks ? all : blocks;
    for (uint32_t i = 0, first = 0; i < args->n; i++) {
        struct pc_kernel_transfer *t = &args->transfers[i];
        bool more = i && same_job(&args->transfers[first], t);
        first = more ? first : i;
        t->block = more          ? args->transfers[first].block
                   : t->by_proxy ? 0
                                 : (uint8_t)(next % nblocks);
        next += more || t->by_proxy ? 0 : lanes[first];
    }
    return nblocks;
}

static void write_args(const struct pc_device_comm *dc, const struct pc_device_transfers *what,
                       const struct ordered *ops, uint32_t n, double timeout,
                       struct pc_transfer_args *args)
{
    const struct pc_device_fifos *edges = &dc->edges;
#define AT(type, address) (type *)(uintptr_t)(address)
    *args = (struct pc_transfer_args){
        .fifos = AT(struct pc_fifo, edges->fifos),
        .states = AT(struct pc_block_state, edges->states),
        .control = AT(struct pc_host_control, edges->control),
        .peers = AT(const struct pc_host_peer, dc->host_peers_device),
        .ipc_peers = AT(const struct pc_ipc_peer, edges->ipc_peers),
        .timeout_ns = (uint64_t)(timeout * 1e9),
        .call = what->call,
        .salt = dc->comm->salt,
        .slots = edges->slots,
        .slot_bytes = edges->slot_bytes,
        .n = n,
    };
#undef AT
    for (uint32_t i = 0; i < n; i++) {
        const struct pc_p2p_op *m = ops[i].op;
        args->transfers[i] = (struct pc_kernel_transfer){
            .at = m->at,
            .signature = pc__transfer_signature(m->dtype, m->nbytes),
            .refused = dc->host_peers[m->peer].refused[m->direction],
            .peer = m->peer,
            .direction = (uint8_t)m->direction,
            .lanes_log2 = lanes_of(dc, m, what->blocks),
            .by_proxy = dc->peers[m->peer].route == PC_ROUTE_NET,
        };
    }
    args->nblocks = place(args, what->blocks);
}

int pc_device_comm_transfer(struct pc_device_comm *dc, const struct pc_device_transfers *what,
                            const struct pc_p2p_op *ops, uint32_t n, uintptr_t stream,
                            double timeout)
{
    struct pc_transfer_args args;
    int rc = pc__launchable(dc);
    if (rc == PC_OK)
        rc = check_all(dc, what, ops, n);
    if (rc != PC_OK || n == 0)
        return rc;
    struct ordered *all = in_order(dc, ops, n);
    if (all == NULL)
        return pc__fail(dc->error, PC_NOMEM, -1, "no memory for %u transfers", n);
    for (uint32_t first = 0, end; first < n && rc == PC_OK; first = end) {
        uint32_t kernel = all[first].round / PC_KERNEL_ROUNDS;
        for (end = first;
             end < n && (what->call == 0 || all[end].round / PC_KERNEL_ROUNDS == kernel); end++)
            continue;
        if (end - first > PC_KERNEL_TRANSFERS) {
            rc = pc__fail(dc->error, PC_INVALID, -1, "a call with several transfers to one rank");
            break;
        }
        write_args(dc, what, all + first, end - first, timeout, &args);
        struct pc_launch launch = {.function = what->function,
                                   .blocks = args.nblocks,
                                   .threads = what->threads,
                                   .argument = &args,
                                   .in_graph = &args.in_graph,
                                   .graphs = dc->transfer_graphs,
                                   .call = what->call != 0,
                                   .begins = what->call != 0 && first == 0,
                                   .signature = what->call};
        rc = pc__launch(dc, &launch, stream);
    }
    free(all);
    return rc;
}

/* ---- remote peers ---------------------------------------------------------------------------- */

int pc__transfers_hand_over(struct pc_device_comm *dc, struct pc_proxy_entry entry,
                            struct pc_error *error)
{
    const struct pc_comm *comm = dc->comm;
    uint32_t peer = entry.instruction, lane = entry.tile >> 1;
    if (peer >= comm->options.size || lane >= PC_MAX_CHANNELS
        || dc->peers[peer].route != PC_ROUTE_NET)
        return pc__fail(error, PC_INVALID, -1, "a ring says lane %u of a transfer with rank %u",
                        lane, peer);
    struct pc_fifo *f = &comm->fifos[(size_t)peer * PC_EDGE_CHANNELS + lane];
    if (entry.tile & 1) {
        pc__net_credit(f->edge, ++f->received);
        return PC_OK;
    }
    struct pc_line *line = &f->out_lines[f->sent & (PC_LINES - 1)];
    char *slot = (char *)line->bytes;
    if (line->nbytes > comm->options.slot_bytes)
        return pc__fail(error, PC_INVALID, -1, "a transfer's message of %u bytes, want at most %u",
                        line->nbytes, comm->options.slot_bytes);
    if (line->nbytes > PC_INLINE_BYTES)
        slot = f->out_data
               + (f->sent & (comm->options.slots - 1)) * (uint64_t)comm->options.slot_bytes;
    return pc__net_message(f->edge, slot, NULL, line->nbytes, error);
}
