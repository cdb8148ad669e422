/* Devices: which there are, opening them, and what they say of themselves. */
#include <fcntl.h>
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "nic.h"

static pthread_mutex_t global_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fv_fabric *fabric;
static struct fv_device devices[FV_DEVICES]; /* for ever, as an opened one refers to it */

struct fv_fabric *fv_fabric_here(void)
{
    pthread_mutex_lock(&global_lock);
    if (!fabric) {
        const char *path = getenv("FAKEVERBS_FABRIC");
        fabric = fv_fabric_open(path && *path ? path : NULL);
        if (!fabric)
            fv_fatal("FAKEVERBS_FABRIC=%s: %s", path ? path : "", strerror(errno));
        for (uint32_t i = 0; i < FV_DEVICES; i++) {
            struct fv_device *d = &devices[i];
            d->index = i;
            d->base.node_type = IBV_NODE_CA;
            d->base.transport_type = IBV_TRANSPORT_IB;
            snprintf(d->base.name, sizeof d->base.name, "fake%u", i);
            snprintf(d->base.dev_name, sizeof d->base.dev_name, "uverbs%u", i);
            snprintf(d->base.dev_path, sizeof d->base.dev_path,
                     "/sys/class/infiniband_verbs/uverbs%u", i);
            snprintf(d->base.ibdev_path, sizeof d->base.ibdev_path, "/sys/class/infiniband/fake%u",
                     i);
        }
    }
    pthread_mutex_unlock(&global_lock);
    return fabric;
}

uint32_t fv_port_of(uint32_t device)
{
    return fv_options.host * FV_DEVICES + device;
}

