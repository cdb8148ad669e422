/* A stand-in for libfabric with one provider, which does what the specification lets one do, and
 * stops the process, saying why, where its caller does what the specification forbids.
 *
 * Nothing moves but in fi_cq_read. Packets overtake each other, and so do completions; a send is
 * read from its buffer at some time before it completes. Posts are refused by -FI_EAGAIN now and
 * then. Nobody is woken (no FI_WAIT_FD). Buffers must be registered, by regions that are bound to
 * the endpoint and enabled; contexts are scribbled over while an operation has them. A packet for
 * which no receive is posted stops its receiver. A write to a peer's memory goes in pieces, in any
 * order, by offsets (no FI_MR_VIRT_ADDR), and tells the target 32 bits. What is read comes from its
 * end on, and only while the target polls. Nothing is closed that something open holds on to.
 *
 * FAKEFABRIC_PROVIDER is the provider's name (efa), FAKEFABRIC_QUEUE the depth of each queue, and
 * FAKEFABRIC_FAIL fails each send after so many, as a network that is cut would. With
 * FAKEFABRIC_LIE each packet after so many has a wrong byte behind its first eight, in its
 * first 80. FAKEFABRIC_WRITES: native, emulated (as EFA says it where it is asked), or none;
 * FAKEFABRIC_PLACES: to how many a write may go at once; FAKEFABRIC_LONGEST: bytes of the longest
 * message or write. FAKEFABRIC_LATE: milliseconds from when
 * a send has left to its completion. FAKEFABRIC_BUSY: no endpoint
 * can be closed. FAKEFABRIC_TELLS: whoever reads from an endpoint that is closed is told so, as by
 * a NIC; else such a read never ends. FAKEFABRIC_IP: its addresses are of IP networks, of which it
 * has none that it is asked for.
 *
 * FAKEFABRIC_MINOR: its version is 1 and that (11). FAKEFABRIC_WRITES=newer: it emulates writes for
 * who asks for an interface before 1.18, as EFA does on some instances.
 *
 * FAKEFABRIC_HMEM: memory may be a GPU's, whose other half is the stand-in for libcuda (gpu.h):
 * p2p, the NIC reaches it; copies: it wants CUDA's help. Such memory is registered by fi_mr_regattr
 * alone, and is in no packet, nor in a write to two places. FAKEFABRIC_FLUSH_FAIL: so many reads
 * from itself fail at first.
 *
 * What is scarce: FAKEFABRIC_ENDPOINTS, FAKEFABRIC_QUEUES and FAKEFABRIC_REGIONS are how many of
 * each a process can have open at once. FAKEFABRIC_REFUSE is the access for which no memory can be
 * registered (recv, send, read, write, remote_read, remote_write), or the one call of fi_mr_reg
 * that fails, by its number in the process, from 1; FAKEFABRIC_REFUSE_HMEM that of fi_mr_regattr,
 * or with 3+ those from the third on. */
#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "gpu.h"
#include "wire.h"

#define PEERS 1024
#define MOST 8192    /* of each kind of operation */
#define REORDER 8    /* packets that may be overtaken */
#define PIECES 32    /* of a write, which may have one more for its first place */
#define PIECE 65536u /* of what is read */
#define REGIONS 4096
#define EMULATED_READ (-0xefa0000 + 1) /* FI_OPT_EFA_EMULATED_READ */
#define EMULATED_WRITE (-0xefa0000 + 2)
#define HMEM_P2P 8            /* FI_OPT_FI_HMEM_P2P */
#define CUDA_API_PERMITTED 10 /* FI_OPT_CUDA_API_PERMITTED */
#define MODE (FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_PROV_KEY | FI_MR_ALLOCATED)

struct op {
    struct fi_context2 *context;
    struct fi_context2 scribble;
    const char *bytes;
    size_t nbytes;
    uint64_t to;
    int state; /* of a send: 0 to be sent, 1 sent, 2 a read that was asked for, negative: failed */
    long long since; /* in milliseconds, when it was sent */
    struct wire wire;
    const char *first; /* of a write to two places: what goes to the first, and where that is */
    size_t nfirst;
    uint64_t first_at, first_key;
    uint64_t sent; /* of a write: a bit for each piece; of what is read: bytes that came */
};

struct answer { /* to a read: the bytes before `left` are to be sent */
    const struct region *region;
    struct wire wire;
    uint64_t left;
};

struct packet {
    struct wire wire;
    size_t nbytes;
    char bytes[];
};

struct incoming { /* a write that came in part, or whole: to be told */
    struct wire wire;
    uint64_t nbytes;
};

struct region {
    struct fid_mr mr; /* first */
    const char *bytes;
    size_t nbytes;
    uint64_t access;
    struct endpoint *ep; /* to which it is bound */
    struct domain *domain;
    struct gpu_region gpu;
    bool enabled;
};
static struct region *regions[REGIONS]; /* the key of each is its index, plus one */
static _Atomic uint32_t nregions;
static _Atomic size_t endpoints_open, queues_open, regions_open; /* ranks may be threads */

