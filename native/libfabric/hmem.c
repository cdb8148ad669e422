/* GPUDirect RDMA: data of remote edges in memory of a GPU (FI_HMEM), and the flush that makes it
 * visible.
 *
 * Such data are never in a packet, which the CPU would copy: each message that does not fit its
 * line is written, from one memory into the other. The endpoint is another than the one that the
 * network was opened with, of the same NIC: it takes the other's place before any peer is
 * connected, and only where a part of the memory could be registered; the data of peers whose part
 * could not are written from and into memory of the host.
 *
 * That a write has come is told in memory of the host, and may overtake it on its way to the GPU;
 * what a provider's NIC orders is not known. So a message counts only after a flush that began when
 * it was whole: by the driver, or by a read of that memory by this endpoint from itself, which
 * pushes what came before it. One flush serves all that came, and nothing waits for it. The peer is
 * told only then, so that it does not leave earlier. */
#include "libfabric/fabric.h"
#ifdef PC_LIBFABRIC
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include "memory/mem_type.h"

#define PC_FLUSH_PAUSE_NS UINT64_C(10000000) /* after a failed one */
#define PC_FLUSH_PATIENCE_NS UINT64_C(20000000000)

/* A peer's slots, and those of its shadow, each a region of its own; or none. */
static int register_slots(struct pc_net_peer *base, struct pc_error *error)
{
    struct pc_fabric_net *w = (struct pc_fabric_net *)base->net;
    struct pc_fabric_peer *peer = (struct pc_fabric_peer *)base;
    size_t each = w->base.gpu.each;
    int rc
        = pc__fabric_register_hmem(w, base->gpu_in, each, FI_REMOTE_WRITE, &peer->slots_mr, error);
    if (rc == PC_OK)
        rc = pc__fabric_register_hmem(w, base->gpu_out, each, FI_WRITE, &peer->shadow_mr, error);
    if (rc != PC_OK)
        pc__fabric_regions_close(w, peer);
    return rc;
}

/* What a flush by a read needs: an address of its own, what it reads, and where that goes. */
static int open_read(struct pc_fabric_net *w, struct pc_error *error)
{
    struct pc_fabric_hmem *h = &w->hmem;
    struct pc_fabric_endpoint *e = &w->endpoint;
    if (!e->reads)
        return pc__fail(error, PC_UNMAPPABLE, -1,
                        "provider %s does not read by itself, which would flush what it wrote",
                        e->info->fabric_attr->prov_name);
    h->word = aligned_alloc(PC_PAGE, PC_PAGE);
    if (h->word == NULL)
        return pc__fail(error, PC_NOMEM, -1, "no memory to flush a GPU's");
    int rc
        = pc__fabric_register_hmem(w, w->base.gpu.at, PC_PAGE, FI_REMOTE_READ, &h->memory, error);
    if (rc == PC_OK)
        rc = pc__fabric_register(w, e, h->word, PC_PAGE, FI_READ, &h->into, error);
    if (rc == PC_OK && fi_av_insert(e->av, e->address, 1, &h->self, 0, NULL) != 1)
        rc = pc__fail(error, PC_UNMAPPABLE, -1, "provider %s does not reach itself (fi_av_insert)",
                      e->info->fabric_attr->prov_name);
    return rc;
}

static int register_all(struct pc_fabric_net *w, struct pc_error *error)
{
    struct pc_mem_gpu gpu;
    int rc = pc__mem_query_gpu(w->base.gpu.device, error, &gpu);
    if (rc != PC_OK)
        return rc;
    rc = pc__mem_enter(w->base.gpu.device, error);
    if (rc != PC_OK)
        return rc;
    w->base.state.gpu_flush = pc__mem_flush_method(&gpu, true);
    if (w->base.state.gpu_flush == PC_FLUSH_READ)
        rc = open_read(w, error);
    if (rc == PC_OK) /* last: without a flush no peer's could be used */
        rc = pc__net_register_gpu(&w->base, register_slots, error);
    pc__mem_leave();
    return rc;
}

