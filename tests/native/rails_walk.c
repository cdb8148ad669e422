/* Ranks that are threads, RDMA between them, and a network that fails all the time.
 *
 *   rails_walk SIZE RAILS SEED FAULTS
 *
 * libibverbs is the stand-in of tests/fakeverbs: rank r has the ports r * 8 / SIZE and after. Rank
 * 0 has one rail when SIZE is odd, so that paths share it. All ranks exchange rounds of messages,
 * each with bytes of its own, which are checked; beside them one thread attends to all
 * communicators, and one does FAULTS things to the network, drawn by SEED: cuts, both ways or one,
 * of some kinds of packets, now or after some messages more, ports that go down, ports that are
 * slow. Then all ranks close, and nothing may be left. */
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "pycoll.h"

#define MAX_RANKS 4
#define PORTS 8          /* of the stand-in, on one host */
#define MAX_BYTES 700000 /* the longest are read by their receiver */
#define UNCLOSED 11      /* fakeverbs: objects that were left when their device was closed */
#define HELD 9           /* words of it about objects, from the third on */

enum { WRITE_IMM = 2, REQUESTS = 15, RESPONSES = 48, ALL = 63 };

static uint32_t size, rails;
static struct pc_comm *comms[MAX_RANKS];
static _Atomic int done[MAX_RANKS]; /* rounds */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int begun, rounds = 1 << 30; /* by any rank; the last is known only in the end */
static _Atomic bool attends = true;
static pthread_barrier_t barrier;

static struct network { /* control.c of the stand-in */
    void *fabric;
    void *(*open)(const char *path);
    void (*cut)(void *fabric, uint32_t from, uint32_t to, uint32_t kinds);
    void (*heal)(void *fabric, uint32_t from, uint32_t to, uint32_t kinds);
    void (*fuse)(void *fabric, uint32_t from, uint32_t to, uint32_t counted, int whole, int64_t n,
                 uint32_t dropped, uint32_t dropped_back);
    void (*down)(void *fabric, uint32_t port, int down);
    void (*speed)(void *fabric, uint32_t port, uint64_t bytes_per_second);
    uint64_t (*count)(void *fabric, uint32_t port, uint32_t what);
    int (*slot)(void *fabric, uint32_t slot, uint64_t *out);
} net;

static void die(struct pc_comm *comm, const char *what, int rc)
{
    fprintf(stderr, "%s: %s: %s\n", what, pc_code_name(rc), comm ? pc_comm_error(comm)->text : "");
    exit(1);
}

static uint32_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static unsigned char value(uint32_t from, uint32_t to, int number, uint64_t i)
{
    return (unsigned char)(from * 31 + to * 7 + (uint32_t)number * 13 + i * 5 + (i >> 8));
}

/* All ranks draw the same lengths. */
static uint64_t length(uint64_t *state)
{
    uint32_t kind = draw(state) % 8, n = draw(state);
    return kind < 3 ? n % 41 : kind < 6 ? n % 5000 : n % MAX_BYTES;
}

static void exchange(struct pc_comm *comm, uint32_t rank, int number, uint64_t *state,
                     unsigned char *memory)
{
    struct pc_p2p_op messages[2 * MAX_RANKS];
    uint32_t n = 0;
    for (uint32_t from = 0; from < size; from++)
        for (uint32_t to = 0; to < size; to++) {
            uint64_t nbytes = length(state);
            if (from == to || (from != rank && to != rank))
                continue;
            struct pc_p2p_op *m = &messages[n];
            *m = (struct pc_p2p_op){.at = memory + (size_t)n * MAX_BYTES,
                                    .nbytes = nbytes,
                                    .peer = from == rank ? to : from,
                                    .direction
                                    = from == rank ? PC_DIRECTION_SEND : PC_DIRECTION_RECV,
                                    .dtype = PC_DTYPE_UINT8};
            for (uint64_t i = 0; i < nbytes; i++)
                ((unsigned char *)m->at)[i] = from == rank ? value(from, to, number, i) : 0x55;
            n++;
        }
    int rc = pc_exchange(comm, messages, n, 100);
    while (rc == PC_AGAIN)
        rc = pc_resume(comm, 1.0);
    if (rc != PC_OK)
        die(comm, "exchange", rc);
    for (uint32_t k = 0; k < n; k++)
        for (uint64_t i = 0; messages[k].direction == PC_DIRECTION_RECV && i < messages[k].nbytes;
             i++)
            if (((unsigned char *)messages[k].at)[i] != value(messages[k].peer, rank, number, i)) {
                fprintf(stderr, "round %d: byte %llu of %llu from %u to %u is wrong\n", number,
                        (unsigned long long)i, (unsigned long long)messages[k].nbytes,
                        messages[k].peer, rank);
                exit(1);
            }
}

