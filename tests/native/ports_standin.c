/* A libibverbs.so.1 whose devices are what environment variables say; nothing can be sent.
 *
 *   STANDIN_DEVICES   "name transport ports link;..."; transport as in enum ibv_transport_type,
 * link 1 InfiniBand or 2 Ethernet. Unset: ibv_get_device_list fails STANDIN_STATE     of every
 * port, as in enum ibv_port_state; 4 STANDIN_SPEED     "active_width active_speed active_speed_ex";
 * without the last the context is as that of a library that is older than it STANDIN_GIDS "port
 * index type address;..." STANDIN_NO_TABLE  set: the library cannot read the GIDs of a device at
 * once STANDIN_INLINE    bytes, at most, that a queue pair takes; 256 STANDIN_FAILS     the name of
 * a function that fails, as for lack of memory STANDIN_PKEYS     "8001 1 ffff": the partition keys
 * of every port; ffff
 *
 * At the end of the process it complains about devices that are still open. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#undef ibv_query_port
#undef ibv_reg_mr

#define MOST 8

static struct {
    struct ibv_device device;
    int ports, link;
} devices[MOST];
static int opened;

static const char *setting(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value == NULL ? otherwise : value;
}

static int fails(const char *function)
{
    if (strcmp(setting("STANDIN_FAILS", ""), function) != 0)
        return 0;
    errno = ENOMEM;
    return 1;
}

struct ibv_device **ibv_get_device_list(int *n)
{
    const char *rest = getenv("STANDIN_DEVICES");
    int transport, used;
    *n = 0;
    if (rest == NULL) {
        errno = ENOSYS;
        return NULL;
    }
    struct ibv_device **list = calloc(MOST + 1, sizeof *list);
    while (*n < MOST
           && sscanf(rest, "%63s %d %d %d%n", devices[*n].device.name, &transport,
                     &devices[*n].ports, &devices[*n].link, &used)
                  == 4) {
        devices[*n].device.node_type = transport == 0 ? IBV_NODE_CA : IBV_NODE_RNIC;
        devices[*n].device.transport_type = (enum ibv_transport_type)transport;
        list[*n] = &devices[*n].device;
        ++*n;
        rest += used + (rest[used] == ';');
    }
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

static void describe(struct ibv_context *context, struct ibv_port_attr *out)
{
    unsigned width = 1, speed = 8;
    sscanf(setting("STANDIN_SPEED", ""), "%u %u", &width, &speed);
    out->state = (enum ibv_port_state)atoi(setting("STANDIN_STATE", "4"));
    out->max_mtu = IBV_MTU_4096;
    out->active_mtu = IBV_MTU_2048;
    out->gid_tbl_len = 16;
    out->pkey_tbl_len = 8;
    out->max_msg_sz = 1u << 30;
    out->lid = 3;
    out->active_width = (uint8_t)width;
    out->active_speed = (uint8_t)speed;
    for (int i = 0; i < MOST; i++)
        if (&devices[i].device == context->device)
            out->link_layer = (uint8_t)devices[i].link;
}

/* As the exported function of the library: no more than the struct of 2008. */
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *out)
{
    struct ibv_port_attr attr = {0};
    (void)port;
    describe(context, &attr);
    memcpy(out, &attr, offsetof(struct ibv_port_attr, flags) + 1);
    return 0;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *out,
                      size_t size)
{
    uint32_t speed = 0;
    (void)port;
    memset(out, 0, size);
    describe(context, out);
    sscanf(setting("STANDIN_SPEED", ""), "%*u %*u %u", &speed);
    if (size >= 56) /* what a later library has there */
        memcpy((char *)out + 52, &speed, sizeof speed);
    return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    unsigned width, speed, more;
    if (fails("ibv_open_device"))
        return NULL;
    struct verbs_context *made = calloc(1, sizeof *made);
    struct ibv_context *context = &made->context;
    if (sscanf(setting("STANDIN_SPEED", ""), "%u %u %u", &width, &speed, &more) == 3) {
        context->abi_compat = __VERBS_ABI_IS_EXTENDED;
        made->sz = sizeof *made;
        made->query_port = query_port;
    }
    context->device = device;
    context->async_fd = eventfd(0, 0);
    opened++;
    return context;
}

int ibv_close_device(struct ibv_context *context)
{
    close(context->async_fd);
    free((char *)context - offsetof(struct verbs_context, context));
    opened--;
    return 0;
}

