/* The choice of a GID (a port's address) for a rail. */
#ifndef PC_GID_H
#define PC_GID_H
#include "verbs/ibverbs.h"

#ifdef PC_VERBS
#define PC_GID_TEXT 48

struct pc_gid {
    union ibv_gid gid;
    uint32_t index;
    uint32_t type; /* 0 InfiniBand, 1 RoCE v1, 2 RoCE v2 */
};

/* The GID at `index`, or the best one if that is -1. InfiniBand: index 0. RoCE: one whose interface
 * is up before others; then RoCE v2, which is routed, before v1; then an IPv4 address before an
 * IPv6 one before a link-local one; then the lowest index. No peer is known yet: where a port has
 * addresses in several networks, the user must give the index. False: there is none. */
bool pc__gid_choose(struct ibv_context *context, const char *device, uint32_t port, int32_t index,
                    struct pc_gid *out);
bool pc__gid_is_ipv4(const union ibv_gid *gid);
const char *pc__gid_text(const union ibv_gid *gid, char text[PC_GID_TEXT]);
#endif
#endif
