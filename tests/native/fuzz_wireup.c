/* Lies to a rank in wireup messages, under AddressSanitizer: this program is the peer that reaches
 * it by RDMA, with the stand-in for libibverbs.
 *
 *   fuzz_wireup SEED ITERATIONS
 *
 * Each turn is rank 1 of 3, to which one of the others lies and the third is honest. The liar knows
 * the protocol: it greets, offers, answers, has queue pairs that can be connected and writes
 * immediates by them; and it says all that too often, too early, about other paths and turns, with
 * wrong lengths and contents, cut anywhere, and over again. Whatever it says, rank 1 stays usable,
 * and what the honest rank and rank 1 send to each other arrives. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "core/internal.h"
#include "liar.h"

#define SIZE 3
#define SLOTS 4
#define SLOT_BYTES 4096u
#define ACTIONS 60
#define CHANNEL 1    /* on which ranks that are honest send */
#define PATIENCE 500 /* milliseconds */

struct job {
    struct pc_comm *rank1, *honest;
    struct liar liar;
    uint64_t sent[2], got[2]; /* from rank 1 to the honest one, and back */
};

static struct pc_comm *open_rank(uint32_t rank, const char *device, uint32_t rails)
{
    struct pc_options o = {
        .rank = rank, .size = SIZE, .slots = SLOTS, .slot_bytes = SLOT_BYTES, .heap_bytes = 4096};
    struct pc_rail_spec specs[2];
    struct pc_comm *comm;
    char blob[256];
    for (uint32_t i = 0; i < rails; i++) {
        specs[i] = (struct pc_rail_spec){.port = 1, .gid_index = -1};
        snprintf(specs[i].device, sizeof specs[i].device, "%s%u", device, 2 * rank + i);
    }
    if (pc_comm_open(&o, &comm) != PC_OK || pc_comm_rails(comm, &options, specs, rails) != PC_OK)
        fail("open", pc_comm_error(comm));
    for (uint32_t peer = 0; peer < SIZE; peer++)
        if (peer != rank && pc_comm_remote(comm, peer) != PC_OK)
            fail("remote", pc_comm_error(comm));
    int n = pc_comm_address(comm, blob, sizeof blob);
    if (pc_comm_connect(comm, rank, blob, (size_t)n) != PC_OK || pc_comm_sealed(comm) != PC_OK)
        fail("connect", pc_comm_error(comm));
    return comm;
}

static void link_two(struct pc_comm *one, uint32_t other, int *end)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0
        || pc_comm_adopt(one, other, ends[0]) != PC_OK)
        fail("adopt", NULL);
    *end = ends[1];
}

