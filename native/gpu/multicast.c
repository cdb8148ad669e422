/* Multicast: heaps that other ranks open by descriptors, and an object of NVLink's switch over all
 * of them, at whose address every rank's heap lies at once; kernel/multimem.h uses it.
 *
 * The driver waits in bind and map until all devices were added, for ever if one rank gave up: so
 * the ranks take each step together, and pycoll.h says in which order. */
#include "gpu/driver/cuda.h"
#include "gpu/device_comm.h"

static size_t heap_bytes(const struct pc_device_comm *dc)
{
    return dc->multicast.nbytes;
}

int pc__multicast_heap(struct pc_device_comm *dc)
{
    struct pc_multicast *m = &dc->multicast;
    int rc = pc_cuda_multicast(dc->device, dc->error);
    if (rc == PC_OK)
        rc = pc__cuda_granularity(dc->device, dc->nlocals, dc->heap.bytes, dc->error, &m->unit);
    if (rc != PC_OK)
        return rc;
    m->nbytes = (dc->heap.bytes + m->unit - 1) / m->unit * m->unit;
    rc = pc__cuda_memory_create(dc->device, m->nbytes, dc->error, &m->memory);
    if (rc == PC_OK)
        rc = pc__cuda_memory_map(dc->device, m->memory, m->nbytes, m->unit, dc->error,
                                 &dc->heap_at);
    if (rc != PC_OK)
        dc->heap_at = 0;
    return rc;
}

/* What follows is for a device communicator that has such a heap, before it is sealed. */
static int begin(struct pc_device_comm *dc, int *mode)
{
    if (dc->multicast.memory == 0 || dc->sealed || dc->nlocals != dc->comm->options.size)
        return pc__fail(dc->error, PC_INVALID, -1, "multicast of a device communicator that is %s",
                        dc->sealed ? "sealed" : "not opened for it");
    *mode = pc__cuda_relax(PC_CUDA_RELAXED);
    return PC_OK;
}

static int end(int rc, int mode)
{
    pc__cuda_relax(mode);
    return rc;
}

int pc_device_comm_multicast_create(struct pc_device_comm *dc, int32_t *fd)
{
    struct pc_multicast *m = &dc->multicast;
    int mode, rc = begin(dc, &mode);
    if (rc != PC_OK)
        return rc;
    rc = pc__cuda_multicast_create(dc->device, dc->nlocals, heap_bytes(dc), dc->error, &m->object);
    return end(rc == PC_OK ? pc__cuda_memory_export(dc->device, m->object, dc->error, fd) : rc,
               mode);
}

int pc_device_comm_multicast_export(struct pc_device_comm *dc, int32_t *fd)
{
    int mode, rc = begin(dc, &mode);
    return rc == PC_OK
               ? end(pc__cuda_memory_export(dc->device, dc->multicast.memory, dc->error, fd), mode)
               : rc;
}

int pc_device_comm_multicast_join(struct pc_device_comm *dc, int32_t fd)
{
    struct pc_multicast *m = &dc->multicast;
    int mode, rc = begin(dc, &mode);
    if (rc != PC_OK)
        return rc;
    if (m->object == 0)
        rc = pc__cuda_memory_import(dc->device, fd, dc->error, &m->object);
    if (rc == PC_OK)
        rc = pc__cuda_multicast_add(dc->device, m->object, dc->error);
    return end(rc, mode);
}

int pc_device_comm_multicast_reach(struct pc_device_comm *dc, uint32_t peer, int32_t fd)
{
    int mode, rc = begin(dc, &mode);
    if (rc != PC_OK)
        return rc;
    if (peer >= dc->comm->options.size || peer == dc->comm->options.rank
        || dc->peers[peer].heap != 0)
        return end(pc__fail(dc->error, PC_INVALID, (int)peer, "rank %u of %u cannot be reached now",
                            peer, dc->comm->options.size),
                   mode);
    uint64_t handle;
    rc = pc__cuda_memory_import(dc->device, fd, dc->error, &handle);
    if (rc == PC_OK) {
        rc = pc__cuda_memory_map(dc->device, handle, heap_bytes(dc), dc->multicast.unit, dc->error,
                                 &dc->peers[peer].heap);
        if (rc != PC_OK)
            dc->peers[peer].heap = 0;
        pc__cuda_memory_release(dc->device, handle); /* the mapping keeps it */
    }
    return end(rc, mode);
}

int pc_device_comm_multicast_bind(struct pc_device_comm *dc)
{
    struct pc_multicast *m = &dc->multicast;
    int mode, rc = begin(dc, &mode);
    if (rc != PC_OK)
        return rc;
    rc = pc__cuda_multicast_bind(dc->device, m->object, m->memory, heap_bytes(dc), dc->error);
    m->bound = rc == PC_OK;
    return end(rc, mode);
}

int pc_device_comm_multicast_map(struct pc_device_comm *dc, uint32_t rounds)
{
    struct pc_multicast *m = &dc->multicast;
    int mode, rc = begin(dc, &mode);
    if (rc != PC_OK)
        return rc;
    rc = pc__cuda_memory_map(dc->device, m->object, heap_bytes(dc), m->unit, dc->error, &m->at);
    if (rc != PC_OK)
        m->at = 0;
    m->rounds = rounds != 0;
    return end(rc, mode);
}

void pc__multicast_leave(struct pc_device_comm *dc)
{
    struct pc_multicast *m = &dc->multicast;
    if (m->at != 0)
        pc__cuda_memory_unmap(dc->device, m->at, heap_bytes(dc));
    m->at = 0;
    for (uint32_t p = 0; dc->peers != NULL && p < dc->comm->options.size; p++) {
        if (dc->peers[p].heap != 0)
            pc__cuda_memory_unmap(dc->device, dc->peers[p].heap, heap_bytes(dc));
        dc->peers[p].heap = 0;
    }
}

void pc__multicast_close(struct pc_device_comm *dc)
{
    struct pc_multicast *m = &dc->multicast;
    if (m->bound)
        pc__cuda_multicast_unbind(dc->device, m->object, heap_bytes(dc));
    if (m->object != 0)
        pc__cuda_memory_release(dc->device, m->object);
    if (m->memory == 0)
        return;
    if (dc->heap_at != 0)
        pc__cuda_memory_unmap(dc->device, dc->heap_at, heap_bytes(dc));
    pc__cuda_memory_release(dc->device, m->memory);
}
