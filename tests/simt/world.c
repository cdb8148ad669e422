#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "gpu/device_image.h"
#include "world.h"

struct rank_memory {
    struct pc_comm *comm;
    struct pc_line *lines;  /* [peer][block][PC_LINES] */
    struct pc_line *credit; /* [peer][block] */
    struct pc_line *done;   /* [peer][block] */
    struct pc_line *ready;  /* [peer][2] */
    struct pc_ipc_peer *ipc_peers;
    uint64_t segment; /* the address of segment 1 */
    struct pc_arrays *arrays;
    char *heap;
    char *packets;         /* [peer][block][slot] */
    char *data;            /* [peer][block][slot] */
    struct pc_fifo *fifos; /* [peer][block] */
    struct pc_token *dones;
    struct pc_token *locals;
    struct pc_block_state *states;
    struct pc_host_control *control;
    char *scratch;
};

#define SCRATCH (1u << 20)

struct world {
    uint32_t size, slots, slot_bytes;
    char *multicast;
    struct rank_memory ranks[MAX_RANKS];
};

static void *zeros(size_t nbytes)
{
    void *p = aligned_alloc(128, (nbytes + 127) / 128 * 128);
    if (p == NULL)
        abort();
    return memset(p, 0, nbytes);
}

static struct pc_comm *open_comm(uint32_t rank, uint32_t size, uint32_t slots, uint32_t slot_bytes)
{
    struct pc_options options
        = {.rank = rank, .size = size, .slots = slots, .slot_bytes = slot_bytes};
    struct pc_comm *comm;
    if (pc_comm_open(&options, &comm) != PC_OK) {
        fprintf(stderr, "open: %s\n", pc_comm_error(comm)->text);
        exit(2);
    }
    for (uint32_t p = 0; p < size; p++) { /* connected, as far as the loader asks */
        comm->peers[p].mapped = true;
        comm->peers[p].record = pc__record(comm->arena, &comm->layout, p);
        comm->dones[p].peer = p;
        for (uint32_t c = 0; c < PC_EDGE_CHANNELS; c++) {
            comm->fifos[p * PC_EDGE_CHANNELS + c].peer = p;
            comm->fifos[p * PC_EDGE_CHANNELS + c].channel = (uint8_t)c;
        }
    }
    comm->nmapped = size;
    return comm;
}

static size_t edge(uint32_t peer, uint32_t block)
{
    return (size_t)peer * PC_MAX_BLOCKS + block;
}

static void link_edge(struct world *w, uint32_t r, uint32_t p, uint32_t b, uint64_t first)
{
    struct rank_memory *mine = &w->ranks[r], *theirs = &w->ranks[p];
    size_t packets = (size_t)w->slots * PC_LL_SLOT_BYTES, data = (size_t)w->slots * w->slot_bytes;
    mine->fifos[edge(p, b)] = (struct pc_fifo){
        .sent = first,
        .credit = first,
        .received = first,
        .out_lines = &theirs->lines[edge(r, b) * PC_LINES],
        .out_data = theirs->data + edge(r, b) * data,
        .out_credit = &mine->credit[edge(p, b)],
        .in_lines = &mine->lines[edge(p, b) * PC_LINES],
        .in_data = mine->data + edge(p, b) * data,
        .in_credit = &theirs->credit[edge(r, b)],
        .out_packets = theirs->packets + edge(r, b) * packets,
        .in_packets = mine->packets + edge(p, b) * packets,
        .peer = p,
        .channel = (uint8_t)b,
    };
    mine->dones[edge(p, b)].peer = p;
    mine->dones[edge(p, b)].out = &theirs->done[edge(r, b)];
    mine->dones[edge(p, b)].in = &mine->done[edge(p, b)];
    atomic_store(&mine->credit[edge(p, b)].count, first);
    for (uint64_t n = 0; first && n < PC_LINES; n++)
        atomic_store(&mine->lines[edge(p, b) * PC_LINES + (first - 1 - n) % PC_LINES].count,
                     first - n);
    /* A period ago, a long message has passed with the number of one to come, and only short ones
     * since: where the slot is still to be cleaned. */
    uint64_t again = (first / PC_LL_FLAG_PERIOD + 1) * PC_LL_FLAG_PERIOD;
    for (uint64_t last = again - w->slots; first && last < again; last++) {
        uint64_t s = last % w->slots, n = last + w->slots;
        if (last < first)
            continue;
        uint64_t *half
            = (uint64_t *)(mine->packets + edge(p, b) * packets + (size_t)s * PC_LL_SLOT_BYTES);
        for (uint32_t k = 0; k < PC_LL_SLOT_BYTES / 8; k++) /* the flag is in every other one */
            half[k] = (n % PC_LL_FLAG_PERIOD + 1) << 32 | 0xbadbadu;
    }
}

