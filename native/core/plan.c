/* A plan: programs bound to the blocks of a message, an element type and an operator. */
#include <stdlib.h>
#include <string.h>
#include "core/internal.h"

static const uint8_t itemsize_log2[PC_NDTYPES] = PC_DTYPE_LOG2_BYTES;

static uint64_t units_of(uint64_t nbytes)
{
    return nbytes / PC_CHUNK_UNIT + (nbytes % PC_CHUNK_UNIT != 0);
}

uint64_t pc__part_at(uint64_t nbytes, uint32_t nparts, uint32_t k)
{
    uint64_t units = units_of(nbytes); /* units * k / nparts without overflow */
    uint64_t at = (units / nparts * k + units % nparts * k / nparts) * PC_CHUNK_UNIT;
    return at < nbytes ? at : nbytes;
}

static void drop_partition(struct pc_partition *p)
{
    if (p == NULL || atomic_fetch_sub(&p->references, 1) != 1)
        return;
    free(p->starts);
    free(p->chunks);
    free(p);
}

static struct pc_partition *make_partition(const struct pc_plan_spec *s, const uint64_t *blocks,
                                           uint32_t nchunks)
{
    struct pc_partition *p = calloc(1, sizeof *p);
    if (p == NULL)
        return NULL;
    *p = (struct pc_partition){
        .references = 1, .nblocks = s->nblocks, .root = s->root, .nchunks = nchunks};
    p->starts = malloc(((size_t)p->nblocks + 1) * sizeof *p->starts);
    p->chunks = malloc((size_t)nchunks * sizeof *p->chunks);
    if (p->starts == NULL || p->chunks == NULL) {
        drop_partition(p);
        return NULL;
    }
    p->starts[0] = 0;
    for (uint32_t b = 0; b < p->nblocks; b++)
        p->starts[b + 1] = p->starts[b] + blocks[b];
    uint32_t nparts = nchunks / p->nblocks;
    for (uint32_t c = 0; c < nchunks; c++) {
        uint32_t block = (uint32_t)(((uint64_t)(c / nparts) + p->root) % p->nblocks);
        uint64_t nbytes = p->starts[block + 1] - p->starts[block];
        uint64_t at = pc__part_at(nbytes, nparts, c % nparts);
        p->chunks[c]
            = (struct pc_chunk){.at = p->starts[block] + at,
                                .nbytes = pc__part_at(nbytes, nparts, c % nparts + 1) - at};
    }
    return p;
}

static bool is_partition(const struct pc_partition *p, const struct pc_plan_spec *s,
                         const uint64_t *blocks, uint32_t nchunks)
{
    bool same = p->nblocks == s->nblocks && p->root == s->root && p->nchunks == nchunks;
    for (uint32_t b = 0; same && b < p->nblocks; b++)
        same = p->starts[b + 1] - p->starts[b] == blocks[b];
    return same;
}

void pc__partition_drop(struct pc_comm *comm)
{
    drop_partition(atomic_exchange(&comm->partition, NULL));
}

/* Returns the last plan's partition if it is the one, else another, which takes its place. Taken
 * out while it is looked at, so that of threads that make plans at a time each has one. */
static struct pc_partition *partition_of(struct pc_comm *comm, const struct pc_plan_spec *s,
                                         const uint64_t *blocks, uint32_t nchunks)
{
    struct pc_partition *found = atomic_exchange(&comm->partition, NULL);
    if (found == NULL || !is_partition(found, s, blocks, nchunks)) {
        drop_partition(found);
        found = make_partition(s, blocks, nchunks);
        if (found == NULL)
            return NULL;
    }
    atomic_fetch_add(&found->references, 1);
    drop_partition(atomic_exchange(&comm->partition, found));
    return found;
}

static uint64_t longest_of(const struct pc_chunk *chunks, uint32_t nchunks)
{
    uint64_t longest = 0;
    for (uint32_t c = 0; c < nchunks; c++)
        longest = chunks[c].nbytes > longest ? chunks[c].nbytes : longest;
    return longest;
}

#define BAD(comm, ...) pc__fail(&(comm)->error, PC_INVALID, -1, "plan: " __VA_ARGS__)

