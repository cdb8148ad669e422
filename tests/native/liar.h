/* A peer by RDMA that knows the protocol, and what it may say that it should not. */
#ifndef LIAR_H
#define LIAR_H
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "verbs/verbs.h"

#define PAIRS 4 /* queue pairs of the liar */
#define SENT 64 /* messages that it may repeat */
#define PROBE (7u << 29)

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static void fail(const char *what, const struct pc_error *error)
{
    fprintf(stderr, "%s%s%s\n", what, error ? ": " : "", error ? error->text : "");
    exit(1);
}

struct wireup_message {
    struct pc_wireup_header header;
    union pc_wireup_body body;
};

static const struct pc_verbs_options options
    = {.queue_pairs = 2, .timeout = 8, .retry_count = 1, .srq_from = 1};

struct liar {
    uint32_t rank;
    int fd;
    struct pc_ib_device rail;
    char *memory; /* that rank 1 may write */
    struct ibv_mr *region;
    struct ibv_qp *pairs[PAIRS];
    struct pc_qp_info ends[PAIRS];
    bool connected[PAIRS];
    struct wireup_message sent[SENT];
    uint32_t nsent;
    uint32_t turn, conn;          /* that rank 1 spoke of last */
    struct pc_wireup_hello hello; /* rank 1's */
    struct pc_qp_info heard;      /* of its queue pairs, the last one */
    uint32_t asks;    /* the kind of message in which that was, until it is answered well */
    uint32_t offered; /* bit per connection: rank 1 should have it */
    uint32_t shown;   /* the pair whose end was told last */
    bool lived;       /* rank 1 took one of its paths for good */
};

static void drop_pair(struct liar *l, uint32_t i)
{
    if (l->pairs[i] != NULL)
        pc__ib.destroy_qp(l->pairs[i]);
    l->pairs[i] = NULL;
    l->connected[i] = false;
}

/* What it would say if it were honest. */
static struct pc_wireup_hello greeting(const struct liar *l)
{
    struct pc_wireup_hello hello = l->hello; /* of rank 1: its lengths are right */
    hello.lines = (uintptr_t)l->memory;
    hello.slots = hello.lines + hello.lines_bytes;
    for (uint32_t i = 0; i < PC_MAX_RAILS; i++)
        hello.rails[i].lines_key = hello.rails[i].slots_key = l->region->rkey;
    return hello;
}

static void hear(struct liar *l)
{
    struct wireup_message message;
    static const size_t bytes[] = {
        [PC_WIREUP_HELLO] = sizeof(struct pc_wireup_hello),
        [PC_WIREUP_REQUEST] = sizeof(struct pc_qp_info),
        [PC_WIREUP_REPLY] = sizeof(struct pc_qp_info),
        [PC_WIREUP_FENCED] = sizeof(struct pc_wireup_received),
        [PC_WIREUP_CLOSE] = sizeof(struct pc_wireup_received),
        [PC_WIREUP_ABORTED] = 0,
    };
    while (recv(l->fd, &message.header, sizeof message.header, MSG_PEEK) == sizeof message.header) {
        if (message.header.kind < PC_WIREUP_HELLO || message.header.kind > PC_WIREUP_ABORTED
            || message.header.nbytes != bytes[message.header.kind])
            fail("rank 1 wrote what is no wireup message", NULL);
        size_t whole = sizeof message.header + message.header.nbytes;
        if (recv(l->fd, &message, whole, 0) != (ssize_t)whole)
            fail("rank 1 wrote half a wireup message", NULL);
        if (message.header.kind == PC_WIREUP_HELLO)
            l->hello = message.body.hello;
        if (message.header.kind == PC_WIREUP_REQUEST || message.header.kind == PC_WIREUP_REPLY) {
            l->heard = message.body.end;
            l->asks = message.header.kind;
        }
        l->turn = message.header.turn;
        l->conn = message.header.conn;
        if (message.header.kind == PC_WIREUP_FENCED)
            l->offered &= ~(1u << l->conn);
    }
}

static void write_bytes(struct liar *l, const void *bytes, size_t n)
{
    (void)!send(l->fd, bytes, n, MSG_NOSIGNAL); /* who hung up on a liar does not read */
}