/* The new endpoint's completions wake a rank, in place of the old one's. */
static int watch(struct pc_fabric_net *w, const struct pc_fabric_endpoint *old,
                 struct pc_error *error)
{
    int fd = w->endpoint.wait_fd;
    if (fd >= 0 && pc__net_watch(w->base.pause_epoll, fd, EPOLLIN, PC_EVENT_CQ) != 0)
        return pc__fail(error, PC_SYSTEM, -1, "epoll: %s", strerror(errno));
    if (old->wait_fd >= 0)
        epoll_ctl(w->base.pause_epoll, EPOLL_CTL_DEL, old->wait_fd, NULL);
    return PC_OK;
}

/* Opens it in place of the net's, which is in `old` then. */
static int open_instead(struct pc_fabric_net *w, struct pc_error *error)
{
    const struct pc_layout *l = &w->base.comm->layout;
    int rc = pc__fabric_choose_window(w, error);
    const struct fi_info *info = w->endpoint.info;
    if (rc == PC_OK && info->ep_attr->max_msg_size < l->slot_bytes)
        rc = pc__fail(error, PC_UNMAPPABLE, -1,
                      "provider %s writes %zu bytes at most, and messages have %llu",
                      info->fabric_attr->prov_name, info->ep_attr->max_msg_size,
                      (unsigned long long)l->slot_bytes);
    if (rc == PC_OK)
        rc = pc__endpoint_open(&w->endpoint, pc__fabric_completions(w), false, error);
    if (rc == PC_OK && !w->endpoint.writes)
        rc = pc__fail(error, PC_UNMAPPABLE, -1, "provider %s does not write memory of a GPU itself",
                      info->fabric_attr->prov_name);
    return rc;
}

static void close_all(struct pc_fabric_net *w)
{
    for (uint32_t p = 0; p < w->base.comm->options.size; p++)
        if (w->base.peers[p] != NULL)
            pc__fabric_regions_close(w, pc__fabric_peer(w, p));
    pc__fabric_hmem_unregister(w);
    pc__fabric_hmem_free(w);
    w->base.state.gpu_flush = PC_FLUSH_NONE;
}

int pc__fabric_register_gpu(struct pc_net *net, struct pc_error *error)
{
    struct pc_fabric_net *w = (struct pc_fabric_net *)net;
    struct pc_fabric_endpoint old = w->endpoint, found;
    uint32_t window = w->window;
    if (net->gpu.ways != PC_MEM_WAYS)
        return pc__fail(error, PC_UNMAPPABLE, -1,
                        "over libfabric its provider chooses between dma-buf and nvidia_peermem: "
                        "PYCOLL_GPU_RDMA is auto or off");
    for (uint32_t p = 0; p < net->comm->options.size; p++)
        if (net->peers[p] != NULL && pc__fabric_peer(w, p)->sends.packets != NULL)
            return pc__fail(error, PC_UNMAPPABLE, -1, "rank %u has been connected before", p);
    int rc = pc__endpoint_find_hmem(&w->endpoint, error, &found);
    if (rc != PC_OK)
        return rc;
    w->endpoint = found;
    rc = open_instead(w, error);
    if (rc == PC_OK)
        rc = register_all(w, error);
    if (rc == PC_OK)
        rc = watch(w, &old, error);
    if (rc == PC_OK) {
        net->state.gpu_memory = 1u << PC_MEM_HMEM;
        pc__endpoint_close(&old);
        return PC_OK;
    }
    close_all(w);
    pc__endpoint_close(&w->endpoint);
    w->endpoint = old;
    w->window = window;
    error->code = PC_UNMAPPABLE; /* whatever it is, the memory can be staged */
    return PC_UNMAPPABLE;
}

void pc__fabric_hmem_unregister(struct pc_fabric_net *w)
{
    pc__fabric_unregister(w, &w->hmem.memory);
    pc__fabric_unregister(w, &w->hmem.into);
}

void pc__fabric_hmem_free(struct pc_fabric_net *w)
{
    free(w->hmem.word);
    free(w->hmem.arrived);
    w->hmem = (struct pc_fabric_hmem){0};
}

static int arrived(struct pc_fabric_net *w, struct pc_fabric_peer *peer,
                   const struct pc_frame *frame, struct pc_error *error)
{
    struct pc_fabric_hmem *h = &w->hmem;
    if (h->n == h->room) {
        uint32_t room = h->room == 0 ? PC_LINES : 2 * h->room;
        struct pc_fabric_arrived *more = realloc(h->arrived, room * sizeof *more);
        if (more == NULL)
            return pc__fail(error, PC_NOMEM, (int)peer->base.rank,
                            "no memory for what came from rank %u", peer->base.rank);
        h->arrived = more;
        h->room = room;
    }
    h->arrived[h->n++] = (struct pc_fabric_arrived){.peer = peer, .frame = *frame};
    return PC_OK;
}

