/* Plans of a plane: images on the device, which live as long as a launch or a graph uses them. */
#include <stdlib.h>
#include "gpu/driver/cuda.h"
#include "gpu/device_comm.h"

/* Up to so many bytes a call runs in one lane; with each doubling in twice as many. */
#define PC_INSTANCE_BYTES (UINT64_C(64) << 10)
#define PC_THREADS 256u
#define PC_WARP 32u

/* As many for all ranks: a rank's own Program may have fewer channels than another's. */
static uint32_t lanes_of(const struct pc_device_comm *plane, const struct pc_plan *plan,
                         uint32_t wanted)
{
    uint32_t lanes = 1;
    if (!plane->whole)
        return 1;
    if (wanted != 0)
        return wanted;
    while (lanes * PC_MAX_CHANNELS < PC_MAX_BLOCKS && plan->nbytes > lanes * PC_INSTANCE_BYTES)
        lanes *= 2;
    return lanes;
}

static uint32_t threads_of(const struct pc_device_comm *plane, uint32_t wanted)
{
    uint32_t threads = wanted != 0 ? wanted : PC_THREADS;
    threads = threads < plane->max_threads ? threads : plane->max_threads;
    return threads > PC_WARP ? threads / PC_WARP * PC_WARP : threads;
}

/* Scratch is shared by all plans, as one runs at a time. A larger one replaces it for later plans;
 * those before keep what they were built for, so none is given back. */
static int make_scratch(struct pc_device_comm *plane, uint64_t nbytes)
{
    uint64_t at;
    if (nbytes <= plane->edges.scratch_bytes)
        return PC_OK;
    if (nbytes < 2 * plane->edges.scratch_bytes)
        nbytes = 2 * plane->edges.scratch_bytes;
    int rc = pc__pool_take(plane, nbytes, &at);
    if (rc != PC_OK)
        return rc;
    plane->edges.scratch = at;
    plane->edges.scratch_bytes = nbytes;
    return PC_OK;
}

static int build(struct pc_device_comm *plane, struct pc_device_plan *p, uint32_t lanes)
{
    int form = (int)p->shape.direct;
    int rc = make_scratch(plane, pc__device_image_scratch(p->plan, form, lanes));
    size_t nbytes = pc__device_image_bytes(p->plan, form, lanes);
    void *image = nbytes == 0 ? NULL : aligned_alloc(PC_CHUNK_UNIT, pc__page_up(nbytes));
    if (rc == PC_OK && image == NULL)
        rc = pc__fail(plane->error, PC_NOMEM, -1, "no memory for a plan");
    if (rc == PC_OK)
        rc = pc__pool_take(plane, nbytes, &p->image);
    if (rc == PC_OK)
        rc = pc__device_image_build(p->plan, form, lanes, p->shape.packets, p->number,
                                    &plane->edges, image, p->image, plane->error);
    if (rc == PC_OK)
        rc = pc__device_comm_upload(plane, p->image, image, nbytes);
    free(image);
    return rc;
}

static void free_plan(struct pc_device_plan *p)
{
    pc_plan_free(p->plan);
    if (p->graphs != NULL && __atomic_load_n(p->graphs, __ATOMIC_ACQUIRE) == 0)
        free(p->graphs); /* else the driver counts it down some day */
    free(p);
}

static void take_out(struct pc_device_plan *p)
{
    if (p->image != 0)
        pc__pool_give(p->plane, p->image);
    p->plane->plans[p->number] = NULL;
}

/* When the last graph has gone, the launches that nobody counted are counted after all. */
static void forget_graphs(struct pc_device_comm *plane)
{
    if (!atomic_load(&plane->capturing) || pc__launches_over(plane) != PC_OK)
        return;
    for (uint32_t i = 0; i < plane->nplans; i++)
        if (plane->plans[i] != NULL
            && __atomic_load_n(plane->plans[i]->graphs, __ATOMIC_ACQUIRE) != 0)
            return;
    for (uint32_t b = 0; b < PC_MAX_BLOCKS; b++)
        atomic_store(&plane->launched[b], pc__launches_finished(plane, b));
    atomic_store(&plane->capturing, 0);
}

/* Frees what was dropped and is used no more. Entries of a plan may stand in a ring when its kernel
 * has ended, and a graph may still launch it. */