static void noise(void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((unsigned char *)bytes)[i] = (unsigned char)draw(256);
}

/* The end of a queue pair that can be connected, or one that is made up. */
static struct pc_qp_info an_end(struct liar *l)
{
    struct pc_error error;
    struct pc_qp_info end;
    uint32_t i = draw(PAIRS);
    if (draw(3) == 0) {
        noise(&end, sizeof end);
        if (draw(2)) { /* nearly right */
            end = l->heard;
            ((unsigned char *)&end)[draw(sizeof end)] ^= (unsigned char)(1u << draw(8));
        }
        return end;
    }
    drop_pair(l, i);
    if (pc__qp_create(&l->rail, l->rail.pd, NULL, 64, 64, &error, &l->pairs[i], &l->ends[i])
        != PC_OK)
        fail("a queue pair", &error);
    l->shown = i;
    return l->ends[i];
}

/* Connects one of its queue pairs to what rank 1 said last. */
static void connect_pair(struct liar *l)
{
    struct pc_error error;
    uint32_t i = draw(PAIRS);
    if (l->pairs[i] != NULL && !l->connected[i] && l->heard.qpn != 0)
        l->connected[i]
            = pc__qp_connect(&l->rail, l->pairs[i], &l->ends[i], &l->heard, &error) == PC_OK;
}

/* Writes by a pair: nothing or noise over the lines, with an immediate. */
static void write_imm(struct liar *l, uint32_t i, uint32_t imm, bool nothing)
{
    unsigned char bytes[PC_LINE_BYTES];
    struct ibv_sge span = {.addr = (uintptr_t)bytes, .length = sizeof bytes};
    struct ibv_send_wr *bad, request = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                        .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED};
    if (!l->connected[i] || l->hello.nrails == 0)
        return;
    request.imm_data = htonl(imm);
    request.wr.rdma.remote_addr = l->hello.lines + draw(4) * sizeof bytes;
    request.wr.rdma.rkey
        = l->hello.rails[draw(draw(20) ? l->hello.nrails : PC_MAX_RAILS)].lines_key;
    if (!nothing) {
        noise(bytes, sizeof bytes);
        request.sg_list = &span;
        request.num_sge = 1;
        request.send_flags |= IBV_SEND_INLINE;
    }
    ibv_post_send(l->pairs[i], &request, &bad);
}

static void write_by_pair(struct liar *l)
{
    write_imm(l, draw(PAIRS), draw(4) ? draw(1u << 31) << 1 | draw(2) : PROBE, draw(3) != 0);
}

static uint32_t a_path(const struct liar *l)
{
    return draw(l->hello.nrails ? options.queue_pairs * l->hello.nrails : 1);
}

/* Of two ranks the lower one offers. */
static void offer_well(struct liar *l)
{
    struct wireup_message message = {.header = {.magic = PC_WIREUP_MAGIC,
                                                .kind = PC_WIREUP_REQUEST,
                                                .conn = (uint16_t)a_path(l),
                                                .turn = l->turn + 1,
                                                .nbytes = sizeof message.body.end}};
    if (l->rank > 1 || l->offered >> message.header.conn & 1)
        return;
    l->offered |= 1u << message.header.conn;
    message.body.end = an_end(l);
    write_bytes(l, &message, sizeof message.header + message.header.nbytes);
}

/* As an honest rank does: the connection lives then. */
static void answer_well(struct liar *l)
{
    struct pc_error error;
    struct wireup_message message = {.header = {.magic = PC_WIREUP_MAGIC,
                                                .kind = PC_WIREUP_REPLY,
                                                .conn = (uint16_t)l->conn,
                                                .turn = l->turn,
                                                .nbytes = sizeof message.body.end}};
    uint32_t i = l->shown;
    if (l->asks == PC_WIREUP_REQUEST) {
        i = draw(PAIRS);
        drop_pair(l, i);
        if (pc__qp_create(&l->rail, l->rail.pd, NULL, 64, 64, &error, &l->pairs[i], &l->ends[i])
            != PC_OK)
            fail("a queue pair", &error);
    }
    if (l->asks == 0 || l->pairs[i] == NULL || l->connected[i])
        return;
    l->connected[i]
        = pc__qp_connect(&l->rail, l->pairs[i], &l->ends[i], &l->heard, &error) == PC_OK;
    message.body.end = l->ends[i];
    if (l->asks == PC_WIREUP_REQUEST)
        write_bytes(l, &message, sizeof message.header + message.header.nbytes);
    else
        write_imm(l, i, PROBE, true);
    struct ibv_recv_wr *bad, receive = {.wr_id = 0};
    for (uint32_t k = 0; k < 64; k++)
        ibv_post_recv(l->pairs[i], &receive, &bad);
    l->asks = 0;
}

