/* The device communicator: its structures, internal to gpu/. device_comm.c opens and closes it,
 * ipc.c opens the peers' GPU memory, registration.c that of their users, multicast.c heaps that a
 * switch folds, gpudirect.c memory that NICs reach, host_register.c registers the host memory that
 * kernels touch, pool.c is the memory pool for plans, fifo.c makes the FIFOs, device_plan.c the
 * plans, launch.c launches them, transfer.c moves what no plan does, and proxy.c is the proxy. */
#ifndef PC_DEVICE_COMM_H
#define PC_DEVICE_COMM_H
#include "gpu/device_layout.h"
#include "gpu/device_image.h"
#include "gpu/proxy_fifo.h"
#include "gpu/registration.h"
#include "gpu/transfer.h"
#include "core/internal.h"

enum pc_device_route {
    PC_ROUTE_NONE, /* not agreed on yet */
    PC_ROUTE_SELF,
    PC_ROUTE_P2P, /* peer access to GPU memory */
    PC_ROUTE_SHM, /* the host arenas, which both ranks map */
    PC_ROUTE_NET, /* the host shadows, and the proxy */
};

/* What this rank knows of a peer. */
struct pc_device_peer {
    uint8_t route;  /* enum pc_device_route */
    bool mapped;    /* `arena` is another process's memory, opened here */
    uint32_t local; /* its number among the ranks of this host, or UINT32_MAX */
    uint64_t arena; /* device address; 0: not reached */
    uint64_t base;  /* the allocation's base, where `mapped` */
    uint64_t heap;  /* device address of its heap, where that is not in the arena */
};

struct pc_multicast { /* of a heap outside the arena; zeros otherwise */
    size_t unit;      /* of all lengths and addresses */
    size_t nbytes;    /* of each rank's heap, in whole units */
    uint64_t memory;  /* handle of this rank's heap */
    uint64_t object;  /* handle of what all heaps are bound to */
    uint64_t at;      /* its device address; 0: no multicast */
    bool bound;
    bool rounds; /* sums of floats may be folded by the switch */
};

struct pc_host_range { /* host memory registered with the device */
    char *host;
    size_t nbytes;
    uint64_t device;
};

enum pc_device_plan_state {
    PC_DEVICE_PLAN_HELD,     /* in use by its owner */
    PC_DEVICE_PLAN_DROPPED,  /* freed when no launch and no graph uses it */
    PC_DEVICE_PLAN_ORPHANED, /* the device communicator was closed before the plan */
};

struct pc_device_plan {
    struct pc_device_comm *dc;
    struct pc_plan *plan;
    uint32_t number;
    uintptr_t function;
    struct pc_device_plan_shape shape;
    uint64_t image;             /* on the device */
    struct pc_kernel_args args; /* but for what differs from call to call */
    bool registers;    /* it has a direct form, and is long enough to look for its arrays */
    uint32_t *graphs;  /* graphs that may launch it; the driver counts down, even after close */
    _Atomic int state; /* enum pc_device_plan_state; the later of two threads frees it */
};

struct pc_pool {
    uint64_t at;
    struct pc_heap heap;
};

struct pc_device_comm {
    struct pc_device_comm *next; /* in the list of this process */
    struct pc_comm *comm;
    int device;
    int pid;                /* that opened it: a child of fork owns nothing on the device */
    struct pc_error *error; /* the communicator's, for calls */

    /* Memory on the device. */
    struct pc_device_layout layout;
    struct pc_device_header header; /* a copy of the arena's header */
    uint64_t arena;                 /* device address; peers open it */
    uint64_t edges_memory;          /* FIFOs, tokens and block states, private */
    struct pc_device_fifos edges;
    struct pc_heap heap; /* allocates offsets from heap_at */
    uint64_t heap_at;    /* device address: in the arena, or by multicast.c */
    struct pc_multicast multicast;
    struct pc_registration registration;
    pthread_mutex_t heap_lock;
    struct pc_pool *pools; /* memory for plans */
    uint32_t npools;
    struct pc_device_peer *peers;
    uint32_t *locals;
    uint32_t nlocals, local;
    bool whole, sealed, detached;
    bool hung; /* a kernel did not end after an abort */

    /* Memory of the host. */
    struct pc_host_control *control;
    uint64_t watch_device;
    char *staging;               /* pinned, for uploads */
    struct pc_host_range *spans; /* sorted by address */
    uint32_t nspans;

