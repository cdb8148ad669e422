/* The whole ABI of the engine. cffi reads this file as it stands, after isa.h.
 *
 * Every function that returns int gives 0 (or a count) or one of enum pc_code; the text that
 * explains a failure is in pc_comm_error(). Only pc_comm_abort, pc_comm_adopt, pc_comm_links and
 * pc_comm_attend may be called while another thread is inside a call on the same communicator. */
#ifndef PC_PYCOLL_H
#define PC_PYCOLL_H
#include <stddef.h>
#include <stdint.h>
#include "isa.h"

enum pc_code {
    PC_OK = 0,
    PC_AGAIN = -1,      /* not finished yet; call again */
    PC_INVALID = -2,    /* an argument, program or peer's blob is not right */
    PC_NOMEM = -3,      /* out of memory or address space */
    PC_SYSTEM = -4,     /* the operating system refused; see error.errnum */
    PC_UNMAPPABLE = -5, /* the peer's memory cannot be mapped from here */
    PC_TIMEDOUT = -6,   /* the call's deadline passed */
    PC_MISMATCH = -7,   /* error.peer sent the bytes of another call */
    PC_ABORTED = -8,    /* pc_comm_abort was called: error.cause says with which code */
    PC_BUSY = -9,       /* another thread is inside a call on this communicator */
    PC_BROKEN = -10,    /* an earlier call failed */
    PC_LOST = -11,      /* error.peer, whom the call needs, is gone, or the network to it */
};

enum pc_board_state { PC_BOARD_IDLE = 0, PC_BOARD_CALLING = 1, PC_BOARD_CLOSED = 2 };

struct pc_options {
    uint32_t rank;
    uint32_t size;
    uint32_t slots;      /* per edge; a power of two, 2 to 32 */
    uint32_t slot_bytes; /* a multiple of 4096 */
    uint64_t heap_bytes; /* address space for pc_heap_alloc; memory appears at first touch */
    uint32_t spin;       /* microseconds to poll at most; 0 when ranks outnumber cores */
    uint32_t reserved;
};

struct pc_error {
    int32_t code;
    int32_t cause; /* ABORTED: what was given to pc_comm_abort; else 1 if a transfer failed */
    int32_t peer;  /* rank at fault, or -1 */
    int32_t errnum;
    char text[240];
};

struct pc_extent { /* the blocks that an array of this rank holds, one behind the other */
    uint32_t first;
    uint32_t count; /* 0: there is no such array */
};

/* A message is a row of blocks; the chunks of a Program are equal parts of a block. With a root,
 * block b of the Program lies where block (b + root) % nblocks lies in memory. */
struct pc_plan_spec {
    uint64_t signature; /* of the call; travels with every message and must be equal on all ranks */
    uint32_t dtype;     /* enum pc_dtype */
    uint32_t op;        /* enum pc_reduce_op */
    uint32_t tile;      /* bytes of a chunk per turn of the loop; a multiple of 64 */
    uint32_t stream;    /* write OUT past the cache: 1 in the staged form, 2 in the direct form */
    uint32_t nblocks;
    uint32_t root;
    struct pc_extent input;
    struct pc_extent output;
    const uint64_t *blocks; /* bytes of each, multiples of the element size; read at creation */
};

struct pc_board {       /* what a rank says it is doing */
    uint64_t sequence;  /* calls entered so far */
    uint64_t signature; /* of the last call entered */
    uint32_t state;     /* enum pc_board_state */
    uint32_t described; /* low 32 bits of the sequence number that text is about */
    char text[232];
};

struct pc_stuck { /* where a call stands that has not finished */
    uint32_t channel;
    uint32_t instruction;
    int32_t peer;       /* rank that the wait is for */
    uint32_t direction; /* enum pc_direction: SEND waits for a free slot, RECV for a message */
    uint64_t want;
    uint64_t got;
};

struct pc_message { /* one end of a transfer */
    void *at;
    uint64_t nbytes;
    uint32_t peer;
    uint32_t direction; /* enum pc_direction */
    uint32_t dtype;     /* enum pc_dtype; both ends must say the same */
    uint32_t reserved;
};

