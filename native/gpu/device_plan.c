/* Plans of a device communicator: device images, kept while a launch or a graph uses them. */
#include <stdlib.h>
#include "gpu/driver/cuda.h"
#include "gpu/device_comm.h"

/* How much of a call one block is to move: about as much as its threads have in flight at once.
 * With more blocks each would wait as long for less. Of a message in packets a thread has one. */
#define PC_BLOCK_BYTES (UINT64_C(16) << 10)
#define PC_LL_BLOCK_BYTES (UINT64_C(3) << 10)
/* The longest call in packets: beyond, the bytes that are not data take longer than a fence.
 * Shorter ones do not gain by arrays that are reached, either. */
#define PC_LL_CALL_BYTES (UINT64_C(64) << 10)
#define PC_THREADS 256u
#define PC_WARP 32u

/* The number of instances where a block moves so many bytes. Equal on all ranks, whose Programs may
 * differ in channels: `channels` is the most that any has. */
static uint32_t instances_of(const struct pc_plan *plan, uint32_t channels, uint32_t blocks,
                             uint64_t block_bytes)
{
    uint64_t most = blocks / channels, each = channels * block_bytes;
    uint64_t wanted = plan->nbytes / each + (plan->nbytes % each != 0);
    wanted = wanted < most ? wanted : most;
    return wanted != 0 ? (uint32_t)wanted : 1;
}

/* The channels by which all ranks cut a form alike. */
static uint32_t channels_of(const struct pc_program *form, const struct pc_device_plan_options *o)
{
    return o->channels > form->nchannels ? o->channels : form->nchannels;
}

/* Decides instances and packets, by what all ranks know alike. The direct form has instances of its
 * own: a Program of one channel beside a staged one of four would run in a quarter of the blocks.
 */
static void choose(const struct pc_device_comm *dc, const struct pc_plan *plan,
                   const struct pc_device_plan_options *o, bool direct,
                   struct pc_device_plan_shape *shape)
{
    uint32_t channels = channels_of(plan->staged, o);
    uint32_t blocks = o->blocks && o->blocks < PC_MAX_BLOCKS ? o->blocks : PC_MAX_BLOCKS;
    shape->instances = 1;
    if (!dc->whole) /* the edges of the host's memory are those of channels */
        return;
    if (o->packets != 0 && plan->nbytes <= PC_LL_CALL_BYTES) {
        shape->instances = instances_of(plan, channels, blocks, PC_LL_BLOCK_BYTES);
        while (!pc__device_image_fits_ll(plan, shape->instances)
               && (shape->instances + 1) * channels <= blocks)
            shape->instances++; /* each channel may carry more than its share */
        shape->packets = pc__device_image_fits_ll(plan, shape->instances);
    }
    if (!shape->packets)
        shape->instances = instances_of(plan, channels, blocks, PC_BLOCK_BYTES);
    if (direct)
        shape->direct = instances_of(plan, channels_of(plan->direct, o), blocks,
                                     shape->packets ? PC_LL_BLOCK_BYTES : PC_BLOCK_BYTES);
}

static uint32_t threads_of(const struct pc_device_comm *dc, uint32_t wanted)
{
    uint32_t threads = wanted != 0 ? wanted : PC_THREADS;
    threads = threads < dc->max_threads ? threads : dc->max_threads;
    return threads > PC_WARP ? threads / PC_WARP * PC_WARP : threads;
}

/* All plans share the scratch, as one runs at a time. A larger scratch replaces it for later plans;
 * earlier plans keep the one they were built with, so none is freed. */
static int make_scratch(struct pc_device_comm *dc, uint64_t nbytes)
{
    uint64_t at;
    if (nbytes <= dc->edges.scratch_bytes)
        return PC_OK;
    if (nbytes < 2 * dc->edges.scratch_bytes)
        nbytes = 2 * dc->edges.scratch_bytes;
    int rc = pc__pool_take(dc, nbytes, &at);
    if (rc != PC_OK)
        return rc;
    dc->edges.scratch = at;
    dc->edges.scratch_bytes = nbytes;
    return PC_OK;
}

