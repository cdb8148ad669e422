/* Builds the device image of a plan; see device_image.h. What it holds, one behind the other:
 *
 *   pc_device_image | starts | of each form, for each block: its package
 *
 * Packages have copies of operands and code, as these name the edges of an instance. */
#include <string.h>
#include "gpu/device_image.h"
#include "vm/steps.h"

#define LONGEST_SPAN (UINT64_C(1) << 30) /* a kernel counts bytes in 32 bits */

/* Where the parts of a package begin in it. */
struct parts {
    size_t chunks, operands, code, homes, fifos, end;
};

struct builder {
    const struct pc_plan *plan;
    const struct pc_program *program;
    const struct pc_terms *terms;
    int form;
    uint32_t instances;
    bool packets;
    struct parts parts; /* equal for all blocks of the form, so that a block finds its own */
    size_t packages;    /* offset of the first one in the image */
    const struct pc_device_fifos *edges;
    char *copy;
    uint64_t base;
    struct pc_error *error;
};

/* One channel of a Program, and what a package of it has. */
struct stream {
    const struct pc_vm_instruction *code;
    const struct pc_vm_operand *operands;
    uint32_t first, ninstructions, noperands;
};

static size_t aligned(size_t nbytes)
{
    return (nbytes + PC_LINE_BYTES - 1) / PC_LINE_BYTES * PC_LINE_BYTES;
}

/* How many operands an instruction has. */
static uint32_t operands_of(const struct pc_vm_instruction *i)
{
    if (i->step == PC_STEP_PUT_MESSAGE)
        return 1;
    return i->step == PC_STEP_REDUCE_COPY ? (uint32_t)i->nsrc + i->ndst : 0;
}

static struct stream stream_of(const struct pc_program *p, uint32_t channel)
{
    uint32_t first = p->starts[channel],
             end = channel + 1 < p->nchannels ? p->starts[channel + 1] : p->ninstructions;
    const struct pc_vm_operand *least = NULL, *last = NULL;
    for (uint32_t i = first; i < end; i++) {
        const struct pc_vm_operand *from = p->code[i].at.operands;
        uint32_t n = operands_of(&p->code[i]);
        if (n != 0 && (least == NULL || from < least))
            least = from;
        if (n != 0 && (last == NULL || from + n > last))
            last = from + n;
    }
    return (struct stream){.code = p->code + first,
                           .operands = least,
                           .first = first,
                           .ninstructions = end - first,
                           .noperands = (uint32_t)(last - least)};
}

/* The FIFO of the k-th instruction or, behind those, operand of a channel, or NULL. */
static const struct pc_fifo *use(const struct stream *s, uint32_t k)
{
    if (k < s->ninstructions)
        return pc__has_fifo(&s->code[k]) ? s->code[k].at.fifo : NULL;
    const struct pc_vm_operand *p = &s->operands[k - s->ninstructions];
    return p->space == PC_SPACE_SLOT ? p->fifo : NULL;
}

/* Whether the FIFO of use k is used before: nearly always shortly before. */
static bool used_before(const struct stream *s, uint32_t k)
{
    const struct pc_fifo *fifo = use(s, k);
    for (uint32_t j = k; j-- > 0;)
        if (use(s, j) == fifo)
            return true;
    return false;
}

static uint32_t count_fifos(const struct stream *s)
{
    uint32_t count = 0;
    for (uint32_t k = 0; k < s->ninstructions + s->noperands; k++)
        count += use(s, k) != NULL && !used_before(s, k);
    return count;
}

/* The parts of a package in which each channel of a Program has room. */
static struct parts parts_of(const struct pc_program *p)
{
    size_t operands = 0, code = 0, fifos = 0;
    for (uint32_t c = 0; c < p->nchannels; c++) {
        struct stream s = stream_of(p, c);
        uint32_t n = count_fifos(&s);
        operands = s.noperands > operands ? s.noperands : operands;
        code = s.ninstructions > code ? s.ninstructions : code;
        fifos = n > fifos ? n : fifos;
    }
    struct parts at = {.chunks = sizeof(struct pc_block_image)};
    at.operands = at.chunks + p->nchunks * sizeof(struct pc_chunk);
    at.code = at.operands + operands * sizeof(struct pc_vm_operand);
    at.homes = at.code + code * sizeof(struct pc_vm_instruction);
    at.fifos = at.homes + fifos * sizeof(struct pc_fifo *);
    at.end = aligned(at.fifos + fifos * sizeof(struct pc_fifo));
    return at;
}

