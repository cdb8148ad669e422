/* The choice of GIDs (a port's addresses) for a rail. */
#ifndef PC_GID_H
#define PC_GID_H
#include "verbs/ibverbs.h"

/* In the order in which they are preferred. */
enum pc_gid_family { PC_GID_IPV4, PC_GID_IPV6, PC_GID_FAMILIES };

#ifdef PC_VERBS
#define PC_GID_TEXT 48

struct pc_gid {
    union ibv_gid gid;
    uint32_t index;
};

/* Chooses a port's GIDs, at most one of each family: two ports can be connected by a family that
 * both have. Returns the family of the best one, or -1: there is none. InfiniBand: the GID at index
 * 0. RoCE: one whose interface is up before others; then RoCE v2, which is routed, before v1; then
 * an IPv4 address before an IPv6 one before a link-local one; then the lowest index. Of the other
 * family the best one of the same kind, but no link-local one: every port has such, and may be in
 * another network. No peer is known yet: where a port has several addresses of a family, the user
 * must give the index (else -1), and that GID is the only one. */
int pc__gid_choose(struct ibv_context *context, const char *device, uint32_t port, int32_t index,
                   struct pc_gid out[PC_GID_FAMILIES], uint32_t *type);
/* Whether the port still has this GID at this index. */
bool pc__gid_there(struct ibv_context *context, uint32_t port, uint32_t index,
                   const uint8_t gid[16]);
/* Whether these 16 bytes are a GID at all. */
bool pc__gid_is_empty(const uint8_t gid[16]);
const char *pc__gid_text(const uint8_t gid[16], char text[PC_GID_TEXT]);
#endif
#endif
