/* Builds the device image of a plan; see device_image.h. What it holds, one behind the other:
 *
 *   pc_device_image | starts | of each form, for each instance: chunks | operands | code
 *
 * Instances have copies of operands and code, as these name the instance's own edges. */
#include <string.h>
#include "gpu/device_image.h"

#define LONGEST_SPAN (UINT64_C(1) << 30) /* a kernel counts bytes in 32 bits */

struct builder {
    const struct pc_plan *plan;
    const struct pc_program *program;
    const struct pc_terms *terms;
    int form;
    uint32_t instances;
    bool packets;
    size_t chunks, operands, code, end; /* offsets in the image */
    const struct pc_device_fifos *edges;
    char *copy;
    uint64_t base;
    struct pc_error *error;
};

static size_t aligned(size_t nbytes)
{
    return (nbytes + PC_LINE_BYTES - 1) / PC_LINE_BYTES * PC_LINE_BYTES;
}

static struct builder begin_at(const struct pc_plan *plan, int form, uint32_t instances, size_t at)
{
    struct builder b = {.plan = plan,
                        .program = form ? plan->direct : plan->staged,
                        .terms = &plan->terms[form],
                        .form = form,
                        .instances = instances};
    if (b.program == NULL)
        return b;
    b.chunks = at;
    b.operands = b.chunks + instances * aligned(b.program->nchunks * sizeof(struct pc_chunk));
    b.code = b.operands + instances * aligned(b.program->noperands * sizeof(struct pc_vm_operand));
    b.end
        = b.code + instances * aligned(b.program->ninstructions * sizeof(struct pc_vm_instruction));
    return b;
}

static size_t starts_end(const struct pc_plan *plan)
{
    return aligned(sizeof(struct pc_device_image))
           + aligned((plan->spec.nblocks + (size_t)1) * sizeof(uint64_t));
}

static struct builder begin(const struct pc_plan *plan, int form, uint32_t instances)
{
    struct builder b = begin_at(plan, 0, instances, starts_end(plan));
    return form == 0 || b.program == NULL ? b : begin_at(plan, 1, instances, b.end);
}

/* The part of a chunk that an instance moves. */
static struct pc_chunk part_of(const struct builder *b, uint32_t instance, uint32_t c)
{
    struct pc_chunk whole = b->plan->partitions[b->form]->chunks[c];
    uint64_t at = pc__part_at(whole.nbytes, b->instances, instance);
    return (struct pc_chunk){.at = whole.at + at,
                             .nbytes = pc__part_at(whole.nbytes, b->instances, instance + 1) - at};
}

/* The bytes of the longest part of a chunk in a tile. */
static uint64_t longest_piece(const struct builder *b, uint32_t instance, uint64_t *ntiles)
{
    uint64_t longest = 0, tile = b->terms->tile;
    for (uint32_t c = 0; c < b->program->nchunks; c++) {
        uint64_t nbytes = part_of(b, instance, c).nbytes;
        longest = nbytes > longest ? nbytes : longest;
    }
    *ntiles = longest > tile ? longest / tile + (longest % tile != 0) : 1;
    return longest < tile ? longest : tile;
}

int pc__device_image_blocks(const struct pc_plan *plan, int form, uint32_t instances)
{
    uint32_t most = 0;
    for (int f = 0; f <= form; f++) {
        struct builder b = begin(plan, f, instances);
        if (b.program == NULL || instances == 0 || instances > PC_MAX_INSTANCES
            || b.program->nchannels * instances > PC_MAX_BLOCKS)
            return PC_INVALID;
        if (b.program->nchannels * instances > most)
            most = b.program->nchannels * instances;
    }
    return (int)most;
}

uint64_t pc__device_image_scratch(const struct pc_plan *plan, int form, uint32_t instances)
{
    uint64_t most = 0;
    for (int f = 0; f <= form; f++) {
        struct builder b = begin(plan, f, instances);
        uint64_t nbytes = b.program ? (uint64_t)instances * b.program->nscratch * b.terms->tile : 0;
        most = nbytes > most ? nbytes : most;
    }
    return most;
}

