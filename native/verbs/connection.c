/* The life of one path: a queue pair at each end, made by letters, tried, used, and fenced when it
 * fails.
 *
 * The lower rank offers, whether for the first time or again. A path fails at one end or at both;
 * each end then destroys its queue pair, which is what makes sure that nothing more comes through
 * it, and only then says what had landed. So who sent knows exactly which messages have not, and
 * sends those again by another path: each lands once, and never in a slot that has moved on. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define PC_FIRST_PAUSE_NS UINT64_C(10000000)
#define PC_LONGEST_PAUSE_NS UINT64_C(1000000000)
#define PC_FLUSH_NS UINT64_C(1000000000) /* a device that has not flushed by then does not */
#define PC_LOOK_NS UINT64_C(1000000)     /* what was posted comes back soon */
#define PC_BROKEN_OFF "a transfer was broken off"

void pc__schedule(struct pc_net *w, uint64_t when)
{
    if (w->due == 0 || when < w->due)
        w->due = when;
}

static const char *rail_name(const struct pc_net *w, const struct pc_verbs_connection *path)
{
    return w->rails[path->rail].spec.device;
}

static void write_letter(struct pc_net *w, struct pc_verbs_connection *path,
                         enum pc_wireup_kind kind, const void *body, size_t nbytes)
{
    struct pc_verbs_peer *partner = path->partner;
    int rc = pc__wireup_write(&partner->mail, kind, path->index, path->turn, body, nbytes);
    if (rc == PC_OK || partner->mail.fd < 0)
        return;
    if (rc != PC_LOST) {
        pc__verbs_peer_fail(w, partner, rc, "there is no memory for a letter to it");
        return;
    }
    /* It takes no letters any more. What it wrote before, perhaps that it closed and what had
     * landed by then, is read to the end, and only there it is lost. */
    shutdown(partner->mail.fd, SHUT_RDWR);
    w->heed = true;
}

static void destroy(struct pc_net *w, struct pc_verbs_connection *path)
{
    if (path->qp == NULL)
        return;
    pc__ib.destroy_qp(path->qp);
    path->qp = NULL;
    path->receives = 0; /* what was posted has gone with it */
    w->state.queue_pairs--;
}

/* A fresh queue pair that is ready to receive what the other end will send. */
static int make(struct pc_net *w, struct pc_verbs_connection *path, struct pc_error *error)
{
    struct pc_ib_device *rail = &w->rails[path->rail];
    if (path->partner->withdrawn)
        return pc__fail(error, PC_BROKEN, -1, "%s", PC_BROKEN_OFF);
    if (path->records == NULL)
        path->records = malloc(PC_CONNECTION_SEND_OPS * sizeof *path->records);
    if (path->records == NULL)
        return pc__fail(error, PC_NOMEM, -1, "no memory for a path");
    int rc = pc__qp_create(rail, path->partner->domains[path->rail], PC_CONNECTION_SEND_WRS,
                           PC_CONNECTION_RECV_WRS, error, &path->qp, &path->mine);
    if (rc != PC_OK) {
        path->qp = NULL;
        return rc;
    }
    w->state.queue_pairs++;
    path->head = path->tail = 0;
    path->requests = path->receives = path->spent = 0;
    path->bytes = 0;
    path->flushed = path->answered = false;
    return PC_OK;
}

static void postpone(struct pc_net *w, struct pc_verbs_connection *path)
{
    path->pause = path->pause == 0 ? PC_FIRST_PAUSE_NS : 2 * path->pause;
    if (path->pause > PC_LONGEST_PAUSE_NS)
        path->pause = PC_LONGEST_PAUSE_NS;
    path->attempt = pc__now() + path->pause;
    path->partner->tries++;
    pc__schedule(w, path->attempt);
}

/* Why a path fails or cannot be made: for the other end, and for whoever asks about the partner. */
static void note(struct pc_net *w, struct pc_verbs_connection *path, const char *why)
{
    struct pc_verbs_peer *partner = path->partner;
    snprintf(path->why, sizeof path->why, "%.60s: %.250s", rail_name(w, path), why);
    if (!partner->ended) /* else it has been said why */
        pc__fail(&partner->fault, 0, (int)partner->rank, "%s, path %u: %s", rail_name(w, path),
                 path->index, why);
}

int pc__connection_request(struct pc_net *w, struct pc_verbs_connection *path)
{
    struct pc_error error;
    if (!pc__ib_device_active(&w->rails[path->rail])) {
        note(w, path, "the port is down");
        postpone(w, path);
        return PC_AGAIN;
    }
    path->turn++;
    if (make(w, path, &error) != PC_OK) {
        note(w, path, error.text);
        postpone(w, path);
        return PC_AGAIN;
    }
    path->state = PC_CONNECTION_REQUESTED;
    path->since = pc__now();
    write_letter(w, path, PC_WIREUP_REQUEST, &path->mine, sizeof path->mine);
    return PC_OK;
}

