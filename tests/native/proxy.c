/* The proxy against threads that play kernels, and a transport that writes down what it gets.
 *
 *   proxy SCENARIO PROGRAM ENTRIES
 *
 * PROGRAM is one of rank 0 of 2 whose peer is remote here. Each of its channels has a thread that
 * pushes ENTRIES entries into its ring, of plans drawn by chance, and looks at the tail as a kernel
 * does. SCENARIO:
 *   order  every message and credit comes once, in order; launches end and begin, the proxy parks
 *   late   kernels begin and end while the proxy is parked: what they pushed is carried
 *   full   the transport holds each message back until a ring is full
 *   lost   the transport refuses a message: all kernels end, and the communicator says why
 *   gone   the peer is gone while kernels wait for it
 *   idle   the peer is gone while nothing runs, which is no failure
 *   abort  the communicator is aborted while kernels wait */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/target_cpu.h"
#include "gpu/device_comm.h"

#define PLANS 3
#define LAUNCHES 20
#define SIGNATURE 1000 /* of a channel's messages, plus the channel; it is none of a plan */

static struct pc_comm *comm;
static struct pc_device_comm plane;
static struct pc_device_plan bound[PLANS];
static uint32_t sends[PC_MAX_CHANNELS], credits[PC_MAX_CHANNELS]; /* instructions */
static uint64_t sizes[PC_MAX_CHANNELS][PLANS];                    /* bytes of its messages */
static uint32_t nchannels;
static uint64_t nentries;
static const char *scenario;

/* What the transport has got, by channel. */
static uint64_t messages[PC_MAX_CHANNELS], given_back[PC_MAX_CHANNELS];
static uint64_t script[PC_MAX_CHANNELS]; /* the state of the dice, as the kernel's */
/* What a kernel has written before it pushed entry k: its data, so to say. */
static uint64_t stamps[PC_MAX_CHANNELS][PC_PROXY_FIFO_ENTRIES];
static _Atomic int filled, refused;
static struct pc_error gone = {.code = PC_LOST, .peer = 1, .text = "rank 1 is lost: played"};

static bool plays(const char *name)
{
    return strcmp(scenario, name) == 0;
}

static void check(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "%s: not so: %s\n", scenario, what);
        exit(1);
    }
}

static uint32_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Whatever the kernel wrote before the entry is there. */
static void check_stamp(uint32_t channel)
{
    uint64_t k = messages[channel] + given_back[channel];
    check(stamps[channel][k % PC_PROXY_FIFO_ENTRIES] == k, "all that the kernel wrote is there");
}

static int message(const struct pc_send_op *op)
{
    struct pc_fifo *f = op->edge->fifo;
    const char *data = op->data;
    uint64_t nbytes = op->nbytes;
    uint32_t what = draw(&script[f->channel]);
    if (plays("full"))
        while (!atomic_load(&filled))
            sched_yield();
    if (plays("lost") && messages[f->channel] == 5) {
        atomic_store(&refused, 1);
        op->edge->peer->fault = gone;
        return PC_LOST;
    }
    check(what % 2 == 0, "a message, where one is due");
    check_stamp(f->channel);
    check(nbytes == sizes[f->channel][what / 2 % PLANS], "as long as the kernel's");
    check(f->sent == messages[f->channel], "the next of its edge");
    check(f->out_lines[f->sent & (PC_LINES - 1)].signature == SIGNATURE + f->channel,
          "with the signature that the kernel has given it");
    check(nbytes <= PC_INLINE_BYTES
              ? data == (char *)f->out_lines[f->sent & (PC_LINES - 1)].bytes
              : data == f->out_data + (f->sent & 1) * comm->options.slot_bytes,
          "where the kernel has put it");
    messages[f->channel]++;
    pc__net_count(op->edge, -1);
    pc__raise(f->out_credit, op->number + 1); /* the peer consumes it at once */
    return PC_OK;
}

/* Called after each message and each credit: what is owed has been handed over. */
static void look(struct pc_net *net, struct pc_net_peer *only)
{
    (void)only;
    for (uint32_t c = 0; c < nchannels; c++) {
        uint64_t received = net->peers[1]->edges[c].consumed;
        if (received == given_back[c])
            continue;
        check(draw(&script[c]) % 2 == 1, "a credit, where one is due");
        check_stamp(c);
        check(received == ++given_back[c], "the next of its edge");
    }
}

static int take(struct pc_net_peer *peer, const struct pc_send_op *op)
{
    (void)peer;
    if (op->kind == PC_SEND_MESSAGE)
        return message(op);
    pc__net_told(op->edge);
    return PC_OK;
}

