/* A rail: a port of an RDMA device that this rank uses, and the queue pairs of it. */
#ifndef PC_VERBS_DEVICE_H
#define PC_VERBS_DEVICE_H
#include "verbs/ibverbs.h"
#include "pycoll.h"

/* What the other side must know to connect a queue pair. It goes over the wire as it stands, in the
 * byte order of the hosts, which is the same for all. */
struct pc_qp_info {
    uint32_t qpn, psn;
    uint16_t lid;
    uint8_t mtu; /* enum ibv_mtu */
    uint8_t link_layer;
    uint8_t gid[16];
    uint8_t gid_type; /* 0 InfiniBand, 1 RoCE v1, 2 RoCE v2 */
    uint8_t reads;    /* RDMA reads that it serves at a time */
    uint8_t reserved[10];
};
_Static_assert(sizeof(struct pc_qp_info) == 40, "struct pc_qp_info goes over the wire");

#ifdef PC_VERBS
#define PC_MIN_INLINE 64u /* bytes: a line */

struct pc_ib_device {
    struct pc_rail_spec spec; /* as chosen: the GID's number is known */
    const struct pc_verbs_options *options;
    struct ibv_context *context;      /* whose async_fd does not block */
    struct ibv_pd *pd;                /* of what no peer is to touch */
    struct ibv_comp_channel *channel; /* whose fd does not block */
    struct ibv_cq *cq;                /* of all sends and receives of this rail */
    union ibv_gid gid;
    uint16_t lid;
    uint8_t link_layer; /* IBV_LINK_LAYER_INFINIBAND or IBV_LINK_LAYER_ETHERNET */
    uint8_t gid_type;
    enum ibv_mtu mtu;
    uint64_t speed;       /* bytes per second, at least 1 */
    uint32_t max_inline;  /* bytes, of each queue pair; at least PC_MIN_INLINE */
    uint32_t max_message; /* bytes */
    uint32_t max_sends;   /* and as many receives, of a queue pair */
    uint32_t max_pairs;   /* queue pairs of the device, in all processes */
    uint8_t reads_in;     /* RDMA reads at a time that it serves, and that it may have out */
    uint8_t reads_out;
    bool any_gid; /* the spec left the choice */
    bool global;  /* InfiniBand: the fabric wants a global header on everything */
};

/* Opens a port that is ACTIVE. `options` must stay. Fails with INVALID (an option, a name) or
 * SYSTEM; nothing is left open then. */
int pc__ib_device_open(const struct pc_rail_spec *spec, const struct pc_verbs_options *options,
                       uint32_t cq_depth, struct pc_error *error, struct pc_ib_device *out);
/* Every queue pair and memory region of it must be gone, and every event acknowledged. */
void pc__ib_device_close(struct pc_ib_device *rail);
/* Asks the port. */
bool pc__ib_device_active(const struct pc_ib_device *rail);

/* A protection domain of the rail's device, or NULL and the text of why not. A queue pair reaches
 * only regions of its own domain: one for each peer keeps peers from each other's. The caller gives
 * it back (dealloc_pd) before the rail is closed. */
struct ibv_pd *pc__ib_device_pd(struct pc_ib_device *rail, struct pc_error *error);

/* Makes a queue pair of `pd` in INIT, which a peer may write to and read from, and its end with a
 * random PSN. Asks the port anew: after a failure its LID or its GID may be others, and rail->spec
 * then says so. Only sends that ask for it are signalled. */
int pc__qp_create(struct pc_ib_device *rail, struct ibv_pd *pd, uint32_t sends, uint32_t receives,
                  struct pc_error *error, struct ibv_qp **qp, struct pc_qp_info *mine);
/* Checks that the two ends fit each other and moves the queue pair to RTR and RTS. RoCE: resolves
 * the peer's address, which takes a second where nobody answers. INVALID: the ends do not fit or
 * `theirs` is nonsense; SYSTEM: the device or the network refused. The queue pair is to be
 * destroyed then. */
int pc__qp_connect(struct pc_ib_device *rail, struct ibv_qp *qp, const struct pc_qp_info *mine,
                   const struct pc_qp_info *theirs, struct pc_error *error);

/* What a verb's failure was, from errno, with what would mend it: "rxe0 port 1: ibv_reg_mr of 4096
 * bytes: Cannot allocate memory: ...". `nbytes`: that were asked for, or 0. Returns SYSTEM. */
int pc__ib_device_refused(const struct pc_ib_device *rail, const char *call, uint64_t nbytes,
                          struct pc_error *error);

/* Between device.c and qp.c. Takes the port's LID, GID and rates as they are now. */
int pc__ib_device_query(struct pc_ib_device *rail, struct pc_error *error);
struct ibv_qp *pc__ib_device_create_qp(const struct pc_ib_device *rail, struct ibv_pd *pd,
                                       uint32_t sends, uint32_t receives, uint32_t inline_bytes);
/* As refused; `maximum` of what was asked for, as the device has it, or 0. */
int pc__ib_device_fail(const struct pc_ib_device *rail, int errnum, const char *call,
                       uint32_t maximum, struct pc_error *error);
#endif
#endif