static uint32_t block_of(const struct builder *b, uint32_t channel, uint32_t instance)
{
    return channel * b->instances + instance;
}

static struct builder begin(const struct pc_plan *plan, int form, uint32_t instances)
{
    return (struct builder){.plan = plan,
                            .program = form ? plan->direct : plan->staged,
                            .terms = &plan->terms[form],
                            .form = form,
                            .instances = instances};
}

static size_t starts_end(const struct pc_plan *plan)
{
    return aligned(sizeof(struct pc_device_image))
           + aligned((plan->spec.nblocks + (size_t)1) * sizeof(uint64_t));
}

/* The part of a chunk that an instance moves. */
static struct pc_chunk part_of(const struct builder *b, uint32_t instance, uint32_t c)
{
    struct pc_chunk whole = b->plan->partitions[b->form]->chunks[c];
    uint64_t at = pc__part_at(whole.nbytes, b->instances, instance);
    return (struct pc_chunk){.at = whole.at + at,
                             .nbytes = pc__part_at(whole.nbytes, b->instances, instance + 1) - at};
}

static uint64_t longest_part(const struct builder *b, uint32_t instance)
{
    uint64_t longest = 0;
    for (uint32_t c = 0; c < b->program->nchunks; c++) {
        uint64_t nbytes = part_of(b, instance, c).nbytes;
        longest = nbytes > longest ? nbytes : longest;
    }
    return longest;
}

/* The bytes of the longest part of a chunk in a tile. */
static uint64_t longest_piece(const struct builder *b, uint32_t instance, uint64_t *ntiles)
{
    uint64_t longest = longest_part(b, instance), tile = b->terms->tile;
    *ntiles = longest > tile ? longest / tile + (longest % tile != 0) : 1;
    return longest < tile ? longest : tile;
}

/* The tile of all instances, no longer than what they have: scratch is so much for each place. */
static uint32_t tile_of(const struct builder *b)
{
    uint64_t longest = PC_CHUNK_UNIT;
    for (uint32_t instance = 0; instance < b->instances; instance++) {
        uint64_t part = aligned(longest_part(b, instance));
        longest = part > longest ? part : longest;
    }
    return longest < b->terms->tile ? (uint32_t)longest : b->terms->tile;
}

int pc__device_image_blocks(const struct pc_plan *plan, int form, const uint32_t *instances)
{
    uint32_t most = 0;
    for (int f = 0; f <= form; f++) {
        struct builder b = begin(plan, f, instances[f]);
        if (b.program == NULL || b.instances == 0 || b.instances > PC_MAX_INSTANCES
            || b.program->nchannels * b.instances > PC_MAX_BLOCKS)
            return PC_INVALID;
        if (b.program->nchannels * b.instances > most)
            most = b.program->nchannels * b.instances;
    }
    return (int)most;
}

static uint64_t scratch_of(const struct builder *b)
{
    return b->program ? (uint64_t)b->instances * b->program->nscratch * tile_of(b) : 0;
}

uint64_t pc__device_image_scratch(const struct pc_plan *plan, int form, const uint32_t *instances)
{
    uint64_t most = 0;
    for (int f = 0; f <= form; f++) {
        struct builder b = begin(plan, f, instances[f]);
        uint64_t nbytes = scratch_of(&b);
        most = nbytes > most ? nbytes : most;
    }
    return most;
}

bool pc__device_image_fits_ll(const struct pc_plan *plan, uint32_t instances)
{
    struct builder b = begin(plan, 0, instances);
    uint64_t ntiles;
    for (uint32_t instance = 0; instance < instances; instance++) {
        /* Each piece begins at a packet; of words of 8 bytes two packets hold three. */
        uint64_t pairs = (longest_piece(&b, instance, &ntiles) + 23) / 24;
        if (1 + b.program->widest * 2 * pairs > PC_LL_PACKETS)
            return false;
    }
    return true;
}

