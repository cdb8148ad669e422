/* libibverbs, loaded by dlopen at first use: a machine without it runs everything else.
 *
 * Its functions that are inline in <infiniband/verbs.h> (ibv_post_send, ibv_post_recv,
 * ibv_post_srq_recv, ibv_poll_cq, ibv_req_notify_cq) are called directly, all others through
 * pc__ib. Code that needs RDMA is between #ifdef PC_VERBS and #endif. */
#ifndef PC_IBVERBS_H
#define PC_IBVERBS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __has_include
#if __has_include(<infiniband/verbs.h>) && !defined(PC_NO_VERBS)
#define PC_VERBS 1
#endif
#endif

#ifdef PC_VERBS
#include <infiniband/verbs.h>
/* These macros call symbols that this module is not linked with. */
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

/* Name and symbol version of each function. */
#define PC_IBVERBS(X) \
    X(get_device_list, "IBVERBS_1.1") \
    X(free_device_list, "IBVERBS_1.1") \
    X(get_device_name, "IBVERBS_1.1") \
    X(open_device, "IBVERBS_1.1") \
    X(close_device, "IBVERBS_1.1") \
    X(query_device, "IBVERBS_1.1") \
    X(query_port, "IBVERBS_1.1") /* pc__port_query tells more */ \
    X(query_gid, "IBVERBS_1.1") \
    X(query_pkey, "IBVERBS_1.1") \
    X(get_async_event, "IBVERBS_1.1") \
    X(ack_async_event, "IBVERBS_1.1") \
    X(alloc_pd, "IBVERBS_1.1") \
    X(dealloc_pd, "IBVERBS_1.1") \
    X(reg_mr, "IBVERBS_1.1") \
    X(dereg_mr, "IBVERBS_1.1") \
    X(create_comp_channel, "IBVERBS_1.0") \
    X(destroy_comp_channel, "IBVERBS_1.0") \
    X(create_cq, "IBVERBS_1.1") \
    X(resize_cq, "IBVERBS_1.1") \
    X(destroy_cq, "IBVERBS_1.1") \
    X(get_cq_event, "IBVERBS_1.1") \
    X(ack_cq_events, "IBVERBS_1.1") \
    X(create_qp, "IBVERBS_1.1") \
    X(query_qp, "IBVERBS_1.1") \
    X(modify_qp, "IBVERBS_1.1") \
    X(destroy_qp, "IBVERBS_1.1") \
    X(create_srq, "IBVERBS_1.1") \
    X(modify_srq, "IBVERBS_1.1") \
    X(destroy_srq, "IBVERBS_1.1") \
    X(fork_init, "IBVERBS_1.1") \
    X(wc_status_str, "IBVERBS_1.1") \
    X(event_type_str, "IBVERBS_1.1")

/* The same as struct ibv_gid_entry, which older headers lack. */
struct pc_gid_entry {
    union ibv_gid gid;
    uint32_t index;
    uint32_t port;
    uint32_t type;      /* 0 InfiniBand, 1 RoCE v1, 2 RoCE v2 */
    uint32_t interface; /* index of its network interface, or 0 */
};

struct pc_ibverbs {
#define PC_DEVICE_MEMBER(name, version) __typeof__(ibv_##name) *name;
    PC_IBVERBS(PC_DEVICE_MEMBER)
#undef PC_DEVICE_MEMBER
    /* The next three are NULL where the library is too old. */
    struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *at, size_t nbytes, uint64_t iova,
                                   unsigned int access);
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t nbytes,
                                    uint64_t iova, int fd, int access);
    ssize_t (*query_gid_table)(struct ibv_context *context, struct pc_gid_entry *entries,
                               size_t capacity, uint32_t flags, size_t entry_size);
};

extern struct pc_ibverbs pc__ib; /* filled by pc__ib_library and pc__ib_load */

/* Whether the device speaks InfiniBand or RoCE: others (iWARP) need the RDMA CM to connect. */
bool pc__ib_usable(const struct ibv_device *device);
#endif

/* Loads the library once. NULL, or why it cannot be loaded and what mends that; valid for ever. */
const char *pc__ib_library(void);
/* The same, and checks that this process may open a device and lock memory. The text is valid until
 * this thread calls again. Any thread. */
const char *pc__ib_load(void);
/* Bytes that this process may still register, by RLIMIT_MEMLOCK; UINT64_MAX: no limit. A page
 * counts once for each region that it is in. */
uint64_t pc__ib_lockable(void);
/* What would mend a verb's failure: "" or ": ...". Valid until this thread calls again. */
const char *pc__ib_remedy(int errnum);
#endif
