/* Rendezvous: the receiver reads a long transfer from where it lies, by an endpoint of its own.
 *
 * A rank that breaks one off must know that nothing reads or writes that memory any more, and an
 * operation of libfabric's cannot be taken back: so it closes that endpoint, which ends all reads
 * there. Packets have another, and lose nothing. Memory is registered for one transfer each:
 * providers whose registrations cost something keep them themselves. */
#include "libfabric/fabric.h"
#ifdef PC_LIBFABRIC
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PC_READS_AT_ONCE 16
#define PC_FINISH_NS UINT64_C(100000000) /* for reads that end by themselves */

static struct pc_rndv *begin(struct pc_fabric_net *w, struct pc_fabric_peer *peer, const void *at,
                             uint64_t nbytes, uint64_t access, struct pc_error *error)
{
    struct pc_rndv *rndv = calloc(1, sizeof *rndv);
    if (rndv == NULL) {
        pc__fail(error, PC_NOMEM, -1, "no memory for a rendezvous");
        return NULL;
    }
    if (pc__fabric_register(w, &w->reads, at, nbytes, access, &rndv->mr, error) != PC_OK) {
        free(rndv);
        return NULL;
    }
    rndv->peer = peer;
    rndv->into = (char *)(uintptr_t)at;
    rndv->nbytes = nbytes;
    rndv->next = w->rndvs;
    w->rndvs = rndv;
    return rndv;
}

static void end(struct pc_fabric_net *w, struct pc_rndv *rndv)
{
    struct pc_rndv **at = &w->rndvs;
    while (*at != rndv)
        at = &(*at)->next;
    *at = rndv->next;
    pc__fabric_unregister(w, &rndv->mr);
    free(rndv);
}

int pc__fabric_expose(struct pc_net_peer *base, const void *at, uint64_t nbytes, void *rkey,
                      struct pc_rndv **out)
{
    struct pc_fabric_peer *peer = (struct pc_fabric_peer *)base;
    struct pc_fabric_net *w = (struct pc_fabric_net *)base->net;
    struct pc_error error;
    if (w->reads.ep == NULL || !peer->greeted || peer->reads_at == FI_ADDR_UNSPEC || base->ended)
        return PC_UNMAPPABLE;
    struct pc_rndv *rndv = begin(w, peer, at, nbytes, FI_REMOTE_READ, &error);
    if (rndv == NULL)
        return PC_UNMAPPABLE;
    bool by_address = w->reads.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    rndv->lent = true;
    rndv->rkey.address = by_address ? (uintptr_t)at : 0;
    rndv->rkey.key = fi_mr_key(rndv->mr);
    memcpy(rkey, &rndv->rkey, sizeof rndv->rkey);
    *out = rndv;
    return PC_OK;
}

/* A peer that has broken off is not lost by it: what it lent is its user's again, and a read there
 * fails, or is not to be had. */
static void cut(struct pc_fabric_net *w, struct pc_fabric_peer *peer, const char *why)
{
    pc__fabric_peer_read(w, peer); /* if it has broken off, it has said so */
    if (peer->broke_off)
        return;
    peer->cut_by_read = peer->cut == 0 || peer->cut_by_read;
    pc__fabric_peer_cut(peer, "read", why);
}

