/* The whole ABI of the engine. cffi parses this file, after isa.h.
 *
 * Every function that returns int returns 0 (or a count) or one of enum pc_code; the text of a
 * failure is in pc_comm_error(). Only pc_comm_abort, pc_comm_adopt, pc_comm_connections,
 * pc_comm_peer_fault and pc_comm_handle_events may be called while another thread is inside a call
 * on the same communicator. */
#ifndef PC_PYCOLL_H
#define PC_PYCOLL_H
#include <stddef.h>
#include <stdint.h>
#include "isa.h"
#include "code.h"

enum pc_status_state { PC_STATUS_IDLE = 0, PC_STATUS_CALLING = 1, PC_STATUS_CLOSED = 2 };

struct pc_options {
    uint32_t rank;
    uint32_t size;
    uint32_t slots;       /* per edge; a power of two, 2 to 32 */
    uint32_t slot_bytes;  /* a multiple of 4096 */
    uint64_t heap_bytes;  /* address space for pc_heap_alloc; memory appears at first touch */
    uint32_t spin;        /* microseconds of polling at most; 0 when ranks outnumber cores */
    uint32_t ring_bytes;  /* of the slots of an edge, what transfers use: whole pages; 0: all */
    uint32_t windows;     /* 1: of a peer's arena map only what edges need; no direct forms then */
    uint32_t small_bytes; /* of a small message between hosts, a multiple of 64; 0: none is small */
};

struct pc_error {
    int32_t code;
    int32_t cause; /* ABORTED: the argument of pc_comm_abort; else enum pc_cause */
    int32_t peer;  /* rank at fault, or -1 */
    int32_t errnum;
    char text[496]; /* a longer text is cut, and ends in "..." */
};

struct pc_extent { /* the blocks that an array of this rank holds, contiguous */
    uint32_t first;
    uint32_t count; /* 0: there is no such array */
};

/* A message is a row of blocks; the chunks of a Program are equal parts of a block. With a root,
 * block b of the Program is block (b + root) % nblocks in memory. */
struct pc_plan_spec {
    uint64_t signature; /* of the call; sent with every message, and equal on all ranks */
    uint32_t dtype;     /* enum pc_dtype */
    uint32_t op;        /* enum pc_reduce_op */
    uint32_t tile;      /* bytes of a chunk per turn of a LOOP; a multiple of 64 */
    uint32_t stream;    /* 1: non-temporal stores to OUT */
    uint32_t nblocks;
    uint32_t root;
    struct pc_extent input;
    struct pc_extent output;
    const uint64_t *blocks; /* bytes of each, multiples of the element size; read at creation */
};

/* What failed: a transfer; a call; or a call's transfer, matched with another call's. */
enum pc_cause { PC_CAUSE_NONE = 0, PC_CAUSE_TRANSFER = 1, PC_CAUSE_CALL = 2 };

struct pc_status {      /* what a rank says it is doing */
    uint64_t sequence;  /* calls entered so far */
    uint64_t signature; /* of the last call entered */
    uint32_t state;     /* enum pc_status_state */
    uint32_t described; /* the call that `text` is about: low 32 bits of its sequence number */
    char text[232];
};

#define PC_STATUS_CALLS 64 /* calls that a status knows; a rank may be ahead by more */
/* In place of a signature: the call was refused; the call is so old that the status does not know
 * it any more. */
#define PC_REFUSED 1
#define PC_FORGOTTEN 2

struct pc_stuck { /* where an unfinished call waits */
    uint32_t channel;
    uint32_t instruction;
    int32_t peer;       /* rank that the wait is for */
    uint32_t direction; /* enum pc_direction: SEND waits for a free slot, RECV for a message */
    uint64_t want;
    uint64_t got;
};

struct pc_p2p_op { /* one end of a transfer */
    void *at;
    uint64_t nbytes;
    uint32_t peer;
    uint32_t direction; /* enum pc_direction */
    uint32_t dtype;     /* enum pc_dtype; equal at both ends */
    uint32_t reserved;
};

/* RDMA. A rail is a port of an RDMA device that a rank uses. */
#define PC_DEVICE_NAME 64
#define PC_MAX_RAILS 8

struct pc_rail_spec {
    char device[PC_DEVICE_NAME];
    uint32_t port;     /* from 1 */
    int32_t gid_index; /* -1: the best one */
    uint32_t far; /* 1: far from the data; while others are up only parts of long messages go */
};

struct pc_verbs_options {
    uint32_t queue_pairs;   /* per peer and pair of rails, 1 to 8: more flows for ECMP */
    uint32_t traffic_class; /* its upper six bits are the DSCP */
    uint32_t service_level; /* 0 to 15 */
    uint32_t timeout;       /* of a retransmission: 4.096 us << timeout; 1 to 31 */
    uint32_t retry_count;   /* retransmissions before a connection fails, 0 to 7 */
    uint32_t mtu;           /* bytes at most; 0: the port's */
    uint32_t pkey;          /* partition key; 0: the first of the port's table */
    uint32_t srq_from;      /* connections of a rail with receives of their own; later ones share */
    uint32_t patience; /* seconds from the wireup socket to the first connection; 0: for ever */
};

struct pc_port { /* the attributes of a port of an RDMA device */
    char device[PC_DEVICE_NAME];
    uint32_t port;
    uint32_t state;      /* enum ibv_port_state; 4 is ACTIVE */
    uint32_t link_layer; /* 1 InfiniBand, 2 Ethernet */
    uint32_t mtu;        /* bytes, as the next */
    uint32_t max_mtu;
    uint32_t lid;
    uint64_t speed;      /* bits per second in each direction; 0: unknown */
    uint32_t max_inline; /* bytes; 0: not tried */
    uint32_t max_queue_pairs;
    int32_t gid_index; /* of the GID that would be chosen, or -1 */
    uint32_t gid_type; /* of that GID: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2 */
    unsigned char gid[16];
    uint32_t other_family; /* 1: it has one of the other family (IPv4, IPv6), too */
    int32_t numa_node;     /* or -1 */
    char driver[32];       /* such as mlx5_core or rdma_rxe; "": unknown */
};

