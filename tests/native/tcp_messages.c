/* Messages between two ranks of one thread, joined by a socket.
 *
 *   tcp_messages counts BYTES   how many system calls a message takes; prints sends and receives
 *   tcp_messages lent           a message that is lent may change once it was sent, whatever part
 *                               of it the socket has taken
 *   tcp_messages guesses        lengths change, so that where the next one goes is guessed wrong
 *   tcp_messages expected       messages come where they are expected; prints the receives of 12
 *   tcp_messages withdrawn      until they are not, at whatever part of a message
 *   tcp_messages doubled        one that comes over two sockets at once is refused
 *   tcp_messages unlike         what is not as it was expected, or began before, goes to its slot
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "net/frame.h"

#define SLOTS 32
#define SLOT_BYTES (128u << 10)

static struct pc_comm *comms[2];
static unsigned sends, receives;

/* The engine's calls come here, and are counted. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    sends++;
    return syscall(SYS_sendmsg, fd, message, flags);
}

ssize_t recv(int fd, void *to, size_t nbytes, int flags)
{
    receives++;
    return syscall(SYS_recvfrom, fd, to, nbytes, flags, NULL, NULL);
}

ssize_t readv(int fd, const struct iovec *parts, int nparts)
{
    receives++;
    return syscall(SYS_readv, fd, parts, nparts);
}

static void check(bool good, const char *what, const struct pc_error *error)
{
    if (good)
        return;
    fprintf(stderr, "%s%s%s\n", what, error ? ": " : "", error ? error->text : "");
    exit(1);
}

static void open_ranks(void)
{
    int ends[2];
    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair", NULL);
    for (uint32_t r = 0; r < 2; r++) {
        struct pc_options options = {.rank = r, .size = 2, .slots = SLOTS};
        options.slot_bytes = SLOT_BYTES;
        options.heap_bytes = 4096;
        check(pc_comm_open(&options, &comms[r]) == PC_OK && pc_comm_remote(comms[r], !r) == PC_OK
                  && pc_comm_adopt(comms[r], !r, ends[r]) == PC_OK
                  && pc_comm_sealed(comms[r]) == PC_OK,
              "open", NULL);
    }
}

static struct pc_fifo *fifo(uint32_t rank)
{
    return &comms[rank]->fifos[!rank * PC_EDGE_CHANNELS];
}

static char content(uint64_t number, uint64_t i)
{
    return (char)(number * 7 + i * 3 + i / 251);
}

/* Sends the next message of a rank. It is lent, and changed at once. */
static void send_message(uint32_t rank, uint64_t nbytes)
{
    static char lent[SLOT_BYTES];
    struct pc_fifo *f = fifo(rank);
    struct pc_error error;
    bool inline_ = nbytes <= PC_INLINE_BYTES;
    struct pc_line *line = &f->out_lines[f->sent & (PC_LINES - 1)];
    char *slot = inline_ ? (char *)line->bytes : f->out_data + f->sent % SLOTS * SLOT_BYTES;
    bool lends = nbytes >= comms[rank]->net->ops->lend_from;
    for (uint64_t i = 0; i < nbytes; i++)
        (lends ? lent : slot)[i] = content(f->sent, i);
    line->signature = f->sent;
    check(pc__net_message(f->edge, slot, lends ? lent : NULL, nbytes, &error) == PC_OK, "message",
          &error);
    memset(lent, 0xee, sizeof lent);
}

/* Whether the next message of a rank has come; takes and checks it. */
static bool take_message(uint32_t rank, uint64_t nbytes)
{
    struct pc_fifo *f = fifo(rank);
    struct pc_line *line = &f->in_lines[f->received & (PC_LINES - 1)];
    const char *at = nbytes <= PC_INLINE_BYTES ? (char *)line->bytes
                                               : f->in_data + f->received % SLOTS * SLOT_BYTES;
    if (pc__count(line) <= f->received)
        return false;
    check(line->signature == f->received, "a line came out wrong", NULL);
    for (uint64_t i = 0; i < nbytes; i++)
        check(at[i] == content(f->received, i), "a message came out wrong", NULL);
    pc__net_credit(f->edge, ++f->received);
    return true;
}

static bool flush(uint32_t rank)
{
    struct pc_error error;
    int rc = pc__net_drained(comms[rank]->net, NULL, &error);
    check(rc >= 0, "drained", &error);
    return rc == 1;
}

static void receive(uint32_t rank, uint64_t nbytes)
{
    while (!take_message(rank, nbytes)) {
        if (!flush(!rank)) /* the socket was full */
            pc__net_progress(comms[!rank]->net);
        check(pc__net_poll(comms[rank]->net, !rank) == NULL, "lost", NULL);
    }
}

/* To and fro, as in an all-reduce by doubling. */
static void count(uint64_t nbytes)
{
    unsigned messages = 0;
    for (int turn = 0; turn < 110; turn++) {
        if (turn == 10)
            sends = receives = messages = 0;
        for (uint32_t rank = 0; rank < 2; rank++, messages++) {
            send_message(rank, nbytes);
            flush(rank);
        }
        for (uint32_t rank = 0; rank < 2; rank++)
            receive(rank, nbytes);
    }
    printf("%u messages, %u sends, %u receives\n", messages, sends, receives);
}

