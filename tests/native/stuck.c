/* What a rank can still do while a peer does not read, and sends to the rank itself.
 *
 *   stuck SCENARIO
 *
 * All ranks are communicators of one thread, linked by sockets with small buffers: a peer does
 * nothing but what the scenario has it do, so each outcome is the same every time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "pycoll.h"

#define MAX_RANKS 3
#define LARGE (384u << 10) /* more than a socket takes, less than a ring */
#define FOREVER 60.0

static struct pc_comm *comms[MAX_RANKS];
static unsigned char sent[LARGE], got[LARGE];

const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1"; /* as malloc does */
}

static void expect(struct pc_comm *comm, const char *what, int rc, int want)
{
    if (rc == want)
        return;
    fprintf(stderr, "%s: got %s, want %s: %s\n", what, pc_code_name(rc), pc_code_name(want),
            pc_comm_error(comm)->text);
    exit(1);
}

static void open_ranks(uint32_t size)
{
    for (uint32_t r = 0; r < size; r++) {
        struct pc_options options
            = {.rank = r, .size = size, .slots = 8, .slot_bytes = 1 << 17, .heap_bytes = 1 << 20};
        expect(comms[r], "open", pc_comm_open(&options, &comms[r]), PC_OK);
        for (uint32_t p = 0; p < size; p++)
            if (p != r)
                expect(comms[r], "remote", pc_comm_remote(comms[r], p), PC_OK);
        expect(comms[r], "sealed", pc_comm_sealed(comms[r]), PC_OK);
    }
    for (uint32_t a = 0; a < size; a++)
        for (uint32_t b = 0; b < a; b++) {
            int ends[2], bytes = 16384;
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
                exit(1);
            for (int i = 0; i < 2; i++)
                setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
            expect(comms[a], "adopt", pc_comm_adopt(comms[a], b, ends[0]), PC_OK);
            expect(comms[b], "adopt", pc_comm_adopt(comms[b], a, ends[1]), PC_OK);
        }
}

static struct pc_p2p_op message(uint32_t direction, uint32_t peer, void *at, uint64_t nbytes)
{
    return (struct pc_p2p_op){
        .at = at, .nbytes = nbytes, .peer = peer, .direction = direction, .dtype = PC_DTYPE_UINT8};
}

/* AGAIN when the call has not ended after about five seconds. */
static int finish(struct pc_comm *comm, int rc)
{
    for (int i = 0; rc == PC_AGAIN && i < 100; i++)
        rc = pc_resume(comm, 0.05);
    return rc;
}

static int exchange(uint32_t rank, const struct pc_p2p_op *m, uint32_t n, double timeout)
{
    return finish(comms[rank], pc_exchange(comms[rank], m, n, timeout));
}

static struct pc_work *post(uint32_t rank, const struct pc_p2p_op *m)
{
    struct pc_work *work = NULL;
    expect(comms[rank], "post", pc_post(comms[rank], m, 1, FOREVER, &work), PC_OK);
    return work;
}

/* Sends to the rank itself keep their order, whatever else is in the batch. */
static void order(void)
{
    unsigned char first = 1, second = 2, x[2] = {0, 0};
    open_ranks(1);
    struct pc_p2p_op send = message(PC_DIRECTION_SEND, 0, &first, 1);
    expect(comms[0], "send", exchange(0, &send, 1, FOREVER), PC_OK);
    struct pc_p2p_op both[2]
        = {message(PC_DIRECTION_RECV, 0, &x[0], 1), message(PC_DIRECTION_SEND, 0, &second, 1)};
    expect(comms[0], "exchange", exchange(0, both, 2, FOREVER), PC_OK);
    struct pc_p2p_op receive = message(PC_DIRECTION_RECV, 0, &x[1], 1);
    expect(comms[0], "receive", exchange(0, &receive, 1, FOREVER), PC_OK);
    if (x[0] != first || x[1] != second) {
        fprintf(stderr, "got %u, %u; want %u, %u\n", x[0], x[1], first, second);
        exit(1);
    }
}

/* What cannot be kept is not said to be sent. */
static void memory(void)
{
    open_ranks(1);
    struct pc_p2p_op m = message(PC_DIRECTION_SEND, 0, sent, UINT64_C(1) << 47);
    expect(comms[0], "send", exchange(0, &m, 1, FOREVER), PC_NOMEM);
}