struct pc_gpu_probe {  /* what came of registering a page of a GPU's memory with an RDMA device */
    char dmabuf[240];  /* by dma-buf: "", or why that is not possible, and behind ": " what mends it
                        */
    char peermem[240]; /* by its address, with nvidia_peermem */
    uint32_t flush; /* what makes writes visible there: 0 nothing, 1 the driver, 2 an RDMA READ */
};

struct pc_fabric_options {
    char provider[64]; /* of libfabric, such as efa; "": the best that there is */
    char node[64];     /* the IP address of this host for it; "": any */
    uint32_t nic;      /* which of the provider's NICs, modulo how many it has */
    uint32_t patience; /* seconds from a peer's socket to its first packet; 0: for ever */
};

struct pc_fabric_provider { /* what libfabric offers */
    char name[64];
    char domain[64];          /* mostly the NIC */
    char library[256];        /* its path */
    uint32_t library_version; /* the major version in the upper 16 bits, as in the next */
    uint32_t version;
    uint32_t rdma;  /* 1: of RDMA hardware */
    uint64_t speed; /* bits per second each way; 0: unknown */
};

/* Where memory lies, and how an RDMA device reaches it. */
enum pc_mem_type {
    PC_MEM_HOST = 0,    /* of the host, by its address */
    PC_MEM_DMABUF = 1,  /* of a GPU, as a dma-buf that the driver exports and the NIC imports */
    PC_MEM_PEERMEM = 2, /* of a GPU, by its address, which nvidia_peermem resolves for the NIC */
    PC_MEM_HMEM = 4,    /* of a GPU, which a provider of libfabric registers as it can (FI_HMEM) */
    PC_MEM_STAGED = 3,  /* of a GPU, which no NIC here reaches: it goes through the host's */
};
#define PC_MEM_WAYS 6u /* a bit for each way to a GPU: 1 << PC_MEM_DMABUF | 1 << PC_MEM_PEERMEM */

/* How writes of a NIC into memory of a GPU become visible to its kernels. */
enum pc_mem_flush {
    PC_FLUSH_NONE = 0,
    PC_FLUSH_DRIVER = 1, /* by a call of CUDA's driver */
    PC_FLUSH_READ = 2,   /* by an RDMA read of that memory, by the NIC that wrote */
};

struct pc_net_state {             /* counters of a communicator's network */
    uint32_t connections;         /* connections that should be up */
    uint32_t live;                /* connections that are up */
    uint32_t sharing;             /* connections that take their receives from a shared queue */
    uint32_t queue_pairs;         /* queue pairs that exist now */
    uint32_t regions;             /* memory regions that exist now */
    uint64_t failures;            /* failed connections */
    uint64_t revivals;            /* failed connections that came up again */
    uint64_t replayed;            /* messages that were sent again */
    uint64_t recovery_ns;         /* the longest time from detecting a failure to the replay */
    uint64_t bytes[PC_MAX_RAILS]; /* sent on each rail */
    uint64_t requests;            /* work requests that were posted to send */
    uint64_t credits;             /* of those, credit that found no message to go with */
    uint32_t gpu_memory;          /* of remote edges' data: a bit for each enum pc_mem_type, or 0 */
    uint32_t gpu_flush;           /* enum pc_mem_flush */
    uint64_t gpu_bytes;           /* sent out of memory of a GPU */
    uint64_t gpu_flushes;         /* of what came into it */
    uint64_t gpu_flushed;         /* messages, or fragments, that waited for one */
    uint64_t landed;              /* messages received where a call needs them, and in no slot */
    char unshared[192];           /* "", or why receives are not shared that should be */
};

#define PC_TRACE_EVENTS 1024 /* calls that a rank's event ring knows */
#define PC_TRACE_LABELS 1024 /* kinds of calls that it knows by name */
#define PC_TRACE_TEXT 112
#define PC_TRACE_ABOUT 1024

/* A call, as the event ring has it; ticks are of pc_trace_clock. */
struct pc_trace_event {
    uint64_t sequence;  /* of the call; 0: none yet, or it is being written */
    uint64_t signature; /* of the call, or PC_REFUSED */
    uint64_t entered;   /* ticks; 0: it was short and never waited: just before it finished */
    uint64_t finished;  /* ticks; 0: it has not */
    uint64_t waited_ns; /* in waits of more than some microseconds */
    uint64_t place;     /* in the user's code, see native/python/place.h; 0: not known */
    uint32_t waits;     /* times that nothing could be done */
    int32_t peer;       /* that the longest wait was for; -1: none */
    uint32_t longest;   /* microseconds of that */
    uint32_t code;      /* that it ended with */
    uint64_t bytes[PC_MAX_RAILS]; /* that the communicator had sent by each rail when it ended */
};

/* What a signature stands for, and how often it was called. */
struct pc_trace_label {
    uint64_t signature;
    uint64_t calls;
    char text[PC_TRACE_TEXT]; /* as Python writes it */
};