    /* Launches. */
    uintptr_t stream;             /* for uploads only */
    struct pc_timeline *timeline; /* or NULL: nobody asks when calls ran */
    uintptr_t order;              /* the event after the last launch */
    uintptr_t captured_order;     /* the same within one capture */
    uint64_t capture;             /* the id of that capture */
    uintptr_t last_stream;        /* of the last launch */
    uintptr_t captured_stream;
    bool ordered;                       /* `order` was recorded */
    uint32_t sync_domains, max_threads; /* of the device */
    uint64_t launches;                  /* so far, of calls */
    uint64_t captures;
    _Atomic uint64_t launched[PC_MAX_BLOCKS]; /* of kernels with block b, calls or not */
    _Atomic uint64_t called[PC_MAX_BLOCKS];   /* that number as of the last that was of a call */
    _Atomic uint32_t capturing;               /* a graph may launch a plan at any time */

    /* Transfers: memory of the host, and how many graphs may launch some (as of a plan). */
    struct pc_host_peer *host_peers; /* [peer]; NULL: the communicator is not sealed yet */
    uint64_t host_peers_device;
    uint32_t *transfer_graphs;

    struct pc_device_plan *
        *plans; /* by number; an entry is written before the plan's first launch */
    uint32_t nplans;
    pthread_mutex_t plans_lock; /* of who frees a plan, and who looks at those of other threads */
    bool proxied;               /* some peer is remote */

    /* Failures: only the first one is reported. */
    _Atomic int failing; /* a thread has begun to report */
    struct pc_error failure;

    /* The proxy. */
    pthread_t thread;
    bool threaded;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    _Atomic int parked, stopping;
    _Atomic uint64_t handed_over;
    struct pc_call call;          /* the CPU interpreter's call, with only what a message needs */
    uint64_t tail[PC_MAX_BLOCKS]; /* entries consumed by the proxy */
    uint64_t fault_since;         /* ns: when a remote peer was first seen lost; 0: none is */
};

/* device_comm.c */
/* Copies from host memory to the device and waits for the copy. */
int pc__device_comm_upload(struct pc_device_comm *dc, uint64_t to, const void *from, size_t nbytes);
int pc__device_comm_download(struct pc_device_comm *dc, void *to, uint64_t from, size_t nbytes);
/* Ends all spins of kernels, and fails every later call with `error`. */
void pc__device_comm_fail(struct pc_device_comm *dc, int code, const struct pc_error *error);

/* ipc.c */
int pc__ipc_open(struct pc_device_comm *dc);
void pc__ipc_drop(struct pc_device_comm *dc, uint32_t peer);
void pc__ipc_close(struct pc_device_comm *dc);
/* Opens an allocation of another process by its handle and unique number, or counts one more user
 * of it; close: with the address that this gave. */
int pc__ipc_open_memory(int device, const unsigned char *handle, uint64_t id,
                        struct pc_error *error, uint64_t *base);
void pc__ipc_close_memory(int device, uint64_t base);

/* registration.c */
/* Called when the edges are there, on all ranks or on none. */
int pc__registration_open(struct pc_device_comm *dc);
/* Before each launch: does what peers say, and has the kernel's argument (NULL as `p` is: it is no
 * plan's) name the allocations of its arrays. */
int pc__registration_launch(struct pc_device_comm *dc, const struct pc_device_plan *p, uint64_t in,
                            uint64_t out, bool captured, struct pc_kernel_args *args);
/* No kernel of this rank runs: lets go of other ranks' allocations. */
void pc__registration_leave(struct pc_device_comm *dc);
void pc__registration_drop(struct pc_device_comm *dc);

/* multicast.c */
/* Makes a heap that a multicast object can be bound to; heap_at is its address. */
int pc__multicast_heap(struct pc_device_comm *dc);
/* No kernel of this rank runs: lets go of other ranks' heaps, and of the multicast address. */
void pc__multicast_leave(struct pc_device_comm *dc);
/* All ranks have left. */
void pc__multicast_close(struct pc_device_comm *dc);

/* gpudirect.c */
/* The device address of the data of a remote edge, or 0: it lies in memory of the host. */
uint64_t pc__gpudirect_data(const struct pc_device_comm *dc, uint32_t peer, uint32_t channel,
                            bool in);
