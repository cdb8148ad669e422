/* Reads a port's GID table (libibverbs, else sysfs) and chooses an entry. */
#include "verbs/gid.h"
#ifdef PC_VERBS
#include <arpa/inet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "verbs/port.h"

enum { INFINIBAND, ROCE_V1, ROCE_V2 };

bool pc__gid_is_ipv4(const union ibv_gid *gid)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(gid->raw, mapped, sizeof mapped) == 0;
}

const char *pc__gid_text(const union ibv_gid *gid, char text[PC_GID_TEXT])
{
    return inet_ntop(AF_INET6, gid->raw, text, PC_GID_TEXT);
}

static bool is_empty(const union ibv_gid *gid)
{
    static const union ibv_gid none;
    return memcmp(gid, &none, sizeof none) == 0;
}

static uint32_t type_in_sysfs(const char *device, uint32_t port, uint32_t index)
{
    char file[PC_PORT_FILE], text[32];
    snprintf(file, sizeof file, "gid_attrs/types/%u", index);
    /* Kernels before 4.5 have no such file, and no RoCE v2. */
    return pc__port_read(device, port, file, text, sizeof text) && strcmp(text, "RoCE v2") == 0
               ? ROCE_V2
               : ROCE_V1;
}

static uint32_t read_by_hand(struct ibv_context *context, const char *device, uint32_t port,
                             uint32_t n, bool roce, struct pc_gid_entry *entries)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n && i <= UINT8_MAX; i++) {
        struct pc_gid_entry *e = &entries[found];
        *e = (struct pc_gid_entry){.index = i, .port = port};
        if (pc__ib.query_gid(context, (uint8_t)port, (int)i, &e->gid) != 0 || is_empty(&e->gid))
            continue;
        e->type = roce ? type_in_sysfs(device, port, i) : INFINIBAND;
        found++;
    }
    return found;
}

/* The GIDs of this port. The library's table has all ports, so that `capacity` must be for all.
 * Entries beyond 255 are left out: an address vector has 8 bits for the index. */
static uint32_t read_table(struct ibv_context *context, const char *device, uint32_t port,
                           uint32_t n, bool roce, struct pc_gid_entry *entries, uint32_t capacity)
{
    ssize_t all = -1;
    uint32_t found = 0;
    if (pc__ib.query_gid_table != NULL)
        all = pc__ib.query_gid_table(context, entries, capacity, 0, sizeof *entries);
    if (all < 0)
        return read_by_hand(context, device, port, n, roce, entries);
    for (ssize_t i = 0; i < all; i++)
        if (entries[i].port == port && entries[i].index <= UINT8_MAX && !is_empty(&entries[i].gid))
            entries[found++] = entries[i];
    return found;
}

/* True also where the state is unknown. A process in another network namespace than the device's
 * sees other interfaces under these indexes: only if sysfs has the same name it is the same. */
static bool interface_up(const char *device, uint32_t port, const struct pc_gid_entry *e)
{
    char file[PC_PORT_FILE], name[32];
    struct ifreq request = {0};
    snprintf(file, sizeof file, "gid_attrs/ndevs/%u", e->index);
    if (e->interface == 0 || if_indextoname(e->interface, request.ifr_name) == NULL
        || !pc__port_read(device, port, file, name, sizeof name)
        || strcmp(name, request.ifr_name) != 0)
        return true;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = fd < 0 || ioctl(fd, SIOCGIFFLAGS, &request) != 0
              || (request.ifr_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING);
    if (fd >= 0)
        close(fd);
    return up;
}

static int reach(const union ibv_gid *gid)
{
    const uint8_t *raw = gid->raw, *v4 = raw + 12;
    if (pc__gid_is_ipv4(gid))
        return v4[0] == 127 ? 0 : v4[0] == 169 && v4[1] == 254 ? 1 : 3;
    return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80 ? 1 : 2;
}

static int worth(const char *device, uint32_t port, const struct pc_gid_entry *e)
{
    return (interface_up(device, port, e) ? 100 : 0) + (e->type == ROCE_V2 ? 10 : 0)
           + reach(&e->gid);
}

/* The position of the best entry, or `n`. */
static uint32_t best(const char *device, uint32_t port, const struct pc_gid_entry *entries,
                     uint32_t n)
{
    uint32_t chosen = n;
    int most = -1;
    for (uint32_t i = 0; i < n; i++) {
        int w = worth(device, port, &entries[i]);
        if (w > most || (w == most && entries[i].index < entries[chosen].index)) {
            most = w;
            chosen = i;
        }
    }
    return chosen;
}

static uint32_t numbered(const struct pc_gid_entry *entries, uint32_t n, uint32_t index)
{
    uint32_t i = 0;
    while (i < n && entries[i].index != index)
        i++;
    return i;
}

bool pc__gid_choose(struct ibv_context *context, const char *device, uint32_t port, int32_t index,
                    struct pc_gid *out)
{
    struct ibv_device_attr ports;
    struct pc_port_attr attr = {0}, other;
    uint32_t capacity = 0;
    if (pc__ib.query_device(context, &ports) != 0)
        return false;
    for (uint32_t i = 1; i <= ports.phys_port_cnt; i++) {
        if (pc__port_query(context, i, &other) != 0)
            return false;
        capacity += (uint32_t)other.known.gid_tbl_len;
        if (i == port)
            attr = other;
    }
    if (capacity == 0)
        return false;
    struct pc_gid_entry *entries = calloc(capacity, sizeof *entries);
    if (entries == NULL)
        return false;
    bool roce = attr.known.link_layer == IBV_LINK_LAYER_ETHERNET;
    uint32_t n = read_table(context, device, port, (uint32_t)attr.known.gid_tbl_len, roce, entries,
                            capacity);
    uint32_t at = index >= 0 ? numbered(entries, n, (uint32_t)index)
                  : roce     ? best(device, port, entries, n)
                             : numbered(entries, n, 0);
    if (at < n)
        *out = (struct pc_gid){entries[at].gid, entries[at].index, entries[at].type};
    free(entries);
    return at < n;
}
#endif
