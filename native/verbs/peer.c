/* One remote peer: the memory that it may write, the letters to it, and what waits for a path. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define PC_STRIPE_FROM_BYTES (64u << 10) /* messages from here on go by all paths at once */

#define PC_STRIPE_SLOWEST 16 /* a path slower than the best by this gets no piece */

static struct ibv_mr *region(struct pc_net *w, const struct pc_verbs_peer *partner, uint32_t rail,
                             const void *at, size_t nbytes, int access, struct pc_error *error)
{
    struct ibv_mr *mr
        = pc__ib.reg_mr(partner->domains[rail], (void *)(uintptr_t)at, nbytes, access);
    if (mr == NULL)
        pc__ib_device_refused(&w->rails[rail], "ibv_reg_mr", nbytes, error);
    else
        w->state.regions++;
    return mr;
}

static void drop(struct pc_net *w, struct ibv_mr **mr)
{
    if (*mr == NULL)
        return;
    pc__ib.dereg_mr(*mr);
    *mr = NULL;
    w->state.regions--;
}

/* The peer may write its lines and its slots here, and nothing else. */
static int make_regions(struct pc_net *w, struct pc_verbs_peer *partner, struct pc_error *error)
{
    const struct pc_layout *l = &w->comm->layout;
    uint32_t me = w->comm->options.rank, peer = partner->rank;
    char *arena = w->comm->arena, *shadow = w->comm->peers[peer].arena;
    size_t lines = (size_t)PC_EDGE_CHANNELS * PC_LINES * PC_LINE_BYTES;
    size_t slots = (size_t)PC_EDGE_CHANNELS * l->slots * l->slot_bytes;
    int theirs = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    partner->bounce_at = aligned_alloc(PC_PAGE, PC_BOUNCE_BYTES);
    if (partner->bounce_at == NULL)
        return pc__fail(error, PC_NOMEM, -1, "no memory for a bounce buffer");
    for (uint32_t i = 0; i < w->nrails; i++) {
        const struct {
            struct ibv_mr **mr;
            const void *at;
            size_t nbytes;
            int access;
        } wanted[] = {
            {&partner->lines[i], pc__slot_lines(arena, l, peer, 0), lines, theirs},
            {&partner->slots[i], pc__slot_data(arena, l, peer, 0), slots, theirs},
            {&partner->shadow[i], pc__slot_data(shadow, l, me, 0), slots, 0},
            {&partner->bounce[i], partner->bounce_at, PC_BOUNCE_BYTES, IBV_ACCESS_LOCAL_WRITE},
        };
        partner->domains[i] = pc__ib_device_pd(&w->rails[i], error);
        if (partner->domains[i] == NULL)
            return error->code;
        for (uint32_t k = 0; k < 4; k++) {
            *wanted[k].mr
                = region(w, partner, i, wanted[k].at, wanted[k].nbytes, wanted[k].access, error);
            if (*wanted[k].mr == NULL)
                return error->code;
        }
    }
    return PC_OK;
}

static struct pc_wireup_hello hello_of(const struct pc_net *w, const struct pc_verbs_peer *partner)
{
    struct pc_wireup_hello hello = {.nrails = w->nrails,
                                    .queue_pairs = w->comm->verbs.queue_pairs,
                                    .lines = (uintptr_t)partner->lines[0]->addr,
                                    .lines_bytes = partner->lines[0]->length,
                                    .slots = (uintptr_t)partner->slots[0]->addr,
                                    .slots_bytes = partner->slots[0]->length};
    for (uint32_t i = 0; i < w->nrails; i++)
        hello.rails[i] = (struct pc_wireup_rail){.lines_key = partner->lines[i]->rkey,
                                                 .slots_key = partner->slots[i]->rkey,
                                                 .speed = w->rails[i].speed};
    return hello;
}

int pc__verbs_peer_wireup(struct pc_net *w, struct pc_verbs_peer *partner, int fd)
{
    struct pc_error error;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = partner->rank};
    int rc = make_regions(w, partner, &error);
    if (rc != PC_OK) {
        partner->fault = error;
        return rc;
    }
    pc__wireup_open(&partner->mail, fd);
    partner->cut_off = pc__now();
    pc__schedule(w, partner->cut_off);
    if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        return PC_SYSTEM;
    struct pc_wireup_hello hello = hello_of(w, partner);
    return pc__wireup_write(&partner->mail, PC_WIREUP_HELLO, 0, 0, &hello, sizeof hello);
}

static double slower(uint64_t a, uint64_t b)
{
    uint64_t speed = a < b ? a : b;
    return 1e9 / (double)(speed ? speed : 1);
}