static void lend(void)
{
    int few = 4096;
    /* The engine does not show its socket; its descriptors are few. */
    for (int fd = 0; fd < 64; fd++)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &few, sizeof few);
    for (uint64_t nbytes = 4096; nbytes <= SLOT_BYTES; nbytes += 4096 + 64) {
        /* More than half of the slots, as credit for less than half may be held back. */
        int room = SLOTS - (int)(fifo(0)->sent - pc__count(fifo(0)->out_credit));
        check(room > SLOTS / 2, "too little credit", NULL);
        for (int k = 0; k < room; k++)
            send_message(0, nbytes);
        for (int k = 0; k < room; k++)
            receive(1, nbytes);
        pc__net_progress(comms[1]->net); /* sends the credit */
        pc__net_progress(comms[0]->net);
    }
    printf("lent\n");
}

static void guess(void)
{
    static const uint64_t lengths[] = {4096,  4096,  16384, 16384,     4096,  8,     8,  65536,
                                       65536, 65536, 16384, 128 << 10, 65536, 65536, 41, 4096};
    enum { N = sizeof lengths / sizeof *lengths };
    for (int first = 0; first < N; first++)
        for (int many = 1; many <= 3; many++) { /* what comes at once: a guess meets several */
            for (int k = 0; k < N; k += many) {
                int end = k + many < N ? k + many : N;
                for (int i = k; i < end; i++)
                    send_message(0, lengths[(first + i) % N]);
                for (int i = k; i < end; i++)
                    receive(1, lengths[(first + i) % N]);
                pc__net_progress(comms[0]->net); /* takes the credit */
            }
        }
    printf("guesses\n");
}

/* Memory of its own for each message: what is written behind or after it shows under ASan. */
static char *expect(uint32_t rank, uint64_t nbytes, uint64_t signature)
{
    struct pc_fifo *f = fifo(rank);
    char *into = malloc(nbytes);
    const struct pc_net_expected expected
        = {.into = into, .nbytes = nbytes, .signature = signature, .count = f->received + 1};
    check(into != NULL, "malloc", NULL);
    memset(into, 0x55, nbytes);
    pc__net_expect(f->edge, &expected);
    return into;
}

static bool holds_next(uint32_t rank, const char *at, uint64_t nbytes)
{
    for (uint64_t i = 0; i < nbytes; i++)
        if (at[i] != content(fifo(rank)->received, i))
            return false;
    return true;
}

/* One that came along with the message before may have gone to its slot. */
static void receive_expected(uint32_t rank, uint64_t nbytes, bool alone)
{
    struct pc_fifo *f = fifo(rank);
    struct pc_line *line = &f->in_lines[f->received & (PC_LINES - 1)];
    char *into = expect(rank, nbytes, f->received);
    while (pc__count(line) <= f->received) {
        flush(!rank);
        check(pc__net_poll(comms[rank]->net, !rank) == NULL, "lost", NULL);
    }
    if (f->edge->landed == f->received + 1) {
        check(holds_next(rank, into, nbytes), "it came out wrong", NULL);
        pc__net_credit(f->edge, ++f->received);
    } else {
        check(!alone, "it did not land", NULL);
        check(take_message(rank, nbytes), "it is nowhere", NULL);
    }
    free(into);
}

static void expect_all(void)
{
    static const uint64_t lengths[] = {64, 4096, 4096, 16384, 65536, 65536, 4097, 128 << 10};
    for (int round = 0; round < 8; round++) {
        for (int many = 1; many <= 4; many++)
            for (int k = 0; k < 8; k += many) {
                for (int i = k; i < k + many && i < 8; i++)
                    send_message(0, lengths[(round + i) % 8]);
                for (int i = k; i < k + many && i < 8; i++)
                    receive_expected(1, lengths[(round + i) % 8], many == 1);
                pc__net_progress(comms[0]->net);
            }
    }
    for (int k = 0; k < 13; k++) { /* fewer than are answered by credit */
        receives = k == 1 ? 0 : receives;
        send_message(0, 16384);
        receive_expected(1, 16384, true);
        pc__net_progress(comms[1]->net);
    }
    printf("%u receives\n", receives);
}

/* The sockets take a part, then the expectation is withdrawn and its memory freed. */
static void withdraw(void)
{
    int few = 4096;
    for (int fd = 0; fd < 64; fd++)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &few, sizeof few);
    unsigned within = 0;
    for (int polls = 0; polls < 60; polls++) {
        struct pc_fifo *f = fifo(1);
        send_message(0, SLOT_BYTES);
        char *into = expect(1, SLOT_BYTES, f->received);
        for (int k = 0; k < polls / 2 && f->edge->landed <= f->received; k++) {
            flush(0);
            check(pc__net_poll(comms[1]->net, 0) == NULL, "lost", NULL);
        }
        bool landed = f->edge->landed > f->received;
        within += !landed && into[0] == content(f->received, 0);
        pc__net_unexpect(comms[1]->net);
        check(!landed || holds_next(1, into, SLOT_BYTES), "it came out wrong", NULL);
        free(into);
        if (landed)
            pc__net_credit(f->edge, ++f->received);
        else
            receive(1, SLOT_BYTES);
        pc__net_progress(comms[1]->net);
        pc__net_progress(comms[0]->net);
    }
    check(within > 2, "no message was cut in the middle", NULL);
    printf("withdrawn\n");
}