int pc__fabric_whole(struct pc_fabric_net *w, struct pc_fabric_peer *peer,
                     const struct pc_frame *frame, struct pc_error *error)
{
    if (peer->base.gpu_in != 0 && frame->kind == PC_FRAME_MESSAGE
        && frame->nbytes > PC_INLINE_BYTES)
        return arrived(w, peer, frame, error);
    pc__fabric_count(peer);
    return pc__frame_land(&peer->base, frame, NULL, error);
}

/* Counts the first `n` that came: kernels can see them. */
static void release(struct pc_fabric_net *w, uint32_t n)
{
    struct pc_fabric_hmem *h = &w->hmem;
    struct pc_error error;
    for (uint32_t k = 0; k < n; k++) {
        struct pc_fabric_peer *peer = h->arrived[k].peer;
        if (peer->base.ended)
            continue;
        w->base.state.gpu_flushed++;
        pc__fabric_count(peer);
        int rc = pc__frame_land(&peer->base, &h->arrived[k].frame, NULL, &error);
        pc__fabric_came(w, peer, rc, &error);
    }
    if (n != 0)
        memmove(h->arrived, h->arrived + n, (h->n - n) * sizeof *h->arrived);
    h->n -= n;
}

/* What came will not be seen: those who sent it are lost. */
static void give_up(struct pc_fabric_net *w, const char *what)
{
    char why[PC_FABRIC_WHY];
    snprintf(why, sizeof why, "what it wrote into memory of GPU %d cannot be flushed: %.130s",
             w->base.gpu.device, what);
    while (w->hmem.n > 0)
        pc__fabric_peer_give_up(w, w->hmem.arrived[--w->hmem.n].peer, why);
}

/* It is tried again for a while: nobody would send what came once more. */
static void failed(struct pc_fabric_net *w, const char *why)
{
    struct pc_fabric_hmem *h = &w->hmem;
    uint64_t now = pc__now();
    h->attempt = now + PC_FLUSH_PAUSE_NS;
    pc__net_schedule(&w->base, h->attempt);
    if (h->failing == 0)
        h->failing = now;
    if (now - h->failing >= PC_FLUSH_PATIENCE_NS)
        give_up(w, why);
}

static void begin_read(struct pc_fabric_net *w)
{
    struct pc_fabric_hmem *h = &w->hmem;
    bool by_address = w->endpoint.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    if (h->reading || (h->attempt != 0 && pc__now() < h->attempt))
        return;
    h->attempt = 0;
    ssize_t code = fi_read(w->endpoint.ep, h->word, sizeof *h->word,
                           h->into != NULL ? fi_mr_desc(h->into) : NULL, h->self,
                           by_address ? w->base.gpu.at : 0, fi_mr_key(h->memory), &h->read.context);
    if (code == -FI_EAGAIN) {
        w->again = true;
        pc__net_schedule(&w->base, pc__now() + PC_SHORT_NS);
    } else if (code != 0) {
        failed(w, pc__fi.strerror((int)-code));
    } else {
        h->reading = true;
        h->covered = h->n;
        w->base.in_flight++;
        w->base.state.gpu_flushes++;
    }
}

void pc__fabric_hmem_flushed(struct pc_fabric_net *w, const char *why)
{
    struct pc_fabric_hmem *h = &w->hmem;
    h->reading = false;
    w->base.in_flight--;
    if (why != NULL) {
        failed(w, why);
        return;
    }
    h->failing = 0;
    release(w, h->covered < h->n ? h->covered : h->n);
}

bool pc__fabric_hmem_flush(struct pc_fabric_net *w)
{
    struct pc_error error;
    if (w->base.state.gpu_flush == PC_FLUSH_READ) {
        begin_read(w);
        return false;
    }
    w->base.state.gpu_flushes++;
    if (pc__mem_flush_by_driver(w->base.gpu.device, &error) == PC_OK)
        release(w, w->hmem.n);
    else
        give_up(w, error.text);
    return true;
}
#endif