static int check_spec(struct pc_comm *comm, const struct pc_plan_spec *s)
{
    uint64_t nbytes = 0;
    if (s->dtype >= PC_NDTYPES || s->op >= PC_NREDUCE)
        return BAD(comm, "dtype %u, op %u", s->dtype, s->op);
    if (s->nblocks == 0 || (s->nblocks != 1 && s->nblocks != comm->options.size)
        || s->root >= comm->options.size)
        return BAD(comm, "%u blocks, root %u, want 1 or %u blocks", s->nblocks, s->root,
                   comm->options.size);
    const struct pc_extent extents[2] = {s->input, s->output};
    for (int i = 0; i < 2; i++)
        if (extents[i].first > s->nblocks || extents[i].count > s->nblocks - extents[i].first)
            return BAD(comm, "blocks %u + %u of %u", extents[i].first, extents[i].count,
                       s->nblocks);
    for (uint32_t b = 0; b < s->nblocks; b++) {
        nbytes += s->blocks[b];
        if (s->blocks[b] % (1u << itemsize_log2[s->dtype]) != 0
            || s->blocks[b] > (UINT64_C(1) << 48) || nbytes > (UINT64_C(1) << 48))
            return BAD(comm, "block %u: %llu bytes of dtype %u", b,
                       (unsigned long long)s->blocks[b], s->dtype);
    }
    return PC_OK;
}

static int check_form(struct pc_comm *comm, const struct pc_plan_spec *s,
                      const struct pc_program *p, bool direct)
{
    if (s->tile == 0 || s->tile % PC_CHUNK_UNIT != 0
        || (uint64_t)s->tile * p->widest > comm->options.slot_bytes)
        return BAD(comm, "a tile of %u bytes times %u chunks, want multiples of %u up to %u",
                   s->tile, p->widest, PC_CHUNK_UNIT, comm->options.slot_bytes);
    if (direct != ((p->flags & PC_PROGRAM_DIRECT) != 0))
        return BAD(comm, "program of the wrong form");
    if (p->nchunks % s->nblocks != 0)
        return BAD(comm, "%u chunks of %u blocks", p->nchunks, s->nblocks);
    if (p->root != s->root)
        return BAD(comm, "root %u, its program was loaded for %u", s->root, p->root);
    return PC_OK;
}

static bool holds(const struct pc_partition *p, struct pc_extent e, const struct pc_chunk *chunk)
{
    return e.count != 0 && chunk->at >= p->starts[e.first]
           && chunk->at + chunk->nbytes <= p->starts[e.first + e.count];
}

/* The loader has checked chunks and operands by number; here their bytes are checked. */
static int check_places(struct pc_comm *comm, const struct pc_plan_spec *s,
                        const struct pc_program *p, const struct pc_partition *partition)
{
    const struct pc_chunk *chunks = partition->chunks;
    for (uint32_t i = 0; i < p->noperands; i++) {
        const struct pc_vm_operand *o = &p->operands[i];
        if (o->space == PC_SPACE_SCRATCH || o->space == PC_SPACE_SLOT)
            continue;
        for (uint32_t k = 0; k < o->nchunks; k++) {
            const struct pc_chunk *place = &chunks[o->place + k];
            bool fits = chunks[o->chunk + k].nbytes <= place->nbytes;
            if (o->space == PC_SPACE_IN)
                fits = fits && holds(partition, s->input, place);
            if (o->space == PC_SPACE_OUT)
                fits = fits && holds(partition, s->output, place);
            if (!fits)
                return BAD(comm, "operand %u: space %u, place %u does not hold chunk %u", i,
                           o->space, o->place + k, o->chunk + k);
        }
    }
    return PC_OK;
}

static void drop_scratch(struct pc_scratch *scratch)
{
    if (scratch == NULL || atomic_fetch_sub(&scratch->references, 1) != 1)
        return;
    free(scratch->at);
    free(scratch);
}

void pc__scratch_drop(struct pc_comm *comm)
{
    drop_scratch(atomic_exchange(&comm->scratch, NULL));
}

/* Returns the communicator's scratch; a longer one replaces it for later plans. Taken out while it
 * is looked at, so that of threads that make plans at a time each has one. */
static struct pc_scratch *scratch_of(struct pc_comm *comm, uint64_t nbytes)
{
    struct pc_scratch *found = atomic_exchange(&comm->scratch, NULL);
    if (found == NULL || found->nbytes < nbytes) {
        drop_scratch(found);
        found = calloc(1, sizeof *found);
        if (found == NULL)
            return NULL;
        found->references = 1; /* the communicator's */
        found->nbytes = nbytes;
        found->at = aligned_alloc(PC_CHUNK_UNIT, nbytes);
        if (found->at == NULL) {
            drop_scratch(found);
            return NULL;
        }
    }
    atomic_fetch_add(&found->references, 1);
    drop_scratch(atomic_exchange(&comm->scratch, found));
    return found;
}