static bool flushed(struct pc_net_peer *peer)
{
    (void)peer;
    return true;
}

static uint64_t arm(struct pc_net *net, uint64_t ns)
{
    (void)net, (void)ns;
    sched_yield();
    return 0;
}

static const struct pc_net_ops played = {.name = "played",
                                         .calls_per_poll = 1,
                                         .send = take,
                                         .flush = flushed,
                                         .poll = look,
                                         .arm = arm};

/* The peer is gone, once all has been handed over that kernels push before they wait. */
static void lose_peer(uint64_t handed_over)
{
    struct pc_net *net = comm->net;
    while (atomic_load(&plane.handed_over) < handed_over)
        sched_yield();
    pthread_mutex_lock(&net->lock);
    net->peers[1]->fault = gone;
    pc__net_end(net->peers[1]);
    pc__net_unlock(net);
}

static bool aborted(void)
{
    return __atomic_load_n(&plane.control->abort, __ATOMIC_ACQUIRE) != 0;
}

/* Pushes one entry as kernel.h does; false when told to end. */
static bool push(uint32_t block, uint64_t *head, uint32_t plan, uint32_t instruction)
{
    while (*head - __atomic_load_n(&plane.control->tail[block][0], __ATOMIC_ACQUIRE)
           >= PC_PROXY_FIFO_ENTRIES) {
        atomic_store(&filled, 1);
        if (aborted())
            return false;
        sched_yield();
    }
    stamps[block][*head % PC_PROXY_FIFO_ENTRIES] = *head;
    uint64_t entry = (uint64_t)!(*head / PC_PROXY_FIFO_ENTRIES & 1) << 63 | (uint64_t)plan << 48
                     | (uint64_t)instruction << 24;
    __atomic_store_n(&plane.control->ring[block][*head % PC_PROXY_FIFO_ENTRIES], entry,
                     __ATOMIC_RELEASE);
    ++*head;
    return true;
}

static void *kernel(void *argument)
{
    uint32_t block = (uint32_t)(uintptr_t)argument;
    uint64_t state = block + 1, head = 0;
    bool waits = plays("gone") || plays("abort");
    for (uint32_t n = 0; n < PC_LINES; n++)
        comm->fifos[PC_EDGE_CHANNELS + block].out_lines[n].signature = SIGNATURE + block;
    for (int launch = 0; launch < LAUNCHES; launch++) {
        bool late = plays("late");
        while (late
               && !(atomic_load(&plane.parked)
                    && __atomic_load_n(&plane.control->tail[block][0], __ATOMIC_ACQUIRE) == head))
            sched_yield();
        if (late) /* until this launch has ended */
            pthread_mutex_lock(&plane.lock);
        atomic_fetch_add(&plane.launched[block], 1);
        atomic_store(&plane.called[block], atomic_load(&plane.launched[block]));
        if (!late)
            pc__proxy_wake(&plane);
        for (uint64_t i = 0; i < nentries / LAUNCHES; i++) {
            uint32_t what = draw(&state);
            if (!push(block, &head, what / 2 % PLANS, what % 2 ? credits[block] : sends[block]))
                break;
        }
        while ((waits || atomic_load(&refused)) && !aborted()) /* for a message */
            sched_yield();
        uint64_t *finished = &plane.control->finished[block][0];
        __atomic_store_n(finished, *finished + 1, __ATOMIC_RELEASE);
        if (late) {
            pthread_mutex_unlock(&plane.lock);
            pc__proxy_wake(&plane);
        }
        if (launch % 4 == 3 && plays("order")) /* until it is parked, unless others run */
            for (int i = 0; i < 1000 && !atomic_load(&plane.parked); i++)
                sched_yield();
    }
    return NULL;
}

static char *read_file(const char *path, size_t *nbytes)
{
    static char bytes[1 << 16];
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(2);
    }
    *nbytes = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    return bytes;
}

static void must(int rc, const char *what)
{
    if (rc != PC_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, pc_code_name(rc), pc_comm_error(comm)->text);
        exit(1);
    }
}

static struct pc_program *open_comm(const char *path)
{
    struct pc_options options
        = {.rank = 0, .size = 2, .slots = 2, .slot_bytes = 4096, .heap_bytes = 0};
    struct pc_program *program;
    size_t nbytes;
    must(pc_comm_open(&options, &comm), "open");
    must(pc_comm_remote(comm, 1), "remote");
    must(pc_comm_sealed(comm), "sealed");
    char *bytes = read_file(path, &nbytes);
    must(pc_program_load(comm, bytes, nbytes, 0, PC_MAX_DESTINATIONS, &program), path);
    nchannels = program->nchannels;
    for (uint32_t c = 0; c < nchannels; c++)
        for (uint32_t i = program->starts[c]; program->code[i].step != PC_STEP_END; i++) {
            if (program->code[i].step == PC_STEP_PUT_MESSAGE)
                sends[c] = i;
            if (program->code[i].step == PC_STEP_PUT_CREDIT)
                credits[c] = i;
        }
    return program;
}

