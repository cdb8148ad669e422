/* What a peer over libfabric may say that it should not, one lie at a time, under
 * AddressSanitizer: this program is the peer (fabric_liar.h).
 *
 *   fabric_lies LIE
 *
 * Prints why rank 0 refused it, or "none" where it took no harm: then a message that is right came
 * whole after it. In both cases nothing reached memory that is another rank's. */
#include "fabric_liar.h"

#ifdef PC_LIBFABRIC
#define NBYTES 10000u /* of a message that goes with its header */
#define LONG 40000u   /* of one that is three packets */
#define TRANSFER (1u << 20)
#define PIECE 65536u
#define JOINED (1u << 9)
#define TURNS 300 /* of rank 0's progress, until what was sent has come, and more */

static struct liar liar;
static uint64_t writes;
static char bytes[TRANSFER];

/* Sends a datagram to rank 0's endpoint `to`. */
static void put(const char *to, struct wire wire, const void *head, size_t nhead, const char *from,
                size_t nbytes)
{
    static char datagram[sizeof wire + PC_FABRIC_PACKET + SLOT_BYTES];
    struct sockaddr_un address;
    socklen_t length = address_of(to, &address);
    memcpy(wire.from, liar.name, NAME);
    memcpy(datagram, &wire, sizeof wire);
    if (nhead != 0)
        memcpy(datagram + sizeof wire, head, nhead);
    if (nbytes != 0)
        memcpy(datagram + sizeof wire + nhead, from, nbytes);
    while (sendto(liar.packets, datagram, sizeof wire + nhead + nbytes, MSG_DONTWAIT,
                  (struct sockaddr *)&address, length)
           < 0)
        liar_progress(&liar); /* it is full, until rank 0 takes something */
}

static void turns(void)
{
    for (int i = 0; i < TURNS; i++)
        liar_progress_events(&liar);
}

static uint32_t data_of(uint32_t rank, uint32_t line)
{
    return rank << 10 | line;
}

static struct pc_fabric_head head_of(uint32_t channel, uint64_t number, uint64_t nbytes)
{
    return (struct pc_fabric_head){.key = liar.hello.key,
                                   .rank = 1,
                                   .written = 1,
                                   .frame = {.magic = PC_FRAME_MAGIC,
                                             .kind = PC_FRAME_MESSAGE,
                                             .channel = (uint8_t)channel,
                                             .nbytes = nbytes,
                                             .count = number + 1,
                                             .signature = 5}};
}

/* Writes into the first slot of channel 0, and a header to its line; NULL: none. */
static void write_to(const struct pc_fabric_head *head, uint32_t data, size_t nbytes)
{
    struct wire wire = {.write = ++writes,
                        .key = liar.hello.slots_key,
                        .at = liar_place(&liar, 0, 0, nbytes),
                        .total = nbytes + (head != NULL ? sizeof *head : 0),
                        .data = data};
    put(liar.hello.address, wire, NULL, 0, bytes, nbytes);
    if (head == NULL)
        return;
    wire.key = liar.hello.heads_key;
    wire.at = data % JOINED * sizeof *head;
    put(liar.hello.address, wire, head, sizeof *head, NULL, 0);
}

static void send_packet(const struct pc_fabric_head *head, uint64_t at, size_t nbytes)
{
    struct pc_fabric_head mine = *head;
    mine.written = 0;
    mine.at = at;
    put(liar.hello.address, (struct wire){0}, &mine, sizeof mine, bytes + at, nbytes);
}

static void send_header(const struct pc_fabric_head *head)
{
    put(liar.hello.address, (struct wire){0}, head, sizeof *head, NULL, 0);
}

/* What is right: the message `number` of a channel comes, and is consumed. */
static void come(uint32_t channel, uint64_t number)
{
    struct pc_fifo *f = liar_fifo(&liar, channel);
    struct pc_fabric_head head = head_of(channel, number, NBYTES);
    send_packet(&head, 0, NBYTES);
    turns();
    if (pc__count(&f->in_lines[number % PC_LINES]) != number + 1
        || memcmp(f->in_data + number % SLOTS * SLOT_BYTES, bytes, NBYTES) != 0)
        fail("a message that is right did not come", pc__net_fault(liar.comm->net, 1));
    pc__net_credit(f->edge, ++f->received);
    turns();
}