/* One endpoint with its queues: in all these structs the fid comes first. */
struct domain {
    struct fid_domain domain;
    uint32_t objects; /* of it that are open */
    bool hmem;
};
struct queue {
    struct fid_cq cq;
    struct domain *domain;
    size_t size;
    struct endpoint *ep;
};
struct addresses {
    struct fid_av av;
    struct domain *domain;
    char names[PEERS][NAME];
    uint32_t n;
};
struct endpoint {
    struct fid_ep ep;
    struct domain *domain;
    uint32_t regions;         /* bound to it, and open */
    struct queue *cq, *tx_cq; /* they may be one */
    struct addresses *av;
    char name[NAME];
    int fd;
    bool enabled, rma, emulates;
    bool hmem, p2p, no_cuda; /* what it was opened for, and told */
    struct op sends[MOST], receives[MOST];
    uint32_t nsends, nreceives;
    struct packet *came[REORDER];
    uint32_t ncame;
    struct incoming writes[MOST];
    uint32_t nwrites;
    struct answer answers[MOST];
    uint32_t nanswers;
    uint64_t written; /* writes and reads that were begun */
    size_t completions;
    long late;
    struct fi_cq_err_entry error;
    unsigned int seed;
    long sent, fails_after, lies_after;
};

static void stop(const char *why)
{
    fprintf(stderr, "fakefabric: process %d: %s\n", (int)getpid(), why);
    abort();
}

static uint32_t drawn(struct endpoint *e, uint32_t below)
{
    return (uint32_t)rand_r(&e->seed) % below;
}

static size_t depth(void)
{
    const char *text = getenv("FAKEFABRIC_QUEUE");
    size_t n = text == NULL ? 1024 : (size_t)atol(text);
    return n < MOST ? n : MOST;
}

static size_t longest(void)
{
    const char *text = getenv("FAKEFABRIC_LONGEST");
    return text == NULL ? 1u << 30 : (size_t)atol(text);
}

static bool is_set(const char *variable, const char *value)
{
    const char *text = getenv(variable);
    return text != NULL && strcmp(text, value) == 0;
}

/* Takes one more of what is scarce. False: there is none left. */
static bool take_one(_Atomic size_t *open, const char *variable)
{
    const char *most = getenv(variable);
    if (most != NULL && *open >= (size_t)atol(most))
        return false;
    ++*open;
    return true;
}

static long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* Contexts */

static void take_context(struct endpoint *e, struct op *op, void *context)
{
    if (context == NULL)
        stop("a post without a context");
    op->context = context;
    for (size_t i = 0; i < sizeof op->scribble / sizeof(int); i++)
        ((int *)&op->scribble)[i] = (int)drawn(e, 1u << 30);
    memcpy(context, &op->scribble, sizeof op->scribble);
}

static void give_context(const struct op *op)
{
    if (memcmp(op->context, &op->scribble, sizeof op->scribble) != 0)
        stop("a context was written to while the provider had it");
}

static void check_buffer(const struct endpoint *e, void *desc, const void *bytes, size_t nbytes)
{
    const struct region *r = desc;
    if (r == NULL || !r->enabled || r->ep != e)
        stop("a buffer that is not registered, with a provider of FI_MR_LOCAL and FI_MR_ENDPOINT");
    if ((const char *)bytes < r->bytes || (const char *)bytes + nbytes > r->bytes + r->nbytes)
        stop("a buffer beyond its memory region");
}

/* Where the NIC has a buffer. */
static const char *seen(const struct region *r, const void *bytes)
{
    return r->gpu.memory == NULL ? bytes : r->gpu.memory + ((const char *)bytes - r->bytes);
}

static void refuse_gpu(const void *desc, const char *what)
{
    if (desc != NULL && ((const struct region *)desc)->gpu.memory != NULL)
        stop(what);
}

/* Operations */

static ssize_t fake_recv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from,
                         void *context)
{
    struct endpoint *e = (struct endpoint *)ep;
    check_buffer(e, desc, buf, len);
    refuse_gpu(desc, "a packet that is received in memory of a GPU");
    if (!e->enabled || from != FI_ADDR_UNSPEC)
        stop("fi_recv on a disabled endpoint, or from an address");
    if (len > longest())
        stop("a message longer than max_msg_size");
    if (e->nreceives >= depth())
        stop("more receives than rx_attr->size");
    if (drawn(e, 16) == 0)
        return -FI_EAGAIN;
    struct op *op = &e->receives[e->nreceives++];
    *op = (struct op){.bytes = buf, .nbytes = len};
    take_context(e, op, context);
    return 0;
}

static ssize_t fake_send(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to,
                         void *context)
{
    struct endpoint *e = (struct endpoint *)ep;
    check_buffer(e, desc, buf, len);
    if (!e->enabled || to >= e->av->n)
        stop("fi_send on a disabled endpoint, or to no address");
    if (e->nsends >= depth())
        stop("more sends than tx_attr->size");
    if (drawn(e, 8) == 0)
        return -FI_EAGAIN;
    struct op *op = &e->sends[e->nsends++];
    *op = (struct op){.bytes = seen(desc, buf), .nbytes = len, .to = to};
    take_context(e, op, context);
    return 0;
}

static ssize_t fake_packet(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to,
                           void *context)
{
    refuse_gpu(desc, "a packet out of memory of a GPU");
    return fake_send(ep, buf, len, desc, to, context);
}

static ssize_t fake_writedata(struct fid_ep *ep, const void *buf, size_t len, void *desc,
                              uint64_t data, fi_addr_t to, uint64_t at, uint64_t key, void *context)
{
    struct endpoint *e = (struct endpoint *)ep;
    if (!e->rma)
        stop("a write by an endpoint without FI_RMA");
    if (data >> 32 != 0)
        stop("more data than cq_data_size");
    if (len > longest())
        stop("a write longer than max_msg_size");
    int code = (int)fake_send(ep, buf, len, desc, to, context);
    if (code == 0)
        e->sends[e->nsends - 1].wire = (struct wire){
            .write = ++e->written, .key = key, .at = at, .total = len, .data = data};
    return code;
}

static size_t places(void)
{
    const char *text = getenv("FAKEFABRIC_PLACES");
    return text == NULL ? 2 : (size_t)atol(text);
}

