/* Long transfers that the receiver reads from where they lie: neither side copies, and the sender
 * need not be inside a call. Both ends' memory is registered with the peer's domain, and kept in a
 * cache; where the receiver's cannot be, it reads into a bounce buffer that can.
 *
 * What a path could not read another reads again: nobody looks at the bytes before all are here. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <stdlib.h>
#include <string.h>

#define PC_RNDV_READ_BYTES (UINT64_C(1) << 20) /* by one request at most */
#define PC_RNDV_READS 8u                       /* requests on their way, of one transfer */
#define PC_RCACHE_BYTES (UINT64_C(1) << 30)    /* idle registrations, by partner */

/* Memory that the peer may read, and memory into which this rank reads: the peer may not touch
 * that. */
static int access_of(enum pc_direction direction)
{
    return direction == PC_DIRECTION_SEND ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_LOCAL_WRITE;
}

static struct pc_rndv *begin(struct pc_net *w, struct pc_verbs_peer *partner,
                             enum pc_direction direction, const void *at, uint64_t nbytes,
                             struct pc_error *error)
{
    struct pc_mr_domains *regions = &partner->regions[direction];
    struct pc_rcache **pins = &partner->pins[direction];
    if (*pins == NULL) {
        for (uint32_t i = 0; i < w->nrails; i++)
            regions->domains[i] = partner->domains[i];
        regions->n = w->nrails;
        regions->access = access_of(direction);
        *pins = pc__rcache_open(&pc__mr_rcache_ops, regions, PC_RCACHE_BYTES);
    }
    struct pc_rndv *pull = calloc(1, sizeof *pull);
    if (pull == NULL || *pins == NULL) {
        free(pull);
        pc__fail(error, PC_NOMEM, -1, "no memory");
        return NULL;
    }
    *pull = (struct pc_rndv){
        .partner = partner, .pins = *pins, .into = (char *)(uintptr_t)at, .nbytes = nbytes};
    pull->pinned = pc__rcache_get(*pins, at, nbytes, false, error);
    pull->next = partner->pulls;
    partner->pulls = pull;
    return pull;
}

static void end(struct pc_rndv *pull)
{
    struct pc_rndv **at = &pull->partner->pulls;
    while (*at != pull)
        at = &(*at)->next;
    *at = pull->next;
    if (pull->pinned != NULL)
        pc__rcache_put(pull->pins, pull->pinned);
    free(pull);
}

int pc__rndv_expose(struct pc_net *w, uint32_t peer, const void *at, uint64_t nbytes,
                    struct pc_rkey *loan, struct pc_rndv **out)
{
    struct pc_verbs_peer *partner = &w->partners[peer];
    struct pc_error error;
    int rc = PC_UNMAPPABLE;
    pthread_mutex_lock(&w->lock);
    struct pc_rndv *pull = partner->greeted && !partner->ended
                               ? begin(w, partner, PC_DIRECTION_SEND, at, nbytes, &error)
                               : NULL;
    if (pull != NULL && pull->pinned != NULL) {
        const struct pc_mr *region = pull->pinned->handle;
        *loan = (struct pc_rkey){.address = (uintptr_t)at};
        for (uint32_t i = 0; i < w->nrails; i++)
            loan->keys[i] = region->with[i]->rkey;
        pull->lent = true;
        *out = pull;
        rc = PC_OK;
    } else if (pull != NULL) {
        end(pull);
    }
    pc__net_unlock(w);
    return rc;
}

uint32_t pc__rndv_lkey(const struct pc_rndv *pull, uint32_t rail)
{
    if (pull->pinned == NULL)
        return pull->partner->bounce[rail]->lkey;
    return ((const struct pc_mr *)pull->pinned->handle)->with[rail]->lkey;
}

/* Asks for more, as far as it goes: the whole, or what the bounce buffer holds. */
static void ask(struct pc_net *w, struct pc_rndv *pull)
{
    uint64_t limit = pull->pinned ? pull->nbytes : pull->came + PC_BOUNCE_BYTES;
    if (limit > pull->nbytes)
        limit = pull->nbytes;
    if (pull->pinned == NULL && pull->reads != 0)
        return;
    while (pull->asked < limit && pull->reads < PC_RNDV_READS) {
        uint64_t n
            = limit - pull->asked < PC_RNDV_READ_BYTES ? limit - pull->asked : PC_RNDV_READ_BYTES;
        char *to = pull->pinned ? pull->into + pull->asked : pull->partner->bounce_at;
        struct pc_send_op record = {.pull = pull,
                                    .number = pull->loan.address + pull->asked,
                                    .data = to,
                                    .nbytes = n,
                                    .pieces = 1};
        pull->asked += n;
        pull->reads++;
        w->reads++;
        if (pull->partner->head != pull->partner->tail
            || !pc__verbs_peer_send(w, pull->partner, &record))
            pc__verbs_peer_queue(w, pull->partner, &record, false);
    }
}