/* Posts reads up to the end of the transfer, as far as the provider takes them. */
static void post_reads(struct pc_fabric_net *w, struct pc_rndv *rndv)
{
    if (w->reads.ep == NULL || w->reads_stop || rndv->peer->broke_off)
        return;
    uint64_t longest = w->reads.info->ep_attr->max_msg_size;
    void *desc = rndv->mr != NULL ? fi_mr_desc(rndv->mr) : NULL;
    for (uint32_t i = 0; i < PC_FABRIC_READS && rndv->asked < rndv->nbytes; i++) {
        struct pc_fabric_read *read = &rndv->reads[i];
        uint64_t left = rndv->nbytes - rndv->asked, n = left < longest ? left : longest;
        if (read->nbytes != 0)
            continue;
        ssize_t code = fi_read(w->reads.ep, rndv->into + rndv->asked, n, desc, rndv->peer->reads_at,
                               rndv->rkey.address + rndv->asked, rndv->rkey.key, &read->context);
        if (code != 0) {
            if (code == -FI_EAGAIN)
                w->again = true; /* pc__fabric_test tries again */
            else
                cut(w, rndv->peer, pc__fi.strerror((int)-code));
            return;
        }
        read->rndv = rndv;
        read->nbytes = n;
        rndv->asked += n;
        w->base.state.requests++;
    }
}

/* Something is being read, and will end whatever this rank's peers wait for. What is lent may not:
 * its reader may wait for this rank to read. */
static bool reads_any(const struct pc_fabric_net *w)
{
    const struct pc_rndv *rndv = w->rndvs;
    while (rndv != NULL && rndv->lent)
        rndv = rndv->next;
    return rndv != NULL;
}

int pc__fabric_get(struct pc_net_peer *base, void *into, uint64_t nbytes, const void *rkey,
                   struct pc_rndv **out, struct pc_error *error)
{
    struct pc_fabric_peer *peer = (struct pc_fabric_peer *)base;
    struct pc_fabric_net *w = (struct pc_fabric_net *)base->net;
    *out = NULL;
    if (base->ended) {
        *error = base->fault;
        return error->code;
    }
    if (!peer->greeted) /* its offer has overtaken its greeting, which has another way */
        pc__fabric_peer_read(w, peer);
    if (!peer->greeted)
        return PC_AGAIN;
    if (w->reads.ep == NULL || peer->reads_at == FI_ADDR_UNSPEC)
        return pc__fail(error, PC_INVALID, (int)base->rank,
                        "rank %u has memory to be read, but no endpoint for that", base->rank);
    struct pc_error why;
    struct pc_rndv *rndv = begin(w, peer, into, nbytes, FI_READ, &why);
    if (rndv == NULL && reads_any(w)) /* when that has ended, there may be room to register this */
        return PC_AGAIN;
    if (rndv == NULL) {
        pc__fail(error, why.code, -1, "no region for %llu bytes that are to come from rank %u: %s",
                 (unsigned long long)nbytes, base->rank, why.text);
        error->errnum = why.errnum;
        return error->code;
    }
    memcpy(&rndv->rkey, rkey, sizeof rndv->rkey);
    post_reads(w, rndv);
    *out = rndv;
    return PC_OK;
}

int pc__fabric_test(struct pc_net_peer *base, struct pc_rndv *rndv, struct pc_error *error)
{
    if (rndv->came == rndv->nbytes)
        return 1;
    if (base->ended) {
        *error = base->fault;
        return error->code;
    }
    if (rndv->asked < rndv->nbytes)
        post_reads((struct pc_fabric_net *)base->net, rndv);
    return 0;
}

static bool under_way(const struct pc_rndv *rndv)
{
    for (uint32_t i = 0; i < PC_FABRIC_READS; i++)
        if (rndv->reads[i].nbytes != 0)
            return true;
    return false;
}

void pc__fabric_release(struct pc_net_peer *base, struct pc_rndv *rndv, bool taken)
{
    struct pc_fabric_net *w = (struct pc_fabric_net *)base->net;
    if (w->base.pid != getpid())
        return; /* in a child of fork: it is the parent's */
    if (w->reads.ep != NULL && (under_way(rndv) || (rndv->lent && !taken))) {
        pc__fabric_say(w, PC_FABRIC_WIREUP_BROKEN_OFF);
        if (!pc__fabric_stop_reads(w) && under_way(rndv)) {
            /* The provider still has what it was given: the object stays. */
            pc__fabric_unregister(w, &rndv->mr);
            return;
        }
    }
    end(w, rndv);
}