/* Finds room for the packages of this form, behind those of the forms before it. */
static size_t lay_out(struct builder *b, uint32_t nblocks)
{
    size_t at = starts_end(b->plan);
    for (int form = 0; form <= b->form; form++) {
        const struct pc_program *program = form ? b->plan->direct : b->plan->staged;
        b->parts = parts_of(program);
        b->packages = at;
        at += nblocks * b->parts.end;
    }
    return at;
}

size_t pc__device_image_bytes(const struct pc_plan *plan, int form, const uint32_t *instances)
{
    struct builder b = begin(plan, form, instances[form]);
    int nblocks = pc__device_image_blocks(plan, form, instances);
    return nblocks > 0 ? lay_out(&b, (uint32_t)nblocks) : 0;
}

/* A part of a block's package in the host copy, and the device address for what is there. */
static void *package(const struct builder *b, uint32_t block, size_t part)
{
    return b->copy + b->packages + block * b->parts.end + part;
}

static uintptr_t device(const struct builder *b, const void *in_copy)
{
    return (uintptr_t)(b->base + (uint64_t)((const char *)in_copy - b->copy));
}

/* Where a FIFO lives, and in which count it goes on from call to call. */
static struct pc_fifo *home_of(const struct builder *b, const struct pc_fifo *f, uint32_t block)
{
    uint64_t index = (uint64_t)f->peer * PC_MAX_BLOCKS + block;
    return (struct pc_fifo *)(uintptr_t)(b->edges->fifos + index * sizeof *f);
}