struct world *world_open(uint32_t size, uint32_t slots, uint32_t slot_bytes, uint64_t first)
{
    struct world *w = calloc(1, sizeof *w);
    size_t edges = (size_t)size * PC_MAX_BLOCKS;
    w->size = size;
    w->slots = slots;
    w->slot_bytes = slot_bytes;
    w->multicast = mmap(NULL, HEAP, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint32_t r = 0; r < size; r++) {
        struct rank_memory *m = &w->ranks[r];
        m->comm = open_comm(r, size, slots, slot_bytes);
        m->lines = zeros(edges * PC_LINES * sizeof *m->lines);
        m->credit = zeros(edges * sizeof *m->credit);
        m->done = zeros(edges * sizeof *m->done);
        m->ready = zeros(size * 2 * sizeof *m->ready);
        m->ipc_peers = zeros(size * sizeof *m->ipc_peers);
        m->arrays = zeros(edges * sizeof *m->arrays);
        m->heap = zeros(HEAP);
        m->packets = calloc(edges * slots, PC_LL_SLOT_BYTES); /* untouched, it is not there */
        m->data = calloc(edges * slots, slot_bytes);
        m->fifos = zeros(edges * sizeof *m->fifos);
        m->dones = zeros(edges * sizeof *m->dones);
        m->locals = zeros(PC_LOCALS * sizeof *m->locals);
        m->states = zeros(PC_MAX_BLOCKS * sizeof *m->states);
        m->control = zeros(sizeof *m->control);
        m->scratch = zeros(SCRATCH);
    }
    for (uint32_t r = 0; r < size; r++)
        for (uint32_t p = 0; p < size; p++)
            w->ranks[r].ipc_peers[p]
                = (struct pc_ipc_peer){.out = &w->ranks[p].ready[2 * r],
                                       .in = &w->ranks[r].ready[2 * p],
                                       .segments = {{(uintptr_t)w->ranks[p].heap, HEAP}}};
    for (uint32_t r = 0; r < size; r++)
        for (uint32_t p = 0; p < size; p++)
            for (uint32_t b = 0; p != r && b < PC_MAX_BLOCKS; b++)
                link_edge(w, r, p, b, first);
    return w;
}

void world_close(struct world *w)
{
    for (uint32_t r = 0; r < w->size; r++) {
        struct rank_memory *m = &w->ranks[r];
        void *all[] = {m->lines,   m->credit, m->done,      m->packets, m->data,
                       m->fifos,   m->dones,  m->locals,    m->states,  m->control,
                       m->scratch, m->ready,  m->ipc_peers, m->arrays,  m->heap};
        pc_comm_close(m->comm);
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            free(all[i]);
    }
    munmap(w->multicast, HEAP);
    free(w);
}

static void want(struct world *w, uint32_t rank, const char *what, int rc,
                 const struct pc_error *error)
{
    if (rc == PC_OK)
        return;
    fprintf(stderr, "rank %u: %s: %s\n", rank, what,
            error ? error->text : pc_comm_error(w->ranks[rank].comm)->text);
    exit(2);
}