static uint32_t port(uint32_t rank, uint32_t rail)
{
    return rank * (PORTS / size) + rail;
}

static uint32_t rails_of(uint32_t rank)
{
    return rank == 0 && size % 2 == 1 ? 1 : rails;
}

static bool begins(int number)
{
    pthread_mutex_lock(&lock);
    if (begun <= number)
        begun = number + 1;
    bool ends = number >= rounds;
    pthread_mutex_unlock(&lock);
    return !ends;
}

static void end_rounds(void)
{
    pthread_mutex_lock(&lock);
    rounds = begun;
    pthread_mutex_unlock(&lock);
}

static void *rank_main(void *argument)
{
    uint32_t rank = (uint32_t)(uintptr_t)argument;
    struct pc_options options
        = {.rank = rank, .size = size, .slots = 4, .slot_bytes = 128 << 10, .heap_bytes = 1 << 20};
    const struct pc_verbs_options verbs
        = {.queue_pairs = 1,
           .timeout = 8,
           .retry_count = 2,      /* 3 ms until a path has failed */
           .srq_from = size % 2}; /* all share receives, or all but one of each rail */
    struct pc_rail_spec specs[PORTS];
    struct pc_comm *comm;
    int rc = pc_comm_open(&options, &comm);
    for (uint32_t i = 0; i < rails_of(rank); i++) {
        specs[i] = (struct pc_rail_spec){.port = 1, .gid_index = -1};
        snprintf(specs[i].device, sizeof specs[i].device, "fake%u", port(rank, i));
    }
    if (rc == PC_OK)
        rc = pc_comm_rails(comm, &verbs, specs, rails_of(rank));
    for (uint32_t peer = 0; rc == PC_OK && peer < size; peer++)
        if (peer != rank)
            rc = pc_comm_remote(comm, peer);
    char blob[256];
    int nbytes = pc_comm_address(comm, blob, sizeof blob);
    if (rc == PC_OK)
        rc = pc_comm_connect(comm, rank, blob, (size_t)nbytes);
    if (rc == PC_OK)
        rc = pc_comm_sealed(comm);
    if (rc != PC_OK)
        die(comm, "open", rc);
    comms[rank] = comm;
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier); /* sockets are there */
    unsigned char *memory = malloc((size_t)2 * MAX_RANKS * MAX_BYTES);
    uint64_t state = 11;
    for (int number = 0; begins(number); number++) {
        exchange(comm, rank, number, &state, memory);
        atomic_store(&done[rank], number + 1);
    }
    free(memory);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier); /* nobody attends any more */
    pc_comm_close(comm);
    return NULL;
}

static void link_ranks(void)
{
    for (uint32_t a = 0; a < size; a++)
        for (uint32_t b = 0; b < a; b++) {
            int ends[2];
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
                die(NULL, "socketpair", PC_SYSTEM);
            int rc = pc_comm_adopt(comms[a], b, ends[0]);
            rc = rc == PC_OK ? pc_comm_adopt(comms[b], a, ends[1]) : rc;
            if (rc != PC_OK)
                die(comms[a], "adopt", rc);
        }
}

/* As the thread of the runtime does. */
static void *attend(void *unused)
{
    struct pollfd fds[MAX_RANKS];
    for (uint32_t r = 0; r < size; r++)
        fds[r] = (struct pollfd){.fd = pc_comm_event_fd(comms[r]), .events = POLLIN};
    while (atomic_load(&attends)) {
        poll(fds, size, 10);
        for (uint32_t r = 0; r < size; r++)
            if (fds[r].revents)
                pc_comm_handle_events(comms[r]);
    }
    return unused;
}

static struct pc_net_state total(void)
{
    struct pc_net_state sum = {0}, one;
    for (uint32_t r = 0; r < size; r++) {
        pc_comm_net_state(comms[r], &one);
        sum.failures += one.failures;
        sum.revivals += one.revivals;
        sum.replayed += one.replayed;
        sum.queue_pairs += one.queue_pairs;
        sum.regions += one.regions;
    }
    return sum;
}

static int slowest(void)
{
    int least = atomic_load(&done[0]);
    for (uint32_t r = 1; r < size; r++)
        if (atomic_load(&done[r]) < least)
            least = atomic_load(&done[r]);
    return least;
}