static void call(struct pc_net *w, struct pc_verbs_connection *path,
                 const struct pc_qp_info *theirs)
{
    path->state = PC_CONNECTION_REPLIED;
    path->theirs = *theirs;
    pc__schedule(w, path->since);
}

void pc__connection_requested(struct pc_net *w, struct pc_verbs_connection *path, uint32_t turn,
                              const struct pc_qp_info *theirs)
{
    struct pc_error error;
    if (path->state != PC_CONNECTION_DOWN) {
        pc__verbs_peer_fail(w, path->partner, PC_LOST, "it offered a path that it has already");
        return;
    }
    path->turn = turn;
    path->since = pc__now();
    path->answered = false;
    if (make(w, path, &error) != PC_OK) {
        note(w, path, error.text);
        path->state = PC_CONNECTION_DRAINING;
        pc__connection_drain(w, path);
    } else {
        call(w, path, theirs);
    }
}

void pc__connection_replied(struct pc_net *w, struct pc_verbs_connection *path, uint32_t turn,
                            const struct pc_qp_info *theirs)
{
    if (path->state == PC_CONNECTION_REQUESTED
        && path->turn == turn) /* else it has failed here meanwhile */
        call(w, path, theirs);
}

void pc__connection_connect(struct pc_net *w, struct pc_verbs_connection *path)
{
    static const struct pc_send_op probe = {.pieces = 1};
    struct pc_error error;
    path->state = PC_CONNECTION_CONNECTING;
    path->doomed = false;
    struct pc_ib_device rail = w->rails[path->rail]; /* as it is now: its port may change */
    pthread_mutex_unlock(&w->lock);
    int rc = pc__qp_connect(&rail, path->qp, &path->mine, &path->theirs, &error);
    pthread_mutex_lock(&w->lock);
    path->state = PC_CONNECTION_PROBING;
    pc__schedule(w, pc__now() + PC_LOOK_NS);
    if (path->partner->ended) {
        pc__connection_close(w, path, NULL);
        return;
    }
    if (rc != PC_OK || path->doomed) /* told to the other end as any later failure is */
        pc__connection_fail(w, path, rc != PC_OK ? error.text : NULL);
    else
        pc__post_receives(w, path, PC_CONNECTION_RECV_WRS);
    if (path->state == PC_CONNECTION_DRAINING)
        pc__connection_drain(w, path);
    else if (w->comm->options.rank < path->partner->rank)
        pc__post_message(w, path, &probe);
    else
        write_letter(w, path, PC_WIREUP_REPLY, &path->mine, sizeof path->mine);
}

void pc__connection_up(struct pc_net *w, struct pc_verbs_connection *path)
{
    struct pc_verbs_peer *partner = path->partner;
    if (path->state != PC_CONNECTION_PROBING)
        return;
    path->state = PC_CONNECTION_UP;
    path->since = pc__now();
    partner->live++;
    partner->reached = true;
    partner->cut_off = 0;
    w->state.live++;
    w->state.revivals += path->revived;
    path->revived = true;
    pc__verbs_peer_dirty(w, partner);
    w->heed = true; /* who waits for a path should look */
}

void pc__connection_fail(struct pc_net *w, struct pc_verbs_connection *path, const char *why)
{
    struct pc_verbs_peer *partner = path->partner;
    if (path->state == PC_CONNECTION_DOWN || path->state >= PC_CONNECTION_DRAINING)
        return;
    uint64_t now = pc__now();
    if (why != NULL && (path->state != PC_CONNECTION_CONNECTING || !path->doomed))
        note(w, path, why);
    if (path->state == PC_CONNECTION_CONNECTING) {
        path->doomed = true;
        return;
    }
    if (path->state == PC_CONNECTION_UP) {
        partner->live--;
        w->state.live--;
        w->state.failures++;
        if (now - path->since > PC_LONGEST_PAUSE_NS) /* it was good for a while */
            path->pause = 0;
        if (partner->live == 0) {
            partner->cut_off = now;
            partner->tries = 0;
        }
    }
    path->state = PC_CONNECTION_DRAINING;
    path->since = now;
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
    pc__ib.modify_qp(path->qp, &attributes, IBV_QP_STATE);
    pc__schedule(w, now + PC_LOOK_NS);
}

void pc__received_so_far(struct pc_net *w, const struct pc_verbs_peer *partner, const char *why,
                         struct pc_wireup_received *out)
{
    const struct pc_fifo *fifos = &w->comm->fifos[(size_t)partner->rank * PC_EDGE_CHANNELS];
    memset(out, 0, sizeof *out);
    for (uint32_t c = 0; c < PC_EDGE_CHANNELS; c++)
        for (uint32_t i = 0; i < PC_LINES; i++)
            out->counts[c * PC_LINES + i] = (uint32_t)pc__count(&fifos[c].in_lines[i]);
    memcpy(out->pieces, partner->come, sizeof out->pieces);
    snprintf(out->why, sizeof out->why, "%s", why);
}