static ssize_t fake_writemsg(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags)
{
    struct endpoint *e = (struct endpoint *)ep;
    const struct iovec *from = message->msg_iov;
    const struct fi_rma_iov *to = message->rma_iov;
    if (flags != (FI_REMOTE_CQ_DATA | FI_COMPLETION) || places() < 2 || message->iov_count != 2
        || message->rma_iov_count != 2 || from[0].iov_len != to[0].len
        || from[1].iov_len != to[1].len)
        stop("fi_writemsg in a way that the stand-in has not");
    refuse_gpu(message->desc[0], "a write to two places out of memory of a GPU");
    refuse_gpu(message->desc[1], "a write to two places out of memory of a GPU");
    check_buffer(e, message->desc[0], from[0].iov_base, from[0].iov_len);
    if (from[0].iov_len + from[1].iov_len > longest())
        stop("a write longer than max_msg_size");
    int code = (int)fake_writedata(ep, from[1].iov_base, from[1].iov_len, message->desc[1],
                                   message->data, message->addr, to[1].addr, to[1].key,
                                   message->context);
    if (code == 0) {
        struct op *op = &e->sends[e->nsends - 1];
        op->first = from[0].iov_base;
        op->nfirst = from[0].iov_len;
        op->first_at = to[0].addr;
        op->first_key = to[0].key;
        op->wire.total += op->nfirst;
    }
    return code;
}

static ssize_t fake_read(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from,
                         uint64_t at, uint64_t key, void *context)
{
    struct endpoint *e = (struct endpoint *)ep;
    if (!e->rma)
        stop("a read by an endpoint without FI_RMA");
    if (len > longest())
        stop("a read longer than max_msg_size");
    refuse_gpu(desc, "a read into memory of a GPU");
    int code = (int)fake_send(ep, buf, len, desc, from, context);
    if (code == 0)
        e->sends[e->nsends - 1].wire
            = (struct wire){.read = ++e->written, .key = key, .at = at, .total = len};
    return code;
}

static ssize_t put(struct endpoint *e, const char *name, const struct wire *wire, const char *bytes,
                   size_t nbytes)
{
    static _Thread_local char datagram[1 << 18];
    struct sockaddr_un to;
    socklen_t length = address_of(name, &to);
    memcpy(datagram, wire, sizeof *wire);
    memcpy(((struct wire *)datagram)->from, e->name, NAME);
    memcpy(datagram + sizeof *wire, bytes, nbytes);
    if (wire->write == 0 && wire->read == 0 && e->lies_after != 0 && e->sent >= e->lies_after) {
        uint32_t most = nbytes < 80 ? (uint32_t)nbytes : 80;
        datagram[sizeof *wire + 8 + drawn(e, most - 8)] ^= (char)(1 + drawn(e, 255));
    }
    return sendto(e->fd, datagram, sizeof *wire + nbytes, MSG_DONTWAIT | MSG_NOSIGNAL,
                  (struct sockaddr *)&to, length);
}

/* Sends some pieces of a write. 1 when all are sent, 0 when not yet, or negative. */
static int put_pieces(struct endpoint *e, struct op *op)
{
    size_t piece = op->nbytes / PIECES + 1;
    piece = piece < 8192 ? 8192 : piece;
    uint32_t n = (uint32_t)((op->nbytes + piece - 1) / piece), first = drawn(e, n);
    uint32_t all = n + (op->first != NULL);
    for (uint32_t k = 0; k < all; k++) {
        uint32_t i = (first + all - k) % all; /* backwards, as no packet network does by itself */
        size_t at = i * piece, nbytes = op->nbytes - at < piece ? op->nbytes - at : piece;
        const char *bytes = op->bytes + at;
        struct wire wire = op->wire;
        if (op->sent >> i & 1)
            continue;
        wire.at += at;
        if (i == n) {
            wire.at = op->first_at;
            wire.key = op->first_key;
            bytes = op->first;
            nbytes = op->nfirst;
        }
        if (put(e, e->av->names[op->to], &wire, bytes, nbytes) < 0)
            return errno == EAGAIN || errno == ENOBUFS ? 0 : -1;
        op->sent |= UINT64_C(1) << i;
        if (drawn(e, 4) == 0)
            break;
    }
    return op->sent == (UINT64_C(1) << all) - 1;
}

/* Tells all who read here that they cannot. */
static void refuse_answers(struct endpoint *e)
{
    while (e->nanswers != 0) {
        const struct answer *a = &e->answers[--e->nanswers];
        struct wire wire = {.write = 1, .read = a->wire.read, .data = FI_EIO};
        put(e, a->wire.from, &wire, "", 0);
    }
}

/* Sends some of what peers read here, unless its region is closed. */
static void answer(struct endpoint *e)
{
    for (uint32_t i = e->nanswers; i-- > 0;) {
        struct answer *a = &e->answers[i];
        const struct region *r = a->region;
        while (r->enabled && a->left != 0 && drawn(e, 4) != 0) {
            size_t n = a->left < PIECE ? a->left : PIECE;
            struct wire wire = {.write = 1, .read = a->wire.read, .at = a->left - n};
            if (put(e, a->wire.from, &wire, seen(r, r->bytes) + a->wire.at + wire.at, n) < 0)
                return;
            a->left -= n;
        }
        if (!r->enabled || a->left == 0)
            e->answers[i] = e->answers[--e->nanswers];
    }
}

