/* What a message costs between two ranks, without Python and without a collective around it.
 *
 *   rdma_put TRANSPORT NEAR FAR latency|bandwidth NBYTES COUNT
 *
 * Two processes with a communicator each, joined by a socket pair. TRANSPORT is verbs, over the
 * devices NEAR and FAR, or tcp, for comparison. latency: a message goes there and back COUNT times;
 * what is told is half of a round trip. bandwidth: COUNT messages go one way, through slots that
 * are filled beforehand; the clock stops when all are acknowledged. The receiver looks at every
 * byte that it has: of each message where it lies in the line, of each slot at the end. Prints one
 * JSON object. */
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "core/target_cpu.h"

#define SLOTS 4u
#define WARM 10 /* a tenth of the messages comes before the clock starts */

static struct pc_comm *comm;
static struct pc_fifo *fifo;
static uint32_t rank;
static uint64_t nbytes, seed;
static _Atomic bool stopping;

static void die(const char *what, int rc)
{
    fprintf(stderr, "rank %u: %s: %s: %s\n", rank, what, pc_code_name(rc),
            pc_comm_error(comm)->text);
    _exit(1); /* the other process notices, or is killed by the first */
}

/* What message `number` of a rank holds at `at`: eight bytes that look random. */
static uint64_t noise(uint32_t from, uint64_t number, uint64_t at)
{
    uint64_t z = seed + from * UINT64_C(0xd1342543de82ef95) + number * UINT64_C(0x9e3779b97f4a7c15)
                 + at * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void fill(char *to, uint64_t number)
{
    for (uint64_t at = 0; at < nbytes; at += 8) {
        uint64_t word = noise(rank, number, at);
        memcpy(to + at, &word, 8);
    }
}

static void check(const char *found, uint64_t number)
{
    for (uint64_t at = 0; at < nbytes; at += 8) {
        uint64_t word, want = noise(!rank, number, at);
        memcpy(&word, found + at, 8);
        if (word != want) {
            fprintf(stderr, "rank %u: message %llu, byte %llu: got %#llx, want %#llx\n", rank,
                    (unsigned long long)number, (unsigned long long)at, (unsigned long long)word,
                    (unsigned long long)want);
            _exit(1);
        }
    }
}

/* Connections are made and mended beside whatever the rank does. */
static void *attend(void *unused)
{
    struct pollfd attention = {.fd = pc_comm_event_fd(comm), .events = POLLIN};
    while (attention.fd >= 0 && !atomic_load(&stopping))
        if (poll(&attention, 1, 50) > 0)
            pc_comm_handle_events(comm);
    return unused;
}

static void join(const char *transport, const char *device, int fd)
{
    uint64_t slot = pc__page_up(nbytes);
    struct pc_options options = {.rank = rank,
                                 .size = 2,
                                 .slots = SLOTS,
                                 .slot_bytes = (uint32_t)slot,
                                 .heap_bytes = PC_PAGE,
                                 .spin = 1000};
    int rc = pc_comm_open(&options, &comm);
    if (rc == PC_OK && strcmp(transport, "verbs") == 0) {
        struct pc_verbs_options verbs = {.queue_pairs = 1,
                                         .traffic_class = 106,
                                         .timeout = 14,
                                         .retry_count = 6,
                                         .srq_from = 16};
        struct pc_rail_spec rail = {.port = 1, .gid_index = -1};
        snprintf(rail.device, sizeof rail.device, "%s", device);
        rc = pc_comm_rails(comm, &verbs, &rail, 1);
    }
    if (rc == PC_OK)
        rc = pc_comm_remote(comm, !rank);
    if (rc == PC_OK)
        rc = pc_comm_adopt(comm, !rank, fd);
    if (rc == PC_OK)
        rc = pc_comm_sealed(comm);
    if (rc != PC_OK)
        die("joining", rc);
    fifo = &comm->fifos[!rank * PC_EDGE_CHANNELS];
}

static void look(void)
{
    const struct pc_error *fault = pc__net_poll(comm->net, !rank);
    if (fault != NULL) {
        comm->error = *fault;
        die("the other rank", fault->code);
    }
}

static bool in_line(void)
{
    return nbytes <= PC_INLINE_BYTES;
}

static char *slot(char *data, uint64_t number)
{
    return data + number % SLOTS * comm->layout.slot_bytes;
}

static void put(void)
{
    while (fifo->sent - pc__count(fifo->out_credit) >= SLOTS)
        look();
    struct pc_line *line = &fifo->out_lines[fifo->sent % PC_LINES];
    char *data = slot(fifo->out_data, fifo->sent);
    line->signature = seed;
    if (in_line()) {
        data = (char *)line->bytes;
        fill(data, fifo->sent);
    }
    int rc = pc__net_message(fifo->edge, data, nbytes, &comm->error);
    if (rc != PC_OK)
        die("message", rc);
}

static void take(void)
{
    struct pc_line *line = &fifo->in_lines[fifo->received % PC_LINES];
    while (pc__count(line) <= fifo->received)
        look();
    if (line->signature != seed)
        die("the line's signature", PC_MISMATCH);
    if (in_line())
        check((char *)line->bytes, fifo->received);
    fifo->received++;
    pc__net_credit(fifo->edge, fifo->received);
}

static void drain(void)
{
    int rc;
    while ((rc = pc__net_drained(comm->net, NULL, &comm->error)) == 0)
        look();
    if (rc < 0)
        die("the last messages", rc);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void latency(int count)
{
    double *halves = calloc((size_t)count, sizeof *halves);
    for (int i = -count / WARM; i < count; i++) {
        uint64_t begun = pc__now();
        if (rank == 0)
            put();
        take();
        if (rank == 1)
            put();
        if (i >= 0)
            halves[i] = (double)(pc__now() - begun) / 2e3;
    }
    drain();
    qsort(halves, (size_t)count, sizeof *halves, ascending);
    if (rank == 0)
        printf("{\"us\": %.3f, \"min_us\": %.3f, \"p99_us\": %.3f}\n", halves[count / 2], halves[0],
               halves[count - 1 - count / 100]);
    free(halves);
}

static void bandwidth(int count)
{
    if (rank == 0) {
        for (uint64_t n = 0; n < SLOTS; n++)
            fill(slot(fifo->out_data, n), n);
        for (int i = 0; i < (int)SLOTS; i++) /* connected, and every page touched */
            put();
        drain();
        uint64_t begun = pc__now();
        for (int i = 0; i < count; i++)
            put();
        drain();
        double seconds = (double)(pc__now() - begun) / 1e9;
        printf("{\"bytes_per_second\": %.0f}\n", (double)nbytes * count / seconds);
    } else {
        for (int i = 0; i < count + (int)SLOTS; i++)
            take();
        for (uint64_t n = 0; n < SLOTS; n++)
            check(slot(fifo->in_data, n), n);
    }
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: %s verbs|tcp NEAR FAR latency|bandwidth NBYTES COUNT\n", argv[0]);
        return 2;
    }
    int sockets[2], status = 0, count = atoi(argv[6]);
    nbytes = strtoull(argv[5], NULL, 10);
    if (nbytes == 0 || nbytes % 8 != 0 || count < WARM) {
        fprintf(stderr, "%s: %s bytes, want a multiple of 8; %s times, want at least %d\n", argv[0],
                argv[5], argv[6], WARM);
        return 2;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    seed = (uint64_t)now.tv_nsec;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) {
        perror("socketpair");
        return 1;
    }
    pid_t child = fork();
    rank = child == 0;
    close(sockets[!rank]);
    /* Neighbours on one processor would wait for their time slices. */
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(rank, &one);
    sched_setaffinity(0, sizeof one, &one);
    join(argv[1], argv[2 + rank], sockets[rank]);
    pthread_t attendant;
    pthread_create(&attendant, NULL, attend, NULL);
    (strcmp(argv[4], "latency") == 0 ? latency : bandwidth)(count);
    fflush(stdout);
    /* Neither leaves while the other may still want its credit. */
    atomic_store(&stopping, true);
    pthread_join(attendant, NULL);
    pc_comm_close(comm);
    if (rank == 0)
        waitpid(child, &status, 0);
    return status != 0;
}