/* The completion queues hold all that may come back by all paths; they grow with these. */
static int make_room(struct pc_net *w)
{
    for (uint32_t i = 0; i < w->nrails; i++) {
        uint64_t want = (uint64_t)w->load[i] * PC_CONNECTION_CQ_DEPTH;
        uint64_t have = (uint64_t)w->rails[i].cq->cqe;
        if (want > have
            && pc__ib.resize_cq(w->rails[i].cq, (int)(want > 2 * have ? want : 2 * have)) != 0
            && pc__ib.resize_cq(w->rails[i].cq, (int)want) != 0)
            return PC_NOMEM;
        if ((uint64_t)w->rails[i].cq->cqe < want)
            return PC_NOMEM;
    }
    return PC_OK;
}

/* Path i goes by rail i of both, counted around where one has fewer. */
static int make_paths(struct pc_net *w, struct pc_verbs_peer *partner)
{
    const struct pc_wireup_hello *hello = &partner->hello;
    uint32_t mine = w->nrails, theirs = hello->nrails, each = w->comm->verbs.queue_pairs;
    if (hello->queue_pairs < each)
        each = hello->queue_pairs;
    uint32_t n = (mine > theirs ? mine : theirs) * each;
    partner->paths = calloc(n, sizeof *partner->paths);
    if (partner->paths == NULL)
        return PC_NOMEM;
    partner->npaths = n;
    for (uint32_t i = 0; i < partner->npaths; i++) {
        struct pc_verbs_connection *path = &partner->paths[i];
        *path = (struct pc_verbs_connection){.partner = partner,
                                             .index = i,
                                             .rail = i / each % mine,
                                             .their_rail = i / each % theirs};
        w->load[path->rail]++;
        path->cost = slower(w->rails[path->rail].speed, hello->rails[path->their_rail].speed);
    }
    w->state.paths += partner->npaths;
    return make_room(w);
}

static bool sound(const struct pc_net *w, const struct pc_wireup_hello *hello)
{
    const struct pc_layout *l = &w->comm->layout;
    return hello->nrails >= 1 && hello->nrails <= PC_MAX_RAILS && hello->queue_pairs >= 1
           && hello->queue_pairs <= 8
           && hello->lines_bytes == (uint64_t)PC_EDGE_CHANNELS * PC_LINES * PC_LINE_BYTES
           && hello->slots_bytes == (uint64_t)PC_EDGE_CHANNELS * l->slots * l->slot_bytes;
}

static void meet(struct pc_net *w, struct pc_verbs_peer *partner,
                 const struct pc_wireup_hello *hello)
{
    if (partner->greeted || !sound(w, hello)) {
        pc__verbs_peer_fail(w, partner, PC_LOST, "its greeting is not one");
        return;
    }
    partner->hello = *hello;
    partner->greeted = true;
    if (make_paths(w, partner) != PC_OK) {
        pc__verbs_peer_fail(w, partner, PC_NOMEM, "there is no room for its paths");
        return;
    }
    if (w->comm->options.rank < partner->rank)
        for (uint32_t i = 0; i < partner->npaths && !partner->ended; i++)
            pc__connection_request(w, &partner->paths[i]);
}

static void heed(struct pc_net *w, struct pc_verbs_peer *partner)
{
    const struct pc_wireup_header *header = &partner->mail.in.header;
    const union pc_wireup_body *body = &partner->mail.in.body;
    if (header->kind == PC_WIREUP_HELLO) {
        meet(w, partner, &body->hello);
        return;
    }
    if (header->kind == PC_WIREUP_CLOSE) {
        pc__poll_cq(w); /* what it acknowledged before */
        pc__verbs_peer_leave(w, partner, PC_LOST, "it closed its connection", &body->landed);
        return;
    }
    if (header->kind == PC_WIREUP_ABORTED) {
        partner->withdrawn = true;
        return;
    }
    if (!partner->greeted || header->path >= partner->npaths) {
        pc__verbs_peer_fail(w, partner, PC_LOST, "its letter is about no path");
        return;
    }
    struct pc_verbs_connection *path = &partner->paths[header->path];
    if (header->kind == PC_WIREUP_REQUEST)
        pc__connection_requested(w, path, header->turn, &body->end);
    else if (header->kind == PC_WIREUP_REPLY)
        pc__connection_replied(w, path, header->turn, &body->end);
    else
        pc__connection_fenced(w, path, header->turn, &body->landed);
}

