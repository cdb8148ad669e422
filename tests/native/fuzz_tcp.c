/* Lies to a rank over its sockets, under AddressSanitizer: this program is the remote peer.
 *
 *   fuzz_tcp SEED ITERATIONS
 *
 * Each turn is one rank 0 of 3 and a stream of frames for it over one to three sockets, cut
 * anywhere. In some turns all frames are right: then each message must arrive as it was sent,
 * whichever way the stream is cut, and however early it ends. In the others some are damaged: then
 * no byte may change outside the memory that rank 1 fills, the counts there only grow, and the rank
 * stays usable. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/frame.h"

#define SLOTS 4
#define SLOT_BYTES 8192u
#define STREAMS 3
#define FRAMES 80
#define MAX_BYTES (FRAMES * (sizeof(struct pc_frame) + 17 * SLOT_BYTES))

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

/* What rank 1 has sent on each channel, and what rank 0 has given back. */
struct model {
    struct pc_comm *comm;
    uint64_t sent[PC_EDGE_CHANNELS];
    uint32_t lengths[PC_EDGE_CHANNELS][PC_LINES];
    uint32_t last_channel, last_bytes;
    int sockets[STREAMS];
    unsigned char *streams[STREAMS];
    size_t ends[STREAMS], at[STREAMS];
    uint32_t nstreams;
    uint32_t small_bytes;
    bool honest;
};

enum where { IN_LINE, IN_SMALL_SLOT, IN_SLOT };

/* Where a message lies; a transfer has no small slots. */
static enum where where(const struct model *m, uint32_t channel, uint32_t nbytes)
{
    if (nbytes <= PC_INLINE_BYTES)
        return IN_LINE;
    return channel < PC_MAX_CHANNELS && nbytes <= m->small_bytes ? IN_SMALL_SLOT : IN_SLOT;
}

static unsigned char content(uint32_t channel, uint64_t number, uint64_t i)
{
    return (unsigned char)(channel * 31 + number * 7 + i * 3 + 1);
}

static struct pc_fifo *fifo(struct model *m, uint32_t channel)
{
    return &m->comm->fifos[PC_EDGE_CHANNELS + channel]; /* of rank 1 */
}

static void open_rank(struct model *m)
{
    struct pc_options options
        = {.rank = 0, .size = 3, .slots = SLOTS, .slot_bytes = SLOT_BYTES, .heap_bytes = 4096};
    *m = (struct model){.nstreams = 1 + draw(STREAMS), .small_bytes = draw(2) ? 1024 : 0};
    options.small_bytes = m->small_bytes;
    if (pc_comm_open(&options, &m->comm) != PC_OK || pc_comm_remote(m->comm, 1) != PC_OK
        || pc_comm_remote(m->comm, 2) != PC_OK || pc_comm_sealed(m->comm) != PC_OK)
        fail("open", pc_comm_error(m->comm));
    for (uint32_t i = 0; i < m->nstreams; i++) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0
            || pc_comm_adopt(m->comm, 1, ends[0]) != PC_OK)
            fail("socketpair", NULL);
        m->sockets[i] = ends[1];
        m->streams[i] = malloc(MAX_BYTES);
    }
}

static void close_rank(struct model *m)
{
    for (uint32_t i = 0; i < m->nstreams; i++) {
        if (m->sockets[i] >= 0)
            close(m->sockets[i]);
        free(m->streams[i]);
    }
    pc_comm_close(m->comm);
}

/* Rank 0 has sent something: credit for it, and for no more, is right. */
static void let_rank_send(struct model *m)
{
    struct pc_error error;
    for (uint32_t c = 0; c < PC_EDGE_CHANNELS; c++) {
        struct pc_fifo *f = fifo(m, c);
        struct pc_line *line = &f->out_lines[f->sent & (PC_LINES - 1)];
        if (draw(3) == 0 && pc__net_message(f->edge, (char *)line->bytes, NULL, 8, &error) != PC_OK)
            fail("message", &error);
    }
}