static int build(struct pc_device_comm *dc, struct pc_device_plan *p)
{
    int form = p->shape.direct != 0;
    const uint32_t instances[2] = {p->shape.instances, p->shape.direct};
    int blocks = pc__device_image_blocks(p->plan, form, instances);
    if (blocks < 0)
        return pc__fail(dc->error, PC_INVALID, -1,
                        "%u and %u instances of %u and %u channels, want at most %u blocks",
                        instances[0], instances[1], p->plan->staged->nchannels,
                        form ? p->plan->direct->nchannels : 0, PC_MAX_BLOCKS);
    p->shape.blocks = (uint32_t)blocks;
    int rc = make_scratch(dc, pc__device_image_scratch(p->plan, form, instances));
    size_t nbytes = pc__device_image_bytes(p->plan, form, instances);
    void *image = nbytes == 0 ? NULL : aligned_alloc(PC_CHUNK_UNIT, pc__page_up(nbytes));
    if (rc == PC_OK && image == NULL)
        rc = pc__fail(dc->error, PC_NOMEM, -1, "no memory for a plan");
    if (rc == PC_OK)
        rc = pc__pool_take(dc, nbytes, &p->image);
    if (rc == PC_OK)
        rc = pc__device_image_build(p->plan, form, instances, p->shape.packets, p->number,
                                    &dc->edges, image, p->image, dc->error);
    if (rc == PC_OK) {
        p->args = pc__device_image_args(image, p->image);
        p->args.proxied = dc->proxied;
        rc = pc__device_comm_upload(dc, p->image, image, nbytes);
    }
    free(image);
    return rc;
}

static void free_plan(struct pc_device_plan *p)
{
    pc_plan_free(p->plan);
    if (p->graphs != NULL && __atomic_load_n(p->graphs, __ATOMIC_ACQUIRE) == 0)
        free(p->graphs); /* else the driver still decrements it */
    free(p);
}

static void take_out(struct pc_device_plan *p)
{
    if (p->image != 0)
        pc__pool_give(p->dc, p->image);
    pthread_mutex_lock(&p->dc->plans_lock);
    p->dc->plans[p->number] = NULL;
    pthread_mutex_unlock(&p->dc->plans_lock);
}

void pc__graphs_forget(struct pc_device_comm *dc)
{
    struct pc_error ignored;
    if (!atomic_load(&dc->capturing) || pc__transfers_graphs(dc) != 0)
        return;
    for (uint32_t i = 0; i < dc->nplans; i++)
        if (dc->plans[i] != NULL && __atomic_load_n(dc->plans[i]->graphs, __ATOMIC_ACQUIRE) != 0)
            return;
    if (pc__launches_over(dc, &ignored) != PC_OK)
        return;
    for (uint32_t b = 0; b < PC_MAX_BLOCKS; b++)
        atomic_store(&dc->launched[b], pc__launches_finished(dc, b));
    atomic_store(&dc->capturing, 0);
}

/* Frees dropped plans that nothing uses. Entries of a plan may be left in a proxy FIFO when its
 * kernel has ended, and a graph may still launch it. */
static void sweep(struct pc_device_comm *dc)
{
    struct pc_error ignored;
    bool idle = pc__launches_retired(dc, &ignored) == PC_OK && pc__proxy_settled(dc);
    for (uint32_t i = 0; idle && i < dc->nplans; i++) {
        struct pc_device_plan *p = dc->plans[i];
        if (p != NULL && atomic_load(&p->state) == PC_DEVICE_PLAN_DROPPED
            && __atomic_load_n(p->graphs, __ATOMIC_ACQUIRE) == 0) {
            take_out(p);
            free_plan(p);
        }
    }
}

