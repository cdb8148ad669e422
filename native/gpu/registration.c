/* Registers allocations of users, so that the kernels of peers reach arrays there as they reach
 * those in heaps: the direct form then runs on a user's own arrays (NCCL: user buffer registration;
 * UCX: the cache of cuda_ipc).
 *
 * An allocation that this rank's calls use gets a number, and the peers are told to open it. Once
 * all have answered that they did, it is written into the table that this rank's kernels read, and
 * its READY says numbers. So whoever hears a number has opened what it stands for, and all ranks
 * decide alike with no call for it. Ranks tell each other by the first slots of the edges in host
 * memory, which carry nothing else where all ranks reach each other's GPU memory, and look there as
 * they launch: nobody waits, and no thread is needed.
 *
 * Opening and closing may wait for all kernels of this process, which may wait for other ranks. So
 * it is done in a launch, before its kernel: what runs by then waits for nothing but launches that
 * come before this one on all ranks, which in turn wait for earlier ones alone. It is off where
 * ranks share a process and others do not, whose kernels may wait for the one that opens.
 *
 * The driver numbers allocations: an address that comes again has another number. Each launch asks
 * for that of its arrays, and every few launches of one allocation more, as nobody says when one is
 * freed. What has another number leaves the table, and the peers close it when the launches that
 * may have named it are over: a kernel does not end before its peers have said DONE. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gpu/driver/cuda.h"
#include "gpu/device_comm.h"

/* An allocation that was not used in so many calls may lose its number to another one, and what was
 * refused so long ago is tried again: a peer may have had another communicator's there still. */
#define PC_IDLE_CALLS 128u
/* Each so many calls it is looked whether one more allocation is still there. */
#define PC_LOOK_CALLS 4u

static struct pc_mail *mail_to(const struct pc_device_comm *dc, uint32_t peer)
{
    return (struct pc_mail *)dc->comm->fifos[(size_t)peer * PC_EDGE_CHANNELS].out_data;
}

static struct pc_mail *mail_from(const struct pc_device_comm *dc, uint32_t peer)
{
    return (struct pc_mail *)dc->comm->fifos[(size_t)peer * PC_EDGE_CHANNELS].in_data;
}

static void raise_said(struct pc_mail *mail)
{
    atomic_fetch_add_explicit(&mail->said, 1, memory_order_release);
}

static bool is_peer(const struct pc_device_comm *dc, uint32_t p)
{
    return p != dc->comm->options.rank;
}

static bool same_process(const struct pc_device_comm *dc, uint32_t peer)
{
    return !dc->peers[peer].mapped;
}

/* Notes why arrays are not reached; it is news once. */
static void note_lack(struct pc_registration *r, const char *format, uint32_t rank, const char *why)
{
    char text[sizeof r->lack];
    snprintf(text, sizeof text, format, rank, why);
    r->news = r->news || strcmp(text, r->lack) != 0;
    memcpy(r->lack, text, sizeof text);
}

/* Writes an entry of the table that kernels read, so that they never see half of one. */
static int write_entry(struct pc_device_comm *dc, uint32_t rank, uint32_t number, uint64_t at,
                       uint64_t nbytes)
{
    uint64_t entry = dc->edges.ipc_peers + rank * sizeof(struct pc_ipc_peer)
                     + offsetof(struct pc_ipc_peer, segments) + number * sizeof(struct pc_segment);
    int rc = PC_OK;
    if (at != 0)
        rc = pc__device_comm_upload(dc, entry + offsetof(struct pc_segment, nbytes), &nbytes,
                                    sizeof nbytes);
    return rc == PC_OK
               ? pc__device_comm_upload(dc, entry + offsetof(struct pc_segment, at), &at, sizeof at)
               : rc;
}

/* ---- what peers say ---------------------------------------------------------------------------
 */

static int close_theirs(struct pc_device_comm *dc, uint32_t peer, uint32_t number)
{
    struct pc_opened *o = &dc->registration.theirs[peer * PC_SEGMENTS + number];
    if (!o->open)
        return PC_OK;
    o->open = false;
    int rc = write_entry(dc, peer, number, 0, 0);
    if (o->base != 0)
        pc__ipc_close_memory(dc->device, o->base);
    o->base = 0;
    return rc;
}

