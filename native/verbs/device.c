/* Opens RDMA devices: context, protection domain, completion channel and completion queue. */
#include "verbs/device.h"
#ifdef PC_VERBS
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "core/internal.h"
#include "verbs/port.h"

#define PC_MAX_READS 16 /* RDMA reads at once, of a queue pair */

int pc__ib_device_fail(const struct pc_ib_device *rail, int errnum, const char *call,
                       uint32_t maximum, struct pc_error *error)
{
    char most[32] = "";
    if (maximum != 0)
        snprintf(most, sizeof most, " (max %u)", maximum);
    errno = errnum;
    return pc__fail(error, PC_SYSTEM, -1, "%s port %u: %s: %s%s%s", rail->spec.device,
                    rail->spec.port, call, strerror(errnum), most, pc__ib_remedy(errnum));
}

int pc__ib_device_refused(const struct pc_ib_device *rail, const char *call, uint64_t nbytes,
                          struct pc_error *error)
{
    int errnum = errno;
    char what[96];
    if (nbytes == 0)
        snprintf(what, sizeof what, "%s", call);
    else
        snprintf(what, sizeof what, "%s of %" PRIu64 " bytes", call, nbytes);
    return pc__ib_device_fail(rail, errnum, what, 0, error);
}

/* The largest MTU of at most `bytes`; 0 bytes: no limit. */
static enum ibv_mtu mtu_within(uint32_t bytes)
{
    enum ibv_mtu mtu = IBV_MTU_4096;
    while (bytes != 0 && mtu > IBV_MTU_256 && pc__mtu_bytes(mtu) > bytes)
        mtu--;
    return mtu;
}

static int check(const struct pc_rail_spec *spec, const struct pc_verbs_options *o,
                 struct pc_error *error)
{
    const struct {
        const char *what;
        uint32_t got, least, most;
    } bounds[] = {
        {"port", spec->port, 1, UINT8_MAX},
        {"traffic class", o->traffic_class, 0, UINT8_MAX},
        {"service level", o->service_level, 0, 15},
        {"timeout", o->timeout, 1, 31},
        {"retry count", o->retry_count, 0, 7},
        {"MTU", o->mtu == 0 ? UINT32_MAX : o->mtu, 256, UINT32_MAX},
        {"partition key", o->pkey, 0, UINT16_MAX},
    };
    if (memchr(spec->device, 0, sizeof spec->device) == NULL || spec->device[0] == 0)
        return pc__fail(error, PC_INVALID, -1, "an RDMA device's name has 1 to %d characters",
                        PC_DEVICE_NAME - 1);
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (bounds[i].got < bounds[i].least || bounds[i].got > bounds[i].most)
            return pc__fail(error, PC_INVALID, -1, "RDMA %s: got %u, want %u to %u", bounds[i].what,
                            bounds[i].got, bounds[i].least, bounds[i].most);
    return PC_OK;
}

static int no_such_device(const struct pc_rail_spec *spec, struct ibv_device **list, int n,
                          struct pc_error *error)
{
    char names[128] = "";
    size_t used = 0;
    for (int i = 0; i < n && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i == 0 ? "" : ", ",
                                 pc__ib.get_device_name(list[i]));
    errno = ENODEV;
    return pc__fail(error, PC_SYSTEM, -1, "there is no RDMA device %.63s; there is %s",
                    spec->device, names);
}

static int open_device(struct pc_ib_device *rail, struct pc_error *error)
{
    int n = 0, i = 0, rc = PC_OK;
    errno = 0;
    struct ibv_device **list = pc__ib.get_device_list(&n);
    if (list == NULL)
        return pc__ib_device_fail(rail, errno, "ibv_get_device_list", 0, error);
    while (i < n && strcmp(pc__ib.get_device_name(list[i]), rail->spec.device) != 0)
        i++;
    if (i == n) {
        rc = no_such_device(&rail->spec, list, n, error);
    } else if (!pc__ib_usable(list[i])) {
        errno = EPROTONOSUPPORT;
        rc = pc__fail(error, PC_SYSTEM, -1, "%s speaks neither InfiniBand nor RoCE",
                      rail->spec.device);
    } else {
        errno = ENODEV; /* for a provider that sets no errno */
        rail->context = pc__ib.open_device(list[i]);
        if (rail->context == NULL)
            rc = pc__ib_device_fail(rail, errno, "ibv_open_device", 0, error);
    }
    pc__ib.free_device_list(list);
    return rc;
}

static const char *state_name(enum ibv_port_state state)
{
    switch (state) {
    case IBV_PORT_NOP:
        return "without a state";
    case IBV_PORT_DOWN:
        return "DOWN";
    case IBV_PORT_INIT:
        return "INIT";
    case IBV_PORT_ARMED:
        return "ARMED";
    case IBV_PORT_ACTIVE:
        return "ACTIVE";
    case IBV_PORT_ACTIVE_DEFER:
        return "ACTIVE_DEFER";
    }
    return "in an unknown state";
}