static int build(struct pc_comm *comm, struct pc_plan *plan, struct pc_program *const programs[2])
{
    struct pc_plan_spec *s = &plan->spec;
    uint64_t nscratch = 0, longest_message = 0, ntiles[2] = {1, 1};
    const uint64_t *blocks = s->blocks;
    s->blocks = NULL; /* the caller owns them */
    plan->adjacent = s->root == 0 || s->nblocks == 1;
    for (int form = 0; form < 2; form++) {
        const struct pc_program *p = programs[form];
        if (p == NULL)
            continue;
        plan->apart |= p->apart;
        struct pc_partition *partition = partition_of(comm, s, blocks, p->nchunks);
        plan->partitions[form] = partition;
        if (partition == NULL)
            return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a plan");
        plan->nbytes = partition->starts[s->nblocks];
        int rc = check_places(comm, s, p, partition);
        if (rc != PC_OK)
            return rc;
        uint64_t longest = longest_of(partition->chunks, p->nchunks);
        uint64_t tiles = longest / s->tile + (longest % s->tile != 0);
        ntiles[form] = tiles ? tiles : 1;
        nscratch = p->nscratch > nscratch ? p->nscratch : nscratch;
        if (form == 0)
            longest_message = p->widest * (longest < s->tile ? longest : s->tile);
    }
    if (longest_message > plan->nbytes)
        longest_message = plan->nbytes;
    if (nscratch != 0) {
        plan->scratch = scratch_of(comm, nscratch * s->tile);
        if (plan->scratch == NULL)
            return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a plan");
    }
    for (int form = 0; form < 2; form++)
        if (programs[form] != NULL)
            plan->terms[form] = (struct pc_terms){
                .code = programs[form]->code,
                .chunks = plan->partitions[form]->chunks,
                .scratch = plan->scratch == NULL ? NULL : plan->scratch->at,
                .signature = s->signature,
                .ntiles = ntiles[form],
                .tile = s->tile,
                .longest = longest_message,
                .slots = comm->options.slots,
                .slot_bytes = comm->options.slot_bytes,
                .nchannels = programs[form]->nchannels,
                .divisor = s->op == PC_REDUCE_AVG ? comm->options.size : 0,
                .spans = ntiles[form] == 1 && plan->adjacent,
                .stream_out = s->stream != 0,
            };
    return PC_OK;
}

int pc_plan_create(struct pc_comm *comm, const struct pc_plan_spec *spec, struct pc_program *staged,
                   struct pc_program *direct, struct pc_plan **out)
{
    *out = NULL;
    struct pc_program *const programs[2] = {staged, direct};
    if (staged == NULL)
        return BAD(comm, "no staged program");
    if (direct != NULL && (comm->nmapped != comm->options.size || comm->layout.windows))
        return BAD(comm, "a direct form, and peers whose memory is not mapped");
    int rc = check_spec(comm, spec);
    for (int form = 0; form < 2 && rc == PC_OK; form++)
        rc = programs[form] ? check_form(comm, spec, programs[form], form == 1) : PC_OK;
    if (rc != PC_OK)
        return rc;
    struct pc_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a plan");
    plan->spec = *spec;
    rc = build(comm, plan, programs);
    if (rc != PC_OK) {
        pc_plan_free(plan);
        return rc;
    }
    plan->fold = pc__fold(spec->dtype, spec->op);
    plan->itemsize_log2 = itemsize_log2[spec->dtype];
    plan->staged = staged;
    atomic_fetch_add(&staged->references, 1);
    plan->direct = direct;
    if (direct != NULL)
        atomic_fetch_add(&direct->references, 1);
    *out = plan;
    return PC_OK;
}

void pc_plan_free(struct pc_plan *plan)
{
    if (plan == NULL)
        return;
    pc_program_free(plan->staged);
    pc_program_free(plan->direct);
    drop_partition(plan->partitions[0]);
    drop_partition(plan->partitions[1]);
    drop_scratch(plan->scratch);
    free(plan);
}

int pc_fold_test(uint32_t dtype, uint32_t op, void **dst, uint32_t ndst, const void **src,
                 uint32_t nsrc, size_t count, uint32_t divisor, uint32_t stream)
{
    pc_fold_fn fold = pc__fold(dtype, op);
    if (fold == NULL || nsrc == 0 || nsrc > PC_MAX_SOURCES || ndst == 0
        || ndst > PC_HOST_DESTINATIONS)
        return PC_INVALID;
    fold(dst, ndst, src, nsrc, count, divisor, stream);
    return PC_OK;
}