int pc_device_comm_quiet(struct pc_device_comm *dc)
{
    struct pc_error ignored;
    if (!dc->sealed || dc->detached)
        return PC_AGAIN;
    pc__graphs_forget(dc);
    /* First what needs no driver: while kernels run, it may keep a thread waiting. */
    if (atomic_load(&dc->capturing) || !pc__launches_ended(dc))
        return PC_AGAIN;
    return pc__launches_retired(dc, &ignored);
}

void pc_device_plan_free(struct pc_device_plan *p)
{
    if (p != NULL && atomic_exchange(&p->state, PC_DEVICE_PLAN_DROPPED) == PC_DEVICE_PLAN_ORPHANED)
        free_plan(p);
}

void pc__device_plans_drop(struct pc_device_comm *dc)
{
    for (uint32_t i = 0; dc->plans != NULL && i < dc->nplans; i++) {
        struct pc_device_plan *p = dc->plans[i];
        if (p == NULL)
            continue;
        take_out(p);
        if (atomic_exchange(&p->state, PC_DEVICE_PLAN_ORPHANED) == PC_DEVICE_PLAN_DROPPED)
            free_plan(p);
    }
}

static int number_of(struct pc_device_comm *dc, uint32_t *number)
{
    for (uint32_t i = 0; i < PC_MAX_PLANS; i++)
        if (dc->plans[i] == NULL) {
            *number = i;
            dc->nplans = i >= dc->nplans ? i + 1 : dc->nplans;
            return PC_OK;
        }
    return pc__fail(dc->error, PC_NOMEM, -1, "a device communicator has room for %u plans",
                    PC_MAX_PLANS);
}

static int check_plan(struct pc_device_comm *dc, const struct pc_plan *plan)
{
    if (!dc->sealed || dc->detached)
        return pc__fail(dc->error, PC_INVALID, -1, "a device communicator that is %s",
                        dc->sealed ? "closed" : "not open yet");
    if (dc->proxied
        && (plan->terms[0].ntiles > PC_MAX_ENTRY_TILES
            || plan->staged->ninstructions > PC_MAX_ENTRY_INSTRUCTIONS))
        return pc__fail(dc->error, PC_INVALID, -1,
                        "%llu tiles of %u instructions: a ring's entry has no room for that",
                        (unsigned long long)plan->terms[0].ntiles, plan->staged->ninstructions);
    return PC_OK;
}

int pc_device_plan_create(struct pc_device_comm *dc, struct pc_plan *plan,
                          const struct pc_device_plan_options *options, struct pc_device_plan **out)
{
    *out = NULL;
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    struct pc_device_plan *p = calloc(1, sizeof *p);
    int rc = check_plan(dc, plan);
    if (rc == PC_OK && (p == NULL || (p->graphs = calloc(1, sizeof *p->graphs)) == NULL))
        rc = pc__fail(dc->error, PC_NOMEM, -1, "no memory for a plan");
    if (rc == PC_OK) {
        pc__graphs_forget(dc);
        sweep(dc);
        rc = number_of(dc, &p->number);
    }
    if (rc != PC_OK) {
        pc__cuda_relax(mode);
        pc_plan_free(plan);
        free(p == NULL ? NULL : p->graphs);
        free(p);
        return rc;
    }
    p->dc = dc;
    p->plan = plan;
    p->function = options->function;
    dc->plans[p->number] = p;
    /* Equal on all ranks: so are their heaps, and the forms that they compile. */
    bool form = plan->direct != NULL && dc->whole && (dc->heap.bytes != 0 || dc->registration.on);
    p->registers = form && dc->registration.on && plan->nbytes > PC_LL_CALL_BYTES;
    p->shape = (struct pc_device_plan_shape){.threads = threads_of(dc, options->threads)};
    choose(dc, plan, options, form, &p->shape);
    rc = build(dc, p);
    if (rc == PC_OK) {
        *out = p;
    } else {
        take_out(p);
        free_plan(p);
    }
    pc__cuda_relax(mode);
    return rc;
}

void pc_device_plan_shape(const struct pc_device_plan *p, struct pc_device_plan_shape *out)
{
    *out = p->shape;
}