/* Appends the next right frame. */
static void send_frame(struct model *m, uint32_t stream)
{
    bool repeats = draw(2); /* the last length and channel: the rank guesses that */
    uint32_t c = repeats ? m->last_channel : draw(PC_EDGE_CHANNELS);
    struct pc_fifo *f = fifo(m, c);
    bool transfer = c >= PC_MAX_CHANNELS;
    struct pc_frame frame
        = {.magic = PC_FRAME_MAGIC, .kind = PC_FRAME_CREDIT, .channel = (uint8_t)c};
    uint64_t number = m->sent[c], ahead = number - f->received;
    uint32_t longest = draw(3) ? PC_INLINE_BYTES : draw(2) ? 1024 : SLOT_BYTES;
    uint32_t nbytes = draw(longest + 1);
    if (repeats)
        nbytes = m->last_bytes;
    m->last_channel = c;
    m->last_bytes = nbytes;
    frame.credit = draw((uint32_t)f->sent + 1);
    bool fits = ahead < (where(m, c, nbytes) == IN_SLOT ? SLOTS : PC_LINES);
    for (uint64_t k = f->received; k < number; k++) /* a transfer has all in slots, or none */
        fits = fits
               && (!transfer
                   || where(m, c, m->lengths[c][k & (PC_LINES - 1)]) == where(m, c, nbytes));
    if (fits) {
        frame.kind = PC_FRAME_MESSAGE;
        frame.nbytes = nbytes;
        frame.count = number + 1;
        frame.signature = number * 3 + c;
        frame.place = nbytes <= PC_INLINE_BYTES ? PC_IN_LINE
                                                : (uint32_t)(number % SLOTS) * (SLOT_BYTES / 64);
        frame.fragment = transfer ? nbytes : draw(100);
        m->lengths[c][number & (PC_LINES - 1)] = nbytes;
        m->sent[c]++;
    }
    unsigned char *to = m->streams[stream] + m->ends[stream];
    memcpy(to, &frame, sizeof frame);
    for (uint32_t i = 0; i < frame.nbytes; i++)
        to[sizeof frame + i] = content(c, number, i);
    m->ends[stream] += sizeof frame + frame.nbytes;
}

/* Turns the frame at `start` into a lie. */
static void damage(struct model *m, uint32_t stream, size_t start)
{
    static const uint64_t interesting[] = {0,
                                           1,
                                           2,
                                           3,
                                           31,
                                           32,
                                           33,
                                           40,
                                           41,
                                           64,
                                           SLOT_BYTES,
                                           SLOT_BYTES + 1,
                                           UINT32_MAX - 1,
                                           UINT32_MAX,
                                           UINT64_C(1) << 32,
                                           INT64_MAX,
                                           UINT64_C(1) << 63,
                                           UINT64_MAX - 1,
                                           UINT64_MAX};
    unsigned char *bytes = m->streams[stream];
    size_t n = m->ends[stream] - start;
    struct pc_frame frame;
    memcpy(&frame, bytes + start, sizeof frame);
    uint64_t *const fields[] = {&frame.nbytes, &frame.count, &frame.credit, &frame.signature};
    uint64_t value = interesting[draw(sizeof interesting / sizeof *interesting)];
    switch (draw(10)) {
    case 0:
        *fields[draw(4)] = value;
        break;
    case 1: /* more bytes than belong there, and they come */
        frame.nbytes = SLOT_BYTES * (1 + draw(16)) + draw(2);
        memset(bytes + start + sizeof frame, 0xee, frame.nbytes);
        m->ends[stream] = start + sizeof frame + frame.nbytes;
        if (draw(2))
            frame.place = draw(SLOTS * SLOT_BYTES / PC_CHUNK_UNIT + 2);
        break;
    case 8:
        *fields[draw(3)] += draw(2) ? 1 : UINT64_MAX;
        break;
    case 2:
        frame.count += draw(2) ? PC_LINES : -(uint64_t)PC_LINES;
        break;
    case 3:
        frame.channel = (uint8_t)draw(draw(4) ? 2 * PC_EDGE_CHANNELS : 256);
        break;
    case 4:
        frame.kind = (uint8_t)draw(4);
        frame.zero = (uint16_t)(draw(4) == 0);
        break;
    case 5:
        frame.place = (uint32_t)value;
        frame.fragment = draw(1u << 31);
        break;
    case 6: /* an earlier part of the stream, once more */
        if (start >= sizeof frame)
            memcpy(&frame, bytes + draw((uint32_t)(start - sizeof frame) + 1), sizeof frame);
        break;
    case 7:
        memmove(bytes + start, bytes + start + n / 2, n - n / 2);
        m->ends[stream] -= n / 2;
        return;
    default:
        bytes[start + draw((uint32_t)n)] ^= (unsigned char)(1u << draw(8));
        return;
    }
    memcpy(bytes + start, &frame, sizeof frame);
}

/* Consumes, in order, what has come. */
static void consume(struct model *m)
{
    for (uint32_t c = 0; c < PC_EDGE_CHANNELS; c++) {
        struct pc_fifo *f = fifo(m, c);
        struct pc_line *line;
        while (line = &f->in_lines[f->received & (PC_LINES - 1)], pc__count(line) > f->received) {
            uint32_t nbytes = m->lengths[c][f->received & (PC_LINES - 1)];
            uint64_t n = f->received, stride = m->small_bytes + PC_LINE_BYTES;
            const unsigned char *at = (unsigned char *)f->in_data + n % SLOTS * SLOT_BYTES;
            if (where(m, c, nbytes) == IN_LINE)
                at = line->bytes;
            else if (where(m, c, nbytes) == IN_SMALL_SLOT)
                at = (unsigned char *)f->in_data + SLOTS * SLOT_BYTES + n % PC_LINES * stride;
            if (pc__count(line) != f->received + 1)
                fail("a line was raised too far", NULL);
            for (uint32_t i = 0; m->honest && i < nbytes; i++)
                if (at[i] != content(c, f->received, i))
                    fail("a message came out wrong", NULL);
            if (m->honest && line->signature != f->received * 3 + c)
                fail("a line came out wrong", NULL);
            pc__net_credit(f->edge, ++f->received);
            if (draw(8) == 0)
                break;
        }
        if (pc__count(f->out_credit) > f->sent)
            fail("more credit than messages", NULL);
    }
}