/* OK, or why it cannot be opened. */
static int open_theirs(struct pc_device_comm *dc, uint32_t peer, uint32_t number,
                       struct pc_error *error)
{
    const struct pc_mail *mail = mail_from(dc, peer);
    struct pc_opened *o = &dc->registration.theirs[peer * PC_SEGMENTS + number];
    unsigned char handle[PC_CUDA_HANDLE];
    uint64_t at = mail->segments[number].address, nbytes = mail->segments[number].nbytes,
             id = mail->segments[number].id;
    struct pc_cuda_pointer where;
    int rc = PC_OK;
    memcpy(handle, mail->segments[number].handle, sizeof handle);
    bool here = same_process(dc, peer);
    if (!here) {
        rc = pc__ipc_open_memory(dc->device, handle, id, error, &o->base);
        at = o->base;
    }
    if (rc == PC_OK)
        rc = pc_cuda_pointer(at, error, &where);
    if (rc == PC_OK
        && (where.kind != PC_CUDA_DEVICE || at - where.base > where.nbytes
            || where.nbytes - (at - where.base) < nbytes || (here && where.id != id)))
        rc = pc__fail(error, PC_INVALID, (int)peer, "memory of rank %u is not what it says", peer);
    if (rc == PC_OK)
        rc = write_entry(dc, peer, number, at, nbytes);
    if (rc != PC_OK && o->base != 0) {
        pc__ipc_close_memory(dc->device, o->base);
        o->base = 0;
    }
    return rc;
}

/* Does what a peer says of one number, and answers. */
static int obey(struct pc_device_comm *dc, uint32_t peer, uint32_t number, uint64_t serial)
{
    struct pc_opened *o = &dc->registration.theirs[peer * PC_SEGMENTS + number];
    struct pc_mail *answer = mail_to(dc, peer);
    struct pc_error error;
    int rc = close_theirs(dc, peer, number), failed = PC_OK;
    if (rc != PC_OK)
        return rc;
    if (serial % 2 != 0) {
        failed = open_theirs(dc, peer, number, &error);
        if (failed != PC_OK)
            snprintf(answer->lack, sizeof answer->lack, "%s", error.text);
    }
    o->open = serial % 2 != 0 && failed == PC_OK;
    dc->registration.active = dc->registration.active || o->open;
    o->serial = serial;
    atomic_store_explicit(&answer->answers[number], serial << 1 | (failed != PC_OK),
                          memory_order_release);
    return PC_OK;
}

/* Reads what a peer has said since; `closes`: only of what is to be closed. */
static int hear(struct pc_device_comm *dc, uint32_t peer, bool closes)
{
    struct pc_registration *r = &dc->registration;
    struct pc_mail *mail = mail_from(dc, peer);
    bool answered = false;
    int rc = PC_OK;
    for (uint32_t n = 1; n < PC_SEGMENTS && rc == PC_OK; n++) {
        uint64_t serial = atomic_load_explicit(&mail->segments[n].serial, memory_order_acquire);
        if (serial <= r->theirs[peer * PC_SEGMENTS + n].serial || (closes && serial % 2 != 0))
            continue;
        rc = obey(dc, peer, n, serial);
        answered = true;
    }
    if (answered)
        raise_said(mail_to(dc, peer));
    return rc;
}

/* ---- this rank's allocations ------------------------------------------------------------------
 */

static void say(struct pc_device_comm *dc, uint32_t number, const void *handle)
{
    struct pc_registered *m = &dc->registration.mine[number];
    m->serial++;
    dc->registration.active = true;
    for (uint32_t p = 0; p < dc->comm->options.size; p++) {
        if (!is_peer(dc, p))
            continue;
        struct pc_mail *mail = mail_to(dc, p);
        if (handle != NULL) {
            mail->segments[number].address = m->base;
            mail->segments[number].nbytes = m->nbytes;
            mail->segments[number].id = m->id;
            memcpy(mail->segments[number].handle, handle, PC_CUDA_HANDLE);
        }
        atomic_store_explicit(&mail->segments[number].serial, m->serial, memory_order_release);
        raise_said(mail);
    }
}

