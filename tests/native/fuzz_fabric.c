/* Lies to a rank over libfabric, under AddressSanitizer: this program is the remote peer.
 *
 *   fuzz_fabric SEED ITERATIONS
 *
 * Each turn is one rank 0 of 3 with an endpoint of the stand-in for libfabric (tests/fakefabric),
 * which is loaded in place of it, and packets and writes for it, in any order. In some turns all
 * are right: then each message must arrive as it was sent. In the others some are damaged: then no
 * byte may change outside the memory that rank 1 fills, and the rank stays usable. */
#include "fabric_liar.h"

#ifdef PC_LIBFABRIC
#define MOST 40 /* datagrams that wait to be sent */

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

struct datagram {
    size_t nbytes;
    char *bytes;
};

struct fuzz {
    struct liar liar;
    uint64_t sent[PC_EDGE_CHANNELS], writes;
    uint32_t lengths[PC_EDGE_CHANNELS][PC_LINES];
    struct datagram waiting[MOST];
    uint32_t nwaiting;
    bool honest;
};

static char content(uint32_t channel, uint64_t number, uint64_t i)
{
    return (char)(channel * 31 + number * 7 + i * 3 + 1);
}

/* Meets rank 0 by a greeting that may be damaged. */
static void meet(struct fuzz *l)
{
    *l = (struct fuzz){.honest = draw(4) == 0};
    liar_open(&l->liar);
    struct pc_fabric_wireup mine = liar_greeting(&l->liar);
    mine.key = draw(1u << 30);
    if (!l->honest && draw(8) == 0)
        ((char *)&mine)[draw(offsetof(struct pc_fabric_wireup, address))] ^= (char)(1 << draw(8));
    liar_writes(&l->liar, &mine);
}

static void wait_to_send(struct fuzz *l, const struct wire *wire, const void *head, size_t nhead,
                         const char *bytes, size_t nbytes)
{
    struct datagram *one = &l->waiting[l->nwaiting++];
    one->nbytes = sizeof *wire + nhead + nbytes;
    one->bytes = malloc(one->nbytes);
    memcpy(one->bytes, wire, sizeof *wire);
    memcpy(((struct wire *)one->bytes)->from, l->liar.name, NAME);
    if (nhead != 0)
        memcpy(one->bytes + sizeof *wire, head, nhead);
    if (nbytes != 0)
        memcpy(one->bytes + sizeof *wire + nhead, bytes, nbytes);
}

/* Damages the header of a liar's message now and then. */
static void damage(struct fuzz *l, struct pc_fabric_head *head)
{
    uint64_t *const fields[] = {&head->received,    &head->at,           &head->frame.nbytes,
                                &head->frame.count, &head->frame.credit, &head->frame.signature};
    if (l->honest || draw(12) != 0)
        return;
    switch (draw(4)) {
    case 0:
        *fields[draw(6)] += draw(2) ? 1 : UINT64_MAX;
        break;
    case 1:
        *fields[draw(6)] = draw(2) ? UINT64_MAX : UINT64_C(1) << draw(64);
        break;
    case 2:
        head->written ^= 1u << draw(2);
        break;
    default:
        ((unsigned char *)head)[8 + draw(sizeof *head - 8)] ^= (unsigned char)(1u << draw(8));
    }
}

/* A packet, which a liar may damage. */
static void wait_to_send_packet(struct fuzz *l, struct pc_fabric_head *head, const char *bytes,
                                size_t nbytes)
{
    const struct wire wire = {0};
    size_t nhead = sizeof *head;
    head->key = l->liar.hello.key;
    head->rank = 1;
    damage(l, head);
    if (!l->honest && nbytes != 0 && draw(40) == 0)
        nbytes = draw((uint32_t)nbytes);
    wait_to_send(l, &wire, head, nhead, bytes, nbytes);
    if (!l->honest && draw(40) == 0 && l->nwaiting < MOST)
        wait_to_send(l, &wire, head, nhead, bytes, nbytes); /* the same once more */
}

/* A message that is written; with its header, if that is to be joined. */
static void wait_to_send_write(struct fuzz *l, const struct pc_fabric_head *joined,
                               uint32_t channel, uint64_t number, const char *bytes, size_t nbytes)
{
    uint32_t line = channel * PC_LINES + (uint32_t)number % PC_LINES;
    struct wire wire = {.write = ++l->writes,
                        .key = l->liar.hello.slots_key,
                        .at = liar_place(&l->liar, channel, number, nbytes),
                        .total = nbytes + (joined != NULL ? sizeof *joined : 0),
                        .data = 1u << 10 | (joined != NULL) << 9 | line};
    if (!l->honest && draw(6) == 0)
        wire.data = draw(2) ? wire.data ^ 1u << draw(32) : draw(1u << 12);
    wait_to_send(l, &wire, NULL, 0, bytes, nbytes);
    if (joined == NULL)
        return;
    struct pc_fabric_head head = *joined;
    damage(l, &head);
    wire.key = l->liar.hello.heads_key;
    wire.at = line * sizeof head;
    wait_to_send(l, &wire, &head, sizeof head, NULL, 0);
}