/* Sends some of what is to be sent. */
static void transmit(struct endpoint *e)
{
    answer(e);
    for (uint32_t i = 0; i < e->nsends; i++) {
        struct op *op = &e->sends[i];
        if (op->state != 0 || drawn(e, 4) == 0)
            continue;
        if (e->fails_after != 0 && e->sent >= e->fails_after) {
            op->state = -FI_ECONNABORTED;
            continue;
        }
        errno = 0;
        bool reads = op->wire.read != 0;
        int done = op->wire.write != 0 ? put_pieces(e, op)
                   : put(e, e->av->names[op->to], &op->wire, op->bytes, reads ? 0 : op->nbytes) >= 0
                       ? 1
                       : -1;
        if (done > 0) {
            op->state = reads ? 2 : 1;
            op->since = now_ms();
            e->sent++;
        } else if (done < 0 && errno != EAGAIN && errno != ENOBUFS) {
            op->state = -FI_ECONNREFUSED;
        }
    }
}

/* The region that a peer may write to, or read, if it is still open; else NULL. */
static const struct region *region_of(const struct endpoint *e, const struct wire *wire,
                                      uint64_t access, uint64_t nbytes)
{
    if (wire->key == 0 || wire->key > nregions)
        stop("a key that was never given");
    const struct region *r = regions[wire->key - 1];
    if (!r->enabled)
        return NULL;
    if (r->ep != e || !(r->access & access) || wire->at > r->nbytes
        || nbytes > r->nbytes - wire->at)
        stop("a write or a read where it is not registered for that");
    return r;
}

/* Whether a read from itself is to fail. */
static bool fails_now(void)
{
    static _Atomic long failed; /* ranks may be threads */
    const char *text = getenv("FAKEFABRIC_FLUSH_FAIL");
    return text != NULL && failed++ < atol(text);
}

/* A peer asks for bytes, or some that this endpoint has asked for have come. */
static void land_read(struct endpoint *e, const struct packet *packet)
{
    const struct wire *wire = &packet->wire;
    if (wire->write == 0) {
        const struct region *r = region_of(e, wire, FI_REMOTE_READ, wire->total);
        if (e->nanswers == MOST)
            stop("more reads than the stand-in can answer");
        bool itself = memcmp(wire->from, e->name, NAME) == 0;
        if (r != NULL && itself && fails_now()) {
            struct wire no = {.write = 1, .read = wire->read, .data = FI_EIO};
            put(e, e->name, &no, "", 0);
            return;
        }
        if (r != NULL && itself && r->gpu.memory != NULL)
            gpu_read(e, r->gpu.device);
        if (r != NULL)
            e->answers[e->nanswers++]
                = (struct answer){.region = r, .wire = *wire, .left = wire->total};
        return;
    }
    for (uint32_t i = 0; i < e->nsends; i++) {
        struct op *op = &e->sends[i];
        if (op->wire.read != wire->read || op->wire.write != 0)
            continue;
        if (wire->data != 0) {
            op->state = -(int)wire->data;
            continue;
        }
        memcpy((char *)(uintptr_t)op->bytes + wire->at, packet->bytes, packet->nbytes);
        op->sent += packet->nbytes;
        if (op->sent == op->nbytes)
            op->state = 1;
    }
}

/* A piece of a write lands; with the last one, the write is to be told. */
static void land(struct endpoint *e, const struct packet *packet)
{
    const struct wire *wire = &packet->wire;
    const struct region *r = region_of(e, wire, FI_REMOTE_WRITE, packet->nbytes);
    if (r == NULL)
        stop("a write to a region that is closed");
    char *to = (char *)(uintptr_t)seen(r, r->bytes) + wire->at;
    if (r->gpu.memory != NULL)
        gpu_write(e, &r->gpu, to, packet->bytes, packet->nbytes);
    else
        memcpy(to, packet->bytes, packet->nbytes);
    uint32_t i = 0;
    while (i < e->nwrites
           && (e->writes[i].wire.write != wire->write
               || memcmp(e->writes[i].wire.from, wire->from, NAME) != 0))
        i++;
    if (i == e->nwrites) {
        if (e->nwrites == MOST || e->nwrites >= e->completions)
            stop("more writes than the completion queue holds");
        e->writes[e->nwrites++] = (struct incoming){.wire = *wire};
    }
    e->writes[i].nbytes += packet->nbytes;
}

/* Takes what came off the socket, a few ahead, so that one may overtake the others. */
static void collect(struct endpoint *e)
{
    static _Thread_local char bytes[1 << 18];
    while (e->ncame < REORDER) {
        ssize_t n = recv(e->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n < 0)
            return;
        size_t nbytes = (size_t)n - sizeof(struct wire);
        struct packet *packet = malloc(sizeof *packet + nbytes);
        memcpy(&packet->wire, bytes, sizeof packet->wire);
        packet->nbytes = nbytes;
        memcpy(packet->bytes, bytes + sizeof packet->wire, nbytes);
        e->came[e->ncame++] = packet;
    }
}

static void deliver(struct endpoint *e, const struct packet *packet, struct fi_cq_data_entry *out)
{
    if (e->nreceives == 0)
        stop("a packet came, and no receive is posted: a peer sent more than it may");
    uint32_t i = drawn(e, e->nreceives); /* all are alike */
    struct op op = e->receives[i];
    e->receives[i] = e->receives[--e->nreceives];
    give_context(&op);
    if (packet->nbytes > op.nbytes)
        stop("a packet longer than its receive");
    memcpy((char *)(uintptr_t)op.bytes, packet->bytes, packet->nbytes);
    *out = (struct fi_cq_data_entry){
        .op_context = op.context, .flags = FI_RECV | FI_MSG, .len = packet->nbytes};
}

/* Takes one of what came. 1: a completion is in *out; 0: none, as it was a piece; -1: there is no
 * receive to read next. */
