/* Ranks that are threads of one process, for drivers under a sanitizer: how they open their
 * communicators and meet, and how another thread hands over the connections between them.
 *
 * The PATH of a driver is how ranks reach each other: `mapped`, `remote` (by sockets), `both`
 * (ranks 0 and 1, 2 and 3 are mapped), `rails` (by RDMA, with the stand-in for libibverbs),
 * `gpudirect` (likewise, with the data of GPUs in their memory), or `hmem` (that by libfabric, with
 * the stand-in for it). */
#ifndef RANK_THREADS_H
#define RANK_THREADS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "pycoll.h"

#define MAX_RANKS 8
#define RAILS 2 /* of a rank */

static uint32_t size;
static bool any_mapped, any_remote, by_rails, by_fabric, by_gpu;
static struct pc_comm *comms[MAX_RANKS];
static pthread_barrier_t barrier; /* of the ranks */
static pthread_barrier_t joined;  /* of the ranks and the thread that links them */
static char blobs[MAX_RANKS][1024];
static int blob_bytes[MAX_RANKS];
static _Atomic uint32_t connected;

static void die(struct pc_comm *comm, const char *what, int rc)
{
    fprintf(stderr, "%s: %s: %s\n", what, pc_code_name(rc), pc_comm_error(comm)->text);
    exit(1);
}

/* All ranks draw the same numbers, so they agree on every call. */
static uint32_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void choose_path(const char *path)
{
    by_fabric = strcmp(path, "hmem") == 0;
    by_rails = strcmp(path, "gpudirect") == 0 || strcmp(path, "rails") == 0;
    by_gpu = by_fabric || strcmp(path, "gpudirect") == 0;
    any_mapped = !by_rails && !by_fabric && strcmp(path, "remote") != 0;
    any_remote = !any_mapped || strcmp(path, "both") == 0;
}

static bool is_remote(uint32_t a, uint32_t b)
{
    return a != b && any_remote && !(any_mapped && a / 2 == b / 2);
}

/* Hands over sockets with small buffers, so that frames leave in pieces. */
static void link_ranks(uint32_t connections)
{
    for (uint32_t k = 0; k < (by_rails || by_fabric ? 1 : connections); k++)
        for (uint32_t a = 0; a < size; a++)
            for (uint32_t b = 0; b < a; b++) {
                int ends[2], bytes = 16384;
                if (!is_remote(a, b))
                    continue;
                if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
                    perror("socketpair");
                    exit(1);
                }
                for (int i = 0; i < 2; i++)
                    setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
                int rc = pc_comm_adopt(comms[a], b, ends[0]);
                rc = rc == PC_OK ? pc_comm_adopt(comms[b], a, ends[1]) : rc;
                if (rc != PC_OK || pc_comm_connections(comms[b], a) != (int)k + 1) {
                    fprintf(stderr, "adopt: %s\n", pc_code_name(rc));
                    exit(1);
                }
            }
}

/* By RDMA: the rank has the ports of the stand-in for libibverbs from its number times RAILS on. */
static int open_rails(struct pc_comm *comm, uint32_t rank)
{
    /* Of each rail one connection has receives of its own. */
    const struct pc_verbs_options verbs
        = {.queue_pairs = 1, .timeout = 14, .retry_count = 7, .srq_from = 1};
    struct pc_rail_spec specs[RAILS];
    for (uint32_t i = 0; i < RAILS; i++) {
        specs[i] = (struct pc_rail_spec){.port = 1, .gid_index = -1};
        snprintf(specs[i].device, sizeof specs[i].device, "fake%u", rank * RAILS + i);
    }
    return pc_comm_rails(comm, &verbs, specs, RAILS);
}

/* Returns the rank's communicator once every rank has mapped what it can. */
static struct pc_comm *open_comm(const struct pc_options *options)
{
    uint32_t rank = options->rank;
    const struct pc_fabric_options fabric = {.patience = 100};
    struct pc_comm *comm;
    int rc = pc_comm_open(options, &comm);
    if (rc == PC_OK && by_rails)
        rc = open_rails(comm, rank);
    if (rc == PC_OK && by_fabric)
        rc = pc_comm_net(comm, "libfabric", &fabric, sizeof fabric);
    if (rc != PC_OK)
        die(comm, "open", rc);
    comms[rank] = comm;
    blob_bytes[rank] = pc_comm_address(comm, blobs[rank], sizeof blobs[rank]);
    pthread_barrier_wait(&barrier);
    for (uint32_t peer = 0; peer < size;) {
        rc = is_remote(rank, peer)
                 ? pc_comm_remote(comm, peer)
                 : pc_comm_connect(comm, peer, blobs[peer], (size_t)blob_bytes[peer]);
        if (rc != PC_OK && rc != PC_AGAIN)
            die(comm, "connect", rc);
        pc_comm_accept(comm);
        peer += rc == PC_OK;
    }
    atomic_fetch_add(&connected, 1);
    while (atomic_load(&connected) < size) /* the others need an answer from this one */
        pc_comm_accept(comm);
    return comm;
}

/* Runs every rank on a thread of its own. A rank comes to `joined` once it is open, and again where
 * it needs all connections: before its calls, or, if they shall come amid these, behind them. */
static void run_ranks(void *(*rank_main)(void *), uint32_t connections)
{
    pthread_t threads[MAX_RANKS];
    pthread_barrier_init(&barrier, NULL, size);
    pthread_barrier_init(&joined, NULL, size + 1);
    for (uint32_t r = 0; r < size; r++)
        pthread_create(&threads[r], NULL, rank_main, (void *)(uintptr_t)r);
    pthread_barrier_wait(&joined);
    link_ranks(connections);
    pthread_barrier_wait(&joined);
    for (uint32_t r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
}

#endif