__attribute__((destructor)) static void count(void)
{
    if (opened != 0)
        fprintf(stderr, "%d devices were not closed\n", opened);
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < MOST; i++)
        if (&devices[i].device == context->device)
            out->phys_port_cnt = (uint8_t)devices[i].ports;
    out->max_qp = 1000;
    out->max_qp_wr = 500;
    out->max_cqe = 4000;
    out->max_qp_rd_atom = out->max_qp_init_rd_atom = 16;
    return 0;
}

struct entry { /* struct ibv_gid_entry */
    union ibv_gid gid;
    uint32_t index, port, type, interface;
};

static ssize_t read_gids(struct entry *out, size_t capacity)
{
    const char *rest = setting("STANDIN_GIDS", "1 0 2 ::ffff:10.0.0.1");
    char address[64];
    size_t n = 0;
    int used;
    struct entry e = {.interface = 0};
    while (sscanf(rest, "%u %u %u %63[^; ]%n", &e.port, &e.index, &e.type, address, &used) == 4) {
        if (inet_pton(AF_INET6, address, e.gid.raw) != 1)
            abort();
        if (n == capacity)
            return -EINVAL; /* as the kernel says */
        out[n++] = e;
        rest += used + (rest[used] == ';');
    }
    return (ssize_t)n;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                             size_t capacity, uint32_t flags, size_t entry_size)
{
    (void)context;
    if (getenv("STANDIN_NO_TABLE") != NULL || flags != 0 || entry_size != sizeof(struct entry))
        return -EOPNOTSUPP;
    return read_gids((struct entry *)entries, capacity);
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    struct entry all[64];
    ssize_t n = read_gids(all, 64);
    (void)context;
    memset(gid, 0, sizeof *gid);
    for (ssize_t i = 0; i < n; i++)
        if (all[i].port == port && all[i].index == (uint32_t)index)
            *gid = all[i].gid;
    return 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
    unsigned keys[8] = {0};
    (void)context;
    (void)port;
    sscanf(setting("STANDIN_PKEYS", "ffff"), "%x %x %x %x", &keys[0], &keys[1], &keys[2], &keys[3]);
    if (index < 0 || index >= 8)
        return -1;
    *pkey = htons((uint16_t)keys[index]);
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = fails("ibv_alloc_pd") ? NULL : calloc(1, sizeof *pd);
    if (pd != NULL)
        pd->context = context;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct ibv_comp_channel *channel
        = fails("ibv_create_comp_channel") ? NULL : calloc(1, sizeof *channel);
    if (channel != NULL) {
        channel->context = context;
        channel->fd = eventfd(0, 0);
    }
    return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    close(channel->fd);
    free(channel);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int n, void *user,
                             struct ibv_comp_channel *channel, int vector)
{
    (void)user;
    (void)vector;
    errno = EINVAL;
    struct ibv_cq *cq = n > 4000 || fails("ibv_create_cq") ? NULL : calloc(1, sizeof *cq);
    if (cq != NULL) {
        cq->context = context;
        cq->channel = channel;
    }
    return cq;
}

int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
    cq->cqe = cqe;
    return 0;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
    free(cq);
    return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    uint32_t most = (uint32_t)atoi(setting("STANDIN_INLINE", "256"));
    errno = EINVAL;
    if (attr->cap.max_inline_data > most || attr->cap.max_send_wr > 500 || fails("ibv_create_qp"))
        return NULL;
    struct ibv_qp *qp = calloc(1, sizeof *qp);
    qp->context = pd->context;
    qp->qp_num = 17;
    return qp;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
    free(qp);
    return 0;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    (void)mask;
    qp->state = attr->qp_state;
    return fails("ibv_modify_qp") ? EINVAL : 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                 struct ibv_qp_init_attr *init)
{
    (void)mask;
    attr->qp_state = qp->state;
    init->cap.max_inline_data = 256;
    return 0;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    (void)pd;
    (void)attr;
    errno = EOPNOTSUPP;
    return NULL;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
    (void)srq;
    (void)attr;
    (void)mask;
    return EOPNOTSUPP;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
    (void)srq;
    return EOPNOTSUPP;
}

int ibv_fork_init(void)
{
    return fails("ibv_fork_init") ? EINVAL : 0;
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
    (void)status;
    return "";
}

const char *ibv_event_type_str(enum ibv_event_type event)
{
    (void)event;
    return "";
}

static void absent(void)
{
    abort();
}

/* Looked for, and not called here. */
#define ABSENT(name) __typeof__(name) name __attribute__((alias("absent")))
#pragma GCC diagnostic ignored "-Wattribute-alias"
ABSENT(ibv_get_async_event);
ABSENT(ibv_ack_async_event);
ABSENT(ibv_get_cq_event);
ABSENT(ibv_ack_cq_events);
ABSENT(ibv_reg_mr);
ABSENT(ibv_dereg_mr);