static bool has_landed(const struct pc_send_op *record, const struct pc_wireup_received *landed)
{
    uint32_t line = (uint32_t)record->number & (PC_LINES - 1);
    uint32_t at = record->fifo->channel * PC_LINES + line;
    return (int32_t)(landed->counts[at] - (uint32_t)(record->number + 1)) >= 0
           || (record->pieces > 1 && landed->pieces[at] >> record->piece & 1);
}

/* Both ends have let go. What had not landed goes by another path. */
static void down(struct pc_net *w, struct pc_verbs_connection *path)
{
    struct pc_verbs_peer *partner = path->partner;
    while (path->tail != path->head) { /* the last one first: each is put before the queue */
        const struct pc_send_op *record = &path->records[--path->tail % PC_CONNECTION_SEND_OPS];
        w->flying--;
        if (record->pull != NULL && record->pull->broken)
            pc__rndv_read_failed(w, record->pull);
        else if (record->pull != NULL)
            pc__verbs_peer_queue(w, partner, record, true);
        if (record->fifo == NULL)
            continue;
        if (has_landed(record, path->landed)) {
            pc__verbs_peer_count_pending(w, partner, record->fifo, -1);
        } else {
            pc__verbs_peer_queue(w, partner, record, true);
            w->state.replayed++;
        }
    }
    /* Credit says how much in all, so that it may be said twice. */
    partner->owed = (1u << PC_EDGE_CHANNELS) - 1;
    for (uint32_t c = 0; c < PC_EDGE_CHANNELS; c++)
        w->comm->fifos[(size_t)partner->rank * PC_EDGE_CHANNELS + c].returned = 0;
    pc__verbs_peer_dirty(w, partner);
    path->state = PC_CONNECTION_DOWN;
    uint64_t took = pc__now() - path->since;
    if (took > w->state.recovery_ns && path->revived)
        w->state.recovery_ns = took;
    free(path->landed);
    path->landed = NULL;
    if (w->comm->options.rank < partner->rank)
        postpone(w, path);
    w->heed = true;
}

/* This end lets go, and says so. */
static void fence(struct pc_net *w, struct pc_verbs_connection *path)
{
    destroy(w, path);
    path->state = PC_CONNECTION_FENCED;
    struct pc_wireup_received landed;
    pc__received_so_far(w, path->partner, path->why, &landed);
    write_letter(w, path, PC_WIREUP_FENCED, &landed, sizeof landed);
    if (path->answered && path->state == PC_CONNECTION_FENCED)
        down(w, path);
}

void pc__connection_abort(struct pc_net *w, struct pc_verbs_connection *path)
{
    pc__connection_fail(w, path, PC_BROKEN_OFF);
    if (path->state == PC_CONNECTION_DRAINING)
        fence(w, path);
}

void pc__connection_drain(struct pc_net *w, struct pc_verbs_connection *path)
{
    bool back = path->receives == 0 && (path->head == path->tail || path->flushed);
    if (path->state != PC_CONNECTION_DRAINING)
        return;
    uint64_t now = pc__now();
    if (!back && now - path->since < PC_FLUSH_NS) {
        pc__schedule(w, now + PC_LOOK_NS);
        return;
    }
    fence(w, path);
}

void pc__connection_fenced(struct pc_net *w, struct pc_verbs_connection *path, uint32_t turn,
                           const struct pc_wireup_received *landed)
{
    if (turn != path->turn || path->state == PC_CONNECTION_DOWN || path->answered)
        return; /* of a turn that is over */
    char why[PC_WIREUP_TEXT + 32];
    snprintf(why, sizeof why, "at the other end, %.*s", (int)sizeof landed->why - 1, landed->why);
    path->landed = malloc(sizeof *path->landed);
    if (path->landed == NULL) {
        pc__verbs_peer_fail(w, path->partner, PC_NOMEM, "no memory for its letter");
        return;
    }
    *path->landed = *landed;
    path->answered = true;
    pc__connection_fail(w, path, why);
    if (path->state == PC_CONNECTION_FENCED)
        down(w, path);
    else
        pc__connection_drain(w, path);
}

void pc__connection_close(struct pc_net *w, struct pc_verbs_connection *path,
                          const struct pc_wireup_received *landed)
{
    struct pc_verbs_peer *partner = path->partner;
    if (path->state == PC_CONNECTION_UP) {
        partner->live--;
        w->state.live--;
    }
    if (path->state == PC_CONNECTION_CONNECTING)
        return; /* whoever connects it comes back here */
    destroy(w, path);
    path->state = PC_CONNECTION_DOWN;
    path->attempt = 0;
    for (; path->head != path->tail; path->head++) {
        const struct pc_send_op *record = &path->records[path->head % PC_CONNECTION_SEND_OPS];
        w->flying--;
        if (record->pull != NULL)
            pc__rndv_read_failed(w, record->pull);
        if (record->fifo == NULL)
            continue;
        pc__verbs_peer_count_pending(w, partner, record->fifo, -1);
        if (landed == NULL || !has_landed(record, landed))
            pc__verbs_peer_mark_undeliverable(w, partner, record->fifo);
    }
    free(path->landed);
    path->landed = NULL;
}
#endif