void pc__rndv_read_failed(struct pc_net *w, struct pc_rndv *pull)
{
    pull->reads--;
    w->reads--;
    if (pull->broken && pull->reads == 0)
        end(pull);
}

void pc__rndv_read_done(struct pc_net *w, struct pc_rndv *pull, uint64_t nbytes)
{
    if (pull->broken) {
        pc__rndv_read_failed(w, pull);
        return;
    }
    pull->reads--;
    w->reads--;
    if (pull->pinned == NULL)
        memcpy(pull->into + pull->came, pull->partner->bounce_at, nbytes);
    pull->came += nbytes;
    ask(w, pull);
}

int pc__rndv_get(struct pc_net *w, uint32_t peer, void *into, uint64_t nbytes,
                 const struct pc_rkey *loan, struct pc_rndv **out, struct pc_error *error)
{
    struct pc_verbs_peer *partner = &w->partners[peer];
    pthread_mutex_lock(&w->lock);
    struct pc_rndv *pull = NULL;
    if (partner->ended)
        *error = partner->fault;
    else
        pull = begin(w, partner, PC_DIRECTION_RECV, into, nbytes, error);
    int rc = pull == NULL ? error->code : PC_OK;
    if (pull != NULL && pull->pinned == NULL && partner->bouncing) {
        end(pull); /* the other channel's transfer has it: later */
        pull = NULL;
    } else if (pull != NULL) {
        partner->bouncing = partner->bouncing || pull->pinned == NULL;
        pull->loan = *loan;
        ask(w, pull);
    }
    *out = pull;
    pc__net_unlock(w);
    return rc;
}

int pc__rndv_test(struct pc_net *w, struct pc_rndv *pull, struct pc_error *error)
{
    pthread_mutex_lock(&w->lock);
    int rc = pull != NULL && pull->came == pull->nbytes;
    if (pull != NULL && rc == 0 && pull->partner->ended) {
        *error = pull->partner->fault;
        rc = error->code;
    }
    pc__net_unlock(w);
    return rc;
}

/* The user may write or free that memory next: nothing more may come, nor be read. A new path would
 * let what waits for one go on, here and at the other end, so that none is made. The other end is
 * told, as it would take a rank without paths for one that is gone; why, it hears from this rank's
 * user, who may be elsewhere for long. */
static void withdraw(struct pc_net *w, struct pc_verbs_peer *partner)
{
    if (!partner->withdrawn) /* who cannot be told has gone, which is noticed when reading */
        (void)pc__wireup_write(&partner->mail, PC_WIREUP_ABORTED, 0, 0, "", 0);
    partner->withdrawn = true;
    for (uint32_t i = 0; i < partner->npaths; i++)
        pc__connection_abort(w, &partner->paths[i]);
}

void pc__rndv_release(struct pc_net *w, struct pc_rndv *pull, bool taken)
{
    struct pc_verbs_peer *partner = pull->partner;
    pthread_mutex_lock(&w->lock);
    bool underway = pull->reads != 0 || (pull->lent && !taken);
    pull->broken = true;
    if (pull->pinned == NULL)
        partner->bouncing = false;
    pull->reads++; /* one more, so that it ends below, or with the last of them */
    w->reads++;
    if (underway)
        withdraw(w, partner);
    pc__rndv_read_failed(w, pull);
    pc__net_unlock(w);
}

void pc__rndv_invalidate(struct pc_net *w, const void *at, uint64_t nbytes)
{
    pthread_mutex_lock(&w->lock);
    for (uint32_t p = 0; p < w->comm->options.size; p++)
        for (uint32_t d = 0; d < 2; d++)
            if (w->partners[p].pins[d] != NULL)
                pc__rcache_invalidate(w->partners[p].pins[d], at, nbytes);
    pc__net_unlock(w);
}

void pc__rndv_close_all(struct pc_verbs_peer *partner)
{
    while (partner->pulls != NULL)
        end(partner->pulls);
    for (uint32_t d = 0; d < 2; d++)
        if (partner->pins[d] != NULL)
            pc__rcache_close(partner->pins[d]);
}
#endif
