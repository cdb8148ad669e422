/* The memory of packets: one allocation for many, registered where the provider wants that. */
#include "libfabric/fabric.h"
#ifdef PC_LIBFABRIC
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>

#define PC_KEY_TRIES 8 /* keys that are in use already */
#define HEADS_BYTES (PC_EDGE_LINES * sizeof(struct pc_fabric_head))

/* Where the provider does not choose it: who guesses it may write. */
static uint64_t new_key(const struct pc_fabric_endpoint *e)
{
    uint64_t key = 0;
    size_t nbytes = e->info->domain_attr->mr_key_size;
    (void)!getrandom(&key, nbytes == 0 || nbytes > sizeof key ? sizeof key : nbytes, 0);
    return key;
}

/* Ends the registration that `call` made, or says why it did not. */
static int enable(struct pc_fabric_net *w, struct pc_fabric_endpoint *e, const char *call, int code,
                  struct fid_mr **out, struct pc_error *error)
{
    if (code == 0 && e->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
        code = (call = "fi_mr_bind", fi_mr_bind(*out, &e->ep->fid, 0));
        if (code == 0)
            code = (call = "fi_mr_enable", fi_mr_enable(*out));
    }
    if (code != 0) {
        if (*out != NULL)
            fi_close(&(*out)->fid);
        *out = NULL;
        return pc__endpoint_refused(e, call, code, error);
    }
    w->base.state.regions++;
    return PC_OK;
}

int pc__fabric_register(struct pc_fabric_net *w, struct pc_fabric_endpoint *e, const void *at,
                        size_t nbytes, uint64_t access, struct fid_mr **out, struct pc_error *error)
{
    int mode = e->info->domain_attr->mr_mode;
    if (!(mode & FI_MR_LOCAL) && !(access & (FI_REMOTE_WRITE | FI_REMOTE_READ)))
        return PC_OK;
    int code, tries = 0;
    do
        code = fi_mr_reg(e->domain, at, nbytes, access, 0, new_key(e), 0, out, NULL);
    while (code == -FI_ENOKEY && ++tries < PC_KEY_TRIES);
    return enable(w, e, "fi_mr_reg", code, out, error);
}

int pc__fabric_register_hmem(struct pc_fabric_net *w, uint64_t at, size_t nbytes, uint64_t access,
                             struct fid_mr **out, struct pc_error *error)
{
    struct pc_fabric_endpoint *e = &w->endpoint;
    const struct iovec span = {(void *)(uintptr_t)at, nbytes};
    union {
        struct fi_mr_attr attr;
        char room[256]; /* later versions have more fields */
    } of = {.room = {0}};
    of.attr = (struct fi_mr_attr){.mr_iov = &span,
                                  .iov_count = 1,
                                  .access = access,
                                  .iface = FI_HMEM_CUDA,
                                  .device.cuda = w->base.gpu.device};
    int code, tries = 0;
    do {
        of.attr.requested_key = new_key(e);
        code = fi_mr_regattr(e->domain, &of.attr, 0, out);
    } while (code == -FI_ENOKEY && ++tries < PC_KEY_TRIES);
    return enable(w, e, "fi_mr_regattr with FI_HMEM_CUDA", code, out, error);
}

int pc__fabric_block_open(struct pc_fabric_net *w, struct pc_fabric_peer *peer, uint32_t n,
                          bool receives, struct pc_fabric_block *out, struct pc_error *error)
{
    size_t stride = (PC_FABRIC_PACKET + PC_LINE_BYTES - 1) / PC_LINE_BYTES * PC_LINE_BYTES;
    size_t nbytes = pc__page_up(n * stride); /* pages of its own */
    out->packets = calloc(n, sizeof *out->packets);
    /* Shared: a fork would have this process copy a page that a device knows. */
    out->bytes = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (out->bytes == MAP_FAILED)
        out->bytes = NULL;
    out->nbytes = nbytes;
    if (out->packets == NULL || out->bytes == NULL)
        return pc__fail(error, PC_NOMEM, (int)peer->base.rank,
                        "no memory for %u packets of rank %u", n, peer->base.rank);
    int rc = pc__fabric_register(w, &w->endpoint, out->bytes, nbytes, receives ? FI_RECV : FI_SEND,
                                 &out->mr, error);
    if (rc != PC_OK)
        return rc;
    for (out->n = 0; out->n < n; out->n++)
        out->packets[out->n]
            = (struct pc_fabric_packet){.peer = peer,
                                        .receives = receives,
                                        .desc = out->mr != NULL ? fi_mr_desc(out->mr) : NULL,
                                        .bytes = out->bytes + out->n * stride};
    return PC_OK;
}