static struct pc_fabric_peer *peer(void)
{
    return (struct pc_fabric_peer *)liar.comm->net->peers[1];
}

/* Writes that tell of nobody, or of a rank that none of these memory regions is for. */

static void of_no_rank(uint32_t joined)
{
    struct pc_fabric_head head = head_of(0, 0, NBYTES);
    write_to(joined ? &head : NULL, data_of(3, 0) | joined, NBYTES);
    write_to(joined ? &head : NULL, data_of((1u << 22) - 1, 0) | joined, NBYTES);
}

static void of_rank_0_itself(uint32_t joined)
{
    struct pc_fabric_head head = head_of(0, 0, NBYTES);
    write_to(joined ? &head : NULL, data_of(0, 0) | joined, NBYTES);
}

static void of_a_rank_not_met(uint32_t joined)
{
    struct pc_fabric_head head = head_of(0, 0, NBYTES);
    write_to(joined ? &head : NULL, data_of(2, 0) | joined, NBYTES);
}

static void of_no_line(uint32_t joined)
{
    write_to(NULL, data_of(1, PC_EDGE_LINES) | joined, NBYTES);
    write_to(NULL, data_of(1, JOINED - 1) | joined, NBYTES);
}

static void of_a_rank_without_regions(uint32_t joined)
{
    struct pc_fabric_head head = head_of(0, 0, NBYTES);
    struct fid_mr *mr = peer()->slots_mr;
    peer()->slots_mr = NULL; /* as if it could not be registered */
    write_to(joined ? &head : NULL, data_of(1, 0) | joined, NBYTES);
    turns();
    peer()->slots_mr = mr;
}

/* Headers that go with a write. */

static void without_header(uint32_t joined)
{
    write_to(NULL, data_of(1, 0) | joined, NBYTES);
}

static void of_other_magic(uint32_t joined)
{
    struct pc_fabric_head head = head_of(0, 0, NBYTES);
    head.frame.magic ^= 1;
    write_to(&head, data_of(1, 0) | joined, NBYTES);
}

/* Its count is 0, and so its line is the last one. */
static void credit(uint32_t joined)
{
    struct pc_fabric_head head
        = {.frame = {.magic = PC_FRAME_MAGIC, .kind = PC_FRAME_CREDIT, .channel = 0}};
    write_to(&head, data_of(1, PC_LINES - 1) | joined, NBYTES);
}

static void of_another_line(uint32_t joined)
{
    struct pc_fabric_head head = head_of(0, 1, NBYTES);
    write_to(&head, data_of(1, 0) | joined, NBYTES);
}

static void of_another_channel(uint32_t joined)
{
    struct pc_fabric_head head = head_of(1, 0, NBYTES);
    write_to(&head, data_of(1, 0) | joined, NBYTES);
}

static void of_no_channel(uint32_t joined)
{
    struct pc_fabric_head head = head_of(PC_EDGE_CHANNELS, 0, NBYTES);
    write_to(&head, data_of(1, 0) | joined, NBYTES);
}

static void that_came(uint32_t joined)
{
    struct pc_fabric_head head = head_of(0, 0, NBYTES);
    come(0, 0);
    write_to(&head, data_of(1, 0) | joined, NBYTES);
}

static void too_long(uint32_t joined)
{
    struct pc_fabric_head head = head_of(0, 0, SLOT_BYTES + 1);
    write_to(&head, data_of(1, 0) | joined, NBYTES);
}

static void too_much_credit(uint32_t joined)
{
    struct pc_fabric_head head = head_of(0, 0, NBYTES);
    head.frame.credit = 1;
    write_to(&head, data_of(1, 0) | joined, NBYTES);
}

static void too_many_arrived(uint32_t joined)
{
    struct pc_fabric_head head = head_of(0, 0, NBYTES);
    head.received = 1000;
    write_to(&head, data_of(1, 0) | joined, NBYTES);
}