/* A kernel hangs, and may still write there. */
void pc__gpudirect_keep(struct pc_device_comm *dc);

/* host_register.c: called when the routes to all peers are known. */
int pc__host_register_open(struct pc_device_comm *dc);
void pc__host_register_close(struct pc_device_comm *dc);
/* The device address of memory in a host arena or shadow; 0: it is not registered. */
uint64_t pc__host_register_address(const struct pc_device_comm *dc, const void *at);

/* pool.c: the memory pool for plans. The driver's allocation may, and its free does, wait for all
 * kernels of this process, which may wait for one that is not launched yet: so nothing is freed
 * before the device communicator closes, and little is allocated. */
int pc__pool_open(struct pc_device_comm *dc);
void pc__pool_close(struct pc_device_comm *dc);
int pc__pool_take(struct pc_device_comm *dc, size_t nbytes, uint64_t *address);
void pc__pool_give(struct pc_device_comm *dc, uint64_t address);

/* fifo.c: called when the routes to all peers are known. */
int pc__device_fifos_make(struct pc_device_comm *dc);

/* launch.c */
struct pc_launch {
    uintptr_t function;
    uint32_t blocks, threads;
    void *argument;     /* the kernel's only one */
    uint32_t *in_graph; /* in the argument: set to 1 where a graph launches it */
    uint32_t *graphs;   /* counted up where a graph does; see pc_cuda_capture_pin */
    bool call;          /* it is of a call, which has a number, as on all other ranks */
    bool begins;        /* it is the first kernel of one */
    uint64_t signature; /* of the call */
    /* Of a plan's, whose argument is a pc_kernel_args: the plan, and its arrays. */
    const struct pc_device_plan *plan;
    uint64_t in, out;
};
/* Enqueues a kernel behind all launches so far, or captures it. */
int pc__launch(struct pc_device_comm *dc, const struct pc_launch *l, uintptr_t stream);
/* OK, or why nothing can be launched any more, or yet. */
int pc__launchable(struct pc_device_comm *dc);
/* Launches that a block has finished, those of graphs included. */
uint64_t pc__launches_finished(const struct pc_device_comm *dc, uint32_t block);
/* Whether every block has finished all launches that are known, those of graphs included. */
bool pc__launches_ended(const struct pc_device_comm *dc);
/* OK when all launches have ended, AGAIN, or the driver's error. The driver may be called here. */
int pc__launches_over(const struct pc_device_comm *dc, struct pc_error *error);
/* The same, and that the last one's kernel has gone: a block says that it ends before its stores
 * have arrived. For who frees what they go to. It knows nothing of what a graph has launched, or
 * who calls pc_device_comm_prepare: these wait themselves. */
int pc__launches_retired(const struct pc_device_comm *dc, struct pc_error *error);

/* Whether a launch of a call may be unfinished, those of graphs included. */
bool pc__calls_run(const struct pc_device_comm *dc);

/* transfer.c */
int pc__transfers_open(struct pc_device_comm *dc);
void pc__transfers_close(struct pc_device_comm *dc);
uint32_t pc__transfers_graphs(const struct pc_device_comm *dc);
/* A peer is gone, and all that it sent has come: transfers with it end. Any thread. */
void pc__transfers_gone(struct pc_device_comm *dc, uint32_t peer);
/* The text of what a kernel left when it gave up on a transfer; returns the code. */
int pc__transfers_report(const struct pc_device_error *left, struct pc_error *error);
/* Hands a transfer's message, or its credit, to the network. */
int pc__transfers_hand_over(struct pc_device_comm *dc, struct pc_proxy_entry entry,
                            struct pc_error *error);

/* device_plan.c */
void pc__device_plans_drop(struct pc_device_comm *dc);
/* Once the last graph is destroyed, adds the launches that it made to the counts. */
void pc__graphs_forget(struct pc_device_comm *dc);

/* proxy.c */
int pc__proxy_start(struct pc_device_comm *dc);
void pc__proxy_stop(struct pc_device_comm *dc);
/* Unparks the proxy: a launch was made, or will be. */
void pc__proxy_wake(struct pc_device_comm *dc);
/* Whether all launches have ended, and all that they pushed has left by the network. */
bool pc__proxy_settled(struct pc_device_comm *dc);
#endif