/* Whether all have answered what was said last of a number; `failed`: the first that could not. */
static bool answered(const struct pc_device_comm *dc, uint32_t number, uint32_t *failed)
{
    uint64_t serial = dc->registration.mine[number].serial;
    *failed = UINT32_MAX;
    for (uint32_t p = 0; p < dc->comm->options.size; p++) {
        if (!is_peer(dc, p))
            continue;
        uint64_t answer
            = atomic_load_explicit(&mail_from(dc, p)->answers[number], memory_order_acquire);
        if (answer >> 1 != serial)
            return false;
        if (answer & 1 && *failed == UINT32_MAX)
            *failed = p;
    }
    return true;
}

/* Takes a number from its allocation. */
static int leave(struct pc_device_comm *dc, uint32_t number)
{
    struct pc_registered *m = &dc->registration.mine[number];
    int rc = PC_OK;
    if (m->state == PC_REGISTERED_SAID) { /* no kernel has ever named it */
        say(dc, number, NULL);
        m->state = PC_REGISTERED_NONE;
    } else if (m->state == PC_REGISTERED_REFUSED) {
        m->state = PC_REGISTERED_NONE;
    } else if (m->state == PC_REGISTERED_REACHED) {
        rc = write_entry(dc, dc->comm->options.rank, number, 0, 0);
        for (uint32_t b = 0; b < PC_MAX_BLOCKS; b++)
            m->launched[b] = atomic_load(&dc->launched[b]);
        m->state = PC_REGISTERED_LEAVING;
        dc->registration.waiting = true;
    }
    return rc;
}

/* Whether the launches that may have named it are over. What graphs launch is counted when it ends
 * alone, so as long as there are some only the driver knows of the others. */
static bool unnamed(const struct pc_device_comm *dc, const struct pc_registered *m)
{
    struct pc_error ignored;
    if (atomic_load(&dc->capturing) != 0)
        return !m->captured && pc__launches_over(dc, &ignored) == PC_OK;
    for (uint32_t b = 0; b < PC_MAX_BLOCKS; b++)
        if (pc__launches_finished(dc, b) < m->launched[b])
            return false;
    return true;
}

static int go_on(struct pc_device_comm *dc, uint32_t number)
{
    struct pc_registered *m = &dc->registration.mine[number];
    uint32_t failed;
    if (m->state == PC_REGISTERED_LEAVING && unnamed(dc, m)) {
        say(dc, number, NULL);
        m->state = PC_REGISTERED_NONE;
    }
    if (m->state != PC_REGISTERED_SAID || !answered(dc, number, &failed))
        return PC_OK;
    if (failed == UINT32_MAX) {
        m->state = PC_REGISTERED_REACHED;
        return write_entry(dc, dc->comm->options.rank, number, m->base, m->nbytes);
    }
    char why[sizeof mail_from(dc, failed)->lack];
    memcpy(why, mail_from(dc, failed)->lack, sizeof why);
    why[sizeof why - 1] = 0;
    note_lack(&dc->registration, "rank %u cannot open it: %s", failed, why);
    say(dc, number, NULL); /* those that could close it again */
    m->state = PC_REGISTERED_REFUSED;
    m->since = dc->registration.calls;
    return PC_OK;
}

/* Does what is to be done before a launch that is not captured. */
static int serve(struct pc_device_comm *dc)
{
    struct pc_registration *r = &dc->registration;
    bool news = false;
    int rc = PC_OK;
    for (uint32_t p = 0; p < dc->comm->options.size && !news; p++)
        news = is_peer(dc, p)
               && atomic_load_explicit(&mail_from(dc, p)->said, memory_order_relaxed) != r->seen[p];
    if (!news && !r->waiting)
        return PC_OK;
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    for (uint32_t p = 0; p < dc->comm->options.size && rc == PC_OK; p++) {
        if (!is_peer(dc, p))
            continue;
        uint64_t said = atomic_load_explicit(&mail_from(dc, p)->said, memory_order_acquire);
        if (said != r->seen[p])
            rc = hear(dc, p, false);
        if (rc == PC_OK)
            r->seen[p] = said;
    }
    if (r->waiting && atomic_load(&dc->capturing) != 0)
        pc__graphs_forget(dc);
    r->waiting = false;
    for (uint32_t n = 1; n < PC_SEGMENTS && rc == PC_OK; n++) {
        rc = go_on(dc, n);
        r->waiting = r->waiting || r->mine[n].state == PC_REGISTERED_LEAVING;
    }
    pc__cuda_relax(mode);
    return rc;
}