static void open_job(struct job *j)
{
    struct pc_error error;
    struct pc_rail_spec spec = {.device = "fake7", .port = 1, .gid_index = -1};
    *j = (struct job){.liar.rank = 2 * draw(2)};
    uint32_t honest = 2 - j->liar.rank;
    j->rank1 = open_rank(1, "fake", 1 + draw(2));
    j->honest = open_rank(honest, "fake", 1 + draw(2));
    int end;
    link_two(j->rank1, honest, &end);
    if (pc_comm_adopt(j->honest, 1, end) != PC_OK)
        fail("adopt", NULL);
    link_two(j->rank1, j->liar.rank, &j->liar.fd);
    if (pc__ib_device_open(&spec, &options, 1 << 14, &error, &j->liar.rail) != PC_OK)
        fail("rail", &error);
    size_t nbytes = PC_EDGE_LINES * PC_LINE_BYTES + PC_EDGE_CHANNELS * SLOTS * SLOT_BYTES;
    j->liar.memory = malloc(nbytes);
    j->liar.region = pc__ib.reg_mr(j->liar.rail.pd, j->liar.memory, nbytes,
                                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

static void close_job(struct job *j)
{
    for (uint32_t i = 0; i < PAIRS; i++)
        drop_pair(&j->liar, i);
    pc__ib.dereg_mr(j->liar.region);
    free(j->liar.memory);
    pc__ib_device_close(&j->liar.rail);
    if (j->liar.fd >= 0)
        close(j->liar.fd);
    pc_comm_close(j->rank1);
    pc_comm_close(j->honest);
}

/* Between the two that are honest. */

static void talk(struct job *j, struct pc_comm *from, struct pc_comm *to, uint64_t *sent,
                 uint64_t *got)
{
    struct pc_fifo *out = &from->fifos[to->options.rank * PC_EDGE_CHANNELS + CHANNEL];
    struct pc_fifo *in = &to->fifos[from->options.rank * PC_EDGE_CHANNELS + CHANNEL];
    struct pc_error error;
    if (*sent - pc__count(out->out_credit) < SLOTS && draw(2)) {
        struct pc_line *line = &out->out_lines[*sent & (PC_LINES - 1)];
        uint64_t content = *sent * 3 + from->options.rank;
        memcpy(line->bytes, &content, sizeof content);
        if (pc__net_message(out->edge, (char *)line->bytes, NULL, sizeof content, &error) != PC_OK)
            fail("a message of the honest", &error);
        ++*sent;
    }
    struct pc_line *line = &in->in_lines[*got & (PC_LINES - 1)];
    if (pc__count(line) > *got) {
        uint64_t content, want = *got * 3 + from->options.rank;
        memcpy(&content, line->bytes, sizeof content);
        if (content != want)
            fail("a message came out wrong", NULL);
        in->received = ++*got;
        pc__net_credit(in->edge, *got);
    }
    (void)j;
}

/* Rank 1 also has something to say to the liar. */
static void talk_to_liar(struct job *j)
{
    struct pc_error error;
    struct pc_fifo *f = &j->rank1->fifos[j->liar.rank * PC_EDGE_CHANNELS + draw(PC_EDGE_CHANNELS)];
    struct pc_line *line = &f->out_lines[f->sent & (PC_LINES - 1)];
    if (f->sent - pc__count(f->out_credit) < SLOTS
        && pc__net_fault(j->rank1->net, j->liar.rank) == NULL)
        pc__net_message(f->edge, (char *)line->bytes, NULL, 8, &error);
}

static void pump(struct job *j)
{
    struct pc_comm *both[] = {j->rank1, j->honest};
    for (uint32_t i = 0; i < 2; i++) {
        pc_comm_handle_events(both[i]);
        pc__net_progress(both[i]->net);
    }
    talk(j, j->rank1, j->honest, &j->sent[0], &j->got[0]);
    talk(j, j->honest, j->rank1, &j->sent[1], &j->got[1]);
    if (draw(4) == 0)
        talk_to_liar(j);
}

/* The greeting comes first, or rank 1 would not go on. */
static void greet(struct job *j)
{
    struct wireup_message message = {.header = {.magic = PC_WIREUP_MAGIC, .kind = PC_WIREUP_HELLO}};
    hear(&j->liar);
    message.body.hello = greeting(&j->liar);
    message.header.nbytes = sizeof message.body.hello;
    write_bytes(&j->liar, &message, sizeof message.header + message.header.nbytes);
}

static bool turn(struct job *j)
{
    bool greets = draw(10) != 0;
    if (greets)
        greet(j);
    for (uint32_t i = draw(ACTIONS); i > 0; i--) {
        act(&j->liar);
        pump(j);
        if (draw(3) == 0)
            poll(NULL, 0, 1); /* the network's turn */
        hear(&j->liar);
        pump(j);
        j->liar.lived
            |= pc__verbs_peer((struct pc_verbs_net *)j->rank1->net, j->liar.rank)->live != 0;
    }
    const struct pc_error *fault = pc__net_fault(j->rank1->net, j->liar.rank);
    bool refused = fault != NULL;
    if (refused && (fault->peer != (int)j->liar.rank || fault->code >= 0 || fault->text[0] == 0))
        fail("a fault of another kind", fault);
    if (draw(2)) {
        close(j->liar.fd);
        j->liar.fd = -1;
    }
    uint64_t sent[2] = {j->sent[0] + 3, j->sent[1] + 3}; /* the honest go on */
    for (int ms = 0; j->got[0] < sent[0] || j->got[1] < sent[1]; ms++) {
        if (ms > PATIENCE * 100)
            fail("the honest ranks are stuck", NULL);
        pump(j);
        if (ms > PATIENCE)
            poll(NULL, 0, 1);
    }
    if (pc__net_fault(j->rank1->net, j->honest->options.rank) != NULL)
        fail("the honest rank is lost", pc__net_fault(j->rank1->net, j->honest->options.rank));
    return refused;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s SEED ITERATIONS\n", argv[0]);
        return 2;
    }
    state = strtoull(argv[1], NULL, 10);
    int iterations = atoi(argv[2]), refused = 0, lived = 0;
    for (int i = 0; i < iterations; i++) {
        struct job j;
        open_job(&j);
        refused += turn(&j);
        lived += j.liar.lived;
        close_job(&j);
    }
    printf("%d liars, %d refused, %d with a path\n", iterations, refused, lived);
    return 0;
}