static void differ(void)
{
    struct pc_fifo *f = fifo(1);
    int few = 4096;
    for (int k = 0; k < 3; k++) {
        uint64_t nbytes = k == 0 ? 16384 : 65536;
        send_message(0, 65536); /* shorter, of another call, further on */
        char *into = expect(1, nbytes, f->received + (k == 1));
        if (k == 2) {
            f->edge->expected.count++;
            send_message(0, 64);
        }
        receive(1, 65536);
        check(f->edge->landed == 0 && into[0] == 0x55 && into[nbytes - 1] == 0x55, "it landed",
              NULL);
        if (k == 2)
            receive(1, 64);
        pc__net_unexpect(comms[1]->net);
        free(into);
        pc__net_progress(comms[0]->net);
    }
    for (int fd = 0; fd < 64; fd++)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &few, sizeof few);
    send_message(0, SLOT_BYTES);
    flush(0);
    check(pc__net_poll(comms[1]->net, 0) == NULL, "lost", NULL);
    char *late = expect(1, SLOT_BYTES, f->received);
    receive(1, SLOT_BYTES);
    check(f->edge->landed == 0 && late[0] == 0x55 && late[SLOT_BYTES - 1] == 0x55, "it landed",
          NULL);
    pc__net_unexpect(comms[1]->net);
    free(late);
    check(pc_comm_abort(comms[1], PC_ABORTED, -1, "the test") == PC_OK, "abort", NULL);
    free(expect(1, 65536, f->received));
    check(f->edge->expected.into == NULL, "a broken communicator expects a message", NULL);
    printf("unlike\n");
}

/* A peer of two sockets that brings one message by both, and would end it behind the call. */
static void refuse_doubled(void)
{
    enum { NBYTES = 65536 };
    static char bytes[NBYTES];
    struct pc_options options = {.rank = 1, .size = 2, .slots = SLOTS, .slot_bytes = SLOT_BYTES};
    struct pc_frame frame = {.magic = PC_FRAME_MAGIC,
                             .kind = PC_FRAME_MESSAGE,
                             .nbytes = NBYTES,
                             .count = 1,
                             .signature = 5};
    int ends[2][2];
    options.heap_bytes = 4096;
    check(pc_comm_open(&options, &comms[1]) == PC_OK && pc_comm_remote(comms[1], 0) == PC_OK,
          "open", NULL);
    for (int i = 0; i < 2; i++)
        check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends[i]) == 0
                  && pc_comm_adopt(comms[1], 0, ends[i][1]) == PC_OK,
              "adopt", NULL);
    check(pc_comm_sealed(comms[1]) == PC_OK, "sealed", NULL);
    char *into = expect(1, NBYTES, 5);
    const struct pc_error *fault = NULL;
    for (int i = 0; i < 2; i++) { /* a part by the first, then all by the second */
        check(write(ends[i][0], &frame, sizeof frame) == sizeof frame
                  && write(ends[i][0], bytes, i == 0 ? 100 : NBYTES) > 0,
              "write", NULL);
        for (int k = 0; k < 8 && fault == NULL; k++)
            fault = pc__net_poll(comms[1]->net, 0);
    }
    check(fault != NULL && strstr(fault->text, "message 1, which another connection"),
          "it was not refused", fault);
    check(fifo(1)->edge->landed == 0, "it landed", NULL);
    pc__net_unexpect(comms[1]->net);
    free(into);
    if (write(ends[0][0], bytes, 100) > 0) /* the socket is shut down */
        for (int k = 0; k < 8; k++)
            pc__net_progress(comms[1]->net);
    pc_comm_close(comms[1]);
    printf("doubled\n");
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    if (strcmp(argv[1], "doubled") == 0) {
        signal(SIGPIPE, SIG_IGN);
        refuse_doubled();
        return 0;
    }
    open_ranks();
    if (strcmp(argv[1], "counts") == 0 && argc == 3)
        count(strtoull(argv[2], NULL, 10));
    else if (strcmp(argv[1], "lent") == 0)
        lend();
    else if (strcmp(argv[1], "guesses") == 0)
        guess();
    else if (strcmp(argv[1], "expected") == 0)
        expect_all();
    else if (strcmp(argv[1], "withdrawn") == 0)
        withdraw();
    else if (strcmp(argv[1], "unlike") == 0)
        differ();
    else
        return 2;
    for (uint32_t r = 0; r < 2; r++)
        pc_comm_close(comms[r]);
    return 0;
}
