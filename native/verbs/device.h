/* A rail: an opened RDMA device with the port that this rank uses, and its queue pairs. */
#ifndef PC_VERBS_DEVICE_H
#define PC_VERBS_DEVICE_H
#include "verbs/gid.h"
#include "pycoll.h"

/* What the other end needs to connect its queue pair to this one. It goes over the wire as it is,
 * in host byte order, which is the same for all ranks. */
struct pc_qp_info {
    uint32_t qpn, psn;
    uint16_t lid;
    uint16_t pkey, pkey_index; /* the partition key, and where it is in the port's table */
    uint8_t mtu;               /* enum ibv_mtu */
    uint8_t link_layer;
    uint8_t gids[PC_GID_FAMILIES][16]; /* zeros: none of that family */
    uint8_t indexes[PC_GID_FAMILIES];  /* of these GIDs in the port's table */
    uint8_t gid_type;                  /* 0 InfiniBand, 1 RoCE v1, 2 RoCE v2 */
    uint8_t reads;                     /* RDMA reads that it serves at once (max_dest_rd_atomic) */
    uint8_t shares; /* takes receives from a shared queue, which may be empty for long */
    uint8_t reserved[3];
};
_Static_assert(sizeof(struct pc_qp_info) == 56, "struct pc_qp_info goes over the wire");

#ifdef PC_VERBS
#define PC_MIN_INLINE 64u         /* bytes: a line */
#define PC_PKEY_PARTITION 0x7fffu /* bits of a partition key; the other one: a full member */

struct pc_ib_device {
    struct pc_rail_spec spec; /* with the GID index that was chosen */
    const struct pc_verbs_options *options;
    struct ibv_context *context;         /* its async_fd does not block */
    struct ibv_pd *pd;                   /* of what no peer may touch */
    struct ibv_comp_channel *channel;    /* its fd does not block */
    struct ibv_cq *cq;                   /* of all sends and receives of this rail */
    struct pc_gid gids[PC_GID_FAMILIES]; /* zeros: none of that family */
    uint16_t lid;
    uint16_t pkey; /* the partition key that its queue pairs have, and where it is in the table */
    uint16_t pkey_index;
    uint8_t link_layer; /* IBV_LINK_LAYER_INFINIBAND or IBV_LINK_LAYER_ETHERNET */
    uint8_t gid_type;
    enum ibv_mtu mtu;
    uint64_t speed;       /* bytes per second, at least 1 */
    uint32_t max_inline;  /* bytes, of each queue pair; at least PC_MIN_INLINE */
    uint32_t max_message; /* bytes */
    uint32_t max_sends;   /* work requests of each queue of a queue pair */
    uint32_t max_pairs;   /* queue pairs of the device, in all processes */
    uint32_t max_shared;  /* receives of a shared receive queue; 0: the device has none */
    uint32_t max_cqe;     /* completions of a completion queue */
    uint8_t reads_in;     /* RDMA reads that it serves at once, and that it may have in flight */
    uint8_t reads_out;
    bool any_gid; /* the spec named no GID index */
    bool global;  /* InfiniBand: every packet needs a GRH */
};

/* Opens a port that is ACTIVE. `options` must stay. Fails with INVALID (an option, a name) or
 * SYSTEM; nothing is left open then. */
int pc__ib_device_open(const struct pc_rail_spec *spec, const struct pc_verbs_options *options,
                       uint32_t cq_depth, struct pc_error *error, struct pc_ib_device *out);
/* All its queue pairs and memory regions must be destroyed, and all events acknowledged. */
void pc__ib_device_close(struct pc_ib_device *rail);
/* Whether the port's MTU is now at least so long, as far as can be told. */
bool pc__ib_device_has_mtu(const struct pc_ib_device *rail, enum ibv_mtu mtu);
/* Whether the port is ACTIVE now. */
bool pc__ib_device_active(const struct pc_ib_device *rail);

/* Allocates a protection domain; NULL: `error` says why. A queue pair reaches only regions of its
 * own domain: one for each peer keeps peers from each other's. The caller deallocates it before the
 * rail is closed. */
struct ibv_pd *pc__ib_device_pd(struct pc_ib_device *rail, struct pc_error *error);

/* Creates a queue pair of `pd` in INIT, which a peer may write to and read from, with a random PSN.
 * It takes its receives from `srq`, or has a queue of `receives` of its own where that is NULL.
 * Queries the port anew, as after a failure its LID or its GID may be others; rail->spec then has
 * the new ones. Only sends that ask for it are signaled. */
int pc__qp_create(struct pc_ib_device *rail, struct ibv_pd *pd, struct ibv_srq *srq, uint32_t sends,
                  uint32_t receives, struct pc_error *error, struct ibv_qp **qp,
                  struct pc_qp_info *mine);
/* Checks that the two ends fit each other and moves the queue pair to RTR and RTS. RoCE: resolves
 * the peer's address, which takes a second where nobody answers. INVALID: the ends do not fit or
 * `theirs` is out of range; SYSTEM: the device or the network refused. The caller then destroys the
 * queue pair. */
int pc__qp_connect(struct pc_ib_device *rail, struct ibv_qp *qp, const struct pc_qp_info *mine,
                   const struct pc_qp_info *theirs, struct pc_error *error);

/* What a port said last of whether a queue pair's address and partition key are still its own. It
 * holds for all that go by the same, as most do: the port is asked once for these. */
struct pc_qp_answer {
    const struct pc_qp_info *of; /* NULL: it was not asked yet */
    uint32_t family;
    const char *why;
};
/* Why they are not the port's any more, or NULL: they are, or nobody can tell. `last` begins as
 * zeros, and is good for as long as the port is not said to have changed again. */
const char *pc__qp_moved(const struct pc_ib_device *rail, const struct pc_qp_info *mine,
                         const struct pc_qp_info *theirs, struct pc_qp_answer *last);

/* Describes a verb's failure from errno, with what would mend it: "rxe0 port 1: ibv_reg_mr of 4096
 * bytes: Cannot allocate memory: ...". `nbytes`: what was asked for, or 0. Returns SYSTEM. */
int pc__ib_device_refused(const struct pc_ib_device *rail, const char *call, uint64_t nbytes,
                          struct pc_error *error);

/* Shared by device.c, qp.c and srq.c. Reads the port's LID, GID, partition key, MTU and speed as
 * they are now. */
int pc__ib_device_query(struct pc_ib_device *rail, struct pc_error *error);
struct ibv_qp *pc__ib_device_create_qp(const struct pc_ib_device *rail, struct ibv_pd *pd,
                                       struct ibv_srq *srq, uint32_t sends, uint32_t receives,
                                       uint32_t inline_bytes);
/* As pc__ib_device_refused; `maximum`: the device's limit of what was asked for, or 0. */
int pc__ib_device_fail(const struct pc_ib_device *rail, int errnum, const char *call,
                       uint32_t maximum, struct pc_error *error);
#endif
#endif