/* Who waits for several peers sleeps, and its deadline comes, whatever each of them sent before. */
static void several(void)
{
    open_ranks(3);
    struct pc_p2p_op send = message(PC_DIRECTION_SEND, 0, sent, 100);
    struct pc_p2p_op receive[2]
        = {message(PC_DIRECTION_RECV, 1, got, 100), message(PC_DIRECTION_RECV, 2, got + 100, 100)};
    for (int i = 0; i < 40; i++) { /* more than there are lines */
        expect(comms[1], "send", exchange(1, &send, 1, FOREVER), PC_OK);
        expect(comms[0], "receive", exchange(0, receive, 1, FOREVER), PC_OK);
    }
    expect(comms[0], "exchange", exchange(0, receive, 2, 0.2), PC_TIMEDOUT);
}

/* A send that does not leave has its deadline, though credit for earlier ones has come. */
static void deadline(void)
{
    open_ranks(2);
    struct pc_p2p_op send = message(PC_DIRECTION_SEND, 1, sent, LARGE);
    struct pc_p2p_op receive = message(PC_DIRECTION_RECV, 0, got, LARGE);
    struct pc_work *work = post(0, &send);
    expect(comms[1], "receive", exchange(1, &receive, 1, FOREVER), PC_OK);
    int rc = PC_AGAIN;
    for (int i = 0; rc == PC_AGAIN && i < 100; i++)
        rc = pc_work_wait(work, 0.05);
    expect(comms[0], "work", rc, PC_OK);
    pc_work_free(work);
    expect(comms[0], "send", exchange(0, &send, 1, 0.2), PC_TIMEDOUT);
}

/* A send to a peer that reads ends, whoever else does not. */
static void beside(void)
{
    open_ranks(3);
    struct pc_p2p_op large = message(PC_DIRECTION_SEND, 2, sent, LARGE);
    struct pc_p2p_op small = message(PC_DIRECTION_SEND, 1, sent, 100);
    struct pc_work *work = post(0, &large);
    expect(comms[0], "send", exchange(0, &small, 1, 1.0), PC_OK);
    expect(comms[0], "work", pc_work_wait(work, 0), PC_AGAIN);
    pc_comm_close(comms[0]);
    comms[0] = NULL;
    pc_work_free(work);
}

/* So does a call: here the first of all, which has sent nothing. */
static void call(void)
{
    open_ranks(2);
    struct pc_p2p_op large = message(PC_DIRECTION_SEND, 1, sent, LARGE);
    struct pc_work *work = post(0, &large);
    expect(comms[0], "pairwise", finish(comms[0], pc_pairwise(comms[0], 7, NULL, 0, 1.0)), PC_OK);
    expect(comms[0], "work", pc_work_wait(work, 0), PC_AGAIN);
    pc_comm_close(comms[0]);
    comms[0] = NULL;
    pc_work_free(work);
}

/* Nor does credit for what was received wait for a send that stands before it. */
static void credit(void)
{
    open_ranks(2);
    struct pc_p2p_op large = message(PC_DIRECTION_SEND, 1, sent, LARGE), eight[2][8];
    for (int i = 0; i < 8; i++) {
        eight[0][i] = message(PC_DIRECTION_RECV, 1, got + 100 * i, 100);
        eight[1][i] = message(PC_DIRECTION_SEND, 0, sent + 100 * i, 100);
    }
    struct pc_work *work = post(0, &large);
    expect(comms[1], "sends", finish(comms[1], pc_pairwise(comms[1], 7, eight[1], 8, 1.0)), PC_OK);
    expect(comms[0], "receives", finish(comms[0], pc_pairwise(comms[0], 7, eight[0], 8, 1.0)),
           PC_OK);
    pc_comm_close(comms[0]);
    comms[0] = NULL;
    pc_work_free(work);
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[]
    = {{"order", order},   {"memory", memory}, {"several", several}, {"deadline", deadline},
       {"beside", beside}, {"call", call},     {"credit", credit}};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < sizeof scenarios / sizeof *scenarios; i++)
        if (strcmp(argv[1], scenarios[i].name) == 0) {
            scenarios[i].run();
            for (int r = 0; r < MAX_RANKS; r++)
                pc_comm_close(comms[r]);
            printf("%s\n", argv[1]);
            return 0;
        }
    fprintf(stderr, "usage: %s SCENARIO\n", argv[0]);
    return 2;
}