/* Finds the partition key in the port's table. Its upper bit says whether the port is a full member
 * of the partition or a limited one, which reaches only full ones: the port may be listed as both,
 * and the user names the partition. */
static int find_pkey(struct pc_ib_device *rail, uint32_t n, struct pc_error *error)
{
    const uint32_t wanted = rail->options->pkey;
    char there[128] = "";
    size_t used = 0;
    bool found = false;
    __be16 entry;
    rail->pkey_index = 0;
    if (wanted == 0) {
        bool known = pc__ib.query_pkey(rail->context, (uint8_t)rail->spec.port, 0, &entry) == 0;
        rail->pkey = known ? ntohs(entry) : 0;
        return PC_OK;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (pc__ib.query_pkey(rail->context, (uint8_t)rail->spec.port, (int)i, &entry) != 0)
            continue;
        uint32_t pkey = ntohs(entry), partition = pkey & PC_PKEY_PARTITION;
        bool full = pkey != partition;
        if (partition != 0 && used < sizeof there)
            used += (size_t)snprintf(there + used, sizeof there - used, "%s%#x",
                                     used == 0 ? "" : ", ", pkey);
        if (partition == (wanted & PC_PKEY_PARTITION) && (full || !found)) {
            rail->pkey_index = (uint16_t)i;
            rail->pkey = (uint16_t)pkey;
            found = true;
            if (full)
                return PC_OK;
        }
    }
    if (found)
        return PC_OK;
    errno = ENOENT;
    return pc__fail(error, PC_SYSTEM, -1,
                    "%s port %u is in no partition %#x; its partition keys are %s",
                    rail->spec.device, rail->spec.port, wanted, used == 0 ? "none" : there);
}

int pc__ib_device_query(struct pc_ib_device *rail, struct pc_error *error)
{
    const struct pc_rail_spec *spec = &rail->spec;
    struct pc_port_attr port;
    uint32_t type = 0;
    int rc = pc__port_query(rail->context, spec->port, &port);
    if (rc != 0)
        return pc__ib_device_fail(rail, rc, "ibv_query_port", 0, error);
    if (port.known.state != IBV_PORT_ACTIVE) {
        errno = ENETDOWN;
        return pc__fail(error, PC_SYSTEM, -1,
                        "%s port %u is %s, not ACTIVE: its link or its interface is down (ip link, "
                        "rdma link)",
                        spec->device, spec->port, state_name(port.known.state));
    }
    rail->lid = port.known.lid;
    rail->link_layer = port.known.link_layer;
    rail->mtu = pc__mtu_smaller(port.known.active_mtu, mtu_within(rail->options->mtu));
    rail->speed = port.speed / 8 > 0 ? port.speed / 8 : 1;
    rail->max_message = port.known.max_msg_sz;
    rail->global = (port.known.flags & IBV_QPF_GRH_REQUIRED) != 0;
    int family = pc__gid_choose(rail->context, spec->device, spec->port,
                                rail->any_gid ? -1 : spec->gid_index, rail->gids, &type);
    if (family < 0) {
        errno = EADDRNOTAVAIL;
        if (rail->any_gid)
            return pc__fail(error, PC_SYSTEM, -1,
                            "%s port %u has no GID: has its interface an address (ip address)?",
                            spec->device, spec->port);
        return pc__fail(error, PC_SYSTEM, -1,
                        "%s port %u has no GID number %d (rdma link, "
                        "/sys/class/infiniband/%s/ports/%u/gids)",
                        spec->device, spec->port, spec->gid_index, spec->device, spec->port);
    }
    rail->gid_type = (uint8_t)type;
    rail->spec.gid_index = (int32_t)rail->gids[family].index;
    return find_pkey(rail, port.known.pkey_tbl_len, error);
}

static int query_limits(struct pc_ib_device *rail, struct pc_error *error)
{
    struct ibv_device_attr attr;
    int rc = pc__ib.query_device(rail->context, &attr);
    if (rc != 0)
        return pc__ib_device_fail(rail, rc, "ibv_query_device", 0, error);
    if (rail->spec.port > attr.phys_port_cnt) {
        errno = ENODEV;
        return pc__fail(error, PC_SYSTEM, -1, "%s has no port %u; it has %u", rail->spec.device,
                        rail->spec.port, attr.phys_port_cnt);
    }
    rail->max_sends = (uint32_t)attr.max_qp_wr;
    rail->max_pairs = (uint32_t)attr.max_qp;
    rail->max_cqe = (uint32_t)attr.max_cqe;
    rail->max_shared = attr.max_srq > 0 ? (uint32_t)attr.max_srq_wr : 0;
    rail->reads_in
        = (uint8_t)(attr.max_qp_rd_atom < PC_MAX_READS ? attr.max_qp_rd_atom : PC_MAX_READS);
    rail->reads_out = (uint8_t)(attr.max_qp_init_rd_atom < PC_MAX_READS ? attr.max_qp_init_rd_atom
                                                                        : PC_MAX_READS);
    return pc__ib_device_query(rail, error);
}