/* What a rank's communicator notes of its calls, in its shared memory. */
struct pc_trace {
    uint64_t magic;
    uint64_t waits, waited_ns;  /* of all calls */
    uint64_t unlabelled;        /* calls of no label that is here */
    uint64_t reserved[4];       /* labels and events begin at lines of the cache */
    char about[PC_TRACE_ABOUT]; /* of the communicator, as Python writes it */
    struct pc_trace_label labels[PC_TRACE_LABELS]; /* a hash table */
    struct pc_trace_event events[PC_TRACE_EVENTS]; /* call n's at n mod that many */
};

/* What a connection to a peer has carried, as its network counts it. */
struct pc_link {
    uint64_t sent;    /* bytes that have arrived there */
    uint64_t busy_ns; /* in which some were on their way, and the peer could take them */
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
const char *pc_verbs_missing(void); /* "", or why this host cannot use RDMA, and what mends that */
int pc_verbs_ports(struct pc_port *ports, uint32_t capacity); /* the number of ports */
/* Measures RDMA writes from a port to itself for about `seconds`: bytes per second. */
int pc_verbs_loopback(const struct pc_rail_spec *rail, const struct pc_verbs_options *options,
                      double seconds, struct pc_error *error, double *bandwidth);
/* Registers a page of a GPU's memory with an RDMA device by every way there is, and deregisters it.
 * OK: it was tried, see `out`. */
int pc_verbs_gpu_probe(int device, const char *card, struct pc_error *error,
                       struct pc_gpu_probe *out);

const char *pc_fabric_missing(void); /* "", or what libfabric lacks here, and what mends that */
/* Which provider pc_comm_net would use with these options. */
int pc_fabric_find(const struct pc_fabric_options *options, struct pc_fabric_provider *out,
                   struct pc_error *error);

/* A communicator: this rank's arena and its view of the peers'. */
int pc_comm_open(const struct pc_options *options, struct pc_comm **out);
int pc_comm_address(struct pc_comm *comm, void *blob, size_t capacity); /* returns its length */
/* Maps the peer's arena. AGAIN: call it again; UNMAPPABLE: it cannot be mapped. */
int pc_comm_connect(struct pc_comm *comm, uint32_t peer, const void *blob, size_t nbytes);
/* The same without the peer's help, which does not answer: only ranks that may open each other's
 * memory can. Also after pc_comm_sealed, for a peer of pc_comm_near; one that has closed or died by
 * then is as one that is mapped and silent. One thread at a time. */
int pc_comm_map(struct pc_comm *comm, uint32_t peer, const void *blob, size_t nbytes);
/* In place of pc_comm_connect: pc_comm_map will map the peer before a program or a message needs
 * it. Before pc_comm_sealed. */
int pc_comm_near(struct pc_comm *comm, uint32_t peer);
/* In place of pc_comm_connect, or after it where the peer could not map this rank: makes the peer a
 * remote one. Before pc_comm_sealed. */
int pc_comm_remote(struct pc_comm *comm, uint32_t peer);
/* Before pc_comm_remote: selects the network for remote peers by name, with options of its own; "":
 * the default, TCP. */
int pc_comm_net(struct pc_comm *comm, const char *name, const void *options, size_t nbytes);
/* Selects verbs, with these ports. */
int pc_comm_rails(struct pc_comm *comm, const struct pc_verbs_options *options,
                  const struct pc_rail_spec *rails, uint32_t n);
int pc_comm_accept(
    struct pc_comm *comm); /* serves peers that connect; returns how many it served */
int pc_comm_connect_fd(struct pc_comm *comm); /* a file descriptor, readable when poll has work */
int pc_comm_sealed(struct pc_comm *comm);     /* all peers are connected or near: stop serving */
/* Takes over a connected stream socket to a remote peer that the caller has authenticated; several
 * share the load. The first message to the peer waits for it. connections: how many are up. */
int pc_comm_adopt(struct pc_comm *comm, uint32_t peer, int fd);
int pc_comm_connections(struct pc_comm *comm, uint32_t peer);
/* Why a remote peer was lost, or what was last noted of it; code 0: nothing, or it is no failure.
 */
int pc_comm_peer_fault(struct pc_comm *comm, uint32_t peer, struct pc_error *out);
/* A descriptor that is readable when the network needs pc_comm_handle_events, or -1: for a thread
 * that serves the network while no thread is inside a call. Any thread may. */
int pc_comm_event_fd(struct pc_comm *comm);
int pc_comm_handle_events(struct pc_comm *comm);
int pc_comm_net_state(struct pc_comm *comm, struct pc_net_state *out);
void pc_comm_close(struct pc_comm *comm);
const struct pc_error *pc_comm_error(struct pc_comm *comm);
int pc_comm_abort(struct pc_comm *comm, int cause, int peer, const char *text);
int pc_comm_broken(struct pc_comm *comm); /* 0, or the code that broke it */
/* 0; while a thread is inside a call, 2 if it is the calling one, else 1. */
int pc_comm_entered(struct pc_comm *comm);
/* The op count: calls and messages begun so far; and its value when the present call came in from
 * Python, as module _fastcall notes it. */
uint64_t pc_comm_op_count(struct pc_comm *comm);
uint64_t pc_comm_op_count_before(struct pc_comm *comm);
/* Launches on `comm`'s device communicator count among the calls of `leader`, too, which must
 * outlive them: both are one communicator to the user. */
void pc_comm_follow(struct pc_comm *comm, struct pc_comm *leader);
/* Resets the op count to `op_count`: what began since was no call of the user's. */
void pc_comm_uncount_ops(struct pc_comm *comm, uint64_t op_count);
/* The number of this rank's last call, queued ones included. */
uint64_t pc_comm_calls(struct pc_comm *comm);
int pc_comm_forked(struct pc_comm *comm); /* in a child of fork: detaches from the peers */

/* Memory of the heap, which every mapped peer maps. NULL when the heap is full. */
void *pc_heap_alloc(struct pc_comm *comm, size_t nbytes);
int pc_heap_free(struct pc_comm *comm, void *address);

/* Programs and plans. A plan keeps its programs alive. Rank r of a Program runs at rank
 * (r + root) % size. `destinations`: the most that a REDUCE_COPY may have where it is to run. */
int pc_program_load(struct pc_comm *comm, const void *bytes, size_t nbytes, uint32_t root,
                    uint32_t destinations, struct pc_program **out);
void pc_program_free(struct pc_program *program);
int pc_plan_create(struct pc_comm *comm, const struct pc_plan_spec *spec, struct pc_program *staged,
                   struct pc_program *direct, struct pc_plan **out);
void pc_plan_free(struct pc_plan *plan);

/* A blocking call. AGAIN after a millisecond: then call pc_resume, which waits for at most
 * `seconds`, and soon describe the call in the status. `timeout` is the deadline of the whole call
 * in seconds. */
int pc_run(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out, double timeout);
int pc_resume(struct pc_comm *comm, double seconds);
int pc_comm_stuck(struct pc_comm *comm, struct pc_stuck *out); /* 1 when a call is unfinished */

/* Nonblocking calls, run by the progress thread in the order of submission; pc_run joins the queue.
 * `where` describes the call in the status. wait: AGAIN when `seconds` pass. free: only when
 * finished. */
int pc_submit(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out, double timeout,
              const char *where, struct pc_work **work);
int pc_work_wait(struct pc_work *work, double seconds);
void pc_work_free(struct pc_work *work);

/* Transfers. Those to one peer, and those from one peer, keep their order; there is no other order.
 * A send is finished when its bytes may be overwritten. pc_exchange blocks as pc_run does, with
 * pc_resume; the work of pc_post is waited for as that of pc_submit. */
int pc_exchange(struct pc_comm *comm, const struct pc_p2p_op *messages, uint32_t n, double timeout);
int pc_post(struct pc_comm *comm, const struct pc_p2p_op *messages, uint32_t n, double timeout,
            struct pc_work **work);

/* Any thread: `peer` closed, or died. Transfers with it end once what it had sent was received; if
 * it died, all waiting transfers end, as their peers may wait for it. */
int pc_comm_gone(struct pc_comm *comm, uint32_t peer, int died);

/* Counts a call, or a message to or from a rank, that was refused before it began: its place is
 * kept, so that ranks which did not refuse it find a mismatch. It goes behind queued calls. BUSY
 * inside another call. */
int pc_refuse(struct pc_comm *comm, uint64_t *number);
int pc_refuse_message(struct pc_comm *comm, uint32_t peer, uint32_t direction);

/* A batch of transfers that is one call, in order with those of pc_run and pc_submit. */
int pc_pairwise(struct pc_comm *comm, uint64_t signature, const struct pc_p2p_op *messages,
                uint32_t n, double timeout);
int pc_pairwise_submit(struct pc_comm *comm, uint64_t signature, const struct pc_p2p_op *messages,
                       uint32_t n, double timeout, const char *where, struct pc_work **work);

/* The status of each rank. */
int pc_status_describe(struct pc_comm *comm, const char *text);
int pc_status_read(struct pc_comm *comm, uint32_t peer, struct pc_status *out);
/* That of the rank whose memory is mapped, for reading only; INVALID: no arena of this version. */
int pc_status_of_arena(const void *arena, size_t nbytes, struct pc_status *out);
/* 1 when a mapped peer is in the call of this rank's number and has called another. */
int pc_status_differs(struct pc_comm *comm);
/* The signature of a call of a mapped peer, PC_REFUSED or PC_FORGOTTEN; 0 if the peer has not come
 * to that call, or is not mapped. */
uint64_t pc_status_call(struct pc_comm *comm, uint32_t peer, uint64_t number);

/* The event ring; any thread may read. */
struct pc_trace *pc_comm_trace(struct pc_comm *comm);
/* The same in a mapped arena of so many bytes, which may be another process's; NULL: there is none.
 */
const struct pc_trace *pc_trace_find(const void *arena, size_t nbytes);
/* The events in any order, in `out` of PC_TRACE_EVENTS; returns how many. One that is written
 * meanwhile is left out. */
uint32_t pc_trace_read(const struct pc_trace *trace, struct pc_trace_event *out);
/* The labels in the same way, in `out` of PC_TRACE_LABELS. */
uint32_t pc_trace_labels(const struct pc_trace *trace, struct pc_trace_label *out);
/* Says what a signature stands for, or a communicator is; longer texts are cut off. */
void pc_trace_label(struct pc_trace *trace, uint64_t signature, const char *text);
void pc_trace_about(struct pc_trace *trace, const char *text);
/* Ticks, and CLOCK_MONOTONIC in nanoseconds, at one moment. */
void pc_trace_clock(uint64_t *ticks, uint64_t *ns);
/* The connections to a remote peer, in `out` of PC_MAX_RAILS; returns how many. 0: it is none, or
 * its network does not count so. */
uint32_t pc_comm_links(struct pc_comm *comm, uint32_t peer, struct pc_link *out);

/* Has a signal, which nothing handles yet (else BUSY), raise an eventfd; returns the descriptor,
 * which does not block. forget: it is as before, and the descriptor is closed; in a child of fork,
 * too. */
int pc_signal_watch(int signal);
void pc_signal_forget(int signal);

/* CUDA. The first call of these functions loads libcuda; without it each returns UNMAPPABLE, with
 * the text of pc_cuda_missing. A device is its ordinal. Each function works in the device's primary
 * context, as cupy and torch do, and restores the context that was current. An address is a device
 * address; a stream, event, module or function is the driver's handle (stream 0: the default one).
 * `error` is written on failure: NOMEM, AGAIN (not ready yet), INVALID (an argument, a handle),
 * else SYSTEM, where errnum is CUDA's number. Any thread. */
#define PC_CUDA_HANDLE 64 /* bytes of an IPC handle */

enum pc_cuda_kind { PC_CUDA_UNKNOWN = 0, PC_CUDA_HOST = 1, PC_CUDA_DEVICE = 2 };
enum pc_cuda_capture { PC_CUDA_NO_CAPTURE = 0, PC_CUDA_CAPTURING = 1, PC_CUDA_INVALIDATED = 2 };
enum pc_cuda_mode { PC_CUDA_GLOBAL = 0, PC_CUDA_THREAD_LOCAL = 1, PC_CUDA_RELAXED = 2 };
enum pc_cuda_grid_flag {
    PC_CUDA_COOPERATIVE = 1, /* all blocks are resident at once, or an error */
    PC_CUDA_REMOTE = 2,      /* in the memory synchronisation domain of communication */
    PC_CUDA_PRIORITY = 4,    /* a priority of its own, not the stream's */
};

struct pc_cuda_device {
    char name[256];
    char bus[16]; /* such as 0000:3b:00.0 */
    unsigned char uuid[16];
    uint64_t nbytes;
    int32_t major, minor; /* compute capability */
    int32_t driver;       /* 12040: CUDA 12.4 */
    int32_t multiprocessors;
    int32_t warp;
    int32_t threads_per_block; /* at most, as the next */
    int32_t threads_per_multiprocessor;
    int32_t blocks_per_multiprocessor;
    int32_t registers_per_block;
    int32_t registers_per_multiprocessor;
    int32_t shared_per_block; /* bytes, as the next; more wants pc_cuda_function_dynamic */
    int32_t shared_per_block_optin;
    int32_t shared_per_multiprocessor;
    int32_t shared_reserved_per_block;
    int32_t cooperative;       /* 1: supports cooperative launches */
    int32_t sync_domains;      /* 1 before compute capability 9.0 */
    int32_t host_register;     /* 1: host memory can be registered */
    int32_t same_host_pointer; /* 1: registered memory has the same address on the device */
    int32_t rdma;              /* 1: GPUDirect RDMA */
};

struct pc_cuda_pointer { /* what the driver knows of an address */
    uint64_t base;       /* of its allocation, or 0 */
    uint64_t nbytes;
    uint64_t id;     /* of the allocation, unique */
    int32_t kind;    /* enum pc_cuda_kind */
    int32_t device;  /* or -1 */
    int32_t managed; /* 1: moves between host and device */
    int32_t ipc;     /* 1: pc_cuda_ipc_get can */
};

struct pc_cuda_function {
    int32_t threads; /* of a block, at most */
    int32_t registers;
    int32_t local;   /* bytes of stack and spills per thread */
    int32_t shared;  /* bytes, static */
    int32_t dynamic; /* bytes, the present maximum */
};

struct pc_cuda_grid { /* a launch */
    uintptr_t function;
    uintptr_t stream;
    uint32_t blocks[3];
    uint32_t threads[3];
    uint32_t shared; /* bytes, dynamic */
    uint32_t flags;  /* enum pc_cuda_grid_flag */
    int32_t priority;
    uint32_t reserved;
};

const char *pc_cuda_missing(void); /* "", or what is missing and what mends that; valid for ever */
int pc_cuda_devices(void);
int pc_cuda_device(int device, struct pc_error *error, struct pc_cuda_device *out);
/* Enables peer access of `device` to `peer`; OK if it is enabled already, UNMAPPABLE if never. */
int pc_cuda_peer(int device, int peer, struct pc_error *error);
/* Sets this thread's capture mode, for calls that captures forbid, such as pc_cuda_alloc: a private
 * thread should be RELAXED. */
int pc_cuda_thread_mode(int device, uint32_t mode, struct pc_error *error);
/* Makes a GPU's primary context this thread's current one, and the one before it again. */
int pc_cuda_push(int device, struct pc_error *error);
void pc_cuda_pop(void);

/* UNKNOWN is no error. */
int pc_cuda_pointer(uint64_t address, struct pc_error *error, struct pc_cuda_pointer *out);
int pc_cuda_alloc(int device, size_t nbytes, struct pc_error *error, uint64_t *address);
int pc_cuda_free(int device, uint64_t address, struct pc_error *error);
/* Pinned host memory, zeroed, with its address on the device. */
int pc_cuda_host_alloc(int device, size_t nbytes, struct pc_error *error, void **host,
                       uint64_t *address);
int pc_cuda_host_free(int device, void *host, struct pc_error *error);
/* The same for existing memory: whole pages, which must stay until they are unregistered. */
int pc_cuda_host_register(int device, void *host, size_t nbytes, struct pc_error *error,
                          uint64_t *address);
int pc_cuda_host_unregister(int device, void *host, struct pc_error *error);
/* In stream order; host memory must be pinned. */
int pc_cuda_copy(int device, uint64_t to, uint64_t from, size_t nbytes, uintptr_t stream,
                 struct pc_error *error);
int pc_cuda_fill(int device, uint64_t to, unsigned char byte, size_t nbytes, uintptr_t stream,
                 struct pc_error *error);

/* Handle and address are of the whole allocation (its base is in pc_cuda_pointer). A process must
 * not open its own allocations, nor one twice, and must close it before its owner frees it. */
int pc_cuda_ipc_get(int device, uint64_t address, struct pc_error *error, void *handle);
int pc_cuda_ipc_open(int device, const void *handle, struct pc_error *error, uint64_t *address);
int pc_cuda_ipc_close(int device, uint64_t address, struct pc_error *error);

int pc_cuda_priorities(int device, struct pc_error *error, int *least, int *greatest);
/* It does not wait for the default stream. */
int pc_cuda_stream(int device, int priority, struct pc_error *error, uintptr_t *stream);
int pc_cuda_stream_free(int device, uintptr_t stream, struct pc_error *error);
int pc_cuda_stream_query(int device, uintptr_t stream, struct pc_error *error);
int pc_cuda_stream_wait(int device, uintptr_t stream, struct pc_error *error); /* the host waits */
int pc_cuda_stream_after(int device, uintptr_t stream, uintptr_t event, struct pc_error *error);
/* enum pc_cuda_capture, or a code; id: of the capture, unique. */
int pc_cuda_capturing(int device, uintptr_t stream, struct pc_error *error, uint64_t *id);
/* Counts `*users` up now, and down when the graph that the stream is being captured into, and all
 * made of it, are destroyed. */
int pc_cuda_capture_pin(int device, uintptr_t stream, uint32_t *users, struct pc_error *error);

int pc_cuda_event(int device, uint32_t timing, struct pc_error *error, uintptr_t *event);
int pc_cuda_event_free(int device, uintptr_t event, struct pc_error *error);
int pc_cuda_event_record(int device, uintptr_t event, uintptr_t stream, struct pc_error *error);
int pc_cuda_event_query(int device, uintptr_t event, struct pc_error *error);
int pc_cuda_event_wait(int device, uintptr_t event, struct pc_error *error); /* the host waits */
int pc_cuda_event_seconds(int device, uintptr_t start, uintptr_t end, struct pc_error *error,
                          double *seconds);

/* A cubin, fatbin, or zero-terminated PTX. */
int pc_cuda_module(int device, const void *image, struct pc_error *error, uintptr_t *module);
int pc_cuda_module_free(int device, uintptr_t module, struct pc_error *error);
/* Loads the function now, and not at its first launch, which would wait for running kernels. */
int pc_cuda_function(int device, uintptr_t module, const char *name, struct pc_error *error,
                     uintptr_t *function);
int pc_cuda_function_read(int device, uintptr_t function, struct pc_error *error,
                          struct pc_cuda_function *out);
int pc_cuda_function_dynamic(int device, uintptr_t function, uint32_t nbytes,
                             struct pc_error *error);
/* Asks for so much of an SM's L1 cache as shared memory where the function runs. */
int pc_cuda_function_carveout(int device, uintptr_t function, uint32_t percent,
                              struct pc_error *error);
/* Blocks of so many threads and bytes of dynamic shared memory that fit a multiprocessor. */
int pc_cuda_occupancy(int device, uintptr_t function, uint32_t threads, size_t dynamic,
                      struct pc_error *error, int *blocks);
/* The most dynamic shared memory with which so many blocks still fit. */
int pc_cuda_room(int device, uintptr_t function, uint32_t blocks, uint32_t threads,
                 struct pc_error *error, size_t *dynamic);
/* arguments: the address of each, read before this returns. */
int pc_cuda_launch(int device, const struct pc_cuda_grid *grid, void **arguments,
                   struct pc_error *error);

/* OK: the switch that the GPU hangs on has multicast objects, and the driver lets processes share
 * memory for them. UNMAPPABLE: the text says what is missing. */
int pc_cuda_multicast(int device, struct pc_error *error);

struct pc_cuda_sms { /* the multiprocessors of a GPU, and how they can be parted */
    uint32_t count;
    uint32_t least; /* of a part */
    uint32_t unit;  /* a part has a multiple of it */
};
struct pc_cuda_part {  /* a part of them */
    uintptr_t context; /* a green context */
    uintptr_t stream;  /* its kernels run on the part alone; it does not wait for the default one */
    uint32_t sms;
    uint32_t reserved;
};
/* UNMAPPABLE: the driver has no green contexts, or the GPU none; the text says which. */
int pc_cuda_sms(int device, struct pc_error *error, struct pc_cuda_sms *out);
/* Parts a GPU's multiprocessors in two: `own` has `sms`, and a stream of that priority; `rest` all
 * others, and a stream of the default one. INVALID: they cannot be parted so. The driver may wait
 * for kernels that run, as may the next. */
int pc_cuda_partition(int device, uint32_t sms, int priority, struct pc_error *error,
                      struct pc_cuda_part *own, struct pc_cuda_part *rest);
/* Once nothing runs on either stream, which are freed too. */
int pc_cuda_partition_free(int device, const struct pc_cuda_part *own,
                           const struct pc_cuda_part *rest, struct pc_error *error);

/* OK: streams write words and wait for them by themselves. UNMAPPABLE: the text says why not. */
int pc_cuda_memops(int device, struct pc_error *error);
/* In stream order: stores a word of the device's or of mapped host memory, behind all that the
 * stream has written; waits until one is at least `value` (as a signed difference). Such a wait
 * ends by nothing else: who gives up stores the word. */
int pc_cuda_stream_write64(int device, uintptr_t stream, uint64_t address, uint64_t value,
                           struct pc_error *error);
int pc_cuda_stream_wait64(int device, uintptr_t stream, uint64_t address, uint64_t value,
                          struct pc_error *error);

/* The device communicator: calls whose arrays lie in GPU memory. It belongs to a communicator that
 * makes no calls on the CPU, as the kernels use the counts of its edges. Ranks of one host reach
 * each other's GPU memory where they can; else messages pass through the communicator's host
 * arenas, and those to remote peers through the proxy, which hands them to the network. `locals`:
 * the ranks of this host, this one included, ascending and equal on all of them. The text of a
 * failure is in pc_comm_error. Except for abort, one thread at a time. */
struct pc_device_comm;
struct pc_device_plan;

struct pc_device_comm_options {
    int32_t device;
    uint32_t nlocals;
    const uint32_t *locals;
    uint64_t heap_bytes; /* for pc_device_comm_alloc; equal on all locals; 0: none */
    /* 1: the heap is memory that a multicast object can be bound to, outside the arena; only where
     * pc_cuda_multicast is OK on all locals, and equal on them. */
    uint32_t multicast;
    uint32_t reserved;
};

struct pc_device_plan_options {
    uintptr_t function; /* the kernel, of the plan's dtype and op */
    uint32_t threads;   /* of a block */
    uint32_t blocks;    /* at most; 0: as many as there can be. Equal on all ranks */
    uint32_t channels;  /* of the rank that has most; 0: all have as many as this one */
    int32_t packets;    /* LL. 0: never; 1, -1: wherever all ranks can */
};

struct pc_device_plan_shape { /* the choices made for a plan */
    uint32_t blocks;
    uint32_t instances; /* of each channel of the staged form */
    uint32_t packets;   /* 1: by LL */
    uint32_t direct;    /* instances of the direct form; 0: it has none */
    uint32_t threads;   /* of a block */
    uint32_t reserved;
};

struct pc_device_comm_state {
    uint64_t launched; /* by pc_device_comm_launch and prepare, captured ones excluded */
    uint64_t captured;
    uint64_t handed_over; /* messages and credits that the proxy handed to the network */
    uint32_t pinned;      /* plans that a graph may still launch */
    uint32_t direct;      /* peers whose GPU memory this rank reaches, with the next two */
    uint32_t staged;      /* mapped peers reached only through host memory */
    uint32_t remote;
    uint32_t max_blocks; /* of a kernel */
    uint32_t calling;    /* 1: a call may be unfinished; transfers of two ranks are none */
};

/* Opening, on all ranks: open, exchange addresses, connect to each peer that has one; agree on
 * which pairs reach each other both ways; seal. */
int pc_device_comm_open(struct pc_comm *comm, const struct pc_device_comm_options *options,
                        struct pc_device_comm **out);
int pc_device_comm_address(struct pc_device_comm *dc, void *blob, size_t capacity); /* its length */
/* OK: this rank reaches the peer's GPU memory. UNMAPPABLE: it does not; the text says why. INVALID:
 * the blob is no address. */
int pc_device_comm_connect(struct pc_device_comm *dc, uint32_t peer, const void *blob,
                           size_t nbytes);
/* Multicast, of a device communicator opened for that, whose locals are all ranks, each with a GPU
 * of its own. All ranks take each step, and none the next one before all have said OK; after a
 * failure all close. Descriptors are the caller's to close, and to carry between processes. */
/* On one rank: makes the object, which the others open by fd. */
int pc_device_comm_multicast_create(struct pc_device_comm *dc, int32_t *fd);
/* This rank's heap, by fd. */
int pc_device_comm_multicast_export(struct pc_device_comm *dc, int32_t *fd);
/* Opens the object (fd: -1 on the rank that made it), and adds this rank's GPU to it. */
int pc_device_comm_multicast_join(struct pc_device_comm *dc, int32_t fd);
/* Opens a peer's heap. */
int pc_device_comm_multicast_reach(struct pc_device_comm *dc, uint32_t peer, int32_t fd);
/* Binds this rank's heap to the object. */
int pc_device_comm_multicast_bind(struct pc_device_comm *dc);
/* Gives the object an address. `rounds`: sums of floats may be folded by the switch. */
int pc_device_comm_multicast_map(struct pc_device_comm *dc, uint32_t rounds);
/* GPUDirect RDMA: has the data of all remote edges lie in memory of the GPU, by the first of `ways`
 * (of PC_MEM_WAYS) that goes. Before any remote rank is connected. UNMAPPABLE: no NIC reaches it,
 * and messages are staged in memory of the host. */
int pc_device_comm_gpudirect(struct pc_device_comm *dc, uint32_t ways);
/* After that: UNMAPPABLE, and why, if messages to and from this rank alone are staged; or OK. */
int pc_device_comm_staged(struct pc_device_comm *dc, uint32_t rank);
/* reached[peer]: both ranks of that pair reach each other. `whole`: so do all pairs, as all ranks
 * agree; only then do plans get instances, LL and direct forms. `registers`: also for arrays of the
 * user, whose allocations peers open; only where `whole`, on all ranks or on none, and not where
 * ranks share a process which others do not. */
int pc_device_comm_seal(struct pc_device_comm *dc, const uint8_t *reached, uint32_t whole,
                        uint32_t registers);
/* Closing: all ranks detach, which waits for at most `seconds` for launches, then aborts them; when
 * all have, each closes. So a peer's memory is freed only when nobody has it open. */
void pc_device_comm_detach(struct pc_device_comm *dc, double seconds);
void pc_device_comm_close(struct pc_device_comm *dc); /* before pc_comm_close */

/* Memory of the heap, for all ranks that reach this one's; 0 when the heap is full. */
uint64_t pc_device_comm_alloc(struct pc_device_comm *dc, size_t nbytes);
int pc_device_comm_free(struct pc_device_comm *dc, uint64_t address);

/* The device communicator owns the plan, also if this fails. free: it lives on while a launch or a
 * graph uses it. */
int pc_device_plan_create(struct pc_device_comm *dc, struct pc_plan *plan,
                          const struct pc_device_plan_options *options,
                          struct pc_device_plan **out);
void pc_device_plan_free(struct pc_device_plan *plan);
void pc_device_plan_shape(const struct pc_device_plan *plan, struct pc_device_plan_shape *out);

/* What a launch says besides OK: bits. */
enum pc_launched {
    PC_LAUNCHED_LACK = 1,      /* pc_device_comm_registration has another `lack` */
    PC_LAUNCHED_REGISTERED = 2 /* allocations may be open, which pc_device_comm_tidy looks after */
};
/* Enqueues a call on `stream`, after all earlier calls of this device communicator; waits for
 * nothing, but where peers' allocations are to be opened or closed for what the driver then waits
 * for. `timeout`: its deadline in seconds from its start. If the stream is being captured, the
 * graph keeps the plan. Returns a code, or bits of pc_launched. */
int pc_device_comm_launch(struct pc_device_comm *dc, struct pc_device_plan *plan, uint64_t in,
                          uint64_t out, uintptr_t stream, double timeout);
struct pc_device_time { /* CLOCK_MONOTONIC in nanoseconds */
    uint64_t sequence;  /* of the call */
    uint64_t began_ns;  /* its kernel, or what of the stream was before it had ended */
    uint64_t ended_ns;  /* 0: it has not */
};

/* From now on notes when the kernels of calls run, of the last some hundred, for two more events a
 * launch. Not those of graphs. */
int pc_device_comm_time(struct pc_device_comm *dc);
/* When they ran, in any order; returns how many. Not while another thread launches. */
uint32_t pc_device_comm_times(struct pc_device_comm *dc, struct pc_device_time *out,
                              uint32_t capacity);
/* For what else belongs to a call, such as copies: ends 0: has what is enqueued on `stream` next
 * come behind all calls so far; ends 1: has later calls come behind what was enqueued on it. */
int pc_device_comm_order(struct pc_device_comm *dc, uintptr_t stream, uint32_t ends);
/* As pc_device_comm_launch, but the caller launches: writes the kernel's parameter and returns its
 * length. */
int pc_device_comm_prepare(struct pc_device_comm *dc, struct pc_device_plan *plan, uint64_t in,
                           uint64_t out, double timeout, void *argument, size_t capacity);
/* Transfers, as of pc_exchange, on arrays in GPU memory, none with this rank itself. With `call`
 * they are one call, as of pc_pairwise, and at most one of each direction with each peer. */
struct pc_device_transfers {
    uint64_t call;      /* its signature, equal on all ranks; 0: messages between two ranks */
    uintptr_t function; /* the transfer kernel */
    uint32_t threads;   /* of a block */
    uint32_t blocks;    /* at most; equal on all ranks */
};
#define PC_DEVICE_TRANSFERS 120 /* at most, where they are no call */
/* Enqueues them as pc_device_comm_launch does; those of a call may be several kernels. */
int pc_device_comm_transfer(struct pc_device_comm *dc, const struct pc_device_transfers *what,
                            const struct pc_p2p_op *ops, uint32_t n, uintptr_t stream,
                            double timeout);
/* As pc_refuse_message: later transfers of this direction with the peer mismatch, unless it has
 * refused as many. */
int pc_device_comm_refuse_message(struct pc_device_comm *dc, uint32_t peer, uint32_t direction);
/* Any thread: `peer` closed, or died. Transfers with it end once what it had sent was received. */
int pc_device_comm_gone(struct pc_device_comm *dc, uint32_t peer);
/* pc_refuse for a device communicator: later launches, those of graphs too, mismatch those of ranks
 * that refused nothing. One thread at a time, as with launches. */
int pc_device_comm_refuse(struct pc_device_comm *dc, uint64_t *number);
/* OK, or the code of a failed call, or of what broke the communicator; does not call the driver. */
int pc_device_comm_check(struct pc_device_comm *dc);
/* OK: nothing that was launched runs, and no graph can launch any; AGAIN, or the driver's error.
 * Any thread, while no other can launch or make a plan. */
int pc_device_comm_quiet(struct pc_device_comm *dc);
/* Waits for all launches: OK, AGAIN when `seconds` pass, or as check. */
int pc_device_comm_wait(struct pc_device_comm *dc, double seconds);
/* Where the call that failed on the device waited: 1, or 0 when none failed. */
int pc_device_comm_stuck(struct pc_device_comm *dc, struct pc_stuck *out);
void pc_device_comm_state(struct pc_device_comm *dc, struct pc_device_comm_state *out);

/* The registration of users' allocations. One thread at a time, as with launches. */
struct pc_registration_state {
    uint32_t on;
    uint32_t reached; /* allocations of this rank that all peers have opened */
    uint32_t waiting; /* that they are told to open, or that are to be closed */
    uint32_t refused; /* that they do not open; `lack` says why of the last one */
    uint32_t opened;  /* allocations of peers that this rank has opened */
    uint32_t reserved;
    uint64_t questions; /* to the driver, about arrays */
    uint64_t direct;    /* launches that ran in the direct form, on whatever arrays; if asked for */
    char lack[240];
};
int pc_device_comm_registration(struct pc_device_comm *dc, uint32_t direct,
                                struct pc_registration_state *out);
/* While no calls are made: has what users have freed closed, here and by the peers. 1: more may
 * come, 0, or a code. Any thread, while no other can launch and pc_device_comm_quiet says OK. */
int pc_device_comm_tidy(struct pc_device_comm *dc);

/* For tests of the kernels. */
int pc_fold_test(uint32_t dtype, uint32_t op, void **dst, uint32_t ndst, const void **src,
                 uint32_t nsrc, size_t count, uint32_t divisor, uint32_t stream);
#endif
