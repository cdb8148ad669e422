/* The one port of each device: its state, its speed and its GIDs. */
#include <arpa/inet.h>
#include <stdlib.h>
#include "nic.h"

static const struct {
    uint32_t gbps;
    uint8_t width, speed; /* 1: 1X, 2: 4X; speed: as in the PortInfo of InfiniBand */
} speeds[] = {{10, 2, 1},  {25, 1, 32},  {40, 2, 4},   {50, 1, 64},
              {56, 2, 16}, {100, 2, 32}, {200, 2, 64}, {400, 2, 128}};

static enum ibv_mtu mtu_of(uint32_t bytes)
{
    enum ibv_mtu mtu = IBV_MTU_256;
    while (128u << mtu < bytes)
        mtu++;
    return mtu;
}

static uint32_t moved(uint32_t port)
{
    return atomic_load(&fv_fabric_here()->shared->ports[port].moved);
}

int fv_query_port(struct ibv_context *base, uint8_t port, struct ibv_port_attr *attr, size_t size)
{
    struct fv_context *c = fv_context_of(base);
    uint32_t gbps = fv_options.gbps[c->device->index];
    if (port != 1)
        return EINVAL;
    fv_count(c->fabric, c->port, FV_QUERIES, 1);
    uint32_t narrow = atomic_load(&c->fabric->shared->ports[c->port].narrow);
    bool down = atomic_load(&c->fabric->shared->ports[c->port].down);
    struct ibv_port_attr a = {
        .state = down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE,
        .max_mtu = IBV_MTU_4096,
        .active_mtu = mtu_of(narrow != 0 && narrow < fv_options.mtu ? narrow : fv_options.mtu),
        .gid_tbl_len = FV_GIDS,
        .max_msg_sz = FV_MAX_MESSAGE,
        .pkey_tbl_len = FV_PKEYS,
        .lid = fv_options.infiniband ? (uint16_t)(moved(c->port) * FV_PORTS + c->port + 1) : 0,
        .phys_state = down ? 3 : 5, /* disabled, or link up */
        .link_layer = fv_options.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET,
        .active_width = 2,
        .active_speed = 32,
    };
    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++)
        if (speeds[i].gbps == gbps) {
            a.active_width = speeds[i].width;
            a.active_speed = speeds[i].speed;
        }
    memcpy(attr, &a, size < sizeof a ? size : sizeof a);
    return 0;
}

/* What the macro ibv_query_port calls where the context has no extended operations; the structure
 * then ends before port_cap_flags2. */
int ibv_query_port(struct ibv_context *base, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    return fv_query_port(base, port, (struct ibv_port_attr *)attr,
                         offsetof(struct ibv_port_attr, port_cap_flags2));
}

/* 10.47.host.device+1, or fd00::47:host:device+1 in hexadecimal digits; 48 after it has moved. */
static void address(uint32_t port, union ibv_gid *gid, bool ipv4)
{
    const uint8_t net = (uint8_t)(47 + moved(port)), host = (uint8_t)(port / FV_DEVICES);
    const uint8_t device = (uint8_t)(port % FV_DEVICES + 1);
    const uint8_t mapped[16] = {[10] = 0xff, 0xff, 10, net, host, device};
    const uint8_t six[16] = {0xfd, [11] = net, [13] = host, [15] = device};
    memcpy(gid->raw, ipv4 ? mapped : six, sizeof gid->raw);
}

/* Tables as the providers have them: mlx5 lists each address as RoCE v1 and as v2. */
void fv_gid(uint32_t port, int index, union ibv_gid *gid, uint32_t *type)
{
    uint32_t host = port / FV_DEVICES, device = port % FV_DEVICES;
    bool both = fv_options.like == FV_MLX5 && !fv_options.infiniband;
    int entry = both ? index / 2 : index;
    uint32_t kind = fv_options.infiniband    ? IBV_GID_TYPE_IB
                    : both && index % 2 == 0 ? IBV_GID_TYPE_ROCE_V1
                                             : IBV_GID_TYPE_ROCE_V2;
    memset(gid, 0, sizeof *gid);
    if (entry == 0) {
        static const uint8_t local[] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe};
        memcpy(gid->raw, local, sizeof local);
        gid->raw[14] = (uint8_t)host;
        gid->raw[15] = (uint8_t)(device + 1);
    } else if (entry == 1 && !fv_options.infiniband && fv_options.ipv4) {
        address(port, gid, true);
    } else if (entry == 1 + fv_options.ipv4 && !fv_options.infiniband && fv_options.ipv6) {
        address(port, gid, false);
    }
    if (type)
        *type = kind;
}

uint32_t fv_port_of_gid(const union ibv_gid *gid)
{
    for (uint32_t port = 0; port < FV_PORTS; port++)
        for (int index = 0; index < 4; index++) {
            union ibv_gid here;
            fv_gid(port, index, &here, NULL);
            if ((here.global.interface_id || here.global.subnet_prefix)
                && !memcmp(&here, gid, sizeof here))
                return port;
            for (int ipv4 = 0; ipv4 < 2; ipv4++) { /* families that this process has not */
                address(port, &here, ipv4);
                if (!memcmp(&here, gid, sizeof here))
                    return port;
            }
        }
    return FV_PORTS;
}

int ibv_query_gid(struct ibv_context *base, uint8_t port, int index, union ibv_gid *gid)
{
    if (port != 1 || index < 0 || index >= FV_GIDS) {
        errno = EINVAL;
        return -1;
    }
    fv_gid(fv_context_of(base)->port, index, gid, NULL);
    return 0;
}

int _ibv_query_gid_ex(struct ibv_context *base, uint32_t port, uint32_t index,
                      struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
    if (port != 1 || index >= FV_GIDS || flags || size < sizeof *entry)
        return EINVAL;
    union ibv_gid gid;
    uint32_t type;
    fv_gid(fv_context_of(base)->port, (int)index, &gid, &type);
    if (!gid.global.interface_id && !gid.global.subnet_prefix)
        return ENODATA;
    *entry = (struct ibv_gid_entry){.gid = gid,
                                    .gid_index = index,
                                    .port_num = port,
                                    .gid_type = type,
                                    .ndev_ifindex = fv_options.infiniband ? 0 : 1};
    return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *base, struct ibv_gid_entry *entries, size_t max,
                             uint32_t flags, size_t size)
{
    size_t n = 0;
    if (flags || size != sizeof *entries)
        return -EINVAL;
    for (uint32_t index = 0; index < FV_GIDS && n < max; index++)
        if (!_ibv_query_gid_ex(base, 1, index, &entries[n], 0, size))
            n++;
    return (ssize_t)n;
}

uint32_t fv_pkey(struct fv_fabric *f, uint32_t port, int index)
{
    return index == 0 ? 0xffff : atomic_load(&f->shared->ports[port].pkey);
}

int ibv_query_pkey(struct ibv_context *base, uint8_t port, int index, __be16 *pkey)
{
    struct fv_context *c = fv_context_of(base);
    if (port != 1 || index < 0 || index >= FV_PKEYS)
        return -1;
    *pkey = htons((uint16_t)fv_pkey(c->fabric, c->port, index));
    return 0;
}