/* RDMA. A rail is a port of an RDMA device by which a rank reaches others. */
#define PC_DEVICE_NAME 64
#define PC_MAX_RAILS 8

struct pc_rail_spec {
    char device[PC_DEVICE_NAME];
    uint32_t port;     /* from 1 */
    int32_t gid_index; /* -1: the best there is */
};

struct pc_verbs_options {
    uint32_t queue_pairs;   /* per peer and pair of rails, 1 to 8: so many flows for a fabric that
                               spreads them by hash */
    uint32_t traffic_class; /* its upper six bits are the DSCP */
    uint32_t service_level; /* 0 to 15 */
    uint32_t timeout;       /* a packet is sent again after 4.096 us << timeout; 1 to 31 */
    uint32_t retry_count;   /* so often, 0 to 7, before a path has failed */
    uint32_t mtu;           /* bytes at most; 0: the port's */
};

struct pc_port { /* what a port of an RDMA device says of itself */
    char device[PC_DEVICE_NAME];
    uint32_t port;
    uint32_t state;      /* enum ibv_port_state; 4 is ACTIVE */
    uint32_t link_layer; /* 1 InfiniBand, 2 Ethernet */
    uint32_t mtu;        /* bytes, with the next */
    uint32_t max_mtu;
    uint32_t lid;
    uint64_t speed;      /* bits per second each way; 0: unknown */
    uint32_t max_inline; /* bytes; 0: not tried */
    uint32_t max_queue_pairs;
    int32_t gid_index; /* the one that would be chosen, or -1 */
    uint32_t gid_type; /* of that: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2 */
    unsigned char gid[16];
    int32_t numa_node; /* or -1 */
    char driver[32];   /* such as mlx5_core or rdma_rxe, as far as known */
};

struct pc_wire_state {            /* of what carries a communicator's messages to remote peers */
    uint32_t paths;               /* queue pairs that there should be */
    uint32_t live;                /* of those, how many carry messages */
    uint32_t queue_pairs;         /* that exist at this moment */
    uint32_t regions;             /* memory regions that do */
    uint64_t failures;            /* of paths */
    uint64_t revivals;            /* of paths that had failed */
    uint64_t replayed;            /* messages that were sent again */
    uint64_t recovery_ns;         /* the longest time from a failure's notice to the replay */
    uint64_t bytes[PC_MAX_RAILS]; /* sent by each rail */
};

struct pc_comm;
struct pc_program;
struct pc_plan;
struct pc_work;

/* Build and machine. */
const char *pc_version(void);
const char *pc_compiler(void);
const char *pc_cpu_features(void);
const char *pc_code_name(int code);
const char *pc_verbs_missing(void); /* "", or what keeps this machine from RDMA and what mends it */
int pc_verbs_ports(struct pc_port *ports, uint32_t capacity); /* how many there are */
/* Bytes per second of RDMA writes from a port to itself, for about so many seconds. */
int pc_verbs_loopback(const struct pc_rail_spec *rail, const struct pc_verbs_options *options,
                      double seconds, struct pc_error *error, double *bandwidth);

/* A communicator: this rank's memory and its view of the peers'. */
int pc_comm_open(const struct pc_options *options, struct pc_comm **out);
int pc_comm_address(struct pc_comm *comm, void *blob, size_t capacity); /* returns its length */
int pc_comm_connect(struct pc_comm *comm, uint32_t peer, const void *blob, size_t nbytes);
/* Instead of connect, or after it where the peer could not do the same: what passes between the two
 * goes over sockets. Before pc_comm_sealed. */
int pc_comm_remote(struct pc_comm *comm, uint32_t peer);
/* Before that: remote peers are reached by RDMA over these ports; none: by TCP again. */
int pc_comm_rails(struct pc_comm *comm, const struct pc_verbs_options *options,
                  const struct pc_rail_spec *rails, uint32_t n);
int pc_comm_poll(struct pc_comm *comm); /* serves peers that connect; returns how many it served */
int pc_comm_wakeup(struct pc_comm *comm); /* a file descriptor, readable when poll has work */
int pc_comm_sealed(struct pc_comm *comm); /* all peers are connected: stop serving */
/* Takes over a connected stream socket to a remote peer whom the caller has authenticated; several
 * share the load. The first message to the peer waits for it. links: how many live. */