/* The next message, where there is room for it. */
static void send_message(struct fuzz *l)
{
    static char bytes[SLOT_BYTES];
    uint32_t c = draw(PC_MAX_CHANNELS),
             nbytes = draw(3) ? draw(draw(2) ? SLOT_BYTES : 2048) + 1 : draw(41);
    struct pc_fifo *f = liar_fifo(&l->liar, c);
    uint64_t number = l->sent[c];
    if (number - f->received >= SLOTS || l->nwaiting + 6 > MOST)
        return;
    for (uint64_t k = f->received; k < number; k++) /* a Program has all in slots, or none */
        if ((l->lengths[c][k % PC_LINES] <= PC_INLINE_BYTES) != (nbytes <= PC_INLINE_BYTES))
            return;
    for (uint32_t i = 0; i < nbytes; i++)
        bytes[i] = content(c, number, i);
    struct pc_fabric_head head = {.frame = {.magic = PC_FRAME_MAGIC,
                                            .kind = PC_FRAME_MESSAGE,
                                            .channel = (uint8_t)c,
                                            .nbytes = nbytes,
                                            .count = number + 1,
                                            .signature = number * 3 + c}};
    l->lengths[c][number % PC_LINES] = nbytes;
    l->sent[c]++;
    if (nbytes > PC_INLINE_BYTES && draw(2)) {
        head.written = 1;
        wait_to_send_write(l, &head, c, number, bytes, nbytes);
        return;
    }
    if (nbytes > PC_FABRIC_FRAGMENT && draw(2)) {
        head.written = 1;
        wait_to_send_write(l, NULL, c, number, bytes, nbytes);
        wait_to_send_packet(l, &head, NULL, 0);
        return;
    }
    do {
        size_t rest = nbytes - head.at, n = rest < PC_FABRIC_FRAGMENT ? rest : PC_FABRIC_FRAGMENT;
        struct pc_fabric_head this = head;
        wait_to_send_packet(l, &this, bytes + head.at, n);
        head.at += n;
    } while (head.at < nbytes);
}

/* Sends one of those that wait, any. */
static void send_one(struct fuzz *l)
{
    struct sockaddr_un to;
    socklen_t length = address_of(l->liar.hello.address, &to);
    if (l->nwaiting == 0)
        return;
    uint32_t i = draw(l->nwaiting);
    if (sendto(l->liar.packets, l->waiting[i].bytes, l->waiting[i].nbytes, MSG_DONTWAIT,
               (struct sockaddr *)&to, length)
        < 0)
        return;
    free(l->waiting[i].bytes);
    l->waiting[i] = l->waiting[--l->nwaiting];
}

static void consume(struct fuzz *l)
{
    for (uint32_t c = 0; c < PC_EDGE_CHANNELS; c++) {
        struct pc_fifo *f = liar_fifo(&l->liar, c);
        struct pc_line *line;
        while (line = &f->in_lines[f->received % PC_LINES], pc__count(line) > f->received) {
            uint32_t nbytes = l->lengths[c][f->received % PC_LINES];
            uint64_t n = f->received;
            const char *at = f->in_data + n % SLOTS * SLOT_BYTES;
            if (nbytes <= PC_INLINE_BYTES)
                at = (char *)line->bytes;
            else if (nbytes <= SMALL_BYTES)
                at = f->in_data + SLOTS * SLOT_BYTES + n % PC_LINES * (SMALL_BYTES + PC_LINE_BYTES);
            if (pc__count(line) != f->received + 1)
                fail("a line was raised too far", NULL);
            for (uint32_t i = 0; l->honest && i < nbytes; i++)
                if (at[i] != content(c, f->received, i))
                    fail("a message came out wrong", NULL);
            if (l->honest && line->signature != f->received * 3 + c)
                fail("a line came out wrong", NULL);
            pc__net_credit(f->edge, ++f->received);
        }
    }
}

static bool all_came(struct fuzz *l)
{
    for (uint32_t c = 0; c < PC_EDGE_CHANNELS; c++)
        if (liar_fifo(&l->liar, c)->received != l->sent[c])
            return false;
    return true;
}

/* True when rank 0 has refused something. */
static bool turn(struct fuzz *l)
{
    uint32_t messages = 1 + draw(30);
    const struct pc_error *fault = NULL;
    for (uint32_t k = 0; k < 4000 && fault == NULL; k++) {
        if (messages != 0 && draw(3) == 0) {
            send_message(l);
            messages--;
        }
        send_one(l);
        liar_progress(&l->liar);
        consume(l);
        fault = pc__net_fault(l->liar.comm->net, 1);
        if (messages == 0 && l->nwaiting == 0 && all_came(l))
            break;
    }
    if (l->honest && (fault != NULL || !all_came(l)))
        fail("an honest peer was refused, or a message is missing", fault);
    if (fault != NULL
        && (fault->peer != 1 || (fault->code != PC_INVALID && fault->code != PC_LOST)))
        fail("a fault of another kind", fault);
    close(l->liar.letters);
    for (fault = NULL; fault == NULL; fault = pc__net_fault(l->liar.comm->net, 1)) {
        l->liar.comm->net->events_pending = true;
        liar_progress(&l->liar);
    }
    return fault->code == PC_INVALID;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s SEED ITERATIONS\n", argv[0]);
        return 2;
    }
    state = strtoull(argv[1], NULL, 10);
    int iterations = atoi(argv[2]), refused = 0;
    for (int i = 0; i < iterations; i++) {
        struct fuzz l;
        meet(&l);
        refused += turn(&l);
        liar_check_memory(&l.liar);
        pc_comm_close(l.liar.comm);
        close(l.liar.packets);
        while (l.nwaiting != 0)
            free(l.waiting[--l.nwaiting].bytes);
    }
    printf("%d liars, %d refused\n", iterations, refused);
    return 0;
}
#endif