static int take(struct endpoint *e, struct fi_cq_data_entry *out, bool first)
{
    uint32_t which = drawn(e, e->ncame);
    struct packet *packet = e->came[which];
    /* A receive is posted anew only after the completion was read: leave some for later. */
    bool reads = packet->wire.read != 0, is_piece = reads || packet->wire.write != 0;
    if (!is_piece && e->nreceives == 0 && !first)
        return -1;
    e->came[which] = e->came[--e->ncame];
    if (reads)
        land_read(e, packet);
    else if (is_piece)
        land(e, packet);
    else
        deliver(e, packet, out);
    free(packet);
    return !is_piece;
}

/* Tells of the writes that are whole, some of them. */
static size_t tell_writes(struct endpoint *e, struct fi_cq_data_entry *out, size_t count)
{
    size_t n = 0;
    for (uint32_t i = e->nwrites; i-- > 0 && n < count;) {
        if (e->writes[i].nbytes != e->writes[i].wire.total || drawn(e, 2) == 0)
            continue;
        out[n++] = (struct fi_cq_data_entry){
            .op_context = (void *)-1, /* it is not valid */
            .flags = FI_REMOTE_WRITE | FI_RMA | FI_REMOTE_CQ_DATA,
            .data = e->writes[i].wire.data,
        };
        e->writes[i] = e->writes[--e->nwrites];
    }
    return n;
}

static ssize_t complete_sends(struct endpoint *e, struct fi_cq_data_entry *out, size_t count)
{
    size_t n = 0;
    if (e->error.err != 0)
        return -FI_EAVAIL;
    for (uint32_t i = e->nsends; i-- > 0 && n < count;) {
        struct op op = e->sends[i];
        if (op.state == 0 || op.state == 2 || drawn(e, 2) == 0
            || (op.state > 0 && now_ms() - op.since < e->late))
            continue;
        if (op.state < 0 && n != 0)
            break;
        e->sends[i] = e->sends[--e->nsends];
        give_context(&op);
        if (op.state < 0) {
            e->error = (struct fi_cq_err_entry){
                .op_context = op.context, .flags = FI_SEND | FI_MSG, .err = -op.state};
            return -FI_EAVAIL;
        }
        out[n++] = (struct fi_cq_data_entry){.op_context = op.context, .flags = FI_SEND | FI_MSG};
    }
    return n == 0 ? -FI_EAGAIN : (ssize_t)n;
}

static ssize_t fake_cq_read(struct fid_cq *cq, void *buf, size_t count)
{
    struct endpoint *e = ((struct queue *)cq)->ep;
    struct fi_cq_data_entry *out = buf;
    transmit(e);
    collect(e);
    if ((struct queue *)cq != e->cq)
        return complete_sends(e, out, count);
    size_t n = tell_writes(e, out, count);
    while (n < count && e->ncame != 0 && (e->ncame == REORDER || drawn(e, 3) != 0)) {
        int taken = take(e, &out[n], n == 0);
        if (taken < 0)
            break;
        n += (size_t)taken;
        collect(e);
    }
    if (n == 0 && e->tx_cq == e->cq)
        return complete_sends(e, out, count);
    return n == 0 ? -FI_EAGAIN : (ssize_t)n;
}

static ssize_t fake_readerr(struct fid_cq *cq, struct fi_cq_err_entry *buf, uint64_t flags)
{
    struct endpoint *e = ((struct queue *)cq)->ep;
    (void)flags;
    if (e->error.err == 0 || (struct queue *)cq != e->tx_cq)
        return -FI_EAGAIN;
    *buf = e->error;
    e->error.err = 0;
    return 1;
}

static const char *fake_cq_strerror(struct fid_cq *cq, int code, const void *data, char *buf,
                                    size_t len)
{
    (void)cq, (void)code, (void)data, (void)buf, (void)len;
    return "as the stand-in was told";
}

/* Objects */

static int close_static(struct fid *fid)
{
    (void)fid;
    return 0;
}

static int close_domain(struct fid *fid)
{
    if (((struct domain *)fid)->objects != 0)
        return -FI_EBUSY;
    free(fid);
    return 0;
}

static int close_queue(struct fid *fid)
{
    struct queue *q = (struct queue *)fid;
    if (q->ep != NULL)
        return -FI_EBUSY;
    q->domain->objects--;
    queues_open--;
    free(q);
    return 0;
}

static int close_av(struct fid *fid)
{
    ((struct addresses *)fid)->domain->objects--;
    free(fid);
    return 0;
}

static int close_region(struct fid *fid)
{
    struct region *r = (struct region *)fid;
    if (r->ep != NULL)
        r->ep->regions--;
    r->domain->objects--;
    regions_open--;
    gpu_unmap(&r->gpu);
    r->enabled = false; /* whoever uses its descriptor still, is caught */
    return 0;           /* and so it is not freed */
}

static int close_endpoint(struct fid *fid)
{
    struct endpoint *e = (struct endpoint *)fid;
    if (getenv("FAKEFABRIC_BUSY") != NULL || e->regions != 0)
        return -FI_EBUSY;
    if (getenv("FAKEFABRIC_TELLS") != NULL)
        refuse_answers(e);
    close(e->fd);
    endpoints_open--;
    if (e->cq != NULL)
        e->cq->ep = NULL;
    if (e->tx_cq != NULL)
        e->tx_cq->ep = NULL;
    e->domain->objects--;
    while (e->ncame != 0)
        free(e->came[--e->ncame]);
    free(e);
    return 0;
}

