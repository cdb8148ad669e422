/* Measures the bandwidth of a rail by RDMA writes to itself: what the NIC, its PCIe link and the
 * memory carry, without network and peer. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include "core/internal.h"
#include "verbs/device.h"

#ifndef PC_VERBS
int pc_verbs_loopback(const struct pc_rail_spec *spec, const struct pc_verbs_options *options,
                      double seconds, struct pc_error *error, double *bandwidth)
{
    (void)spec;
    (void)options;
    (void)seconds;
    *bandwidth = 0;
    return pc__fail(error, PC_SYSTEM, -1, "%s", pc__ib_load());
}
#else
#define PC_MESSAGE ((uint64_t)1 << 20)
#define PC_BUFFERS 4u /* messages per side: exceed most caches, yet register fast */
#define PC_WINDOW 16u /* writes in flight */
#define PC_GRACE 10e9 /* ns without a completion: the device hangs */

struct loop {
    struct pc_ib_device rail;
    struct ibv_qp *qp[2]; /* connected to each other */
    struct ibv_mr *mr;
    char *memory;
    uint64_t posted, completed;
};

static int prepare(struct loop *l, struct pc_error *error)
{
    const size_t nbytes = 2 * PC_BUFFERS * PC_MESSAGE;
    struct pc_qp_info ends[2];
    l->memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (l->memory == MAP_FAILED) {
        l->memory = NULL;
        return pc__fail(error, PC_NOMEM, -1, "%zu bytes: %s", nbytes, strerror(errno));
    }
    memset(l->memory, 1, nbytes); /* else every page of the source is the zero page */
    l->mr = pc__ib.reg_mr(l->rail.pd, l->memory, nbytes,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (l->mr == NULL)
        return pc__ib_device_refused(&l->rail, "ibv_reg_mr", nbytes, error);
    for (int i = 0; i < 2; i++) {
        int rc
            = pc__qp_create(&l->rail, l->rail.pd, NULL, PC_WINDOW, 1, error, &l->qp[i], &ends[i]);
        if (rc != PC_OK)
            return rc;
    }
    for (int i = 0; i < 2; i++) {
        int rc = pc__qp_connect(&l->rail, l->qp[i], &ends[i], &ends[1 - i], error);
        if (rc != PC_OK)
            return rc;
    }
    return PC_OK;
}

static int post(struct loop *l, uint64_t nbytes, struct pc_error *error)
{
    uint64_t at = l->posted % PC_BUFFERS * PC_MESSAGE;
    struct ibv_sge from
        = {.addr = (uintptr_t)l->memory + at, .length = (uint32_t)nbytes, .lkey = l->mr->lkey};
    struct ibv_send_wr *bad,
        request = {
            .sg_list = &from,
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE,
            .send_flags = IBV_SEND_SIGNALED,
            .wr.rdma = {.remote_addr = (uintptr_t)l->memory + PC_BUFFERS * PC_MESSAGE + at,
                        .rkey = l->mr->rkey},
        };
    errno = ibv_post_send(l->qp[0], &request, &bad);
    if (errno != 0)
        return pc__ib_device_refused(&l->rail, "ibv_post_send", nbytes, error);
    l->posted++;
    return PC_OK;
}

static int poll(struct loop *l, struct pc_error *error)
{
    struct ibv_wc done[PC_WINDOW];
    int n = ibv_poll_cq(l->rail.cq, PC_WINDOW, done);
    if (n < 0)
        return pc__ib_device_refused(&l->rail, "ibv_poll_cq", 0, error);
    for (int i = 0; i < n; i++)
        if (done[i].status != IBV_WC_SUCCESS)
            return pc__fail(error, PC_SYSTEM, -1, "%s port %u: an RDMA write to itself: %s",
                            l->rail.spec.device, l->rail.spec.port,
                            pc__ib.wc_status_str(done[i].status));
    l->completed += (uint64_t)n;
    return n;
}

/* Keeps the window full for `seconds`, then waits for the last completions. */
static int measure(struct loop *l, double seconds, struct pc_error *error, double *bandwidth)
{
    const uint64_t most = l->rail.max_message;
    const uint64_t nbytes = most < PC_MESSAGE ? most : PC_MESSAGE;
    const uint64_t start = pc__now();
    uint64_t now = start, last_completion = start;
    do {
        while ((double)(now - start) < seconds * 1e9 && l->posted - l->completed < PC_WINDOW) {
            int rc = post(l, nbytes, error);
            if (rc != PC_OK)
                return rc;
        }
        int n = poll(l, error);
        if (n < 0)
            return n;
        now = pc__now();
        if (n > 0)
            last_completion = now;
        else if ((double)(now - last_completion) > PC_GRACE)
            return pc__fail(error, PC_TIMEDOUT, -1,
                            "%s port %u: an RDMA write to itself does not end", l->rail.spec.device,
                            l->rail.spec.port);
    } while (l->completed < l->posted);
    *bandwidth = now == start ? 0 : (double)(l->completed * nbytes) * 1e9 / (double)(now - start);
    return PC_OK;
}

int pc_verbs_loopback(const struct pc_rail_spec *spec, const struct pc_verbs_options *options,
                      double seconds, struct pc_error *error, double *bandwidth)
{
    struct loop l = {0};
    *bandwidth = 0;
    int rc = pc__ib_device_open(spec, options, 2 * PC_WINDOW, error, &l.rail);
    if (rc != PC_OK)
        return rc;
    rc = prepare(&l, error);
    if (rc == PC_OK)
        rc = measure(&l, seconds, error, bandwidth);
    for (int i = 0; i < 2; i++)
        if (l.qp[i] != NULL)
            pc__ib.destroy_qp(l.qp[i]);
    if (l.mr != NULL)
        pc__ib.dereg_mr(l.mr);
    if (l.memory != NULL)
        munmap(l.memory, 2 * PC_BUFFERS * PC_MESSAGE);
    pc__ib_device_close(&l.rail);
    return rc;
}
#endif