/* What the driver says of an allocation; all zero: nothing. */
struct range {
    uint64_t base, nbytes, id;
};

static struct range ask(struct pc_device_comm *dc, uint64_t address)
{
    struct range x = {0, 0, 0};
    struct pc_error ignored;
    dc->registration.questions++;
    pc__cuda_range(address, &ignored, &x.base, &x.nbytes, &x.id);
    return x;
}

static bool is_of(const struct pc_registered *m, const struct range *x)
{
    return m->base == x->base && m->nbytes == x->nbytes && m->id == x->id;
}

/* Has a number that was not used for long given up, so that another call finds it. */
static int make_room(struct pc_device_comm *dc)
{
    struct pc_registration *r = &dc->registration;
    uint32_t oldest = 0;
    bool graphs = atomic_load(&dc->capturing) != 0;
    for (uint32_t n = 1; n < PC_SEGMENTS; n++) {
        struct pc_registered *m = &r->mine[n];
        if ((m->state == PC_REGISTERED_REACHED || m->state == PC_REGISTERED_REFUSED)
            && !(graphs && m->captured) && (oldest == 0 || m->used < r->mine[oldest].used))
            oldest = n;
    }
    return oldest != 0 && r->calls - r->mine[oldest].used > PC_IDLE_CALLS ? leave(dc, oldest)
                                                                          : PC_OK;
}

/* Gives a number to an allocation, and has the peers open it. */
static void begin(struct pc_device_comm *dc, uint32_t number, const struct range *x)
{
    struct pc_registration *r = &dc->registration;
    struct pc_registered *m = &r->mine[number];
    unsigned char handle[PC_CUDA_HANDLE] = {0};
    struct pc_cuda_pointer where;
    struct pc_error error;
    bool apart = false;
    for (uint32_t p = 0; p < dc->comm->options.size; p++)
        apart = apart || (is_peer(dc, p) && !same_process(dc, p));
    *m = (struct pc_registered){.base = x->base,
                                .nbytes = x->nbytes,
                                .id = x->id,
                                .serial = m->serial,
                                .since = r->calls,
                                .state = PC_REGISTERED_REFUSED};
    int rc = pc_cuda_pointer(x->base, &error, &where);
    if (rc == PC_OK && (where.kind != PC_CUDA_DEVICE || where.managed || !where.ipc))
        rc = pc__fail(&error, PC_UNMAPPABLE, -1, "%s",
                      where.managed ? "it is managed memory"
                                    : "it is of a memory pool, virtual memory or memory of another "
                                      "process, which CUDA IPC does not share");
    if (rc == PC_OK && apart)
        rc = pc_cuda_ipc_get(dc->device, x->base, &error, handle);
    if (rc != PC_OK) {
        note_lack(r, "rank %u cannot share it: %s", dc->comm->options.rank, error.text);
        return;
    }
    m->state = PC_REGISTERED_SAID;
    say(dc, number, handle);
}