static bool any_under_way(const struct pc_fabric_net *w)
{
    const struct pc_rndv *rndv = w->rndvs;
    while (rndv != NULL && !under_way(rndv))
        rndv = rndv->next;
    return rndv != NULL;
}

/* Ends what is under way by itself: reads of a peer that answers, or is dead. */
static void finish_reads(struct pc_fabric_net *w)
{
    uint64_t until = pc__now() + PC_FINISH_NS;
    w->reads_stop = true;
    while (any_under_way(w) && pc__now() < until)
        pc__fabric_poll_reads(w);
}

/* Leaves the endpoint as it is, and polls it no more. */
static void forget_reads(struct pc_fabric_net *w)
{
    if (w->reads.wait_fd >= 0)
        epoll_ctl(w->base.pause_epoll, EPOLL_CTL_DEL, w->reads.wait_fd, NULL);
    w->reads.kept = true;
    w->reads.ep = NULL;
}

bool pc__fabric_stop_reads(struct pc_fabric_net *w)
{
    if (w->reads.ep == NULL)
        return !w->reads.kept;
    bool careful = pc__endpoint_closes_only_idle(&w->reads);
    if (careful)
        finish_reads(w);
    /* Regions that are bound to an endpoint hold it open. */
    bool bound = w->reads.info->domain_attr->mr_mode & FI_MR_ENDPOINT;
    for (struct pc_rndv *rndv = w->rndvs; bound && rndv != NULL; rndv = rndv->next)
        pc__fabric_unregister(w, &rndv->mr);
    if (!careful || !any_under_way(w))
        return pc__endpoint_stop(&w->reads);
    forget_reads(w);
    return false;
}

static void completed(struct pc_fabric_net *w, struct pc_fabric_read *read)
{
    struct pc_rndv *rndv = read->rndv;
    uint64_t nbytes = read->nbytes;
    read->nbytes = 0;
    /* A provider within a host may read memory that is no longer lent: the sender says that it has
     * broken off before its user gets the memory back. */
    if (rndv->came + nbytes == rndv->nbytes) {
        pc__fabric_peer_read(w, rndv->peer);
        if (rndv->peer->broke_off)
            return;
    }
    rndv->came += nbytes;
    post_reads(w, rndv);
    if (rndv->came == rndv->nbytes) /* a thread may be about to sleep, and not pausing yet */
        pc__wakeup_signal(w->base.comm, w->base.comm->options.rank);
}

/* False when there was no error to read. */
static bool failed(struct pc_fabric_net *w)
{
    union {
        struct fi_cq_err_entry entry;
        char room[256]; /* as in events.c */
    } text = {0};
    char why[96];
    if (fi_cq_readerr(w->reads.cq, &text.entry, 0) != 1)
        return false;
    if (text.entry.op_context == NULL) /* of no read of ours */
        return true;
    struct pc_fabric_read *read = text.entry.op_context;
    read->nbytes = 0; /* and so it never is whole */
    snprintf(why, sizeof why, "%s (provider %s)", pc__fi.strerror(text.entry.err),
             w->reads.info->fabric_attr->prov_name);
    cut(w, read->rndv->peer, why);
    return true;
}

bool pc__fabric_poll_reads(struct pc_fabric_net *w)
{
    struct fi_cq_data_entry entries[PC_READS_AT_ONCE];
    w->reads_woken = false;
    if (w->reads.ep == NULL)
        return false;
    ssize_t n = fi_cq_read(w->reads.cq, entries, PC_READS_AT_ONCE);
    if (n == -FI_EAVAIL)
        return failed(w);
    for (ssize_t i = 0; i < n; i++) /* others are writes that nobody here has asked for */
        if (entries[i].op_context != NULL && !(entries[i].flags & FI_REMOTE_WRITE))
            completed(w, entries[i].op_context);
    return n > 0;
}
#endif