struct pc_device_image *world_image(struct world *w, uint32_t rank, const struct plan_text *t)
{
    struct rank_memory *m = &w->ranks[rank];
    struct pc_program *program, *direct = NULL;
    struct pc_plan *plan;
    int form = t->direct != NULL;
    struct pc_error error;
    want(w, rank, "load",
         pc_program_load(m->comm, t->program, t->program_bytes, t->root, PC_MAX_DESTINATIONS,
                         &program),
         NULL);
    if (form)
        want(w, rank, "load",
             pc_program_load(m->comm, t->direct, t->direct_bytes, t->root, PC_MAX_DESTINATIONS,
                             &direct),
             NULL);
    struct pc_plan_spec spec = {
        .signature = t->signature,
        .dtype = t->dtype,
        .op = t->op,
        .tile = t->tile,
        .nblocks = t->nblocks,
        .root = t->root,
        .input = {t->input[0], t->input[1]},
        .output = {t->output[0], t->output[1]},
        .blocks = t->blocks,
    };
    want(w, rank, "plan", pc_plan_create(m->comm, &spec, program, direct, &plan), NULL);
    struct pc_device_fifos edges = {
        .fifos = (uintptr_t)m->fifos,
        .dones = (uintptr_t)m->dones,
        .locals = (uintptr_t)m->locals,
        .states = (uintptr_t)m->states,
        .control = (uintptr_t)m->control,
        .scratch = (uintptr_t)m->scratch,
        .scratch_bytes = SCRATCH,
        .slots = w->slots,
        .slot_bytes = w->slot_bytes,
        .packets = true,
        .rank = rank,
        .size = w->size,
        .ipc_peers = (uintptr_t)m->ipc_peers,
        .arrays = (uintptr_t)m->arrays,
        .multicast = t->multicast ? (uint64_t)(w->multicast - m->heap) : 0,
        .rounds = t->multicast > 1,
    };
    const uint32_t instances[2] = {t->instances, t->instances};
    void *image = zeros(pc__device_image_bytes(plan, form, instances));
    want(w, rank, "image",
         pc__device_image_build(plan, form, instances, t->packets, 1, &edges, image,
                                (uintptr_t)image, &error),
         &error);
    pc_plan_free(plan);
    pc_program_free(program);
    pc_program_free(direct);
    return image;
}

void world_register(struct world *w, uint32_t rank, const char *at)
{
    for (uint32_t r = 0; r < w->size; r++)
        w->ranks[r].ipc_peers[rank].segments[1] = (struct pc_segment){(uintptr_t)at, HEAP};
    w->ranks[rank].segment = (uintptr_t)at;
}

void world_show(struct world *w, uint32_t rank, bool there)
{
    struct rank_memory *m = &w->ranks[rank];
    __atomic_store_n(&m->ipc_peers[rank].segments[1].at, there ? m->segment : 0, __ATOMIC_RELEASE);
}

char *world_heap(struct world *w, uint32_t rank)
{
    return w->ranks[rank].heap;
}

char *world_multicast(struct world *w)
{
    return w->multicast;
}

struct pc_host_control *world_control(struct world *w, uint32_t rank)
{
    return w->ranks[rank].control;
}

static bool matches(const struct pc_vm_instruction *line, enum line_kind kind)
{
    switch (kind) {
    case LINE_SYNC:
        return line->flags & PC_FLAG_SYNC;
    case LINE_FENCE:
        return line->flags & PC_FLAG_FENCE;
    case LINE_WAIT_MESSAGE:
        return line->step == PC_STEP_WAIT_MESSAGE;
    case LINE_WAIT_CREDIT:
        return line->step == PC_STEP_WAIT_CREDIT;
    case LINE_WAIT_LOCAL:
        return line->step == PC_STEP_WAIT_LOCAL;
    case LINE_WAIT_DONE:
        return line->step == PC_STEP_WAIT_DONE;
    case LINE_REDUCE_COPY:
        return line->step == PC_STEP_REDUCE_COPY;
    }
    return false;
}

/* The n-th line of lane 0's blocks, in the form that runs, or their number. */
static uint32_t find(const struct pc_device_image *image, enum line_kind kind, uint32_t n,
                     struct pc_vm_instruction **found)
{
    uint32_t count = 0;
    for (uint32_t b = 0; b < image->nblocks; b += image->instances[image->form])
        for (const struct pc_vm_instruction *i = image_block(image, image->form, b)->start;
             i != NULL; i++) {
            if (matches(i, kind) && count++ == n)
                *found = (struct pc_vm_instruction *)i;
            if (i->step == PC_STEP_END)
                break;
        }
    return count;
}

uint32_t image_lines(const struct pc_device_image *image, enum line_kind kind)
{
    struct pc_vm_instruction *none;
    return find(image, kind, UINT32_MAX, &none);
}

void image_mutate(struct pc_device_image *image, enum line_kind kind, uint32_t n)
{
    struct pc_vm_instruction *line = NULL;
    find(image, kind, n, &line);
    if (line == NULL) {
        fprintf(stderr, "no line %u of kind %d\n", n, kind);
        exit(2);
    }
    if (kind == LINE_SYNC || kind == LINE_FENCE)
        line->flags &= (uint8_t)~(kind == LINE_SYNC ? PC_FLAG_SYNC : PC_FLAG_FENCE);
    else
        line->step = PC_STEP_LOOP; /* which does nothing */
}