bool pc__device_image_fits_ll(const struct pc_plan *plan, uint32_t instances)
{
    struct builder b = begin(plan, 0, instances);
    uint64_t ntiles;
    for (uint32_t instance = 0; instance < instances;
         instance++) /* each part begins at a new LL packet */
        if (b.program->widest * ((longest_piece(&b, instance, &ntiles) + 3) & ~UINT64_C(3))
            > PC_LL_BYTES)
            return false;
    return true;
}

size_t pc__device_image_bytes(const struct pc_plan *plan, int form, uint32_t instances)
{
    return pc__device_image_blocks(plan, form, instances) > 0 ? begin(plan, form, instances).end
                                                              : 0;
}

/* Whether parts in LL packets lie as one contiguous span does: each but the last fills whole
 * packets. All ranks get the same answer, as they know the same blocks. */
static bool whole_packets(const struct builder *b)
{
    bool broken = false;
    for (uint32_t c = 0; c < b->program->nchunks; c++) {
        uint64_t nbytes = b->plan->partitions[b->form]->chunks[c].nbytes;
        if (nbytes != 0 && broken)
            return false;
        broken |= nbytes % 4 != 0;
    }
    return true;
}

/* Addresses in the host copy, and the device addresses for them. */
static struct pc_chunk *chunks_at(const struct builder *b, uint32_t instance)
{
    return (struct pc_chunk *)(b->copy + b->chunks
                               + instance * aligned(b->program->nchunks * sizeof(struct pc_chunk)));
}

static struct pc_vm_operand *operands_at(const struct builder *b, uint32_t instance)
{
    return (struct pc_vm_operand *)(b->copy + b->operands
                                    + instance
                                          * aligned(b->program->noperands
                                                    * sizeof(struct pc_vm_operand)));
}

static struct pc_vm_instruction *code_at(const struct builder *b, uint32_t instance)
{
    return (struct pc_vm_instruction *)(b->copy + b->code
                                        + instance
                                              * aligned(b->program->ninstructions
                                                        * sizeof(struct pc_vm_instruction)));
}

static uintptr_t device(const struct builder *b, const void *in_copy)
{
    return (uintptr_t)(b->base + (uint64_t)((const char *)in_copy - b->copy));
}

static uint32_t block_of(const struct builder *b, uint32_t channel, uint32_t instance)
{
    return channel * b->instances + instance;
}

static struct pc_fifo *fifo_of(const struct builder *b, const struct pc_fifo *f, uint32_t instance)
{
    uint64_t index = (uint64_t)f->peer * PC_MAX_BLOCKS + block_of(b, f->channel, instance);
    return (struct pc_fifo *)(uintptr_t)(b->edges->fifos + index * sizeof *f);
}

static struct pc_token *token_of(const struct builder *b, const struct pc_vm_instruction *line,
                                 uint32_t channel, uint32_t instance)
{
    const struct pc_token *t = line->at.token;
    bool local = line->step == PC_STEP_SIGNAL_LOCAL || line->step == PC_STEP_WAIT_LOCAL;
    uint64_t at = local ? b->edges->locals
                              + ((uint64_t)instance * PC_MAX_CHANNELS * PC_MAX_CHANNELS + t->peer)
                                    * sizeof *t
                        : b->edges->dones
                              + ((uint64_t)t->peer * PC_MAX_BLOCKS + block_of(b, channel, instance))
                                    * sizeof *t;
    return (struct pc_token *)(uintptr_t)at;
}

/* A bit for each operand in a slot. */
static uint32_t slots_of(const struct pc_vm_instruction *line)
{
    uint32_t slots = 0;
    for (uint32_t k = 0; k < (uint32_t)line->nsrc + line->ndst; k++)
        slots |= (uint32_t)(line->at.operands[k].space == PC_SPACE_SLOT) << k;
    return slots;
}