int pc_comm_adopt(struct pc_comm *comm, uint32_t peer, int fd);
int pc_comm_links(struct pc_comm *comm, uint32_t peer);
/* A descriptor that is readable when what reaches remote peers needs pc_comm_attend, or -1: so that
 * it is seen to while no thread is inside a call. Any thread may attend. */
int pc_comm_attention(struct pc_comm *comm);
int pc_comm_attend(struct pc_comm *comm);
int pc_comm_wire_state(struct pc_comm *comm, struct pc_wire_state *out);
void pc_comm_close(struct pc_comm *comm);
const struct pc_error *pc_comm_error(struct pc_comm *comm);
int pc_comm_abort(struct pc_comm *comm, int cause, int peer, const char *text);
int pc_comm_broken(struct pc_comm *comm);  /* 0, or the code that broke it */
int pc_comm_entered(struct pc_comm *comm); /* 1 while a thread is inside a call */
int pc_comm_forked(struct pc_comm *comm);  /* in the child of a fork: detach from the peers */

/* Registered memory, reachable by every mapped peer. NULL when the heap is full. */
void *pc_heap_alloc(struct pc_comm *comm, size_t nbytes);
int pc_heap_free(struct pc_comm *comm, void *address);

/* Programs and plans. A plan keeps its programs alive. Rank r of a Program runs at rank
 * (r + root) % size. */
int pc_program_load(struct pc_comm *comm, const void *bytes, size_t nbytes, uint32_t root,
                    struct pc_program **out);
void pc_program_free(struct pc_program *program);
int pc_plan_create(struct pc_comm *comm, const struct pc_plan_spec *spec, struct pc_program *staged,
                   struct pc_program *direct, struct pc_plan **out);
void pc_plan_free(struct pc_plan *plan);

/* A blocking call. AGAIN after a millisecond: resume, which waits for at most `seconds`, and before
 * long describe the call on the board. `timeout` is the deadline of the whole call in seconds. */
int pc_run(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out, double timeout);
int pc_resume(struct pc_comm *comm, double seconds);
int pc_comm_stuck(struct pc_comm *comm, struct pc_stuck *out); /* 1 when a call is unfinished */

/* Calls on the progress thread, in the order of submission; pc_run joins the queue. `where`
 * describes the call on the board. wait: AGAIN when `seconds` pass. free: only when finished. */
int pc_submit(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out, double timeout,
              const char *where, struct pc_work **work);
int pc_work_wait(struct pc_work *work, double seconds);
void pc_work_free(struct pc_work *work);

/* Transfers between two ranks. Those to one peer, and those from one peer, keep their order; there
 * is none with anything else. A send is finished when its bytes may be written over. pc_exchange
 * is a blocking call as pc_run is, with pc_resume; what pc_post gives is waited for as that of
 * pc_submit is. */
int pc_exchange(struct pc_comm *comm, const struct pc_message *messages, uint32_t n,
                double timeout);
int pc_post(struct pc_comm *comm, const struct pc_message *messages, uint32_t n, double timeout,
            struct pc_work **work);
int pc_comm_gone(struct pc_comm *comm, uint32_t peer); /* any thread: this rank has left or died */

/* Transfers that are one call among those of pc_run and pc_submit, in their order. */
int pc_pairwise(struct pc_comm *comm, uint64_t signature, const struct pc_message *messages,
                uint32_t n, double timeout);
int pc_pairwise_submit(struct pc_comm *comm, uint64_t signature, const struct pc_message *messages,
                       uint32_t n, double timeout, const char *where, struct pc_work **work);

/* The call board. */
int pc_board_describe(struct pc_comm *comm, const char *text);
int pc_board_read(struct pc_comm *comm, uint32_t peer, struct pc_board *out);

/* For tests of the kernels. */
int pc_fold_test(uint32_t dtype, uint32_t op, void **dst, uint32_t ndst, const void **src,
                 uint32_t nsrc, size_t count, uint32_t divisor, uint32_t stream);
#endif