void pc__verbs_peer_read(struct pc_net *w, struct pc_verbs_peer *partner)
{
    int rc = PC_OK;
    pc__wireup_flush(&partner->mail);
    while (!partner->ended && (rc = pc__wireup_read(&partner->mail)) > 0)
        heed(w, partner);
    if (rc < 0) {
        pc__poll_cq(w); /* what has come before */
        pc__verbs_peer_fail(w, partner, PC_LOST,
                            rc == PC_LOST ? "it closed its connection"
                                          : "it sent what is no letter");
    }
    if (partner->ended && partner->mail.fd >= 0)
        pc__wireup_close(&partner->mail); /* which takes it out of the epoll */
}

void pc__verbs_peer_leave(struct pc_net *w, struct pc_verbs_peer *partner, int code,
                          const char *why, const struct pc_wireup_received *landed)
{
    char last[sizeof partner->fault.text];
    if (partner->ended)
        return;
    partner->ended = true;
    memcpy(last, partner->fault.text, sizeof last);
    bool told = last[0] != 0 && partner->live == 0;
    pc__fail(&partner->fault, code, (int)partner->rank, "rank %u is lost: %s%s%s%s", partner->rank,
             why, told ? " (" : "", told ? last : "", told ? ")" : "");
    for (uint32_t i = 0; i < partner->npaths; i++)
        pc__connection_close(w, &partner->paths[i], landed);
    for (; partner->head != partner->tail; partner->head++) {
        const struct pc_send_op *record = &partner->queue[partner->head % PC_PENDING_OPS];
        if (record->pull != NULL)
            pc__rndv_read_failed(w, record->pull);
        if (record->fifo == NULL)
            continue;
        pc__verbs_peer_count_pending(w, partner, record->fifo, -1);
        pc__verbs_peer_mark_undeliverable(w, partner, record->fifo);
    }
    if (partner->mail.fd >= 0)
        shutdown(partner->mail.fd, SHUT_RDWR); /* it becomes readable, and is closed there */
    w->heed = true;
    pc__wakeup_signal(w->comm, w->comm->options.rank);
}

void pc__verbs_peer_fail(struct pc_net *w, struct pc_verbs_peer *partner, int code, const char *why)
{
    pc__verbs_peer_leave(w, partner, code, why, NULL);
}

void pc__verbs_peer_close(struct pc_net *w, struct pc_verbs_peer *partner)
{
    for (uint32_t i = 0; i < partner->npaths; i++)
        pc__connection_close(w, &partner->paths[i], NULL);
    if (partner->mail.fd >= 0) {
        struct pc_wireup_received landed;
        pc__received_so_far(w, partner, "", &landed);
        pc__wireup_write(&partner->mail, PC_WIREUP_CLOSE, 0, 0, &landed, sizeof landed);
    }
    pc__wireup_close(&partner->mail);
    pc__rndv_close_all(partner);
    for (uint32_t i = 0; i < PC_MAX_RAILS; i++) {
        drop(w, &partner->bounce[i]);
        drop(w, &partner->lines[i]);
        drop(w, &partner->slots[i]);
        drop(w, &partner->shadow[i]);
        if (partner->domains[i] != NULL)
            pc__ib.dealloc_pd(partner->domains[i]);
    }
    for (uint32_t i = 0; i < partner->npaths; i++)
        free(partner->paths[i].records);
    free(partner->paths);
    free(partner->queue);
    free(partner->bounce_at);
}

/* By which path a message would be done first; NULL when none takes it. */
static struct pc_verbs_connection *first_done(const struct pc_verbs_peer *partner, uint64_t nbytes)
{
    struct pc_verbs_connection *best = NULL;
    double first = 0;
    for (uint32_t i = 0; i < partner->npaths; i++) {
        struct pc_verbs_connection *path = &partner->paths[i];
        if (!pc__can_post(path))
            continue;
        double done = (double)(path->bytes + nbytes + PC_LINE_BYTES) * path->cost;
        if (best == NULL || done < first) {
            best = path;
            first = done;
        }
    }
    return best;
}

static int by_path(struct pc_net *w, struct pc_verbs_peer *partner,
                   struct pc_verbs_connection *path, const struct pc_send_op *record)
{
    int rc = pc__post_message(w, path, record);
    if (rc != PC_OK && record->pieces > 1)
        pc__verbs_peer_queue(w, partner, record, true);
    return rc;
}

/* Cuts a message over the paths by their speed; false when it is not worth it. The paths may
 * deliver in any order: the peer counts the pieces. */