static void make_body(struct liar *l, struct wireup_message *message)
{
    struct pc_wireup_header *header = &message->header;
    uint32_t kind = draw(80);
    header->kind = kind == 0   ? PC_WIREUP_CLOSE
                   : kind == 1 ? PC_WIREUP_HELLO
                   : kind == 2 ? PC_WIREUP_ABORTED
                   : kind < 12 ? PC_WIREUP_REQUEST
                   : kind < 50 ? PC_WIREUP_REPLY
                               : PC_WIREUP_FENCED;
    switch (header->kind) {
    case PC_WIREUP_HELLO:
        message->body.hello = greeting(l);
        message->body.hello.nrails = draw(8) ? 1 + draw(2) : draw(12);
        message->body.hello.queue_pairs = draw(8) ? 1 + draw(2) : draw(12);
        if (draw(8) == 0)
            message->body.hello.lines_bytes += draw(3);
        header->nbytes = sizeof message->body.hello;
        break;
    case PC_WIREUP_REQUEST:
    case PC_WIREUP_REPLY:
        message->body.end = an_end(l);
        header->nbytes = sizeof message->body.end;
        break;
    case PC_WIREUP_ABORTED:
        header->nbytes = 0;
        break;
    default:
        memset(&message->body.landed, 0, sizeof message->body.landed);
        if (draw(2))
            noise(&message->body.landed, sizeof message->body.landed);
        header->nbytes = sizeof message->body.landed;
    }
}

static void write_wireup(struct liar *l)
{
    struct wireup_message message = {.header.magic = PC_WIREUP_MAGIC};
    make_body(l, &message);
    message.header.conn = (uint16_t)(draw(40) ? draw(4) ? l->conn : a_path(l) : draw(1u << 16));
    message.header.turn = l->turn + (draw(4) == 0) - (draw(8) == 0);
    size_t n = sizeof message.header + message.header.nbytes;
    l->sent[l->nsent++ % SENT] = message;
    if (draw(150) == 0)
        message.header.nbytes = draw(2000);
    if (draw(150) == 0)
        ((unsigned char *)&message)[draw(sizeof message.header)] ^= (unsigned char)(1u << draw(8));
    if (draw(150) == 0)
        n = draw((uint32_t)n);
    size_t first = draw(6) ? n : draw((uint32_t)n + 1);
    write_bytes(l, &message, first);
    write_bytes(l, (char *)&message + first, n - first);
}

/* One thing that it says or does. */
static void act(struct liar *l)
{
    unsigned char bytes[300];
    switch (draw(20)) {
    case 0:
        if (draw(6) == 0) {
            noise(bytes, sizeof bytes);
            write_bytes(l, bytes, draw(sizeof bytes));
        }
        break;
    case 1:
        if (l->nsent != 0 && draw(4) == 0) {
            const struct wireup_message *again = &l->sent[draw(l->nsent < SENT ? l->nsent : SENT)];
            write_bytes(l, again, sizeof again->header + again->header.nbytes);
        }
        break;
    case 2:
        if (draw(2))
            drop_pair(l, draw(PAIRS));
        else
            offer_well(l);
        break;
    case 3:
        connect_pair(l);
        break;
    case 4:
    case 5:
    case 6:
    case 7:
    case 8:
        answer_well(l);
        break;
    case 9:
    case 10:
    case 11:
    case 12:
        write_by_pair(l);
        break;
    default:
        write_wireup(l);
    }
}
#endif
