/* Rendezvous by RDMA read: the receiver gets a long transfer from where it lies. Neither side
 * copies, and the sender need not be inside a call. Both ends' memory is registered in the peer's
 * protection domain, by the registration cache. Where the receiver's cannot be, it reads into a
 * registered bounce buffer.
 *
 * A read that failed on one connection is posted to another: nobody looks at the bytes before all
 * are here. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <stdlib.h>
#include <string.h>

#define PC_RNDV_READ_BYTES (UINT64_C(1) << 20) /* of one work request, at most */
#define PC_RNDV_READS 8u                       /* in flight for one transfer */
#define PC_RCACHE_BYTES (UINT64_C(1) << 30)    /* of unused registrations, per peer */

/* The peer may read what this rank exposes, but not touch the memory into which this one reads. */
static int access_of(enum pc_direction direction)
{
    return direction == PC_DIRECTION_SEND ? (int)IBV_ACCESS_REMOTE_READ
                                          : IBV_ACCESS_LOCAL_WRITE | PC_ACCESS_RELAXED;
}

static struct pc_rndv *begin(struct pc_verbs_net *w, struct pc_verbs_peer *peer,
                             enum pc_direction direction, const void *at, uint64_t nbytes,
                             struct pc_error *error)
{
    struct pc_mr_domains *regions = &peer->regions[direction];
    struct pc_rcache **rcaches = &peer->rcaches[direction];
    if (*rcaches == NULL) {
        for (uint32_t i = 0; i < w->nrails; i++)
            regions->domains[i] = peer->domains[i];
        regions->n = w->nrails;
        regions->access = access_of(direction);
        *rcaches = pc__rcache_open(&pc__mr_rcache_ops, regions, PC_RCACHE_BYTES);
    }
    struct pc_rndv *rndv = calloc(1, sizeof *rndv);
    if (rndv == NULL || *rcaches == NULL) {
        free(rndv);
        pc__fail(error, PC_NOMEM, -1, "no memory");
        return NULL;
    }
    *rndv = (struct pc_rndv){
        .peer = peer, .rcaches = *rcaches, .into = (char *)(uintptr_t)at, .nbytes = nbytes};
    rndv->cached = pc__rcache_get(*rcaches, at, nbytes, false, error);
    rndv->next = peer->rndvs;
    peer->rndvs = rndv;
    return rndv;
}

static void end(struct pc_rndv *rndv)
{
    struct pc_rndv **at = &rndv->peer->rndvs;
    while (*at != rndv)
        at = &(*at)->next;
    *at = rndv->next;
    if (rndv->cached != NULL)
        pc__rcache_put(rndv->rcaches, rndv->cached);
    free(rndv);
}

int pc__rndv_expose(struct pc_net_peer *base, const void *at, uint64_t nbytes, void *rkey,
                    struct pc_rndv **out)
{
    struct pc_verbs_peer *peer = (struct pc_verbs_peer *)base;
    struct pc_verbs_net *w = (struct pc_verbs_net *)base->net;
    struct pc_error error;
    int rc = PC_UNMAPPABLE;
    struct pc_rndv *rndv = peer->hello_received && !peer->base.ended
                               ? begin(w, peer, PC_DIRECTION_SEND, at, nbytes, &error)
                               : NULL;
    if (rndv != NULL && rndv->cached != NULL) {
        const struct pc_mr *region = rndv->cached->handle;
        rndv->rkey.address = (uintptr_t)at;
        for (uint32_t i = 0; i < w->nrails; i++)
            rndv->rkey.keys[i] = region->with[i]->rkey;
        memcpy(rkey, &rndv->rkey, sizeof rndv->rkey);
        rndv->lent = true;
        *out = rndv;
        rc = PC_OK;
    } else if (rndv != NULL) {
        end(rndv);
    }
    return rc;
}

/* Posts more reads: up to the whole transfer, or to what the bounce buffer holds. */
static void post_reads(struct pc_verbs_net *w, struct pc_rndv *rndv)
{
    uint64_t limit = rndv->cached ? rndv->nbytes : rndv->came + PC_BOUNCE_BYTES;
    if (limit > rndv->nbytes)
        limit = rndv->nbytes;
    if (rndv->cached == NULL && rndv->reads != 0)
        return;
    while (rndv->asked < limit && rndv->reads < PC_RNDV_READS) {
        uint64_t n
            = limit - rndv->asked < PC_RNDV_READ_BYTES ? limit - rndv->asked : PC_RNDV_READ_BYTES;
        char *to = rndv->cached ? rndv->into + rndv->asked : rndv->peer->bounce_at;
        struct pc_send_op op = {.rndv = rndv,
                                .number = rndv->rkey.address + rndv->asked,
                                .data = to,
                                .nbytes = n,
                                .frags = 1};
        rndv->asked += n;
        rndv->reads++;
        w->reads++;
        pc__net_queue(&rndv->peer->base, &op, false);
    }
}

void pc__rndv_read_failed(struct pc_verbs_net *w, struct pc_rndv *rndv)
{
    rndv->reads--;
    w->reads--;
    if (rndv->broken && rndv->reads == 0)
        end(rndv);
}

void pc__rndv_read_done(struct pc_verbs_net *w, struct pc_rndv *rndv, uint64_t nbytes)
{
    if (rndv->broken) {
        pc__rndv_read_failed(w, rndv);
        return;
    }
    rndv->reads--;
    w->reads--;
    if (rndv->cached == NULL)
        memcpy(rndv->into + rndv->came, rndv->peer->bounce_at, nbytes);
    rndv->came += nbytes;
    post_reads(w, rndv);
}

int pc__rndv_get(struct pc_net_peer *base, void *into, uint64_t nbytes, const void *rkey,
                 struct pc_rndv **out, struct pc_error *error)
{
    struct pc_verbs_peer *peer = (struct pc_verbs_peer *)base;
    struct pc_verbs_net *w = (struct pc_verbs_net *)base->net;
    struct pc_rndv *rndv = NULL;
    if (peer->base.ended)
        *error = peer->base.fault;
    else
        rndv = begin(w, peer, PC_DIRECTION_RECV, into, nbytes, error);
    int rc = rndv == NULL ? error->code : PC_OK;
    if (rndv != NULL && rndv->cached == NULL && peer->bouncing) {
        end(rndv); /* a transfer of the other channel uses the bounce buffer */
        return PC_AGAIN;
    } else if (rndv != NULL) {
        peer->bouncing = peer->bouncing || rndv->cached == NULL;
        memcpy(&rndv->rkey, rkey, sizeof rndv->rkey);
        post_reads(w, rndv);
    }
    *out = rndv;
    return rc;
}

int pc__rndv_test(struct pc_net_peer *peer, struct pc_rndv *rndv, struct pc_error *error)
{
    if (rndv->came == rndv->nbytes)
        return 1;
    if (!peer->ended)
        return 0;
    *error = peer->fault;
    return error->code;
}

bool pc__rndv_break(struct pc_rndv *rndv, bool taken)
{
    bool underway = rndv->reads != 0 || (rndv->lent && !taken);
    rndv->broken = true;
    if (rndv->cached == NULL)
        rndv->peer->bouncing = false;
    if (rndv->reads == 0)
        end(rndv); /* else its last read ends it */
    return underway;
}

void pc__rndv_close_all(struct pc_verbs_peer *peer)
{
    while (peer->rndvs != NULL)
        end(peer->rndvs);
    for (uint32_t d = 0; d < 2; d++)
        if (peer->rcaches[d] != NULL)
            pc__rcache_close(peer->rcaches[d]);
}
#endif