struct ibv_device **ibv_get_device_list(int *n)
{
    fv_fabric_here();
    struct ibv_device **list = calloc(fv_options.devices + 1, sizeof *list);
    if (!list)
        return NULL;
    for (uint32_t i = 0; i < fv_options.devices; i++)
        list[i] = &devices[i].base;
    if (n)
        *n = (int)fv_options.devices;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

int ibv_get_device_index(struct ibv_device *device)
{
    return (int)((struct fv_device *)device)->index;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
    union ibv_gid gid;
    fv_gid(fv_port_of(((struct fv_device *)device)->index), 0, &gid, NULL);
    return gid.global.interface_id;
}

void fv_enter(struct fv_context *c)
{
    atomic_fetch_add(&c->wanted, 1);
    pthread_mutex_lock(&c->lock);
    atomic_fetch_sub(&c->wanted, 1);
}

void fv_leave(struct fv_context *c)
{
    pthread_mutex_unlock(&c->lock);
}

void fv_object(struct fv_context *c, enum fv_object what, int64_t change)
{
    atomic_fetch_add(&c->fabric->shared->slots[c->slot].objects[what], (uint64_t)change);
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct fv_device *d = (struct fv_device *)device;
    struct fv_context *c = calloc(1, sizeof *c);
    int pipes[2];
    if (!c || FV_FAILS("open_device")) {
        free(c);
        return NULL;
    }
    c->fabric = fv_fabric_here();
    c->device = d;
    c->port = fv_port_of(d->index);
    c->qps = calloc(FV_MAX_QPS, sizeof *c->qps);
    int slot = c->qps && !pipe2(pipes, O_CLOEXEC) ? fv_slot_take(c->fabric, c->port) : -1;
    if (slot < 0)
        fv_fatal("%s cannot be opened: no memory, no descriptor, or %u are open", device->name,
                 FV_SLOTS);
    c->slot = (uint32_t)slot;
    c->next_qp = 17; /* numbers 0 and 1 are never a connection's */
    c->changes = atomic_load(&c->fabric->shared->changes);
    c->down = atomic_load(&c->fabric->shared->ports[c->port].down);
    c->moved = atomic_load(&c->fabric->shared->ports[c->port].moved);
    c->pkey = atomic_load(&c->fabric->shared->ports[c->port].pkey);
    pthread_mutex_init(&c->lock, NULL);
    c->async_writer = pipes[1];
    struct ibv_context *base = &c->verbs.context;
    base->device = device;
    base->ops.poll_cq = fv_poll_cq;
    base->ops.req_notify_cq = fv_req_notify_cq;
    base->ops.post_send = fv_post_send;
    base->ops.post_recv = fv_post_recv;
    base->ops.post_srq_recv = fv_post_srq_recv;
    base->cmd_fd = -1;
    base->async_fd = pipes[0];
    base->num_comp_vectors = 1;
    pthread_mutex_init(&base->mutex, NULL);
    if (!fv_options.compat) {
        base->abi_compat = __VERBS_ABI_IS_EXTENDED;
        c->verbs.sz = sizeof c->verbs;
        c->verbs.query_port = fv_query_port;
    }
    fv_gpu_opened(c);
    if (pthread_create(&c->thread, NULL, fv_nic, c))
        fv_fatal("%s: no thread for its NIC", device->name);
    return base;
}

int ibv_close_device(struct ibv_context *base)
{
    struct fv_context *c = fv_context_of(base);
    struct fv_slot *slot = &c->fabric->shared->slots[c->slot];
    uint64_t left = 0;
    fv_gpu_closed(c);
    for (int i = 0; i < FV_OBJECTS; i++) /* but what counts regions again */
        left += i == FV_MR_BYTES || i == FV_RELAXED || i == FV_GPU_MRS
                    ? 0
                    : atomic_load(&slot->objects[i]);
    if (left) {
        fprintf(stderr, "fakeverbs: %s is closed with %llu objects left\n", base->device->name,
                (unsigned long long)left);
        fv_count(c->fabric, c->port, FV_UNCLOSED, left);
    }
    atomic_store(&c->stop, true);
    fv_slot_ring(c->fabric, c->slot);
    pthread_join(c->thread, NULL);
    fv_slot_give(c->fabric, c->slot);
    close(base->async_fd);
    close(c->async_writer);
    pthread_mutex_destroy(&base->mutex);
    pthread_mutex_destroy(&c->lock);
    free(c->qps);
    free(c->mrs);
    free(c);
    return 0;
}

int ibv_query_device(struct ibv_context *base, struct ibv_device_attr *attr)
{
    *attr = (struct ibv_device_attr){
        .fw_ver = "1.0.0",
        .node_guid = ibv_get_device_guid(base->device),
        .sys_image_guid = ibv_get_device_guid(base->device),
        .max_mr_size = UINT64_MAX,
        .page_size_cap = 0xfffff000,
        .max_qp = (int)FV_MAX_QPS,
        .max_qp_wr = (int)FV_MAX_WR,
        .device_cap_flags = IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_RC_RNR_NAK_GEN,
        .max_sge = (int)FV_MAX_SGE,
        .max_sge_rd = (int)FV_MAX_SGE,
        .max_cq = 65536,
        .max_cqe = (int)fv_options.max_cqe,
        .max_mr = 1 << 20,
        .max_pd = 65536,
        .max_qp_rd_atom = (int)FV_MAX_READS,
        .max_res_rd_atom = (int)FV_MAX_READS * 1024,
        .max_qp_init_rd_atom = (int)FV_MAX_READS,
        .atomic_cap = IBV_ATOMIC_NONE,
        .max_srq = fv_options.srq_wr ? 1024 : 0,
        .max_srq_wr = (int)fv_options.srq_wr,
        .max_srq_sge = fv_options.srq_wr ? (int)FV_MAX_SGE : 0,
        .max_pkeys = FV_PKEYS,
        .local_ca_ack_delay = 15,
        .phys_port_cnt = 1,
    };
    return 0;
}

int ibv_fork_init(void)
{
    return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void)
{
    return IBV_FORK_UNNEEDED;
}
