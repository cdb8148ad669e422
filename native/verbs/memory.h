/* The registrar of the registration cache for RDMA devices: a memory region with each of them. */
#ifndef PC_VERBS_MEMORY_H
#define PC_VERBS_MEMORY_H
#include "verbs/ibverbs.h"
#include "memory/rcache.h"

/* "", or why devices here cannot reach memory of this kind, and what mends it. Valid for ever. */
const char *pc__mr_missing(enum pc_mem_type kind);

#ifdef PC_VERBS
/* Its context. */
struct pc_mr_domains {
    struct ibv_pd *domains[PC_MAX_RAILS];
    uint32_t n;
    int access; /* IBV_ACCESS_*, of all */
};

/* Its handle: the region with each domain, by the domain's index. */
struct pc_mr {
    struct ibv_mr *with[PC_MAX_RAILS];
};

extern const struct pc_rcache_ops pc__mr_rcache_ops;
#endif
#endif