static void open_plane(struct pc_program *program)
{
    static struct pc_device_peer peers[2] = {{.route = PC_ROUTE_SELF}, {.route = PC_ROUTE_NET}};
    static struct pc_device_plan *plans[PLANS];
    plane = (struct pc_device_comm){.comm = comm,
                                    .error = &comm->error,
                                    .peers = peers,
                                    .plans = plans,
                                    .nplans = PLANS,
                                    .proxied = true,
                                    .control = aligned_alloc(128, sizeof(struct pc_host_control))};
    memset(plane.control, 0, sizeof *plane.control);
    pthread_mutex_init(&plane.lock, NULL);
    pthread_cond_init(&plane.moved, NULL);
    for (uint32_t k = 0; k < PLANS; k++) {
        uint64_t block = (k + 1) * 160; /* so that some messages lie in their line */
        struct pc_plan_spec spec = {.signature = k + 1,
                                    .nblocks = 1,
                                    .blocks = &block,
                                    .input = {0, 1},
                                    .output = {0, 1},
                                    .dtype = PC_DTYPE_INT32,
                                    .op = PC_REDUCE_SUM,
                                    .tile = 64};
        must(pc_plan_create(comm, &spec, program, NULL, &bound[k].plan), "plan");
        plans[k] = &bound[k];
        for (uint32_t c = 0; c < nchannels; c++) {
            const struct pc_vm_operand *slot = program->code[sends[c]].at.operands;
            for (uint32_t i = 0; i < slot->nchunks; i++) {
                uint64_t nbytes = bound[k].plan->terms[0].chunks[slot->chunk + i].nbytes;
                sizes[c][k] += nbytes < 64 ? nbytes : 64;
            }
        }
    }
    must(pc__proxy_start(&plane), "proxy");
}

static void expect_failure(int code, const char *text)
{
    check(pc_device_comm_check(&plane) == code, "its code");
    check(strstr(pc_comm_error(comm)->text, text) != NULL, "its text");
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s SCENARIO PROGRAM ENTRIES\n", argv[0]);
        return 2;
    }
    scenario = argv[1];
    nentries = strtoull(argv[3], NULL, 10);
    struct pc_program *program = open_comm(argv[2]);
    const struct pc_net_ops *real = comm->net->ops;
    comm->net->ops = &played;
    open_plane(program);
    for (uint32_t c = 0; c < nchannels; c++)
        script[c] = c + 1;
    pthread_t threads[PC_MAX_CHANNELS];
    if (plays("idle"))
        lose_peer(0);
    for (uint32_t c = 0; c < nchannels && !plays("idle"); c++)
        pthread_create(&threads[c], NULL, kernel, (void *)(uintptr_t)c);
    if (plays("gone"))
        lose_peer(nentries / LAUNCHES * nchannels);
    if (plays("abort"))
        pc_comm_abort(comm, PC_LOST, 1, "played");
    for (uint32_t c = 0; c < nchannels && !plays("idle"); c++)
        pthread_join(threads[c], NULL);
    if (plays("order") || plays("late") || plays("full")) {
        uint64_t want = nentries / LAUNCHES * LAUNCHES * nchannels, got = 0;
        while (!pc__proxy_settled(&plane) || !atomic_load(&plane.parked))
            sched_yield();
        for (uint32_t c = 0; c < nchannels; c++)
            got += messages[c] + given_back[c];
        check(got == want && atomic_load(&plane.handed_over) == want, "all of them, and no more");
        check(!plays("full") || atomic_load(&filled), "the ring was full");
        check(pc_device_comm_check(&plane) == PC_OK, "no failure");
    }
    if (plays("lost") || plays("gone"))
        expect_failure(PC_LOST, "rank 1 is lost: played");
    if (plays("abort"))
        expect_failure(PC_ABORTED, "played");
    if (plays("idle"))
        check(pc_device_comm_check(&plane) == PC_OK, "no failure");
    pc__proxy_stop(&plane);
    comm->net->ops = real;
    for (uint32_t k = 0; k < PLANS; k++)
        pc_plan_free(bound[k].plan);
    pc_program_free(program);
    pc_comm_close(comm);
    free(plane.control);
    printf("%s\n", scenario);
    return 0;
}