static int find_number(struct pc_device_comm *dc, const struct range *x, bool captured,
                       uint32_t *number)
{
    struct pc_registration *r = &dc->registration;
    uint32_t none = 0, failed;
    bool taken = false;
    int rc = PC_OK;
    for (uint32_t n = 1; n < PC_SEGMENTS; n++) /* as a rule, and then nothing overlaps it */
        if (r->mine[n].state == PC_REGISTERED_REACHED && is_of(&r->mine[n], x)) {
            *number = n;
            r->mine[n].used = r->calls;
            r->mine[n].captured = r->mine[n].captured || captured;
            return PC_OK;
        }
    for (uint32_t n = 1; n < PC_SEGMENTS; n++) {
        struct pc_registered *m = &r->mine[n];
        bool busy = m->state != PC_REGISTERED_NONE || !answered(dc, n, &failed);
        if (!busy)
            none = none == 0 ? n : none;
        /* A peer cannot open two allocations that overlap here: the earlier one is closed first. */
        if (!busy || m->base >= x->base + x->nbytes || x->base >= m->base + m->nbytes)
            continue;
        bool again = m->state == PC_REGISTERED_REFUSED && r->calls - m->since > PC_IDLE_CALLS;
        if (is_of(m, x) && m->state != PC_REGISTERED_NONE && m->state != PC_REGISTERED_LEAVING
            && !again) {
            *number = m->state == PC_REGISTERED_REFUSED ? 0 : n;
            m->used = r->calls;
            m->captured = m->captured || captured;
            return PC_OK;
        }
        taken = true;
        if (!captured)
            rc = rc == PC_OK ? leave(dc, n) : rc;
    }
    if (taken || rc != PC_OK)
        return rc;
    if (none == 0)
        return captured ? PC_OK : make_room(dc);
    begin(dc, none, x);
    r->mine[none].used = r->calls;
    r->mine[none].captured = captured;
    *number = r->mine[none].state == PC_REGISTERED_SAID ? none : 0;
    return PC_OK;
}

/* The number of the segment in which an array may lie; `x`: the allocation in question last. */
static int name(struct pc_device_comm *dc, uint64_t address, uint64_t nbytes, bool captured,
                struct range *x, uint32_t *number)
{
    if (nbytes == 0 || address - dc->heap_at < dc->heap.bytes)
        return PC_OK;
    if (address - x->base >= x->nbytes)
        *x = ask(dc, address);
    if (address - x->base >= x->nbytes || x->nbytes - (address - x->base) < nbytes)
        return PC_OK; /* unknown, or in several allocations */
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    int rc = find_number(dc, x, captured, number);
    pc__cuda_relax(mode);
    return rc;
}

/* Looks whether one more allocation is still there. */
static int look(struct pc_device_comm *dc)
{
    struct pc_registration *r = &dc->registration;
    for (uint32_t k = 1; k < PC_SEGMENTS; k++) {
        r->look = r->look % (PC_SEGMENTS - 1) + 1;
        struct pc_registered *m = &r->mine[r->look];
        if (m->state == PC_REGISTERED_NONE || m->state == PC_REGISTERED_LEAVING)
            continue;
        struct range x = ask(dc, m->base);
        if (is_of(m, &x))
            return PC_OK;
        int mode = pc__cuda_relax(PC_CUDA_RELAXED);
        int rc = leave(dc, r->look);
        pc__cuda_relax(mode);
        return rc;
    }
    return PC_OK;
}

int pc__registration_launch(struct pc_device_comm *dc, const struct pc_device_plan *p, uint64_t in,
                            uint64_t out, bool captured, struct pc_kernel_args *args)
{
    struct pc_registration *r = &dc->registration;
    struct range x = {0, 0, 0};
    int rc = PC_OK;
    if (!r->on || p == NULL) /* messages of two ranks have no common order */
        return PC_OK;
    if (!captured)
        rc = serve(dc);
    if (rc != PC_OK || !p->registers)
        return rc;
    const struct pc_plan_spec *spec = &p->plan->spec;
    uint64_t in_bytes = spec->input.count ? pc__extent_bytes(p->plan, spec->input) : 0;
    uint64_t out_bytes = spec->output.count ? pc__extent_bytes(p->plan, spec->output) : 0;
    if (++r->calls % PC_LOOK_CALLS == 0 && !captured)
        rc = look(dc);
    if (rc == PC_OK)
        rc = name(dc, in, in_bytes, captured, &x, &args->in_segment);
    if (rc == PC_OK)
        rc = name(dc, out, out_bytes, captured, &x, &args->out_segment);
    return rc;
}

/* ---- while no call is made --------------------------------------------------------------------
 */

