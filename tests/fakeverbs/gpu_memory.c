/* Memory of a GPU, that of the stand-in for libcuda: what is written there, and when it is seen.
 * WAY is dmabuf or peermem, FLUSH is driver, read or nothing. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "scenario.h"

#define ROOM 65536u

static void *cuda;
static uint64_t gpu; /* ROOM bytes on the GPU */
static struct ibv_mr *region;

#define CALL(name, ...) (((int (*)())(intptr_t)dlsym(cuda, name))(__VA_ARGS__))

static void must(int result, const char *what)
{
    if (result == 0)
        return;
    fprintf(stderr, "%s = %d\n", what, result);
    exit(1);
}

static uint64_t allocate(size_t nbytes)
{
    uint64_t at;
    must(CALL("cuMemAlloc_v2", &at, nbytes), "cuMemAlloc");
    return at;
}

static void open_gpu(void)
{
    void *context;
    cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    check(cuda != NULL, "libcuda.so.1");
    must(CALL("cuInit", 0), "cuInit");
    must(CALL("cuDevicePrimaryCtxRetain", &context, 0), "cuDevicePrimaryCtxRetain");
    must(CALL("cuCtxSetCurrent", context), "cuCtxSetCurrent");
    gpu = allocate(ROOM);
}

static void fill(uint64_t at, char byte, size_t nbytes)
{
    char host[ROOM];
    memset(host, byte, nbytes);
    must(CALL("cuMemcpyHtoD_v2", at, host, nbytes), "cuMemcpyHtoD");
}

/* The byte of which all of the first `nbytes` are; '?': they differ. */
static char all(size_t nbytes)
{
    char host[ROOM];
    must(CALL("cuMemcpyDtoH_v2", host, gpu, nbytes), "cuMemcpyDtoH");
    for (size_t i = 1; i < nbytes; i++)
        if (host[i] != host[0])
            return '?';
    return host[0];
}

static struct ibv_mr *by_dmabuf(struct ibv_pd *pd, uint64_t at, size_t nbytes, int access)
{
    int fd;
    must(CALL("cuMemGetHandleForAddressRange", &fd, at, nbytes, 1, 0ull),
         "cuMemGetHandleForAddressRange");
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, nbytes, at, fd, access);
    int error = errno;
    close(fd); /* the region keeps it */
    errno = error;
    return mr;
}

static struct ibv_mr *registered(struct ibv_pd *pd, int access)
{
    const char *way = getenv("WAY");
    if (getenv("RELAXED"))
        access |= IBV_ACCESS_RELAXED_ORDERING;
    struct ibv_mr *mr
        = way && !strcmp(way, "peermem")
              ? ibv_reg_mr_iova2(pd, (void *)(uintptr_t)gpu, ROOM, gpu, (unsigned)access)
              : by_dmabuf(pd, gpu, ROOM, access);
    check(mr != NULL, "registering memory of the GPU");
    return mr;
}

/* Both ends, of which b's memory is the GPU's; all of that is 'o', and a's is 'x'. */
static void open_all(void)
{
    open_gpu();
    fill(gpu, 'o', ROOM);
    open_both(RW, calm);
    memset(a.memory, 'x', ROOM);
    region = registered(b.pd, RW);
    a.theirs.addr = gpu;
    a.theirs.rkey = region->rkey;
}

static void close_all(void)
{
    if (region)
        check(!ibv_dereg_mr(region), "ibv_dereg_mr");
    must(CALL("cuMemFree_v2", gpu), "cuMemFree");
    close_both();
}