static void amid_packets(uint32_t joined)
{
    struct pc_fabric_head head = head_of(0, 0, LONG);
    send_packet(&head, 0, PC_FABRIC_FRAGMENT);
    turns();
    write_to(&head, data_of(1, 0) | joined, LONG);
}

static void after_bytes(uint32_t joined)
{
    struct pc_fabric_head head = head_of(0, 0, LONG);
    write_to(NULL, data_of(1, 0), LONG);
    turns();
    write_to(&head, data_of(1, 0) | joined, LONG);
}

/* Headers in packets of their own. */

static void bytes_twice(uint32_t none)
{
    (void)none;
    write_to(NULL, data_of(1, 0), LONG);
    write_to(NULL, data_of(1, 0), LONG);
}

static void header_twice(uint32_t none)
{
    struct pc_fabric_head head = head_of(0, 0, LONG);
    (void)none;
    send_header(&head);
    send_header(&head);
}

static void header_of_one_packet(uint32_t none)
{
    struct pc_fabric_head head = head_of(0, 0, NBYTES);
    (void)none;
    send_header(&head);
}

/* More than rank 0 has said that it may send: before the greeting rank 0 tells nothing. */

static void joined_beyond_the_window(uint32_t joined)
{
    for (uint32_t i = 0; i < 3; i++) { /* the window is 2 */
        struct pc_fabric_head head = head_of(0, i, NBYTES);
        write_to(&head, data_of(1, i) | joined, NBYTES);
        turns();
    }
}

static void packets_beyond_the_window(uint32_t none)
{
    (void)none;
    for (uint32_t i = 0; i < 3; i++) {
        struct pc_fabric_head head = head_of(0, i, NBYTES);
        send_packet(&head, 0, NBYTES);
        turns();
    }
}

static void nothing(uint32_t none)
{
    (void)none;
}

static void joins_without_slots(struct pc_fabric_wireup *hello)
{
    hello->slots_bytes = 0;
}

static void joins_twice(struct pc_fabric_wireup *hello)
{
    hello->joins = 2;
}

static const struct lie {
    const char *name;
    void (*tell)(uint32_t joined);
    uint32_t joined;
    const char *variable, *value; /* of the stand-in */
    void (*greeting)(struct pc_fabric_wireup *hello);
    bool unmet; /* it has not greeted */
} lies[] = {
    {"written of no rank", of_no_rank, 0},
    {"written of rank 0", of_rank_0_itself, 0},
    {"written of a rank not met", of_a_rank_not_met, 0},
    {"written of no line", of_no_line, 0},
    {"written of a rank without regions", of_a_rank_without_regions, 0},
    {"joined of no rank", of_no_rank, JOINED},
    {"joined of rank 0", of_rank_0_itself, JOINED},
    {"joined of a rank not met", of_a_rank_not_met, JOINED},
    {"joined of no line", of_no_line, JOINED},
    {"joined of a rank without regions", of_a_rank_without_regions, JOINED},
    {"joined without header", without_header, JOINED},
    {"joined of other magic", of_other_magic, JOINED},
    {"joined credit", credit, JOINED},
    {"joined of another line", of_another_line, JOINED},
    {"joined of another channel", of_another_channel, JOINED},
    {"joined of no channel", of_no_channel, JOINED},
    {"joined that came", that_came, JOINED},
    {"joined too long", too_long, JOINED},
    {"joined too much credit", too_much_credit, JOINED},
    {"joined too many arrived", too_many_arrived, JOINED},
    {"joined amid packets", amid_packets, JOINED},
    {"joined after bytes", after_bytes, JOINED},
    {"joined beyond the window", joined_beyond_the_window, JOINED, "FAKEFABRIC_QUEUE", "12",
     .unmet = true},
    {"joined to no place", without_header, JOINED, "FAKEFABRIC_PLACES", "1"},
    {"packets beyond the window", packets_beyond_the_window, 0, "FAKEFABRIC_QUEUE", "12",
     .unmet = true},
    {"bytes twice", bytes_twice, 0},
    {"header twice", header_twice, 0},
    {"header of one packet", header_of_one_packet, 0},
    {"joins without slots", nothing, 0, .greeting = joins_without_slots},
    {"joins twice", nothing, 0, .greeting = joins_twice},
};

