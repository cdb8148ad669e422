/* A plan: programs bound to one message size, element type and operator. */
#include <stdlib.h>
#include <string.h>
#include "internal.h"

static const uint8_t itemsize_log2[PC_NDTYPES] = {
    [PC_DTYPE_FLOAT64] = 3, [PC_DTYPE_FLOAT32] = 2, [PC_DTYPE_FLOAT16] = 1, [PC_DTYPE_BFLOAT16] = 1,
    [PC_DTYPE_INT8] = 0,    [PC_DTYPE_UINT8] = 0,   [PC_DTYPE_INT32] = 2,   [PC_DTYPE_UINT32] = 2,
    [PC_DTYPE_INT64] = 3,   [PC_DTYPE_UINT64] = 3,
};

/* Where the chunks of a message lie: multiples of PC_CHUNK_UNIT, as even as those allow. */
static uint64_t *bounds_of(uint64_t nbytes, uint32_t nchunks)
{
    uint64_t *bounds = malloc(((size_t)nchunks + 1) * sizeof *bounds);
    uint64_t units = nbytes / PC_CHUNK_UNIT + (nbytes % PC_CHUNK_UNIT != 0);
    if (bounds == NULL)
        return NULL;
    for (uint32_t c = 0; c <= nchunks; c++) {
        /* units * c / nchunks without overflow */
        uint64_t at = units / nchunks * c + units % nchunks * c / nchunks;
        bounds[c] = at * PC_CHUNK_UNIT < nbytes ? at * PC_CHUNK_UNIT : nbytes;
    }
    return bounds;
}

static uint64_t tiles_of(uint64_t nbytes, uint32_t nchunks, uint32_t tile)
{
    uint64_t units = nbytes / PC_CHUNK_UNIT + (nbytes % PC_CHUNK_UNIT != 0);
    uint64_t longest = (units / nchunks + (units % nchunks != 0)) * PC_CHUNK_UNIT;
    uint64_t tiles = longest / tile + (longest % tile != 0);
    return tiles ? tiles : 1;
}

static int check(struct pc_comm *comm, const struct pc_plan_spec *s, const struct pc_program *p,
                 bool direct)
{
    if (s->dtype >= PC_NDTYPES || s->op >= PC_NREDUCE)
        return pc__fail(&comm->error, PC_INVALID, -1, "plan: dtype %u, op %u", s->dtype, s->op);
    if (s->nbytes % (1u << itemsize_log2[s->dtype]) != 0 || s->nbytes > (UINT64_C(1) << 48))
        return pc__fail(&comm->error, PC_INVALID, -1, "plan: %llu bytes of dtype %u",
                        (unsigned long long)s->nbytes, s->dtype);
    if (s->tile == 0 || s->tile % PC_CHUNK_UNIT != 0
        || (uint64_t)s->tile * p->widest > comm->options.slot_bytes)
        return pc__fail(&comm->error, PC_INVALID, -1,
                        "plan: a tile of %u bytes times %u chunks, want multiples of %u up to %u",
                        s->tile, p->widest, PC_CHUNK_UNIT, comm->options.slot_bytes);
    if (direct != ((p->flags & PC_PROGRAM_DIRECT) != 0))
        return pc__fail(&comm->error, PC_INVALID, -1, "plan: program of the wrong form");
    return PC_OK;
}

int pc_plan_create(struct pc_comm *comm, const struct pc_plan_spec *spec, struct pc_program *staged,
                   struct pc_program *direct, struct pc_plan **out)
{
    *out = NULL;
    struct pc_program *programs[2] = {staged, direct};
    if (staged == NULL)
        return pc__fail(&comm->error, PC_INVALID, -1, "plan: no staged program");
    for (int form = 0; form < 2; form++) {
        int rc = programs[form] ? check(comm, spec, programs[form], form == 1) : PC_OK;
        if (rc != PC_OK)
            return rc;
    }
    struct pc_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a plan");
    plan->spec = *spec;
    plan->depth = spec->nbytes <= PC_INLINE_BYTES ? PC_LINES : comm->options.slots;
    plan->fold = pc__fold(spec->dtype, spec->op);
    plan->itemsize_log2 = itemsize_log2[spec->dtype];
    plan->divisor = spec->op == PC_REDUCE_AVG ? comm->options.size : 0;
    uint64_t places = 0;
    bool complete = true;
    for (int form = 0; form < 2; form++) {
        const struct pc_program *p = programs[form];
        if (p == NULL)
            continue;
        plan->bounds[form] = bounds_of(spec->nbytes, p->nchunks);
        plan->ntiles[form] = tiles_of(spec->nbytes, p->nchunks, spec->tile);
        complete = complete && plan->bounds[form] != NULL;
        places = p->nscratch > places ? p->nscratch : places;
    }
    if (places != 0)
        plan->scratch = aligned_alloc(PC_CHUNK_UNIT, places * spec->tile);
    if (!complete || (places != 0 && plan->scratch == NULL)) {
        pc_plan_free(plan);
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a plan");
    }
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
    free(plan->bounds[0]);
    free(plan->bounds[1]);
    free(plan->scratch);
    free(plan);
}

int pc_fold_test(uint32_t dtype, uint32_t op, void **dst, uint32_t ndst, const void **src,
                 uint32_t nsrc, size_t count, uint32_t divisor, uint32_t stream)
{
    pc_fold_fn fold = pc__fold(dtype, op);
    if (fold == NULL || nsrc == 0 || nsrc > PC_MAX_SOURCES || ndst == 0
        || ndst > PC_MAX_DESTINATIONS)
        return PC_INVALID;
    fold(dst, ndst, src, nsrc, count, divisor, stream);
    return PC_OK;
}