static int bind_endpoint(struct fid *fid, struct fid *to, uint64_t flags)
{
    struct endpoint *e = (struct endpoint *)fid;
    if (to->fclass == FI_CLASS_CQ) {
        if ((flags & ~(FI_TRANSMIT | FI_RECV)) != 0)
            stop("the completion queue is bound for something else");
        struct queue *q = (struct queue *)to;
        q->ep = e;
        if (flags & FI_RECV)
            e->cq = q;
        if (flags & FI_TRANSMIT)
            e->tx_cq = q;
        e->completions = e->cq != NULL ? e->cq->size : 0;
    } else {
        e->av = (struct addresses *)to;
    }
    return 0;
}

static int enable_endpoint(struct fid *fid, int command, void *argument)
{
    struct endpoint *e = (struct endpoint *)fid;
    (void)argument;
    if (command != FI_ENABLE || e->cq == NULL || e->tx_cq == NULL || e->av == NULL)
        stop("fi_enable without its queues");
    if (e->hmem && !(e->p2p && e->no_cuda))
        stop("an endpoint for memory of a GPU that may call CUDA while a kernel waits for it");
    e->enabled = true;
    return 0;
}

static int bind_region(struct fid *fid, struct fid *to, uint64_t flags)
{
    (void)flags;
    if (to->fclass != FI_CLASS_EP)
        stop("a region bound to what is no endpoint");
    ((struct region *)fid)->ep = (struct endpoint *)to;
    ((struct endpoint *)to)->regions++;
    return 0;
}

static int enable_region(struct fid *fid, int command, void *argument)
{
    struct region *r = (struct region *)fid;
    (void)argument;
    if (command != FI_ENABLE || r->ep == NULL)
        stop("a region that is enabled before it is bound");
    r->enabled = true;
    return 0;
}

static int no_control(struct fid *fid, int command, void *argument)
{
    (void)fid, (void)command, (void)argument;
    return -FI_ENOSYS;
}

static int get_name(fid_t fid, void *name, size_t *bytes)
{
    if (*bytes < NAME)
        return -FI_ETOOSMALL;
    *bytes = NAME;
    memcpy(name, ((struct endpoint *)fid)->name, NAME);
    return 0;
}

static int get_option(fid_t fid, int level, int option, void *out, size_t *bytes)
{
    if (level != FI_OPT_ENDPOINT || (option != EMULATED_WRITE && option != EMULATED_READ)
        || *bytes != sizeof(bool))
        return -FI_ENOPROTOOPT;
    *(bool *)out = ((struct endpoint *)fid)->emulates;
    return 0;
}

static int set_option(fid_t fid, int level, int option, const void *value, size_t bytes)
{
    struct endpoint *e = (struct endpoint *)fid;
    if (level != FI_OPT_ENDPOINT || e->enabled)
        stop("fi_setopt at another level, or of an endpoint that is enabled");
    if (option == HMEM_P2P && bytes == sizeof(int))
        e->p2p = *(const int *)value == FI_HMEM_P2P_REQUIRED;
    else if (option != CUDA_API_PERMITTED || bytes != sizeof(bool))
        return -FI_ENOPROTOOPT;
    else if (is_set("FAKEFABRIC_HMEM", "copies") && !*(const bool *)value)
        return -FI_EOPNOTSUPP;
    else
        e->no_cuda = !*(const bool *)value;
    return 0;
}

static int insert(struct fid_av *av, const void *names, size_t count, fi_addr_t *out,
                  uint64_t flags, void *context)
{
    struct addresses *a = (struct addresses *)av;
    (void)context;
    if (count != 1 || flags != 0 || a->n == PEERS)
        stop("fi_av_insert in a way that the stand-in has not");
    memcpy(a->names[a->n], names, NAME);
    *out = a->n++;
    return 1;
}

static struct fi_ops static_ops = {.size = sizeof static_ops, .close = close_static};
static struct fi_ops domain_fid_ops = {.size = sizeof domain_fid_ops, .close = close_domain};
static struct fi_ops queue_ops
    = {.size = sizeof queue_ops, .close = close_queue, .control = no_control};
static struct fi_ops av_fid_ops = {.size = sizeof av_fid_ops, .close = close_av};
static struct fi_ops region_ops = {
    .size = sizeof region_ops,
    .close = close_region,
    .bind = bind_region,
    .control = enable_region,
};
static struct fi_ops endpoint_ops = {
    .size = sizeof endpoint_ops,
    .close = close_endpoint,
    .bind = bind_endpoint,
    .control = enable_endpoint,
};
static struct fi_ops_msg msg_ops = {.size = sizeof msg_ops, .recv = fake_recv, .send = fake_packet};
static struct fi_ops_rma rma_ops = {.size = sizeof rma_ops,
                                    .read = fake_read,
                                    .writedata = fake_writedata,
                                    .writemsg = fake_writemsg};
static struct fi_ops_ep ep_ops
    = {.size = sizeof ep_ops, .getopt = get_option, .setopt = set_option};
static struct fi_ops_cm cm_ops = {.size = sizeof cm_ops, .getname = get_name};
static struct fi_ops_av av_ops = {.size = sizeof av_ops, .insert = insert};
static struct fi_ops_cq cq_ops = {
    .size = sizeof cq_ops,
    .read = fake_cq_read,
    .readerr = fake_readerr,
    .strerror = fake_cq_strerror,
};

static int open_av(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av,
                   void *context)
{
    struct addresses *a = calloc(1, sizeof *a);
    (void)attr, (void)context;
    a->domain = (struct domain *)domain;
    a->domain->objects++;
    a->av = (struct fid_av){.fid = {.fclass = FI_CLASS_AV, .ops = &av_fid_ops}, .ops = &av_ops};
    *av = &a->av;
    return 0;
}