static bool cut(struct pc_net *w, struct pc_verbs_peer *partner, const struct pc_send_op *record)
{
    struct pc_verbs_connection *paths[PC_MAX_FRAGS];
    uint32_t n = 0;
    double speed = 0, best = 0;
    for (uint32_t i = 0; i < partner->npaths; i++)
        if (pc__can_post(&partner->paths[i]) && 1 / partner->paths[i].cost > best)
            best = 1 / partner->paths[i].cost;
    for (uint32_t i = 0; i < partner->npaths && n < PC_MAX_FRAGS; i++)
        if (pc__can_post(&partner->paths[i])
            && 1 / partner->paths[i].cost > best / PC_STRIPE_SLOWEST) {
            paths[n++] = &partner->paths[i];
            speed += 1 / partner->paths[i].cost;
        }
    if (n < 2)
        return false;
    struct pc_send_op piece = *record;
    uint64_t begin = 0;
    double share = 0;
    piece.pieces = (uint8_t)n;
    pc__verbs_peer_count_pending(w, partner, record->fifo, (int)n - 1);
    for (uint32_t i = 0; i < n; i++) {
        share += 1 / paths[i]->cost / speed;
        uint64_t end = (uint64_t)((double)record->nbytes * share) & -(uint64_t)PC_LINE_BYTES;
        if (i == n - 1)
            end = record->nbytes;
        piece.piece = (uint8_t)i;
        piece.data = record->data + begin;
        piece.nbytes = end - begin;
        begin = end;
        by_path(w, partner, paths[i], &piece);
    }
    return true;
}

bool pc__verbs_peer_send(struct pc_net *w, struct pc_verbs_peer *partner,
                         const struct pc_send_op *record)
{
    if (record->nbytes >= PC_STRIPE_FROM_BYTES && record->pieces == 1 && record->pull == NULL
        && partner->live > 1 && cut(w, partner, record))
        return true;
    struct pc_verbs_connection *path = first_done(partner, record->nbytes);
    return path != NULL && pc__post_message(w, path, record) == PC_OK;
}

void pc__verbs_peer_dirty(struct pc_net *w, struct pc_verbs_peer *partner)
{
    if (!partner->dirty)
        w->dirty[w->ndirty++] = partner;
    partner->dirty = true;
}

void pc__verbs_peer_queue(struct pc_net *w, struct pc_verbs_peer *partner,
                          const struct pc_send_op *record, bool first)
{
    uint32_t at = first ? --partner->head : partner->tail++;
    partner->queue[at % PC_PENDING_OPS] = *record;
    pc__verbs_peer_dirty(w, partner);
}

void pc__verbs_peer_count_pending(struct pc_net *w, struct pc_verbs_peer *partner,
                                  const struct pc_fifo *f, int by)
{
    *(f->channel == PC_CHANNEL_P2P ? &w->posted : &w->called) += (uint32_t)by;
    partner->unacknowledged[f->channel] += (uint32_t)by;
}

void pc__verbs_peer_mark_undeliverable(struct pc_net *w, struct pc_verbs_peer *partner,
                                       const struct pc_fifo *f)
{
    partner->torn |= UINT32_C(1) << f->channel;
    if (f->channel != PC_CHANNEL_P2P)
        w->torn = &partner->fault;
}

/* Whether message n has come: memory says so before any completion. */
static bool here(const struct pc_fifo *f, uint64_t n)
{
    return pc__count(&f->in_lines[n & (PC_LINES - 1)]) > n;
}

/* The peer runs ahead, or soon has no room. Transfers hold back their credit themselves, and may be
 * all that this rank does. */
static bool due(const struct pc_net *w, const struct pc_fifo *f, bool all)
{
    uint64_t half = w->comm->options.slots / 2;
    return all || f->channel >= PC_MAX_CHANNELS || f->consumed - f->returned >= half
           || here(f, f->consumed + 1) || here(f, f->returned + half - 1);
}

bool pc__verbs_peer_flush(struct pc_net *w, struct pc_verbs_peer *partner, bool all_credit)
{
    bool left = false;
    if (partner->ended) {
        partner->owed = 0;
        return true;
    }
    while (partner->head != partner->tail) {
        const struct pc_send_op record = partner->queue[partner->head % PC_PENDING_OPS];
        partner->head++; /* pieces that fail are put before the queue */
        if (!pc__verbs_peer_send(w, partner, &record)) {
            partner->queue[--partner->head % PC_PENDING_OPS] = record;
            return false;
        }
    }
    for (uint32_t c = 0; partner->owed >> c != 0; c++) {
        struct pc_fifo *f = &w->comm->fifos[(size_t)partner->rank * PC_EDGE_CHANNELS + c];
        if (!(partner->owed >> c & 1))
            continue;
        if (f->returned == f->consumed) {
            partner->owed &= ~(UINT32_C(1) << c);
            continue;
        }
        if (!due(w, f, all_credit))
            continue;
        struct pc_verbs_connection *path = first_done(partner, 0);
        if (path != NULL && pc__post_credit(w, path, f) == PC_OK)
            partner->owed &= ~(UINT32_C(1) << c);
        else
            left = true;
    }
    return !left;
}
#endif