static void sweep(struct pc_device_comm *plane)
{
    bool idle = pc__launches_over(plane) == PC_OK && pc__proxy_settled(plane);
    for (uint32_t i = 0; idle && i < plane->nplans; i++) {
        struct pc_device_plan *p = plane->plans[i];
        if (p != NULL && atomic_load(&p->state) == PC_DEVICE_PLAN_DROPPED
            && __atomic_load_n(p->graphs, __ATOMIC_ACQUIRE) == 0) {
            take_out(p);
            free_plan(p);
        }
    }
}

void pc_device_plan_free(struct pc_device_plan *p)
{
    if (p != NULL && atomic_exchange(&p->state, PC_DEVICE_PLAN_DROPPED) == PC_DEVICE_PLAN_ORPHANED)
        free_plan(p);
}

void pc__device_plans_drop(struct pc_device_comm *plane)
{
    for (uint32_t i = 0; plane->plans != NULL && i < plane->nplans; i++) {
        struct pc_device_plan *p = plane->plans[i];
        if (p == NULL)
            continue;
        take_out(p);
        if (atomic_exchange(&p->state, PC_DEVICE_PLAN_ORPHANED) == PC_DEVICE_PLAN_DROPPED)
            free_plan(p);
    }
}

static int number_of(struct pc_device_comm *plane, uint32_t *number)
{
    for (uint32_t i = 0; i < PC_MAX_PLANS; i++)
        if (plane->plans[i] == NULL) {
            *number = i;
            plane->nplans = i >= plane->nplans ? i + 1 : plane->nplans;
            return PC_OK;
        }
    return pc__fail(plane->error, PC_NOMEM, -1, "a plane has room for %u plans", PC_MAX_PLANS);
}

static int check_plan(struct pc_device_comm *plane, const struct pc_plan *plan)
{
    if (!plane->sealed || plane->detached)
        return pc__fail(plane->error, PC_INVALID, -1, "a plane that is %s",
                        plane->sealed ? "closed" : "not open yet");
    if (plane->proxied
        && (plan->terms[0].ntiles > PC_MAX_ENTRY_TILES
            || plan->staged->ninstructions > PC_MAX_ENTRY_INSTRUCTIONS))
        return pc__fail(plane->error, PC_INVALID, -1,
                        "%llu tiles of %u instructions: a ring's entry has no room for that",
                        (unsigned long long)plan->terms[0].ntiles, plan->staged->ninstructions);
    return PC_OK;
}

int pc_device_plan_create(struct pc_device_comm *plane, struct pc_plan *plan,
                          const struct pc_device_plan_options *options, struct pc_device_plan **out)
{
    *out = NULL;
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    struct pc_device_plan *p = calloc(1, sizeof *p);
    int rc = check_plan(plane, plan);
    if (rc == PC_OK && (p == NULL || (p->graphs = calloc(1, sizeof *p->graphs)) == NULL))
        rc = pc__fail(plane->error, PC_NOMEM, -1, "no memory for a plan");
    if (rc == PC_OK) {
        forget_graphs(plane);
        sweep(plane);
        rc = number_of(plane, &p->number);
    }
    if (rc != PC_OK) {
        pc__cuda_relax(mode);
        pc_plan_free(plan);
        free(p == NULL ? NULL : p->graphs);
        free(p);
        return rc;
    }
    uint32_t lanes = lanes_of(plane, plan, options->lanes);
    p->plane = plane;
    p->plan = plan;
    p->function = options->function;
    plane->plans[p->number] = p;
    /* As on all ranks: their heaps are alike, and so are the forms that they compile. */
    int form = plan->direct != NULL && plane->whole && plane->heap.bytes != 0;
    int blocks = pc__device_image_blocks(plan, form, lanes);
    if (blocks < 0)
        rc = pc__fail(plane->error, PC_INVALID, -1, "%u lanes of %u channels, want at most %u",
                      lanes, plan->staged->nchannels, PC_MAX_BLOCKS);
    p->shape = (struct pc_device_plan_shape){.blocks = (uint32_t)blocks,
                                             .lanes = lanes,
                                             .direct = (uint32_t)form,
                                             .threads = threads_of(plane, options->threads),
                                             .packets = plane->whole && options->packets != 0
                                                        && pc__device_image_fits_ll(plan, lanes)};
    if (rc == PC_OK)
        rc = build(plane, p, lanes);
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