static void tell(const struct lie *lie)
{
    if (lie->variable != NULL)
        setenv(lie->variable, lie->value, 1);
    liar_open(&liar);
    struct pc_fabric_wireup mine = liar_greeting(&liar);
    if (lie->greeting != NULL)
        lie->greeting(&mine);
    if (!lie->unmet)
        liar_writes(&liar, &mine);
    lie->tell(lie->joined);
    turns();
    const struct pc_error *fault = pc__net_fault(liar.comm->net, 1);
    if (pc__net_fault(liar.comm->net, 2) != NULL)
        fail("another rank is blamed", pc__net_fault(liar.comm->net, 2));
    if (liar.comm->net->state.live > 1)
        fail("another rank is said to have come", NULL);
    if (fault != NULL && fault->peer != 1)
        fail("another rank is blamed", fault);
    if (fault == NULL
        && (((struct pc_fabric_net *)liar.comm->net)->partial != 0
            || pc__count(&liar_fifo(&liar, 0)->in_lines[0]) != 0))
        fail("a write that names nobody was taken for a message", NULL);
    if (fault == NULL)
        come(1, 0);
    else
        write_to(NULL, data_of(1, 0), NBYTES); /* and what comes later does no harm */
    turns();
    fault = pc__net_fault(liar.comm->net, 1);
    printf("%s\n", fault != NULL ? fault->text : "none");
}

/* Rendezvous */

static char into[TRANSFER];
static struct pc_rndv *rndv;

static void say_broken_off(bool heard)
{
    struct pc_fabric_wireup message
        = {.magic = PC_FABRIC_WIREUP_MAGIC, .kind = PC_FABRIC_WIREUP_BROKEN_OFF};
    if (heard)
        liar_writes(&liar, &message);
    else if (send(liar.letters, &message, sizeof message, 0) != sizeof message)
        fail("no wireup message", NULL);
}

/* Rank 0 begins to read. */
static void get(void)
{
    const struct pc_fabric_rkey rkey = {.address = 0, .key = 1};
    struct pc_error error;
    pthread_mutex_lock(&liar.comm->net->lock);
    int rc = liar.comm->net->ops->get(&peer()->base, into, sizeof into, &rkey, &rndv, &error);
    pthread_mutex_unlock(&liar.comm->net->lock);
    if (rc != PC_OK)
        fail("get", &error);
}

static int test(void)
{
    struct pc_error error;
    pthread_mutex_lock(&liar.comm->net->lock);
    int rc = liar.comm->net->ops->test(&peer()->base, rndv, &error);
    pthread_mutex_unlock(&liar.comm->net->lock);
    if (rc < 0)
        fail("test", &error);
    return rc;
}

static void release(bool taken)
{
    pthread_mutex_lock(&liar.comm->net->lock);
    liar.comm->net->ops->release(&peer()->base, rndv, taken);
    pthread_mutex_unlock(&liar.comm->net->lock);
}

static struct wire asked(void)
{
    for (int i = 0; i < TURNS && liar.nreads == 0; i++) {
        test(); /* which posts it, if it could not be before */
        liar_progress(&liar);
    }
    if (liar.nreads != 1 || liar.reads[0].total != sizeof into)
        fail("rank 0 has not asked for all of it at once", NULL);
    return liar.reads[0];
}

/* Sends what rank 0 reads, of these places. */
static void answer(const struct wire *read, size_t from, size_t to)
{
    for (; from < to; from += PIECE)
        put(liar.hello.reads, (struct wire){.write = 1, .read = read->read, .at = from}, NULL, 0,
            bytes + from, PIECE);
}

static void refuse(const struct wire *read)
{
    put(liar.hello.reads, (struct wire){.write = 1, .read = read->read, .data = FI_EIO}, NULL, 0,
        NULL, 0);
}

