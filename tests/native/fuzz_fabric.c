/* Lies to a rank over libfabric, under AddressSanitizer: this program is the remote peer.
 *
 *   fuzz_fabric SEED ITERATIONS
 *
 * Each turn is one rank 0 of 3 with an endpoint of the stand-in for libfabric (tests/fakefabric),
 * which is loaded in place of it, and packets and writes for it, in any order. In some turns all
 * are right: then each message must arrive as it was sent. In the others some are damaged: then no
 * byte may change outside the memory that rank 1 fills, and the rank stays usable. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../fakefabric/wire.h"
#include "libfabric/fabric.h"

#ifdef PC_LIBFABRIC
#define SLOTS 4
#define SLOT_BYTES (64u << 10)
#define SMALL_BYTES 1024u
#define MOST 40 /* datagrams that wait to be sent */

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

struct datagram {
    size_t nbytes;
    char *bytes;
};

struct liar {
    struct pc_comm *comm;
    int letters, packets;
    struct pc_fabric_wireup hello; /* rank 0's */
    char name[NAME];
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

static struct pc_fifo *fifo(struct liar *l, uint32_t channel)
{
    return &l->comm->fifos[PC_EDGE_CHANNELS + channel]; /* of rank 1 */
}

static void progress(struct liar *l)
{
    char unread[1 << 16];
    pc__net_progress(l->comm->net);
    while (recv(l->packets, unread, sizeof unread, MSG_DONTWAIT) > 0) {
    }
}

/* Meets rank 0: its greeting comes, and an own one is the answer, which may be damaged. */
static void meet(struct liar *l)
{
    struct pc_fabric_wireup mine;
    size_t n = 0;
    while (n < sizeof l->hello) {
        ssize_t more = recv(l->letters, (char *)&l->hello + n, sizeof l->hello - n, MSG_DONTWAIT);
        n += more > 0 ? (size_t)more : 0;
        progress(l);
    }
    mine = l->hello;
    memcpy(mine.address, l->name, NAME);
    mine.key = draw(1u << 30);
    if (!l->honest && draw(8) == 0)
        ((char *)&mine)[draw(offsetof(struct pc_fabric_wireup, address))] ^= (char)(1 << draw(8));
    if (send(l->letters, &mine, sizeof mine, 0) != sizeof mine)
        fail("no greeting", NULL);
    for (int i = 0; i < 8; i++) {
        l->comm->net->events_pending = true;
        progress(l);
    }
}

static void open_rank(struct liar *l)
{
    static int made;
    struct pc_options options
        = {.rank = 0, .size = 3, .slots = SLOTS, .slot_bytes = SLOT_BYTES, .heap_bytes = 4096};
    options.small_bytes = SMALL_BYTES;
    struct pc_fabric_options fabric = {.provider = "efa"};
    struct sockaddr_un name;
    int ends[2];
    *l = (struct liar){.honest = draw(4) == 0};
    snprintf(l->name, sizeof l->name, "liar/%d/%d", (int)getpid(), made++);
    l->packets = socket(AF_UNIX, SOCK_DGRAM, 0);
    socklen_t length = address_of(l->name, &name);
    if (pc_comm_open(&options, &l->comm) != PC_OK
        || pc_comm_net(l->comm, "libfabric", &fabric, sizeof fabric) != PC_OK
        || pc_comm_remote(l->comm, 1) != PC_OK || pc_comm_remote(l->comm, 2) != PC_OK
        || pc_comm_sealed(l->comm) != PC_OK)
        fail("open", pc_comm_error(l->comm));
    if (bind(l->packets, (struct sockaddr *)&name, length) != 0
        || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0
        || pc_comm_adopt(l->comm, 1, ends[0]) != PC_OK)
        fail("sockets", NULL);
    l->letters = ends[1];
    meet(l);
}

static void wait_to_send(struct liar *l, const struct wire *wire, const void *head, size_t nhead,
                         const char *bytes, size_t nbytes)
{
    struct datagram *one = &l->waiting[l->nwaiting++];
    one->nbytes = sizeof *wire + nhead + nbytes;
    one->bytes = malloc(one->nbytes);
    memcpy(one->bytes, wire, sizeof *wire);
    memcpy(((struct wire *)one->bytes)->from, l->name, NAME);
    if (nhead != 0)
        memcpy(one->bytes + sizeof *wire, head, nhead);
    if (nbytes != 0)
        memcpy(one->bytes + sizeof *wire + nhead, bytes, nbytes);
}

/* Damages the header of a liar's message now and then. */
static void damage(struct liar *l, struct pc_fabric_head *head)
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
static void wait_to_send_packet(struct liar *l, struct pc_fabric_head *head, const char *bytes,
                                size_t nbytes)
{
    const struct wire wire = {0};
    size_t nhead = sizeof *head;
    head->key = l->hello.key;
    head->rank = 1;
    damage(l, head);
    if (!l->honest && nbytes != 0 && draw(40) == 0)
        nbytes = draw((uint32_t)nbytes);
    wait_to_send(l, &wire, head, nhead, bytes, nbytes);
    if (!l->honest && draw(40) == 0 && l->nwaiting < MOST)
        wait_to_send(l, &wire, head, nhead, bytes, nbytes); /* the same once more */
}

/* A message that is written; with its header, if that is to be joined. */
static void wait_to_send_write(struct liar *l, const struct pc_fabric_head *joined,
                               uint32_t channel, uint64_t number, const char *bytes, size_t nbytes)
{
    uint32_t line = channel * PC_LINES + (uint32_t)number % PC_LINES;
    uint64_t slots = (uint64_t)SLOTS * SLOT_BYTES, small = SMALL_BYTES + PC_LINE_BYTES;
    uint64_t in_channel
        = nbytes > SMALL_BYTES ? number % SLOTS * SLOT_BYTES : slots + number % PC_LINES * small;
    struct wire wire = {.write = ++l->writes,
                        .key = l->hello.slots_key,
                        .at = channel * l->comm->layout.channel + in_channel,
                        .total = nbytes + (joined != NULL ? sizeof *joined : 0),
                        .data = 1u << 10 | (joined != NULL) << 9 | line};
    if (!l->honest && draw(6) == 0)
        wire.data = draw(2) ? wire.data ^ 1u << draw(32) : draw(1u << 12);
    wait_to_send(l, &wire, NULL, 0, bytes, nbytes);
    if (joined == NULL)
        return;
    struct pc_fabric_head head = *joined;
    damage(l, &head);
    wire.key = l->hello.heads_key;
    wire.at = line * sizeof head;
    wait_to_send(l, &wire, &head, sizeof head, NULL, 0);
}

/* The next message, where there is room for it. */
static void send_message(struct liar *l)
{
    static char bytes[SLOT_BYTES];
    uint32_t c = draw(PC_MAX_CHANNELS),
             nbytes = draw(3) ? draw(draw(2) ? SLOT_BYTES : 2048) + 1 : draw(41);
    struct pc_fifo *f = fifo(l, c);
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
static void send_one(struct liar *l)
{
    struct sockaddr_un to;
    socklen_t length = address_of(l->hello.address, &to);
    if (l->nwaiting == 0)
        return;
    uint32_t i = draw(l->nwaiting);
    if (sendto(l->packets, l->waiting[i].bytes, l->waiting[i].nbytes, MSG_DONTWAIT,
               (struct sockaddr *)&to, length)
        < 0)
        return;
    free(l->waiting[i].bytes);
    l->waiting[i] = l->waiting[--l->nwaiting];
}

static void consume(struct liar *l)
{
    for (uint32_t c = 0; c < PC_EDGE_CHANNELS; c++) {
        struct pc_fifo *f = fifo(l, c);
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

/* All that rank 1 does not fill is as it was: zero. */
static void check_memory(const struct liar *l)
{
    const struct pc_layout *layout = &l->comm->layout;
    for (size_t i = layout->records + 2 * layout->record; i < layout->end; i++)
        if (l->comm->arena[i] != 0)
            fail("something reached memory that is not its sender's", NULL);
}

static bool all_came(struct liar *l)
{
    for (uint32_t c = 0; c < PC_EDGE_CHANNELS; c++)
        if (fifo(l, c)->received != l->sent[c])
            return false;
    return true;
}

/* True when rank 0 has refused something. */
static bool turn(struct liar *l)
{
    uint32_t messages = 1 + draw(30);
    const struct pc_error *fault = NULL;
    for (uint32_t k = 0; k < 4000 && fault == NULL; k++) {
        if (messages != 0 && draw(3) == 0) {
            send_message(l);
            messages--;
        }
        send_one(l);
        progress(l);
        consume(l);
        fault = pc__net_fault(l->comm->net, 1);
        if (messages == 0 && l->nwaiting == 0 && all_came(l))
            break;
    }
    if (l->honest && (fault != NULL || !all_came(l)))
        fail("an honest peer was refused, or a message is missing", fault);
    if (fault != NULL
        && (fault->peer != 1 || (fault->code != PC_INVALID && fault->code != PC_LOST)))
        fail("a fault of another kind", fault);
    close(l->letters);
    for (fault = NULL; fault == NULL; fault = pc__net_fault(l->comm->net, 1)) {
        l->comm->net->events_pending = true;
        progress(l);
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
        struct liar l;
        open_rank(&l);
        refused += turn(&l);
        check_memory(&l);
        pc_comm_close(l.comm);
        close(l.packets);
        while (l.nwaiting != 0)
            free(l.waiting[--l.nwaiting].bytes);
    }
    printf("%d liars, %d refused\n", iterations, refused);
    return 0;
}
#endif