/* Waits for one completion, which must be good. */
static void done(struct endpoint *e)
{
    struct ibv_wc wc;
    check(endpoint_wait(e, 1, &wc) == 1, "nothing came");
    check(wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
}

/* Writes `nbytes` with an immediate, and waits until b has it. */
static void write_there(uint32_t nbytes)
{
    endpoint_receive(&b, 100, 0);
    check(!endpoint_send(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 1, nbytes, SIGNALED), "posting");
    done(&b);
    done(&a);
}

static void read_byte(struct endpoint *e, uint64_t from, uint32_t rkey)
{
    struct ibv_sge sge;
    struct ibv_send_wr *bad, wr = endpoint_wr(e, IBV_WR_RDMA_READ, 1, &sge);
    wr.wr.rdma.remote_addr = from;
    wr.wr.rdma.rkey = rkey;
    wr.send_flags = SIGNALED;
    sge.addr += SIZE - 64;
    check(!ibv_post_send(e->qp, &wr, &bad), "ibv_post_send");
    done(e);
}

static struct ibv_qp *of_peer, *of_itself;

/* A queue pair of b that is connected to itself. */
static void open_loopback(void)
{
    of_peer = b.qp;
    endpoint_qp(&b);
    struct remote self = b.mine;
    endpoint_connect(&b, &self, calm);
    of_itself = b.qp;
    b.qp = of_peer;
}

static void read_by_itself(uint64_t from, uint32_t rkey)
{
    b.qp = of_itself;
    read_byte(&b, from, rkey);
    b.qp = of_peer;
}

static void flush_by_driver(void)
{
    must(CALL("cuFlushGPUDirectRDMAWrites", 0, 100), "cuFlushGPUDirectRDMAWrites");
}

static void flush(void)
{
    const char *how = getenv("FLUSH");
    if (!how)
        return;
    if (!strcmp(how, "driver"))
        flush_by_driver();
    else
        read_by_itself(gpu, region->rkey);
}

/* What b sees once it has been told, and what after a flush. */
static void gpu_written(void)
{
    open_all();
    open_loopback();
    flush(); /* says nothing of what comes later */
    write_there(40000);
    printf("  told: %c", all(40000));
    read_by_itself((uintptr_t)b.memory, b.mr->rkey); /* memory of the host: no flush */
    printf(", later: %c", all(40000));
    flush();
    printf(", flushed: %c\n", all(40000));
    check(!ibv_destroy_qp(of_itself), "ibv_destroy_qp");
    close_all();
}

/* A READ of the same memory by another card says nothing of what this one has written. */
static void gpu_other_card(void)
{
    open_all();
    struct ibv_mr *second = registered(a.pd, RW);
    struct ibv_qp *first = a.qp;
    write_there(4096);
    endpoint_qp(&a);
    struct remote self = a.mine, peer = a.theirs;
    endpoint_connect(&a, &self, calm);
    read_byte(&a, gpu, second->rkey);
    printf("  read by the other card: %c %c\n", a.memory[SIZE - 64], all(4096));
    check(!ibv_destroy_qp(a.qp), "ibv_destroy_qp");
    a.qp = first;
    a.theirs = peer;
    read_byte(&a, gpu, region->rkey);
    printf("  by the card that wrote: %c %c\n", a.memory[SIZE - 64], all(4096));
    check(!ibv_dereg_mr(second), "ibv_dereg_mr");
    close_all();
}

/* Two writes to the same bytes, and a READ by the peer. */
static void gpu_order(void)
{
    open_all();
    write_there(4096);
    memset(a.memory, 'y', 4096);
    write_there(2048);
    read_byte(&a, gpu, region->rkey);
    printf("  the peer read: %c\n", a.memory[SIZE - 64]);
    char host[4096];
    must(CALL("cuMemcpyDtoH_v2", host, gpu, sizeof host), "cuMemcpyDtoH");
    printf("  there: %c %c\n", host[2047], host[2048]);
    close_all();
}

/* A READ that waits until a receive has told of what was written behind it, which it says nothing
 * of; one that has told of what came before the READ does not end the wait. */
static void gpu_overtaken(void)
{
    struct ibv_wc wc[2];
    struct ibv_sge sge;
    open_all();
    open_loopback();
    write_there(64);
    struct ibv_send_wr *bad, wr = endpoint_wr(&b, IBV_WR_RDMA_READ, 1, &sge);
    wr.wr.rdma.remote_addr = gpu;
    wr.wr.rdma.rkey = region->rkey;
    wr.send_flags = SIGNALED;
    check(!ibv_post_send(of_itself, &wr, &bad), "ibv_post_send");
    for (int i = 0; i < 10; i++) /* its NIC answers others, and would have answered this */
        read_byte(&a, (uintptr_t)b.memory, b.mr->rkey);
    nothing_more("of the read", &b);
    memset(a.memory, 'y', 4096);
    endpoint_receive(&b, 100, 0);
    check(!endpoint_send(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 4096, SIGNALED), "posting");
    done(&a);
    check(endpoint_wait(&b, 2, wc) == 2, "two completions");
    for (int i = 0; i < 2; i++)
        check(wc[i].status == IBV_WC_SUCCESS, ibv_wc_status_str(wc[i].status));
    printf("  first: %s", wc[0].opcode == IBV_WC_RDMA_READ ? "the read" : "what came behind it");
    printf(", read: %c", all(64));
    flush_by_driver();
    printf(", flushed: %c\n", all(4096));
    check(!ibv_destroy_qp(of_itself), "ibv_destroy_qp");
    close_all();
}

/* What a SEND brings, and what a READ does, is written into memory, too. */
static void gpu_scattered(void)
{
    open_all();
    struct ibv_sge sge = {gpu, 4096, region->lkey};
    struct ibv_recv_wr receive = {.wr_id = 100, .sg_list = &sge, .num_sge = 1}, *refused;
    check(!ibv_post_recv(b.qp, &receive, &refused), "ibv_post_recv");
    check(!endpoint_send(&a, IBV_WR_SEND, 1, 4096, SIGNALED), "posting");
    done(&b);
    done(&a);
    printf("  sent: %c", all(4096));
    flush_by_driver();
    printf(", flushed: %c\n", all(4096));
    memset(a.memory, 'r', 4096);
    struct ibv_send_wr *bad, wr = endpoint_wr(&b, IBV_WR_RDMA_READ, 4096, &sge);
    sge = (struct ibv_sge){gpu, 4096, region->lkey};
    wr.send_flags = SIGNALED;
    check(!ibv_post_send(b.qp, &wr, &bad), "ibv_post_send");
    done(&b);
    printf("  read: %c", all(4096));
    flush_by_driver();
    printf(", flushed: %c\n", all(4096));
    close_all();
}

/* The NIC reads the GPU's memory for what it sends. */
static void gpu_source(void)
{
    open_gpu();
    open_both(RW, calm);
    region = registered(a.pd, IBV_ACCESS_LOCAL_WRITE);
    fill(gpu, 'g', ROOM);
    struct ibv_sge sge;
    struct ibv_send_wr *bad, wr = endpoint_wr(&a, IBV_WR_RDMA_WRITE, 50000, &sge);
    sge = (struct ibv_sge){gpu + 1000, 50000, region->lkey};
    wr.send_flags = SIGNALED;
    check(!ibv_post_send(a.qp, &wr, &bad), "ibv_post_send");
    done(&a);
    printf("  there: %c %c%c\n", b.memory[0], b.memory[49999], b.memory[50000] ? '!' : '.');
    sge.length = 8;
    wr.send_flags = SIGNALED | INLINE;
    printf("  inline: %s\n", strerror(ibv_post_send(a.qp, &wr, &bad)));
    close_all();
}

static void say(const char *what, struct ibv_mr *mr)
{
    printf("  %s: %s\n", what, mr ? "taken" : strerror(errno));
    if (mr)
        check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
}

static void gpu_refusals(void)
{
    int fd, other = open("/dev/null", O_RDWR | O_CLOEXEC), all_access = RW;
    open_gpu();
    endpoint_open(&a, device_a, gid_index, RW);
    must(CALL("cuMemGetHandleForAddressRange", &fd, gpu + 4096, (size_t)8192, 1, 0ull), "export");
    say("by address", ibv_reg_mr(a.pd, (void *)(uintptr_t)gpu, ROOM, all_access));
    say("past its end", ibv_reg_mr(a.pd, (void *)(uintptr_t)gpu, ROOM + 1, all_access));
    say("a dma-buf", ibv_reg_dmabuf_mr(a.pd, 0, 8192, gpu + 4096, fd, all_access));
    say("its second half", ibv_reg_dmabuf_mr(a.pd, 4096, 4096, gpu, fd, all_access));
    say("past its end", ibv_reg_dmabuf_mr(a.pd, 4096, 4097, gpu, fd, all_access));
    say("another offset in the page", ibv_reg_dmabuf_mr(a.pd, 8, 64, gpu, fd, all_access));
    say("of nothing", ibv_reg_dmabuf_mr(a.pd, 0, 0, gpu, fd, all_access));
    say("written by others alone",
        ibv_reg_dmabuf_mr(a.pd, 0, 4096, gpu, fd, IBV_ACCESS_REMOTE_WRITE));
    say("no dma-buf", ibv_reg_dmabuf_mr(a.pd, 0, 4096, gpu, other, all_access));
    close(other);
    say("no descriptor", ibv_reg_dmabuf_mr(a.pd, 0, 4096, gpu, other, all_access));
    must(CALL("cuMemFree_v2", gpu), "cuMemFree");
    close(fd);
    endpoint_close(&a);
}

/* Deregistered before it was flushed: nothing of it comes later. */
static void gpu_dropped(void)
{
    open_all();
    write_there(4096);
    check(!ibv_dereg_mr(region), "ibv_dereg_mr");
    region = NULL;
    flush_by_driver();
    printf("  there: %c\n", all(4096));
    close_all();
}

static void gpu_late(void)
{
    open_all();
    write_there(4096);
    while (all(4096) == 'o')
        usleep(1000);
    printf("  there: %c\n", all(4096));
    close_all();
}

/* Freed while a region of it is left. */
static void gpu_freed(void)
{
    open_all();
    CALL("cuMemFree_v2", gpu);
    printf("  freed\n");
}

const struct scenario gpu_scenarios[] = {
    {"gpu_written", gpu_written},
    {"gpu_order", gpu_order},
    {"gpu_scattered", gpu_scattered},
    {"gpu_source", gpu_source},
    {"gpu_refusals", gpu_refusals},
    {"gpu_dropped", gpu_dropped},
    {"gpu_other_card", gpu_other_card},
    {"gpu_late", gpu_late},
    {"gpu_freed", gpu_freed},
    {"gpu_overtaken", gpu_overtaken},
    {NULL, NULL},
};