/* The package's copy of a FIFO; it gets one at its first use. */
static struct pc_fifo *fifo_of(const struct builder *b, const struct pc_fifo *f, uint32_t block)
{
    struct pc_block_image *head = package(b, block, 0);
    struct pc_fifo **homes = package(b, block, b->parts.homes), *home = home_of(b, f, block);
    uint32_t k = 0;
    while (k < head->nfifos && homes[k] != home)
        k++;
    if (k == head->nfifos)
        homes[head->nfifos++] = home;
    return (struct pc_fifo *)device(b, (struct pc_fifo *)package(b, block, b->parts.fifos) + k);
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

/* Which operands are in slots; see PC_SLOTS. */
static uint32_t slots_of(const struct pc_vm_instruction *line)
{
    uint32_t slots = 0, plain = line->nsrc;
    for (uint32_t k = 0; k < (uint32_t)line->nsrc + line->ndst; k++)
        if (line->at.operands[k].space == PC_SPACE_SLOT)
            slots |= 1u << k;
        else if (k < line->nsrc)
            plain = plain == line->nsrc ? k : PC_PLAINS;
    return slots | plain << PC_PLAIN_BIT;
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

/* Copies an instruction into a block's package. */
static void relocate(const struct builder *b, struct pc_vm_instruction *line,
                     const struct stream *s, uint32_t channel, uint32_t instance)
{
    uint32_t block = block_of(b, channel, instance);
    struct pc_vm_operand *operands = package(b, block, b->parts.operands);
    line->probe = NULL;
    switch ((enum pc_vm_step)line->step) {
    case PC_STEP_REDUCE_COPY:
        line->target = slots_of(line);
        line->at.operands
            = (struct pc_vm_operand *)device(b, operands + (line->at.operands - s->operands));
        break;
    case PC_STEP_PUT_MESSAGE:
        line->at.operands
            = (struct pc_vm_operand *)device(b, operands + (line->at.operands - s->operands));
        break;
    case PC_STEP_FILL:
    case PC_STEP_CONSUME:
    case PC_STEP_PUT_CREDIT:
    case PC_STEP_WAIT_CREDIT:
    case PC_STEP_WAIT_MESSAGE:
        line->at.fifo = fifo_of(b, line->at.fifo, block);
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

/* Floats only where the user lets a switch round them. */
static bool switch_folds(const struct builder *b)
{
    uint32_t dtype = b->plan->spec.dtype, op = b->plan->spec.op;
    return PC_SWITCH_FOLDS(dtype, op) && (PC_SWITCH_INTEGER(dtype) || b->edges->rounds);
}

static void mark(const struct builder *b, struct pc_vm_instruction *code)
{
    struct pc_device_image *image = (struct pc_device_image *)b->copy;
    image->alike
        = pc__mark_multimem(b->program, code, b->edges->rank, b->edges->size, switch_folds(b));
    image->multicast = image->alike ? b->edges->multicast : 0;
}

static struct pc_terms terms_of(const struct builder *b, uint32_t instance)
{
    struct pc_terms terms = *b->terms;
    uint64_t total = 0, message = b->program->widest * longest_piece(b, instance, &terms.ntiles);
    for (uint32_t c = 0; c < b->program->nchunks; c++)
        total += part_of(b, instance, c).nbytes;
    message = message < total ? message : total;
    terms.tile = tile_of(b);
    terms.scratch = (char *)(uintptr_t)(b->edges->scratch
                                        + (uint64_t)instance * b->program->nscratch * terms.tile);
    terms.slots = b->edges->slots;
    terms.slot_bytes = b->edges->slot_bytes;
    terms.depth = !b->packets && message <= PC_INLINE_BYTES ? PC_LINES : terms.slots;
    terms.nchannels = 1;
    terms.spans = terms.ntiles == 1 && b->plan->adjacent && b->instances == 1
                  && b->plan->nbytes <= LONGEST_SPAN;
    terms.stream_out = false;
    terms.packets = b->packets;
    return terms;
}

/* Writes the package of one block. */
static int write_block(const struct builder *b, uint32_t channel, uint32_t instance)
{
    const struct pc_program *p = b->program;
    const struct stream s = stream_of(p, channel);
    uint32_t block = block_of(b, channel, instance);
    struct pc_block_image *head = package(b, block, 0);
    struct pc_chunk *chunks = package(b, block, b->parts.chunks);
    struct pc_vm_operand *operands = package(b, block, b->parts.operands);
    struct pc_vm_instruction *code = package(b, block, b->parts.code);
    for (uint32_t c = 0; c < p->nchunks; c++)
        chunks[c] = part_of(b, instance, c);
    for (uint32_t k = 0; k < s.noperands; k++) {
        operands[k] = s.operands[k];
        if (operands[k].space == PC_SPACE_SLOT)
            operands[k].fifo = fifo_of(b, s.operands[k].fifo, block);
    }
    for (uint32_t i = 0; i < s.ninstructions; i++) {
        code[i] = s.code[i];
        if (!own(&code[i], channel))
            return pc__fail(b->error, PC_INVALID, -1,
                            "image: instruction %u of channel %u uses another channel's edge",
                            s.first + i, channel);
        relocate(b, &code[i], &s, channel, instance);
    }
    pc__place_barriers(code, s.ninstructions, b->packets);
    if (b->form != 0 && b->edges->multicast != 0 && p->nchannels == 1)
        mark(b, code);
    head->terms = terms_of(b, instance);
    head->terms.chunks = (struct pc_chunk *)device(b, chunks);
    /* Instructions are numbered as in the Program, of which the package has a part. */
    head->terms.code = (struct pc_vm_instruction *)(device(b, code) - s.first * sizeof *code);
    head->start = (struct pc_vm_instruction *)device(b, code);
    head->operands = (struct pc_vm_operand *)device(b, operands);
    head->ninstructions = s.ninstructions;
    head->noperands = s.noperands;
    head->instance = instance;
    head->channel = channel;
    return PC_OK;
}

/* Writes what a block needs even if its form has no instructions for it. */
static void write_places(const struct builder *b, uint32_t nblocks)
{
    uint64_t control = b->edges->control, states = b->edges->states;
    for (uint32_t n = 0; n < nblocks; n++) {
        struct pc_block_image *head = package(b, n, 0);
        head->state = (struct pc_block_state *)(uintptr_t)(states + n * sizeof *head->state);
        head->ring = (uint64_t *)(uintptr_t)(control + offsetof(struct pc_host_control, ring[n]));
        head->tail = (uint64_t *)(uintptr_t)(control + offsetof(struct pc_host_control, tail[n]));
        head->finished
            = (uint64_t *)(uintptr_t)(control + offsetof(struct pc_host_control, finished[n]));
        head->homes = (struct pc_fifo **)device(b, package(b, n, b->parts.homes));
        head->fifos = (struct pc_fifo *)device(b, package(b, n, b->parts.fifos));
    }
}

static int check(const struct builder *b, uint32_t number)
{
    uint64_t scratch = scratch_of(b), ntiles = 0;
    bool puts = false;
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
                        "image: plan %u with %u instances, %llu tiles and remote peers", number,
                        b->instances, (unsigned long long)ntiles);
    return PC_OK;
}

static uint64_t extent_bytes(const struct pc_plan *plan, struct pc_extent e)
{
    return e.count == 0 ? 0 : pc__extent_bytes(plan, e);
}

static void write_head(const struct builder *b, const uint32_t *instances, uint32_t number,
                       size_t nbytes, uint32_t nblocks)
{
    const struct pc_plan *plan = b->plan;
    const struct pc_plan_spec *spec = &plan->spec;
    const struct pc_device_fifos *edges = b->edges;
    uint64_t *starts = (uint64_t *)(b->copy + aligned(sizeof(struct pc_device_image)));
    memcpy(starts, plan->partitions[0]->starts, (spec->nblocks + (size_t)1) * sizeof *starts);
    *(struct pc_device_image *)b->copy = (struct pc_device_image){
        .nbytes = nbytes,
        .nblocks = nblocks,
        .instances = {instances[0], b->form ? instances[1] : 0},
        .plan = number,
        .form = (uint32_t)b->form,
        .signature = b->terms->signature,
        .control = (struct pc_host_control *)(uintptr_t)edges->control,
        .states = (struct pc_block_state *)(uintptr_t)edges->states,
        .rank = edges->rank,
        .size = edges->size,
        .nparts = spec->nblocks,
        .slots = edges->slots,
        .fifos = (struct pc_fifo *)(uintptr_t)edges->fifos,
        .mine = {.in = extent_bytes(plan, spec->input),
                 .out = extent_bytes(plan, spec->output),
                 .in_first = spec->input.first,
                 .in_count = spec->input.count,
                 .out_first = spec->output.first,
                 .out_count = spec->output.count},
        .starts = (uint64_t *)device(b, starts),
        .ipc_peers = (struct pc_ipc_peer *)(uintptr_t)edges->ipc_peers,
        .arrays = (struct pc_arrays *)(uintptr_t)edges->arrays,
    };
}

int pc__device_image_build(const struct pc_plan *plan, int form, const uint32_t *instances,
                           bool packets, uint32_t number, const struct pc_device_fifos *edges,
                           void *host_copy, uint64_t device_base, struct pc_error *error)
{
    int rc = PC_OK, nblocks = pc__device_image_blocks(plan, form, instances);
    struct pc_device_image *image = host_copy;
    if (nblocks < 0)
        return pc__fail(error, PC_INVALID, -1,
                        "image: %u and %u instances, want at most %u blocks in each form",
                        instances[0], form ? instances[1] : 0, PC_MAX_BLOCKS);
    for (int f = form; f >= 0 && rc == PC_OK; f--) {
        struct builder b = begin(plan, f, instances[f]);
        b.packets = packets && f == 0;
        b.edges = edges;
        b.copy = host_copy;
        b.base = device_base;
        b.error = error;
        rc = check(&b, number);
        if (rc != PC_OK)
            break;
        size_t end = lay_out(&b, (uint32_t)nblocks);
        if (f == form) {
            memset(b.copy, 0, end);
            write_head(&b, instances, number, end, (uint32_t)nblocks);
        }
        image->packages.at[f] = (char *)device(&b, package(&b, 0, 0));
        image->packages.nbytes[f] = (uint32_t)b.parts.end;
        write_places(&b, (uint32_t)nblocks);
        for (uint32_t c = 0; c < b.program->nchannels; c++)
            for (uint32_t instance = 0; instance < instances[f] && rc == PC_OK; instance++)
                rc = write_block(&b, c, instance);
    }
    return rc;
}

struct pc_kernel_args pc__device_image_args(const struct pc_device_image *image,
                                            uint64_t device_base)
{
    return (struct pc_kernel_args){
        .image = (const struct pc_device_image *)(uintptr_t)device_base,
        .packages = image->packages,
        .nblocks = image->nblocks,
        .form = image->form,
    };
}