/* Gives up the numbers of allocations that are not there any more. */
static int leave_freed(struct pc_device_comm *dc, uint32_t number)
{
    struct pc_registered *m = &dc->registration.mine[number];
    struct range x = {0, 0, 0};
    struct pc_error ignored;
    int rc = PC_OK;
    if (m->state == PC_REGISTERED_NONE)
        return PC_OK;
    if (m->state != PC_REGISTERED_LEAVING) {
        pc__cuda_range(m->base, &ignored, &x.base, &x.nbytes, &x.id);
        if (!is_of(m, &x))
            rc = leave(dc, number);
    }
    return rc == PC_OK && m->state == PC_REGISTERED_LEAVING ? go_on(dc, number) : rc;
}

int pc_device_comm_tidy(struct pc_device_comm *dc)
{
    struct pc_registration *r = &dc->registration;
    bool active = false;
    int rc = PC_OK;
    if (!r->on)
        return 0;
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    for (uint32_t p = 0; p < dc->comm->options.size && rc == PC_OK; p++)
        if (is_peer(dc, p))
            rc = hear(dc, p, true); /* what they want opened is left to launches */
    for (uint32_t n = 1; n < PC_SEGMENTS && rc == PC_OK; n++) {
        rc = leave_freed(dc, n);
        active = active || r->mine[n].state != PC_REGISTERED_NONE;
    }
    for (uint32_t i = 0; i < dc->comm->options.size * PC_SEGMENTS; i++)
        active = active || r->theirs[i].open;
    pc__cuda_relax(mode);
    r->active = active;
    return rc == PC_OK ? active : rc;
}

/* ---- life ------------------------------------------------------------------------------------ */

int pc__registration_open(struct pc_device_comm *dc)
{
    struct pc_registration *r = &dc->registration;
    const struct pc_options *o = &dc->comm->options;
    if (!dc->whole || (size_t)o->slots * o->slot_bytes < sizeof(struct pc_mail))
        return pc__fail(dc->error, PC_INVALID, -1,
                        "registration where not all GPU memory is reached, or with slots of %zu "
                        "bytes, want %zu",
                        (size_t)o->slots * o->slot_bytes, sizeof(struct pc_mail));
    r->theirs = calloc((size_t)o->size * PC_SEGMENTS, sizeof *r->theirs);
    r->seen = calloc(o->size, sizeof *r->seen);
    if (r->theirs == NULL || r->seen == NULL)
        return pc__fail(dc->error, PC_NOMEM, -1, "no memory for registrations");
    r->on = true;
    return PC_OK;
}

void pc__registration_leave(struct pc_device_comm *dc)
{
    struct pc_registration *r = &dc->registration;
    for (uint32_t i = 0; r->on && i < dc->comm->options.size * PC_SEGMENTS; i++)
        if (r->theirs[i].base != 0)
            pc__ipc_close_memory(dc->device, r->theirs[i].base);
    r->on = false;
}

void pc__registration_drop(struct pc_device_comm *dc)
{
    free(dc->registration.theirs);
    free(dc->registration.seen);
}

int pc_device_comm_registration(struct pc_device_comm *dc, uint32_t direct,
                                struct pc_registration_state *out)
{
    struct pc_registration *r = &dc->registration;
    *out = (struct pc_registration_state){.on = r->on, .questions = r->questions};
    if (!r->on)
        return PC_OK;
    for (uint32_t n = 1; n < PC_SEGMENTS; n++) {
        out->reached += r->mine[n].state == PC_REGISTERED_REACHED;
        out->refused += r->mine[n].state == PC_REGISTERED_REFUSED;
        out->waiting
            += r->mine[n].state == PC_REGISTERED_SAID || r->mine[n].state == PC_REGISTERED_LEAVING;
        for (uint32_t p = 0; p < dc->comm->options.size; p++)
            out->opened += r->theirs[p * PC_SEGMENTS + n].open;
    }
    memcpy(out->lack, r->lack, sizeof out->lack);
    if (!direct)
        return PC_OK;
    uint64_t at = dc->edges.states + offsetof(struct pc_block_state, direct);
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    int rc = pc__device_comm_download(dc, &out->direct, at, sizeof out->direct);
    pc__cuda_relax(mode);
    return rc;
}
