/* A peer over libfabric that knows the protocol, and what it may say that it should not: rank 1 of
 * 3 to a rank 0 in this process, whose endpoint is the stand-in's (tests/fakefabric), which is
 * loaded in place of libfabric. */
#ifndef FABRIC_LIAR_H
#define FABRIC_LIAR_H
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
#define MOST_READS 16

struct liar {
    struct pc_comm *comm;          /* rank 0's */
    int letters, packets;          /* sockets: of wireup messages, and in place of an endpoint */
    struct pc_fabric_wireup hello; /* rank 0's */
    char name[NAME];
    struct wire reads[MOST_READS]; /* what rank 0 asked to read, the last ones */
    uint32_t nreads;
};

static inline void fail(const char *what, const struct pc_error *error)
{
    fprintf(stderr, "%s%s%s\n", what, error ? ": " : "", error ? error->text : "");
    exit(1);
}

static inline struct pc_fifo *liar_fifo(struct liar *l, uint32_t channel)
{
    return &l->comm->fifos[PC_EDGE_CHANNELS + channel]; /* of rank 1 */
}

/* Rank 0 makes progress; of what it sends, only what it asks to read is kept. */
static inline void liar_progress(struct liar *l)
{
    static char datagram[1 << 18];
    struct wire wire;
    pc__net_progress(l->comm->net);
    while (recv(l->packets, datagram, sizeof datagram, MSG_DONTWAIT) > 0) {
        memcpy(&wire, datagram, sizeof wire);
        if (wire.read != 0 && wire.write == 0)
            l->reads[l->nreads++ % MOST_READS] = wire;
    }
}

/* And reads its sockets. */
static inline void liar_progress_events(struct liar *l)
{
    l->comm->net->events_pending = true;
    liar_progress(l);
}

/* Opens rank 0, and waits for its greeting. */
static inline void liar_open(struct liar *l)
{
    static int made;
    struct pc_options options
        = {.rank = 0, .size = 3, .slots = SLOTS, .slot_bytes = SLOT_BYTES, .heap_bytes = 4096};
    options.small_bytes = SMALL_BYTES;
    struct pc_fabric_options fabric = {.provider = "efa"};
    struct sockaddr_un name;
    int ends[2];
    *l = (struct liar){0};
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
    for (size_t n = 0; n < sizeof l->hello;) {
        ssize_t more = recv(l->letters, (char *)&l->hello + n, sizeof l->hello - n, MSG_DONTWAIT);
        n += more > 0 ? (size_t)more : 0;
        liar_progress(l);
    }
}

/* What it says if it is honest; it reads, and is read, where its packets come, too. */
static inline struct pc_fabric_wireup liar_greeting(const struct liar *l)
{
    struct pc_fabric_wireup mine = l->hello;
    memcpy(mine.address, l->name, NAME);
    memcpy(mine.reads, l->name, NAME);
    return mine;
}

/* Writes a wireup message, which rank 0 reads. */
static inline void liar_writes(struct liar *l, const struct pc_fabric_wireup *message)
{
    if (send(l->letters, message, sizeof *message, MSG_NOSIGNAL) != sizeof *message)
        fail("no wireup message", NULL);
    for (int i = 0; i < 8; i++)
        liar_progress_events(l);
}

/* Where in its slots a message of a Program goes. */
static inline uint64_t liar_place(const struct liar *l, uint32_t channel, uint64_t number,
                                  uint64_t nbytes)
{
    uint64_t slots = (uint64_t)SLOTS * SLOT_BYTES, small = SMALL_BYTES + PC_LINE_BYTES;
    return channel * l->comm->layout.channel
           + (nbytes > SMALL_BYTES ? number % SLOTS * SLOT_BYTES
                                   : slots + number % PC_LINES * small);
}

/* All that rank 1 does not fill is as it was: zero, but for what rank 0 notes of its own calls. */
static inline void liar_check_memory(const struct liar *l)
{
    const struct pc_layout *layout = &l->comm->layout;
    const size_t spans[][2] = {
        {layout->records + 2 * layout->record, layout->trace},
        {layout->trace + offsetof(struct pc_trace, about),
         layout->trace + offsetof(struct pc_trace, events)},
        {(size_t)((char *)(l->comm->event + 1) - l->comm->arena), layout->end},
    };
    for (size_t s = 0; s < sizeof spans / sizeof *spans; s++)
        for (size_t i = spans[s][0]; i < spans[s][1]; i++)
            if (l->comm->arena[i] != 0)
                fail("something reached memory that is not its sender's", NULL);
}
#endif
#endif