static int set_nonblocking(const struct pc_ib_device *rail, int fd, struct pc_error *error)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return pc__ib_device_fail(rail, errno, "fcntl", 0, error);
    return PC_OK;
}

static int make_queues(struct pc_ib_device *rail, uint32_t cq_depth, struct pc_error *error)
{
    rail->pd = pc__ib_device_pd(rail, error);
    if (rail->pd == NULL)
        return PC_SYSTEM;
    rail->channel = pc__ib.create_comp_channel(rail->context);
    if (rail->channel == NULL)
        return pc__ib_device_fail(rail, errno, "ibv_create_comp_channel", 0, error);
    int rc = set_nonblocking(rail, rail->channel->fd, error);
    if (rc == PC_OK)
        rc = set_nonblocking(rail, rail->context->async_fd, error);
    if (rc != PC_OK)
        return rc;
    rail->cq = pc__ib.create_cq(rail->context, (int)cq_depth, NULL, rail->channel, 0);
    if (rail->cq == NULL) {
        struct ibv_device_attr attr = {0};
        int error_of_cq = errno;
        pc__ib.query_device(rail->context, &attr);
        return pc__ib_device_fail(rail, error_of_cq, "ibv_create_cq", (uint32_t)attr.max_cqe,
                                  error);
    }
    return PC_OK;
}

struct ibv_pd *pc__ib_device_pd(struct pc_ib_device *rail, struct pc_error *error)
{
    struct ibv_pd *pd = pc__ib.alloc_pd(rail->context);
    if (pd == NULL)
        pc__ib_device_fail(rail, errno, "ibv_alloc_pd", 0, error);
    return pd;
}

struct ibv_qp *pc__ib_device_create_qp(const struct pc_ib_device *rail, struct ibv_pd *pd,
                                       struct ibv_srq *srq, uint32_t sends, uint32_t receives,
                                       uint32_t inline_bytes)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = rail->cq,
        .recv_cq = rail->cq,
        .srq = srq,
        .cap = {.max_send_wr = sends,
                .max_recv_wr = receives,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = inline_bytes},
        .qp_type = IBV_QPT_RC,
    };
    return pc__ib.create_qp(pd, &attr);
}

/* Finds max_inline_data by trying, as no query tells it. More than these few cache lines would make
 * every entry of a send queue larger for nothing. */
static int probe_inline(struct pc_ib_device *rail, struct pc_error *error)
{
    static const uint32_t sizes[] = {256, 220, 188, 128, 92, PC_MIN_INLINE};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        errno = EINVAL;
        struct ibv_qp *qp = pc__ib_device_create_qp(rail, rail->pd, NULL, 1, 1, sizes[i]);
        if (qp != NULL) {
            pc__ib.destroy_qp(qp);
            rail->max_inline = sizes[i];
            return PC_OK;
        }
        if (errno == ENOMEM) /* the size is not the reason */
            return pc__ib_device_fail(rail, errno, "ibv_create_qp", rail->max_pairs, error);
    }
    return pc__ib_device_fail(rail, errno, "ibv_create_qp with 64 bytes inline", 0, error);
}

int pc__ib_device_open(const struct pc_rail_spec *spec, const struct pc_verbs_options *options,
                       uint32_t cq_depth, struct pc_error *error, struct pc_ib_device *out)
{
    memset(out, 0, sizeof *out);
    int rc = check(spec, options, error);
    if (rc != PC_OK)
        return rc;
    const char *missing = pc__ib_load();
    if (missing != NULL) {
        errno = 0;
        return pc__fail(error, PC_SYSTEM, -1, "%s", missing);
    }
    out->spec = *spec;
    out->options = options;
    out->any_gid = spec->gid_index < 0;
    rc = open_device(out, error);
    if (rc == PC_OK)
        rc = query_limits(out, error);
    if (rc == PC_OK)
        rc = make_queues(out, cq_depth, error);
    if (rc == PC_OK)
        rc = probe_inline(out, error);
    if (rc != PC_OK)
        pc__ib_device_close(out);
    return rc;
}

void pc__ib_device_close(struct pc_ib_device *rail)
{
    if (rail->cq != NULL)
        pc__ib.destroy_cq(rail->cq);
    if (rail->channel != NULL)
        pc__ib.destroy_comp_channel(rail->channel);
    if (rail->pd != NULL)
        pc__ib.dealloc_pd(rail->pd);
    if (rail->context != NULL)
        pc__ib.close_device(rail->context);
    memset(rail, 0, sizeof *rail);
}

bool pc__ib_device_has_mtu(const struct pc_ib_device *rail, enum ibv_mtu mtu)
{
    struct pc_port_attr port;
    return pc__port_query(rail->context, rail->spec.port, &port) != 0
           || port.known.active_mtu >= mtu;
}

bool pc__ib_device_active(const struct pc_ib_device *rail)
{
    struct pc_port_attr port;
    return pc__port_query(rail->context, rail->spec.port, &port) == 0
           && port.known.state == IBV_PORT_ACTIVE;
}
#endif