static int open_cq(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq,
                   void *context)
{
    (void)context;
    if (attr->format != FI_CQ_FORMAT_DATA)
        stop("completions in a format that the stand-in has not");
    if (attr->wait_obj != FI_WAIT_NONE)
        return -FI_ENOSYS;
    if (!take_one(&queues_open, "FAKEFABRIC_QUEUES"))
        return -FI_ENOMEM;
    struct queue *q = calloc(1, sizeof *q);
    q->cq = (struct fid_cq){.fid = {.fclass = FI_CLASS_CQ, .ops = &queue_ops}, .ops = &cq_ops};
    q->size = attr->size;
    q->domain = (struct domain *)domain;
    q->domain->objects++;
    *cq = &q->cq;
    return 0;
}

static int open_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep,
                         void *context)
{
    static int made;
    struct sockaddr_un mine;
    if (!take_one(&endpoints_open, "FAKEFABRIC_ENDPOINTS"))
        return -FI_ENOMEM;
    struct endpoint *e = calloc(1, sizeof *e);
    const char *fail = getenv("FAKEFABRIC_FAIL"), *lie = getenv("FAKEFABRIC_LIE");
    const char *late = getenv("FAKEFABRIC_LATE");
    (void)context;
    e->domain = (struct domain *)domain;
    e->domain->objects++;
    e->emulates = is_set("FAKEFABRIC_WRITES", "emulated")
                  || (is_set("FAKEFABRIC_WRITES", "newer")
                      && FI_VERSION_LT(info->fabric_attr->api_version, FI_VERSION(1, 18)));
    e->rma = info->caps & FI_RMA && !e->emulates;
    e->hmem = info->caps & FI_HMEM;
    e->late = late == NULL ? 0 : atol(late);
    e->seed = (unsigned int)getpid() * 2654435761u;
    e->fails_after = fail == NULL ? 0 : atol(fail);
    e->lies_after = lie == NULL ? 0 : atol(lie);
    snprintf(e->name, sizeof e->name, "fakefabric/%d/%d", (int)getpid(),
             __atomic_fetch_add(&made, 1, __ATOMIC_RELAXED));
    e->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t length = address_of(e->name, &mine);
    if (e->fd < 0 || bind(e->fd, (struct sockaddr *)&mine, length) != 0)
        return -errno;
    e->ep = (struct fid_ep){
        .fid = {.fclass = FI_CLASS_EP, .ops = &endpoint_ops},
        .ops = &ep_ops,
        .cm = &cm_ops,
        .msg = &msg_ops,
        .rma = &rma_ops,
    };
    *ep = &e->ep;
    return 0;
}

/* Whether this call of fi_mr_reg is to fail. */
static bool is_refused(uint64_t access)
{
    static const struct {
        const char *name;
        uint64_t access;
    } kinds[] = {{"recv", FI_RECV},
                 {"send", FI_SEND},
                 {"read", FI_READ},
                 {"write", FI_WRITE},
                 {"remote_read", FI_REMOTE_READ},
                 {"remote_write", FI_REMOTE_WRITE}};
    static _Atomic long made;
    const char *refused = getenv("FAKEFABRIC_REFUSE");
    long calls = ++made;
    for (size_t i = 0; refused != NULL && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(refused, kinds[i].name) == 0)
            return access & kinds[i].access;
    return refused != NULL && atol(refused) == calls;
}

static int add_region(struct fid *fid, const void *buf, size_t len, uint64_t access,
                      const struct gpu_region *gpu, struct fid_mr **mr)
{
    if (nregions == REGIONS || is_refused(access) || !take_one(&regions_open, "FAKEFABRIC_REGIONS"))
        return -FI_ENOMEM;
    struct region *r = calloc(1, sizeof *r);
    uint32_t at = nregions++;
    regions[at] = r;
    r->mr = (struct fid_mr){
        .fid = {.fclass = FI_CLASS_MR, .ops = &region_ops}, .mem_desc = r, .key = at + 1};
    r->domain = (struct domain *)fid;
    r->domain->objects++;
    r->access = access;
    r->bytes = buf;
    r->nbytes = len;
    r->gpu = *gpu;
    *mr = &r->mr;
    return 0;
}

static int reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset,
               uint64_t key, uint64_t flags, struct fid_mr **mr, void *context)
{
    const struct gpu_region none = {0};
    (void)offset, (void)key, (void)flags, (void)context;
    if (gpu_owns(buf, len))
        return -FI_EFAULT;
    return add_region(fid, buf, len, access, &none, mr);
}

/* Whether this registration of a GPU's memory is to fail. */
static bool is_refused_hmem(void)
{
    static _Atomic long made; /* ranks may be threads */
    const char *refused = getenv("FAKEFABRIC_REFUSE_HMEM");
    long calls = ++made;
    char *end;
    if (refused == NULL)
        return false;
    long first = strtol(refused, &end, 10);
    return first == calls || (*end == '+' && first < calls);
}

static int regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags,
                   struct fid_mr **mr)
{
    struct gpu_region gpu = {0};
    if (flags != 0 || attr->iov_count != 1 || attr->iface != FI_HMEM_CUDA)
        stop("fi_mr_regattr in a way that the stand-in has not");
    if (!((struct domain *)fid)->hmem)
        return -FI_EOPNOTSUPP;
    const struct iovec *span = attr->mr_iov;
    int code = gpu_map(span->iov_base, span->iov_len, &gpu);
    if (code == 0 && gpu.device != attr->device.cuda)
        code = EINVAL;
    if (code == 0 && is_refused_hmem())
        code = FI_ENOMEM;
    if (code == 0)
        code = -add_region(fid, span->iov_base, span->iov_len, attr->access, &gpu, mr);
    if (code != 0)
        gpu_unmap(&gpu);
    return -code;
}

