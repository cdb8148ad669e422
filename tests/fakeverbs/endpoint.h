/* One end of a connection, for the driver: a device, its queue, its memory and a QP. Works on any
 * libibverbs. */
#ifndef FV_ENDPOINT_H
#define FV_ENDPOINT_H
#include <infiniband/verbs.h>
#include <stdbool.h>

#define SIZE (1u << 20)
#define DEPTH 64

struct remote { /* what the other side must know */
    union ibv_gid gid;
    uint32_t qpn, psn, rkey;
    uint64_t addr;
};

struct endpoint {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_qp *qp;
    struct ibv_srq *srq; /* of the QPs that are made from now on, or NULL */
    char *memory;
    struct remote mine, theirs;
    int gid_index;
};

struct timing {
    uint8_t timeout, retries, rnr_retries;
};

/* All that fails ends the program, with a line that says what. */
void check(bool good, const char *what);
void endpoint_open(struct endpoint *, const char *device, int gid_index, int access);
void endpoint_qp(struct endpoint *);
void endpoint_init(struct endpoint *); /* its QP from RESET to INIT */
void endpoint_connect(struct endpoint *, const struct remote *, struct timing);
void endpoint_close(struct endpoint *);
void endpoint_state(struct endpoint *, enum ibv_qp_state);
int endpoint_query(struct endpoint *);

struct ibv_send_wr endpoint_wr(struct endpoint *, enum ibv_wr_opcode, uint32_t length,
                               struct ibv_sge *);
int endpoint_send(struct endpoint *, enum ibv_wr_opcode, uint64_t wr_id, uint32_t length,
                  unsigned flags);
int endpoint_receive(struct endpoint *, uint64_t wr_id, uint32_t length);
/* Waits for `n` completions, at most 20 s; returns how many came. */
int endpoint_wait(struct endpoint *, int n, struct ibv_wc *);
#endif