/* Until all ranks have gone on; `fault`: or a path has failed, or it has lasted long enough: where
 * it takes the last path, nothing else ends it, and peers have hope for a while only. */
static void watch(int more, bool fault)
{
    int until = slowest() + more;
    uint64_t failures = total().failures;
    for (int ms = 0; slowest() < until; ms++) {
        if (fault && (total().failures > failures || ms > 500))
            return;
        poll(NULL, 0, 1);
    }
}

static void bend(uint64_t *state)
{
    uint32_t a = draw(state) % size, b = (a + 1 + draw(state) % (size - 1)) % size;
    uint32_t from = port(a, draw(state) % rails_of(a)), to = port(b, draw(state) % rails_of(b));
    switch (draw(state) % 8) {
    case 0:
        net.cut(net.fabric, from, to, ALL);
        net.cut(net.fabric, to, from, ALL);
        break;
    case 1:
        net.cut(net.fabric, from, to, ALL);
        break;
    case 2:
        net.cut(net.fabric, from, to, REQUESTS);
        break;
    case 3: /* all lands, and nobody knows */
        net.cut(net.fabric, from, to, RESPONSES);
        break;
    case 4: /* within a message */
        net.fuse(net.fabric, from, to, REQUESTS, 0, 1 + draw(state) % 50, ALL, ALL);
        break;
    case 5: /* behind one that lands, unheard */
        net.fuse(net.fabric, from, to, WRITE_IMM, 1, 1 + draw(state) % 5, 0, RESPONSES);
        break;
    case 6:
        net.down(net.fabric, from, 1);
        break;
    default:
        net.speed(net.fabric, from, 3000000);
    }
    watch(2, true);
    net.down(net.fabric, from, 0);
    net.speed(net.fabric, from, 0);
    net.heal(net.fabric, from, to, ALL);
    net.heal(net.fabric, to, from, ALL);
    watch(draw(state) % 3, false);
}

static void find_network(void)
{
    void *library = dlopen("libibverbs.so.1", RTLD_NOW);
    net.open = (void *(*)(const char *))dlsym(library, "fakeverbs_open");
    if (net.open == NULL)
        die(NULL, "no stand-in for libibverbs", PC_SYSTEM);
    *(void **)&net.cut = dlsym(library, "fakeverbs_cut");
    *(void **)&net.heal = dlsym(library, "fakeverbs_heal");
    *(void **)&net.fuse = dlsym(library, "fakeverbs_fuse");
    *(void **)&net.down = dlsym(library, "fakeverbs_down");
    *(void **)&net.speed = dlsym(library, "fakeverbs_speed");
    *(void **)&net.count = dlsym(library, "fakeverbs_count");
    *(void **)&net.slot = dlsym(library, "fakeverbs_slot");
    net.fabric = net.open(getenv("FAKEVERBS_FABRIC"));
}

static void look_what_is_left(void)
{
    uint64_t slot[3 + HELD], left = 0;
    for (uint32_t i = 0; i < PORTS; i++)
        left += net.count(net.fabric, i, UNCLOSED);
    for (uint32_t i = 0; i < 512; i++)
        left += net.slot(net.fabric, i, slot) != 0;
    if (left != 0)
        die(NULL, "objects are left", PC_INVALID);
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s SIZE RAILS SEED FAULTS\n", argv[0]);
        return 2;
    }
    size = (uint32_t)atoi(argv[1]);
    rails = (uint32_t)atoi(argv[2]);
    uint64_t state = strtoull(argv[3], NULL, 10);
    int faults = atoi(argv[4]);
    find_network();
    pthread_t threads[MAX_RANKS], attendant;
    pthread_barrier_init(&barrier, NULL, size + 1);
    for (uint32_t r = 0; r < size; r++)
        pthread_create(&threads[r], NULL, rank_main, (void *)(uintptr_t)r);
    pthread_barrier_wait(&barrier);
    pthread_create(&attendant, NULL, attend, NULL);
    link_ranks();
    pthread_barrier_wait(&barrier);
    watch(1, false);
    for (int i = 0; i < faults; i++)
        bend(&state);
    watch(10, false);
    end_rounds();
    pthread_barrier_wait(&barrier);
    struct pc_net_state seen = total();
    atomic_store(&attends, false);
    pthread_join(attendant, NULL);
    pthread_barrier_wait(&barrier);
    for (uint32_t r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
    look_what_is_left();
    printf("%d faults, %llu failures, %llu revivals, %llu replayed\n", faults,
           (unsigned long long)seen.failures, (unsigned long long)seen.revivals,
           (unsigned long long)seen.replayed);
    return 0;
}
