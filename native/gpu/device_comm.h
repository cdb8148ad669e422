/* The GPU's device communicator of a communicator, from inside. device_comm.c opens and closes it,
 * ipc.c is how it comes to its peers' memory, host_register.c the memory of the host that its
 * kernels touch, pool.c memory for plans, fifo.c, device_plan.c and launch.c what their names say,
 * proxy.c the thread that carries to remote peers. */
#ifndef PC_DEVICE_COMM_H
#define PC_DEVICE_COMM_H
#include "gpu/device_layout.h"
#include "gpu/device_image.h"
#include "core/internal.h"

enum pc_device_route {
    PC_ROUTE_NONE, /* not agreed on yet */
    PC_ROUTE_SELF,
    PC_ROUTE_P2P, /* GPU memory */
    PC_ROUTE_SHM, /* the host's arenas, which both map */
    PC_ROUTE_NET, /* the host's shadows, and the proxy */
};

/* What this rank has of a peer. */
struct pc_device_peer {
    uint8_t route;  /* enum pc_device_route */
    bool mapped;    /* `arena` is another process's memory, opened here */
    uint32_t local; /* among the ranks of this host, or UINT32_MAX */
    uint64_t arena; /* on the device; 0: not reached */
    uint64_t base;  /* of its allocation, where `mapped` */
};

struct pc_host_range { /* host memory that the device sees */
    char *host;
    size_t nbytes;
    uint64_t device;
};

enum pc_device_plan_state {
    PC_DEVICE_PLAN_HELD,     /* by its owner */
    PC_DEVICE_PLAN_DROPPED,  /* freed when nothing uses it any more */
    PC_DEVICE_PLAN_ORPHANED, /* the device communicator has gone before its owner */
};

struct pc_device_plan {
    struct pc_device_comm *dc;
    struct pc_plan *plan;
    uint32_t number;
    uintptr_t function;
    struct pc_device_plan_shape shape;
    uint64_t image;    /* on the device */
    uint32_t *graphs;  /* that may launch it; counted down by the driver, so it outlives the device
                          communicator */
    _Atomic int state; /* enum pc_device_plan_state; of two threads, the later one frees it */
};

struct pc_pool {
    uint64_t at;
    struct pc_heap heap;
};

struct pc_device_comm {
    struct pc_device_comm *next; /* of this process's */
    struct pc_comm *comm;
    int device;
    int pid;                /* of who opened it: a fork's child owns nothing on the device */
    struct pc_error *error; /* of calls: the communicator's */

    /* Memory on the device. */
    struct pc_device_layout layout;
    struct pc_device_header header; /* as it stands in the arena */
    uint64_t arena;                 /* what peers open */
    uint64_t edges_memory;          /* FIFOs, tokens and block states: nobody else's */
    struct pc_device_fifos edges;
    struct pc_heap heap; /* offsets from layout.heap */
    pthread_mutex_t heap_lock;
    struct pc_pool *pools; /* for plans */
    uint32_t npools;
    struct pc_device_peer *peers;
    uint32_t *locals;
    uint32_t nlocals, local;
    bool whole, sealed, detached;
    bool hung; /* a kernel did not end, though it was told to */

    /* Memory of the host. */
    struct pc_host_control *control;
    uint64_t watch_device;
    char *staging;               /* for uploads */
    struct pc_host_range *spans; /* in order of address */
    uint32_t nspans;

    /* Launches. */
    uintptr_t stream;         /* for uploads; nothing of a user's runs there */
    uintptr_t order;          /* event behind the last launch */
    uintptr_t captured_order; /* the same within one capture */
    uint64_t capture;         /* that capture's id */
    uintptr_t last_stream;    /* of the last launch */
    uintptr_t captured_stream;
    bool ordered;                       /* `order` was recorded */
    uint32_t sync_domains, max_threads; /* of the device */
    uint64_t launches;                  /* so far */
    uint64_t captures;
    _Atomic uint64_t launched[PC_MAX_BLOCKS]; /* of these, those that block b is part of */
    _Atomic uint32_t capturing;               /* a graph may launch a plan whenever it likes */

    struct pc_device_plan **plans; /* by number; a place is written before its first launch */
    uint32_t nplans;
    bool proxied; /* some peer is remote */

    /* Failures: the first one is told. */
    _Atomic int failing; /* somebody has begun to tell */
    struct pc_error failure;

    /* The proxy. */
    pthread_t thread;
    bool threaded;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    _Atomic int parked, stopping;
    _Atomic uint64_t handed_over;
    struct pc_call call;          /* as the CPU's interpreter has it; only what a message needs */
    uint64_t tail[PC_MAX_BLOCKS]; /* entries consumed; the proxy's */
    uint64_t fault_since;         /* ns: when a remote peer was first seen lost; 0: none is */
};

/* device_comm.c */
/* Copies from host memory to the device and waits for it. */
int pc__device_comm_upload(struct pc_device_comm *dc, uint64_t to, const void *from, size_t nbytes);
int pc__device_comm_download(struct pc_device_comm *dc, void *to, uint64_t from, size_t nbytes);
/* All spins of kernels end, and every call from now on tells `error`. */
void pc__device_comm_fail(struct pc_device_comm *dc, int code, const struct pc_error *error);

/* ipc.c */
int pc__ipc_open(struct pc_device_comm *dc);
void pc__ipc_drop(struct pc_device_comm *dc, uint32_t peer);
void pc__ipc_close(struct pc_device_comm *dc);

/* host_register.c: once it is known who is reached how. */
int pc__host_register_open(struct pc_device_comm *dc);
void pc__host_register_close(struct pc_device_comm *dc);
/* The device's address of memory of the host's arenas or shadows; 0: it was not made known. */
uint64_t pc__host_register_address(const struct pc_device_comm *dc, const void *at);

/* pool.c: memory on the device for plans. To allocate may, and to free does, wait for all kernels
 * of this process, which may wait for one that is not launched yet: so nothing is given back to the
 * driver before the device communicator closes, and rarely anything taken. */
int pc__pool_open(struct pc_device_comm *dc);
void pc__pool_close(struct pc_device_comm *dc);
int pc__pool_take(struct pc_device_comm *dc, size_t nbytes, uint64_t *address);
void pc__pool_give(struct pc_device_comm *dc, uint64_t address);

/* fifo.c: once it is known who is reached how. */
int pc__device_fifos_make(struct pc_device_comm *dc);

/* launch.c */
/* Launches that a block has ended; those of graphs count, too. */
uint64_t pc__launches_finished(const struct pc_device_comm *dc, uint32_t block);
/* Whether every block has ended as many launches as are known of; those of graphs count, too. */
bool pc__launches_ended(const struct pc_device_comm *dc);
/* OK when all that was launched has ended, AGAIN, or what the driver says; it may be asked. */
int pc__launches_over(struct pc_device_comm *dc);

/* device_plan.c */
void pc__device_plans_drop(struct pc_device_comm *dc);

/* proxy.c */
int pc__proxy_start(struct pc_device_comm *dc);
void pc__proxy_stop(struct pc_device_comm *dc);
/* A launch was made, or will be: from now on the proxy keeps watch. */
void pc__proxy_wake(struct pc_device_comm *dc);
/* Whether all that was launched has ended, and all that it pushed was handed over. */
bool pc__proxy_settled(struct pc_device_comm *dc);
#endif
