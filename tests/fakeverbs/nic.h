/* The pretended NIC of one opened device: its objects, its thread, and the RC protocol.
 *
 * A thread per opened device is the NIC: it reads what send requests name, late, puts packets into
 * the rings of other devices, and lands what comes in its own, with no help of the application.
 * The device's lock is held around each packet, so that a deregistration or a destruction that has
 * returned is a fence: nothing is read from, or lands in, that memory afterwards. Requests are
 * numbered, acknowledged and sent again as in InfiniBand, but a requester's clock runs only when a
 * packet was really dropped: a machine that is merely slow breaks no connection.
 *
 * Order of locks: device, then queue. */
#ifndef FV_NIC_H
#define FV_NIC_H
#include <infiniband/verbs.h>
#include "ring.h"
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define FV_QPN_BITS 14 /* of a number are the QP's, the rest are the slot's */
#define FV_MAX_QPS (1u << FV_QPN_BITS)
#define FV_MAX_SGE 16u
#define FV_MAX_WR 16384u
#define FV_MAX_CQE (1u << 20)
#define FV_MAX_READS 16u
#define FV_MAX_MESSAGE (1u << 30)
#define FV_PSN_MASK 0xffffffu
#define FV_WINDOW 32u  /* packets that may be unacknowledged; a ring holds twice that */
#define FV_ACK_EACH 8u /* packets */
#define FV_ANSWERS 64u /* that a responder may owe: reads, and acknowledgements between them */
#define FV_GIDS 16
#define FV_PKEYS 2

/* Of which provider the details are, where providers differ. */
enum fv_like {
    FV_MLX5, /* destroying a QP takes its completions out of the CQ; a responder that refuses tells
                by an event, and so does a QP in ERR that takes no more from its SRQ; fields that a
                failed completion does not have are poisoned; a slot of an SRQ is free again when
                its completion was polled or taken out */
    FV_RXE,  /* none of that, and other codes for some errors; a slot of an SRQ is free when its
                receive is taken; as Linux 6.1 does */
};

/* When a write into a GPU's memory lands that the GPU does not order; see gpu.c. */
enum fv_hold { FV_HOLD, FV_HOLD_A_WHILE, FV_HOLD_NOTHING };

struct fv_options {
    uint32_t host, devices, max_inline, jitter_us, late_us, overtake_us, mtu, srq_wr, max_cqe;
    uint64_t seed, memlock;
    enum fv_like like;
    enum fv_hold hold;
    bool infiniband, compat;
    bool dmabuf, peermem; /* by which a region may be of a GPU's memory */
    bool ipv4, ipv6;      /* families of the addresses besides the link-local one */
    uint32_t gbps[FV_DEVICES];
};

struct fv_device {
    struct ibv_device base;
    uint32_t index;
    struct fv_device *next;
};

struct fv_mr {
    struct ibv_mr base;
    uint64_t iova;
    unsigned int access;
    char *memory; /* the byte at iova */
    int gpu;      /* whose memory it is, by its number on the machine; -1: the host's */
    bool holds;   /* what is written lands late */
    int fd;       /* of a GPU's memory, and the NIC's mapping of it */
    char *mapping;
    size_t mapped;
};

struct fv_channel {
    struct ibv_comp_channel base;
    int writer;
    pthread_mutex_t lock; /* of events being withdrawn, and being read */
};

struct fv_cqe {
    struct ibv_wc wc;
    struct fv_qp *qp;
    struct fv_srq *srq; /* that the receive was taken from, or NULL */
    uint64_t index;     /* of the request in its queue */
    bool receive;
};

struct fv_cq {
    struct ibv_cq base;
    pthread_mutex_t lock;
    struct fv_cqe *ring;
    uint64_t head, tail;
    _Atomic uint32_t count;
    enum { FV_UNARMED, FV_SOLICITED_ONLY, FV_ANY } armed;
    uint32_t events, users;
};

struct fv_send {
    struct ibv_send_wr wr; /* its pointers are not used */
    struct ibv_sge sge[FV_MAX_SGE];
    uint32_t nsge, length;
    uint64_t due; /* ns: not begun before */
    uint32_t first, packets;
    uint32_t received; /* of a read: packets that came back */
    bool begun;
    enum ibv_wc_status local; /* what this side finds wrong with it */
    char *inlined;            /* max_inline bytes, or NULL */
    char *data;               /* inlined, or NULL */
};

struct fv_receive {
    uint64_t wr_id;
    struct ibv_sge sge[FV_MAX_SGE];
    uint32_t nsge, length;
};

struct fv_srq {
    struct ibv_srq base;
    struct fv_context *context;
    struct fv_srq *later; /* of the context's */
    uint32_t max_wr, max_sge;
    struct fv_receive *receives;
    uint64_t posted, next;
    _Atomic uint32_t used; /* slots */
    uint32_t limit, users, events;
};

struct fv_late { /* bytes of a packet that is acknowledged, and not yet in memory */
    struct fv_late *next;
    const struct fv_mr *mr;
    char *to;
    uint32_t length;
    char bytes[];
};

