/* Memory regions (ibv_mr) for the registration cache: one with each rail's device. */
#ifndef PC_VERBS_MEMORY_H
#define PC_VERBS_MEMORY_H
#include "verbs/ibverbs.h"
#include "memory/rcache.h"

/* "", or why RDMA devices cannot reach memory of this type, and what mends that. Valid for ever. */
const char *pc__mr_missing(enum pc_mem_type kind);

#ifdef PC_VERBS
/* For memory of which only a completion says what is in it: the device may write it in any order,
 * which is faster where the PCIe root allows it. A library or device that does not know the flag
 * ignores it. */
#ifdef IBV_ACCESS_OPTIONAL_RANGE
#define PC_ACCESS_RELAXED ((int)IBV_ACCESS_RELAXED_ORDERING)
#else
#define PC_ACCESS_RELAXED 0
#endif

/* ibv_reg_mr, with flags that are optional. NULL: errno. */
struct ibv_mr *pc__mr_register(struct ibv_pd *domain, const void *memory, size_t nbytes,
                               int access);

/* The context of pc__mr_rcache_ops. */
struct pc_mr_domains {
    struct ibv_pd *domains[PC_MAX_RAILS];
    uint32_t n;
    int access; /* IBV_ACCESS_*, for all domains */
};

/* The handle of a registration: the region in each domain, by the domain's index. */
struct pc_mr {
    struct ibv_mr *with[PC_MAX_RAILS];
};

extern const struct pc_rcache_ops pc__mr_rcache_ops;

/* Registers memory of a GPU with each domain, by the first of `ways` (of PC_MEM_WAYS) that goes;
 * span->kind says which. UNMAPPABLE: none does, and the text why. */
int pc__mr_gpu(const struct pc_mr_domains *r, struct pc_mem_span *span, uint32_t ways,
               struct pc_error *error, struct pc_mr *out);
#endif
#endif
