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

static enum pc_gid_family family_of(const union ibv_gid *gid)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(gid->raw, mapped, sizeof mapped) == 0 ? PC_GID_IPV4 : PC_GID_IPV6;
}

const char *pc__gid_text(const uint8_t gid[16], char text[PC_GID_TEXT])
{
    return inet_ntop(AF_INET6, gid, text, PC_GID_TEXT);
}

bool pc__gid_is_empty(const uint8_t gid[16])
{
    static const uint8_t none[16];
    return memcmp(gid, none, sizeof none) == 0;
}

bool pc__gid_there(struct ibv_context *context, uint32_t port, uint32_t index,
                   const uint8_t gid[16])
{
    union ibv_gid now;
    return pc__ib.query_gid(context, (uint8_t)port, (int)index, &now) == 0
           && memcmp(now.raw, gid, sizeof now.raw) == 0;
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
        if (pc__ib.query_gid(context, (uint8_t)port, (int)i, &e->gid) != 0
            || pc__gid_is_empty(e->gid.raw))
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
        if (entries[i].port == port && entries[i].index <= UINT8_MAX
            && !pc__gid_is_empty(entries[i].gid.raw))
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

#define PC_REACH_ROUTED 2 /* more than the own link */

static int reach(const union ibv_gid *gid)
{
    const uint8_t *raw = gid->raw, *v4 = raw + 12;
    if (family_of(gid) == PC_GID_IPV4)
        return v4[0] == 127 ? 0 : v4[0] == 169 && v4[1] == 254 ? 1 : 3;
    return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80 ? 1 : 2;
}

/* What counts more than where an address reaches: two ends must have it in common. */
static int kind_worth(const char *device, uint32_t port, const struct pc_gid_entry *e)
{
    return (interface_up(device, port, e) ? 100 : 0) + (e->type == ROCE_V2 ? 10 : 0);
}

/* The position of the best entry that is worth so much, of this family (-1: of any); or `n`. */
static uint32_t best(const char *device, uint32_t port, const struct pc_gid_entry *entries,
                     uint32_t n, int family, int least)
{
    uint32_t chosen = n;
    int most = least - 1;
    for (uint32_t i = 0; i < n; i++) {
        int w = kind_worth(device, port, &entries[i]) + reach(&entries[i].gid);
        if (family >= 0 && family != (int)family_of(&entries[i].gid))
            continue;
        if (w > most || (chosen < n && w == most && entries[i].index < entries[chosen].index)) {
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

int pc__gid_choose(struct ibv_context *context, const char *device, uint32_t port, int32_t index,
                   struct pc_gid out[PC_GID_FAMILIES], uint32_t *type)
{
    struct ibv_device_attr ports;
    struct pc_port_attr attr = {0}, other;
    uint32_t capacity = 0;
    if (pc__ib.query_device(context, &ports) != 0)
        return -1;
    for (uint32_t i = 1; i <= ports.phys_port_cnt; i++) {
        if (pc__port_query(context, i, &other) != 0)
            return -1;
        capacity += (uint32_t)other.known.gid_tbl_len;
        if (i == port)
            attr = other;
    }
    if (capacity == 0)
        return -1;
    struct pc_gid_entry *entries = calloc(capacity, sizeof *entries);
    if (entries == NULL)
        return -1;
    bool roce = attr.known.link_layer == IBV_LINK_LAYER_ETHERNET;
    uint32_t n = read_table(context, device, port, (uint32_t)attr.known.gid_tbl_len, roce, entries,
                            capacity);
    uint32_t at = index >= 0 ? numbered(entries, n, (uint32_t)index)
                  : roce     ? best(device, port, entries, n, -1, 0)
                             : numbered(entries, n, 0);
    int family = -1;
    memset(out, 0, PC_GID_FAMILIES * sizeof *out);
    if (at < n) {
        const struct pc_gid_entry *first = &entries[at];
        family = (int)family_of(&first->gid);
        *type = first->type;
        out[family] = (struct pc_gid){first->gid, first->index};
    }
    if (at < n && roce && index < 0) {
        int other = PC_GID_FAMILIES - 1 - family;
        int kind = kind_worth(device, port, &entries[at]);
        uint32_t also = best(device, port, entries, n, other, kind + PC_REACH_ROUTED);
        if (also < n)
            out[other] = (struct pc_gid){entries[also].gid, entries[also].index};
    }
    free(entries);
    return family;
}
#endif
