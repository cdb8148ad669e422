/* The registrar of the registration cache for RDMA devices: a memory region with each of them. */
#ifndef PC_REGION_H
#define PC_REGION_H
#include "verbs/ibverbs.h"
#include "memory/rcache.h"

/* "", or why devices here cannot reach memory of this kind, and what mends it. Valid for ever. */
const char *pc__region_missing(enum pc_memory_kind kind);

#ifdef PC_VERBS
/* Its context. */
struct pc_regions {
    struct ibv_pd *domains[PC_MAX_RAILS];
    uint32_t n;
    int access; /* IBV_ACCESS_*, of all */
};

/* Its handle: the region with each domain, by the domain's index. */
struct pc_region {
    struct ibv_mr *with[PC_MAX_RAILS];
};

extern const struct pc_registrar pc__region_registrar;
#endif
#endif