/* Whether the edge is of the block's own channel, so that no other block raises its counts. */
static bool own(const struct pc_vm_instruction *line, uint32_t channel)
{
    switch ((enum pc_vm_step)line->step) {
    case PC_STEP_REDUCE_COPY:
        for (uint32_t k = 0; k < (uint32_t)line->nsrc + line->ndst; k++)
            if (line->at.operands[k].space == PC_SPACE_SLOT
                && line->at.operands[k].fifo->channel != channel)
                return false;
        return true;
    case PC_STEP_PUT_MESSAGE:
        return line->at.operands->fifo->channel == channel;
    case PC_STEP_FILL:
    case PC_STEP_CONSUME:
    case PC_STEP_PUT_CREDIT:
    case PC_STEP_WAIT_CREDIT:
    case PC_STEP_WAIT_MESSAGE:
        return line->at.fifo->channel == channel;
    case PC_STEP_SIGNAL_LOCAL:
        return line->at.token->peer / PC_MAX_CHANNELS == channel;
    case PC_STEP_WAIT_LOCAL:
        return line->at.token->peer % PC_MAX_CHANNELS == channel;
    case PC_STEP_SIGNAL_DONE:
    case PC_STEP_WAIT_DONE:
        return channel == 0;
    case PC_STEP_END:
    case PC_STEP_LOOP:
    case PC_STEP_END_LOOP:
        break;
    }
    return true;
}

static void relocate(const struct builder *b, struct pc_vm_instruction *line, uint32_t channel,
                     uint32_t instance)
{
    line->probe = NULL;
    switch ((enum pc_vm_step)line->step) {
    case PC_STEP_REDUCE_COPY:
        line->target = slots_of(line);
        line->at.operands = (struct pc_vm_operand *)device(
            b, operands_at(b, instance) + (line->at.operands - b->program->operands));
        break;
    case PC_STEP_PUT_MESSAGE:
        line->at.operands = (struct pc_vm_operand *)device(
            b, operands_at(b, instance) + (line->at.operands - b->program->operands));
        break;
    case PC_STEP_FILL:
    case PC_STEP_CONSUME:
    case PC_STEP_PUT_CREDIT:
    case PC_STEP_WAIT_CREDIT:
    case PC_STEP_WAIT_MESSAGE:
        line->at.fifo = fifo_of(b, line->at.fifo, instance);
        break;
    case PC_STEP_SIGNAL_LOCAL:
    case PC_STEP_SIGNAL_DONE:
    case PC_STEP_WAIT_LOCAL:
    case PC_STEP_WAIT_DONE:
        line->at.token = token_of(b, line, channel, instance);
        break;
    case PC_STEP_END:
    case PC_STEP_LOOP:
    case PC_STEP_END_LOOP:
        break;
    }
}

static int write_lane(const struct builder *b, uint32_t instance)
{
    const struct pc_program *p = b->program;
    struct pc_chunk *chunks = chunks_at(b, instance);
    struct pc_vm_operand *operands = operands_at(b, instance);
    struct pc_vm_instruction *code = code_at(b, instance);
    for (uint32_t c = 0; c < p->nchunks; c++)
        chunks[c] = part_of(b, instance, c);
    for (uint32_t k = 0; k < p->noperands; k++) {
        operands[k] = p->operands[k];
        if (operands[k].space == PC_SPACE_SLOT)
            operands[k].fifo = fifo_of(b, p->operands[k].fifo, instance);
    }
    for (uint32_t c = 0; c < p->nchannels; c++) {
        uint32_t first = p->starts[c],
                 end = c + 1 < p->nchannels ? p->starts[c + 1] : p->ninstructions;
        for (uint32_t i = first; i < end; i++) {
            code[i] = p->code[i];
            if (!own(&code[i], c))
                return pc__fail(b->error, PC_INVALID, -1,
                                "image: instruction %u of channel %u uses another channel's edge",
                                i, c);
            relocate(b, &code[i], c, instance);
        }
        pc__place_barriers(code + first, end - first, b->packets);
    }
    return PC_OK;
}