struct fv_answer {
    uint8_t kind, code; /* FV_ACK, FV_READ_RESPONSE or FV_NOTE */
    uint32_t psn;
    uint64_t addr;
    uint32_t rkey, total, sent;
    uint64_t nheld; /* of a read: how many writes into GPUs' memory came before it */
    uint64_t due;   /* ns: of a read that others are to overtake, when it waits no more, or 0 */
};

struct fv_qp {
    struct ibv_qp base;
    struct fv_context *context;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    enum ibv_qp_state state; /* base.state is the application's view, this the NIC's */
    bool flush, r_flush;     /* the queues of a QP in ERR are to be flushed */
    uint32_t peer_port;      /* of the fabric; FV_PORTS or more: nobody has that GID */
    uint32_t peer_slot, peer_generation;
    uint32_t mtu;
    uint32_t events;
    uint64_t departed; /* where its last packet ends in the peer's ring; 0: none */
    uint64_t random, last_due;

    /* Requester. Requests from `done` on are not complete, from `next` on not all sent; slots
     * behind `freed` can be posted to. */
    struct fv_send *sends;
    char *inlines;
    uint64_t posted, next, done;
    _Atomic uint64_t freed;
    uint32_t psn;      /* of the request that is next to be begun */
    uint32_t sent;     /* packets of request `next` that were sent */
    uint32_t acked;    /* all before are acknowledged */
    uint32_t reading;  /* reads that are not complete */
    bool lost;         /* a packet, or an answer, from `acked` on was dropped: */
    uint32_t lost_psn; /* the latest */
    uint32_t retries, rnr_retries;
    uint64_t deadline; /* ns: when to send again, or 0 */
    uint64_t quiet;    /* ns: since when nothing came back although something is owed */
    uint64_t rnr_until;

    /* Responder. */
    struct fv_srq *srq;     /* in place of the next four */
    struct fv_receive held; /* taken from it for a message of which the rest is to come */
    bool holds;
    struct fv_receive *receives;
    uint64_t r_posted, r_next;
    _Atomic uint64_t r_freed;
    uint32_t expected;
    bool refused_sequence; /* said so already, of this gap */
    uint64_t addr;         /* of the message that is coming in */
    uint32_t landed;
    uint64_t nheld;       /* of the context, behind the last packet of this QP that was held */
    struct fv_late *late; /* the latest first */
    struct fv_answer answers[FV_ANSWERS];
    uint32_t first_answer, nanswers;
};

struct fv_stray {
    uint32_t slot, from, to, psn;
};

struct fv_context {
    pthread_t thread;
    pthread_mutex_t lock;
    _Atomic uint32_t wanted; /* application threads that wait for the lock */
    _Atomic bool stop;
    struct fv_fabric *fabric;
    struct fv_device *device;
    uint32_t slot, port, changes;
    bool down; /* as told by an event, as the next */
    uint32_t moved, pkey;
    uint64_t now, wake_at;
    int async_writer;

    struct fv_qp **qps; /* by the number's low bits */
    uint32_t next_qp, top_qp, ncreated;
    struct fv_srq *srqs;
    struct fv_mr **mrs;
    uint32_t nmrs, next_mr;
    struct fv_held *held, **held_end; /* the first first */
    uint64_t nheld;                   /* so far */
    uint64_t ntold;                   /* behind the last that a completed receive has told of */
    struct fv_context *next;
    uint64_t free_at; /* ns: of a slowed device, when it can send again */
    struct fv_stray strays[64];
    uint32_t nstrays;

    struct verbs_context verbs; /* last: the application sees only its last field */
};

extern struct fv_options fv_options;

static inline struct fv_context *fv_context_of(struct ibv_context *base)
{
    return (struct fv_context *)((char *)base - offsetof(struct fv_context, verbs.context));
}

