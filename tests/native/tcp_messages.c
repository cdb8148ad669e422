/* Messages between two ranks of one thread, joined by a socket.
 *
 *   tcp_messages counts BYTES   how many system calls a message takes; prints sends and receives
 *   tcp_messages lent           a message that is lent may change once it was sent, whatever part
 *                               of it the socket has taken
 *   tcp_messages guesses        lengths change, so that where the next one goes is guessed wrong */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "core/target_cpu.h"

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

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    open_ranks();
    if (strcmp(argv[1], "counts") == 0 && argc == 3)
        count(strtoull(argv[2], NULL, 10));
    else if (strcmp(argv[1], "lent") == 0)
        lend();
    else if (strcmp(argv[1], "guesses") == 0)
        guess();
    else
        return 2;
    for (uint32_t r = 0; r < 2; r++)
        pc_comm_close(comms[r]);
    return 0;
}