static void write_blocks(const struct builder *b, struct pc_device_image *image, uint32_t instance)
{
    uint64_t total = 0;
    struct pc_terms terms = *b->terms;
    uint64_t message = b->program->widest * longest_piece(b, instance, &terms.ntiles);
    for (uint32_t c = 0; c < b->program->nchunks; c++)
        total += chunks_at(b, instance)[c].nbytes;
    message = message < total ? message : total;
    terms.code = (struct pc_vm_instruction *)device(b, code_at(b, instance));
    terms.chunks = (struct pc_chunk *)device(b, chunks_at(b, instance));
    terms.scratch = (char *)(uintptr_t)(b->edges->scratch
                                        + (uint64_t)instance * b->program->nscratch * terms.tile);
    terms.slots = b->edges->slots;
    terms.slot_bytes = b->edges->slot_bytes;
    terms.depth = !b->packets && message <= PC_INLINE_BYTES ? PC_LINES : terms.slots;
    terms.nchannels = 1;
    terms.spans = terms.ntiles == 1 && b->plan->adjacent && b->instances == 1
                  && b->plan->nbytes <= LONGEST_SPAN && (!b->packets || whole_packets(b));
    terms.stream_out = false;
    terms.packets = b->packets;
    for (uint32_t c = 0; c < b->program->nchannels; c++) {
        struct pc_block_image *block = &image->blocks[b->form][block_of(b, c, instance)];
        block->terms = terms;
        block->start = terms.code + b->program->starts[c];
        block->instance = instance;
        block->channel = c;
    }
}

/* Writes what a block needs even if its form has no instructions for it. */
static void write_places(const struct builder *b, struct pc_device_image *image)
{
    uint64_t control = b->edges->control, states = b->edges->states;
    for (uint32_t n = 0; n < PC_MAX_BLOCKS; n++) {
        struct pc_block_image *block = &image->blocks[b->form][n];
        block->state = (struct pc_block_state *)(uintptr_t)(states + n * sizeof *block->state);
        block->ring = (uint64_t *)(uintptr_t)(control + offsetof(struct pc_host_control, ring[n]));
        block->tail = (uint64_t *)(uintptr_t)(control + offsetof(struct pc_host_control, tail[n]));
        block->finished
            = (uint64_t *)(uintptr_t)(control + offsetof(struct pc_host_control, finished[n]));
    }
}

static int check(const struct builder *b, uint32_t number)
{
    uint64_t scratch = pc__device_image_scratch(b->plan, b->form, b->instances), ntiles = 0;
    bool puts = false;
    if (pc__device_image_blocks(b->plan, b->form, b->instances) < 0)
        return pc__fail(b->error, PC_INVALID, -1,
                        "image: %u lanes of %u channels, want at most %u "
                        "blocks",
                        b->instances, b->program ? b->program->nchannels : 0, PC_MAX_BLOCKS);
    if (b->form != 0 && (b->edges->ipc_peers == 0 || b->edges->arrays == 0))
        return pc__fail(b->error, PC_UNMAPPABLE, -1, "image: the peers' heaps are not reached");
    if (b->packets && (!b->edges->packets || !pc__device_image_fits_ll(b->plan, b->instances)))
        return pc__fail(b->error, PC_UNMAPPABLE, -1, "image: %s",
                        b->edges->packets ? "a message is too long for packets"
                                          : "a peer has no packet slots");
    if ((uint64_t)b->terms->tile * b->program->widest > b->edges->slot_bytes
        || b->edges->scratch_bytes < scratch)
        return pc__fail(b->error, PC_INVALID, -1,
                        "image: slots of %u bytes and %llu of scratch, want %llu and %llu",
                        b->edges->slot_bytes, (unsigned long long)b->edges->scratch_bytes,
                        (unsigned long long)b->terms->tile * b->program->widest,
                        (unsigned long long)scratch);
    if (longest_piece(b, 0, &ntiles) * b->program->nchunks > LONGEST_SPAN || ntiles > UINT32_MAX)
        return pc__fail(b->error, PC_INVALID, -1,
                        "image: %llu tiles of %u bytes in %u chunks are too many for a kernel",
                        (unsigned long long)ntiles, b->terms->tile, b->program->nchunks);
    for (uint32_t i = 0; i < b->program->ninstructions; i++)
        puts |= b->program->code[i].step == PC_STEP_PUT_MESSAGE
                || b->program->code[i].step == PC_STEP_PUT_CREDIT;
    if (puts
        && (b->instances != 1 || number >= PC_MAX_PLANS || ntiles > PC_MAX_ENTRY_TILES
            || b->program->ninstructions > PC_MAX_ENTRY_INSTRUCTIONS))
        return pc__fail(b->error, PC_INVALID, -1,
                        "image: plan %u with %u lanes, %llu tiles and remote peers", number,
                        b->instances, (unsigned long long)ntiles);
    return PC_OK;
}