static struct fi_ops_domain domain_ops = {
    .size = sizeof domain_ops,
    .av_open = open_av,
    .cq_open = open_cq,
    .endpoint = open_endpoint,
};
static struct fi_ops_mr mr_ops = {.size = sizeof mr_ops, .reg = reg, .regattr = regattr};

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain,
                       void *context)
{
    (void)fabric, (void)context;
    struct domain *d = calloc(1, sizeof *d);
    d->hmem = info->caps & FI_HMEM;
    d->domain = (struct fid_domain){.fid = {.fclass = FI_CLASS_DOMAIN, .ops = &domain_fid_ops},
                                    .ops = &domain_ops,
                                    .mr = &mr_ops};
    *domain = &d->domain;
    return 0;
}

static struct fi_ops_fabric fabric_ops = {.size = sizeof fabric_ops, .domain = open_domain};

/* The library's functions */

__attribute__((visibility("default"))) uint32_t fi_version(void)
{
    const char *minor = getenv("FAKEFABRIC_MINOR");
    return FI_VERSION(1, minor != NULL ? atoi(minor) : 11);
}

__attribute__((visibility("default"))) const char *fi_strerror(int code)
{
    return strerror(code);
}

__attribute__((visibility("default"))) struct fi_info *fi_dupinfo(const struct fi_info *from)
{
    struct fi_info *info = calloc(1, sizeof *info);
    info->tx_attr = calloc(1, sizeof *info->tx_attr);
    info->rx_attr = calloc(1, sizeof *info->rx_attr);
    info->ep_attr = calloc(1, sizeof *info->ep_attr);
    info->domain_attr = calloc(1, sizeof *info->domain_attr);
    info->fabric_attr = calloc(1, sizeof *info->fabric_attr);
    if (from == NULL)
        return info;
    info->caps = from->caps;
    info->mode = from->mode;
    info->addr_format = from->addr_format;
    *info->tx_attr = *from->tx_attr;
    *info->rx_attr = *from->rx_attr;
    *info->ep_attr = *from->ep_attr;
    *info->domain_attr = *from->domain_attr;
    *info->fabric_attr = *from->fabric_attr;
    if (from->domain_attr->name != NULL)
        info->domain_attr->name = strdup(from->domain_attr->name);
    if (from->fabric_attr->name != NULL)
        info->fabric_attr->name = strdup(from->fabric_attr->name);
    if (from->fabric_attr->prov_name != NULL)
        info->fabric_attr->prov_name = strdup(from->fabric_attr->prov_name);
    return info;
}

__attribute__((visibility("default"))) void fi_freeinfo(struct fi_info *info)
{
    free(info->domain_attr->name);
    free(info->fabric_attr->name);
    free(info->fabric_attr->prov_name);
    free(info->src_addr);
    free(info->tx_attr);
    free(info->rx_attr);
    free(info->ep_attr);
    free(info->domain_attr);
    free(info->fabric_attr);
    free(info);
}

__attribute__((visibility("default"))) int fi_getinfo(uint32_t version, const char *node,
                                                      const char *service, uint64_t flags,
                                                      const struct fi_info *hints,
                                                      struct fi_info **out)
{
    const char *name = getenv("FAKEFABRIC_PROVIDER");
    const char *wanted = hints->fabric_attr->prov_name;
    name = name == NULL ? "efa" : name;
    bool hmem = hints->caps & FI_HMEM;
    (void)service, (void)flags;
    bool ip = getenv("FAKEFABRIC_IP") != NULL;
    if (node != NULL && !ip)
        stop("an IP address for a provider that has none");
    if (node != NULL || (hints->caps & FI_RMA && is_set("FAKEFABRIC_WRITES", "none")))
        return -FI_ENODATA;
    if (wanted != NULL && strcmp(wanted, name) != 0)
        return -FI_ENODATA;
    if ((hints->domain_attr->mr_mode & MODE) != MODE || !(hints->mode & FI_CONTEXT2))
        return -FI_ENODATA;
    if (hmem
        && (getenv("FAKEFABRIC_HMEM") == NULL || FI_VERSION_LT(version, FI_VERSION(1, 18))
            || !(hints->domain_attr->mr_mode & FI_MR_HMEM)))
        return -FI_ENODATA;
    struct fi_info *info = fi_dupinfo(NULL);
    info->caps = FI_MSG | FI_SEND | FI_RECV | (hints->caps & (FI_RMA | FI_HMEM));
    info->fabric_attr->api_version = version;
    info->mode = FI_CONTEXT2;
    info->addr_format = ip ? FI_SOCKADDR_IN : FI_ADDR_STR;
    info->tx_attr->size = info->rx_attr->size = depth();
    info->tx_attr->iov_limit = info->tx_attr->rma_iov_limit = places();
    info->ep_attr->type = FI_EP_RDM;
    info->ep_attr->max_msg_size = longest();
    info->domain_attr->cq_data_size = sizeof(uint32_t);
    info->domain_attr->name = strdup("fake0");
    info->domain_attr->mr_mode = MODE | (hmem ? FI_MR_HMEM : 0);
    info->fabric_attr->name = strdup("fake");
    info->fabric_attr->prov_name = strdup(name);
    info->fabric_attr->prov_version = FI_VERSION(1, 0);
    *out = info;
    return 0;
}

static struct fid_fabric the_fabric
    = {.fid = {.fclass = FI_CLASS_FABRIC, .ops = &static_ops}, .ops = &fabric_ops};

__attribute__((visibility("default"))) int fi_fabric(struct fi_fabric_attr *attr,
                                                     struct fid_fabric **fabric, void *context)
{
    (void)attr, (void)context;
    *fabric = &the_fabric;
    return 0;
}