void fv_fatal(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
uint64_t fv_now(void);
bool fv_fails(const char *verb, _Atomic uint32_t *count);
/* In a verb: whether this call of it is to fail, with errno ENOMEM. */
#define FV_FAILS(verb) \
    ({ \
        static _Atomic uint32_t fv_calls; \
        fv_fails(verb, &fv_calls); \
    })

/* device.c */
struct fv_fabric *fv_fabric_here(void);
uint32_t fv_port_of(uint32_t device);
void fv_gid(uint32_t port, int index, union ibv_gid *gid, uint32_t *type);
/* An entry of a port's table of partition keys; 0: it is empty. */
uint32_t fv_pkey(struct fv_fabric *f, uint32_t port, int index);
uint32_t fv_port_of_gid(const union ibv_gid *gid);
int fv_query_port(struct ibv_context *base, uint8_t port, struct ibv_port_attr *attr, size_t size);

/* The device's lock, by an application's thread: the NIC steps aside. */
void fv_enter(struct fv_context *c);
void fv_leave(struct fv_context *c);
void fv_object(struct fv_context *c, enum fv_object what, int64_t change);

/* events.c: of the device's port, of a QP or of an SRQ. */
void fv_event(struct fv_context *c, enum ibv_event_type type, void *element);
void fv_event_forget(struct fv_context *c, const void *element);

/* memory.c */
/* The region in which a peer names these bytes, or NULL: key, bounds or access are wrong. */
const struct fv_mr *fv_remote(struct fv_context *c, const struct ibv_pd *pd, uint32_t rkey,
                              uint64_t addr, uint32_t length, unsigned int access, char **memory);
void fv_land(char *to, const char *from, uint32_t n);
/* Bytes [from, from + n) of what a list names; false where an lkey, bounds or the access are wrong.
 */
bool fv_gather(const struct fv_qp *qp, const struct ibv_sge *sge, uint32_t nsge, uint32_t from,
               uint32_t n, char *to);
bool fv_scatter(const struct fv_qp *qp, const struct ibv_sge *sge, uint32_t nsge, uint32_t at,
                const char *from, uint32_t n);

/* gpu.c */
void fv_gpu_opened(struct fv_context *c);
void fv_gpu_closed(struct fv_context *c);
/* Whether any of these bytes is a GPU's, which no CPU reads. */
bool fv_gpu_owns(const void *at, size_t nbytes);
/* Maps a GPU's memory for a region. 0, or an errno; by address 0 is also the host's memory. */
int fv_gpu_by_address(struct fv_mr *mr, const void *at, size_t nbytes);
int fv_gpu_by_dmabuf(struct fv_mr *mr, int fd, uint64_t offset, size_t nbytes);
void fv_gpu_unmap(struct fv_mr *mr);
/* What the NIC writes, into memory of whomever; what waits for a flush of a GPU's is kept. */
void fv_write(struct fv_context *c, const struct fv_mr *mr, char *to, const char *from, uint32_t n);
/* Whether a READ waits for something behind it to be told of first, as OVERTAKE has it. */
bool fv_gpu_read_waits(struct fv_context *c, const struct fv_answer *read);
/* A READ of this region is answered: what was written into that GPU before it lands. */
void fv_gpu_read(struct fv_context *c, const struct fv_mr *mr, uint64_t nheld);
bool fv_gpu_turn(struct fv_context *c); /* what lands by itself */
void fv_gpu_forget(struct fv_context *c, const struct fv_mr *mr);

/* completion.c */
void fv_complete(struct fv_cq *cq, const struct fv_cqe *entry, bool solicited);
void fv_forget(struct fv_cq *cq, const struct fv_qp *qp);
int fv_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int fv_req_notify_cq(struct ibv_cq *cq, int solicited_only);

/* post.c */
int fv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void fv_receive_fill(struct fv_receive *r, const struct ibv_recv_wr *wr);

/* shared_receives.c */
int fv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* The receive for the message that is coming in, or NULL: there is none. */
const struct fv_receive *fv_srq_take(struct fv_qp *qp);

/* nic.c */
void *fv_nic(void *context);
void fv_wake_at(struct fv_context *c, uint64_t ns);
void fv_fence(void);
/* Room in the ring of the QP's peer for a packet of `kind`, to be committed. FV_DROP: a fault takes
 * it; FV_BUSY: later. */
enum fv_route { FV_GO, FV_DROP, FV_BUSY };
enum fv_route fv_route(struct fv_qp *qp, uint32_t kind, uint32_t length, struct fv_packet **out);
void fv_depart(struct fv_qp *qp, struct fv_packet *packet);
/* The QP's peer, or something else that was sent to, will not answer packet `psn`. */
void fv_stray(struct fv_context *c, uint32_t slot, uint32_t from, uint32_t to, uint32_t psn);
/* Whether the opened device of the QP's peer is still there. */
bool fv_peer_alive(struct fv_qp *qp);
struct fv_qp *fv_find_qp(struct fv_context *c, uint32_t number);

/* requester.c: what a QP sends. True when it did something. */
bool fv_requester_send(struct fv_qp *qp);
bool fv_requester_timer(struct fv_qp *qp);
void fv_requester_ack(struct fv_qp *qp, const struct fv_packet *packet);
void fv_requester_read(struct fv_qp *qp, const struct fv_packet *packet, const char *payload);
void fv_requester_lost(struct fv_qp *qp, uint32_t psn);
void fv_qp_fail(struct fv_qp *qp);
bool fv_qp_flush(struct fv_qp *qp);

/* responder.c */
/* The QP stops answering: who waits for what it owes hears nothing more. */
void fv_responder_stop(struct fv_qp *qp);
/* Forgets packets that are not in memory yet: who destroys the QP never hears of their message. */
void fv_responder_forget(struct fv_qp *qp);
/* The same for packets of any QP that were to go into a region, which ends. */
void fv_responder_forget_region(struct fv_qp *qp, const struct fv_mr *mr);
void fv_responder_request(struct fv_qp *qp, const struct fv_packet *packet, const char *payload);
bool fv_responder_answer(struct fv_qp *qp);

static inline int32_t fv_psn_after(uint32_t a, uint32_t b) /* a - b */
{
    return (int32_t)((a - b) << 8) >> 8;
}
#endif
