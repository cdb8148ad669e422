/* Enumerates the ports of all RDMA devices of this host, for the choice of rails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "verbs/gid.h"
#include "verbs/port.h"
#include "pycoll.h"

const char *pc_verbs_missing(void)
{
    const char *missing = pc__ib_load();
    return missing == NULL ? "" : missing;
}

#ifndef PC_VERBS
int pc_verbs_ports(struct pc_port *ports, uint32_t capacity)
{
    (void)ports;
    (void)capacity;
    return 0;
}
#else

static int32_t numa_node(const char *device)
{
    char conn[128];
    int node = -1;
    snprintf(conn, sizeof conn, "/sys/class/infiniband/%.63s/device/numa_node", device);
    FILE *f = fopen(conn, "re");
    if (f == NULL || fscanf(f, "%d", &node) != 1)
        node = -1;
    if (f != NULL)
        fclose(f);
    return node;
}

/* The kernel driver. A software device has none; of these only rxe has the file `parent`. */
static void driver(const char *device, char *out, size_t size)
{
    char conn[128], target[256];
    snprintf(conn, sizeof conn, "/sys/class/infiniband/%.63s/device/driver", device);
    ssize_t n = readlink(conn, target, sizeof target - 1);
    if (n > 0) {
        target[n] = 0;
        const char *slash = strrchr(target, '/');
        snprintf(out, size, "%.31s", slash == NULL ? target : slash + 1);
        return;
    }
    snprintf(conn, sizeof conn, "/sys/class/infiniband/%.63s/parent", device);
    snprintf(out, size, "%s", access(conn, F_OK) == 0 ? "rdma_rxe" : "");
}

static void describe(struct ibv_context *context, const struct ibv_device_attr *device,
                     struct pc_port *out)
{
    struct pc_port_attr port;
    struct pc_gid gids[PC_GID_FAMILIES];
    uint32_t type = 0;
    out->max_queue_pairs = (uint32_t)device->max_qp;
    if (pc__port_query(context, out->port, &port) != 0)
        return;
    out->state = port.known.state;
    out->link_layer = port.known.link_layer;
    out->mtu = pc__mtu_bytes(port.known.active_mtu);
    out->max_mtu = pc__mtu_bytes(port.known.max_mtu);
    out->lid = port.known.lid;
    out->speed = port.speed;
    int family = pc__gid_choose(context, out->device, out->port, -1, gids, &type);
    if (family < 0)
        return;
    out->gid_index = (int32_t)gids[family].index;
    out->gid_type = type;
    memcpy(out->gid, gids[family].gid.raw, sizeof out->gid);
    out->other_family = !pc__gid_is_empty(gids[PC_GID_FAMILIES - 1 - family].gid.raw);
}

int pc_verbs_ports(struct pc_port *ports, uint32_t capacity)
{
    int devices = 0;
    uint32_t found = 0;
    if (pc__ib_library() != NULL)
        return 0;
    struct ibv_device **list = pc__ib.get_device_list(&devices);
    if (list == NULL)
        return 0;
    for (int i = 0; i < devices; i++) {
        if (!pc__ib_usable(list[i]))
            continue;
        struct ibv_context *context = pc__ib.open_device(list[i]);
        struct ibv_device_attr attr = {.phys_port_cnt = 1};
        if (context != NULL && pc__ib.query_device(context, &attr) != 0)
            attr.phys_port_cnt = 1;
        for (uint32_t port = 1; port <= attr.phys_port_cnt; port++, found++) {
            if (found >= capacity)
                continue;
            struct pc_port *out = &ports[found];
            memset(out, 0, sizeof *out);
            out->port = port;
            out->gid_index = -1;
            snprintf(out->device, sizeof out->device, "%s", pc__ib.get_device_name(list[i]));
            out->numa_node = numa_node(out->device);
            driver(out->device, out->driver, sizeof out->driver);
            if (context != NULL)
                describe(context, &attr, out);
        }
        if (context != NULL)
            pc__ib.close_device(context);
    }
    pc__ib.free_device_list(list);
    return (int)found;
}
#endif