static void wait_until_cut(void)
{
    for (int i = 0; i < TURNS && peer()->cut == 0; i++)
        liar_progress(&liar);
    if (peer()->cut == 0)
        fail("a read failed, and the peer is not cut", NULL);
}

/* The peer is as it was. */
static void expect_alive(void)
{
    if (peer()->cut != 0 || pc__net_fault(liar.comm->net, 1) != NULL)
        fail("a peer that has only broken off is lost", &peer()->base.fault);
    come(0, 0);
}

static void expect_read(bool whole)
{
    if (test() != whole)
        fail(whole ? "it is not read" : "it is read, though it was broken off", NULL);
    if (whole && memcmp(into, bytes, sizeof into) != 0)
        fail("what was read is wrong", NULL);
    release(whole);
}

/* What is offered overtakes the greeting, which comes by a socket. */
static void offer_before_greeting(void)
{
    const struct pc_fabric_rkey rkey = {.address = 0, .key = 1};
    struct pc_fabric_wireup mine = liar_greeting(&liar);
    struct pc_error error;
    pthread_mutex_lock(&liar.comm->net->lock);
    int rc = liar.comm->net->ops->get(&peer()->base, into, sizeof into, &rkey, &rndv, &error);
    pthread_mutex_unlock(&liar.comm->net->lock);
    if (rc != PC_AGAIN)
        fail("a read of a rank that has not greeted", rc < 0 ? &error : NULL);
    if (send(liar.letters, &mine, sizeof mine, 0) != sizeof mine)
        fail("no wireup message", NULL);
    get();
    struct wire read = asked();
    answer(&read, 0, TRANSFER);
    turns();
    expect_read(true);
    expect_alive();
}

static void news_before(void)
{
    say_broken_off(true);
    get();
    turns();
    if (liar.nreads != 0)
        fail("what is no longer there is read", NULL);
    expect_read(false);
    expect_alive();
}

static void news_amid(void)
{
    get();
    struct wire read = asked();
    answer(&read, 0, TRANSFER / 2);
    say_broken_off(true);
    answer(&read, TRANSFER / 2, TRANSFER);
    turns();
    expect_read(false);
    expect_alive();
}

/* The news is in the socket, and nobody has looked, when the last byte comes. */
static void news_unread(void)
{
    get();
    struct wire read = asked();
    answer(&read, 0, TRANSFER - PIECE);
    say_broken_off(false);
    answer(&read, TRANSFER - PIECE, TRANSFER);
    for (int i = 0; i < TURNS; i++)
        pc__net_poll(liar.comm->net, 1); /* which reads no sockets by itself */
    expect_read(false);
    expect_alive();
}

static void news_after_failure(void)
{
    get();
    struct wire read = asked();
    refuse(&read);
    wait_until_cut();
    say_broken_off(true);
    expect_read(false);
    expect_alive();
}

/* The same, and it is found when the peer would be looked at anyway. */
static void news_when_due(void)
{
    get();
    struct wire read = asked();
    refuse(&read);
    wait_until_cut();
    say_broken_off(false);
    pthread_mutex_lock(&liar.comm->net->lock);
    liar.comm->net->ops->handle_due(liar.comm->net, false);
    pthread_mutex_unlock(&liar.comm->net->lock);
    expect_read(false);
    expect_alive();
}

static void failure_after_news(void)
{
    get();
    struct wire read = asked();
    say_broken_off(true);
    refuse(&read);
    turns();
    expect_read(false);
    expect_alive();
}

static void news_after_end(void)
{
    get();
    struct wire read = asked();
    answer(&read, 0, TRANSFER);
    turns();
    say_broken_off(true);
    expect_read(true);
    expect_alive();
}

static void news_after_release(void)
{
    get();
    struct wire read = asked();
    answer(&read, 0, TRANSFER);
    turns();
    expect_read(true);
    say_broken_off(true);
    expect_alive();
}

static void wait_until_lost(void)
{
    for (int i = 0; i < 3000 && pc__net_fault(liar.comm->net, 1) == NULL; i++) {
        liar_progress_events(&liar);
        usleep(1000);
    }
}

