/* A port of an RDMA device: its attributes, by verbs and sysfs. */
#ifndef PC_VERBS_PORT_H
#define PC_VERBS_PORT_H
#include "verbs/ibverbs.h"

#ifdef PC_VERBS
#define PC_PORT_FILE 48

/* struct ibv_port_attr, with what later libraries add, whatever the headers were. */
struct pc_port_attr {
    struct ibv_port_attr known;
    uint64_t speed; /* bits per second in each direction; 0: unknown */
};

/* 0 or an errno. */
int pc__port_query(struct ibv_context *context, uint32_t port, struct pc_port_attr *out);
/* The first line of /sys/class/infiniband/<device>/ports/<port>/<file>; false: there is none. */
bool pc__port_read(const char *device, uint32_t port, const char *file, char *text, size_t size);
static inline uint32_t pc__mtu_bytes(enum ibv_mtu mtu)
{
    return mtu == 0 ? 0 : 128u << mtu;
}
static inline enum ibv_mtu pc__mtu_smaller(enum ibv_mtu a, enum ibv_mtu b)
{
    return a < b ? a : b;
}
#endif
#endif