void pc__fabric_unregister(struct pc_fabric_net *w, struct fid_mr **mr)
{
    if (*mr == NULL)
        return;
    fi_close(&(*mr)->fid);
    w->base.state.regions--;
    *mr = NULL;
}

void pc__fabric_block_close(struct pc_fabric_net *w, struct pc_fabric_block *block)
{
    pc__fabric_unregister(w, &block->mr);
    free(block->packets);
    if (block->bytes != NULL)
        munmap(block->bytes, block->nbytes);
}

char *pc__fabric_slots(const struct pc_fabric_net *w, char *record, size_t *nbytes)
{
    const struct pc_layout *l = &w->base.comm->layout;
    *nbytes = PC_EDGE_CHANNELS * l->channel;
    return pc__slot_data(record, l, 0);
}

/* The place for headers, without which they go in packets. */
static void open_heads(struct pc_fabric_net *w, struct pc_fabric_peer *peer)
{
    struct pc_error error;
    peer->heads = mmap(NULL, pc__page_up(HEADS_BYTES), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (peer->heads == MAP_FAILED)
        peer->heads = NULL;
    else if (pc__fabric_register(w, &w->endpoint, peer->heads, HEADS_BYTES, FI_REMOTE_WRITE,
                                 &peer->heads_mr, &error)
             != PC_OK)
        pc__fabric_heads_free(peer);
}

void pc__fabric_heads_free(struct pc_fabric_peer *peer)
{
    if (peer->heads != NULL)
        munmap(peer->heads, pc__page_up(HEADS_BYTES));
    peer->heads = NULL;
}

void pc__fabric_regions_open(struct pc_fabric_net *w, struct pc_fabric_peer *peer)
{
    struct pc_comm *comm = w->base.comm;
    struct pc_fabric_endpoint *e = &w->endpoint;
    struct pc_error error;
    uint32_t rank = peer->base.rank;
    size_t nbytes;
    if (!e->writes || peer->base.gpu_in != 0) /* pc__fabric_register_gpu has opened them */
        return;
    char *slots = pc__fabric_slots(w, pc__record(comm->arena, &comm->layout, rank), &nbytes);
    char *shadow = pc__fabric_slots(w, comm->peers[rank].record, &nbytes);
    if (pc__fabric_register(w, e, slots, nbytes, FI_REMOTE_WRITE, &peer->slots_mr, &error) != PC_OK
        || pc__fabric_register(w, e, shadow, nbytes, FI_WRITE, &peer->shadow_mr, &error) != PC_OK)
        pc__fabric_regions_close(w, peer);
    else if (e->joins)
        open_heads(w, peer);
}

void pc__fabric_regions_close(struct pc_fabric_net *w, struct pc_fabric_peer *peer)
{
    pc__fabric_unregister(w, &peer->slots_mr);
    pc__fabric_unregister(w, &peer->heads_mr);
    pc__fabric_unregister(w, &peer->shadow_mr);
}

void pc__fabric_unregister_peer(struct pc_fabric_net *w, struct pc_fabric_peer *peer)
{
    pc__fabric_regions_close(w, peer);
    pc__fabric_unregister(w, &peer->sends.mr);
    pc__fabric_unregister(w, &peer->receives.mr);
}
#endif