static uint64_t extent_bytes(const struct pc_plan *plan, struct pc_extent e)
{
    return e.count == 0 ? 0 : pc__extent_bytes(plan, e);
}

static void write_head(const struct builder *b, uint32_t number)
{
    const struct pc_plan *plan = b->plan;
    const struct pc_plan_spec *spec = &plan->spec;
    const struct pc_device_fifos *edges = b->edges;
    uint64_t *starts = (uint64_t *)(b->copy + aligned(sizeof(struct pc_device_image)));
    memcpy(starts, plan->partitions[0]->starts, (spec->nblocks + (size_t)1) * sizeof *starts);
    *(struct pc_device_image *)b->copy = (struct pc_device_image){
        .nbytes = b->end,
        .nblocks = (uint32_t)pc__device_image_blocks(plan, b->form, b->instances),
        .instances = b->instances,
        .plan = number,
        .form = (uint32_t)b->form,
        .control = (struct pc_host_control *)(uintptr_t)edges->control,
        .states = (struct pc_block_state *)(uintptr_t)edges->states,
        .rank = edges->rank,
        .size = edges->size,
        .nparts = spec->nblocks,
        .mine = {.in = extent_bytes(plan, spec->input),
                 .out = extent_bytes(plan, spec->output),
                 .in_first = spec->input.first,
                 .in_count = spec->input.count,
                 .out_first = spec->output.first,
                 .out_count = spec->output.count},
        .starts = (uint64_t *)device(b, starts),
        .ipc_peers = (struct pc_ipc_peer *)(uintptr_t)edges->ipc_peers,
        .arrays = (struct pc_arrays *)(uintptr_t)edges->arrays,
        .heap_bytes = edges->heap_bytes,
    };
}

int pc__device_image_build(const struct pc_plan *plan, int form, uint32_t instances, bool packets,
                           uint32_t number, const struct pc_device_fifos *edges, void *host_copy,
                           uint64_t device_base, struct pc_error *error)
{
    int rc = PC_OK;
    for (int f = form; f >= 0 && rc == PC_OK;
         f--) { /* form 0 comes last: it sets the end of the image */
        struct builder b = begin(plan, f, instances);
        b.packets = packets && f == 0;
        b.edges = edges;
        b.copy = host_copy;
        b.base = device_base;
        b.error = error;
        rc = check(&b, number);
        if (rc == PC_OK && f == form) {
            memset(b.copy, 0, b.end);
            write_head(&b, number);
        }
        if (rc == PC_OK)
            write_places(&b, host_copy);
        for (uint32_t instance = 0; instance < instances && rc == PC_OK; instance++) {
            rc = write_lane(&b, instance);
            write_blocks(&b, host_copy, instance);
        }
    }
    return rc;
}