/* Sends some of each stream and lets rank 0 look. */
static void pump(struct model *m, bool all)
{
    for (uint32_t i = 0; i < m->nstreams; i++) {
        char unread[4096];
        while (m->sockets[i] >= 0 && recv(m->sockets[i], unread, sizeof unread, 0) > 0) {
        }
        size_t left = m->ends[i] - m->at[i], n = all ? left : draw((uint32_t)left + 1);
        while (n != 0 && m->sockets[i] >= 0) {
            ssize_t sent = send(m->sockets[i], m->streams[i] + m->at[i], n, MSG_NOSIGNAL);
            if (sent < 0) {
                if (errno != EAGAIN) /* the rank has hung up on a liar */
                    m->at[i] = m->ends[i];
                break;
            }
            m->at[i] += (size_t)sent;
            n -= (size_t)sent;
        }
    }
    pc__net_poll(m->comm->net, 1);
    pc__net_progress(m->comm->net);
    consume(m);
}

/* All that rank 1 does not fill is as it was: zero, but for the header, rank 0's own board, and
 * what it notes of its own calls. */
static void check_memory(const struct model *m)
{
    const struct pc_layout *l = &m->comm->layout;
    const char *arena = m->comm->arena;
    char *record = pc__record(m->comm->arena, l, 1);
    const size_t spans[][2] = {
        {l->records, (size_t)((char *)pc__credit_line(record, 1, 0) - arena)},
        {(size_t)((char *)pc__record_line(record, 1, PC_RECORD_LINES) - arena),
         (size_t)(pc__slot_data(record, l, 0) - arena)},
        {l->records + 2 * l->record, l->trace},
        {l->trace + offsetof(struct pc_trace, about), l->trace + offsetof(struct pc_trace, events)},
        {(size_t)((char *)(m->comm->event + 1) - arena), l->end},
    };
    for (size_t s = 0; s < sizeof spans / sizeof *spans; s++)
        for (size_t i = spans[s][0]; i < spans[s][1]; i++)
            if (arena[i] != 0)
                fail("a frame reached memory that is not its sender's", NULL);
}

static const struct pc_error *hang_up(struct model *m)
{
    for (uint32_t i = 0; i < m->nstreams; i++) {
        close(m->sockets[i]);
        m->sockets[i] = -1;
    }
    const struct pc_error *fault;
    while ((fault = pc__net_fault(m->comm->net, 1)) == NULL)
        pc__net_progress(m->comm->net);
    return fault;
}

static const struct pc_error *turn(struct model *m, uint32_t nframes)
{
    for (uint32_t k = 0; k < nframes; k++) {
        uint32_t stream = draw(m->nstreams);
        size_t start = m->ends[stream];
        if (draw(4) == 0 && pc__net_fault(m->comm->net, 1) == NULL
            && pc_comm_connections(m->comm, 1) == (int)m->nstreams)
            let_rank_send(m);
        send_frame(m, stream);
        if (!m->honest && draw(nframes) == 0)
            damage(m, stream, start);
        if (draw(3) == 0)
            pump(m, draw(2));
    }
    bool cut = draw(2); /* the peer dies half way */
    while (!cut && memcmp(m->at, m->ends, sizeof m->at) != 0)
        pump(m, true);
    pump(m, !cut);
    const struct pc_error *fault = hang_up(m);
    for (uint32_t i = 0; i < 2 * PC_LINES; i++) /* it stops in between, at random */
        consume(m);
    if (m->honest && fault->code != PC_LOST)
        fail("an honest peer was refused", fault);
    for (uint32_t c = 0; m->honest && !cut && c < PC_EDGE_CHANNELS; c++)
        if (fifo(m, c)->received != m->sent[c])
            fail("a message is missing", NULL);
    return fault;
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
        struct model m;
        open_rank(&m);
        m.honest = draw(4) == 0;
        const struct pc_error *fault = turn(&m, 1 + draw(FRAMES - 1));
        if (fault->peer != 1 || (fault->code != PC_LOST && fault->code != PC_INVALID))
            fail("a fault of another kind", fault);
        refused += fault->code == PC_INVALID;
        check_memory(&m);
        close_rank(&m);
    }
    printf("%d streams, %d refused\n", iterations, refused);
    return 0;
}