static void no_news(void)
{
    get();
    struct wire read = asked();
    refuse(&read);
    wait_until_lost();
    release(false);
}

/* A send has failed, too: that is not mended by the news. */
static void news_of_a_peer_that_takes_nothing(void)
{
    get();
    struct wire read = asked();
    refuse(&read);
    wait_until_cut();
    close(liar.packets);
    peer()->cut = 0; /* so that something is sent */
    peer()->tells = true;
    pc__net_dirty(&peer()->base);
    for (int i = 0; i < TURNS && peer()->under_way == 0; i++)
        pc__net_poll(liar.comm->net, 1);
    for (int i = 0; i < TURNS && peer()->cut == 0; i++)
        pc__net_progress(liar.comm->net);
    say_broken_off(true);
    wait_until_lost();
    release(false);
}

/* It is about to close, and has rank 0 stop; credit that waits for room is of no use to it. */
static void stop(void)
{
    struct pc_fabric_wireup message
        = {.magic = PC_FABRIC_WIREUP_MAGIC, .kind = PC_FABRIC_WIREUP_STOP};
    const struct pc_send_op credit
        = {.edge = &peer()->base.edges[0], .kind = PC_SEND_CREDIT, .frags = 1};
    come(0, 0);
    peer()->window = 0;
    pthread_mutex_lock(&liar.comm->net->lock);
    liar.comm->net->ops->send(&peer()->base, &credit);
    pthread_mutex_unlock(&liar.comm->net->lock);
    turns();
    if (liar.comm->net->credits != 1)
        fail("credit is not waiting", NULL);
    liar_writes(&liar, &message);
    if (recv(liar.letters, &message, sizeof message, MSG_WAITALL) != sizeof message
        || message.kind != PC_FABRIC_WIREUP_STOPPED || message.packets != peer()->sent)
        fail("it does not say how much it has sent", NULL);
    peer()->window = PC_FABRIC_LEAST_WINDOW;
    pthread_mutex_lock(&liar.comm->net->lock);
    liar.comm->net->ops->send(&peer()->base, &credit);
    pthread_mutex_unlock(&liar.comm->net->lock);
    peer()->tells = true;
    pc__net_dirty(&peer()->base);
    uint64_t requests = liar.comm->net->state.requests;
    turns();
    if (liar.comm->net->credits != 0 || liar.comm->net->state.requests != requests)
        fail("it sends more", NULL);
}

static const struct {
    const char *name;
    void (*run)(void);
} ends[] = {
    {"stop", stop},
    {"offer before greeting", offer_before_greeting},
    {"news before", news_before},
    {"news amid", news_amid},
    {"news unread", news_unread},
    {"news after failure", news_after_failure},
    {"news when due", news_when_due},
    {"failure after news", failure_after_news},
    {"news after end", news_after_end},
    {"news after release", news_after_release},
    {"no news", no_news},
    {"news of a peer that takes nothing", news_of_a_peer_that_takes_nothing},
};

static void broken_off(void (*run)(void))
{
    liar_open(&liar);
    struct pc_fabric_wireup mine = liar_greeting(&liar);
    if (run != offer_before_greeting)
        liar_writes(&liar, &mine);
    run();
    const struct pc_error *fault = pc__net_fault(liar.comm->net, 1);
    printf("%s\n", fault != NULL ? fault->text : "none");
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 7 + i / 251 + 1);
    bool found = false;
    for (size_t i = 0; argc == 2 && i < sizeof lies / sizeof *lies; i++)
        if (strcmp(argv[1], lies[i].name) == 0 && (found = true))
            tell(&lies[i]);
    for (size_t i = 0; argc == 2 && i < sizeof ends / sizeof *ends; i++)
        if (strcmp(argv[1], ends[i].name) == 0 && (found = true))
            broken_off(ends[i].run);
    if (!found) {
        fprintf(stderr, "usage: %s LIE\n", argv[0]);
        return 2;
    }
    liar_check_memory(&liar);
    close(liar.letters);
    pc_comm_close(liar.comm);
    close(liar.packets);
    return 0;
}
#endif
